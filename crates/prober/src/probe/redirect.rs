//! Where a request goes, and where a redirect leads. Pure.

use std::net::{IpAddr, SocketAddr};

use http::Uri;
use http::uri::{Authority, PathAndQuery};

use crate::annotations::HttpProbe;

/// The place of a request: always an endpoint's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestTarget {
    pub(super) tls: bool,
    pub(super) address: SocketAddr,
    /// The header `Host`.
    pub(super) authority: String,
    pub(super) path: PathAndQuery,
}

impl RequestTarget {
    /// Returns the place of a probe's first request.
    pub(super) fn first(address: SocketAddr, request: &HttpProbe) -> Self {
        let authority = request.host.clone().unwrap_or_else(|| address.to_string());
        Self { tls: request.tls, address, authority, path: request.path.clone() }
    }

    /// Returns the host of the header `Host`.
    pub(super) fn host(&self) -> &str {
        host_of(&self.authority)
    }

    /// Returns where a redirect leads, or `None` if it leads away from the endpoint, or cannot be understood. A redirect
    /// to the endpoint's address stays there; it may change port and scheme. A redirect to the `Host` of the request
    /// stays there only with the same port and scheme: at 443 of this name, for example, a proxy in front of the endpoint
    /// often listens.
    pub(super) fn redirected(&self, location: &str) -> Option<Self> {
        let location = location.split('#').next()?;
        if location.starts_with("//") {
            return self.absolute(&format!("{}:{location}", if self.tls { "https" } else { "http" }));
        }
        let before_slash = location.split(['/', '?']).next()?;
        if before_slash.contains(':') {
            return self.absolute(location);
        }
        let path = if location.starts_with('/') {
            location.to_owned()
        } else if location.starts_with('?') || location.is_empty() {
            format!("{}{location}", self.path.path())
        } else {
            let (folder, _) = self.path.path().rsplit_once('/')?;
            format!("{folder}/{location}")
        };
        Some(Self { path: path.parse().ok()?, ..self.clone() })
    }

    fn absolute(&self, location: &str) -> Option<Self> {
        let uri: Uri = location.parse().ok()?;
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let host = host_of(authority.as_str());
        let port = port_of(authority, tls);
        let is_address = host.parse::<IpAddr>().is_ok_and(|address| address == self.address.ip());
        let is_name = host.eq_ignore_ascii_case(self.host()) && tls == self.tls && self.is_at(port);
        let port = if is_address { port } else { is_name.then_some(self.address.port())? };
        let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let address = SocketAddr::new(self.address.ip(), port);
        Some(Self { tls, address, authority: authority.as_str().to_owned(), path })
    }

    /// Returns true if a port is the one of the request: as the header `Host` says, or the endpoint's.
    fn is_at(&self, port: u16) -> bool {
        let host_port = self.authority.parse().map(|authority| port_of(&authority, self.tls));
        port == self.address.port() || host_port.is_ok_and(|host_port| host_port == port)
    }
}

/// Returns the port of an authority, or that of the scheme.
fn port_of(authority: &Authority, tls: bool) -> u16 {
    authority.port_u16().unwrap_or(if tls { 443 } else { 80 })
}

/// Returns the host of an authority, without brackets and port.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority.split(':').next().unwrap_or(authority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations::Statuses;

    fn redirected(address: &str, host: Option<&str>, location: &str) -> Option<String> {
        let path = PathAndQuery::from_static("/a/b?c=d");
        let request =
            HttpProbe { tls: false, path, host: host.map(str::to_owned), statuses: Statuses::default() };
        let place = RequestTarget::first(address.parse().unwrap(), &request).redirected(location)?;
        let RequestTarget { tls, address, authority, path } = place;
        Some(format!("{} {address} {authority} {path}", if tls { "https" } else { "http" }))
    }

    #[test]
    fn redirects_to_the_endpoint_are_followed() {
        for (location, wanted) in [
            ("/x?y#z", "http 10.0.0.1:8080 10.0.0.1:8080 /x?y"),
            ("x", "http 10.0.0.1:8080 10.0.0.1:8080 /a/x"),
            ("?q", "http 10.0.0.1:8080 10.0.0.1:8080 /a/b?q"),
            ("", "http 10.0.0.1:8080 10.0.0.1:8080 /a/b"),
            ("http://10.0.0.1:9090", "http 10.0.0.1:9090 10.0.0.1:9090 /"),
            ("https://10.0.0.1/x", "https 10.0.0.1:443 10.0.0.1 /x"),
            ("//10.0.0.1/x", "http 10.0.0.1:80 10.0.0.1 /x"),
        ] {
            assert_eq!(redirected("10.0.0.1:8080", None, location).as_deref(), Some(wanted), "{location}");
        }
        let ipv6 = redirected("[2001:db8::1]:80", None, "http://[2001:db8:0::1]:81/").unwrap();
        assert_eq!(ipv6, "http [2001:db8::1]:81 [2001:db8:0::1]:81 /");
    }

    #[test]
    fn redirects_to_the_name_of_the_request_are_followed_at_the_same_port_and_scheme() {
        let of = |location| redirected("10.0.0.1:8080", Some("shop.example.com"), location);
        for (location, wanted) in [
            ("/x", "http 10.0.0.1:8080 shop.example.com /x"),
            ("http://Shop.example.com/x", "http 10.0.0.1:8080 Shop.example.com /x"),
            ("//shop.example.com:80/x", "http 10.0.0.1:8080 shop.example.com:80 /x"),
            ("http://shop.example.com:8080/x", "http 10.0.0.1:8080 shop.example.com:8080 /x"),
            ("https://10.0.0.1/x", "https 10.0.0.1:443 10.0.0.1 /x"),
        ] {
            assert_eq!(of(location).as_deref(), Some(wanted), "{location}");
        }
        for location in [
            "https://shop.example.com/x",
            "https://shop.example.com:8080/x",
            "http://shop.example.com:9090/x",
            "http://shop.example.com:443/x",
        ] {
            assert_eq!(of(location), None, "{location}");
        }
    }

    #[test]
    fn redirects_to_other_hosts_are_not_followed() {
        for location in [
            "http://10.0.0.2/",
            "http://example.com/",
            "//example.com/",
            "ftp://10.0.0.1/",
            "file:///etc/passwd",
            "javascript:x",
            "http://",
            "http://10.0.0.1@example.com/",
            "http://a@10.0.0.1/",
            "/a b",
            "http://[/",
        ] {
            assert_eq!(redirected("10.0.0.1:8080", None, location), None, "{location}");
        }
    }
}
