//! An API server in the same process.

use std::fmt;
use std::sync::Arc;

/// How the API server of the same process is reached: a kubeconfig that is in no file. Cheap to clone.
#[derive(Clone)]
pub struct LocalServer(Arc<str>);

impl LocalServer {
    /// Takes the text of a kubeconfig with a current context. Its certificates and credentials are in the text itself.
    pub fn of_kubeconfig(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text, which is secret.
    pub(super) fn kubeconfig(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalServer")
    }
}
