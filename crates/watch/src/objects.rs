//! Reads a whole collection once, for commands: every object as JSON, page by page. Also asks for permissions, and for the
//! version and the clock of the API server.

use std::fmt;
use std::time::{Duration, SystemTime};

use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, DATE};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::jiff::fmt::rfc2822;
use kube::client::Body;
use portolan_model::object::Kind;
use serde_json::{Value, json};

use crate::client::deadline::AnswerWithin;
use crate::content_type::JSON;
use crate::request::{Collection, page_uri};

/// Objects per page, as in kubectl.
const PAGE: usize = 500;
/// Maximum bytes of one page. 500 objects of upstream's maximum size exceed it, but Services are not that large.
const MOST_BYTES: usize = 256 << 20;
/// Maximum time for a page's answer to begin, and again for its body.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of attempts to read a list whose pages expire before the last one is read.
const TRIES: usize = 3;

/// Why a list cannot be returned.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// There was no answer.
    #[error("{path}: {source}")]
    Unanswered {
        /// Path of the collection.
        path: String,
        /// kube's error.
        source: Box<kube::Error>,
    },
    /// The API server refused the request.
    #[error("{path}: the API server answers {code}: {message}")]
    Refused {
        /// Path of the collection.
        path: String,
        /// HTTP status.
        code: u16,
        /// The message of its `Status`.
        message: String,
    },
    /// The answer cannot be read.
    #[error("{path}: the answer is no list: {reason}")]
    Unreadable {
        /// Path of the collection.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// What a client may do with a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access<'a> {
    /// The verb, such as `list`.
    pub verb: &'a str,
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The resource, such as `services`.
    pub resource: &'a str,
    /// The subresource, such as `status`; empty for the object itself.
    pub subresource: &'a str,
    /// The name of the only object; empty for all objects.
    pub name: &'a str,
}

impl<'a> Access<'a> {
    /// Returns the access to all objects of a resource.
    pub const fn new(verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Self { verb, group, resource, subresource: "", name: "" }
    }
}

impl fmt::Display for Access<'_> {
    /// Writes the verb and the resource, such as `patch nodes/status`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, resource, subresource, .. } = self;
        write!(out, "{verb} {resource}")?;
        if subresource.is_empty() { Ok(()) } else { write!(out, "/{subresource}") }
    }
}

/// What an API server says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Its version, such as `v1.36.0`. `None` if it does not say.
    pub version: Option<String>,
    /// The header `Date` of its answer. `None` without a readable one.
    pub date: Option<SystemTime>,
}

/// The path at which an API server says its version.
const VERSION: &str = "/version";
/// The path at which a client asks for its own permissions.
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Returns all objects of a kind that a node needs, or `None` if the API server does not have the kind.
pub async fn list_kind(
    client: &kube::Client,
    kind: Kind,
    node_name: &str,
) -> Result<Option<Vec<Value>>, ListError> {
    list_all(client, &Collection::new(kind, node_name).selected()).await
}

/// Lists one object of a kind that a node needs. Returns false if the API server does not have the kind.
pub async fn try_list(client: &kube::Client, kind: Kind, node_name: &str) -> Result<bool, ListError> {
    let path = Collection::new(kind, node_name).selected();
    let request = http::Request::get(page_uri(&path, 1, "")).header(ACCEPT, JSON).body(Body::empty());
    Ok(answer(client, &path, request).await?.is_some())
}

/// Returns what the API server says about itself. An answer that refuses the version has a date, too.
pub async fn about(client: &kube::Client) -> Result<About, ListError> {
    let request = http::Request::get(VERSION).header(ACCEPT, JSON).body(Body::empty());
    let answer = send(client, VERSION, request).await?;
    let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok()).and_then(parse_date);
    let version = match read(VERSION, answer).await {
        Ok(version) => version.and_then(|version| version.get("gitVersion")?.as_str().map(str::to_owned)),
        Err(ListError::Refused { .. } | ListError::Unreadable { .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(About { version, date })
}

/// Reads the date of an HTTP header, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn parse_date(text: &str) -> Option<SystemTime> {
    Some(rfc2822::parse(text).ok()?.timestamp().into())
}

/// Returns whether the client has a permission, in any namespace. `None` if the API server does not say. Creates nothing.
pub async fn is_allowed(client: &kube::Client, access: Access<'_>) -> Result<Option<bool>, ListError> {
    let Access { verb, group, resource, subresource, name } = access;
    let attributes = json!({
        "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": attributes },
    });
    let request = http::Request::post(REVIEWS)
        .header(ACCEPT, JSON)
        .header(CONTENT_TYPE, JSON)
        .body(Body::from(review.to_string().into_bytes()));
    match answer(client, REVIEWS, request).await {
        Ok(review) => Ok(review.and_then(|review| review.pointer("/status/allowed")?.as_bool())),
        // An API server without this kind may refuse the method, or clients that may not ask.
        Err(ListError::Refused { code: 403 | 405 | 406 | 415, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns all objects of the collection at `path`, or `None` if the API server does not have the collection.
pub async fn list_all(client: &kube::Client, path: &str) -> Result<Option<Vec<Value>>, ListError> {
    let mut tries = TRIES;
    loop {
        tries = tries.saturating_sub(1);
        match list_once(client, path).await {
            Err(ListError::Refused { code: 410, .. }) if tries > 0 => {}
            other => return other,
        }
    }
}

async fn list_once(client: &kube::Client, path: &str) -> Result<Option<Vec<Value>>, ListError> {
    let mut objects = Vec::new();
    let mut token = String::new();
    loop {
        let Some(mut page) = page(client, path, &token).await? else { return Ok(None) };
        let Some(items) = page.get_mut("items").map(Value::take) else {
            return Err(unreadable(path, "it has no items"));
        };
        match items {
            Value::Array(items) => objects.extend(items),
            // An API server writes an empty list as `[]`.
            _ => return Err(unreadable(path, "its items are no list")),
        }
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(next) if !next.is_empty() => next.clone_into(&mut token),
            _ => return Ok(Some(objects)),
        }
    }
}

async fn page(client: &kube::Client, path: &str, token: &str) -> Result<Option<Value>, ListError> {
    let request = http::Request::get(page_uri(path, PAGE, token)).header(ACCEPT, JSON).body(Body::empty());
    answer(client, path, request).await
}

/// Returns the body of an answer, or `None` if there is nothing at the path.
async fn answer(
    client: &kube::Client,
    path: &str,
    request: Result<http::Request<Body>, http::Error>,
) -> Result<Option<Value>, ListError> {
    read(path, send(client, path, request).await?).await
}

async fn send(
    client: &kube::Client,
    path: &str,
    request: Result<http::Request<Body>, http::Error>,
) -> Result<http::Response<Body>, ListError> {
    let mut request = request.map_err(|error| unreadable(path, &error.to_string()))?;
    request.extensions_mut().insert(AnswerWithin(PATIENCE));
    let answer = client.send(request).await;
    answer.map_err(|source| ListError::Unanswered { path: path.to_owned(), source: Box::new(source) })
}

async fn read(path: &str, answer: http::Response<Body>) -> Result<Option<Value>, ListError> {
    let code = answer.status();
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect();
    let body =
        tokio::time::timeout(PATIENCE, body).await.map_err(|_| unreadable(path, "it took too long"))?;
    let body = body.map_err(|error| unreadable(path, &error.to_string()))?.to_bytes();
    if code == StatusCode::NOT_FOUND {
        return Ok(None);
    }
    let value = serde_json::from_slice::<Value>(&body);
    if !code.is_success() {
        let message = value.ok().and_then(|status| status.get("message")?.as_str().map(str::to_owned));
        let message = message.unwrap_or_else(|| "(no message)".to_owned());
        return Err(ListError::Refused { path: path.to_owned(), code: code.as_u16(), message });
    }
    value.map(Some).map_err(|error| unreadable(path, &error.to_string()))
}

fn unreadable(path: &str, reason: &str) -> ListError {
    ListError::Unreadable { path: path.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_headers() {
        let date = parse_date("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)));
        assert_eq!(parse_date("yesterday"), None);
    }

    #[test]
    fn an_access_is_written_as_verb_and_resource() {
        let patch = Access { name: "n1", ..Access::new("patch", "", "nodes") };
        assert_eq!(patch.to_string(), "patch nodes");
        assert_eq!(Access { subresource: "status", ..patch }.to_string(), "patch nodes/status");
    }
}
