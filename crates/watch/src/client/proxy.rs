//! Decides whether the API server is reached through a proxy, and makes the connector.

mod stream;
mod tcp;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _};

use self::stream::Stream;
pub(super) use self::tcp::Tcp;
use super::ClientError;
use super::peers::Route;

/// Makes a connection to the API server or to a proxy before it. TLS to the API server is added on top.
pub(super) type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<Stream>>, BoxError>;

/// A proxy of a supported kind.
#[derive(Debug, Clone)]
pub(super) struct Proxy {
    kind: Kind,
    intercept: Intercept,
    /// True if the proxy forwards each request instead of opening a tunnel: an HTTP or HTTPS proxy before an API
    /// server that speaks plain HTTP. Many proxies allow tunnels to port 443 only (Go: `net/http.Transport`).
    forwards: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Http,
    Https,
    Socks5,
}

impl Proxy {
    /// Returns the proxy for the API server at `url`: the kubeconfig's `proxy-url` for any server, else that of the
    /// environment by Go's rules.
    pub(super) fn choose(
        url: &Uri,
        configured: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ClientError> {
        match configured.filter(|proxy| !proxy.is_empty()) {
            Some(proxy) => Self::new(url, proxy, "").map(Some),
            None => Self::of_environment(url, variable),
        }
    }

    /// Reads `HTTPS_PROXY` or `HTTP_PROXY` by the URL's scheme, and `NO_PROXY`. Lower-case names are used if the
    /// upper-case ones are missing or empty. Loopback is never proxied (Go: `golang.org/x/net/http/httpproxy`).
    fn of_environment(
        url: &Uri,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ClientError> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let either = |names: [&str; 2]| names.into_iter().find_map(given).unwrap_or_default();
        let names = match url.scheme_str() {
            Some("https") => ["HTTPS_PROXY", "https_proxy"],
            _ => ["HTTP_PROXY", "http_proxy"],
        };
        let proxy = either(names);
        let no_proxy = either(["NO_PROXY", "no_proxy"]);
        if proxy.is_empty() || loopback(url) || excluded(url, &no_proxy) {
            return Ok(None);
        }
        Self::new(url, &proxy, names[0]).map(Some)
    }

    /// Creates a proxy. `variable` is the environment variable that names it; empty if the kubeconfig does.
    fn new(url: &Uri, proxy: &str, variable: &'static str) -> Result<Self, ClientError> {
        let intercept = Matcher::builder().all(proxy).build().intercept(url);
        let kind = intercept.as_ref().and_then(|intercept| match intercept.uri().scheme_str()? {
            "http" => Some(Kind::Http),
            "https" => Some(Kind::Https),
            "socks5" | "socks5h" => Some(Kind::Socks5),
            _ => None,
        });
        if let (Some(kind), Some(intercept)) = (kind, intercept) {
            let forwards = kind != Kind::Socks5 && url.scheme_str() == Some("http");
            return Ok(Self { kind, intercept, forwards });
        }
        let origin = if variable.is_empty() { "proxy-url of the kubeconfig" } else { variable };
        Err(ClientError::Proxy { origin, proxy: without_password(proxy) })
    }

    /// Returns the proxy's URI without credentials.
    pub(super) fn uri(&self) -> &Uri {
        self.intercept.uri()
    }

    /// Returns true if the connection to the proxy uses TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.kind == Kind::Https
    }

    /// Returns the `Proxy-Authorization` header for requests that the proxy forwards.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.intercept.basic_auth().filter(|_| self.forwards)
    }

    fn tunnel<C>(&self, connector: C) -> Tunnel<C> {
        let tunnel = Tunnel::new(self.uri().clone(), connector);
        match self.intercept.basic_auth() {
            Some(auth) => tunnel.with_auth(auth.clone()),
            None => tunnel,
        }
    }

    fn socks<C>(&self, connector: C) -> SocksV5<C> {
        let socks = SocksV5::new(self.uri().clone(), connector);
        match self.intercept.raw_auth() {
            Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
            None => socks,
        }
    }
}

/// Returns the connector, direct or through a proxy. `tls` adds the TLS layer for a proxy that uses TLS.
pub(super) fn connector<E>(
    proxy: Option<&Proxy>,
    route: &Arc<Route>,
    tls: impl FnOnce(Tcp) -> Result<HttpsConnector<Tcp>, E>,
) -> Result<Connector, E> {
    let forwards = proxy.is_some_and(|proxy| proxy.forwards);
    let plain = Tcp::new(Arc::clone(route), forwards);
    Ok(match proxy {
        None => BoxCloneSyncService::new(plain.map_response(MaybeHttpsStream::Http).map_err(BoxError::from)),
        Some(proxy) if forwards => {
            let uri = proxy.uri().clone();
            let to_proxy = move |_: Uri| uri.clone();
            match proxy.kind {
                Kind::Https => BoxCloneSyncService::new(tls(plain)?.map_request(to_proxy)),
                Kind::Http | Kind::Socks5 => {
                    let plain = plain.map_response(MaybeHttpsStream::Http).map_err(BoxError::from);
                    BoxCloneSyncService::new(plain.map_request(to_proxy))
                }
            }
        }
        Some(proxy) => match proxy.kind {
            Kind::Http => BoxCloneSyncService::new(
                proxy.tunnel(plain).map_response(MaybeHttpsStream::Http).map_err(BoxError::from),
            ),
            Kind::Https => BoxCloneSyncService::new(proxy.tunnel(tls(plain)?).map_err(BoxError::from)),
            Kind::Socks5 => BoxCloneSyncService::new(
                proxy.socks(plain).map_response(MaybeHttpsStream::Http).map_err(BoxError::from),
            ),
        },
    })
}

/// Returns the port of a URL, or the scheme's default as in hyper.
pub(super) fn port(url: &Uri) -> u16 {
    url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 })
}

fn host(url: &Uri) -> &str {
    url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

fn loopback(url: &Uri) -> bool {
    let host = host(url);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Returns true if `NO_PROXY` contains the host. An entry may end in a port, which then has to equal the URL's.
fn excluded(url: &Uri, no_proxy: &str) -> bool {
    let port = port(url);
    let entries: Vec<&str> = no_proxy
        .split([',', ' '])
        .filter_map(|entry| match split_port(entry.trim()) {
            (host, Some(wanted)) => (wanted == port).then_some(host),
            (host, None) => Some(host),
        })
        .collect();
    let host = host(url);
    entries.contains(&"*")
        || if host.parse::<IpAddr>().is_ok() {
            let matcher = Matcher::builder().all("http://proxy").no(entries.join(",")).build();
            matcher.intercept(url).is_none()
        } else {
            entries.iter().any(|entry| covers(entry, host))
        }
}

/// Returns true if an entry of `NO_PROXY` matches this name. `example.org` matches itself and all names below it;
/// `.example.org` and `*.example.org` match only the names below it.
fn covers(entry: &str, host: &str) -> bool {
    let domain = entry.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(entry);
    let domain = domain.to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    let below = match host.strip_suffix(&domain) {
        Some(below) if !domain.is_empty() => below,
        _ => return false,
    };
    domain.starts_with('.') || below.is_empty() || below.ends_with('.')
}

/// Splits `host:port` and `[v6]:port`. A bare IPv6 address has no port.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    let Some((host, port)) = entry.rsplit_once(':') else { return (entry, None) };
    let bare_v6 = host.contains(':') && !host.ends_with(']');
    match port.parse() {
        Ok(port) if !bare_v6 => (host.trim_start_matches('[').trim_end_matches(']'), Some(port)),
        _ => (entry, None),
    }
}

/// Returns the proxy's URL without user information, for messages.
fn without_password(proxy: &str) -> String {
    match (proxy.split_once("://"), proxy.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => proxy.to_owned(),
    }
}
