//! The attributes of a request for authorization: a verb, and a resource or a path.
//!
//! Paths are split and decoded as in [`Route`](super::route::Route), so that the authorized operation is the one that
//! is carried out.

use http::{Method, Uri};

use super::{query::Query, route::segments};

/// The attributes of a request. Verbs and fields are those of upstream's `RequestInfo` (apiserver,
/// endpoints/request).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`. For a non-resource path,
    /// the HTTP method in lower case.
    pub verb: &'static str,
    /// The objects or the path.
    pub target: Target,
}

/// The target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Objects of the API.
    Resource {
        /// API group; empty for the core group.
        group: String,
        /// Version of the group.
        version: String,
        /// Plural name of the resource, which need not be one that is served.
        resource: String,
        /// Subresource, or empty.
        subresource: String,
        /// Namespace; empty for cluster-scoped resources and for all namespaces.
        namespace: String,
        /// Name of the object; empty for the collection.
        name: String,
    },
    /// A non-resource path, such as `/metrics`.
    Path(String),
}

impl Attributes {
    /// Derives the attributes from a request's method and URI.
    pub fn of(method: &Method, uri: &Uri) -> Self {
        let path = uri.path();
        // A path that cannot be split is not served.
        let Ok(segments) = segments(path) else {
            return Self { verb: method_name(method), target: Target::Path(path.to_owned()) };
        };
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        match *parts.as_slice() {
            ["api", version, ref rest @ ..] if !rest.is_empty() => {
                Self::resource(method, uri, ["", version], rest)
            }
            ["apis", group, version, ref rest @ ..] if !rest.is_empty() => {
                Self::resource(method, uri, [group, version], rest)
            }
            _ => Self { verb: method_name(method), target: Target::Path(format!("/{}", segments.join("/"))) },
        }
    }

    /// Returns true if the answer continues until the client ends it.
    pub fn is_long_running(&self) -> bool {
        self.verb == "watch"
    }

    /// Returns true if the request changes nothing.
    pub fn is_reading(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch" | "head" | "options")
    }

    fn resource(method: &Method, uri: &Uri, [group, version]: [&str; 2], rest: &[&str]) -> Self {
        // The deprecated watch paths: `watch` comes before the path of the resource.
        if let ["watch", rest @ ..] = rest
            && !rest.is_empty()
        {
            let of_resource = Self::resource(method, uri, [group, version], rest);
            let is_watch = matches!(of_resource.verb, "get" | "list" | "watch");
            return Self { verb: if is_watch { "watch" } else { of_resource.verb }, ..of_resource };
        }
        let (namespace, rest) = match rest {
            ["namespaces", namespace, inner @ ..]
                if !inner.is_empty() && !matches!(inner, ["status" | "finalize"]) =>
            {
                (*namespace, inner)
            }
            // A Namespace counts as being in itself.
            ["namespaces", namespace, ..] if group.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let part = |index: usize| rest.get(index).copied().unwrap_or_default().to_owned();
        let target = Target::Resource {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: part(0),
            subresource: part(2),
            namespace: namespace.to_owned(),
            name: part(1),
        };
        Self { verb: resource_verb(method, uri, rest.len()), target }
    }
}

/// Returns the verb for a path with this number of parts: the resource, a name and a subresource. A subresource cannot
/// be watched.
fn resource_verb(method: &Method, uri: &Uri, parts: usize) -> &'static str {
    let named = parts > 1;
    match *method {
        Method::GET | Method::HEAD if parts < 3 && is_watch(uri) => "watch",
        Method::GET | Method::HEAD if named => "get",
        Method::GET | Method::HEAD => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => method_name(method),
    }
}

fn is_watch(uri: &Uri) -> bool {
    // An invalid query is refused later.
    let query = Query::parse(uri.query().unwrap_or_default());
    query.is_ok_and(|query| query.flag("watch").unwrap_or(false))
}

/// Returns the verb or method with this name; `other` for unknown ones and for `*`.
pub(super) fn verb_named(name: &str) -> &'static str {
    const NAMES: [&str; 12] = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "head",
        "post",
        "put",
        "options",
    ];
    NAMES.into_iter().find(|known| *known == name).unwrap_or("other")
}

/// Returns the name of a known method. All others share one name, because names become labels of metrics.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(method: &Method, uri: &str) -> String {
        let attributes = Attributes::of(method, &uri.parse().unwrap());
        match attributes.target {
            Target::Path(path) => format!("{} {path}", attributes.verb),
            Target::Resource { group, version, resource, subresource, namespace, name } => {
                format!("{} {group}|{version}|{resource}|{subresource}|{namespace}|{name}", attributes.verb)
            }
        }
    }

    #[test]
    fn verbs_and_resources() {
        for (method, uri, expected) in [
            (Method::GET, "/api/v1/services", "list |v1|services|||"),
            (Method::GET, "/api/v1/watch/services", "watch |v1|services|||"),
            (Method::GET, "/api/v1/watch/namespaces/a/services/b", "watch |v1|services||a|b"),
            (Method::DELETE, "/api/v1/watch/namespaces/a/services/b", "delete |v1|services||a|b"),
            (Method::HEAD, "/api/v1/services", "list |v1|services|||"),
            (Method::GET, "/api/v1/services?watch=true&x=1", "watch |v1|services|||"),
            (Method::GET, "/api/v1/services?watch=0", "list |v1|services|||"),
            (Method::GET, "/api/v1/namespaces/a/services/b", "get |v1|services||a|b"),
            (Method::GET, "/api/v1/namespaces/a/services/b?watch=1", "watch |v1|services||a|b"),
            (Method::GET, "/api/v1/namespaces/a/services/b/status?watch=1", "get |v1|services|status|a|b"),
            (Method::GET, "/api/v1/namespaces/a/status?watch=1", "get |v1|namespaces|status|a|a"),
            (Method::GET, "/api/v1/namespaces/a/services/b%2Dc", "get |v1|services||a|b-c"),
            (Method::DELETE, "/api/v1/namespaces//services", "delete /api/v1/namespaces//services"),
            (Method::GET, "//healthz", "get //healthz"),
            (Method::GET, "/api/v1/services?watch", "watch |v1|services|||"),
            (Method::PUT, "/api/v1/namespaces/a/services/b/status", "update |v1|services|status|a|b"),
            (Method::POST, "/api/v1/namespaces/a/services", "create |v1|services||a|"),
            (Method::PATCH, "/api/v1/nodes/n", "patch |v1|nodes|||n"),
            (Method::DELETE, "/api/v1/nodes/n", "delete |v1|nodes|||n"),
            (Method::DELETE, "/api/v1/nodes", "deletecollection |v1|nodes|||"),
            (Method::GET, "/api/v1/namespaces", "list |v1|namespaces|||"),
            (Method::GET, "/api/v1/namespaces/a", "get |v1|namespaces||a|a"),
            (Method::PUT, "/api/v1/namespaces/a/finalize", "update |v1|namespaces|finalize|a|a"),
            (
                Method::GET,
                "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices",
                "list discovery.k8s.io|v1|endpointslices||a|",
            ),
            (Method::GET, "/api", "get /api"),
            (Method::GET, "/api/v1", "get /api/v1"),
            (Method::GET, "/apis/discovery.k8s.io/v1", "get /apis/discovery.k8s.io/v1"),
            (Method::GET, "/metrics?watch=1", "get /metrics"),
            (Method::POST, "/%6Detrics/", "post /metrics"),
            (Method::TRACE, "/", "other /"),
            (Method::GET, "/api/v1/%ff", "get /api/v1/%ff"),
        ] {
            assert_eq!(shape(&method, uri), expected, "{method} {uri}");
        }
    }
}
