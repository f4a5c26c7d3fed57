//! What a change makes of an object: replaced, patched or applied to.

use portolan_schema::patch::{Apply, Patch, PatchError};

use super::{
    Part, WriteOptions,
    kept::Kept,
    ownership::{self, Owners},
};
use crate::{
    error::{ApiError, FieldError},
    json::{self, Object},
    metadata,
    resource::Resource,
};

/// New content of an object.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    /// PUT: the whole object.
    Replace(Kept),
    /// PATCH: a part of it.
    Patch(Patch),
    /// PATCH with `application/apply-patch+yaml`: what one manager wants of it.
    Apply(Apply),
}

impl Change {
    /// The object after the change, and who is to own its fields.
    pub(super) fn onto(
        self,
        resource: Resource,
        part: Part,
        old: &Object,
        options: WriteOptions,
    ) -> Result<(Object, Owners), ApiError> {
        let mut new = match self {
            Self::Replace(object) => object.object()?,
            Self::Patch(patch) => patch.apply(resource, old)?,
            Self::Apply(apply) => return applied(&apply, part, Some(old), options),
        };
        let owners = Owners::of_update(part, &mut new, options);
        Ok((new, owners))
    }

    /// The uid that a patch asks the object to have.
    pub(super) fn asked_uid(&self) -> Option<&str> {
        match self {
            Self::Patch(Patch::Merge(patch) | Patch::Strategic(patch)) => {
                json::text(json::object(patch, "metadata")?, "uid")
            }
            _ => None,
        }
    }

    /// Whether what it leaves may be no object of the kind at all.
    pub(super) fn is_patch(&self) -> bool {
        matches!(self, Self::Patch(_))
    }
}

/// The object after a server-side apply, and who is to own its fields; without `live` a new one.
pub(super) fn applied(
    apply: &Apply,
    part: Part,
    live: Option<&Object>,
    options: WriteOptions,
) -> Result<(Object, Owners), ApiError> {
    let now = metadata::now();
    let writer = ownership::writer(&options.field_manager, ownership::subresource(part), &now);
    let mut new = apply.onto(live, writer)?;
    let owners = Owners::of_apply(part, &mut new, options);
    Ok((new, owners))
}

/// The error of a patch whose result is refused for its shape.
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
