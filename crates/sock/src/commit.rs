//! Sends batches of messages and reads their replies.
//!
//! The kernel's netfilter code works within the call that sends: when the call returns, all replies are queued. They
//! are therefore read without waiting until the queue is empty.

use portolan_wire::netlink::NLMSG_ERROR;
use portolan_wire::{Batch, DecodeError, Frame};

use crate::{CommitError, Errno, Refusal, Socket, SocketError};

/// The replies to the messages of a batch.
#[derive(Debug, Default)]
pub struct Replies {
    /// The number of acknowledgements. The kernel acknowledges only messages that ask for it.
    pub acknowledged: usize,
    /// The refused messages.
    pub refusals: Vec<Refusal>,
    /// True if replies were lost because the receive buffer was full or could not be read.
    pub lost: bool,
}

impl Socket {
    /// Sends a transaction (built with `nftables::Transaction`) and reads the kernel's replies.
    ///
    /// A transaction succeeds if its last change is acknowledged, as that change requests, and no message is refused.
    /// Kernels before 6.10 do not acknowledge the end of the batch.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), CommitError> {
        let replies = self.submit(batch).map_err(CommitError::from_submit)?;
        match replies.refusals.first() {
            None if replies.lost || replies.acknowledged == 0 => Err(CommitError::Unknown),
            None => Ok(()),
            Some(first) if first.sequence == batch.first_sequence() => {
                Err(CommitError::from_whole(first.errno, replies.refusals))
            }
            Some(_) => Err(CommitError::Refused(replies.refusals)),
        }
    }

    /// Sends independent messages, such as conntrack deletions, and collects the replies.
    pub fn submit(&mut self, batch: &Batch) -> Result<Replies, SocketError> {
        self.ask(batch, |_| Ok(()))
    }

    /// Sends independent requests that are no dumps, and passes each reply to `handle`. All replies have to fit into the
    /// receive buffer; otherwise some are [lost](Replies::lost).
    pub fn ask(
        &mut self,
        batch: &Batch,
        mut handle: impl FnMut(&Frame<'_>) -> Result<(), DecodeError>,
    ) -> Result<Replies, SocketError> {
        self.send(batch.bytes()?)?;
        let count = batch.next_sequence().wrapping_sub(batch.first_sequence());
        let (first, port) = (batch.first_sequence(), self.port);
        let mut replies = Replies::default();
        let outcome = self.drain(|frame| {
            // Replies to an earlier batch may still be queued.
            let ours = frame.header.sequence.wrapping_sub(first) < count && frame.header.port == port;
            if !ours {
                return Ok(());
            }
            if frame.header.kind != NLMSG_ERROR {
                return handle(frame);
            }
            match frame.acknowledgement().transpose()? {
                Some(acknowledgement) if acknowledgement.errno != 0 => {
                    replies.refusals.push(Refusal::from_acknowledgement(acknowledgement));
                }
                _ => replies.acknowledged = replies.acknowledged.saturating_add(1),
            }
            Ok(())
        });
        // The messages have been sent. After an error while reading, their outcome is unknown.
        replies.lost = outcome.is_err();
        Ok(replies)
    }
}

impl CommitError {
    fn from_submit(error: SocketError) -> Self {
        match error {
            SocketError::TooLong { length, capacity } => Self::TooLong { length, capacity },
            other if other.errno() == Some(Errno::EPERM) => Self::NotPermitted,
            other => Self::Socket(other),
        }
    }

    /// Converts a refusal of the batch's begin message, which concerns the batch as a whole.
    fn from_whole(errno: Errno, refusals: Vec<Refusal>) -> Self {
        match errno {
            Errno::ERESTART => Self::GenerationMoved,
            Errno::EINTR => Self::Interrupted,
            Errno::EPERM => Self::NotPermitted,
            _ => Self::Refused(refusals),
        }
    }
}
