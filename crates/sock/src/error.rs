//! Errors of sockets and transactions.

use std::fmt;

use portolan_wire::{Acknowledgement, DecodeError, EncodeError};

use crate::Errno;

/// The kernel's refusal of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The sequence number of the message.
    pub sequence: u32,
    /// The kernel's error number.
    pub errno: Errno,
    /// The kernel's error text, often absent.
    pub text: Option<String>,
    /// Offset of the wrong attribute in bytes, from the start of the message's header.
    pub offset: Option<u32>,
    /// Type of a missing attribute.
    pub missing: Option<u32>,
}

/// A socket operation failed.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// The name of the call.
        call: &'static str,
        /// Its error number.
        errno: Errno,
    },
    /// A message does not fit into netlink's length fields.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The kernel's reply cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The kernel refused a request.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// The listed objects changed during the dump. Dump again.
    #[error("the list is inconsistent because it changed meanwhile; list again")]
    Interrupted,
    /// Messages were lost because they arrived faster than they were read. Dump again.
    #[error("messages were lost (ENOBUFS); list again")]
    Overrun,
    /// The message exceeds the send buffer.
    #[error("{length} bytes to send at once, {capacity} allowed; split them, or raise net.core.wmem_max")]
    TooLong {
        /// The message's length in bytes.
        length: usize,
        /// Capacity of the send buffer in bytes.
        capacity: usize,
    },
    /// A datagram is longer than the receive buffer.
    #[error("a message of {length} bytes was cut short")]
    Truncated {
        /// The datagram's length in bytes.
        length: usize,
    },
    /// The kernel did not reply within ten seconds.
    #[error("no answer from the kernel")]
    Timeout,
}

/// A transaction failed, or its outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The kernel refused messages; nothing took effect. The list is never empty.
    #[error("refused: {}", List(.0))]
    Refused(Vec<Refusal>),
    /// Another program committed after the generation that the batch names (ERESTART); nothing took effect.
    #[error("another program changed the ruleset meanwhile; read it again")]
    GenerationMoved,
    /// A signal arrived (EINTR); nothing took effect.
    #[error("interrupted by a signal; try again")]
    Interrupted,
    /// `CAP_NET_ADMIN` is missing in the user namespace that owns the network namespace.
    #[error("not permitted; CAP_NET_ADMIN is needed")]
    NotPermitted,
    /// The transaction exceeds the send buffer; nothing was sent.
    #[error("{length} bytes in one transaction, {capacity} allowed; split it, or raise net.core.wmem_max")]
    TooLong {
        /// The transaction's length in bytes.
        length: usize,
        /// Capacity of the send buffer in bytes.
        capacity: usize,
    },
    /// Replies were lost or missing, so it is unknown whether the transaction took effect. Dump again.
    #[error("the kernel's answer was lost; read the ruleset again")]
    Unknown,
    /// The socket failed before anything was sent.
    #[error(transparent)]
    Socket(SocketError),
}

impl SocketError {
    pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::System { call, errno: errno.into() }
    }

    /// Returns the error number, or `None` if the error has none.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::System { errno, .. } => Some(*errno),
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Overrun => Some(Errno::ENOBUFS),
            _ => None,
        }
    }
}

impl Refusal {
    pub(crate) fn from_acknowledgement(acknowledgement: Acknowledgement) -> Self {
        Self {
            sequence: acknowledgement.sequence,
            errno: Errno(acknowledgement.errno),
            text: acknowledgement.text,
            offset: acknowledgement.offset,
            missing: acknowledgement.missing,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}: {}", self.sequence, self.errno)?;
        if let Some(text) = &self.text {
            write!(f, ": {text}")?;
        }
        if let Some(offset) = self.offset {
            write!(f, " (at byte {offset})")?;
        }
        if let Some(missing) = self.missing {
            write!(f, " (attribute {missing} is missing)")?;
        }
        Ok(())
    }
}

/// The first few refusals. A single mistake may cause thousands.
struct List<'a>(&'a [Refusal]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        for (index, refusal) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{refusal}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}
