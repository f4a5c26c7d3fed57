//! Encodes JSON as protobuf.

use std::convert::Infallible;

use crate::json::Value;

use super::{
    EncodeError, MAGIC, UNKNOWN_CONTENT_ENCODING, UNKNOWN_CONTENT_TYPE, UNKNOWN_RAW, UNKNOWN_TYPE, table,
    transcode,
    wire::{Reader, put_bytes, put_length, put_message, put_number},
};
use crate::{
    json::{self, Object},
    shape::{Field, Struct, Type, meta, timestamp},
};

type Result<T> = std::result::Result<T, EncodeError>;

pub(super) fn envelope(object: &Object) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(512);
    put_envelope(&mut out, object)?;
    Ok(out)
}

/// Encodes the object in JSON text as a message. If that fails, the text is decoded to find the field that is wrong.
pub(super) fn text(out: &mut Vec<u8>, table: &'static Struct, json: &[u8]) -> Result<()> {
    let before = out.len();
    if transcode::message(out, table, json).is_ok() {
        return Ok(());
    }
    out.truncate(before);
    message(out, table, &serde_json::from_slice(json).unwrap_or_default())
}

/// Returns the bytes before and after the items of a list, which take `length` bytes.
pub(super) fn around_items(
    (api_version, kind): (&str, &str),
    list: &Struct,
    metadata: &Object,
    length: usize,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut own = Vec::with_capacity(64);
    if let Some(field) = list.field("metadata") {
        put_message(&mut own, field.tag, |out| message(out, &meta::LIST_META, metadata))?;
    }
    let mut head = Vec::with_capacity(256);
    put_head(&mut head, api_version, kind);
    put_length(&mut head, UNKNOWN_RAW, own.len() + length);
    head.extend_from_slice(&own);
    let mut tail = Vec::new();
    put_tail(&mut tail);
    Ok((head, tail))
}

/// Encodes a frame with the envelope that `object` writes.
pub(super) fn watch_event(event: &str, object: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<Vec<u8>> {
    const LENGTH: usize = 4;
    let mut out = Vec::with_capacity(1024);
    out.resize(LENGTH, 0);
    put_bytes(&mut out, tag_of("type"), event.as_bytes());
    put_message(&mut out, tag_of("object"), |out| put_message(out, RAW, object))?;
    let length = u32::try_from(out.len() - LENGTH).unwrap_or(u32::MAX);
    if let Some(head) = out.first_chunk_mut() {
        *head = length.to_be_bytes();
    }
    Ok(out)
}

/// The one field of `RawExtension`, `FieldsV1` and `Quantity`.
const RAW: u32 = 1;

fn tag_of(field: &str) -> u32 {
    meta::WATCH_EVENT.field(field).map_or(0, |field| field.tag)
}

pub(super) fn put_envelope(out: &mut Vec<u8>, object: &Object) -> Result<()> {
    let text = |key| json::text(object, key).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let table = table_of(api_version, kind)?;
    enveloped(out, (api_version, kind), |out| message(out, table, object))
}

pub(super) fn enveloped(
    out: &mut Vec<u8>,
    (api_version, kind): (&str, &str),
    content: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    put_head(out, api_version, kind);
    put_message(out, UNKNOWN_RAW, content)?;
    put_tail(out);
    Ok(())
}

/// Writes the envelope of an object that is encoded as an item of a list: a key and a length, then the message.
pub(super) fn enveloped_item(out: &mut Vec<u8>, kind: (&str, &str), item: &[u8]) -> Result<()> {
    let mut item = Reader::new(item);
    let message = item.key().and_then(|_| item.bytes()).unwrap_or_default();
    enveloped(out, kind, |out| {
        out.extend_from_slice(message);
        Ok(())
    })
}

/// Returns the table of a kind, or an error if it has no protobuf form.
pub(super) fn table_of(api_version: &str, kind: &str) -> Result<&'static Struct> {
    let unknown = || EncodeError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    table(api_version, kind).ok_or_else(unknown)
}

/// Writes the envelope up to the object.
fn put_head(out: &mut Vec<u8>, api_version: &str, kind: &str) {
    out.extend_from_slice(&MAGIC);
    let Ok(()) = put_message(out, UNKNOWN_TYPE, |out| {
        put_bytes(out, 1, api_version.as_bytes());
        put_bytes(out, 2, kind.as_bytes());
        Ok::<_, Infallible>(())
    });
}

/// Writes the envelope after the object.
fn put_tail(out: &mut Vec<u8>) {
    put_bytes(out, UNKNOWN_CONTENT_ENCODING, &[]);
    put_bytes(out, UNKNOWN_CONTENT_TYPE, &[]);
}

fn message(out: &mut Vec<u8>, table: &Struct, object: &Object) -> Result<()> {
    for Field { name, tag, kind, .. } in table.fields.iter().filter(|field| field.tag != 0) {
        if let Some(value) = object.get(name).filter(|value| !value.is_null()) {
            put(out, *tag, kind, value).map_err(|error| error.within(name))?;
        }
    }
    Ok(())
}

fn put(out: &mut Vec<u8>, tag: u32, kind: &Type, value: &Value) -> Result<()> {
    match (kind, value) {
        (Type::Text, Value::String(text)) => put_bytes(out, tag, text.as_bytes()),
        (Type::Bool, Value::Bool(truth)) => put_number(out, tag, i64::from(*truth)),
        (Type::Int32 | Type::Int64, Value::Number(number)) => {
            let number = number.as_i64().ok_or_else(|| wrong("an integer"))?;
            put_number(out, tag, number);
        }
        (Type::IntOrText, Value::Number(_) | Value::String(_)) => return put_int_or_text(out, tag, value),
        (Type::Time | Type::MicroTime, Value::String(text)) => {
            let (seconds, nanos) = timestamp::parse(text).ok_or_else(|| wrong("an RFC 3339 time"))?;
            put_message(out, tag, |out| {
                put_number(out, 1, seconds);
                put_number(out, 2, i64::from(nanos));
                Ok::<_, EncodeError>(())
            })?;
        }
        (Type::Quantity, Value::String(text)) => {
            put_message(out, tag, |out| {
                put_bytes(out, RAW, text.as_bytes());
                Ok::<_, EncodeError>(())
            })?;
        }
        (Type::Json, value) | (Type::FieldsV1, value @ Value::Object(_)) => {
            put_message(out, tag, |out| {
                put_bytes(out, RAW, value.to_string().as_bytes());
                Ok::<_, EncodeError>(())
            })?;
        }
        (Type::List(element), Value::Array(values)) => {
            for (index, value) in values.iter().enumerate() {
                put(out, tag, element, value).map_err(|error| error.within(&format!("[{index}]")))?;
            }
        }
        (Type::Map(element), Value::Object(map)) => {
            for (name, value) in map {
                put_message(out, tag, |out| {
                    put_bytes(out, 1, name.as_bytes());
                    put(out, 2, element, value)
                })
                .map_err(|error| error.within(&format!("[{name}]")))?;
            }
        }
        (Type::Object(table), Value::Object(object)) => {
            put_message(out, tag, |out| message(out, table, object))?;
        }
        (kind, _) => return Err(wrong(kind.description())),
    }
    Ok(())
}

/// Writes an `IntOrString`: its type, then the integer and the text.
fn put_int_or_text(out: &mut Vec<u8>, tag: u32, value: &Value) -> Result<()> {
    let number = match value {
        Value::Number(number) => number.as_i64().ok_or_else(|| wrong("a 32-bit integer or a string"))?,
        _ => 0,
    };
    let text = value.as_str();
    put_message(out, tag, |out| {
        put_number(out, 1, i64::from(text.is_some()));
        put_number(out, 2, number);
        put_bytes(out, 3, text.unwrap_or_default().as_bytes());
        Ok(())
    })
}

fn wrong(expected: &'static str) -> EncodeError {
    EncodeError::WrongType { field: String::new(), expected }
}

impl EncodeError {
    /// Returns the error with a path that starts at the object that holds `part`.
    fn within(self, part: &str) -> Self {
        match self {
            Self::WrongType { field, expected } => {
                Self::WrongType { field: super::joined(part, &field), expected }
            }
            unknown @ Self::UnknownKind { .. } => unknown,
        }
    }
}
