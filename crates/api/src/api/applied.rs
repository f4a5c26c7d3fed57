//! What an applied object keeps of the stored one that it replaces, although the manifest does not have it.

use portolan_schema::{
    HEALTH_CHECKED, Resource,
    json::{self, Object, Value},
};

/// The conditions of an endpoint that health checks write.
const CHECKED: [&str; 2] = ["ready", "serving"];

/// Keeps the stored object's finalizers and owner references, unless the new object has its own.
pub(super) fn keep_finalizers_and_owners(object: &mut Object, stored: &Object) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for key in ["finalizers", "ownerReferences"] {
        let kept = json::object(stored, "metadata").and_then(|metadata| metadata.get(key));
        if let Some(kept) = kept.filter(|_| !metadata.contains_key(key)) {
            metadata.insert(key.to_owned(), kept.clone());
        }
    }
}

/// Keeps the results of health checks in an EndpointSlice: the annotation, and the conditions of each endpoint that is
/// stored with the same first address. An endpoint that is given with one of these conditions is left as given.
pub(super) fn keep_health_checks(resource: Resource, object: &mut Object, stored: &Object) {
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
