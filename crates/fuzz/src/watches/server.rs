//! Answers of an API server that knows what was asked, with odd values.

use http::Response;
use portolan_schema::Resource;
use portolan_schema::json::Object;
use portolan_schema::protobuf::{Form, encode, encode_watch_event};
use serde_json::{Value, json};
use tower::BoxError;

use super::{Body, STATUSES, response};
use crate::objects;
use crate::script::Script;

/// Bytes for the choices of one answer.
const CHOICES: usize = 160;
/// The most events or items of one answer.
const MOST: usize = 12;
/// Bytes of the longest part of an answer whose bytes are all chosen.
const LONGEST: usize = 64;

/// Returns the choices of each answer.
pub(super) fn choices(script: &mut Script<'_>) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| (!script.is_over()).then(|| script.bytes(CHOICES).to_vec())).collect()
}

/// Answers a request.
pub(super) fn answer(uri: &str, choices: &[u8]) -> Result<Response<Body>, BoxError> {
    let mut script = Script::new(choices);
    let status = script.pick(&STATUSES);
    let (is_protobuf, length, breaks) = (script.flag(), script.byte(), script.below(8) == 1);
    let resource = asked(uri);
    let body = if status != 200 {
        status_body(status, is_protobuf, &mut script)
    } else if uri.contains("watch=") {
        events(resource, is_protobuf, &mut script)
    } else {
        list(resource, &mut script)
    };
    response(status, is_protobuf, &body, length, breaks)
}

fn asked(uri: &str) -> Resource {
    let names = [
        ("/services?", Resource::Service),
        ("/endpointslices?", Resource::EndpointSlice),
        ("/nodes?", Resource::Node),
    ];
    let found = names.iter().find(|(name, _)| uri.contains(name));
    found.map_or(Resource::ServiceCidr, |(_, resource)| *resource)
}

/// Returns a page of a list.
fn list(resource: Resource, script: &mut Script<'_>) -> Vec<u8> {
    let info = resource.info();
    let count = script.below(MOST + 1);
    let items: Vec<Value> = (0..count).map(|_| objects::edited(resource, script)).collect();
    let mut metadata = json!({ "resourceVersion": version(script) });
    if script.below(4) == 1 {
        metadata["continue"] = script.pick(&["next", "last"]).into();
    }
    let list = json!({
        "apiVersion": info.api_version,
        "kind": format!("{}List", info.kind),
        "metadata": metadata,
        "items": items,
    });
    list.to_string().into_bytes()
}

/// Returns the body of a watch.
fn events(resource: Resource, is_protobuf: bool, script: &mut Script<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..MOST {
        if script.is_over() {
            break;
        }
        let (kind, object) = match script.below(16) {
            0 => {
                body.extend_from_slice(script.bytes(LONGEST));
                continue;
            }
            1 => ("ERROR", status(script.pick(&STATUSES), script)),
            2..=4 => ("BOOKMARK", bookmark(resource, false, script)),
            5..=7 => ("BOOKMARK", bookmark(resource, true, script)),
            8 => ("DELETED", objects::edited(resource, script)),
            9 => ("MODIFIED", objects::edited(resource, script)),
            10 => ("SOMETHING", objects::edited(resource, script)),
            _ => ("ADDED", objects::edited(resource, script)),
        };
        if is_protobuf {
            body.extend(protobuf_event(resource, kind, &object));
        } else {
            body.extend(json!({ "type": kind, "object": object }).to_string().into_bytes());
            body.push(b'\n');
        }
    }
    body
}

/// Returns an event in protobuf; none if protobuf has no such object.
fn protobuf_event(resource: Resource, kind: &str, object: &Value) -> Vec<u8> {
    if kind == "ERROR" {
        let object: Option<Object> = serde_json::from_str(&object.to_string()).ok();
        return object.and_then(|object| encode_watch_event(kind, &object).ok()).unwrap_or_default();
    }
    Form::Whole(resource).encode_watch_event(kind, object.to_string().as_bytes()).unwrap_or_default()
}

fn bookmark(resource: Resource, ends_list: bool, script: &mut Script<'_>) -> Value {
    let info = resource.info();
    let mut metadata = json!({ "resourceVersion": version(script) });
    if ends_list {
        metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
    }
    json!({ "apiVersion": info.api_version, "kind": info.kind, "metadata": metadata })
}

fn version(script: &mut Script<'_>) -> String {
    script.pick(&["1", "500", "1000", "1001", "0", "", "x"]).to_owned()
}

fn status_body(code: u16, is_protobuf: bool, script: &mut Script<'_>) -> Vec<u8> {
    if script.below(8) == 1 {
        return script.bytes(LONGEST).to_vec();
    }
    let text = status(code, script).to_string();
    let object: Option<Object> = serde_json::from_str(&text).ok().filter(|_| is_protobuf);
    object.and_then(|object| encode(&object).ok()).unwrap_or_else(|| text.into_bytes())
}

fn status(code: u16, script: &mut Script<'_>) -> Value {
    let reason = script.pick(&["Expired", "Gone", "Timeout", "TooManyRequests", "Forbidden", "Invalid", ""]);
    let cause = script.pick(&["ResourceVersionTooLarge", "FieldValueInvalid", ""]);
    json!({
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "message": "a message",
        "reason": reason,
        "code": code,
        "details": { "causes": [{ "reason": cause }], "retryAfterSeconds": script.byte() },
    })
}
