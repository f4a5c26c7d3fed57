//! A kubeconfig that is complete in itself.

use std::io;
use std::path::Path;

use crate::json::{Value, json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::authorization::Role;
use super::pki::{Pki, PkiError};
use super::stamp::{self, Owner};

/// A kubeconfig for one user of one server.
pub struct Kubeconfig(String);

impl Kubeconfig {
    /// With a client certificate of the own authority.
    pub fn with_certificate(
        pki: &Pki,
        server: &str,
        authority: Option<&str>,
        role: Role,
        user: &str,
    ) -> Result<Self, PkiError> {
        let client = pki.issue_client(role, user)?;
        let credentials = json!({
            "client-certificate-data": STANDARD.encode(client.certificate),
            "client-key-data": STANDARD.encode(client.key),
        });
        Self::new(pki, server, authority, user, &credentials)
    }

    /// With a new token.
    pub fn with_token(
        pki: &Pki,
        server: &str,
        authority: Option<&str>,
        role: Role,
        user: &str,
    ) -> Result<Self, PkiError> {
        let credentials = json!({"token": pki.issue_token(role, user)?});
        Self::new(pki, server, authority, user, &credentials)
    }

    /// The text, which is YAML. It is a secret.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Writes it to a file that only its owner may read.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        stamp::write(path, &self.0, Owner::Writer)
    }

    /// `authority` is the PEM text that the server is verified with, if not by the own authority.
    fn new(
        pki: &Pki,
        server: &str,
        authority: Option<&str>,
        user: &str,
        credentials: &Value,
    ) -> Result<Self, PkiError> {
        let authority = match authority {
            Some(authority) => authority.to_owned(),
            None => pki.authority_certificate()?,
        };
        let cluster = json!({"server": server, "certificate-authority-data": STANDARD.encode(authority)});
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "portolan", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "portolan", "context": {"cluster": "portolan", "user": user}}],
            "current-context": "portolan",
        });
        // A value of text alone can always be written.
        serde_saphyr::to_string(&config).map(Self).map_err(|error| PkiError::File {
            path: "kubeconfig".into(),
            source: io::Error::other(error.to_string()),
        })
    }
}
