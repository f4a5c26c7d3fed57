//! Request bodies and media types.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use portolan_schema::protobuf;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::duplicates;
use crate::{
    error::ApiError,
    json::{MAX_DEPTH, Object, fits_depth, type_name},
    resource::Resource,
    schema::FieldValidation,
};

/// As upstream's `MaxRequestBodyBytes`.
const LIMIT: usize = 3 << 20;
/// The first bytes of a body need no room among the large ones, so that most requests never wait for those.
const FREE: usize = 64 << 10;
/// Bytes of memory that a JSON body may come to. That of a slice with as much in it as is allowed is half of it; a body
/// of nothing but empty objects would come to gigabytes.
const MEMORY_LIMIT: usize = 32 << 20;
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// How a body is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// The object in the body, by its Content-Type, and what the client should hear about the text.
pub(super) async fn read_object(
    request: Request<Incoming>,
    resource: Resource,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>), ApiError> {
    let info = resource.info();
    let encoding = encoding(request.headers())?;
    let body = read(request).await?;
    let object = decode(&body, encoding, (info.api_version, info.kind))?;
    // The decoder of YAML refuses duplicates, protobuf has none.
    let are_told = encoding == Encoding::Json && validation != FieldValidation::Ignore;
    let duplicates = if are_told { duplicates::of_json(&body) } else { Vec::new() };
    let remarks: Vec<String> =
        duplicates.iter().map(|field| format!("duplicate field \"{field}\"")).collect();
    if validation == FieldValidation::Strict && !remarks.is_empty() {
        return Err(ApiError::Undecodable { format: "JSON", reason: remarks.join(", ") });
    }
    Ok((object, remarks))
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
    let room = request.extensions().get::<BodyRoom>().cloned();
    let body = request.into_body();
    if body.size_hint().lower() > LIMIT as u64 {
        return Err(too_large());
    }
    let room = room.unwrap_or_default();
    let (mut body, mut bytes, mut places) = (Limited::new(body, LIMIT), BytesMut::new(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                too_large()
            } else {
                ApiError::Undecodable { format: "HTTP", reason: error.to_string() }
            }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let before = bytes.len().saturating_sub(FREE);
        bytes.extend_from_slice(&data);
        places.push(room.take(bytes.len().saturating_sub(FREE).saturating_sub(before))?);
    }
    Ok(bytes.freeze())
}

/// Room for the bodies of all requests that are being received: slow writers of large ones would take the memory of
/// the server. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct BodyRoom(Arc<Semaphore>);

impl BodyRoom {
    /// Room for so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))))
    }

    fn take(&self, bytes: usize) -> Result<SemaphorePermit<'_>, ApiError> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.0.try_acquire_many(bytes).map_err(|_| ApiError::TooManyBodies)
    }
}

impl Default for BodyRoom {
    fn default() -> Self {
        Self::new(LIMIT)
    }
}

pub(super) fn from_json(body: &[u8]) -> Result<Value, ApiError> {
    if is_too_heavy(body) {
        let reason = format!("its values would take more than {} MiB of memory", MEMORY_LIMIT >> 20);
        return Err(ApiError::Undecodable { format: "JSON", reason });
    }
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

/// Whether the values in a JSON text would take too much memory.
pub(super) fn is_too_heavy(body: &[u8]) -> bool {
    weight(body) > MEMORY_LIMIT
}

/// About how many bytes of memory the values in a JSON text take: what goes with each is told by the signs around it.
fn weight(body: &[u8]) -> usize {
    let (mut weight, mut in_string, mut escaped) = (body.len(), false, false);
    for byte in body {
        let after_backslash = std::mem::take(&mut escaped);
        weight += match byte {
            b'\\' if in_string => {
                escaped = !after_backslash;
                0
            }
            b'"' if !after_backslash => {
                in_string = !in_string;
                24
            }
            _ if in_string => 0,
            // The first node of a map has room for eleven members.
            b'{' => 640,
            b':' => 64,
            b',' | b'[' => 32,
            _ => 0,
        };
    }
    weight
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_fill_the_memory_is_refused_before_it_is_read() {
        let repeated = |item: &str| format!("[{}]", vec![item; LIMIT / (item.len() + 1) - 1].join(","));
        for item in ["{}", r#"{"":0}"#, r#""""#, "[{}]", r#""\"{}""#] {
            let refused = from_json(repeated(item).as_bytes()).unwrap_err();
            assert_eq!(refused.code(), 400, "{item}");
            assert!(refused.to_string().contains("memory"), "{refused}");
        }
        // What stands in a string weighs no more than its text, and an escape does not end it.
        for item in [r#""{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{""#, r#""\"{,{,{,{,{,{,{,{,{,{,{,{,\\""#] {
            assert!(from_json(repeated(item).as_bytes()).is_ok(), "{item}");
        }
    }

    #[test]
    fn the_fullest_slice_is_read() {
        let addresses: Vec<String> = (0..100).map(|number| format!("10.0.100.{number}")).collect();
        let endpoint = serde_json::json!({
            "addresses": addresses, "conditions": {"ready": true, "serving": true, "terminating": false},
            "hostname": "host", "nodeName": "node", "zone": "zone", "hints": {"forZones": [{"name": "zone"}]},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "pod", "uid": "u"},
        });
        let slice = serde_json::json!({"addressType": "IPv4", "endpoints": vec![endpoint; 1000]}).to_string();
        assert!(weight(slice.as_bytes()) < MEMORY_LIMIT / 2, "{}", weight(slice.as_bytes()));
        assert!(from_json(slice.as_bytes()).is_ok());
    }
}
