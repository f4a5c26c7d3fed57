//! The transport of `portolan serve`: TLS or plain HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use portolan_serve::{ServiceRanges, TlsSettings, Transport, server_names};

/// TLS, or its absence.
#[derive(Debug, Args)]
pub(crate) struct TlsOptions {
    /// Serve plain HTTP, in which everybody who can connect may do everything. Refused on addresses other than
    /// loopback.
    #[arg(long, conflicts_with_all = ["tls_cert_file", "tls_private_key_file", "client_ca_file", "token_auth_file", "tls_san"])]
    insecure_http: bool,
    /// Certificate to serve with, followed by those between it and its authority; in place of the own one.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Private key of --tls-cert-file.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Further names or addresses for the own certificate.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    tls_san: Vec<String>,
    /// Authorities whose client certificates are accepted besides those of the own one.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Tokens that are accepted: lines of token,user,uid,"group,group".
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
}

impl TlsOptions {
    /// Returns true if the server has a certificate of another authority.
    pub(crate) const fn has_other_certificate(&self) -> bool {
        self.tls_cert_file.is_some()
    }

    /// Returns true if the server has TLS.
    pub(crate) const fn has_tls(&self) -> bool {
        !self.insecure_http
    }

    /// Returns the transport settings of the server.
    pub(super) fn transport(&self, listen: SocketAddr, data_dir: &Path, ranges: &ServiceRanges) -> Transport {
        if self.insecure_http {
            return Transport::PlainHttp;
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Transport::Tls(Box::new(TlsSettings {
            pki: pki_folder(data_dir),
            names: server_names(listen, &host, ranges, &self.tls_san),
            certificate: self.tls_cert_file.clone().zip(self.tls_private_key_file.clone()),
            client_authorities: self.client_ca_file.clone(),
            tokens: self.token_auth_file.clone(),
            of_process: None,
        }))
    }
}

/// Returns the folder of certificates and keys.
pub(crate) fn pki_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("pki")
}
