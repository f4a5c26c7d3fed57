//! Who we are, for each request anew: tokens and passwords, whatever their source.
//!
//! A token file is read at every request: there are few requests, and so a rotated token counts at once. After
//! a 401 the source is asked again, and a request whose credential has changed meanwhile is sent once more.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use kube::config::AuthInfo;
use secrecy::ExposeSecret;

use super::ClientError;
use super::exec::{ExecError, Plugin};

/// What goes with one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Credential {
    /// The `Authorization` header.
    pub(super) authorization: Option<HeaderValue>,
    /// A client certificate that came from a plug-in.
    pub(super) identity: Option<Arc<Identity>>,
}

/// A client certificate with its key, both PEM.
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

/// Why there is no usable credential in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// client-go refuses this too.
    #[error("the user has a username and a token: remove one of them")]
    Ambiguous,
    /// The credential has a character that cannot stand in a header.
    #[error("the {0} has characters that cannot be sent in a header")]
    Header(&'static str),
    /// The token file cannot be read.
    #[error("token file {path}: {source}")]
    TokenFile {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The kubeconfig names a built-in provider.
    #[error("auth-provider {0:?} is not supported: use an exec plug-in")]
    AuthProvider(String),
    /// The exec plug-in.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// The user's credentials.
pub(super) enum Credentials {
    Fixed(Credential),
    File { path: PathBuf, last: Mutex<Option<HeaderValue>> },
    Exec(Box<Plugin>),
}

impl Credentials {
    /// Reads what can be read now; a plug-in runs at the first request, as in client-go.
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

    /// A token file goes before an inline token, which counts while the file cannot be read.
    fn file(path: &Path, inline: Option<&str>) -> Result<Self, CredentialError> {
        let inline = inline.map(|token| header("Bearer", token, "token")).transpose()?;
        match read(path) {
            Err(error) if inline.is_none() => Err(error),
            _ => Ok(Self::File { path: path.to_owned(), last: Mutex::new(inline) }),
        }
    }

    /// The credential for a request.
    pub(super) async fn current(&self) -> Result<Credential, CredentialError> {
        match self {
            Self::Fixed(credential) => Ok(credential.clone()),
            Self::File { path, last } => {
                let read = read(path);
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                match read {
                    Ok(token) => *last = Some(token),
                    // The last token stays in use: some remove the file after it was read.
                    Err(error) if last.is_some() => tracing::warn!(%error, "using the last token"),
                    Err(error) => return Err(error),
                }
                Ok(Credential { authorization: last.clone(), identity: None })
            }
            Self::Exec(plugin) => Ok(plugin.current().await?),
        }
    }

    /// The API server did not accept this credential. Another one, if there is one by now.
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

/// An `Authorization` header that is kept out of logs.
pub(super) fn header(scheme: &str, value: &str, what: &'static str) -> Result<HeaderValue, CredentialError> {
    let header = HeaderValue::try_from(format!("{scheme} {value}"));
    let mut header = header.map_err(|_| CredentialError::Header(what))?;
    header.set_sensitive(true);
    Ok(header)
}

impl CredentialError {
    /// In the words of the whole client.
    pub(super) fn of(self, url: &http::Uri) -> ClientError {
        ClientError::Credentials { url: url.to_string(), source: self }
    }
}
