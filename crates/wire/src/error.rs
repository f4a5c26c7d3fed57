//! What can be wrong with bytes that we read, and with values that do not fit into bytes.

/// Bytes that are not the message they claim to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the structure does.
    #[error("{object}: cut short at byte {offset}: {needed} bytes needed, {have} left")]
    Truncated {
        /// What was being read.
        object: &'static str,
        /// Where the structure starts, from the start of the message's payload.
        offset: usize,
        /// Bytes that the structure needs.
        needed: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// An attribute's payload is not as long as its type.
    #[error("{object}: attribute {attribute} at byte {offset} has {have} bytes instead of {expected}")]
    Length {
        /// What was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
        /// Where its payload starts.
        offset: usize,
        /// The length that its type has.
        expected: usize,
        /// The length found.
        have: usize,
    },
    /// An attribute that the object cannot do without is not there.
    #[error("{object}: attribute {attribute} is missing")]
    Missing {
        /// What was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
    },
    /// A name is not UTF-8.
    #[error("{object}: attribute {attribute} at byte {offset} is not UTF-8 text")]
    Text {
        /// What was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
        /// Where its payload starts.
        offset: usize,
    },
    /// A number outside the range that its field allows.
    #[error("{object}: attribute {attribute} at byte {offset} has the impossible value {value:#x}")]
    Value {
        /// What was being read.
        object: &'static str,
        /// The attribute's type.
        attribute: u16,
        /// Where its payload starts.
        offset: usize,
        /// The value found.
        value: u64,
    },
}

/// A value that does not fit into netlink's fields. The batch that holds it must not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// An attribute's length is a u16 (`struct nlattr`): 65,531 bytes of payload.
    #[error(
        "message {sequence}: attribute {attribute} would be {length} bytes long, the limit is 65535; split it"
    )]
    AttributeTooLong {
        /// The message's sequence number.
        sequence: u32,
        /// The attribute's type.
        attribute: u16,
        /// Its length with the header.
        length: usize,
    },
    /// A message's length is a u32 (`struct nlmsghdr`).
    #[error("message {sequence} would be {length} bytes long, the limit is 4294967295; split it")]
    MessageTooLong {
        /// The message's sequence number.
        sequence: u32,
        /// Its length with the header.
        length: usize,
    },
}
