//! The fields that an object has, and the fields that differ between two objects.

use std::collections::BTreeMap;

use crate::json::{Text, Value};

use super::{
    PatchError,
    fields::{Fields, member_step},
    node::{Form, Node},
};
use crate::{json::Object, resource::Resource};

/// The part of an object whose fields a write to one endpoint may own.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) resource: Resource,
    /// The subresource; empty for the main endpoint.
    pub(super) subresource: &'a str,
}

/// The fields that differ between two objects.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Difference {
    /// Fields that are new or have another value.
    pub(super) changed: Fields,
    /// Fields that the new object does not have.
    pub(super) removed: Fields,
}

impl Difference {
    pub(super) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }

    fn put(&mut self, step: &str, inner: Self) {
        self.changed.put(step.to_owned(), inner.changed);
        self.removed.put(step.to_owned(), inner.removed);
    }
}

/// Maximum fields of an object whose owners are recorded. Such a record takes 2 MiB while it is computed.
const MOST_FIELDS: usize = 16 << 10;

impl Scope<'_> {
    /// Returns true if the owners of the object's fields are recorded; false if it has too many fields.
    pub(super) fn records(self, object: &Object) -> bool {
        let root = Node::root(self.resource);
        let counts = object.iter().filter(|(name, _)| self.tracks(name));
        counts.map(|(name, value)| root.member(name).count(value)).sum::<usize>() <= MOST_FIELDS
    }

    /// Returns an error if the owners of the object's fields are not recorded.
    pub(super) fn check(self, object: &Object) -> Result<(), PatchError> {
        let refused = || {
            PatchError::too_large(format!(
                "the object has more than {MOST_FIELDS} fields that are owned each"
            ))
        };
        if self.records(object) { Ok(()) } else { Err(refused()) }
    }

    /// Returns the fields that a configuration names.
    pub(super) fn named(self, object: &Object) -> Fields {
        let mut fields = Fields::default();
        for (name, value) in object.iter().filter(|(name, _)| self.tracks(name)) {
            let node = Node::root(self.resource).member(name);
            let inner = match value {
                Value::Object(metadata) if name == "metadata" => {
                    let mut inner = Fields::default();
                    for (name, value) in metadata.iter().filter(|(name, _)| tracks_metadata(name)) {
                        inner.put(member_step(name), all(node.member(name), value, false));
                    }
                    inner
                }
                value => all(node, value, false),
            };
            fields.put(member_step(name), inner);
        }
        fields
    }

    /// Compares two objects. The fields `metadata`, `spec` and `status` themselves count as present in both.
    pub(super) fn compare(self, old: &Object, new: &Object) -> Difference {
        let root = Node::root(self.resource);
        let nothing = Value::Object(Object::new());
        let mut difference = Difference::default();
        for name in names(old, new).filter(|name| self.tracks(name)) {
            let node = root.member(name);
            let (mut old, mut new) = (old.get(name), new.get(name));
            if node.is_object() {
                (old, new) = (old.or(Some(&nothing)), new.or(Some(&nothing)));
            }
            let inner = match (old, new) {
                (Some(Value::Object(old)), Some(Value::Object(new))) if name == "metadata" => {
                    compare_members(node, old, new, tracks_metadata)
                }
                (old, new) => compare(node, old, new),
            };
            difference.put(&member_step(name), inner);
        }
        difference
    }

    /// Returns true if a top-level field can have owners. Fields that identify the object or that only the server writes have
    /// none.
    pub(super) fn tracks(self, name: &str) -> bool {
        match (self.subresource, name) {
            (_, "apiVersion" | "kind") => false,
            ("status", "metadata") => self.resource.info().status_writes_metadata,
            ("status", name) => name == "status",
            ("finalize", name) => matches!(name, "spec" | "metadata"),
            (_, "status") => !self.resource.info().has_status,
            _ => true,
        }
    }
}

/// Returns true if a field of `metadata` can have owners (upstream's `stripMeta`).
pub(super) fn tracks_metadata(name: &str) -> bool {
    let untracked = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    !untracked.contains(&name)
}

/// Returns every field of a value. Objects and lists themselves are fields if they are empty or `places` is true;
/// elements of lists always are.
fn all(node: Node, value: &Value, places: bool) -> Fields {
    let mut fields = Fields::default();
    match node.form(value) {
        Form::Whole => fields.itself = true,
        Form::Members(members) => {
            fields.itself = places || members.is_empty();
            for (name, value) in members {
                fields.put(member_step(name), all(node.member(name), value, places));
            }
        }
        Form::Elements(elements) => {
            fields.itself = places || elements.is_empty();
            for (step, value) in elements {
                let mut inner = all(node.element(), value, places);
                inner.itself = true;
                fields.put(step, inner);
            }
        }
    }
    fields
}

fn compare(node: Node, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let (old, new) = match (old, new) {
        (Some(old), Some(new)) => (old, new),
        (None, Some(new)) => return Difference { changed: all(node, new, true), ..Difference::default() },
        (Some(old), None) => return Difference { removed: all(node, old, true), ..Difference::default() },
        (None, None) => return Difference::default(),
    };
    match (node.form(old), node.form(new)) {
        (Form::Members(old), Form::Members(new)) => compare_members(node, old, new, |_| true),
        (Form::Elements(old), Form::Elements(new)) => compare_elements(node, &old, &new),
        _ if old == new => Difference::default(),
        _ => {
            let (changed, mut removed) = (all(node, new, true), all(node, old, true));
            removed.subtract(&changed);
            Difference { changed, removed }
        }
    }
}

fn compare_members(node: Node, old: &Object, new: &Object, tracks: fn(&str) -> bool) -> Difference {
    let mut difference = Difference::default();
    for name in names(old, new).filter(|name| tracks(name)) {
        let inner = compare(node.member(name), old.get(name), new.get(name));
        if !inner.is_empty() {
            difference.put(&member_step(name), inner);
        }
    }
    difference
}

fn compare_elements(node: Node, old: &[(String, &Value)], new: &[(String, &Value)]) -> Difference {
    let mut groups: BTreeMap<&str, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for (step, value) in old {
        groups.entry(step).or_default().0.push(value);
    }
    for (step, value) in new {
        groups.entry(step).or_default().1.push(value);
    }
    let mut difference = Difference::default();
    for (step, (old, new)) in groups {
        let inner = match (old.as_slice(), new.as_slice()) {
            ([old], [new]) => compare(node.element(), Some(old), Some(new)),
            (old, new) if old == new => Difference::default(),
            // Elements with the same keys cannot be distinguished: they change together.
            (old, []) => Difference { removed: all_of(node, old), ..Difference::default() },
            (_, new) => Difference { changed: all_of(node, new), ..Difference::default() },
        };
        difference.put(step, inner);
    }
    difference
}

fn all_of(list: Node, elements: &[&Value]) -> Fields {
    let mut fields = Fields::leaf();
    for element in elements {
        fields.add(&all(list.element(), element, true));
    }
    fields
}

/// Returns the names of the members of either object.
fn names<'a>(old: &'a Object, new: &'a Object) -> impl Iterator<Item = &'a str> {
    let gone = old.keys().filter(|name| !new.contains_key(name));
    new.keys().chain(gone).map(Text::as_str)
}
