//! Watch bodies: chunks in, frames out.
//!
//! A watch body is one JSON object a line (`{"type":"ADDED","object":{…}}`). Lines are cut out of the chunks
//! as they come; only a line that straddles two chunks is copied, and no line may pass [`MAX_VALUE`].

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// The longest line or list item that is kept, in bytes. etcd's default request limit is 1.5 MiB and gRPC
/// messages end at a few MiB, so that no honest object comes near.
pub(crate) const MAX_VALUE: usize = 8 << 20;

/// What stays allocated between chunks after a long line has gone by.
const KEEP: usize = 16 << 10;

/// Why a stretch of a body cannot be trusted: the connection is dropped and the collection read anew.
#[derive(Debug, thiserror::Error)]
pub enum Garbage {
    /// One line or list item is longer than any API object.
    #[error(
        "a value of more than {MAX_VALUE} bytes; the API server or a proxy before it sends something else than objects"
    )]
    TooLong,
    /// The bytes are not JSON.
    #[error("not JSON: {0}; the API server or a proxy before it sends something else than objects")]
    NotJson(#[source] serde_json::Error),
    /// A list body has a byte where JSON does not allow it.
    #[error("not a JSON list: unexpected byte {0:#04x}")]
    Unexpected(u8),
    /// A list's or bookmark's own `metadata` does not have the API's form.
    #[error("unusable metadata: {0}")]
    Metadata(#[source] serde_json::Error),
    /// A list body has no `items`, or no `metadata.resourceVersion` to watch from.
    #[error("a list without {0}")]
    Incomplete(&'static str),
    /// A list's `kind` comes after more items than are kept.
    #[error("a list whose kind comes after more than 32 MiB of items; it has to stand before them")]
    LateKind,
    /// A list, the bookmark that ends a streamed one, or an object is of another kind than was asked for. Of these
    /// only an object may say nothing.
    #[error(
        "kind {found:?} where {wanted} was asked for; the API server or a proxy before it mixes up its answers"
    )]
    Kind {
        /// The kind that was asked for.
        wanted: &'static str,
        /// At most 64 characters of what the answer says, empty if it says nothing.
        found: Box<str>,
    },
}

/// Cuts chunks into lines.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    carry: Vec<u8>,
}

impl LineSplitter {
    /// Calls `line` for every line that `chunk` completes, until one returns an error.
    pub(crate) fn push<E: From<Garbage>>(
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

    /// What came after the last line break: nothing, a last line, or half of one.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.carry
    }
}

fn split_line(chunk: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = chunk.split_at_checked(memchr::memchr(b'\n', chunk)?)?;
    Some((head, rest.get(1..).unwrap_or_default()))
}

/// Appends to a buffer of a value that is not complete yet, within [`MAX_VALUE`].
pub(crate) fn carry(buffer: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Garbage> {
    if buffer.len().saturating_add(bytes.len()) > MAX_VALUE {
        return Err(Garbage::TooLong);
    }
    buffer.extend_from_slice(bytes);
    Ok(())
}

/// A watch event's type and the bytes of its object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame<'a> {
    pub(crate) event: Cow<'a, str>,
    pub(crate) object: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Takes a line apart without reading it, in the one form that Go's encoder produces. The object's
    /// bytes are unchecked: if they do not decode, [`Frame::parse`] has the last word.
    pub(crate) fn peel(line: &'a [u8]) -> Option<Self> {
        let rest = line.strip_prefix(br#"{"type":""#)?;
        let (event, rest) = rest.split_at_checked(memchr::memchr(b'"', rest)?)?;
        let object = rest.strip_prefix(br#"","object":"#)?.trim_ascii_end().strip_suffix(b"}")?;
        let event = std::str::from_utf8(event).ok().filter(|event| !event.contains('\\'))?;
        Some(Self { event: Cow::Borrowed(event), object })
    }

    /// Reads a line as JSON. `Ok(None)` if it is JSON but no watch event.
    pub(crate) fn parse(line: &'a [u8]) -> Result<Option<Self>, Garbage> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            r#type: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        match serde_json::from_slice::<Envelope<'_>>(line) {
            Ok(envelope) => {
                Ok(Some(Self { event: envelope.r#type, object: envelope.object.get().as_bytes() }))
            }
            Err(_) => json(line).map(|()| None),
        }
    }
}

/// Whether an answer is of the kind that was asked for.
pub(crate) fn check_kind(wanted: &'static str, found: &str) -> Result<(), Garbage> {
    if found == wanted {
        return Ok(());
    }
    Err(Garbage::Kind { wanted, found: found.chars().take(64).collect() })
}

/// Is this JSON at all?
pub(crate) fn json(bytes: &[u8]) -> Result<(), Garbage> {
    serde_json::from_slice::<IgnoredAny>(bytes).map(|_| ()).map_err(Garbage::NotJson)
}
