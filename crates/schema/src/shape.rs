//! The shape of each kind: which fields there are, of what type, how each is encoded and how it merges.
//!
//! Owns the types of the tables and the tables themselves. One table is the source for everything that needs to know
//! fields: the check of an object's types ([`conform`]), protobuf, the OpenAPI documents, strategic merge patch,
//! server-side apply. Which values make sense is not known here; that is the server's `kinds`.

mod conform;
pub mod meta;
mod tables;
pub mod timestamp;

use crate::resource::Resource;

pub use conform::{FieldValidation, ShapeError, conform, conform_metadata};

/// An object type of the API: one table of fields.
#[derive(Debug)]
pub struct Struct {
    /// Full name as in upstream's OpenAPI documents, such as `io.k8s.api.core.v1.ServiceSpec`.
    pub name: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// Every field, in the order in which documentation lists them.
    pub fields: &'static [Field],
    /// Whether server-side apply owns it as a whole (`x-kubernetes-map-type: atomic`), wherever it is used.
    pub atomic: bool,
}

/// One field of a [`Struct`].
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Number in protobuf; 0 where the field is not part of the protobuf message (`apiVersion`, `kind`).
    pub tag: u32,
    /// Type of the value.
    pub kind: Type,
    /// How two writers' values come together.
    pub merge: Merge,
    /// What an absent and a zero value mean to typed clients.
    pub presence: Presence,
    /// Whether the OpenAPI documents list it as required.
    pub required: bool,
    /// Value that the OpenAPI documents name as the default; server-side apply uses it for keys that are left out.
    pub default: Option<&'static str>,
    /// What it means.
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
    /// An amount such as `100m` or `4Gi`; a number is taken as its text.
    Quantity,
    /// Any JSON, kept as it is (`RawExtension`).
    Json,
    /// The set of fields that a manager owns, as a JSON object (`FieldsV1`).
    FieldsV1,
    /// Values of one type.
    List(&'static Type),
    /// Any names, values of one type.
    Map(&'static Type),
    /// The fields of this table only.
    Object(&'static Struct),
}

/// How a field takes a new value. Scalars are always replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// No marker: objects and maps merge member by member; lists are replaced, and owned as a whole.
    Default,
    /// `x-kubernetes-list-type` or `x-kubernetes-map-type: atomic`: server-side apply replaces the whole value. A
    /// strategic merge patch replaces a list, and merges a map or object as if there was no marker.
    Atomic,
    /// `x-kubernetes-list-type: set`: a list of distinct scalars, each owned alone.
    Set {
        /// Whether a strategic merge patch adds to the list (`patchStrategy: merge`) or replaces it.
        patch_merges: bool,
    },
    /// `x-kubernetes-list-type: map`: a list of objects, told apart by some of their fields.
    Keyed {
        /// The fields that tell elements apart for server-side apply (`x-kubernetes-list-map-keys`).
        keys: &'static [&'static str],
        /// The field that does for a strategic merge patch (`x-kubernetes-patch-merge-key` with `patchStrategy:
        /// merge`); `None` where such a patch replaces the list.
        patch_key: Option<&'static str>,
    },
}

/// How upstream's typed clients hold a field, which decides what its zero value means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// A plain value: zero, empty and absent are the same, and JSON leaves it out.
    Value,
    /// A plain value that JSON always holds, zero or not.
    Always,
    /// A pointer: a zero that was set differs from absence.
    Pointer,
}

impl Type {
    /// What belongs in such a field, for messages.
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

/// A table row: an optional field whose zero value reads as absent.
pub(crate) const fn field(name: &'static str, tag: u32, kind: Type) -> Field {
    let (merge, presence) = (Merge::Default, Presence::Value);
    Field { name, tag, kind, merge, presence, required: false, default: None, doc: "" }
}

/// A table.
pub(crate) const fn structure(name: &'static str, doc: &'static str, fields: &'static [Field]) -> Struct {
    Struct { name, doc, fields, atomic: false }
}

impl Struct {
    /// The field with this JSON name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The field with this protobuf number.
    pub fn tagged(&self, tag: u32) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.tag == tag && tag != 0)
    }

    pub(crate) const fn atomic(mut self) -> Self {
        self.atomic = true;
        self
    }
}

impl Field {
    /// With this description.
    pub(crate) const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Held by pointer.
    pub(crate) const fn pointer(mut self) -> Self {
        self.presence = Presence::Pointer;
        self
    }

    /// In JSON even when zero.
    pub(crate) const fn always(mut self) -> Self {
        self.presence = Presence::Always;
        self
    }

    /// Required by the OpenAPI documents, and in JSON even when zero.
    pub(crate) const fn required(mut self) -> Self {
        self.required = true;
        self.always()
    }

    /// With this default in the OpenAPI documents.
    pub(crate) const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
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

    /// A set to which strategic merge patches add.
    pub(crate) const fn merged_set(self) -> Self {
        self.merge(Merge::Set { patch_merges: true })
    }

    /// A list with these keys; the first one is also that of strategic merge patches.
    pub(crate) const fn keyed(self, keys: &'static [&'static str]) -> Self {
        let patch_key = keys.first().copied();
        self.merge(Merge::Keyed { keys, patch_key })
    }
}

/// The fields of the resource's objects.
pub const fn of(resource: Resource) -> &'static Struct {
    tables::of(resource)
}

/// The fields of a list of the resource's objects.
pub const fn list_of(resource: Resource) -> &'static Struct {
    tables::list_of(resource)
}
