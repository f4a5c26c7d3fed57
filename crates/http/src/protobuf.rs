//! `application/vnd.kubernetes.protobuf` in answers: lists in parts, and conversion of the codec's errors.

use std::sync::Arc;

use bytes::Bytes;
use portolan_api::ApiError;
use portolan_schema::{
    json::{Object, Value},
    protobuf::{self, EncodeError, Form},
};
use portolan_store::StoredObject;

use super::chunk::CHUNK;
use super::list_body::{Part, Parts};

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
pub(super) enum Item {
    /// A stored object in its stored form, which may keep its encoding.
    Stored(Arc<StoredObject>),
    /// The JSON of an object.
    Json(Bytes),
}

/// Encodes a list of objects with its envelope. The total length comes before the first object, so the objects that do
/// not keep their encoding are encoded first. Yields to other tasks meanwhile.
pub(super) async fn list(
    form: Form,
    metadata: &Value,
    objects: impl Iterator<Item = Item>,
) -> Result<Parts, ApiError> {
    // Leaves room for the last item of a part, which then mostly fits without a reallocation.
    const FULL: usize = CHUNK - CHUNK / 8;
    // The time for a kept encoding, as that for so many encoded bytes: only its length is computed here.
    const KEPT_WORK: usize = 64;
    let (mut items, mut part, mut length) = (Vec::new(), Vec::new(), 0_usize);
    // The work since other tasks ran, in encoded bytes.
    let mut work = 0_usize;
    for object in objects {
        if work >= FULL {
            work = 0;
            tokio::task::yield_now().await;
        }
        if let Item::Stored(stored) = &object
            && let Some(kept) = stored.kept_length()
        {
            length = length.saturating_add(kept);
            work = work.saturating_add(KEPT_WORK);
            if !part.is_empty() {
                items.push(Part::Encoded(std::mem::take(&mut part).into()));
            }
            items.push(Part::Kept(Arc::clone(stored), kept));
            continue;
        }
        let before = part.len();
        match object {
            Item::Stored(stored) => stored.put_encoded(&mut part, |part, json| form.put_item(part, json)),
            Item::Json(json) => form.put_item(&mut part, &json),
        }
        .map_err(refused)?;
        let encoded = part.len().saturating_sub(before);
        (length, work) = (length.saturating_add(encoded), work.saturating_add(encoded));
        if part.len() >= FULL {
            items.push(Part::Encoded(std::mem::replace(&mut part, Vec::with_capacity(CHUNK)).into()));
        }
    }
    items.push(Part::Encoded(part.into()));
    let empty = Object::new();
    let around = form.around_items(metadata.as_object().unwrap_or(&empty), length);
    let (head, tail) = around.map_err(refused)?;
    items.push(Part::Encoded(tail.into()));
    Ok(Parts::new(head.into(), items))
}

/// Encodes a watch event of a stored object, preceded by its length.
pub(super) fn stored_event(form: Form, kind: &str, stored: &[u8]) -> Result<Bytes, ApiError> {
    form.encode_watch_event(kind, stored).map(Bytes::from).map_err(refused)
}

/// Does the same for an object that may keep its encoding.
pub(super) fn kept_event(form: Form, kind: &str, stored: &StoredObject) -> Result<Bytes, ApiError> {
    let mut item = Vec::new();
    stored.put_encoded(&mut item, |out, json| form.put_item(out, json)).map_err(refused)?;
    form.watch_event_of_item(kind, &item).map(Bytes::from).map_err(refused)
}

/// Encodes a watch event, preceded by its length.
pub(super) fn event(kind: &str, object: &Object) -> Result<Bytes, ApiError> {
    protobuf::encode_watch_event(kind, object).map(Bytes::from).map_err(refused)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: EncodeError) -> ApiError {
    ApiError::Unencodable(error.to_string())
}
