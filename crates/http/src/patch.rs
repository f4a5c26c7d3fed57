//! PATCH requests: decodes the patch in the body by its media type, and the parameters for it.

use http::Request;
use portolan_api::{ApiError, Change, FieldError, Refused};
use portolan_schema::{
    Resource,
    json::Value,
    patch::{Apply, JsonPatch, Patch},
    shape::FieldValidation,
};

use super::{
    Arriving,
    body::{self, object},
    query::Query,
};

/// The media type of server-side apply.
const APPLY: &str = "application/apply-patch+yaml";
const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
                        application/strategic-merge-patch+json, application/apply-patch+yaml";

/// Decodes the patch in a body.
type Decode = fn(Value) -> Result<Patch, ApiError>;

/// Reads the patch of a request. Also returns warnings about its text. A refused patch has them, too.
pub(super) async fn read(
    request: Request<Arriving>,
    resource: Resource,
    query: &Query,
    validation: FieldValidation,
) -> Result<(Change, Vec<String>), Refused> {
    let media_type = body::media_type(request.headers());
    let decode = decoder(&media_type);
    if decode.is_none() && media_type != APPLY {
        return Err(ApiError::UnsupportedMediaType { got: media_type, accepted: ACCEPTED }.into());
    }
    let force = query.optional_flag("force")?;
    let Some(decode) = decode else {
        if query.get("fieldManager").is_none_or(str::is_empty) {
            let what = "must name who applies, in an apply patch";
            return Err(bad_option(FieldError::required("fieldManager", what)).into());
        }
        let (value, remarks) = body::read(request).await?.json_or_yaml(validation)?;
        return with_remarks(apply(resource, value, force.unwrap_or(false)), remarks);
    };
    if force.is_some() {
        return Err(bad_option(FieldError::forbidden("force", "belongs to apply patches only")).into());
    }
    let body = body::read(request).await?;
    let (value, remarks) = body.json(validation)?;
    with_remarks(decode(value).map(Change::Patch), remarks)
}

fn apply(resource: Resource, value: Value, force: bool) -> Result<Change, ApiError> {
    Ok(Change::Apply(Apply::decode(resource, object(value)?, force)?))
}

fn with_remarks(
    change: Result<Change, ApiError>,
    remarks: Vec<String>,
) -> Result<(Change, Vec<String>), Refused> {
    match change {
        Ok(change) => Ok((change, remarks)),
        Err(error) => Err(Refused { error, warnings: remarks }),
    }
}

/// Returns the function that decodes a patch of this media type; `None` for server-side apply and unknown types.
fn decoder(media_type: &str) -> Option<Decode> {
    let decode: Decode = match media_type {
        "application/json-patch+json" => |value| Ok(Patch::Json(JsonPatch::decode(value)?)),
        "application/merge-patch+json" => |value| Ok(Patch::Merge(object(value)?)),
        "application/strategic-merge-patch+json" => |value| Ok(Patch::Strategic(object(value)?)),
        _ => return None,
    };
    Some(decode)
}

fn bad_option(error: FieldError) -> ApiError {
    ApiError::InvalidOptions { what: "PatchOptions", error }
}
