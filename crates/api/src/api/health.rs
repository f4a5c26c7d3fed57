//! The conditions of endpoints that health checks write. A client that writes an EndpointSlice without them neither
//! erases results nor makes an endpoint ready that has none yet.

use std::collections::HashSet;

use portolan_schema::{
    HEALTH_CHECKED, Resource,
    json::{self, Object, Value},
};

use super::{Api, Target};

/// Label of a slice that names its Service (`k8s.io/api/discovery/v1`, `LabelServiceName`).
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The conditions of an endpoint that health checks write.
const CHECKED: [&str; 2] = ["ready", "serving"];

impl Api {
    /// Sets `ready: false` in the new endpoints of a slice, and keeps the results of the others, if health checks of this
    /// server judge the endpoints. Conditions that the client gives stay as given.
    pub(super) fn hold_back_unchecked(&self, object: &mut Object, old: Option<&Object>) {
        let Some(awaits) = self.awaits_health_check else { return };
        let metadata = json::object(object, "metadata");
        let text = |key| metadata.and_then(|metadata| json::text(metadata, key)).unwrap_or_default();
        let labels = metadata.and_then(|metadata| json::object(metadata, "labels"));
        let Some(name) = labels.and_then(|labels| json::text(labels, SERVICE_NAME)) else { return };
        let service = Target { resource: Resource::Service, namespace: text("namespace"), name };
        let service = self.store.latest(Resource::Service, &service.key());
        if !service.is_some_and(|service| awaits(service.body(), object)) {
            return;
        }
        if let Some(old) = old {
            keep(Resource::EndpointSlice, object, old);
        }
        let endpoints = old.map(|old| json::list(old, "endpoints")).unwrap_or_default();
        let known: HashSet<&str> =
            endpoints.iter().filter_map(Value::as_object).filter_map(first_address).collect();
        for endpoint in json::objects_mut(object, "endpoints") {
            if first_address(endpoint).is_none_or(|address| known.contains(address)) {
                continue;
            }
            let Some(conditions) = present_mut(endpoint, "conditions") else { continue };
            if !CHECKED.iter().any(|key| is_given(conditions, key)) {
                conditions.insert("ready".to_owned(), Value::Bool(false));
            }
        }
    }
}

/// Keeps the results of health checks in an EndpointSlice: the annotation, and the conditions of each endpoint that is
/// stored with the same first address. An endpoint that is given with one of these conditions is left as given.
pub(super) fn keep(resource: Resource, object: &mut Object, stored: &Object) {
    if resource != Resource::EndpointSlice {
        return;
    }
    let annotations = json::object(stored, "metadata").and_then(|it| json::object(it, "annotations"));
    let Some(mark) = annotations.and_then(|annotations| annotations.get(HEALTH_CHECKED)) else { return };
    let Some(metadata) = json::object_mut(object, "metadata") else { return };
    let Some(annotations) = present_mut(metadata, "annotations") else { return };
    annotations.insert(HEALTH_CHECKED.to_owned(), mark.clone());
    let known: Vec<&Object> = json::list(stored, "endpoints").iter().filter_map(Value::as_object).collect();
    for endpoint in json::objects_mut(object, "endpoints") {
        let Some(address) = first_address(endpoint).map(str::to_owned) else { continue };
        let same = known.iter().find(|known| first_address(known) == Some(address.as_str()));
        let results = same.and_then(|known| json::object(known, "conditions"));
        let Some(results) = results.filter(|results| CHECKED.iter().any(|key| is_given(results, key))) else {
            continue;
        };
        let Some(conditions) = present_mut(endpoint, "conditions") else { continue };
        if CHECKED.iter().any(|key| is_given(conditions, key)) {
            continue;
        }
        for key in CHECKED {
            if let Some(result) = results.get(key) {
                conditions.insert(key.to_owned(), result.clone());
            }
        }
    }
}

/// Returns the object at `key`, which is created if it is absent or null. Returns `None` if a value of another type is
/// there; validation refuses it later.
fn present_mut<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    if map.get(key).is_some_and(Value::is_null) {
        map.remove(key);
    }
    json::object_mut(map, key)
}

fn is_given(map: &Object, key: &str) -> bool {
    map.get(key).is_some_and(|value| !value.is_null())
}

fn first_address(endpoint: &Object) -> Option<&str> {
    json::texts(endpoint, "addresses").next()
}
