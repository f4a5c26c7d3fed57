//! The four collections and the requests for them.

use http::header::ACCEPT;
use kube::client::Body;
use portolan_model::object::Kind;

use crate::content_type::{JSON, PROTOBUF_OR_JSON};
use crate::reflector::Query;

/// A collection, and the selectors for the part of it that a node needs.
#[derive(Debug, Clone)]
pub(crate) struct Collection {
    pub(crate) kind: Kind,
    path: &'static str,
    fields: Option<String>,
    labels: Option<&'static str>,
    /// The content types of watches, also of those that begin with a list, the preferred one first.
    accept: &'static str,
}

impl Collection {
    /// Creates the collection of a kind with kube-proxy's selectors (`cmd/kube-proxy/app/server.go`, 1.36). The
    /// server leaves out Services of another proxy, by the presence of the label whatever its value (KEP-2447), and
    /// headless Services and EndpointSlices. Of the Nodes only this one is requested.
    pub(crate) fn new(kind: Kind, node_name: &str) -> Self {
        let (path, fields, labels) = match kind {
            Kind::Service => (
                "/api/v1/services",
                Some("spec.clusterIP!=None".to_owned()),
                Some("!service.kubernetes.io/service-proxy-name"),
            ),
            Kind::EndpointSlice => {
                ("/apis/discovery.k8s.io/v1/endpointslices", None, Some("!service.kubernetes.io/headless"))
            }
            Kind::Node => ("/api/v1/nodes", Some(format!("metadata.name={node_name}")), None),
            Kind::ServiceCidr => ("/apis/networking.k8s.io/v1/servicecidrs", None, None),
        };
        Self { kind, path, fields, labels, accept: JSON }
    }

    /// Asks for protobuf if the server has it.
    #[must_use]
    pub(crate) fn in_protobuf(self) -> Self {
        Self { accept: PROTOBUF_OR_JSON, ..self }
    }

    /// Returns path and selectors.
    pub(crate) fn selected(&self) -> String {
        let mut uri = Uri(self.path.to_owned());
        uri.add("fieldSelector", self.fields.as_deref());
        uri.add("labelSelector", self.labels);
        uri.0
    }

    /// Returns true if a server may lack this collection: `ServiceCIDR` became stable in 1.33 (KEP-1880).
    pub(crate) fn optional(&self) -> bool {
        self.kind == Kind::ServiceCidr
    }

    /// Returns the `kind` of the objects.
    pub(crate) fn object_kind(&self) -> &'static str {
        self.names().0
    }

    /// Returns the `kind` of the lists.
    pub(crate) fn list_kind(&self) -> &'static str {
        self.names().1
    }

    fn names(&self) -> (&'static str, &'static str) {
        match self.kind {
            Kind::Service => ("Service", "ServiceList"),
            Kind::EndpointSlice => ("EndpointSlice", "EndpointSliceList"),
            Kind::Node => ("Node", "NodeList"),
            Kind::ServiceCidr => ("ServiceCIDR", "ServiceCIDRList"),
        }
    }

    /// Returns the request for a query. The server is asked to close a watch after `timeout` seconds.
    pub(crate) fn request(
        &self,
        query: &Query<'_>,
        timeout: u64,
    ) -> Result<http::Request<Body>, http::Error> {
        let accept = if matches!(query, Query::Page { .. }) { JSON } else { self.accept };
        http::Request::get(self.uri(query, timeout)).header(ACCEPT, accept).body(Body::empty())
    }

    /// Returns path and query. Parameters are sorted by name as in Go's clients, so that policies and audit logs
    /// that look at URLs treat both alike.
    fn uri(&self, query: &Query<'_>, timeout: u64) -> String {
        let mut uri = Uri(self.path.to_owned());
        if let Query::Page { token, .. } = query {
            uri.add("continue", Some(*token).filter(|token| !token.is_empty()));
        } else {
            uri.add("allowWatchBookmarks", Some("true"));
        }
        uri.add("fieldSelector", self.fields.as_deref());
        uri.add("labelSelector", self.labels);
        match *query {
            Query::Page { limit, .. } => uri.add("limit", limit),
            Query::Watch { from } => uri.add("resourceVersion", Some(from)),
            Query::Stream => {
                uri.add("resourceVersionMatch", Some("NotOlderThan"));
                uri.add("sendInitialEvents", Some("true"));
            }
        }
        if !matches!(query, Query::Page { .. }) {
            uri.add("timeoutSeconds", Some(timeout));
            uri.add("watch", Some("true"));
        }
        uri.0
    }
}

/// Returns path and query for one page of a whole collection.
pub(crate) fn page_uri(path: &str, limit: usize, token: &str) -> String {
    let mut uri = Uri(path.to_owned());
    uri.add("continue", Some(token).filter(|token| !token.is_empty()));
    uri.add("limit", Some(limit));
    uri.0
}

/// Returns a name as one segment of a path.
pub(crate) fn path_segment(name: &str) -> String {
    let mut uri = Uri(String::new());
    for byte in name.bytes() {
        uri.escape(byte);
    }
    uri.0
}

/// A path and a query that is being built.
struct Uri(String);

impl Uri {
    fn add(&mut self, name: &str, value: Option<impl ToString>) {
        let Some(value) = value else { return };
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.to_string().bytes() {
            self.escape(byte);
        }
    }

    /// Percent-encodes all but the unreserved characters of RFC 3986 section 2.3.
    fn escape(&mut self, byte: u8) {
        const HEX: [char; 16] =
            ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            return self.0.push(byte.into());
        }
        self.0.push('%');
        self.0.extend([byte >> 4, byte & 15].iter().filter_map(|digit| HEX.get(usize::from(*digit))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_asked_for_in_protobuf_and_pages_in_json() {
        let accept = |collection: Collection, query: Query<'_>| {
            let request = collection.request(&query, 300).unwrap();
            request.headers()[ACCEPT].to_str().unwrap().to_owned()
        };
        let plain = || Collection::new(Kind::Service, "node-1");
        let page = || Query::Page { limit: None, token: "" };
        assert_eq!(accept(plain(), Query::Stream), JSON);
        for query in [Query::Stream, Query::Watch { from: "7" }] {
            let asked = accept(plain().in_protobuf(), query);
            assert_eq!(asked, "application/vnd.kubernetes.protobuf,application/json");
        }
        assert_eq!(accept(plain().in_protobuf(), page()), JSON);
    }

    #[test]
    fn streamed_lists() {
        let uri = |kind| Collection::new(kind, "node-1").uri(&Query::Stream, 301);
        assert_eq!(
            uri(Kind::Service),
            "/api/v1/services?allowWatchBookmarks=true&fieldSelector=spec.clusterIP%21%3DNone\
             &labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=301&watch=true"
        );
        assert_eq!(
            uri(Kind::EndpointSlice),
            "/apis/discovery.k8s.io/v1/endpointslices?allowWatchBookmarks=true\
             &labelSelector=%21service.kubernetes.io%2Fheadless\
             &resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=301&watch=true"
        );
        assert_eq!(
            uri(Kind::Node),
            "/api/v1/nodes?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnode-1\
             &resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=301&watch=true"
        );
        assert_eq!(
            uri(Kind::ServiceCidr),
            "/apis/networking.k8s.io/v1/servicecidrs?allowWatchBookmarks=true\
             &resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=301&watch=true"
        );
    }

    #[test]
    fn pages_and_watches() {
        let slices = Collection::new(Kind::EndpointSlice, "n");
        let base = "/apis/discovery.k8s.io/v1/endpointslices";
        let selector = "labelSelector=%21service.kubernetes.io%2Fheadless";
        let page = |limit, token| slices.uri(&Query::Page { limit, token }, 300);
        assert_eq!(page(Some(500), ""), format!("{base}?{selector}&limit=500"));
        assert_eq!(page(Some(500), "a+b/="), format!("{base}?continue=a%2Bb%2F%3D&{selector}&limit=500"));
        assert_eq!(page(None, ""), format!("{base}?{selector}"));
        assert_eq!(
            slices.uri(&Query::Watch { from: "42" }, 599),
            format!(
                "{base}?allowWatchBookmarks=true&{selector}&resourceVersion=42&timeoutSeconds=599&watch=true"
            )
        );
    }

    #[test]
    fn a_strange_node_name_stays_inside_its_parameter() {
        let request =
            Collection::new(Kind::Node, "a&watch=false \u{e9}").request(&Query::Stream, 300).unwrap();
        let uri = request.uri().to_string();
        assert!(uri.contains("metadata.name%3Da%26watch%3Dfalse%20%C3%A9&"), "{uri}");
    }
}
