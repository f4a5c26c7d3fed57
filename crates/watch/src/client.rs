//! The authenticated way to the API server: kubeconfig or service account in, `kube::Client` out.
//!
//! kube supplies credentials and TLS. The connector below is our own for four reasons: no delay by Nagle's
//! algorithm, dead peers noticed by keep-alive probes, small read buffers, and no retries behind the
//! reflectors' backs. Proxy variables of the environment are not looked at.

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use tower::{BoxError, ServiceExt as _};

/// Where the API server is and who we are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// A kubeconfig file; its current context counts.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API server, in place of the kubeconfig's (`--master`).
    pub master: Option<String>,
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
    /// Neither kubeconfig nor master was given, and this is no pod with a service account.
    #[error("no kubeconfig and no master is given, and this is no pod with a service account: {0}")]
    InCluster(#[source] Box<InClusterError>),
    /// The API server's URL is unusable.
    #[error("API server URL {url:?}: {reason}; write http://HOST:PORT or https://HOST:PORT")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The kubeconfig asks for a proxy.
    #[error("kubeconfig {path}: cluster {cluster:?} has a proxy-url, which is not supported; remove it")]
    Proxy {
        /// The file.
        path: PathBuf,
        /// Name of the cluster in it.
        cluster: String,
    },
    /// Credentials or certificates cannot be used.
    #[error("credentials for {url}: {source}")]
    Credentials {
        /// The API server's URL.
        url: String,
        /// What kube says.
        source: Box<kube::Error>,
    },
}

/// A connection must be made within this time.
const CONNECT: Duration = Duration::from_secs(10);

/// A peer that is silent for this long is probed, at this interval, and given up after three probes: a dead
/// API server or a lost flow in a middlebox is noticed in about 30 s even where no timeout is due.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 3;

/// Largest read of a body, in bytes; it bounds each chunk that the reflectors see.
const READ_BUFFER: usize = 64 << 10;

/// Makes the client. Nothing is sent yet; a token file or an exec plug-in is read here and again as needed.
/// Must be called inside a tokio runtime.
pub async fn connect(settings: &ClientSettings) -> Result<kube::Client, ClientError> {
    let config = config(settings).await?;
    let url = config.cluster_url.to_string();
    client(config).map_err(|source| ClientError::Credentials { url, source: Box::new(source) })
}

async fn config(settings: &ClientSettings) -> Result<Config, ClientError> {
    let config = match (&settings.kubeconfig, &settings.master) {
        (Some(path), master) => from_file(path, master.as_deref()).await?,
        (None, Some(master)) => Config::new(url(master)?),
        (None, None) => Config::incluster().map_err(|source| ClientError::InCluster(Box::new(source)))?,
    };
    Ok(without_unused_roots(config))
}

fn without_unused_roots(mut config: Config) -> Config {
    if config.cluster_url.scheme_str() == Some("http") || config.accept_invalid_certs {
        // Without certificate authorities kube looks for the system's and fails where there are none, even
        // if no certificate will be checked.
        config.root_cert = Some(Vec::new());
        config.root_cert_file = None;
    }
    config
}

async fn from_file(path: &Path, master: Option<&str>) -> Result<Config, ClientError> {
    let fault = |source| ClientError::Kubeconfig { path: path.to_owned(), source: Box::new(source) };
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(fault)?;
    let context =
        kubeconfig.contexts.iter().find(|context| Some(&context.name) == kubeconfig.current_context.as_ref());
    let cluster = context.and_then(|context| context.context.as_ref()).map(|context| context.cluster.clone());
    for named in &mut kubeconfig.clusters {
        let Some(details) = &mut named.cluster else { continue };
        let proxy = details.proxy_url.as_ref().is_some_and(|proxy| !proxy.is_empty());
        if proxy && cluster.as_ref() == Some(&named.name) {
            return Err(ClientError::Proxy { path: path.to_owned(), cluster: named.name.clone() });
        }
        // Any value here keeps kube from reading HTTPS_PROXY; it is not used.
        details.proxy_url = Some("http://unused".to_owned());
        details.server = master.map(str::to_owned).or(details.server.take());
    }
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fault)?;
    config.cluster_url = url(&config.cluster_url.to_string())?;
    Ok(config)
}

fn url(text: &str) -> Result<http::Uri, ClientError> {
    let fault = |reason| ClientError::Url { url: text.to_owned(), reason };
    let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: http::Uri = with_scheme.parse().map_err(|_| fault("is not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(fault("is neither http nor https"));
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(fault("has no host"));
    }
    Ok(uri)
}

fn client(config: Config) -> Result<kube::Client, kube::Error> {
    let connector = config.rustls_https_connector_with_connector(connector())?;
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .http1_max_buf_size(READ_BUFFER)
        .build::<_, Body>(connector);
    // A limit of requests per second (clientConnection.qps) would be the first layer.
    let service = tower::ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service.map_err(BoxError::from), config.default_namespace))
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(KEEPALIVE_IDLE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    connector
}
