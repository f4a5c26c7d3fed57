//! Objects as Kubernetes protobuf (`application/vnd.kubernetes.protobuf`), by the tables of [`crate::shape`].
//!
//! Converts bytes to decoded JSON and back. [`decode`] returns what a JSON body with the same content would decode to,
//! so that callers need not know which encoding a client uses. It must not know which values of a field are valid; a
//! decoded object goes through [`crate::shape::conform`] like any other.
//!
//! - A body or a response is an envelope: the bytes `k8s\0`, then a message `Unknown` with `apiVersion` and `kind`
//!   outside of the object ([`decode`], [`encode`]).
//! - A watch is a sequence of frames: the length in four bytes, most significant first, then a message `WatchEvent`
//!   without an envelope, whose object has one ([`encode_watch_event`]).
//! - Stored objects, which are JSON text, are sent in a [`Form`]. A list of them can be encoded in parts.
//! - All served kinds and their lists, `Status`, `DeleteOptions`, `PartialObjectMetadata` and its list have a protobuf
//!   form ([`is_known`]). A `Table`, discovery and the OpenAPI documents have none.
//!
//! Go's encoder writes the zero value of a field that Go holds as a plain value;
//! [`Presence`](crate::shape::Presence) in the tables says for which fields this means absence. Unknown fields are
//! skipped. The tables bound the nesting, because no table contains itself. [`Limits`] bounds the memory.

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

/// Limits of a decoded object.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum estimated bytes of the decoded object. A few bytes of protobuf can stand for an object of hundreds.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: 64 << 20 }
    }
}

/// The error for a body that is not the protobuf form of a known kind.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{problem}", location(.field))]
pub struct DecodeError {
    /// Path of the field; empty for the envelope.
    pub field: String,
    /// What is wrong with the field.
    pub problem: Problem,
}

/// What is wrong with a protobuf body.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// The envelope does not begin with [`MAGIC`].
    #[error("the body is no Kubernetes protobuf: it must begin with the bytes 6b 38 73 00")]
    Magic,
    /// The envelope names a content encoding, such as a compression.
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
    /// A length extends past the end.
    #[error("the protobuf message ends too early")]
    Truncated,
    /// A number has more bits than its type.
    #[error("a protobuf number is too large for its type")]
    Number,
    /// The key of a field is invalid.
    #[error("a protobuf field has the number 0 or an unsupported wire type")]
    Key,
    /// The value has the encoding of another type.
    #[error("protobuf wire type {got}, expected {expected}")]
    WireType {
        /// Wire type of the table's field.
        expected: u8,
        /// Wire type in the body.
        got: u8,
    },
    /// A text is not UTF-8.
    #[error("a string is not valid UTF-8")]
    Utf8,
    /// JSON within protobuf is malformed or not an object.
    #[error("embedded JSON is not valid")]
    Json,
    /// A time is outside of the years that RFC 3339 can express.
    #[error("a time is outside of the years 0000 to 9999")]
    Time,
    /// The decoded object would exceed the memory limit, in bytes.
    #[error("the object would take more than {0} bytes of memory when decoded")]
    TooLarge(usize),
}

/// The error for an object that cannot be encoded as protobuf.
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
    /// A field holds a value of another type than its table names.
    #[error("{}expected {expected}: ask for JSON, and store the object again with validation on", location(.field))]
    WrongType {
        /// Path of the field.
        field: String,
        /// The type in the table.
        expected: &'static str,
    },
}

fn location(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}

/// Joins the path of a field with the rest of the path below it.
fn joined(part: &str, rest: &str) -> String {
    let dot = if rest.is_empty() || rest.starts_with('[') { "" } else { "." };
    format!("{part}{dot}{rest}")
}

/// Returns true if this kind has a protobuf form.
pub fn is_known(api_version: &str, kind: &str) -> bool {
    table(api_version, kind).is_some()
}

/// Returns the object in an enveloped body, with its `apiVersion` and `kind`. If the envelope has none, they are those of
/// `assumed` (apiVersion and kind of the endpoint).
pub fn decode(bytes: &[u8], assumed: (&str, &str), limits: Limits) -> Result<Object, DecodeError> {
    decode::envelope(bytes, assumed, limits)
}

/// Encodes an object with its envelope. Its `apiVersion` and `kind` select the table; fields that the table does not
/// have are left out.
pub fn encode(object: &Object) -> Result<Vec<u8>, EncodeError> {
    encode::envelope(object)
}

/// Encodes one frame of a watch. `event` is its type, such as `ADDED`; `object` is an object of the resource or a
/// Status.
pub fn encode_watch_event(event: &str, object: &Object) -> Result<Vec<u8>, EncodeError> {
    encode::watch_event(event, |out| encode::put_envelope(out, object))
}

/// The form in which stored objects are sent. Objects are passed as JSON text and encoded without decoding them first. A
/// kind in the text is ignored.
#[derive(Debug, Clone, Copy)]
pub enum Form {
    /// Whole objects of the resource.
    Whole(Resource),
    /// Only the metadata, as `PartialObjectMetadata` of this `apiVersion`.
    Metadata(&'static str),
}

impl Form {
    /// Encodes an object with its envelope.
    pub fn encode(self, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
        let mut out = Vec::with_capacity(json.len());
        self.put_envelope(&mut out, json)?;
        Ok(out)
    }

    /// Encodes one frame of a watch with this object.
    pub fn encode_watch_event(self, event: &str, json: &[u8]) -> Result<Vec<u8>, EncodeError> {
        encode::watch_event(event, |out| self.put_envelope(out, json))
    }

    /// Returns a frame of a watch with the object that [`Form::put_item`] has written.
    pub fn watch_event_of_item(self, event: &str, item: &[u8]) -> Result<Vec<u8>, EncodeError> {
        encode::watch_event(event, |out| encode::enveloped_item(out, self.kind(), item))
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

    /// Returns the bytes before and after the items of a list, which take `length` bytes. `metadata` is that of the list.
    pub fn around_items(self, metadata: &Object, length: usize) -> Result<(Vec<u8>, Vec<u8>), EncodeError> {
        let (api_version, kind) = self.kind();
        let kind = format!("{kind}List");
        encode::around_items((api_version, &kind), encode::table_of(api_version, &kind)?, metadata, length)
    }

    fn put_envelope(self, out: &mut Vec<u8>, json: &[u8]) -> Result<(), EncodeError> {
        let table = self.table()?;
        encode::enveloped(out, self.kind(), |out| encode::text(out, table, json))
    }

    /// Returns `apiVersion` and `kind`.
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

/// Returns the table of a kind that has a protobuf form.
fn table(api_version: &str, kind: &str) -> Option<&'static Struct> {
    if let Some(resource) = Resource::by_kind(api_version, kind) {
        return Some(shape::of(resource));
    }
    let of_list = kind.strip_suffix("List").and_then(|item| Resource::by_kind(api_version, item));
    if let Some(resource) = of_list {
        return Some(shape::list_of(resource));
    }
    match (api_version, kind) {
        // Clients name DeleteOptions in the group of the object that they delete.
        (_, "DeleteOptions") => Some(&meta::DELETE_OPTIONS),
        ("v1" | "meta.k8s.io/v1", "Status") => Some(&meta::STATUS),
        ("meta.k8s.io/v1", "PartialObjectMetadata") => Some(&meta::PARTIAL_OBJECT_METADATA),
        ("meta.k8s.io/v1", "PartialObjectMetadataList") => Some(&meta::PARTIAL_OBJECT_METADATA_LIST),
        _ => None,
    }
}
