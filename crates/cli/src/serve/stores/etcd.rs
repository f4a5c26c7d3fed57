//! The flags of the store in etcd.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context as _;
use clap::Args;
use portolan_serve::{History, Store};
use portolan_store::{Credentials, EtcdOptions, EtcdStore, EtcdTls};

/// Where etcd is, and how to talk to it.
#[derive(Debug, Args)]
#[expect(clippy::struct_field_names, reason = "clap makes the flags from these names")]
pub(super) struct EtcdFlags {
    /// Keep objects in etcd, which several servers may share, instead of a file.
    #[arg(long, value_name = "URL,...", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// What the keys in etcd begin with.
    #[arg(long, value_name = "PREFIX", default_value = "/portolan/v1", requires = "etcd_servers")]
    etcd_prefix: String,
    /// Authority of etcd's certificates.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_cafile: Option<PathBuf>,
    /// Certificate to show to etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Private key of --etcd-certfile.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// File with a user and a password for etcd, one a line.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_credentials_file: Option<PathBuf>,
}

impl EtcdFlags {
    /// Returns true if the objects are kept in etcd.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Connects to etcd. The tasks of the store run on the current runtime.
    pub(super) async fn connect(&self, history: History) -> anyhow::Result<Arc<dyn Store>> {
        let store = EtcdStore::connect(self.options()?, history).await;
        Ok(Arc::new(store.map_err(|error| anyhow::anyhow!("--etcd-servers: {error}"))?))
    }

    fn options(&self) -> anyhow::Result<EtcdOptions> {
        let tls = match &self.etcd_cafile {
            None if self.etcd_certfile.is_some() => {
                anyhow::bail!(
                    "--etcd-certfile: give --etcd-cafile, too: the authority of etcd's certificates"
                )
            }
            None => None,
            Some(file) => Some(EtcdTls {
                ca: read("--etcd-cafile", file)?,
                identity: match (&self.etcd_certfile, &self.etcd_keyfile) {
                    (Some(certificate), Some(key)) => {
                        Some((read("--etcd-certfile", certificate)?, read("--etcd-keyfile", key)?))
                    }
                    _ => None,
                },
                server_name: None,
            }),
        };
        let credentials = self.etcd_credentials_file.as_ref().map(|file| credentials(file)).transpose()?;
        Ok(EtcdOptions {
            endpoints: self.etcd_servers.clone(),
            prefix: self.etcd_prefix.clone(),
            tls,
            credentials,
            ..EtcdOptions::default()
        })
    }
}

fn credentials(file: &Path) -> anyhow::Result<Credentials> {
    let flag = "--etcd-credentials-file";
    let text = String::from_utf8(read(flag, file)?).with_context(|| format!("{flag} {}", file.display()))?;
    let mut lines = text.lines().map(str::to_owned);
    match (lines.next(), lines.next()) {
        (Some(name), Some(password)) if !name.is_empty() => Ok(Credentials { name, password }),
        _ => anyhow::bail!(
            "{flag} {}: write the user into the first line and the password into the second",
            file.display()
        ),
    }
}

fn read(flag: &str, file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("{flag}: cannot read {}", file.display()))
}
