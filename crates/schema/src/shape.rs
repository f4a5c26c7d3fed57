//! The fields of each kind: their types, encodings and merge rules.
//!
//! Owns the types of the tables and the tables themselves. The tables are the only source for everything that needs to
//! know fields: the check of an object's types ([`conform`]), protobuf, the OpenAPI documents, strategic merge patch and
//! server-side apply. This module does not know which values of a field are valid; that is the server's `kinds`.

mod conform;
pub mod meta;
pub mod quantity;
mod tables;
pub mod timestamp;

use crate::{json::Value, resource::Resource};

pub use conform::{
    FieldValidation, ShapeError, conform, conform_configuration, conform_metadata, drop_absent,
};

/// An object type of the API: one table of fields.
#[derive(Debug)]
pub struct Struct {
    /// Full name as in upstream's OpenAPI documents, such as `io.k8s.api.core.v1.ServiceSpec`.
    pub name: &'static str,
    /// Description in the OpenAPI documents.
    pub doc: &'static str,
    /// Every field, in the order in which documentation lists them.
    pub fields: &'static [Field],
    /// True if server-side apply owns the object as a whole (`x-kubernetes-map-type: atomic`), wherever it is used.
    pub atomic: bool,
}

/// One field of a [`Struct`].
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Number in protobuf; 0 if the field is not part of the protobuf message (`apiVersion`, `kind`).
    pub tag: u32,
    /// Type of the value.
    pub kind: Type,
    /// How the field merges with a new value.
    pub merge: Merge,
    /// How typed clients distinguish an absent value from a zero value.
    pub presence: Presence,
    /// True if the OpenAPI documents list the field as required.
    pub required: bool,
    /// Default value in the OpenAPI documents; server-side apply uses it for list keys that are left out. `None` if the
    /// default depends on other fields.
    pub default: Option<&'static str>,
    /// The values that the OpenAPI documents list (`enum`), in alphabetical order; empty if any value is possible. For a
    /// list these are the values of its elements.
    pub values: &'static [&'static str],
    /// Description in the OpenAPI documents.
    pub doc: &'static str,
}

/// Type of a value.
#[derive(Debug, Clone, Copy)]
pub enum Type {
    /// A string.
    Text,
    /// A boolean.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// An int32 or a text (`targetPort`).
    IntOrText,
    /// RFC 3339 in whole seconds.
    Time,
    /// RFC 3339 with six digits of fraction.
    MicroTime,
    /// A quantity such as `100m` or `4Gi`. A number is converted to its text.
    Quantity,
    /// Any JSON, kept unchanged (`RawExtension`).
    Json,
    /// The set of fields that a manager owns, as a JSON object (`FieldsV1`).
    FieldsV1,
    /// A list of values of one type.
    List(&'static Type),
    /// A map from any names to values of one type.
    Map(&'static Type),
    /// An object with the fields of this table.
    Object(&'static Struct),
}

/// How a field merges with a new value. Scalars are always replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// No marker: objects and maps merge member by member; lists are replaced, and owned as a whole.
    Default,
    /// `x-kubernetes-list-type` or `x-kubernetes-map-type: atomic`: server-side apply replaces the whole value. A
    /// strategic merge patch replaces a list, and merges a map or object as with [`Merge::Default`].
    Atomic,
    /// `x-kubernetes-list-type: set`: a list of distinct scalars, each with owners of its own.
    Set {
        /// True if a strategic merge patch adds to the list (`patchStrategy: merge`); false if it replaces the list.
        patch_merges: bool,
    },
    /// `x-kubernetes-list-type: map`: a list of objects that are identified by key fields.
    Keyed {
        /// The fields that identify elements in server-side apply (`x-kubernetes-list-map-keys`).
        keys: &'static [&'static str],
        /// The field that identifies elements in a strategic merge patch (`x-kubernetes-patch-merge-key` with
        /// `patchStrategy: merge`); `None` if such a patch replaces the list.
        patch_key: Option<&'static str>,
    },
}

/// How upstream's typed clients hold a field. This decides the meaning of its zero value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A plain value: zero, empty and absent are the same, and JSON leaves the field out.
    Value,
    /// A plain value that JSON always contains, also if it is zero.
    Always,
    /// A pointer: an explicit zero differs from absence.
    Pointer,
}

impl Type {
    /// Returns a description of the type, for messages.
    pub(crate) const fn description(&self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Bool => "a boolean",
            Self::Int32 => "a 32-bit integer",
            Self::Int64 => "a 64-bit integer",
            Self::IntOrText => "a 32-bit integer or a string",
            Self::Time | Self::MicroTime => "an RFC 3339 time",
            Self::Quantity => "a quantity such as 100m or 4Gi",
            Self::Json => "a value",
            Self::List(_) => "a list",
            Self::Map(_) | Self::Object(_) | Self::FieldsV1 => "an object",
        }
    }
}

/// Creates a table row: an optional field whose zero value means absent.
pub(crate) const fn field(name: &'static str, tag: u32, kind: Type) -> Field {
    let (merge, presence) = (Merge::Default, Presence::Value);
    Field { name, tag, kind, merge, presence, required: false, default: None, values: &[], doc: "" }
}

/// Creates a table.
pub(crate) const fn structure(name: &'static str, doc: &'static str, fields: &'static [Field]) -> Struct {
    Struct { name, doc, fields, atomic: false }
}

impl Struct {
    /// Returns the field with this JSON name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns the field with this protobuf number.
    pub fn tagged(&self, tag: u32) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.tag == tag && tag != 0)
    }

    pub(crate) const fn atomic(mut self) -> Self {
        self.atomic = true;
        self
    }
}

impl Field {
    /// Returns true if the value means that the field is absent: it is the zero value of a field that is not held by
    /// pointer. Objects never are: upstream's plain structs are always present.
    pub(crate) fn is_absent(&self, value: &Value) -> bool {
        self.presence == Presence::Value
            && match (self.kind, value) {
                (Type::Text, Value::String(text)) => text.is_empty(),
                (Type::Bool, Value::Bool(truth)) => !truth,
                (Type::Int32 | Type::Int64, Value::Number(number)) => number.as_i64() == Some(0),
                (Type::List(_), Value::Array(values)) => values.is_empty(),
                (Type::Map(_), Value::Object(members)) => members.is_empty(),
                _ => false,
            }
    }

    /// Sets the description.
    pub(crate) const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Marks the field as held by pointer.
    pub(crate) const fn pointer(mut self) -> Self {
        self.presence = Presence::Pointer;
        self
    }

    /// Marks the field as always present in JSON.
    pub(crate) const fn always(mut self) -> Self {
        self.presence = Presence::Always;
        self
    }

    /// Marks the field as required in the OpenAPI documents and always present in JSON.
    pub(crate) const fn required(mut self) -> Self {
        self.required = true;
        self.always()
    }

    /// Sets the default in the OpenAPI documents.
    pub(crate) const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    /// Sets the values that the OpenAPI documents list, in alphabetical order.
    pub(crate) const fn one_of(mut self, values: &'static [&'static str]) -> Self {
        self.values = values;
        self
    }

    pub(crate) const fn merge(mut self, merge: Merge) -> Self {
        self.merge = merge;
        self
    }

    pub(crate) const fn atomic(self) -> Self {
        self.merge(Merge::Atomic)
    }

    pub(crate) const fn set(self) -> Self {
        self.merge(Merge::Set { patch_merges: false })
    }

    /// Marks the field as a set to which strategic merge patches add.
    pub(crate) const fn merged_set(self) -> Self {
        self.merge(Merge::Set { patch_merges: true })
    }

    /// Marks the field as a list with these keys. The first one is also the key of strategic merge patches.
    pub(crate) const fn keyed(self, keys: &'static [&'static str]) -> Self {
        let patch_key = keys.first().copied();
        self.merge(Merge::Keyed { keys, patch_key })
    }
}

/// Returns the table of the resource's objects.
pub const fn of(resource: Resource) -> &'static Struct {
    tables::of(resource)
}

/// Returns the table of a list of the resource's objects.
pub const fn list_of(resource: Resource) -> &'static Struct {
    tables::list_of(resource)
}
