//! What can go wrong with a socket, and with a transaction.

use std::fmt;

use portolan_wire::{Acknowledgement, DecodeError, EncodeError};

use crate::Errno;

/// The kernel's refusal of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Number of the message.
    pub sequence: u32,
    /// Why.
    pub errno: Errno,
    /// The kernel's own words, often absent.
    pub text: Option<String>,
    /// Where the wrong attribute starts, from the start of the message's header.
    pub offset: Option<u32>,
    /// Type of an attribute that should be there.
    pub missing: Option<u32>,
}

/// A socket operation failed.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// Which.
        call: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The messages do not fit into netlink's fields.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The kernel's answer makes no sense to us.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The kernel refused a request.
    #[error("refused: {0}")]
    Refused(Refusal),
    /// What was listed changed while it was: ask again.
    #[error("the list is inconsistent because it changed meanwhile; list again")]
    Interrupted,
    /// Messages were lost because they came faster than they were read: list again.
    #[error("messages were lost (ENOBUFS); list again")]
    Overrun,
    /// More bytes than the send buffer takes.
    #[error("{length} bytes to send at once, {capacity} allowed; split them, or raise net.core.wmem_max")]
    TooLong {
        /// Bytes to send.
        length: usize,
        /// Bytes that the send buffer takes.
        capacity: usize,
    },
    /// A datagram was longer than our buffer.
    #[error("a message of {length} bytes was cut short")]
    Truncated {
        /// Its length.
        length: usize,
    },
    /// The kernel did not answer in ten seconds.
    #[error("no answer from the kernel")]
    Timeout,
}

/// A transaction did not take effect, or it is not known whether it did.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The kernel refused messages; nothing took effect. Never empty.
    #[error("refused: {}", List(.0))]
    Refused(Vec<Refusal>),
    /// Another program committed since the generation that the batch names (ERESTART); nothing took effect.
    #[error("another program changed the ruleset meanwhile; read it again")]
    GenerationMoved,
    /// A signal came (EINTR); nothing took effect.
    #[error("interrupted by a signal; try again")]
    Interrupted,
    /// `CAP_NET_ADMIN` is missing in the user namespace that owns the network namespace.
    #[error("not permitted; CAP_NET_ADMIN is needed")]
    NotPermitted,
    /// More bytes than the send buffer takes; nothing was sent.
    #[error("{length} bytes in one transaction, {capacity} allowed; split it, or raise net.core.wmem_max")]
    TooLong {
        /// Bytes to send.
        length: usize,
        /// Bytes that the send buffer takes.
        capacity: usize,
    },
    /// Answers were lost, or none came: whether the batch took effect is unknown. List again.
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

    /// The error number, where there is one.
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

/// The first few refusals; one mistake may refuse thousands of messages.
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
