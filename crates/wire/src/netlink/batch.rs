//! Writes messages. Lengths are filled in when a message or a nested attribute ends.

use super::{
    ATTRIBUTE_HEADER_LENGTH, Frame, Frames, HEADER_LENGTH, NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, aligned,
};
use crate::EncodeError;

/// Messages in one buffer with consecutive sequence numbers, to be sent together.
///
/// A value that does not fit is recorded and makes [`Batch::bytes`] fail, so that an incomplete message is never
/// sent.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    first_sequence: u32,
    next_sequence: u32,
    last_message: Option<usize>,
    error: Option<EncodeError>,
}

/// A message that is being written. It is completed on drop.
#[derive(Debug)]
pub struct Message<'a> {
    batch: &'a mut Batch,
    start: usize,
    sequence: u32,
}

/// A single message (a dump or a query). The socket sets its sequence number.
#[derive(Debug, Clone)]
pub struct Request {
    batch: Batch,
}

/// A nested attribute that is being written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenNest {
    start: usize,
    kind: u16,
}

impl Batch {
    /// Creates an empty batch whose first message gets the sequence number `first_sequence`.
    pub fn new(first_sequence: u32) -> Self {
        Self { first_sequence, next_sequence: first_sequence, ..Self::default() }
    }

    /// Starts a message of type `kind`. [`NLM_F_REQUEST`] is added to `flags`. `family_header` follows the netlink
    /// header.
    pub fn message(&mut self, kind: u16, flags: u16, family_header: &[u8]) -> Message<'_> {
        let start = self.open(kind, flags, family_header);
        let sequence = self.next_sequence.wrapping_sub(1);
        Message { batch: self, start, sequence }
    }

    /// Returns the bytes to send, or the first error.
    pub fn bytes(&self) -> Result<&[u8], EncodeError> {
        self.error.map_or(Ok(self.bytes.as_slice()), Err)
    }

    /// Returns the number of bytes written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if the batch has no message.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the sequence number of the first message.
    pub fn first_sequence(&self) -> u32 {
        self.first_sequence
    }

    /// Returns the sequence number of the next message: one more than that of the last.
    pub fn next_sequence(&self) -> u32 {
        self.next_sequence
    }

    /// Reserves memory for `bytes` more bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve(bytes);
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self, first_sequence: u32) {
        self.bytes.clear();
        (self.first_sequence, self.next_sequence) = (first_sequence, first_sequence);
        (self.last_message, self.error) = (None, None);
    }

    /// Requests an acknowledgement of the last message.
    pub fn acknowledge_last(&mut self) {
        let Some(at) = self.last_message.map(|start| start.saturating_add(6)) else { return };
        if let Some(&[low, high]) = self.bytes.get(at..at.saturating_add(2)) {
            let flags = u16::from_ne_bytes([low, high]) | NLM_F_ACK;
            self.patch(at, &flags.to_ne_bytes());
        }
    }

    /// Returns the message with this sequence number, for error reports. Searches the whole batch.
    pub fn frame(&self, sequence: u32) -> Option<Frame<'_>> {
        Frames::new(&self.bytes).filter_map(Result::ok).find(|frame| frame.header.sequence == sequence)
    }

    /// Starts a message and returns its offset.
    pub(crate) fn open(&mut self, kind: u16, flags: u16, family_header: &[u8]) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&0_u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&self.next_sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&0_u32.to_ne_bytes());
        self.bytes.extend_from_slice(family_header);
        self.pad();
        self.last_message = Some(start);
        self.next_sequence = self.next_sequence.wrapping_add(1);
        start
    }

    /// Ends the message at the offset `start`.
    pub(crate) fn close(&mut self, start: usize) {
        let length = self.bytes.len().saturating_sub(start);
        match u32::try_from(length) {
            Ok(length) => self.patch(start, &length.to_ne_bytes()),
            Err(_) => self.fail(|sequence| EncodeError::MessageTooLong { sequence, length }),
        }
    }

    /// Starts a nested attribute.
    pub(crate) fn open_nest(&mut self, kind: u16) -> OpenNest {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&0_u16.to_ne_bytes());
        self.bytes.extend_from_slice(&(kind | NLA_F_NESTED).to_ne_bytes());
        OpenNest { start, kind }
    }

    /// Ends a nested attribute.
    pub(crate) fn close_nest(&mut self, OpenNest { start, kind: attribute }: OpenNest) {
        let length = self.bytes.len().saturating_sub(start);
        match u16::try_from(length) {
            Ok(length) => self.patch(start, &length.to_ne_bytes()),
            Err(_) => self.fail(|sequence| EncodeError::AttributeTooLong { sequence, attribute, length }),
        }
    }

    /// Writes an attribute.
    pub(crate) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.attribute_of(kind, payload, &[]);
    }

    /// Writes an attribute whose payload is `payload` followed by `tail`.
    pub(crate) fn attribute_of(&mut self, attribute: u16, payload: &[u8], tail: &[u8]) {
        let length = ATTRIBUTE_HEADER_LENGTH.saturating_add(payload.len()).saturating_add(tail.len());
        let Ok(short) = u16::try_from(length) else {
            return self.fail(|sequence| EncodeError::AttributeTooLong { sequence, attribute, length });
        };
        self.bytes.extend_from_slice(&short.to_ne_bytes());
        self.bytes.extend_from_slice(&attribute.to_ne_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.extend_from_slice(tail);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(aligned(self.bytes.len()), 0);
    }

    fn patch(&mut self, at: usize, value: &[u8]) {
        if let Some(field) = self.bytes.get_mut(at..at.saturating_add(value.len())) {
            field.copy_from_slice(value);
        }
    }

    fn fail(&mut self, error: impl FnOnce(u32) -> EncodeError) {
        let sequence = self.next_sequence.wrapping_sub(1);
        self.error.get_or_insert_with(|| error(sequence));
    }
}

impl Message<'_> {
    /// Returns the message's sequence number, which the kernel repeats in an error.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Returns the batch, for code that writes attributes without this type.
    pub(crate) fn batch_mut(&mut self) -> &mut Batch {
        self.batch
    }

    /// Writes a byte.
    pub fn attr_u8(&mut self, kind: u16, value: u8) {
        self.batch.attribute(kind, &[value]);
    }

    /// Writes a 16-bit number in network byte order.
    pub fn attr_u16_be(&mut self, kind: u16, value: u16) {
        self.batch.attribute(kind, &value.to_be_bytes());
    }

    /// Writes a 32-bit number in network byte order.
    pub fn attr_u32_be(&mut self, kind: u16, value: u32) {
        self.batch.attribute(kind, &value.to_be_bytes());
    }

    /// Writes a 32-bit number in the machine's byte order.
    pub fn attr_u32_ne(&mut self, kind: u16, value: u32) {
        self.batch.attribute(kind, &value.to_ne_bytes());
    }

    /// Writes a signed 32-bit number in network byte order.
    pub fn attr_i32_be(&mut self, kind: u16, value: i32) {
        self.batch.attribute(kind, &value.to_be_bytes());
    }

    /// Writes a 64-bit number in network byte order.
    pub fn attr_u64_be(&mut self, kind: u16, value: u64) {
        self.batch.attribute(kind, &value.to_be_bytes());
    }

    /// Writes bytes.
    pub fn attr_bytes(&mut self, kind: u16, value: &[u8]) {
        self.batch.attribute(kind, value);
    }

    /// Writes text with a terminating NUL byte.
    pub fn attr_str(&mut self, kind: u16, value: &str) {
        self.batch.attribute_of(kind, value.as_bytes(), &[0]);
    }

    /// Writes a nested attribute whose content is already encoded.
    pub(crate) fn attr_nested_bytes(&mut self, kind: u16, attributes: &[u8]) {
        self.batch.attribute(kind | NLA_F_NESTED, attributes);
    }

    /// Writes a nested attribute whose content `content` writes.
    pub fn nest(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let nest = self.batch.open_nest(kind);
        content(self);
        self.batch.close_nest(nest);
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        self.batch.close(self.start);
    }
}

impl Request {
    /// Creates a message. `content` writes its attributes.
    pub fn new(kind: u16, flags: u16, family_header: &[u8], content: impl FnOnce(&mut Message<'_>)) -> Self {
        let mut batch = Batch::new(0);
        content(&mut batch.message(kind, flags, family_header));
        Self { batch }
    }

    /// Returns the bytes to send with this sequence number.
    pub fn bytes(&mut self, sequence: u32) -> Result<&[u8], EncodeError> {
        self.batch.patch(HEADER_LENGTH - 8, &sequence.to_ne_bytes());
        self.batch.bytes()
    }
}
