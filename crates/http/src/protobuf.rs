//! `application/vnd.kubernetes.protobuf` in answers: lists in parts, and conversion of the codec's errors.

use bytes::Bytes;
use portolan_api::ApiError;
use portolan_schema::{
    json::{Object, Value},
    protobuf::{self, EncodeError, Form},
};
use portolan_store::StoredObject;

use super::list_body::{CHUNK, Parts};

/// Encodes an object of any kind with its envelope.
pub(super) fn object(object: &Object) -> Result<Bytes, ApiError> {
    protobuf::encode(object).map(Bytes::from).map_err(refused)
}

/// Encodes a stored object with its envelope.
pub(super) fn stored(form: Form, stored: &[u8]) -> Result<Bytes, ApiError> {
    form.encode(stored).map(Bytes::from).map_err(refused)
}

/// An object of a list.
#[derive(Debug)]
pub(super) enum Item<'a> {
    /// A stored object in its stored form, which keeps its encoding.
    Stored(&'a StoredObject),
    /// The JSON of an object.
    Json(Bytes),
}

/// Encodes a list of objects with its envelope. The total length comes before the first object, so all of them are
/// encoded first. Yields to other tasks meanwhile.
pub(super) async fn list(
    form: Form,
    metadata: &Value,
    objects: impl Iterator<Item = Item<'_>>,
) -> Result<Parts, ApiError> {
    // Leaves room for the last item of a part, which then mostly fits without a reallocation.
    const FULL: usize = CHUNK - CHUNK / 8;
    let (mut items, mut part) = (Vec::new(), Vec::with_capacity(CHUNK));
    for object in objects {
        match object {
            Item::Stored(stored) => stored.put_encoded(&mut part, |part, json| form.put_item(part, json)),
            Item::Json(json) => form.put_item(&mut part, &json),
        }
        .map_err(refused)?;
        if part.len() >= FULL {
            items.push(Bytes::from(std::mem::replace(&mut part, Vec::with_capacity(CHUNK))));
            tokio::task::yield_now().await;
        }
    }
    items.push(Bytes::from(part));
    let length = items.iter().map(Bytes::len).sum();
    let empty = Object::new();
    let around = form.around_items(metadata.as_object().unwrap_or(&empty), length);
    let (head, tail) = around.map_err(refused)?;
    Ok(Parts::new(std::iter::once(head.into()).chain(items).chain([tail.into()]).collect()))
}

/// Encodes a watch event of a stored object, preceded by its length.
pub(super) fn stored_event(form: Form, kind: &str, stored: &[u8]) -> Result<Bytes, ApiError> {
    form.encode_watch_event(kind, stored).map(Bytes::from).map_err(refused)
}

/// Encodes a watch event, preceded by its length.
pub(super) fn event(kind: &str, object: &Object) -> Result<Bytes, ApiError> {
    protobuf::encode_watch_event(kind, object).map(Bytes::from).map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: EncodeError) -> ApiError {
    ApiError::Unencodable(error.to_string())
}
