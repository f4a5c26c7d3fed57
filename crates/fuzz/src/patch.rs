//! Patches of every media type, on a Service with many different fields. There is no panic, the result can be stored and
//! decoded again, and repeating an apply changes nothing.

use portolan_schema::{
    Object, Resource,
    json::{MAX_DEPTH, Value, fits_depth},
    patch::{Apply, JsonPatch, Patch, Writer, managed},
    shape,
};

const SERVICE: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"n","uid":"u",
"labels":{"a":"b"},"annotations":{"c/d":"e"},"finalizers":["x/y","x/z"],
"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"1"}]},
"spec":{"type":"NodePort","clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"selector":{"a":"b"},"externalIPs":["192.0.2.1"],
"ports":[{"name":"a","port":80,"protocol":"TCP","nodePort":30080},{"name":"b","port":53,"protocol":"TCP"},
{"name":"c","port":53,"protocol":"UDP"}]},
"status":{"loadBalancer":{},"conditions":[{"type":"A","status":"True"}]}}"#;

/// Applies the patch.
pub(crate) fn run(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return };
    let writer = Writer { manager: "fuzz", subresource: "", now: "2030-01-01T00:00:00Z" };
    let mut live: Object = serde_json::from_str(SERVICE).expect("it is JSON");
    managed::created(Resource::Service, &mut live, Writer { manager: "maker", ..writer });
    let patch = match (choice % 4, body) {
        (0, body) => JsonPatch::decode(body).ok().map(Patch::Json),
        (1, Value::Object(body)) => Some(Patch::Merge(body)),
        (2, Value::Object(body)) => Some(Patch::Strategic(body)),
        (3, Value::Object(body)) => {
            let Ok(apply) = Apply::decode(Resource::Service, body, choice & 4 != 0) else { return };
            let Ok(once) = apply.onto(Some(&live), writer) else { return };
            assert_eq!(apply.onto(Some(&once), writer).as_ref(), Ok(&once));
            return;
        }
        _ => None,
    };
    let Some(mut new) = patch.and_then(|patch| patch.apply(Resource::Service, &live).ok()) else { return };
    if choice % 4 == 0 {
        assert!(new.values().all(|value| fits_depth(value, MAX_DEPTH, &mut 0)));
    }
    if shape::conform(Resource::Service, &mut new).is_ok() {
        let asked = managed::present(Resource::Service, "", &new);
        let _ = managed::updated(Resource::Service, &live, &mut new, &asked, writer);
        let encoded = Value::Object(new.clone()).to_string();
        assert_eq!(serde_json::from_str::<Object>(&encoded).expect("it was JSON"), new);
    }
}
