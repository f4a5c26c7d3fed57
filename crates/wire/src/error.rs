//! Errors in received bytes, and values that do not fit into a message.

/// Bytes that are not the message that they claim to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the structure does.
    #[error("{object}: cut short at byte {offset}: {needed} bytes needed, {have} left")]
    Truncated {
        /// The object that was being read.
        object: &'static str,
        /// Offset of the structure from the start of the message's payload.
        offset: usize,
        /// Number of bytes that the structure needs.
        needed: usize,
        /// Number of bytes that are left.
        have: usize,
    },
    /// An attribute's payload does not have the length of its type.
    #[error("{object}: attribute {attribute} at byte {offset} has {have} bytes instead of {expected}")]
    Length {
        /// The object that was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
        /// Offset of the attribute's payload.
        offset: usize,
        /// The length that the type requires.
        expected: usize,
        /// The length found.
        have: usize,
    },
    /// A required attribute is missing.
    #[error("{object}: attribute {attribute} is missing")]
    Missing {
        /// The object that was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
    },
    /// A text is not UTF-8.
    #[error("{object}: attribute {attribute} at byte {offset} is not UTF-8 text")]
    Text {
        /// The object that was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
        /// Offset of the attribute's payload.
        offset: usize,
    },
    /// A number is outside the range of its field.
    #[error("{object}: attribute {attribute} at byte {offset} has the impossible value {value:#x}")]
    Value {
        /// The object that was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
        /// Offset of the attribute's payload.
        offset: usize,
        /// The value found.
        value: u64,
    },
}

/// A value that does not fit into netlink's fields. The batch that contains it must not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// An attribute is longer than its u16 length field allows (`struct nlattr`): 65,531 bytes of payload.
    #[error(
        "message {sequence}: attribute {attribute} would be {length} bytes long, the limit is 65535; split it"
    )]
    AttributeTooLong {
        /// The message's sequence number.
        sequence: u32,
        /// The attribute's type.
        attribute: u16,
        /// The attribute's length with its header.
        length: usize,
    },
    /// A message is longer than its u32 length field allows (`struct nlmsghdr`).
    #[error("message {sequence} would be {length} bytes long, the limit is 4294967295; split it")]
    MessageTooLong {
        /// The message's sequence number.
        sequence: u32,
        /// The message's length with its header.
        length: usize,
    },
}
