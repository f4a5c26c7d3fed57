//! The credentials of each request: tokens and passwords from all sources.
//!
//! A token file is read at every request, so that a rotated token is used at once; there are few requests. After a
//! 401 the source is read again, and the request is sent once more if the credential has changed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use kube::config::AuthInfo;
use secrecy::ExposeSecret;

use super::ClientError;
use super::exec::{ExecError, Plugin};

/// The credential of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Credential {
    /// The `Authorization` header.
    pub(super) authorization: Option<HeaderValue>,
    /// A client certificate from a plug-in.
    pub(super) identity: Option<Arc<Identity>>,
}

/// A client certificate and its key, both PEM.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Why the configuration gives no usable credential.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The user has a username and a token. client-go refuses this too.
    #[error("the user has a username and a token: remove one of them")]
    Ambiguous,
    /// The credential has a character that is not allowed in a header.
    #[error("the {0} has characters that cannot be sent in a header")]
    Header(&'static str),
    /// The token file cannot be read.
    #[error("token file {path}: {source}")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The kubeconfig names a built-in provider, which is not supported.
    #[error("auth-provider {0:?} is not supported: use an exec plug-in")]
    AuthProvider(String),
    /// The exec plug-in failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// The source of the user's credentials.
pub(super) enum Credentials {
    Fixed(Credential),
    File { path: PathBuf, last: Mutex<Last> },
    Exec(Box<Plugin>),
}

/// The last token of a file, and the failures to read the file since.
#[derive(Default)]
pub(super) struct Last {
    token: Option<HeaderValue>,
    failures: Failures,
}

/// Failures in a row with one reason. There are many requests while the API server is away.
#[derive(Debug, Default)]
struct Failures {
    reason: String,
    count: u32,
}

impl Failures {
    /// Records a failure. Returns true if it is to be logged: the first, second, fourth, eighth... one with this reason.
    fn is_news(&mut self, reason: String) -> bool {
        if reason != self.reason {
            *self = Self { reason, count: 0 };
        }
        self.count = self.count.saturating_add(1);
        self.count.is_power_of_two()
    }

    /// Records a success. Returns true if it ends failures.
    fn end(&mut self) -> bool {
        std::mem::take(self).count > 0
    }
}

impl Credentials {
    /// Reads the configured credentials. A plug-in runs at the first request, as in client-go.
    pub(super) fn new(user: &AuthInfo) -> Result<Self, CredentialError> {
        if let Some(provider) = &user.auth_provider {
            return Err(CredentialError::AuthProvider(provider.name.clone()));
        }
        let inline = user.token.as_ref().map(ExposeSecret::expose_secret).filter(|token| !token.is_empty());
        let file = user.token_file.as_ref().filter(|file| !file.is_empty());
        let name = user.username.as_ref().filter(|name| !name.is_empty());
        match (name, file, inline) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => Err(CredentialError::Ambiguous),
            (Some(name), None, None) => {
                let password = user.password.as_ref().map_or("", |password| password.expose_secret());
                let pair = STANDARD.encode(format!("{name}:{password}"));
                Ok(fixed(header("Basic", &pair, "password")?))
            }
            (None, Some(file), inline) => Self::file(Path::new(file), inline),
            (None, None, Some(token)) => Ok(fixed(header("Bearer", token, "token")?)),
            (None, None, None) => match &user.exec {
                Some(exec) => Ok(Self::Exec(Box::new(Plugin::new(exec.clone())?))),
                None => Ok(Self::Fixed(Credential::default())),
            },
        }
    }

    /// A token file takes precedence over an inline token, which is used while the file cannot be read.
    fn file(path: &Path, inline: Option<&str>) -> Result<Self, CredentialError> {
        let inline = inline.map(|token| header("Bearer", token, "token")).transpose()?;
        match read(path) {
            Err(error) if inline.is_none() => Err(error),
            _ => {
                let last = Last { token: inline, ..Last::default() };
                Ok(Self::File { path: path.to_owned(), last: Mutex::new(last) })
            }
        }
    }

    /// Returns the credential for a request.
    pub(super) async fn current(&self) -> Result<Credential, CredentialError> {
        match self {
            Self::Fixed(credential) => Ok(credential.clone()),
            Self::File { path, last } => {
                let read = read(path);
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                let Last { token, failures } = &mut *last;
                match read {
                    Ok(new) => {
                        *token = Some(new);
                        if failures.end() {
                            tracing::info!(path = %path.display(), "the token file is read again");
                        }
                    }
                    Err(error) if token.is_none() => return Err(error),
                    // The last token stays in use: some programs remove the file after it was read.
                    Err(error) if failures.is_news(error.to_string()) => {
                        tracing::warn!(%error, failures = failures.count, "using the last token");
                    }
                    Err(error) => tracing::debug!(%error, "using the last token"),
                }
                Ok(Credential { authorization: token.clone(), identity: None })
            }
            Self::Exec(plugin) => Ok(plugin.current().await?),
        }
    }

    /// Returns another credential after the API server refused this one, or `None` if there is no other.
    pub(super) async fn after_refusal(&self, refused: &Credential) -> Option<Credential> {
        if let Self::Exec(plugin) = self {
            plugin.forget(refused).await;
        }
        match self {
            Self::Fixed(_) => None,
            _ => self.current().await.ok().filter(|credential| credential != refused),
        }
    }
}

fn fixed(authorization: HeaderValue) -> Credentials {
    Credentials::Fixed(Credential { authorization: Some(authorization), identity: None })
}

fn read(path: &Path) -> Result<HeaderValue, CredentialError> {
    let fault = |source| CredentialError::TokenFile { path: path.to_owned(), source };
    let token = std::fs::read_to_string(path).map_err(fault)?;
    match token.trim() {
        "" => Err(fault(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the file is empty"))),
        token => header("Bearer", token, "token"),
    }
}

/// Returns an `Authorization` header that is kept out of logs.
pub(super) fn header(scheme: &str, value: &str, what: &'static str) -> Result<HeaderValue, CredentialError> {
    let header = HeaderValue::try_from(format!("{scheme} {value}"));
    let mut header = header.map_err(|_| CredentialError::Header(what))?;
    header.set_sensitive(true);
    Ok(header)
}

impl CredentialError {
    /// Adds the URL of the API server.
    pub(super) fn of(self, url: &http::Uri) -> ClientError {
        ClientError::Credentials { url: url.to_string(), source: self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_failures_of_many_are_logged() {
        let mut failures = Failures::default();
        let mut told =
            |reason: &str, times: u32| (0..times).filter(|_| failures.is_news(reason.to_owned())).count();
        assert_eq!(told("no such file", 1000), 10);
        assert_eq!(told("the file is empty", 2), 2, "another reason");
        assert!(failures.end() && !failures.end());
        assert!(failures.is_news("the file is empty".to_owned()));
    }
}
