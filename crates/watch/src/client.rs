//! The authenticated way to the API server: kubeconfig or service account in, `kube::Client` out.
//!
//! kube reads kubeconfigs and makes TLS of them. The rest is our own, because it has to follow what changes
//! under a process that runs for years: `target` finds the API server, `credentials` and `exec` say who we are
//! for each request, `transport` holds connections and replaces them when certificates change, `proxy` goes
//! through proxies, `peers` knows where connections go,
//! `limiter` keeps to the configured rate, `deadline` to the time that an answer may take,
//! `observed` tells what became of each request. There are no retries behind the reflectors' backs, but for one after a 401 when the credential has changed.

mod credentials;
pub(crate) mod deadline;
mod exec;
mod limiter;
mod observed;
mod peers;
mod proxy;
mod target;
#[cfg(test)]
mod tests;
mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::client::{Body, ConfigExt as _};
use kube::config::KubeconfigError;
use tower::{BoxError, ServiceExt as _};

use self::credentials::{Credential, Credentials};
use self::limiter::Limiter;
use self::observed::Underway;
use self::proxy::Proxy;
use self::target::Surroundings;
use self::transport::{Answer, Transport};
use crate::reflector::is_refused;

pub use self::credentials::CredentialError;
pub use self::exec::ExecError;
pub use self::limiter::LimitError;
pub use self::observed::{RequestDone, RequestHook};
pub use self::peers::{PeerChanges, Peers};

/// The one form that is written and read.
pub(crate) const JSON: &str = "application/json";

/// upstream's default, accepted as such.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Where the API server is, who we are, and how we behave (`clientConnection` and `--master`).
#[derive(Clone)]
pub struct ClientSettings {
    /// A kubeconfig file; its current context counts.
    pub kubeconfig: Option<PathBuf>,
    /// Another context of it than the current one.
    pub context: Option<String>,
    /// URL of the API server, in place of the kubeconfig's (`--master`).
    pub master: Option<String>,
    /// Requests a second, of all kinds together; negative means no limit, 0 upstream's default of 5.
    pub qps: f32,
    /// Requests that may exceed `qps` for a moment; at least 1 where there is a limit.
    pub burst: i32,
    /// The form of what we send. We send JSON whatever it says; what differs from JSON and protobuf, upstream's
    /// default, is warned of.
    pub content_type: String,
    /// The forms that we understand. We understand JSON; a list without it is warned of. Empty means no wish.
    pub accept_content_types: String,
    /// Told of each request.
    pub on_request: Option<RequestHook>,
    /// Takes in where connections go.
    pub peers: Peers,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            master: None,
            qps: limiter::DEFAULT_QPS,
            burst: limiter::DEFAULT_BURST,
            content_type: PROTOBUF.to_owned(),
            accept_content_types: String::new(),
            on_request: None,
            peers: Peers::default(),
        }
    }
}

impl std::fmt::Debug for ClientSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientSettings")
            .field("kubeconfig", &self.kubeconfig)
            .field("context", &self.context)
            .field("master", &self.master)
            .field("qps", &self.qps)
            .field("burst", &self.burst)
            .field("content_type", &self.content_type)
            .field("accept_content_types", &self.accept_content_types)
            .finish_non_exhaustive()
    }
}

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig file cannot be read or makes no sense.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What kube says.
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig file is not in the form of one. What stands there may be a token or a password: only the
    /// place is told.
    #[error("kubeconfig {path}: no usable YAML of a Config at line {line}, column {column}")]
    KubeconfigForm {
        /// The file.
        path: PathBuf,
        /// Counted from 1; 0 is unknown.
        line: u64,
        /// Counted from 1; 0 is unknown.
        column: u64,
    },
    /// The kubeconfig does not say which context to use.
    #[error(
        "kubeconfig {path} has no current-context, and this is no pod with a service account: set current-context"
    )]
    NoContext {
        /// The file.
        path: PathBuf,
    },
    /// Neither kubeconfig nor master was given, and this is no pod.
    #[error(
        "no kubeconfig and no master is given, and this is no pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set"
    )]
    NotInCluster,
    /// The pod has no service account token.
    #[error("service account token {path}: {source}; set automountServiceAccountToken, or give a kubeconfig")]
    ServiceAccount {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The API server's URL is unusable.
    #[error("API server URL {url:?}: {reason}; write http://HOST:PORT or https://HOST:PORT")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The proxy's URL is unusable.
    #[error("{origin}: {proxy:?} is no proxy; write http://, https:// or socks5://HOST:PORT")]
    Proxy {
        /// What names it.
        origin: &'static str,
        /// The proxy, without credentials.
        proxy: String,
    },
    /// Tokens, passwords or plug-ins cannot be used.
    #[error("credentials for {url}: {source}")]
    Credentials {
        /// The API server's URL.
        url: String,
        /// What is wrong with them.
        source: CredentialError,
    },
    /// Certificates cannot be used.
    #[error("certificates for {url}: {source}")]
    Certificates {
        /// The API server's URL.
        url: String,
        /// What kube says.
        source: Box<kube::Error>,
    },
    /// The client certificate or its key is no PEM. What stands there may be the key: it is not told.
    #[error("client certificate for {url}: it or its key is no PEM text")]
    Identity {
        /// The API server's URL.
        url: String,
    },
    /// The kubeconfig's `as` and its relatives cannot be sent.
    #[error("impersonation at {url}: {source}")]
    Headers {
        /// The API server's URL.
        url: String,
        /// What kube says.
        source: Box<kube::Error>,
    },
    /// There is a certificate authority file or text, but no certificate in it.
    #[error("certificate authority for {url}: there is no PEM certificate in it")]
    NoAuthority {
        /// The API server's URL.
        url: String,
    },
    /// `clientConnection.qps` and `burst`.
    #[error("clientConnection: {0}")]
    Limit(#[from] LimitError),
}

/// Makes the client. Nothing is sent yet, and plug-ins run at the first request; files are read here and again
/// as needed. Must be called inside a tokio runtime.
pub async fn connect(settings: &ClientSettings) -> Result<kube::Client, ClientError> {
    Surroundings::of_process(|around| connect_in(settings, around))
}

fn connect_in(settings: &ClientSettings, around: &Surroundings<'_>) -> Result<kube::Client, ClientError> {
    let limiter = Limiter::new(settings.qps, settings.burst)?;
    warn_of_content_types(settings);
    let target = target::find(settings, around)?;
    let proxy = Proxy::choose(&target.url, target.proxy.as_deref(), around.variable)?;
    if let Some(proxy) = &proxy {
        tracing::info!(proxy = %proxy.uri(), "the API server is reached through a proxy");
    }
    let credentials = Credentials::new(&target.user).map_err(|error| error.of(&target.url))?;
    let url = target.url.clone();
    let (transport, config) = Transport::new(target, proxy, settings.peers.clone())?;
    let fault = |source| ClientError::Headers { url: url.to_string(), source: Box::new(source) };
    let headers = config.extra_headers_layer().map_err(fault)?;
    let host = url.authority().map_or_else(String::new, ToString::to_string).into();
    let api = Arc::new(Api { limiter, credentials, transport, host, hook: settings.on_request.clone() });
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(headers)
        .service(tower::service_fn(move |request| Arc::clone(&api).send(request)));
    Ok(kube::Client::new(service.map_err(BoxError::from), config.default_namespace))
}

fn warn_of_content_types(settings: &ClientSettings) {
    let has_json = |types: &str| types.contains(JSON) || types.contains("*/*");
    let ClientSettings { content_type, accept_content_types, .. } = settings;
    if !content_type.is_empty() && content_type != PROTOBUF && !has_json(content_type) {
        tracing::warn!(content_type, "clientConnection.contentType is not followed: JSON is used");
    }
    if !accept_content_types.is_empty() && !has_json(accept_content_types) {
        tracing::warn!(
            accept_content_types,
            "clientConnection.acceptContentTypes is not followed: JSON is used"
        );
    }
}

/// `portolan/<version> (<os>/<arch>)` in Go's names, as it stands in the API server's audit log.
fn user_agent() -> HeaderValue {
    const AGENT: &str = concat!("portolan/", env!("CARGO_PKG_VERSION"));
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        other => other,
    };
    let agent = format!("{AGENT} ({}/{arch})", std::env::consts::OS);
    HeaderValue::try_from(agent).unwrap_or(HeaderValue::from_static(AGENT))
}

/// One API server: takes requests whose URI is complete.
struct Api {
    limiter: Limiter,
    credentials: Credentials,
    transport: Transport,
    host: Arc<str>,
    hook: Option<RequestHook>,
}

impl Api {
    async fn send(self: Arc<Self>, request: Request<Body>) -> Result<Answer, BoxError> {
        let (parts, body) = request.into_parts();
        let mut request = Request::from_parts(parts, Full::new(body.collect().await?.to_bytes()));
        request.headers_mut().insert(USER_AGENT, user_agent());
        let credential = self.credentials.current().await?;
        let answer = self.attempt(request.clone(), &credential).await?;
        if answer.status() == StatusCode::UNAUTHORIZED
            && let Some(other) = self.credentials.after_refusal(&credential).await
        {
            return self.attempt(request, &other).await;
        }
        Ok(answer)
    }

    async fn attempt(
        &self,
        mut request: Request<Full<Bytes>>,
        credential: &Credential,
    ) -> Result<Answer, BoxError> {
        if let Some(authorization) = &credential.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        if let Some(authorization) = self.transport.proxy_authorization() {
            request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        let verb = observed::verb(request.method());
        let throttled = self.limiter.turn().await;
        let http = self.transport.current(credential.identity.as_deref());
        let (hook, host) = (self.hook.as_ref(), &self.host);
        let mut underway = Underway { hook, verb, host, throttled, start: Instant::now(), code: None };
        let within = deadline::of(request.extensions());
        let answer = deadline::in_time(within, http.request(request)).await;
        if answer.as_ref().is_err_and(|error| is_refused(&**error)) {
            // Nothing was sent. The reflectors ask an absent server often, and need their turns when it is back.
            self.limiter.give_back();
        }
        let answer = answer?;
        underway.code = Some(answer.status().as_u16());
        Ok(answer)
    }
}
