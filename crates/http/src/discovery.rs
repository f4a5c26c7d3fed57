//! Discovery: the version, groups, resources and OpenAPI documents of this server.
//!
//! All of this is fixed at compile time. Aggregated documents are created at their first request and kept as bytes,
//! OpenAPI documents as compressed bytes.

mod aggregated;
mod openapi;
mod packed;

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Full};
use portolan_api::ApiError;
use portolan_schema::{
    json::{Value, json},
    openapi::path as openapi_path,
    resource::{Info, Resource},
};

use self::aggregated::Aggregation;
use super::{
    Answer,
    accept::{Accept, Encoding},
    present,
    query::Query,
};

/// The Kubernetes version whose API this server implements.
const VERSION: (&str, &str) = ("1", "36");

/// The paths besides those of the API. Crate `serve` answers them.
const OTHER_PATHS: [&str; 4] = ["/healthz", "/livez", "/metrics", "/readyz"];

/// A description of the API, or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Document {
    /// `/`
    Root,
    /// `/version`
    Version,
    /// `/api`
    Core,
    /// `/apis`
    Groups,
    /// `/apis/{group}`
    Group(&'static str),
    /// `/api/v1` or `/apis/{group}/{version}`
    Resources(&'static str),
    /// `/openapi/v2`
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiV3Index,
    /// `/openapi/v3/api/v1` or `/openapi/v3/apis/{group}/{version}`
    OpenApiV3(&'static str),
}

impl Document {
    /// Returns the description of a named group; `None` if there is no such group.
    pub(super) fn group(name: &str) -> Option<Self> {
        let info = infos().find(|info| info.group == name && !name.is_empty())?;
        Some(Self::Group(info.group))
    }

    /// Returns the resource list of a version of a group.
    pub(super) fn resources(group: &str, version: &str) -> Option<Self> {
        in_version(group, version).map(|info| Self::Resources(info.api_version))
    }

    /// Returns the OpenAPI document of a version of a group.
    pub(super) fn openapi(group: &str, version: &str) -> Option<Self> {
        in_version(group, version).map(|info| Self::OpenApiV3(info.api_version))
    }

    /// Answers a GET.
    pub(super) fn answer(self, headers: &HeaderMap, query: &Query) -> Result<Answer, ApiError> {
        let accept = Accept::of(headers);
        let plain = match self {
            Self::OpenApiV2 => return openapi::v2(&accept, headers),
            Self::OpenApiV3Index => return openapi::v3_index(&accept, headers),
            Self::OpenApiV3(version) => return openapi::v3(version, &accept, headers, query),
            Self::Core | Self::Groups => {
                let choice = |clause: &_| match Aggregation::asked_for(clause) {
                    Some(version) => Some(Err(version)),
                    None => Some(Ok(accept_plain(clause)?)),
                };
                match accept.choose(choice)? {
                    Ok(encoding) => encoding,
                    Err(version) => return Ok(version.answer(self, headers)),
                }
            }
            _ => accept.encoding()?,
        };
        Ok(present::document(StatusCode::OK, plain, query.flag("pretty")?, &self.plain()))
    }

    /// Returns the document in its plain form.
    fn plain(self) -> Value {
        match self {
            Self::Root => json!({"paths": paths()}),
            Self::Version => version(),
            Self::Core => {
                json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
            }
            Self::Groups => groups(),
            Self::Group(name) => {
                let mut entry = group_entry(name);
                set(&mut entry, "kind", "APIGroup".into());
                set(&mut entry, "apiVersion", "v1".into());
                entry
            }
            Self::Resources(api_version) => {
                let infos = infos().filter(|info| info.api_version == api_version);
                let resources: Vec<Value> = infos.flat_map(resource_entries).collect();
                json!({
                    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version,
                    "resources": resources,
                })
            }
            // These have no plain form: `answer` sends their bytes.
            Self::OpenApiV2 | Self::OpenApiV3Index | Self::OpenApiV3(_) => Value::Null,
        }
    }
}

/// Returns the encoding of a document without transformations; `None` if the clause asks for a transformation.
fn accept_plain(clause: &super::accept::Clause<'_>) -> Option<Encoding> {
    clause.encoding().filter(|_| clause.parameter("as").is_none())
}

/// Bytes with an `ETag`, by which a client can tell whether it already has them.
#[derive(Debug)]
struct Tagged {
    bytes: bytes::Bytes,
    /// The `ETag`, without quotes.
    tag: String,
}

impl Tagged {
    fn new(bytes: impl Into<bytes::Bytes>) -> Self {
        let bytes = bytes.into();
        Self { tag: tag_of(&bytes), bytes }
    }

    /// Answers with the bytes, or with 304 if the client has them.
    fn answer(&self, media_type: &'static str, headers: &HeaderMap) -> Answer {
        tagged(&self.tag, media_type, headers, || self.bytes.clone())
    }
}

/// Answers with a body that has this `ETag`, or with 304 if the client has it.
fn tagged(
    tag: &str,
    media_type: &'static str,
    headers: &HeaderMap,
    body: impl FnOnce() -> bytes::Bytes,
) -> Answer {
    let quoted = format!("\"{tag}\"");
    let known = headers.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    let known = known
        .flat_map(|value| value.split(','))
        .any(|tag| tag.trim().trim_start_matches("W/") == quoted || tag.trim() == "*");
    let body = if known { bytes::Bytes::new() } else { body() };
    let mut answer = Answer::new(Full::new(body).boxed_unsync());
    if known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let fields = answer.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    fields.insert(header::VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::from_str(&quoted) {
        fields.insert(header::ETAG, tag);
    }
    answer
}

fn tag_of(bytes: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!("{:016X}", hasher.finish())
}

/// Returns the paths that the server answers, without those of objects.
fn paths() -> BTreeSet<String> {
    let fixed = ["/api", "/apis", "/openapi/v2", "/openapi/v3", "/version"].into_iter().chain(OTHER_PATHS);
    let groups = group_names().into_iter().map(|group| format!("/apis/{group}"));
    let versions = infos().map(|info| format!("/{}", openapi_path(info.api_version)));
    fixed.map(str::to_owned).chain(groups).chain(versions).collect()
}

fn version() -> Value {
    let (major, minor) = VERSION;
    json!({
        "major": major,
        "minor": minor,
        "gitVersion": format!("v{major}.{minor}.0+portolan-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn groups() -> Value {
    let groups: Vec<Value> = group_names().into_iter().map(group_entry).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn infos() -> impl Iterator<Item = &'static Info> {
    Resource::served().map(Resource::info)
}

fn in_version(group: &str, version: &str) -> Option<&'static Info> {
    infos().find(|info| info.group == group && info.version == version)
}

/// Returns the named groups in the order of their first resource.
fn group_names() -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for info in infos() {
        if !info.group.is_empty() && !names.contains(&info.group) {
            names.push(info.group);
        }
    }
    names
}

/// Returns one resource of each version of a group.
fn versions(group: &str) -> Vec<&'static Info> {
    let mut found: Vec<&Info> = Vec::new();
    for info in infos().filter(|info| info.group == group) {
        if found.iter().all(|it| it.version != info.version) {
            found.push(info);
        }
    }
    found
}

fn group_entry(name: &str) -> Value {
    let entry = |info: &Info| json!({"groupVersion": info.api_version, "version": info.version});
    let versions: Vec<Value> = versions(name).into_iter().map(entry).collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

fn resource_entries(info: &Info) -> Vec<Value> {
    let mut main = json!({
        "name": info.plural, "singularName": info.singular, "namespaced": info.namespaced,
        "kind": info.kind, "verbs": info.verbs(),
    });
    for (key, values) in [("shortNames", info.short_names), ("categories", info.categories)] {
        if !values.is_empty() {
            set(&mut main, key, json!(values));
        }
    }
    let subresources = info.subresources.iter().map(|name| {
        json!({
            "name": format!("{}/{name}", info.plural), "singularName": "", "namespaced": info.namespaced,
            "kind": info.kind, "verbs": info.subresource_verbs(name),
        })
    });
    std::iter::once(main).chain(subresources).collect()
}

/// Sets a member of an object.
fn set(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests;
