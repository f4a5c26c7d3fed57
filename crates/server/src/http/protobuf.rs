//! `application/vnd.kubernetes.protobuf` in answers: what the codec does not know by itself, and its errors.

use bytes::Bytes;
use portolan_schema::protobuf::{self, EncodeError};
use serde_json::{Value, json};

use crate::{error::ApiError, json::Object, resource::Resource};

/// An object of any kind in its envelope.
pub(super) fn object(object: &Object) -> Result<Bytes, ApiError> {
    protobuf::encode(object).map(Bytes::from).map_err(refused)
}

/// A list of a resource's objects in its envelope.
pub(super) fn list(
    resource: Resource,
    metadata: &Value,
    objects: impl Iterator<Item = Object>,
) -> Result<Bytes, ApiError> {
    let empty = Object::new();
    let metadata = metadata.as_object().unwrap_or(&empty);
    protobuf::encode_list(resource, metadata, objects).map(Bytes::from).map_err(refused)
}

/// A list of `PartialObjectMetadata` in its envelope.
pub(super) fn partial_list(
    api_version: &str,
    metadata: &Value,
    objects: &[Value],
) -> Result<Bytes, ApiError> {
    let list = json!({
        "apiVersion": api_version, "kind": "PartialObjectMetadataList", "metadata": metadata,
        "items": objects,
    });
    object(list.as_object().unwrap_or(&Object::new()))
}

/// A watch event, with its length before it.
pub(super) fn event(kind: &str, object: &Object) -> Result<Bytes, ApiError> {
    protobuf::encode_watch_event(kind, object).map(Bytes::from).map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: EncodeError) -> ApiError {
    ApiError::Unencodable(error.to_string())
}
