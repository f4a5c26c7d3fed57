//! `portolan serve kubeconfig`: credentials for a client.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use portolan_serve::{Kubeconfig, Pki, Role};

use super::tls::pki_folder;
use super::{DATA_DIR, listening};

/// The URL of a server without options.
const SERVER: &str = "https://127.0.0.1:6443";

/// Options of `portolan serve kubeconfig`.
#[derive(Debug, Args)]
pub(super) struct KubeconfigOptions {
    /// What the client may do.
    #[arg(long, value_enum)]
    role: RoleName,
    /// Folder of the server's data.
    #[arg(long, default_value = DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// URL that the client connects to; where none is given, that of the server that ran last with the data folder, or
    /// else of a server without options.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Name of the user; portolan-admin, system:kube-proxy or portolan-read-only where none is given.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Use a bearer token, which does not end, in place of a certificate, which is good for a year.
    #[arg(long)]
    token: bool,
    /// Authorities to verify the server with, where it has --tls-cert-file.
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// File to write, which only its owner may read; standard output where none is given.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The roles, as they are called on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RoleName {
    /// Everything.
    Admin,
    /// What portolan proxy and kube-proxy need.
    Proxy,
    /// Reading everything.
    ReadOnly,
}

/// Creates the credentials and writes the kubeconfig.
pub(super) fn run(options: &KubeconfigOptions) -> anyhow::Result<()> {
    let role = match options.role {
        RoleName::Admin => Role::Admin,
        RoleName::Proxy => Role::Proxy,
        RoleName::ReadOnly => Role::ReadOnly,
    };
    let user = options.name.as_deref().unwrap_or(role.default_user());
    let authority = options.certificate_authority.as_deref().map(|path| {
        std::fs::read_to_string(path).with_context(|| format!("--certificate-authority: {}", path.display()))
    });
    let authority = authority.transpose()?;
    let server = options.server.clone().or_else(|| listening::noted(&options.data_dir));
    let server = server.as_deref().unwrap_or(SERVER);
    let pki = Pki::open(pki_folder(&options.data_dir)).context("--data-dir")?;
    let make = if options.token { Kubeconfig::with_token } else { Kubeconfig::with_certificate };
    let config = make(&pki, server, authority.as_deref(), role, user)?;
    match &options.output {
        Some(path) => {
            config.write(path).with_context(|| format!("--output: cannot write {}", path.display()))
        }
        None => portolan_proxy::print(config.text()).context("cannot write to standard output"),
    }
}
