//! Computes the new object of a change: a replacement, a patch or a server-side apply.

use portolan_schema::{
    Resource,
    json::{self, Object},
    patch::{Apply, Patch, PatchError},
};

use super::{
    Part, WriteOptions,
    kept::Kept,
    ownership::{self, Owners},
};
use crate::{
    error::{ApiError, FieldError},
    metadata,
};

/// A change of an object.
#[derive(Debug, Clone)]
pub enum Change {
    /// PUT: the whole new object.
    Replace(Kept),
    /// PATCH: a part of it.
    Patch(Patch),
    /// PATCH with `application/apply-patch+yaml`: the fields that one manager wants.
    Apply(Apply),
}

impl Change {
    /// Returns the object after the change, and the owners of its fields. `keep` is that of [`Apply::onto_keeping`].
    pub(super) fn onto(
        &self,
        resource: Resource,
        part: Part,
        old: &Object,
        options: WriteOptions,
        keep: impl FnOnce(&mut Object, &Object),
    ) -> Result<(Object, Owners), ApiError> {
        let mut new = match self {
            Self::Replace(object) => object.object()?,
            Self::Patch(patch) => patch.apply(resource, old)?,
            Self::Apply(apply) => return applied(apply, part, Some(old), options, keep),
        };
        let owners = if options.keeps_owners {
            Owners::kept(old, &mut new)
        } else {
            Owners::of_update(part, &mut new, options)
        };
        Ok((new, owners))
    }

    /// Returns the uid that a patch requires, if it names one.
    pub(super) fn asked_uid(&self) -> Option<&str> {
        match self {
            Self::Patch(Patch::Merge(patch) | Patch::Strategic(patch)) => {
                json::text(json::object(patch, "metadata")?, "uid")
            }
            _ => None,
        }
    }

    /// Returns true if this is a patch, whose result may not have the shape of the kind.
    pub(super) fn is_patch(&self) -> bool {
        matches!(self, Self::Patch(_))
    }
}

/// Returns the object after a server-side apply, and the owners of its fields. Without `live` a new object is
/// created.
pub(super) fn applied(
    apply: &Apply,
    part: Part,
    live: Option<&Object>,
    options: WriteOptions,
    keep: impl FnOnce(&mut Object, &Object),
) -> Result<(Object, Owners), ApiError> {
    let now = metadata::now();
    let writer = ownership::writer(&options.field_manager, ownership::subresource(part), &now);
    let mut new = apply.onto_keeping(live, writer, keep)?;
    let owners = Owners::of_apply(part, &mut new, options);
    Ok((new, owners))
}

/// Returns the error for a patch whose result has the wrong shape.
pub(super) fn bad_result(resource: Resource, name: &str, error: ApiError) -> ApiError {
    match error {
        ApiError::WrongType { .. } => {
            let errors = vec![FieldError::invalid("patch", "(the patched object)", &error.to_string())];
            ApiError::invalid(resource, name, errors)
        }
        other => other,
    }
}

impl From<PatchError> for ApiError {
    fn from(error: PatchError) -> Self {
        match error {
            PatchError::Shape(error) => error.into(),
            error => Self::Patch(error),
        }
    }
}
