//! Parses paths into routes.

use portolan_api::{ApiError, Part, Target};
use portolan_schema::Resource;
use portolan_store::Scope;

use super::{discovery::Document, query::decode_path};

/// Maximum number of characters of a path that an error message repeats.
const MOST_SHOWN: usize = 256;

/// The target of a path.
#[derive(Debug)]
pub(super) enum Route {
    /// A description of the API.
    Document(Document),
    Collection(Collection),
    Named(Named),
}

/// All objects of a resource, or those of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Collection {
    pub(super) resource: Resource,
    pub(super) namespace: Option<String>,
    /// True for the deprecated watch paths: `/api/v1/watch/...`.
    pub(super) watch: bool,
}

/// One object, or a subresource of it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) resource: Resource,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) part: Part,
    /// As in [`Collection`].
    pub(super) watch: bool,
}

impl Route {
    pub(super) fn parse(path: &str) -> Result<Self, ApiError> {
        let segments = segments(path)?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let route = match segments.as_slice() {
            [] => Some(Self::Document(Document::Root)),
            ["version"] => Some(Self::Document(Document::Version)),
            ["api"] => Some(Self::Document(Document::Core)),
            ["apis"] => Some(Self::Document(Document::Groups)),
            ["openapi", "v2"] => Some(Self::Document(Document::OpenApiV2)),
            ["openapi", "v3"] => Some(Self::Document(Document::OpenApiV3Index)),
            ["openapi", "v3", "api", version] => Document::openapi("", version).map(Self::Document),
            ["openapi", "v3", "apis", group, version] => {
                Document::openapi(group, version).map(Self::Document)
            }
            ["apis", group] => Document::group(group).map(Self::Document),
            ["api", version, rest @ ..] => in_version("", version, rest),
            ["apis", group, version, rest @ ..] => in_version(group, version, rest),
            _ => None,
        };
        route.ok_or(ApiError::UnknownPath)
    }

    /// Returns the resource; `None` for a description of the API.
    pub(super) fn resource(&self) -> Option<Resource> {
        match self {
            Self::Document(_) => None,
            Self::Collection(collection) => Some(collection.resource),
            Self::Named(named) => Some(named.resource),
        }
    }
}

/// Returns the segments of a path, decoded. Ignores a trailing slash. Refuses any other empty segment, because
/// without it the path may name something else.
pub(super) fn segments(path: &str) -> Result<Vec<String>, ApiError> {
    let within = path.strip_prefix('/').unwrap_or(path);
    if within.is_empty() {
        return Ok(Vec::new());
    }
    let within = within.strip_suffix('/').unwrap_or(within);
    if within.split('/').any(str::is_empty) {
        return Err(empty_segment(path));
    }
    within.split('/').map(decode_path).collect::<Option<_>>().ok_or(ApiError::UnknownPath)
}

/// Returns the error for a path with an empty segment.
pub(super) fn empty_segment(path: &str) -> ApiError {
    // A path is ASCII. Others are refused with the head of the request.
    ApiError::EmptySegment { path: path.chars().take(MOST_SHOWN).collect() }
}

impl Collection {
    /// Returns the scope in the store.
    pub(super) fn scope(&self) -> Scope<'_> {
        Scope { namespace: self.namespace.as_deref(), ..Scope::default() }
    }
}

impl Named {
    /// Returns the route of an object in a collection.
    pub(super) fn of(collection: &Collection, object: &portolan_store::StoredObject) -> Self {
        let namespace = Some(object.namespace()).filter(|name| !name.is_empty()).map(str::to_owned);
        let name = object.name().to_owned();
        Self { resource: collection.resource, namespace, name, part: Part::Main, watch: false }
    }

    pub(super) fn target(&self) -> Target<'_> {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        Target { resource: self.resource, namespace, name: &self.name }
    }

    pub(super) fn collection(&self) -> Collection {
        Collection { resource: self.resource, namespace: self.namespace.clone(), watch: self.watch }
    }
}

fn in_version(group: &str, version: &str, rest: &[&str]) -> Option<Route> {
    let ["watch", rest @ ..] = rest else { return in_group(group, version, rest) };
    match in_group(group, version, rest)? {
        Route::Collection(collection) => Some(Route::Collection(Collection { watch: true, ..collection })),
        Route::Named(named) if named.part == Part::Main => Some(Route::Named(Named { watch: true, ..named })),
        _ => None,
    }
}

fn in_group(group: &str, version: &str, rest: &[&str]) -> Option<Route> {
    let resource = |plural: &str| Resource::by_path(group, version, plural);
    match *rest {
        [] => Document::resources(group, version).map(Route::Document),
        ["namespaces", name] if group.is_empty() => named(resource("namespaces")?, None, name, None),
        ["namespaces", name, part @ ("status" | "finalize")] if group.is_empty() => {
            named(resource("namespaces")?, None, name, Some(part))
        }
        ["namespaces", namespace, plural, ref rest @ ..] => {
            let resource = resource(plural).filter(|it| it.info().namespaced)?;
            match *rest {
                [] => Some(collection(resource, Some(namespace))),
                [name] => named(resource, Some(namespace), name, None),
                [name, part] => named(resource, Some(namespace), name, Some(part)),
                _ => None,
            }
        }
        [plural] => Some(collection(resource(plural)?, None)),
        [plural, name] => named(resource(plural).filter(|it| !it.info().namespaced)?, None, name, None),
        [plural, name, part] => {
            named(resource(plural).filter(|it| !it.info().namespaced)?, None, name, Some(part))
        }
        _ => None,
    }
}

fn collection(resource: Resource, namespace: Option<&str>) -> Route {
    Route::Collection(Collection { resource, namespace: namespace.map(str::to_owned), watch: false })
}

fn named(resource: Resource, namespace: Option<&str>, name: &str, part: Option<&str>) -> Option<Route> {
    let part = match part {
        None => Part::Main,
        Some(part) if !resource.info().subresources.contains(&part) => return None,
        Some("finalize") => Part::Finalize,
        Some(_) => Part::Status,
    };
    let namespace = namespace.map(str::to_owned);
    Some(Route::Named(Named { resource, namespace, name: name.to_owned(), part, watch: false }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(path: &str) -> String {
        match Route::parse(path) {
            Ok(Route::Document(document)) => format!("{document:?}"),
            Ok(Route::Collection(it)) => {
                let watch = if it.watch { "watch " } else { "" };
                format!("{watch}{:?} in {:?}", it.resource, it.namespace)
            }
            Ok(Route::Named(it)) => {
                let watch = if it.watch { "watch " } else { "" };
                format!("{watch}{:?} {:?} {} {:?}", it.resource, it.namespace, it.name, it.part)
            }
            Err(error) => error.reason().to_owned(),
        }
    }

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/api", "Core"),
            ("/apis", "Groups"),
            ("/apis/discovery.k8s.io", r#"Group("discovery.k8s.io")"#),
            ("/api/v1", r#"Resources("v1")"#),
            ("/api/v1/watch/services", "watch Service in None"),
            ("/api/v1/watch/namespaces/a/services/b", r#"watch Service Some("a") b Main"#),
            ("/api/v1/watch/namespaces/a/services/b/status", "NotFound"),
            ("/apis/discovery.k8s.io/v1/watch/endpointslices", "watch EndpointSlice in None"),
            ("/api/v1/watch", "NotFound"),
            ("/api/v1/services", "Service in None"),
            ("/api/v1/namespaces/a/services", r#"Service in Some("a")"#),
            ("/api/v1/namespaces/a/services/b%2D", r#"Service Some("a") b- Main"#),
            ("/api/v1/namespaces/a/services/b/status", r#"Service Some("a") b Status"#),
            ("/api/v1/namespaces", "Namespace in None"),
            ("/api/v1/namespaces/a", "Namespace None a Main"),
            ("/api/v1/namespaces/a/status", "Namespace None a Status"),
            ("/api/v1/namespaces/a/finalize", "Namespace None a Finalize"),
            ("/api/v1/nodes/n/status", "Node None n Status"),
            ("/api/v1/nodes/n/finalize", "NotFound"),
            ("/apis/discovery.k8s.io/v1/endpointslices", "EndpointSlice in None"),
            ("/apis/networking.k8s.io/v1/servicecidrs/kubernetes", "ServiceCidr None kubernetes Main"),
            ("/api/v1/namespaces/a/nodes", "NotFound"),
            ("/api/v1/services/b", "NotFound"),
            ("/api/v1/endpointslices", "NotFound"),
            ("/apis/discovery.k8s.io/v1/namespaces/a", "NotFound"),
            ("/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/b/status", "NotFound"),
            ("/api/v1/nodes/n/proxy", "NotFound"),
            ("/api/v2", "NotFound"),
            ("/%ff", "NotFound"),
            ("/", "Root"),
            ("//", "BadRequest"),
            ("/api/v1/pods", "Pod in None"),
            ("/api/v1/namespaces/a/pods/b", r#"Pod Some("a") b Main"#),
            ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "AccessReview in None"),
            ("/apis/authentication.k8s.io/v1/selfsubjectreviews", "SelfReview in None"),
            ("/api/v1/services/", "Service in None"),
            ("/apis/", "Groups"),
            ("//api", "BadRequest"),
            ("/api//v1", "BadRequest"),
            ("/api/v1/services//", "BadRequest"),
            ("/api/v1/namespaces//services", "BadRequest"),
            ("/api/v1/namespaces//services/web", "BadRequest"),
            ("/api/v1/namespaces/a//b", "BadRequest"),
            ("/api/v1/namespaces/a/services//status", "BadRequest"),
        ] {
            assert_eq!(shape(path), expected, "{path}");
        }
    }
}
