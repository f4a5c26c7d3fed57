//! Kubeconfig files that contain their certificates and credentials.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portolan_schema::json::{Value, json};

use super::authorization::Role;
use super::pki::{Pki, PkiError};
use super::stamp::{self, Owner};
use super::tokens::ProcessToken;

/// A kubeconfig for one user and one server.
pub struct Kubeconfig(String);

impl Kubeconfig {
    /// Creates a kubeconfig with a new client certificate from the server's CA.
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

    /// Creates a kubeconfig with a new token.
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

    /// Creates the kubeconfig of a client in the process of the server, with the token that the server accepts.
    pub fn of_process(pki: &Pki, server: &str, token: &ProcessToken) -> Result<Self, PkiError> {
        Self::new(pki, server, None, token.user(), &json!({"token": token.text()}))
    }

    /// Returns the text, which is YAML. It is secret.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Writes the kubeconfig to a file that only its owner can read.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        stamp::write(path, &self.0, Owner::Writer)
    }

    /// `authority` is the PEM text of the CA that verifies the server. `None` means the server's own CA.
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
        // A value of texts can always be serialized.
        serde_saphyr::to_string(&config).map(Self).map_err(|error| PkiError::File {
            path: "kubeconfig".into(),
            source: io::Error::other(error.to_string()),
        })
    }
}
