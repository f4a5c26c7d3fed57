//! Request bodies and their media types.
//!
//! The memory of a body, as text and decoded, is limited for each request, and by a [`Budget`] for all requests
//! together. A body is decoded within the limits of [`bounded`] into values of 24 bytes ([`Value`]). A text of up to
//! 24 bytes is stored within its value, and the members of an object are a list without spare capacity. So the memory
//! of a request is in proportion to the length of its body.

mod budget;

use std::sync::Arc;

use http::{HeaderMap, Request, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use portolan_api::ApiError;
use portolan_schema::{
    Resource,
    json::{
        MAX_DEPTH, Object, Value,
        bounded::{self, Bounded},
        fits_depth, type_name,
    },
    protobuf::{self, Problem},
    shape::FieldValidation,
};
use serde::de::DeserializeSeed;

pub(super) use self::budget::{Budget, Share};
use super::{Arriving, duplicates};

/// Maximum size of a body in bytes, the same as upstream's `MaxRequestBodyBytes`.
const LIMIT: usize = 3 << 20;
/// Maximum size of a decoded body in bytes, as [`bounded`] estimates it.
///
/// Large enough for what validation permits. An EndpointSlice of 1000 endpoints, each with 8 zone hints, 8 node hints
/// and 80 addresses, takes 4.6 MiB and has the maximum length of a stored object. Endpoints of that length with a
/// `targetRef` for each address take 5.6 MiB.
const DECODED: usize = 6 << 20;
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// The encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// The body of a request.
#[derive(Debug)]
pub(super) struct Body {
    text: Vec<u8>,
    share: Arc<Share>,
}

/// Reads the object in the body according to its Content-Type. Also returns warnings about the text.
pub(super) async fn read_object(
    request: Request<Arriving>,
    resource: Resource,
    validation: FieldValidation,
) -> Result<(Object, Vec<String>), ApiError> {
    let info = resource.info();
    let encoding = encoding(request.headers())?;
    let body = read(request).await?;
    body.object(encoding, (info.api_version, info.kind), validation)
}

/// Reads the `DeleteOptions` in the body. Returns `None` if the body is empty.
pub(super) async fn read_delete_options(request: Request<Arriving>) -> Result<Option<Object>, ApiError> {
    let encoding = encoding(request.headers());
    let body = read(request).await?;
    if body.text.is_empty() {
        Ok(None)
    } else {
        let (options, _) = body.object(encoding?, ("v1", "DeleteOptions"), FieldValidation::Ignore)?;
        Ok(Some(options))
    }
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

pub(super) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Reads the body as text. The request carries its [`Share`] of the budget, from which only received bytes are taken.
/// So a client that announces a body and sends nothing does not block other clients.
pub(super) async fn read(mut request: Request<Arriving>) -> Result<Body, ApiError> {
    let too_large = || ApiError::TooLarge { limit: LIMIT };
    let share = request.extensions_mut().remove::<Arc<Share>>();
    let share = share.ok_or_else(|| ApiError::Internal("the request has no share of memory".to_owned()))?;
    let mut body = request.into_body();
    if body.size_hint().lower() > LIMIT as u64 {
        return Err(too_large());
    }
    let mut text = Vec::new();
    // The kernel provides only addresses for memory that is not written to.
    text.reserve_exact(usize::try_from(body.size_hint().lower()).unwrap_or(LIMIT));
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| ApiError::Undecodable { format: "HTTP", reason: error.to_string() })?;
        let Ok(data) = frame.into_data() else { continue };
        if text.len() + data.len() > LIMIT {
            return Err(too_large());
        }
        share.take(data.len())?;
        text.extend_from_slice(&data);
    }
    Ok(Body { text, share })
}

impl Body {
    /// Decodes the object. Also returns warnings about the text. `assumed` are the apiVersion and kind of a protobuf
    /// body that does not name them.
    fn object(
        &self,
        encoding: Encoding,
        assumed: (&str, &str),
        validation: FieldValidation,
    ) -> Result<(Object, Vec<String>), ApiError> {
        match encoding {
            Encoding::Json => {
                let (value, remarks) = self.json(validation)?;
                Ok((object(value)?, remarks))
            }
            Encoding::Yaml => {
                let (value, remarks) = self.yaml(validation)?;
                Ok((object(value)?, remarks))
            }
            // Protobuf has no duplicates.
            Encoding::Protobuf => {
                let limits = protobuf::Limits { memory: DECODED };
                let decoded = protobuf::decode(&self.text, assumed, limits);
                let decoded = decoded.map_err(|error| match error.problem {
                    Problem::TooLarge(limit) => ApiError::TooLargeDecoded { limit },
                    _ => refused("protobuf", &error),
                })?;
                self.share.take(bounded::cost(&decoded))?;
                let value = fitting("protobuf", Value::Object(decoded))?;
                Ok((object(value)?, Vec::new()))
            }
        }
    }

    /// Decodes JSON. Also returns warnings about the text.
    pub(super) fn json(&self, validation: FieldValidation) -> Result<(Value, Vec<String>), ApiError> {
        self.with_remarks("JSON", validation, Self::decoded_json, |body| duplicates::of_json(&body.text))
    }

    /// Decodes YAML. Also returns warnings about the text.
    fn yaml(&self, validation: FieldValidation) -> Result<(Value, Vec<String>), ApiError> {
        self.with_remarks("YAML", validation, Self::decoded_yaml, |body| {
            std::str::from_utf8(&body.text).map(duplicates::of_yaml).unwrap_or_default()
        })
    }

    /// Decodes YAML. JSON is also YAML, but its own decoder is much faster.
    pub(super) fn json_or_yaml(&self, validation: FieldValidation) -> Result<(Value, Vec<String>), ApiError> {
        // A refusal of duplicates is not a reason to try the other format.
        match self.decoded_json() {
            Err(ApiError::Undecodable { .. }) => self.yaml(validation),
            Err(other) => Err(other),
            Ok((value, false)) => Ok((value, Vec::new())),
            Ok((value, true)) => {
                drop(value);
                self.json(validation)
            }
        }
    }

    /// Decodes the text, and returns warnings about fields that occur more than once in an object. With strict
    /// validation, such a field is an error.
    fn with_remarks(
        &self,
        format: &'static str,
        validation: FieldValidation,
        decoded: fn(&Self) -> Result<(Value, bool), ApiError>,
        repeats: fn(&Self) -> Vec<String>,
    ) -> Result<(Value, Vec<String>), ApiError> {
        let (value, has_repeats) = decoded(self)?;
        if !has_repeats || validation == FieldValidation::Ignore {
            return Ok((value, Vec::new()));
        }
        // The search for duplicates takes as much memory as the value.
        drop(value);
        let remarks: Vec<String> =
            repeats(self).iter().map(|field| format!("duplicate field \"{field}\"")).collect();
        if validation == FieldValidation::Strict && !remarks.is_empty() {
            return Err(ApiError::Undecodable { format, reason: remarks.join(", ") });
        }
        Ok((decoded(self)?.0, remarks))
    }

    /// Decodes JSON. Also returns true if an object has a member more than once.
    fn decoded_json(&self) -> Result<(Value, bool), ApiError> {
        self.bounded("JSON", |bounded| {
            let mut text = serde_json::Deserializer::from_slice(&self.text);
            let value = bounded.deserialize(&mut text)?;
            text.end().map(|()| (value, bounded.0.saw_repeats()))
        })
    }

    /// Decodes YAML. Also returns true if an object has a member more than once.
    fn decoded_yaml(&self) -> Result<(Value, bool), ApiError> {
        let text = std::str::from_utf8(&self.text).map_err(|error| refused("YAML", &error))?;
        let options = duplicates::yaml_options();
        let (value, has_repeats) = self.bounded("YAML", |bounded| {
            serde_saphyr::with_deserializer_from_str_with_options(text, options, |text| {
                bounded.deserialize(text).map(|value| (value, bounded.0.saw_repeats()))
            })
        })?;
        Ok((fitting("YAML", value)?, has_repeats))
    }

    fn bounded<T, E: std::fmt::Display>(
        &self,
        format: &'static str,
        decode: impl FnOnce(Bounded<'_>) -> Result<T, E>,
    ) -> Result<T, ApiError> {
        let budget = bounded::Budget::new(DECODED);
        let value = decode(Bounded(&budget)).map_err(|error| match budget.exceeded() {
            Some(bounded::Exceeded(limit)) => ApiError::TooLargeDecoded { limit },
            None => refused(format, &error),
        })?;
        self.share.take(budget.spent())?;
        Ok(value)
    }
}

/// Checks that the value can be decoded again from the store. The decoders of YAML and protobuf accept deeper values
/// than that of JSON.
fn fitting(format: &'static str, value: Value) -> Result<Value, ApiError> {
    if fits_depth(&value, MAX_DEPTH, &mut 0) {
        Ok(value)
    } else {
        Err(refused(format, &format!("more than {MAX_DEPTH} objects and lists are within each other")))
    }
}

fn refused(format: &'static str, reason: &dyn std::fmt::Display) -> ApiError {
    ApiError::Undecodable { format, reason: reason.to_string() }
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
