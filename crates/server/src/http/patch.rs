//! PATCH requests: the patch in the body, by its media type, and the parameters that belong to it.

use http::Request;
use hyper::body::Incoming;
use portolan_schema::patch::{Apply, JsonPatch, Patch};

use super::{
    body::{self, object},
    query::Query,
};
use crate::{
    api::Change,
    error::{ApiError, FieldError},
    resource::Resource,
};

const ACCEPTED: &str = "application/json-patch+json, application/merge-patch+json, \
                        application/strategic-merge-patch+json, application/apply-patch+yaml";

/// The patch of a request.
pub(super) async fn read(
    request: Request<Incoming>,
    resource: Resource,
    query: &Query,
) -> Result<Change, ApiError> {
    let media_type = body::media_type(request.headers());
    let force = query.optional_flag("force")?;
    if matches!(media_type.as_str(), "application/apply-patch+yaml" | "application/apply-patch+json") {
        if query.get("fieldManager").is_none_or(str::is_empty) {
            let what = "must name who applies, in an apply patch";
            return Err(bad_option(FieldError::required("fieldManager", what)));
        }
        // JSON is YAML, but much faster to read as what it is.
        let body = body::read(request).await?;
        let value = body.json().or_else(|error| match error {
            ApiError::Undecodable { .. } => body.yaml(),
            other => Err(other),
        })?;
        return Ok(Change::Apply(Apply::decode(resource, object(value)?, force.unwrap_or(false))?));
    }
    if force.is_some() {
        return Err(bad_option(FieldError::forbidden("force", "belongs to apply patches only")));
    }
    Ok(Change::Patch(match media_type.as_str() {
        "application/json-patch+json" => Patch::Json(JsonPatch::decode(body::read(request).await?.json()?)?),
        "application/merge-patch+json" => Patch::Merge(object(body::read(request).await?.json()?)?),
        "application/strategic-merge-patch+json" => {
            Patch::Strategic(object(body::read(request).await?.json()?)?)
        }
        _ => return Err(ApiError::UnsupportedMediaType { got: media_type, accepted: ACCEPTED }),
    }))
}

fn bad_option(error: FieldError) -> ApiError {
    ApiError::InvalidOptions { what: "PatchOptions", error }
}
