//! Request bodies and media types.

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use serde_json::Value;

use crate::{
    error::ApiError,
    json::{Object, type_name},
};

/// As upstream's `MaxRequestBodyBytes`.
const LIMIT: usize = 3 << 20;
const ACCEPTED: &str = "application/json, application/yaml";
const ACCEPTED_PATCHES: &str = "application/merge-patch+json";

/// The object in the body, JSON or YAML by its Content-Type.
pub(super) async fn read_object(request: Request<Incoming>) -> Result<Object, ApiError> {
    let media_type = media_type(request.headers());
    let yaml = match media_type.as_str() {
        "" | "application/json" => false,
        "application/yaml" => true,
        _ => return Err(ApiError::UnsupportedMediaType { got: media_type, accepted: ACCEPTED }),
    };
    object(if yaml { from_yaml(&read(request).await?)? } else { from_json(&read(request).await?)? })
}

/// The object in the body, or `None` if the body is empty.
pub(super) async fn read_optional_object(request: Request<Incoming>) -> Result<Option<Object>, ApiError> {
    let body = read(request).await?;
    if body.is_empty() { Ok(None) } else { object(from_json(&body)?).map(Some) }
}

/// The merge patch in the body.
pub(super) async fn read_merge_patch(request: Request<Incoming>) -> Result<Object, ApiError> {
    let media_type = media_type(request.headers());
    if media_type != ACCEPTED_PATCHES {
        return Err(ApiError::UnsupportedMediaType { got: media_type, accepted: ACCEPTED_PATCHES });
    }
    object(from_json(&read(request).await?)?)
}

fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

async fn read(request: Request<Incoming>) -> Result<Bytes, ApiError> {
    let too_large = || ApiError::TooLarge { limit: LIMIT };
    let body = request.into_body();
    if body.size_hint().lower() > LIMIT as u64 {
        return Err(too_large());
    }
    match Limited::new(body, LIMIT).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(ApiError::Undecodable { format: "HTTP", reason: error.to_string() }),
    }
}

fn from_json(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::Undecodable { format: "JSON", reason: error.to_string() })
}

fn from_yaml(body: &[u8]) -> Result<Value, ApiError> {
    let refused = |reason: String| ApiError::Undecodable { format: "YAML", reason };
    let text = std::str::from_utf8(body).map_err(|error| refused(error.to_string()))?;
    serde_saphyr::from_str(text).map_err(|error| refused(error.to_string()))
}

fn object(value: Value) -> Result<Object, ApiError> {
    match value {
        Value::Object(object) => Ok(object),
        other => Err(ApiError::WrongType {
            field: "(the whole body)".to_owned(),
            expected: "an object",
            got: type_name(&other),
        }),
    }
}
