//! The conditions of endpoints that health checks write. A client that writes an EndpointSlice without them neither
//! erases results nor makes an endpoint ready that has none yet.

use std::collections::HashMap;

use portolan_schema::{
    HEALTH_CHECKED, Resource, SERVICE_NAME,
    json::{self, Object, Value},
};

use super::{Api, Target};

/// The conditions of an endpoint that health checks write.
const CHECKED: [&str; 2] = ["ready", "serving"];

impl Api {
    /// Keeps the results of health checks in an EndpointSlice that is applied again, if health checks use the store.
    pub(super) fn keep_results(&self, resource: Resource, object: &mut Object, stored: &Object) {
        let is_slice = resource == Resource::EndpointSlice;
        if is_slice && self.keeps_health_checks && is_of_same_service(object, stored) {
            keep(object, stored);
        }
    }

    /// Sets `ready: false` in new endpoints of a slice, and keeps the results of the others, if health checks of this
    /// server judge them. An endpoint that is given with a condition is left as given.
    pub(super) fn hold_back_unchecked(&self, object: &mut Object, old: Option<&Object>) {
        let Some(awaiting) = self.awaiting(object) else { return };
        let old = old.filter(|old| is_of_same_service(old, object));
        if let Some(old) = old {
            keep(object, old);
        }
        let known = old.map(by_address).unwrap_or_default();
        let mut is_held_back = false;
        for (endpoint, awaits) in json::objects_mut(object, "endpoints").zip(awaiting) {
            let is_known = first_address(endpoint).is_some_and(|address| known.contains_key(address));
            if !awaits || is_known || has_result(endpoint) {
                continue;
            }
            if let Some(conditions) = present_mut(endpoint, "conditions") {
                conditions.insert("ready".to_owned(), Value::Bool(false));
                is_held_back = true;
            }
        }
        // The mark lets the prober take `ready` away when the check is removed.
        if is_held_back
            && let Some(metadata) = json::object_mut(object, "metadata")
            && let Some(annotations) = present_mut(metadata, "annotations")
        {
            annotations.insert(HEALTH_CHECKED.to_owned(), Value::from("true"));
        }
    }

    /// Returns, for each endpoint of a slice, true if it awaits its first result. `None` if there is nothing to do.
    fn awaiting(&self, slice: &Object) -> Option<Vec<bool>> {
        let health_checked = self.health_checked?;
        // As in each write of the prober.
        if json::list(slice, "endpoints").iter().filter_map(Value::as_object).all(has_result) {
            return None;
        }
        let metadata = json::object(slice, "metadata")?;
        let namespace = json::text(metadata, "namespace").unwrap_or_default();
        let service = Target { resource: Resource::Service, namespace, name: service_of(slice)? };
        let service = self.store.latest(Resource::Service, &service.key())?;
        health_checked(service.body(), slice)
    }
}

/// Keeps the results of health checks in an EndpointSlice: the annotation, and the conditions of each endpoint that is
/// stored with the same first address. An endpoint that is given with one of these conditions is left as given.
fn keep(object: &mut Object, stored: &Object) {
    let annotations = json::object(stored, "metadata").and_then(|it| json::object(it, "annotations"));
    let Some(mark) = annotations.and_then(|annotations| annotations.get(HEALTH_CHECKED)) else { return };
    let Some(metadata) = json::object_mut(object, "metadata") else { return };
    let Some(annotations) = present_mut(metadata, "annotations") else { return };
    annotations.insert(HEALTH_CHECKED.to_owned(), mark.clone());
    let known = by_address(stored);
    for endpoint in json::objects_mut(object, "endpoints") {
        if has_result(endpoint) {
            continue;
        }
        let same = first_address(endpoint).and_then(|address| known.get(address));
        let results = same.and_then(|known| json::object(known, "conditions"));
        let Some(results) = results.filter(|results| is_decided(results)) else { continue };
        let Some(conditions) = present_mut(endpoint, "conditions") else { continue };
        for key in CHECKED {
            if let Some(result) = results.get(key) {
                conditions.insert(key.to_owned(), result.clone());
            }
        }
    }
}

/// Returns the endpoints of a slice by their first address. Of two with the same one, the first counts.
fn by_address(slice: &Object) -> HashMap<&str, &Object> {
    let endpoints = json::list(slice, "endpoints").iter().rev().filter_map(Value::as_object);
    endpoints.filter_map(|endpoint| Some((first_address(endpoint)?, endpoint))).collect()
}

/// Returns true if two versions of a slice belong to the same Service. Endpoints that move to another one are new there:
/// it may have another check.
fn is_of_same_service(one: &Object, other: &Object) -> bool {
    service_of(one) == service_of(other)
}

/// Returns the name of the Service of a slice.
fn service_of(slice: &Object) -> Option<&str> {
    let labels = json::object(json::object(slice, "metadata")?, "labels")?;
    json::text(labels, SERVICE_NAME).filter(|name| !name.is_empty())
}

/// Returns true if an endpoint has a condition that health checks write.
fn has_result(endpoint: &Object) -> bool {
    json::object(endpoint, "conditions").is_some_and(is_decided)
}

fn is_decided(conditions: &Object) -> bool {
    CHECKED.iter().any(|key| conditions.get(key).is_some_and(|value| !value.is_null()))
}

/// Returns the object at `key`, which is created if it is absent or null. Returns `None` if a value of another type is
/// there; validation refuses it later.
fn present_mut<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    if map.get(key).is_some_and(Value::is_null) {
        map.remove(key);
    }
    json::object_mut(map, key)
}

fn first_address(endpoint: &Object) -> Option<&str> {
    json::texts(endpoint, "addresses").next()
}
