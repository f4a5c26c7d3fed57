//! Converts the allocator's refusals to errors of the API.

use portolan_ipam::{FieldError as Refused, Refusal};
use portolan_schema::{Resource, json::Value};

use crate::error::{ApiError, FieldError};

/// Returns the error for a plan's refusals, together with the errors that validation found. As upstream, an exhausted
/// pool and any failure to allocate a health-check node port is an internal error: from the code, clients decide
/// whether a retry may help.
pub(crate) fn refused(name: &str, refused: &[Refused], mut others: Vec<FieldError>) -> ApiError {
    if let Some(internal) = refused.iter().find(|error| !error.is_invalid()) {
        return ApiError::Internal(internal.to_string());
    }
    let mut errors: Vec<FieldError> = refused.iter().map(field_error).collect();
    others.retain(|other| !errors.iter().any(|error| error.field == other.field));
    errors.append(&mut others);
    ApiError::invalid(Resource::Service, name, errors)
}

fn field_error(error: &Refused) -> FieldError {
    let (field, why) = (error.field.as_str(), error.reason.to_string());
    let value = || match error.value.parse::<u16>() {
        Ok(number) if field.ends_with("odePort") => Value::from(number),
        _ => Value::from(error.value.as_str()),
    };
    match error.reason {
        Refusal::ForbiddenForExternalName => FieldError::forbidden(field, &why),
        // As `validateServiceExternalTrafficFieldsUpdate`.
        Refusal::Immutable if field == "spec.healthCheckNodePort" => {
            FieldError::forbidden(field, "field is immutable")
        }
        Refusal::PortTwice => FieldError::duplicate(field, value()),
        Refusal::FamilyTwice if field.starts_with("spec.ipFamilies") => FieldError::duplicate(field, value()),
        _ => FieldError::invalid(field, value(), &why),
    }
}
