//! The API form of events (`events.k8s.io/v1`).

use std::time::SystemTime;

use http::Request;
use http::header::{ACCEPT, CONTENT_TYPE};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};

use super::note::Regarding;
use super::series::{Count, Recorded};
use crate::content_type::JSON;
use crate::request::path_segment;

/// The API server's limits in bytes (`pkg/apis/core/validation/events.go`; names: RFC 1123 subdomains).
const NOTE: usize = 1024;
const INSTANCE: usize = 128;
const NAME: usize = 253;

/// The namespace of events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";

/// kube-proxy's name, so that filters for kube-proxy's events find these.
const CONTROLLER: &str = "kube-proxy";

/// Returns `kube-proxy-<host name>`.
pub(super) fn instance(host_name: &str) -> String {
    cut(&format!("{CONTROLLER}-{host_name}"), INSTANCE).to_owned()
}

/// Returns the request that finds an object to read its UID, or `None` for a Node. A list needs no other permission than
/// the watches. It may come from the API server's cache.
pub(super) fn find(regarding: &Regarding) -> Option<Result<Request<Body>, http::Error>> {
    let (namespace, name) = (path_segment(&regarding.namespace), path_segment(&regarding.name));
    if namespace.is_empty() {
        return None;
    }
    let selector = format!("fieldSelector=metadata.name%3D{name}&resourceVersion=0");
    let request = Request::get(format!("/api/v1/namespaces/{namespace}/services?{selector}"));
    Some(request.header(ACCEPT, JSON).body(Body::empty()))
}

/// Returns the UID of the only object of a list.
pub(super) fn uid_in(list: &[u8]) -> Option<String> {
    let list: Value = serde_json::from_slice(list).ok()?;
    let uid = list.pointer("/items/0/metadata/uid")?.as_str()?;
    Some(uid.to_owned()).filter(|uid| !uid.is_empty())
}

/// Returns the request that creates an object. `uid` is that of the object that the event is about.
pub(super) fn create(
    event: &Recorded,
    uid: Option<&str>,
    count: Option<Count>,
    instance: &str,
) -> Result<Request<Body>, http::Error> {
    let note = &event.note;
    let mut object = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name(event), "namespace": namespace(event)},
        "eventTime": micro_time(event.at),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": note.action,
        "reason": note.reason,
        "regarding": regarding(&event.note.regarding, uid),
        "type": note.event_type.name(),
    });
    if let Some(object) = object.as_object_mut() {
        if !note.note.is_empty() {
            object.insert("note".to_owned(), json!(cut(&note.note, NOTE)));
        }
        if let Some(count) = count {
            object.insert("series".to_owned(), series(count));
        }
    }
    Request::post(path(event))
        .header(ACCEPT, JSON)
        .header(CONTENT_TYPE, JSON)
        .body(Body::from(object.to_string().into_bytes()))
}

/// Returns the request that sets a new count.
pub(super) fn patch(event: &Recorded, count: Count) -> Result<Request<Body>, http::Error> {
    Request::patch(format!("{}/{}", path(event), name(event)))
        .header(ACCEPT, JSON)
        .header(CONTENT_TYPE, "application/merge-patch+json")
        .body(Body::from(json!({"series": series(count)}).to_string().into_bytes()))
}

fn path(event: &Recorded) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{}/events", namespace(event))
}

fn namespace(event: &Recorded) -> &str {
    match &*event.note.regarding.namespace {
        "" => DEFAULT_NAMESPACE,
        namespace => namespace,
    }
}

/// Returns the object's name, `<object>.<hex unix nanoseconds>`.
fn name(event: &Recorded) -> String {
    let suffix = format!(".{:x}", event.nanos);
    let object = cut(&event.note.regarding.name, NAME.saturating_sub(suffix.len()));
    format!("{}{suffix}", object.trim_end_matches(['.', '-']))
}

fn regarding(regarding: &Regarding, uid: Option<&str>) -> Value {
    let mut object = json!({"kind": regarding.kind, "apiVersion": "v1", "name": regarding.name});
    if let Some(object) = object.as_object_mut() {
        if !regarding.namespace.is_empty() {
            object.insert("namespace".to_owned(), json!(regarding.namespace));
        }
        if let Some(uid) = uid {
            object.insert("uid".to_owned(), json!(uid));
        }
    }
    object
}

fn series(count: Count) -> Value {
    json!({"count": count.count, "lastObservedTime": micro_time(count.last)})
}

/// Formats a time as RFC 3339 with six digits of a second, like `metav1.MicroTime`.
fn micro_time(time: SystemTime) -> String {
    format!("{:.6}", Timestamp::try_from(time).unwrap_or_default())
}

/// Cuts a text to at most this many bytes, at a character boundary.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default()
}
