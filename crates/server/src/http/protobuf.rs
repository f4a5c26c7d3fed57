//! `application/vnd.kubernetes.protobuf`: objects, lists and Status in the envelope that typed clients speak.

use bytes::Bytes;
use serde_json::Value;

use super::accept::MetaVersion;
use crate::{json::Object, resource::Resource};

/// An object in its envelope.
pub(super) fn object(_resource: Resource, _object: &Object) -> Bytes {
    Bytes::new()
}

/// A list in its envelope.
pub(super) fn list(_resource: Resource, _metadata: &Value, _objects: impl Iterator<Item = Object>) -> Bytes {
    Bytes::new()
}

/// `PartialObjectMetadata` of an object.
pub(super) fn partial(_object: &Object, _version: MetaVersion) -> Bytes {
    Bytes::new()
}

/// `PartialObjectMetadataList`.
pub(super) fn partial_list(
    _version: MetaVersion,
    _metadata: &Value,
    _objects: impl Iterator<Item = Object>,
) -> Bytes {
    Bytes::new()
}

/// Whether a document is a Status.
pub(super) fn is_status(value: &Value) -> bool {
    value.get("kind").and_then(Value::as_str) == Some("Status")
}

/// A Status in its envelope.
pub(super) fn status(_value: &Value) -> Bytes {
    Bytes::new()
}

/// Adds a watch event: its length, then a `WatchEvent` around an object in its envelope.
pub(super) fn push_event(_frames: &mut bytes::BytesMut, _kind: &str, _object: &[u8]) {}
