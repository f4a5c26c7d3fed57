//! JSON merge patch (RFC 7386): null removes a member, objects merge, any other value replaces.

use crate::json::{Object, Value};

use super::replace;

/// Applies `patch` to `target`.
pub fn merge(target: &mut Object, patch: &Object) {
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(name);
            }
            Value::Object(patch) => {
                let entry = target.entry(name.as_str()).or_insert_with(|| Value::Object(Object::new()));
                if !entry.is_object() {
                    *entry = Value::Object(Object::new());
                }
                if let Value::Object(inner) = entry {
                    merge(inner, patch);
                }
            }
            other => replace(target.entry(name.as_str()).or_insert_with(|| Value::Null), other),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::json::json;
    use proptest::prelude::*;

    use super::*;

    fn merged(mut target: Value, patch: &Value) -> Value {
        merge(target.as_object_mut().unwrap(), patch.as_object().unwrap());
        target
    }

    #[test]
    fn examples_of_the_rfc() {
        for (target, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ] {
            assert_eq!(merged(target, &patch), expected, "{patch}");
        }
    }

    /// Returns the merge patch that changes `old` to `new`. Neither holds null.
    fn difference(old: &Object, new: &Object) -> Object {
        let mut patch: Object = old
            .keys()
            .filter(|name| !new.contains_key(name))
            .map(|name| (name.clone(), Value::Null))
            .collect();
        for (name, value) in new {
            match (old.get(name), value) {
                (Some(Value::Object(old)), Value::Object(new)) => {
                    patch.insert(name.clone(), Value::Object(difference(old, new)));
                }
                (old, value) if old != Some(value) => {
                    patch.insert(name.clone(), value.clone());
                }
                _ => {}
            }
        }
        patch
    }

    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<i32>().prop_map(Value::from), "[a-c]{0,2}".prop_map(Value::from)];
        let tree = leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        });
        proptest::collection::btree_map("[a-d]", tree, 0..4)
            .prop_map(|members| Value::Object(members.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn the_difference_of_two_documents_makes_the_second_of_the_first(old in documents(), new in documents()) {
            let patch = difference(old.as_object().unwrap(), new.as_object().unwrap());
            prop_assert_eq!(merged(old, &Value::Object(patch)), new);
        }
    }
}
