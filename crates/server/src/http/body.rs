//! Request bodies and media types.

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use portolan_schema::protobuf;
use serde_json::Value;

use crate::{
    error::ApiError,
    json::{MAX_DEPTH, Object, fits_depth, type_name},
    resource::Resource,
};

/// As upstream's `MaxRequestBodyBytes`.
const LIMIT: usize = 3 << 20;
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// How a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// The object in the body, by its Content-Type.
pub(super) async fn read_object(request: Request<Incoming>, resource: Resource) -> Result<Object, ApiError> {
    let info = resource.info();
    let encoding = encoding(request.headers())?;
    decode(&read(request).await?, encoding, (info.api_version, info.kind))
}

/// The `DeleteOptions` in the body, or `None` if the body is empty.
pub(super) async fn read_delete_options(request: Request<Incoming>) -> Result<Option<Object>, ApiError> {
    let encoding = encoding(request.headers());
    let body = read(request).await?;
    if body.is_empty() { Ok(None) } else { decode(&body, encoding?, ("v1", "DeleteOptions")).map(Some) }
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, ApiError> {
    let media_type = media_type(headers);
    match media_type.as_str() {
        "" | "application/json" => Ok(Encoding::Json),
        "application/yaml" => Ok(Encoding::Yaml),
        protobuf::MEDIA_TYPE => Ok(Encoding::Protobuf),
        _ => Err(ApiError::UnsupportedMediaType { got: media_type, accepted: ACCEPTED }),
    }
}

/// The object in a body; `assumed` are the apiVersion and kind of a protobuf body that does not name them.
fn decode(body: &[u8], encoding: Encoding, assumed: (&str, &str)) -> Result<Object, ApiError> {
    match encoding {
        Encoding::Json => object(from_json(body)?),
        Encoding::Yaml => object(from_yaml(body)?),
        Encoding::Protobuf => protobuf::decode(body, assumed, protobuf::Limits::default())
            .map_err(|error| ApiError::Undecodable { format: "protobuf", reason: error.to_string() }),
    }
}

pub(super) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

pub(super) async fn read(request: Request<Incoming>) -> Result<Bytes, ApiError> {
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

pub(super) fn from_json(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body)
        .map_err(|error| ApiError::Undecodable { format: "JSON", reason: error.to_string() })
}

pub(super) fn from_yaml(body: &[u8]) -> Result<Value, ApiError> {
    let refused = |reason: String| ApiError::Undecodable { format: "YAML", reason };
    let text = std::str::from_utf8(body).map_err(|error| refused(error.to_string()))?;
    let value = serde_saphyr::from_str(text).map_err(|error| refused(error.to_string()))?;
    // Other than the JSON decoder, that of YAML takes what could not be read again from the store.
    if fits_depth(&value, MAX_DEPTH, &mut 0) {
        Ok(value)
    } else {
        Err(refused(format!("more than {MAX_DEPTH} objects and lists are within each other")))
    }
}

pub(super) fn object(value: Value) -> Result<Object, ApiError> {
    match value {
        Value::Object(object) => Ok(object),
        other => Err(ApiError::WrongType {
            field: "(the whole body)".to_owned(),
            expected: "an object",
            got: type_name(&other),
        }),
    }
}
