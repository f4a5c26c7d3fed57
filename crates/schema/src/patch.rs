//! Patches: an object and a patch go in, the patched object or a precise error comes out.
//!
//! Owns JSON patch, JSON merge patch, strategic merge patch and server-side apply, and the record of the owner of each
//! field (`managedFields`). It knows fields only from the tables of [`crate::shape`], and no kind by name. It must not
//! know of clocks (the caller passes the time), stores or HTTP, nor which values of a field are valid.

mod apply;
mod fields;
mod json_patch;
pub mod managed;
mod merge;
mod node;
mod ownership;
mod strategic;

use crate::json::Value;
use thiserror::Error;

use crate::{
    json::{Object, type_name},
    resource::Resource,
    shape::ShapeError,
};

pub use apply::Apply;
pub use fields::Fields;
pub use json_patch::{JsonPatch, MAX_OPERATIONS};
pub use managed::Writer;
pub use merge::merge;
pub use strategic::merge as merge_strategic;

/// A decoded patch.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// `application/json-patch+json` (RFC 6902).
    Json(JsonPatch),
    /// `application/merge-patch+json` (RFC 7386).
    Merge(Object),
    /// `application/strategic-merge-patch+json`.
    Strategic(Object),
}

/// The reason for which a patch is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatchError {
    /// The document is not a patch; it fits no object.
    #[error("{0}")]
    Malformed(String),
    /// The patch exceeds the limits of one request.
    #[error("{0}")]
    TooLarge(String),
    /// The patch does not fit this object.
    #[error("{0}")]
    Failed(String),
    /// A field of the patch or of the result has the wrong type.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Other managers own fields that the patch would change. Holds at least one conflict.
    #[error("{}", apply::conflict_message(.0))]
    Conflicts(Vec<Conflict>),
}

/// A field that another manager owns and that a server-side apply would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner, as messages name it: `"kubectl" using v1`.
    pub owner: String,
    /// Path of the field: `.spec.ports[port=80,protocol="TCP"].targetPort`.
    pub field: String,
}

/// Maximum bytes of a message. It quotes clients' input, which may be as long as a request.
const MAX_MESSAGE: usize = 1000;

impl PatchError {
    fn malformed(message: impl Into<String>) -> Self {
        Self::Malformed(shortened(message.into()))
    }

    fn too_large(message: impl Into<String>) -> Self {
        Self::TooLarge(shortened(message.into()))
    }

    fn failed(message: impl Into<String>) -> Self {
        Self::Failed(shortened(message.into()))
    }
}

/// Replaces a value by a copy of another. The old one is freed first: both may be large.
fn replace(old: &mut Value, new: &Value) {
    *old = Value::Null;
    old.clone_from(new);
}

fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
        message.truncate(end);
        message.push_str("...");
    }
    message
}

impl Patch {
    /// Returns the patched object. It may have unknown fields and values of wrong types.
    pub fn apply(&self, resource: Resource, object: &Object) -> Result<Object, PatchError> {
        let mut object = object.clone();
        match self {
            Self::Json(patch) => match patch.apply(Value::Object(object))? {
                Value::Object(object) => return Ok(object),
                other => {
                    let got = type_name(&other);
                    return Err(PatchError::failed(format!(
                        "the JSON patch leaves a value of type {got} instead of an object"
                    )));
                }
            },
            Self::Merge(patch) => merge(&mut object, patch),
            Self::Strategic(patch) => merge_strategic(resource, &mut object, patch)?,
        }
        Ok(object)
    }
}
