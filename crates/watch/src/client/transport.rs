//! Connections to the API server, replaced when the certificates on disk change.
//!
//! Before each request the files of the kubeconfig (certificate authority, client certificate and key) are read and
//! compared with those of the current connections. After a change the next request uses a new pool of connections.
//! Answers that are still being read keep their connection to the end, then the old pool closes. Unusable files,
//! such as half-written ones, leave the current pool in use.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{ConfigExt as _, RustlsTlsError};
use kube::config::{Config, Kubeconfig};

use super::ClientError;
use super::credentials::Identity;
use super::peers::{Peers, Route};
use super::proxy::{self, Connector, Proxy};
use super::target::{self, Target};

/// A pool of connections.
pub(super) type Http = legacy::Client<HttpsConnector<Connector>, Full<Bytes>>;

/// An answer whose body has not been read.
pub(super) type Answer = <Http as tower::Service<Request<Full<Bytes>>>>::Response;

/// Maximum bytes of one read of a body. It limits each chunk that the reflectors receive.
const READ_BUFFER: usize = 64 << 10;

/// The connections to one API server.
pub(super) struct Transport {
    target: Target,
    proxy: Option<Proxy>,
    route: Arc<Route>,
    held: Mutex<Held>,
}

struct Held {
    http: Http,
    /// Fingerprint of the certificates that `http` was made with.
    material: u64,
    /// Fingerprint of the last certificates that were found unusable.
    useless: Option<u64>,
}

impl Transport {
    /// Creates the transport and kube's configuration of the target. Fails if the certificates cannot be used.
    pub(super) fn new(
        target: Target,
        proxy: Option<Proxy>,
        peers: Peers,
    ) -> Result<(Self, Config), ClientError> {
        let first_hop = proxy.as_ref().map_or(&target.url, Proxy::uri);
        let route = Arc::new(Route::new(peers, proxy::port(first_hop)));
        // Computed before the files are read for use, so that a change in between is noticed at the first request.
        let material = material(&target, None);
        let config = config(&target, proxy.as_ref(), None, target.lenient)?;
        let http = http(&target, &config, proxy.as_ref(), &route)?;
        let held = Mutex::new(Held { http, material, useless: None });
        Ok((Self { target, proxy, route, held }, config))
    }

    /// Returns the pool for the next request.
    pub(super) fn current(&self, identity: Option<&Identity>) -> Http {
        let material = material(&self.target, identity);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.material != material && held.useless != Some(material) {
            match self.renewed(identity) {
                Ok(http) => {
                    tracing::info!("certificates have changed: new connections use the new ones");
                    *held = Held { http, material, useless: None };
                }
                Err(error) => {
                    tracing::warn!(%error, "changed certificates cannot be used yet: the former ones stay in use");
                    held.useless = Some(material);
                }
            }
        }
        held.http.clone()
    }

    /// Returns the header that the proxy requires in each request.
    pub(super) fn proxy_authorization(&self) -> Option<&HeaderValue> {
        self.proxy.as_ref().and_then(Proxy::authorization)
    }

    fn renewed(&self, identity: Option<&Identity>) -> Result<Http, ClientError> {
        let config = config(&self.target, self.proxy.as_ref(), identity, false)?;
        http(&self.target, &config, self.proxy.as_ref(), &self.route)
    }
}

/// Returns a fingerprint of the files' bytes and of a plug-in's certificate. An unreadable file has a value of its
/// own.
fn material(target: &Target, identity: Option<&Identity>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let clusters = target.kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref());
    let authorities = clusters.filter_map(|cluster| cluster.certificate_authority.as_ref());
    let own = [&target.user.client_certificate, &target.user.client_key];
    for path in authorities.chain(own.into_iter().flatten()) {
        std::fs::read(path).ok().hash(&mut hasher);
    }
    identity.hash(&mut hasher);
    hasher.finish()
}

fn http(
    target: &Target,
    config: &Config,
    proxy: Option<&Proxy>,
    route: &Arc<Route>,
) -> Result<Http, ClientError> {
    let url = || target.url.to_string();
    let fault = |source| match source {
        kube::Error::RustlsTls(RustlsTlsError::InvalidIdentityPem(_)) => ClientError::Identity { url: url() },
        source => ClientError::Certificates { url: url(), source: Box::new(source) },
    };
    let tls = |tcp| config.rustls_https_connector_with_connector(tcp);
    let connector = proxy::connector(proxy, route, tls).map_err(fault)?;
    let connector = config.rustls_https_connector_with_connector(connector).map_err(fault)?;
    Ok(legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .http1_max_buf_size(READ_BUFFER)
        .build(connector))
}

/// Returns kube's configuration of the target, with the certificates as they are on disk. `lenient`: if the
/// certificate authority is unusable, uses the system's.
pub(super) fn config(
    target: &Target,
    proxy: Option<&Proxy>,
    identity: Option<&Identity>,
    lenient: bool,
) -> Result<Config, ClientError> {
    let read = authenticated(target, target.kubeconfig.clone());
    let forgiven = lenient && read.is_err();
    let mut config = match read {
        Err(error) if lenient => {
            tracing::error!(%error, "no certificate authority of the service account: using the system's");
            let mut kubeconfig = target.kubeconfig.clone();
            target::without_authority(&mut kubeconfig);
            authenticated(target, kubeconfig)?
        }
        read => read?,
    };
    // Plug-ins are run by `exec`.
    config.auth_info.exec = None;
    if let Some(identity) = identity {
        config.auth_info.client_certificate_data = Some(STANDARD.encode(&identity.certificate));
        config.auth_info.client_key_data = Some(STANDARD.encode(&identity.key).into());
    }
    // The certificate of an HTTPS proxy is checked even if the API server has none.
    let plain = config.cluster_url.scheme_str() == Some("http") && !proxy.is_some_and(Proxy::is_tls);
    let unchecked = plain || config.accept_invalid_certs;
    if unchecked || forgiven && config.rustls_client_config().is_err() {
        // Without a certificate authority kube uses the system's and fails if there are none, even if no
        // certificate will be checked.
        config.root_cert = Some(Vec::new());
    }
    Ok(config)
}

fn authenticated(target: &Target, kubeconfig: Kubeconfig) -> Result<Config, ClientError> {
    let url = || target.url.to_string();
    let fault = |source| ClientError::Certificates {
        url: url(),
        source: Box::new(kube::Error::InferKubeconfig(source)),
    };
    let config = Config::try_from(kubeconfig).map_err(fault)?;
    match &config.root_cert {
        Some(authorities) if authorities.is_empty() => Err(ClientError::NoAuthority { url: url() }),
        _ => Ok(config),
    }
}
