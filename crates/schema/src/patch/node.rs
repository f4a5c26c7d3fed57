//! What the tables of fields say about a value: its type, and which parts of it have owners of their own.

use std::fmt::Write as _;

use crate::json::Value;

use crate::{
    json::Object,
    resource::Resource,
    shape::{self, Merge, Struct, Type},
};

/// The entry of the tables for a value. It is unknown below unknown fields and free JSON.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    kind: Option<Type>,
    pub(super) merge: Merge,
}

/// The parts of a value that have owners of their own.
pub(super) enum Form<'a> {
    /// The value as a whole.
    Whole,
    /// Each member.
    Members(&'a Object),
    /// Each element, identified by the step to it.
    Elements(Vec<(String, &'a Value)>),
}

impl Node {
    const UNKNOWN: Self = Self { kind: None, merge: Merge::Default };

    /// Returns the node of a whole object.
    pub(super) fn root(resource: Resource) -> Self {
        Self { kind: Some(Type::Object(shape::of(resource))), merge: Merge::Default }
    }

    /// Returns the node of the member `name`.
    pub(super) fn member(self, name: &str) -> Self {
        match self.kind {
            Some(Type::Object(table)) => table
                .field(name)
                .map_or(Self::UNKNOWN, |field| Self { kind: Some(field.kind), merge: field.merge }),
            Some(Type::Map(value)) => Self { kind: Some(*value), merge: Merge::Default },
            _ => Self::UNKNOWN,
        }
    }

    /// Returns the node of the elements.
    pub(super) fn element(self) -> Self {
        match self.kind {
            Some(Type::List(element)) => Self { kind: Some(*element), merge: Merge::Default },
            _ => Self::UNKNOWN,
        }
    }

    /// Returns the parts of `value` that have owners of their own. A value that does not have the type in the tables is
    /// owned as a whole.
    pub(super) fn form(self, value: &Value) -> Form<'_> {
        let granular = self.is_granular();
        match value {
            Value::Object(members) if granular => Form::Members(members),
            Value::Array(elements) if granular => {
                let steps = elements.iter().map(|element| Some((self.step(element)?, element)));
                steps.collect::<Option<_>>().map_or(Form::Whole, Form::Elements)
            }
            _ => Form::Whole,
        }
    }

    /// Returns true if each member or element of this value has owners of its own.
    fn is_granular(self) -> bool {
        match self.kind {
            Some(Type::Object(table)) => !table.atomic && self.merge != Merge::Atomic,
            Some(Type::Map(_)) => self.merge != Merge::Atomic,
            Some(Type::List(_)) => matches!(self.merge, Merge::Keyed { .. } | Merge::Set { .. }),
            _ => false,
        }
    }

    /// Returns the number of members and elements of `value`, at any depth, that have owners of their own.
    pub(super) fn count(self, value: &Value) -> usize {
        match value {
            Value::Object(members) if self.is_granular() => {
                members.iter().map(|(name, value)| 1 + self.member(name).count(value)).sum()
            }
            Value::Array(elements) if self.is_granular() => {
                elements.iter().map(|value| 1 + self.element().count(value)).sum()
            }
            _ => 0,
        }
    }

    /// Returns the step from this list to `element`; `None` if the element has none of the keys.
    pub(super) fn step(self, element: &Value) -> Option<String> {
        match (self.merge, element) {
            (Merge::Set { .. }, Value::Object(_) | Value::Array(_)) => None,
            (Merge::Set { .. }, value) => Some(format!("v:{value}")),
            (Merge::Keyed { keys, .. }, Value::Object(members)) => {
                keyed_step(self.element().table()?, keys, members)
            }
            _ => None,
        }
    }

    /// Returns the fields that identify the elements of this list, if they are objects.
    pub(super) fn keys(self) -> Option<&'static [&'static str]> {
        match self.merge {
            Merge::Keyed { keys, .. } => Some(keys),
            _ => None,
        }
    }

    /// Returns true if this value has a fixed set of fields.
    pub(super) fn is_object(self) -> bool {
        self.table().is_some()
    }

    /// Returns the table of this value's fields, if it has a fixed set of them.
    fn table(self) -> Option<&'static Struct> {
        match self.kind {
            Some(Type::Object(table)) => Some(table),
            _ => None,
        }
    }
}

/// Returns the step to an element with these keys; `None` if it has none of them. A key that is left out has its
/// default, so that all managers refer to the same element. The JSON is written without an encoder, because every write
/// needs it.
fn keyed_step(table: &Struct, keys: &[&str], element: &Object) -> Option<String> {
    let mut present = false;
    let mut step = String::with_capacity(40);
    step.push_str("k:{");
    let mut written = "";
    // In the order of the key names, as the JSON encoder writes them.
    while let Some(key) = keys.iter().copied().filter(|key| *key > written).min() {
        written = key;
        let value = element.get(key).filter(|value| !value.is_null());
        let default = table.field(key).and_then(|field| field.default);
        if value.is_none() && default.is_none() {
            continue;
        }
        if !step.ends_with('{') {
            step.push(',');
        }
        step.extend(["\"", key, "\":"]);
        // Writing to a String cannot fail.
        let _ = match (value, default) {
            (Some(value), _) => write!(step, "{value}"),
            (None, default) => write!(step, "\"{}\"", default.unwrap_or_default()),
        };
        present |= value.is_some();
    }
    step.push('}');
    present.then_some(step)
}
