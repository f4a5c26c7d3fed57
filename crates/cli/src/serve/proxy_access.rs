//! `portolan serve --write-proxy-kubeconfig`: how agents on this host get access to the server.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use portolan_serve::{Kubeconfig, Pki, Role};

use super::tls::pki_folder;
use super::{ServerOptions, listening};

/// The file, and what it depends on.
pub(super) struct ProxyAccess {
    path: PathBuf,
    data_dir: PathBuf,
    has_tls: bool,
    has_other_certificate: bool,
}

impl ProxyAccess {
    pub(super) fn new(path: PathBuf, options: &ServerOptions) -> Self {
        Self {
            path,
            data_dir: options.data_dir.clone(),
            has_tls: options.tls.has_tls(),
            has_other_certificate: options.tls.has_other_certificate(),
        }
    }

    /// Writes the file for a server that listens at an address, unless the file is right already.
    ///
    /// # Errors
    /// The file, or a new token, cannot be written.
    pub(super) fn write(&self, address: SocketAddr) -> anyhow::Result<()> {
        if self.has_other_certificate {
            let mend = "write it once with `portolan serve kubeconfig --role proxy --token --certificate-authority FILE`";
            tracing::warn!(path = %self.path.display(), mend,
                "the kubeconfig of the proxy is not written: the authority of --tls-cert-file is not known");
            return Ok(());
        }
        let url = listening::url(address, self.has_tls);
        // A file that cannot be read is written again.
        let former = fs::read_to_string(&self.path).unwrap_or_default();
        let config = if self.has_tls {
            let pki = Pki::open(pki_folder(&self.data_dir)).context("--data-dir")?;
            Kubeconfig::with_former_token(&pki, &url, &former, Role::Proxy)?
        } else {
            Kubeconfig::without_credentials(&url)
        };
        if config.text() == former {
            return Ok(());
        }
        config.write(&self.path).with_context(|| {
            format!("--write-proxy-kubeconfig: cannot write {}; name another file", self.path.display())
        })
    }
}
