//! Sets of fields, and their JSON form `FieldsV1`.
//!
//! A set is a tree. Each step is named as in `FieldsV1`: `f:NAME` is a member of an object, `k:{..}` the element of a
//! list with these keys, `v:VALUE` the element of a set. A leaf is in the set. An inner node is in the set if its JSON
//! form has a `.` member.

use std::fmt::Write as _;

use crate::json::Value;

use crate::json::{Named, Object, Text, type_name};

/// A set of fields of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields {
    /// True if this node itself is in the set.
    pub(super) itself: bool,
    /// The subtrees by step. None of them is empty.
    pub(super) inner: Named<Fields>,
}

impl Fields {
    /// Creates a set of this node alone.
    pub(super) fn leaf() -> Self {
        Self { itself: true, inner: Named::new() }
    }

    /// Returns true if the set is empty.
    pub(super) fn is_empty(&self) -> bool {
        !self.itself && self.inner.is_empty()
    }

    /// Adds `fields` below `step`.
    pub(super) fn put(&mut self, step: impl Into<Text>, fields: Self) {
        let step = step.into();
        if fields.is_empty() {
            return;
        }
        match self.inner.get_mut(&step) {
            Some(present) => present.add(&fields),
            None => {
                self.inner.insert(step, fields);
            }
        }
    }

    /// Adds all fields of `other`.
    pub(super) fn add(&mut self, other: &Self) {
        self.itself |= other.itself;
        for (step, fields) in &other.inner {
            match self.inner.get_mut(step) {
                Some(present) => present.add(fields),
                None => {
                    self.inner.insert(step.clone(), fields.clone());
                }
            }
        }
    }

    /// Removes all fields of `other`.
    pub(super) fn subtract(&mut self, other: &Self) {
        self.itself &= !other.itself;
        if other.inner.is_empty() {
            return;
        }
        self.inner.retain(|step, fields| {
            if let Some(other) = other.inner.get(step) {
                fields.subtract(other);
            }
            !fields.is_empty()
        });
    }

    /// Returns the fields that are in both sets.
    #[must_use]
    pub(super) fn common(&self, other: &Self) -> Self {
        let mut common = Self { itself: self.itself && other.itself, inner: Named::new() };
        for (step, fields) in &self.inner {
            if let Some(other) = other.inner.get(step) {
                common.put(step.clone(), fields.common(other));
            }
        }
        common
    }

    /// Returns the leaves of this set that are leaves of the other set, too.
    #[must_use]
    pub(super) fn common_leaves(&self, other: &Self) -> Self {
        let is_leaf = |fields: &Self| fields.itself && fields.inner.is_empty();
        let mut common = Self { itself: is_leaf(self) && is_leaf(other), inner: Named::new() };
        for (step, fields) in &self.inner {
            if let Some(other) = other.inner.get(step) {
                common.put(step.clone(), fields.common_leaves(other));
            }
        }
        common
    }

    /// Returns the paths of all fields: `.spec.ports[port=80,protocol="TCP"].targetPort`.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths(&mut String::new(), &mut paths);
        paths
    }

    fn collect_paths(&self, path: &mut String, paths: &mut Vec<String>) {
        if self.itself {
            paths.push(path.clone());
        }
        for (step, fields) in &self.inner {
            let length = path.len();
            push_step(path, step);
            fields.collect_paths(path, paths);
            path.truncate(length);
        }
    }

    /// Decodes the JSON form.
    pub(super) fn decode(value: &Value) -> Result<Self, String> {
        let Value::Object(members) = value else {
            return Err(format!("a set of fields is an object, not of type {}", type_name(value)));
        };
        let mut fields = Self::default();
        for (step, value) in members {
            if step == "." {
                fields.itself = true;
                continue;
            }
            let mut inner = Self::decode(value)?;
            inner.itself |= inner.inner.is_empty();
            fields.put(normal_step(step)?, inner);
        }
        Ok(fields)
    }

    /// Encodes the set in its JSON form.
    pub(super) fn encode(self) -> Value {
        let place =
            (self.itself && !self.inner.is_empty()).then(|| (Text::from("."), Value::Object(Object::new())));
        let inner = self.inner.into_iter().map(|(step, fields)| (step, fields.encode()));
        Value::Object(place.into_iter().chain(inner).collect())
    }
}

/// Returns the step to member `name`.
pub(super) fn member_step(name: &str) -> Text {
    ["f:", name].into_iter().collect()
}

/// Returns a client's step as this server writes it.
fn normal_step(step: &str) -> Result<String, String> {
    let json = |text: &str| {
        serde_json::from_str::<Value>(text).map_err(|error| format!("\"{step}\" is not a field: {error}"))
    };
    match step.split_at_checked(2) {
        Some(("f:" | "i:", _)) => Ok(step.to_owned()),
        Some(("k:", keys)) => match json(keys)? {
            keys @ Value::Object(_) => Ok(format!("k:{keys}")),
            _ => Err(format!("\"{step}\" is not a field: k: is followed by an object")),
        },
        Some(("v:", value)) => Ok(format!("v:{}", json(value)?)),
        _ => Err(format!("\"{step}\" is not a field: it starts with none of f: k: v: i:")),
    }
}

fn push_step(path: &mut String, step: &str) {
    match step.split_at_checked(2) {
        Some(("k:", keys)) => {
            let keys: Object = serde_json::from_str(keys).unwrap_or_default();
            let mut separator = '[';
            for (name, value) in keys {
                // Writing to a String cannot fail.
                let _ = write!(path, "{separator}{name}={value}");
                separator = ',';
            }
            path.push(']');
        }
        Some(("v:", value)) => path.extend(["[=", value, "]"]),
        Some(("i:", index)) => path.extend(["[", index, "]"]),
        Some((_, name)) => path.extend([".", name]),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::json::json;
    use proptest::prelude::*;

    use super::*;

    fn decoded(value: &Value) -> Fields {
        Fields::decode(value).unwrap()
    }

    #[test]
    fn the_json_form_is_that_of_upstream() {
        let value = json!({
            "f:metadata": {"f:finalizers": {".": {}, "v:\"a\"": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}}}, "f:type": {}},
        });
        let fields = decoded(&value);
        assert_eq!(
            fields.paths(),
            [
                ".metadata.finalizers",
                ".metadata.finalizers[=\"a\"]",
                ".spec.ports[port=80,protocol=\"TCP\"]",
                ".spec.ports[port=80,protocol=\"TCP\"].port",
                ".spec.type",
            ]
        );
        assert_eq!(fields.encode(), value);
        let spaced = decoded(&json!({"k:{ \"protocol\":\"TCP\", \"port\": 80}": {}}));
        assert_eq!(spaced.encode(), json!({"k:{\"port\":80,\"protocol\":\"TCP\"}": {}}));
        for bad in [json!([]), json!({"f:a": 1}), json!({"a": {}}), json!({"k:[]": {}}), json!({"v:": {}})] {
            assert!(Fields::decode(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_field_and_its_members_are_distinct() {
        let mut fields = decoded(&json!({"f:a": {".": {}, "f:b": {}}}));
        fields.subtract(&decoded(&json!({"f:a": {}})));
        assert_eq!(fields, decoded(&json!({"f:a": {"f:b": {}}})));
        fields.subtract(&decoded(&json!({"f:a": {"f:b": {}}})));
        assert!(fields.is_empty() && fields.inner.is_empty());
    }

    #[test]
    fn common_leaves_have_no_members_in_either_set() {
        let one = decoded(&json!({"f:a": {}, "f:b": {".": {}, "f:c": {}}, "f:d": {"f:e": {}}, "f:f": {}}));
        let other = decoded(&json!({"f:a": {}, "f:b": {}, "f:d": {"f:e": {}}}));
        assert_eq!(one.common_leaves(&other).paths(), [".a", ".d.e"]);
    }

    fn sets() -> impl Strategy<Value = Fields> {
        let leaf = any::<bool>().prop_map(|itself| Fields { itself, inner: Named::new() });
        leaf.prop_recursive(3, 12, 3, |inner| {
            (any::<bool>(), proptest::collection::btree_map("f:[a-c]", inner, 0..3)).prop_map(
                |(itself, inner)| {
                    let mut fields = Fields { itself, inner: Named::new() };
                    for (step, inner) in inner {
                        fields.put(step, inner);
                    }
                    fields
                },
            )
        })
    }

    proptest! {
        #[test]
        fn set_operations_are_those_of_sets_of_paths(left in sets(), right in sets()) {
            let paths = |fields: &Fields| fields.paths().into_iter().collect::<std::collections::BTreeSet<_>>();
            let (mut sum, mut rest) = (left.clone(), left.clone());
            sum.add(&right);
            rest.subtract(&right);
            prop_assert_eq!(paths(&sum), &paths(&left) | &paths(&right));
            prop_assert_eq!(paths(&rest), &paths(&left) - &paths(&right));
            prop_assert_eq!(paths(&left.common(&right)), &paths(&left) & &paths(&right));
            // The root itself has no JSON form.
            let mut rooted = Fields::default();
            rooted.put("f:x".to_owned(), left);
            prop_assert_eq!(Fields::decode(&rooted.clone().encode()).unwrap(), rooted);
        }
    }
}
