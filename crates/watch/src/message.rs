//! Watch events in protobuf (`application/vnd.kubernetes.protobuf;stream=watch`).
//!
//! A watch body is a sequence of frames: the length in four bytes, most significant first, then a message `WatchEvent`. Its object
//! is in an envelope: the bytes `k8s\0`, then a message `Unknown` with kind and object (apimachinery `runtime/generated.proto`,
//! `meta/v1/generated.proto`). Frames are cut out of the chunks as they arrive. Only one that spans several chunks is copied.

#[cfg(test)]
mod tests;

use portolan_model::object::Encoded;
use portolan_model::object::message::{Fields, Value};

use crate::frame::{Frame, InvalidBody, MAX_VALUE, carry};

/// Bytes of a frame's length.
const LENGTH: usize = 4;
/// The beginning of an envelope.
const MAGIC: &[u8] = b"k8s\0";

/// Splits chunks into the messages of their frames.
#[derive(Debug, Default)]
pub(crate) struct MessageSplitter {
    /// An incomplete frame.
    carry: Vec<u8>,
}

impl MessageSplitter {
    /// Calls `message` for every message that `chunk` completes, until one call returns an error.
    pub(crate) fn push<E: From<InvalidBody>>(
        &mut self,
        mut chunk: &[u8],
        mut message: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !self.carry.is_empty() {
            let missing = missing(&self.carry)?;
            if missing == 0 {
                let whole = std::mem::take(&mut self.carry);
                message(whole.get(LENGTH..).unwrap_or_default())?;
                break;
            }
            let Some((head, rest)) = chunk.split_at_checked(missing) else {
                return Ok(carry(&mut self.carry, chunk)?);
            };
            carry(&mut self.carry, head)?;
            chunk = rest;
        }
        while missing(chunk)? == 0 {
            let (frame, rest) =
                chunk.split_at_checked(length(chunk).unwrap_or(LENGTH)).unwrap_or((chunk, &[]));
            chunk = rest;
            message(frame.get(LENGTH..).unwrap_or_default())?;
        }
        Ok(carry(&mut self.carry, chunk)?)
    }

    /// Returns true if no frame is incomplete.
    pub(crate) fn is_complete(&self) -> bool {
        self.carry.is_empty()
    }
}

/// Returns the length of the first frame with its own length; `None` if that is not there yet.
fn length(frame: &[u8]) -> Option<usize> {
    let length = u32::from_be_bytes(*frame.first_chunk::<LENGTH>()?);
    usize::try_from(length).ok()?.checked_add(LENGTH)
}

/// Returns how many bytes the first frame lacks, as far as its beginning tells.
fn missing(frame: &[u8]) -> Result<usize, InvalidBody> {
    let length = length(frame).unwrap_or(LENGTH);
    if length > MAX_VALUE {
        return Err(InvalidBody::TooLong);
    }
    // An incomplete length is not a frame without content.
    Ok(if frame.len() < LENGTH { LENGTH - frame.len() } else { length.saturating_sub(frame.len()) })
}

/// Reads a message `WatchEvent`.
pub(crate) fn event(message: &[u8]) -> Result<Frame<'_>, InvalidBody> {
    let (mut event, mut object) = ("", None);
    for field in Fields::new(message) {
        match field? {
            (1, value) => event = value.text().unwrap_or_default(),
            (2, value) => object = value.bytes(),
            _ => {}
        }
    }
    let mut raw: &[u8] = &[];
    for field in Fields::new(object.unwrap_or_default()) {
        if let (1, Value::Bytes(bytes)) = field? {
            raw = bytes;
        }
    }
    Ok(Frame { event: event.into(), object: opened(raw)? })
}

/// Returns the object in an envelope. An object without a form in protobuf is JSON, with or without an envelope.
pub(crate) fn opened(bytes: &[u8]) -> Result<Encoded<'_>, InvalidBody> {
    let Some(unknown) = bytes.strip_prefix(MAGIC) else { return Ok(Encoded::Json(bytes)) };
    let (mut kind, mut object, mut is_json): (&str, &[u8], bool) = ("", &[], false);
    for field in Fields::new(unknown) {
        match field? {
            (1, Value::Bytes(type_meta)) => {
                for field in Fields::new(type_meta) {
                    if let (2, value) = field? {
                        kind = value.text().unwrap_or_default();
                    }
                }
            }
            (2, Value::Bytes(bytes)) => object = bytes,
            (4, value) => is_json = value.text().is_some_and(|text| text.starts_with("application/json")),
            _ => {}
        }
    }
    Ok(if is_json { Encoded::Json(object) } else { Encoded::Protobuf { kind, message: object } })
}
