//! Patches of every media type, on a Service with many different fields. There is no panic, the result can be stored and
//! decoded again, and repeating an apply changes nothing.
//!
//! Choices make a patch of the Service's own fields. Other inputs are the kind of the patch and its text.

use portolan_schema::{
    Object, Resource,
    json::{MAX_DEPTH, Value, fits_depth},
    patch::{Apply, JsonPatch, Patch, Writer, managed},
    shape,
};
use serde_json::json;

use crate::edits;
use crate::script::Script;

/// The most operations of a JSON patch, and odd values in another one.
const MOST: usize = 8;

const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"n","uid":"u",
"labels":{"a":"b"},"annotations":{"c/d":"e","kubectl.kubernetes.io/last-applied-configuration":"{}"},"finalizers":["x/y","x/z"],
"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"1"}]},
"spec":{"type":"NodePort","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"selector":{"a":"b"},"externalIPs":["192.0.2.1"],
"ports":[{"name":"a","port":80,"protocol":"TCP","nodePort":30080},{"name":"b","port":53,"protocol":"TCP"},
{"name":"c","port":53,"protocol":"UDP"}]},
"status":{"loadBalancer":{},"conditions":[{"type":"A","status":"True"}]}}"#;

/// Applies the patch.
pub(crate) fn run(bytes: &[u8]) {
    if let Some(mut script) = Script::of(bytes) {
        let choice = script.byte();
        let service: serde_json::Value = serde_json::from_str(SERVICE).expect("it is JSON");
        let patch = match choice % 4 {
            0 => operations(&service, &mut script),
            _ => edited(service, &mut script),
        };
        if let Ok(body) = serde_json::from_str(&patch.to_string()) {
            apply(choice, body);
        }
    } else if let Some((choice, body)) = bytes.split_first()
        && let Ok(body) = serde_json::from_slice(body)
    {
        apply(*choice, body);
    }
}

/// Returns a JSON patch (RFC 6902) of fields that the Service has, or of ones that are missing beside them.
pub(crate) fn operations(service: &serde_json::Value, script: &mut Script<'_>) -> serde_json::Value {
    let pointers = edits::pointers(service);
    let mut operations = Vec::new();
    while !script.is_over() && operations.len() < MOST {
        let mut pointer = || {
            let after = script.pick(&["", "", "", "/-", "/0", "/new", "/1", "/~1"]);
            script.pick(&pointers) + after
        };
        let (path, from) = (pointer(), pointer());
        let value = service.pointer(&script.pick(&pointers)).cloned().unwrap_or_default();
        let op = script.pick(&["add", "remove", "replace", "move", "copy", "test"]);
        operations.push(json!({ "op": op, "path": path, "from": from, "value": value }));
    }
    operations.into()
}

/// Returns the Service with odd values, as a merge patch or a configuration to apply.
fn edited(mut service: serde_json::Value, script: &mut Script<'_>) -> serde_json::Value {
    for field in ["/status", "/metadata/uid", "/spec/ports/2", "/spec/clusterIPs", "/metadata/finalizers"] {
        if script.flag() {
            edits::remove(&mut service, field);
        }
    }
    for directive in
        [json!({ "$patch": "delete", "port": 80, "protocol": "TCP" }), json!({ "$patch": "replace" })]
    {
        if script.below(4) == 1
            && let Some(ports) = service["spec"]["ports"].as_array_mut()
        {
            ports.push(directive);
        }
    }
    if script.below(4) == 1 {
        service["spec"]["$setElementOrder/ports"] = json!([{ "port": 53 }, { "port": 80 }]);
    }
    if script.below(4) == 1 {
        service["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!(["x/y"]);
    }
    if script.below(4) == 1 {
        service["spec"]["$retainKeys"] = json!(["type", "ports"]);
    }
    edits::value(&mut service, script, MOST);
    service
}

fn apply(choice: u8, body: Value) {
    // An apply by kubectl also keeps its annotation.
    let manager = if choice & 8 == 0 { "fuzz" } else { "kubectl" };
    let writer = Writer { manager, subresource: "", now: "2030-01-01T00:00:00Z" };
    let mut live: Object = serde_json::from_str(SERVICE).expect("it is JSON");
    managed::created(Resource::Service, &mut live, Writer { manager: "maker", ..writer });
    if choice & 16 != 0 {
        add_managers(&mut live);
    }
    let patch = match (choice % 4, body) {
        (0, body) => JsonPatch::decode(body).ok().map(Patch::Json),
        (1, Value::Object(body)) => Some(Patch::Merge(body)),
        (2, Value::Object(body)) => Some(Patch::Strategic(body)),
        (3, Value::Object(body)) => {
            let Ok(apply) = Apply::decode(Resource::Service, body, choice & 4 != 0) else { return };
            let Ok(mut once) = apply.onto(Some(&live), writer) else { return };
            // A repeated apply changes nothing, but for one case, as in Kubernetes: kubectl's annotation gets its value after the
            // owners of fields are known. If the applied object had it, the second apply takes it from other managers.
            if manager == "kubectl" {
                let Ok(twice) = apply.onto(Some(&once), writer) else { return };
                once = twice;
            }
            if !has_empty_key(&once) {
                assert_eq!(apply.onto(Some(&once), writer).as_ref(), Ok(&once));
            }
            return;
        }
        _ => None,
    };
    let Some(mut new) = patch.and_then(|patch| patch.apply(Resource::Service, &live).ok()) else { return };
    if choice.is_multiple_of(4) {
        assert!(new.values().all(|value| fits_depth(value, MAX_DEPTH, &mut 0)));
    }
    if shape::conform(Resource::Service, &mut new).is_ok() {
        let asked = managed::present(Resource::Service, "", &new);
        let _ = managed::updated(Resource::Service, &live, &mut new, &asked, writer);
        let encoded = Value::Object(new.clone()).to_string();
        assert_eq!(serde_json::from_str::<Object>(&encoded).expect("it was JSON"), new);
    }
}

/// Adds managers, up to the most that are remembered one by one.
fn add_managers(live: &mut Object) {
    let metadata = live.get_mut("metadata").and_then(Value::as_object_mut);
    let entries = metadata.and_then(|metadata| metadata.get_mut("managedFields")?.as_array_mut());
    let entries = entries.expect("the maker's entry");
    for number in 0..9 {
        let mut entry = entries[0].clone();
        entry["manager"] = format!("m{number}").into();
        entries.push(entry);
    }
}

/// Returns true if an element of a list was applied with an empty text in its key, such as `protocol: ""`. As in Kubernetes, it is
/// another element than that of the default, which the API server then writes into it. Its validation refuses two of them.
fn has_empty_key(object: &Object) -> bool {
    let object = Value::Object(object.clone());
    let entries = object["metadata"]["managedFields"].as_array();
    let mut applied = entries.into_iter().flatten().filter(|entry| entry["operation"] == "Apply");
    applied.any(|entry| names_empty_key(&entry["fieldsV1"]))
}

fn names_empty_key(fields: &Value) -> bool {
    let fields = fields.as_object().into_iter().flatten();
    fields
        .into_iter()
        .any(|(name, inner)| (name.starts_with("k:") && name.contains(r#":"""#)) || names_empty_key(inner))
}
