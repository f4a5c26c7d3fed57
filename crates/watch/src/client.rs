//! The client for the API server: a kubeconfig or service account comes in, an authenticated `kube::Client` goes
//! out.
//!
//! kube reads kubeconfigs and builds TLS configurations. Everything else is here, because it has to follow changes
//! while the process runs for years: `target` finds the API server, `credentials` and `exec` provide the
//! credentials of each request, `transport` holds connections and replaces them when certificates change, `proxy`
//! connects through proxies, `peers` records the addresses of connections, `limiter` enforces the configured rate,
//! `deadline` limits the time for an answer, and `observed` reports the result of each request. The client does not
//! retry on its own, except once after a 401 if the credential has changed.

mod credentials;
pub(crate) mod deadline;
mod exec;
pub(crate) mod limiter;
mod local;
mod observed;
mod peers;
mod proxy;
mod target;
#[cfg(test)]
mod tests;
mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::client::{Body, ConfigExt as _};
use kube::config::KubeconfigError;
use tower::{BoxError, ServiceExt as _};

use self::credentials::{Credential, Credentials};
use self::limiter::{Continued, Limiter};
use self::observed::Underway;
use self::proxy::Proxy;
use self::target::Surroundings;
use self::transport::{Answer, Transport};
use crate::content_type::{JSON, PROTOBUF};
use crate::reflector::is_refused;

pub use self::credentials::CredentialError;
pub use self::exec::ExecError;
pub use self::limiter::LimitError;
pub use self::local::LocalServer;
pub use self::observed::{RequestDone, RequestHook};
pub use self::peers::{PeerChanges, Peers};

/// The API server, the credentials and the behaviour of the client (`clientConnection` and `--master`).
#[derive(Clone)]
pub struct ClientSettings {
    /// An API server in the same process. Replaces the kubeconfig and the master.
    pub local: Option<LocalServer>,
    /// A kubeconfig file. Its current context is used unless `context` names another one.
    pub kubeconfig: Option<PathBuf>,
    /// Further files, as `KUBECONFIG` may name them for kubectl. Of several entries with one name, that of the first file
    /// counts.
    pub more_kubeconfigs: Vec<PathBuf>,
    /// Another context than the kubeconfig's current one.
    pub context: Option<String>,
    /// URL of the API server; replaces the kubeconfig's (`--master`).
    pub master: Option<String>,
    /// Requests per second, of all kinds together. The pages of a list count as one request. Negative means no limit; 0 means client-go's default of 5.
    pub qps: f32,
    /// Requests that may exceed `qps` for a moment. At least 1 if there is a limit.
    pub burst: i32,
    /// The configured content type: that of answers if `accept_content_types` is empty. Requests are JSON. A value other than JSON
    /// and protobuf, kube-proxy's default, is logged as a warning, and means JSON.
    pub content_type: String,
    /// The configured content types of answers. Only JSON and protobuf are read; a list without them is logged as a warning.
    pub accept_content_types: String,
    /// Called after each request.
    pub on_request: Option<RequestHook>,
    /// Records the addresses of connections.
    pub peers: Peers,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            local: None,
            kubeconfig: None,
            more_kubeconfigs: Vec::new(),
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

impl ClientSettings {
    /// Returns true if watches should be in protobuf, for [`Watcher::in_protobuf`](crate::Watcher::in_protobuf).
    pub fn prefers_protobuf(&self) -> bool {
        let accepted = Some(&self.accept_content_types).filter(|types| !types.is_empty());
        let types = accepted.unwrap_or(&self.content_type);
        // The first one that is known counts.
        let known = types.split(',').find(|name| [JSON, PROTOBUF].iter().any(|known| name.contains(known)));
        known.is_some_and(|name| name.contains(PROTOBUF))
    }
}

impl std::fmt::Debug for ClientSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientSettings")
            .field("local", &self.local)
            .field("kubeconfig", &self.kubeconfig)
            .field("more_kubeconfigs", &self.more_kubeconfigs)
            .field("context", &self.context)
            .field("master", &self.master)
            .field("qps", &self.qps)
            .field("burst", &self.burst)
            .field("content_type", &self.content_type)
            .field("accept_content_types", &self.accept_content_types)
            .finish_non_exhaustive()
    }
}

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig file cannot be read or is invalid.
    #[error("kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// kube's error.
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig file does not have the form of a kubeconfig. Its text may be a token or a password, so only
    /// the position is reported.
    #[error("kubeconfig {path}: no usable YAML of a Config at line {line}, column {column}")]
    KubeconfigForm {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1; 0 if unknown.
        line: u64,
        /// Column, counted from 1; 0 if unknown.
        column: u64,
    },
    /// The kubeconfig does not name a context to use.
    #[error(
        "kubeconfig {path} has no current-context, and this is no pod with a service account: set current-context"
    )]
    NoContext {
        /// The file.
        path: PathBuf,
    },
    /// Neither a kubeconfig nor a master was given, and the process runs in no pod.
    #[error(
        "no kubeconfig and no master is given, and this is no pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be set"
    )]
    NotInCluster,
    /// The pod has no service account token.
    #[error("service account token {path}: {source}; set automountServiceAccountToken, or give a kubeconfig")]
    ServiceAccount {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The URL of the API server is unusable.
    #[error("API server URL {url:?}: {reason}; write http://HOST:PORT or https://HOST:PORT")]
    Url {
        /// The URL as given.
        url: String,
        /// What is wrong with the URL.
        reason: &'static str,
    },
    /// The URL of the proxy is unusable.
    #[error("{origin}: {proxy:?} is no proxy; write http://, https:// or socks5://HOST:PORT")]
    Proxy {
        /// The setting that names the proxy.
        origin: &'static str,
        /// The proxy, without credentials.
        proxy: String,
    },
    /// A token, password or plug-in cannot be used.
    #[error("credentials for {url}: {source}")]
    Credentials {
        /// The API server's URL.
        url: String,
        /// What is wrong with the credentials.
        source: CredentialError,
    },
    /// A certificate cannot be used.
    #[error("certificates for {url}: {source}")]
    Certificates {
        /// The API server's URL.
        url: String,
        /// kube's error.
        source: Box<kube::Error>,
    },
    /// The client certificate or its key is not PEM. Its text may be the key, so it is not reported.
    #[error("client certificate for {url}: it or its key is no PEM text")]
    Identity {
        /// The API server's URL.
        url: String,
    },
    /// The kubeconfig's `as` and related fields cannot be sent.
    #[error("impersonation at {url}: {source}")]
    Headers {
        /// The API server's URL.
        url: String,
        /// kube's error.
        source: Box<kube::Error>,
    },
    /// A certificate authority is configured but contains no certificate.
    #[error("certificate authority for {url}: there is no PEM certificate in it")]
    NoAuthority {
        /// The API server's URL.
        url: String,
    },
    /// `clientConnection.qps` and `burst` form no valid limit.
    #[error("clientConnection: {0}")]
    Limit(#[from] LimitError),
}

/// Makes a client. Sends nothing; plug-ins run at the first request. Files are read here, and again as needed. Must
/// be called inside a tokio runtime.
pub async fn connect(settings: &ClientSettings) -> Result<kube::Client, ClientError> {
    Surroundings::of_process(|around| connect_in(settings, around))
}

/// Returns the URL of the API server that [`connect`] would ask, for messages. Sends nothing.
pub fn server_url(settings: &ClientSettings) -> Result<String, ClientError> {
    Surroundings::of_process(|around| target::find(settings, around)).map(|target| target.url.to_string())
}

fn connect_in(settings: &ClientSettings, around: &Surroundings<'_>) -> Result<kube::Client, ClientError> {
    let limiter = Limiter::new(settings.qps, settings.burst)?;
    warn_of_content_types(settings);
    let target = target::find(settings, around)?;
    let proxy = match settings.local {
        // The environment may name a proxy, which does not reach this process.
        Some(_) => None,
        None => Proxy::choose(&target.url, target.proxy.as_deref(), around.variable)?,
    };
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
    let is_known = |types: &str| [JSON, PROTOBUF, "*/*"].iter().any(|known| types.contains(known));
    let ClientSettings { content_type, accept_content_types, .. } = settings;
    if !content_type.is_empty() && !is_known(content_type) {
        tracing::warn!(content_type, "clientConnection.contentType is not followed: JSON is used");
    }
    if !accept_content_types.is_empty() && !is_known(accept_content_types) {
        tracing::warn!(
            accept_content_types,
            "clientConnection.acceptContentTypes is not followed: JSON is used"
        );
    }
}

/// Returns `portolan/<version> (<os>/<arch>)` with Go's names. The API server's audit log shows it.
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

/// One API server. Sends requests whose URI is complete.
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
        let takes_token = request.extensions().get::<Continued>().is_none();
        let throttled = if takes_token { self.limiter.turn().await } else { Duration::ZERO };
        let http = self.transport.current(credential.identity.as_deref());
        let (hook, host) = (self.hook.as_ref(), &self.host);
        let mut underway = Underway { hook, verb, host, throttled, start: Instant::now(), code: None };
        let within = deadline::of(request.extensions());
        let answer = deadline::in_time(within, http.request(request)).await;
        if takes_token && answer.as_ref().is_err_and(|error| is_refused(&**error)) {
            // Nothing was sent. The reflectors ask an absent server often and need these tokens when it returns.
            self.limiter.give_back();
        }
        let answer = answer?;
        underway.code = Some(answer.status().as_u16());
        Ok(answer)
    }
}
