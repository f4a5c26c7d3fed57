//! Splits the body of a watch into frames.
//!
//! A watch body has one JSON object per line (`{"type":"ADDED","object":{…}}`). Lines are cut out of the chunks as
//! they arrive. Only a line that spans several chunks is copied. No line may be longer than [`MAX_VALUE`].

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use portolan_model::object::Encoded;
use portolan_model::object::message::Malformed;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// Maximum bytes of a line or list item. etcd's default request limit is 1.5 MiB and gRPC messages are limited to a
/// few MiB, so no real object comes near.
pub(crate) const MAX_VALUE: usize = 8 << 20;

/// Bytes of the buffer that stay allocated after a long line.
const KEEP: usize = 16 << 10;

/// Why a body cannot be trusted. The connection is dropped and the collection is listed again.
#[derive(Debug, thiserror::Error)]
pub enum InvalidBody {
    /// A line or list item is longer than any API object.
    #[error(
        "a value of more than {MAX_VALUE} bytes; the API server or a proxy before it sends something else than objects"
    )]
    TooLong,
    /// The bytes are not JSON.
    #[error("not JSON: {0}; the API server or a proxy before it sends something else than objects")]
    NotJson(#[source] serde_json::Error),
    /// The bytes are not protobuf, although the answer says so.
    #[error("not protobuf: {0}; the API server or a proxy before it sends something else than objects")]
    NotProtobuf(#[from] Malformed),
    /// A list body has a byte where JSON does not allow it.
    #[error("not a JSON list: unexpected byte {0:#04x}")]
    Unexpected(u8),
    /// The `metadata` of a list does not have the API's form.
    #[error("unusable metadata: {0}")]
    Metadata(#[source] serde_json::Error),
    /// A list body has no `items`, or no `metadata.resourceVersion` to watch from.
    #[error("a list without {0}")]
    Incomplete(&'static str),
    /// The `kind` of a list comes after more items than are kept.
    #[error("a list whose kind comes after more than 32 MiB of items; it has to stand before them")]
    LateKind,
    /// A list, the bookmark that ends a streamed list, or an object is of another kind than was requested. Of these
    /// only an object may have no kind.
    #[error(
        "kind {found:?} where {wanted} was asked for; the API server or a proxy before it mixes up its answers"
    )]
    Kind {
        /// The kind that was requested.
        wanted: &'static str,
        /// At most 64 characters of the kind in the answer; empty if it has none.
        found: Box<str>,
    },
}

/// Splits chunks into lines.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    carry: Vec<u8>,
}

impl LineSplitter {
    /// Calls `line` for every line that `chunk` completes, until one call returns an error.
    pub(crate) fn push<E: From<InvalidBody>>(
        &mut self,
        mut chunk: &[u8],
        mut line: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some((head, rest)) = split_line(chunk) {
            chunk = rest;
            if self.carry.is_empty() {
                line(head)?;
            } else {
                carry(&mut self.carry, head)?;
                let result = line(&self.carry);
                self.carry.clear();
                self.carry.shrink_to(KEEP);
                result?;
            }
        }
        Ok(carry(&mut self.carry, chunk)?)
    }

    /// Returns the bytes after the last line break: nothing, a last line, or a part of one.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.carry
    }
}

fn split_line(chunk: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = chunk.split_at_checked(memchr::memchr(b'\n', chunk)?)?;
    Some((head, rest.get(1..).unwrap_or_default()))
}

/// Appends to the buffer of an incomplete value, up to [`MAX_VALUE`].
pub(crate) fn carry(buffer: &mut Vec<u8>, bytes: &[u8]) -> Result<(), InvalidBody> {
    if buffer.len().saturating_add(bytes.len()) > MAX_VALUE {
        return Err(InvalidBody::TooLong);
    }
    buffer.extend_from_slice(bytes);
    Ok(())
}

/// The type of a watch event and its object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) event: Cow<'a, str>,
    pub(crate) object: Encoded<'a>,
}

impl<'a> Frame<'a> {
    /// Splits a line without parsing JSON, if it has the form that Go's encoder produces. The object's bytes are
    /// not checked: if they do not decode, [`Frame::parse`] decides.
    pub(crate) fn peel(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_prefix(br#"{"type":""#)?;
        let (event, rest) = rest.split_at_checked(memchr::memchr(b'"', rest)?)?;
        let object = rest.strip_prefix(br#"","object":"#)?.trim_ascii_end().strip_suffix(b"}")?;
        let event = std::str::from_utf8(event).ok().filter(|event| !event.contains('\\'))?;
        Some(Self { event: Cow::Borrowed(event), object: Encoded::Json(object) })
    }

    /// Parses a line as JSON. Returns `Ok(None)` if it is JSON but not a watch event.
    pub(crate) fn parse(line: &'a [u8]) -> Result<Option<Self>, InvalidBody> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            r#type: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        match serde_json::from_slice::<Envelope<'_>>(line) {
            Ok(envelope) => {
                let object = Encoded::Json(envelope.object.get().as_bytes());
                Ok(Some(Self { event: envelope.r#type, object }))
            }
            Err(_) => json(line).map(|()| None),
        }
    }
}

/// Fails if an answer is not of the requested kind.
pub(crate) fn check_kind(wanted: &'static str, found: &str) -> Result<(), InvalidBody> {
    if found == wanted {
        return Ok(());
    }
    Err(InvalidBody::Kind { wanted, found: found.chars().take(64).collect() })
}

/// Fails if the bytes are not JSON.
pub(crate) fn json(bytes: &[u8]) -> Result<(), InvalidBody> {
    serde_json::from_slice::<IgnoredAny>(bytes).map(|_| ()).map_err(InvalidBody::NotJson)
}
