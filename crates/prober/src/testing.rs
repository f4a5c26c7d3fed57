//! Objects for tests, and the API server's JSON patch.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::object::Input;

/// Returns the Service `shop/web` with annotations, whose names are given without the common prefix.
pub(crate) fn service(annotations: &[(&str, &str)]) -> Input {
    let name = |suffix: &str| format!("{}{suffix}", crate::annotations::PREFIX);
    let annotations: BTreeMap<String, &str> =
        annotations.iter().map(|(suffix, value)| (name(suffix), *value)).collect();
    let metadata = json!({"name": "web", "namespace": "shop", "uid": "s", "annotations": annotations});
    Input::Service(Box::new(serde_json::from_value(json!({"metadata": metadata})).unwrap()))
}

/// Returns a slice of the Service `shop/web` as a person makes it, without conditions.
pub(crate) fn slice(name: &str, addresses: &[&str]) -> Value {
    let labels = json!({"kubernetes.io/service-name": "web"});
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// Applies a JSON patch as the API server does.
pub(crate) fn patched(object: &Value, patch: &Value) -> Value {
    let convert = |value: &Value| serde_json::from_str(&value.to_string()).unwrap();
    let patch = portolan_schema::patch::JsonPatch::decode(convert(patch)).unwrap();
    serde_json::to_value(patch.apply(convert(object)).unwrap()).unwrap()
}
