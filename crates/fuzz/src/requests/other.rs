//! Requests of clients that write objects of other kinds than Services, in JSON, YAML and protobuf.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use portolan_schema::Resource;
use portolan_schema::json::Object;
use portolan_schema::protobuf;
use serde_json::{Value, json};

use super::with_body;
use crate::script::Script;
use crate::{edits, objects};

/// The most odd values in an object.
const EDITS: usize = 4;
/// The uid of an owner.
const OWNER: &str = "4f7cf0e2-9d7a-4d2b-8d2f-0c4f1f1f0a11";
const TIME: &str = "2026-01-31T12:00:00.000000Z";
pub(crate) const RESOURCES: [Resource; 11] = [
    Resource::EndpointSlice,
    Resource::Endpoints,
    Resource::Node,
    Resource::Lease,
    Resource::Event,
    Resource::CoreEvent,
    Resource::Namespace,
    Resource::Pod,
    Resource::AccessReview,
    Resource::RulesReview,
    Resource::SelfReview,
];
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PATCHES: [&str; 3] = [
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Returns a request with an object.
pub(super) fn request(script: &mut Script<'_>) -> Option<Request<Full<Bytes>>> {
    let resource = script.pick(&RESOURCES);
    let info = resource.info();
    let mut object = object(resource, script);
    let name = object["metadata"]["name"].as_str().unwrap_or("a").to_owned();
    if script.below_by_length(8) == 0 {
        // The server makes up a name.
        edits::remove(&mut object, "/metadata/name");
    }
    let most = script.below(2 * EDITS + 1).saturating_sub(EDITS);
    edits::value(&mut object, script, most);

    let root = if info.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", info.group) };
    let namespace = if info.namespaced { "/namespaces/default" } else { "" };
    let many = format!("{root}/{}{namespace}/{}", info.version, info.plural);
    let status = if script.below(4) == 1 { "/status" } else { "" };
    let one = format!("{many}/{name}{status}");
    let (method, path, kind) = match script.below(8) {
        0..=3 => (Method::POST, many, script.pick(&[JSON, JSON, YAML, PROTOBUF])),
        4 | 5 => (Method::PUT, one, script.pick(&[JSON, YAML, PROTOBUF])),
        6 => (Method::PATCH, one, script.pick(&PATCHES)),
        _ => (Method::DELETE, one, JSON),
    };
    let query =
        script.pick(&["fieldManager=a", "fieldManager=a&fieldValidation=Strict", "fieldValidation=Warn"]);
    let body = body(&object, kind, script)?;
    with_body(&method, &format!("{path}?{query}"), kind, body)
}

/// Returns the object in a form; `None` if it has none in protobuf.
fn body(object: &Value, kind: &str, script: &mut Script<'_>) -> Option<Bytes> {
    let text = object.to_string();
    if kind == PROTOBUF {
        let object: Object = serde_json::from_str(&text).ok()?;
        return protobuf::encode(&object).ok().map(Bytes::from);
    }
    // Each member of an object may also be there twice.
    let doubled = if script.below(8) == 1 { text.replacen('{', "{\"kind\":\"Twice\",", 2) } else { text };
    Some(doubled.into())
}

/// Returns an object without edits.
pub(crate) fn object(resource: Resource, script: &mut Script<'_>) -> Value {
    let mut object = match resource {
        Resource::EndpointSlice | Resource::Node => objects::object(resource, script),
        Resource::Endpoints => json!({ "subsets": [{
            "addresses": [{ "ip": "10.1.0.1", "hostname": "h", "nodeName": "n1", "targetRef": { "kind": "Pod", "name": "p" } }],
            "notReadyAddresses": [{ "ip": "fd00:1::1" }],
            "ports": [{ "name": "a", "port": 80, "protocol": "TCP", "appProtocol": "http" }],
        }] }),
        Resource::Lease => json!({ "spec": {
            "holderIdentity": "h", "leaseDurationSeconds": 15, "leaseTransitions": 2, "acquireTime": TIME, "renewTime": TIME,
        } }),
        Resource::Event => json!({
            "eventTime": TIME, "reportingController": "example.org/c", "reportingInstance": "i", "action": "A", "reason": "R",
            "type": "Normal", "note": "n", "regarding": { "kind": "Service", "namespace": "default", "name": "svc-1" },
            "series": { "count": 2, "lastObservedTime": TIME },
        }),
        Resource::CoreEvent => json!({
            "involvedObject": { "kind": "Service", "namespace": "default", "name": "svc-1" }, "reason": "R", "message": "m",
            "type": "Warning", "count": 3, "firstTimestamp": "2026-01-31T12:00:00Z", "source": { "component": "c", "host": "h" },
        }),
        Resource::AccessReview => json!({ "spec": { "resourceAttributes": {
            "namespace": "default", "verb": "list", "group": "", "resource": "services",
            "fieldSelector": { "requirements": [{ "key": "metadata.name", "operator": "In", "values": ["a"] }] },
        } } }),
        Resource::RulesReview => json!({ "spec": { "namespace": "default" } }),
        _ => json!({}),
    };
    let info = resource.info();
    object["apiVersion"] = json!(info.api_version);
    object["kind"] = json!(info.kind);
    let name = script.pick(&["a", "b", "svc-1", "svc-1-1"]);
    match object["metadata"].as_object_mut() {
        Some(metadata) => drop(metadata.remove("resourceVersion")),
        None => {
            object["metadata"] = json!({ "name": name, "labels": { "kubernetes.io/service-name": "svc-1" } });
        }
    }
    let (field, value) = match script.below_by_length(4) {
        0 => ("generateName", json!("a-")),
        1 => ("ownerReferences", json!([owner(), owner()])),
        2 => ("finalizers", json!(["example.org/f", "foregroundDeletion"])),
        _ => return object,
    };
    object["metadata"][field] = value;
    object
}

fn owner() -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "o", "uid": OWNER, "controller": true })
}
