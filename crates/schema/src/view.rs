//! Resources that are a view of another resource's objects with other field names. The only one is `v1` Event, whose
//! objects are those of `events.k8s.io/v1` ([`Resource::stored`]).
//!
//! Objects are stored in one form. A caller that reads an object from the store for a client calls [`seen`]; a caller
//! that stores a client's object calls [`stored`]. For all other resources, both return the object unchanged. Only names
//! of top-level fields differ, so that nothing is lost in either direction.

use crate::json::Value;

use crate::{json::Object, resource::Resource};

/// Names of the same field in `v1` and in `events.k8s.io/v1` (`pkg/apis/core/v1` and `pkg/apis/events/v1`, conversion).
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Converts a client's object of this resource to its stored form.
pub fn stored(resource: Resource, object: Object) -> Object {
    match resource {
        Resource::CoreEvent => renamed(resource.stored(), object, |(seen, stored)| (seen, stored)),
        _ => object,
    }
}

/// Converts a stored object to the form of this resource.
pub fn seen(resource: Resource, object: Object) -> Object {
    match resource {
        Resource::CoreEvent => renamed(resource, object, |(seen, stored)| (stored, seen)),
        _ => object,
    }
}

/// Converts an encoded stored object like [`seen`]. Returns `None` if the bytes need no conversion or are not an
/// object.
pub fn seen_body(resource: Resource, body: &[u8]) -> Option<Vec<u8>> {
    if resource.stored() == resource {
        return None;
    }
    let object = serde_json::from_slice(body).ok()?;
    serde_json::to_vec(&Value::Object(seen(resource, object))).ok()
}

/// Returns the selectable field of the stored form that `field` of this resource corresponds to.
pub fn stored_field(resource: Resource, field: &'static str) -> Option<&'static str> {
    if resource.stored() == resource {
        return Some(field);
    }
    let fields = resource.info().selectable.iter().zip(resource.stored().info().selectable);
    fields.filter(|(seen, _)| **seen == field).map(|(_, stored)| *stored).next()
}

fn renamed(
    to: Resource,
    mut object: Object,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Object {
    for pair in EVENT_FIELDS {
        let (old, new) = direction(pair);
        if let Some(value) = object.remove(old) {
            object.insert(new.to_owned(), value);
        }
    }
    let info = to.info();
    for (key, value) in [("apiVersion", info.api_version), ("kind", info.kind)] {
        if object.contains_key(key) {
            object.insert(key.to_owned(), value.into());
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use crate::json::json;

    use super::*;
    use crate::shape;

    #[test]
    fn a_core_event_comes_back_as_it_was() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
            "involvedObject": {"name": "a"}, "message": "m", "source": {"component": "c"}, "count": 2,
            "firstTimestamp": "2026-11-21T21:03:57Z", "lastTimestamp": "2026-11-21T21:03:58Z",
            "reportingComponent": "c", "reportingInstance": "i", "reason": "r", "type": "Normal",
        });
        let core = core.as_object().unwrap();
        let inner = stored(Resource::CoreEvent, core.clone());
        assert_eq!(inner["apiVersion"], "events.k8s.io/v1");
        assert_eq!((&inner["regarding"], &inner["note"]), (&core["involvedObject"], &core["message"]));
        let mut checked = inner.clone();
        assert_eq!(shape::conform(Resource::Event, &mut checked), Ok(Vec::new()));
        assert_eq!(seen(Resource::CoreEvent, inner.clone()), *core);
        let body = serde_json::to_vec(&inner).unwrap();
        let seen_body = seen_body(Resource::CoreEvent, &body).unwrap();
        assert_eq!(serde_json::from_slice::<Object>(&seen_body).unwrap(), *core);
    }

    #[test]
    fn every_field_has_a_counterpart_of_its_type() {
        for field in shape::of(Resource::CoreEvent).fields {
            let pair = EVENT_FIELDS.iter().find(|(seen, _)| *seen == field.name);
            let name = pair.map_or(field.name, |(_, stored)| stored);
            let counterpart = shape::of(Resource::Event).field(name).unwrap();
            assert_eq!(discriminant(&field.kind), discriminant(&counterpart.kind), "{name}");
        }
        assert_eq!(shape::of(Resource::CoreEvent).fields.len(), shape::of(Resource::Event).fields.len());
    }

    #[test]
    fn selectors_name_the_stored_field() {
        for (field, expected) in [
            ("involvedObject.uid", Some("regarding.uid")),
            ("reason", Some("reason")),
            ("source", Some("deprecatedSource.component")),
            ("reportingComponent", Some("reportingController")),
            ("regarding.uid", None),
        ] {
            assert_eq!(stored_field(Resource::CoreEvent, field), expected);
        }
        assert_eq!(stored_field(Resource::Service, "spec.type"), Some("spec.type"));
    }

    #[test]
    fn other_objects_stay_as_they_are() {
        let object = json!({"apiVersion": "v1", "message": "m"}).as_object().unwrap().clone();
        assert_eq!(stored(Resource::Service, object.clone()), object);
        assert_eq!(seen(Resource::Event, object.clone()), object);
        assert_eq!(seen_body(Resource::Event, b"{}"), None);
    }
}
