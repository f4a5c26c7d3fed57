//! Objects as Kubernetes protobuf (`application/vnd.kubernetes.protobuf`), by the tables of [`crate::shape`].
//!
//! Bytes in, decoded JSON out, and back. The result of [`decode`] is what a JSON body with the same content would have
//! been, so that everything behind it need not know which of the two a client sent. It must not know which values make
//! sense; a decoded object goes through [`crate::shape::conform`] like any other.
//!
//! - A body or a response is an envelope: the bytes `k8s\0`, then a message `Unknown` with `apiVersion` and `kind`
//!   apart from the object ([`decode`], [`encode`]).
//! - A watch is a row of frames: the length in four bytes, most significant first, then a bare message `WatchEvent`
//!   whose object is enveloped ([`encode_watch_event`]).
//! - Stored objects, which are JSON text, are sent in a [`Form`]; a list of them can be made in parts.
//! - Known are all served kinds and their lists, `Status`, `DeleteOptions`, `PartialObjectMetadata` and its list
//!   ([`is_known`]). A `Table`, discovery and documents have no protobuf form.
//!
//! Go's encoder writes the zero value of a field that it holds as a plain value; [`Presence`](crate::shape::Presence)
//! in the tables says where that means absence. Unknown fields are skipped. Nesting is bounded by the tables, which do
//! not contain themselves; memory by [`Limits`].

mod decode;
mod encode;
mod transcode;
mod wire;

use thiserror::Error;

use crate::{
    json::Object,
    resource::Resource,
    shape::{self, Struct, meta},
};

#[cfg(test)]
mod tests;

/// First bytes of an envelope.
pub const MAGIC: [u8; 4] = *b"k8s\0";
/// Media type of bodies and responses; a watch adds `;stream=watch`.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Fields of the message `Unknown` (apimachinery `runtime/generated.proto`).
const UNKNOWN_TYPE: u32 = 1;
const UNKNOWN_RAW: u32 = 2;
const UNKNOWN_CONTENT_ENCODING: u32 = 3;
const UNKNOWN_CONTENT_TYPE: u32 = 4;

/// What a decoded object may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Estimated bytes of memory of the decoded object. A few bytes of protobuf can stand for an object of hundreds.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 64 << 20 }
    }
}

/// A body is not the protobuf form of a known kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{problem}", location(.field))]
pub struct DecodeError {
    /// Path of the field; empty for the envelope.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What can be wrong with a protobuf body.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// The envelope does not begin as it must.
    #[error("the body is no Kubernetes protobuf: it must begin with the bytes 6b 38 73 00")]
    Magic,
    /// The object says of itself that it is compressed.
    #[error("content encoding {0:?} is not supported: send the object as it is")]
    ContentEncoding(String),
    /// No table has this kind.
    #[error(
        "kind {kind:?} of {api_version:?} is not known in protobuf: send JSON, or a kind that is served here"
    )]
    UnknownKind {
        /// `apiVersion` of the body.
        api_version: String,
        /// `kind` of the body.
        kind: String,
    },
    /// A length points past the end.
    #[error("the protobuf message ends too early")]
    Truncated,
    /// A number is encoded in more bits than its type has.
    #[error("a protobuf number is too large for its type")]
    Number,
    /// The key of a field is no key.
    #[error("a protobuf field has the number 0 or an unsupported wire type")]
    Key,
    /// The value is encoded as another type.
    #[error("protobuf wire type {got}, expected {expected}")]
    WireType {
        /// What the table demands.
        expected: u8,
        /// What is there.
        got: u8,
    },
    /// Text that is no text.
    #[error("a string is not valid UTF-8")]
    Utf8,
    /// JSON within protobuf that is no JSON, or no object.
    #[error("embedded JSON is not valid")]
    Json,
    /// A moment outside of the years that RFC 3339 can write.
    #[error("a time is outside of the years 0000 to 9999")]
    Time,
    /// The decoded object would cost more than the limit.
    #[error("the object would take more than {0} bytes of memory when decoded")]
    TooLarge(usize),
}

/// An object cannot be written as protobuf.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// No table has this kind.
    #[error("kind {kind:?} of {api_version:?} has no protobuf form: ask for JSON")]
    UnknownKind {
        /// `apiVersion` of the object.
        api_version: String,
        /// `kind` of the object.
        kind: String,
    },
    /// A field holds something else than its table says.
    #[error("{}expected {expected}: ask for JSON, and store the object again with validation on", location(.field))]
    WrongType {
        /// Path of the field.
        field: String,
        /// What belongs there.
        expected: &'static str,
    },
}

fn location(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}

/// The path of `rest` in `part`.
fn joined(part: &str, rest: &str) -> String {
    let dot = if rest.is_empty() || rest.starts_with('[') { "" } else { "." };
    format!("{part}{dot}{rest}")
}

/// Whether this kind has a protobuf form here.
pub fn is_known(api_version: &str, kind: &str) -> bool {
    table(api_version, kind).is_some()
}

/// The object in an enveloped body, with its `apiVersion` and `kind`. Where the envelope names none, the kind is the
/// `assumed` one (apiVersion and kind of the endpoint).
pub fn decode(bytes: &[u8], assumed: (&str, &str), limits: Limits) -> Result<Object, DecodeError> {
    decode::envelope(bytes, assumed, limits)
}

/// The envelope with this object. Its `apiVersion` and `kind` say which table applies; fields outside of that table
/// are left out.
pub fn encode(object: &Object) -> Result<Vec<u8>, EncodeError> {
    encode::envelope(object)
}

/// One frame of a watch. `event` is its type, such as `ADDED`; the object is an object of the resource or a Status.
pub fn encode_watch_event(event: &str, object: &Object) -> Result<Vec<u8>, EncodeError> {
    encode::watch_event(event, |out| encode::put_envelope(out, object))
}

/// How stored objects are sent. Takes them as JSON text and makes no decoded object of it; the kind that the text may
/// name does not matter.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// As objects of the resource.
    Whole(Resource),
    /// Their metadata alone, as `PartialObjectMetadata` of this `apiVersion`.
    Metadata(&'static str),
}

impl Form {
    /// The envelope with this object.
    pub fn encode(self, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
        let mut out = Vec::with_capacity(json.len());
        self.put_envelope(&mut out, json)?;
        Ok(out)
    }

    /// One frame of a watch with this object.
    pub fn encode_watch_event(self, event: &str, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
        encode::watch_event(event, |out| self.put_envelope(out, json))
    }

    /// Appends this object as an item of a list.
    pub fn put_item(self, out: &mut Vec<u8>, json: &[u8]) -> Result<(), EncodeError> {
        let list = match self {
            Self::Whole(resource) => shape::list_of(resource),
            Self::Metadata(_) => &meta::PARTIAL_OBJECT_METADATA_LIST,
        };
        let (tag, table) = (list.field("items").map_or(0, |field| field.tag), self.table()?);
        wire::put_message(out, tag, |out| encode::text(out, table, json))
    }

    /// What comes before and after the items of a list, which take `length` bytes; `metadata` is that of the list.
    pub fn around_items(self, metadata: &Object, length: usize) -> Result<(Vec<u8>, Vec<u8>), EncodeError> {
        let (api_version, kind) = self.kind();
        let kind = format!("{kind}List");
        encode::around_items((api_version, &kind), encode::table_of(api_version, &kind)?, metadata, length)
    }

    fn put_envelope(self, out: &mut Vec<u8>, json: &[u8]) -> Result<(), EncodeError> {
        let table = self.table()?;
        encode::enveloped(out, self.kind(), |out| encode::text(out, table, json))
    }

    /// `apiVersion` and `kind`.
    fn kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Whole(resource) => (resource.info().api_version, resource.info().kind),
            Self::Metadata(api_version) => (api_version, "PartialObjectMetadata"),
        }
    }

    fn table(self) -> Result<&'static Struct, EncodeError> {
        let (api_version, kind) = self.kind();
        encode::table_of(api_version, kind)
    }
}

/// The table of a kind that has a protobuf form.
fn table(api_version: &str, kind: &str) -> Option<&'static Struct> {
    if let Some(resource) = Resource::by_kind(api_version, kind) {
        return Some(shape::of(resource));
    }
    let of_list = kind.strip_suffix("List").and_then(|item| Resource::by_kind(api_version, item));
    if let Some(resource) = of_list {
        return Some(shape::list_of(resource));
    }
    match (api_version, kind) {
        // Clients name it in the group of the object that they delete.
        (_, "DeleteOptions") => Some(&meta::DELETE_OPTIONS),
        ("v1" | "meta.k8s.io/v1", "Status") => Some(&meta::STATUS),
        ("meta.k8s.io/v1", "PartialObjectMetadata") => Some(&meta::PARTIAL_OBJECT_METADATA),
        ("meta.k8s.io/v1", "PartialObjectMetadataList") => Some(&meta::PARTIAL_OBJECT_METADATA_LIST),
        _ => None,
    }
}
