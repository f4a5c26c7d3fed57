//! IPAddress: its name is the address, and its parent is immutable. Source:
//! `pkg/apis/networking/validation/validation.go`.

use portolan_schema::json::{self, Object, Value};

use crate::{error::FieldError, names};

const SEGMENT_RULE: &str = "must be usable as one segment of a path: not '.' or '..', without '/' and '%'";

pub(super) fn validate(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let parent = parent_ref(object);
    if let Some(old) = old {
        let value = || parent.cloned().map_or(Value::Null, Value::Object);
        let changed = parent != parent_ref(old);
        return changed
            .then(|| FieldError::invalid("spec.parentRef", value(), "field is immutable"))
            .into_iter()
            .collect();
    }
    let Some(parent) = parent else {
        return vec![FieldError::required("spec.parentRef", "the object that has the address")];
    };
    let mut errors = Vec::new();
    if let Some(group) = json::text(parent, "group").filter(|group| !names::is_dns_subdomain(group)) {
        errors.push(FieldError::invalid("spec.parentRef.group", group, "must be a DNS-1123 subdomain"));
    }
    for (key, is_required) in [("resource", true), ("name", true), ("namespace", false)] {
        let field = format!("spec.parentRef.{key}");
        match json::text(parent, key) {
            None if is_required => errors.push(FieldError::required(field, "names the object")),
            Some(text) if !names::is_path_segment(text) => {
                errors.push(FieldError::invalid(field, text, SEGMENT_RULE));
            }
            _ => {}
        }
    }
    errors
}

fn parent_ref(object: &Object) -> Option<&Object> {
    json::object(object, "spec").and_then(|spec| json::object(spec, "parentRef"))
}

#[cfg(test)]
mod tests {
    use portolan_schema::json::json;

    use super::*;

    fn object(parent: &Value) -> Object {
        json!({"spec": {"parentRef": parent}}).as_object().unwrap().clone()
    }

    fn faults(object: &Object, old: Option<&Object>) -> Vec<String> {
        validate(object, old).iter().map(|error| format!("{:?} {}", error.reason, error.field)).collect()
    }

    #[test]
    fn each_rule() {
        let parent = |more: Value| {
            let mut parent = json!({"resource": "services", "namespace": "a", "name": "b"});
            parent.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            object(&parent)
        };
        for (object, fault) in [
            (Object::new(), "FieldValueRequired spec.parentRef"),
            (parent(json!({"group": "A b"})), "FieldValueInvalid spec.parentRef.group"),
            (parent(json!({"resource": ""})), "FieldValueRequired spec.parentRef.resource"),
            (parent(json!({"resource": "a/b"})), "FieldValueInvalid spec.parentRef.resource"),
            (parent(json!({"name": ""})), "FieldValueRequired spec.parentRef.name"),
            (parent(json!({"name": ".."})), "FieldValueInvalid spec.parentRef.name"),
            (parent(json!({"namespace": "a%b"})), "FieldValueInvalid spec.parentRef.namespace"),
        ] {
            assert_eq!(faults(&object, None), [fault]);
        }
        assert_eq!(faults(&parent(json!({"group": "example.com"})), None), Vec::<String>::new());
        assert_eq!(faults(&object(&json!({"resource": "nodes", "name": "n"})), None), Vec::<String>::new());
    }

    #[test]
    fn the_owner_of_an_address_is_for_good() {
        let one = object(&json!({"resource": "services", "namespace": "a", "name": "b"}));
        let other = object(&json!({"resource": "services", "namespace": "a", "name": "c"}));
        assert_eq!(faults(&one, Some(&one)), Vec::<String>::new());
        assert_eq!(faults(&other, Some(&one)), ["FieldValueInvalid spec.parentRef"]);
        assert_eq!(faults(&Object::new(), Some(&one)), ["FieldValueInvalid spec.parentRef"]);
    }
}
