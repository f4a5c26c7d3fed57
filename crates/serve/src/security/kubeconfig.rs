//! Kubeconfig files that contain their certificates and credentials.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portolan_schema::json::{Value, json};

use super::authorization::Role;
use super::pki::{Pki, PkiError};
use super::stamp::{self, Owner};
use super::tokens::{Form, ProcessToken, Tokens};

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

    /// Creates a kubeconfig for the default user of a role. Keeps the token of a former kubeconfig if it is one of this server for
    /// the role, so that the file of tokens does not grow with every start.
    pub fn with_former_token(pki: &Pki, server: &str, former: &str, role: Role) -> Result<Self, PkiError> {
        let user = role.default_user();
        let accepted = Tokens::parse(&pki.tokens()?, Form::Hashed).unwrap_or_default();
        let is_kept = |token: &&str| {
            let found = accepted.find(token);
            found.is_some_and(|found| found.user == user && found.groups == [role.group()])
        };
        let former: Value = serde_saphyr::from_str(former).unwrap_or_default();
        match former.pointer("/users/0/user/token").and_then(Value::as_str).filter(is_kept) {
            Some(token) => Self::new(pki, server, None, user, &json!({"token": token})),
            None => Self::with_token(pki, server, None, role, user),
        }
    }

    /// Creates the kubeconfig of a client in the process of the server, with the token that the server accepts.
    pub fn of_process(pki: &Pki, server: &str, token: &ProcessToken) -> Result<Self, PkiError> {
        Self::new(pki, server, None, token.user(), &json!({"token": token.text()}))
    }

    /// Creates a kubeconfig for a server that asks for no credentials.
    pub fn without_credentials(server: &str) -> Self {
        Self(format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: portolan\n\
             clusters: [{{name: portolan, cluster: {{server: \"{server}\"}}}}]\n\
             users: [{{name: portolan, user: {{}}}}]\n\
             contexts: [{{name: portolan, context: {{cluster: portolan, user: portolan}}}}]\n"
        ))
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
