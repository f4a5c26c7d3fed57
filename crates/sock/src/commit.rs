//! Sending many messages at once and reading what became of them.
//!
//! The kernel's netfilter part works inside the call that sends: when it returns, all answers are queued. So
//! they are read without waiting until there are none.

use portolan_wire::Batch;
use portolan_wire::netlink::NLMSG_ERROR;

use crate::{CommitError, Errno, Refusal, Socket, SocketError};

/// What became of the messages of a batch.
#[derive(Debug, Default)]
pub struct Replies {
    /// How many were acknowledged; only those that asked for it are.
    pub acknowledged: usize,
    /// Those that were refused.
    pub refusals: Vec<Refusal>,
    /// Answers were lost because the receive buffer was full.
    pub lost: bool,
}

impl Socket {
    /// Sends a transaction (made with `nftables::Transaction`) and waits for the verdict of the kernel.
    ///
    /// Success is the acknowledgement that the last change asked for, and no refusal: kernels before 6.10 do not
    /// acknowledge the end of the batch.
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

    /// Sends messages that each stand for themselves (such as conntrack deletions) and collects the answers.
    pub fn submit(&mut self, batch: &Batch) -> Result<Replies, SocketError> {
        self.send(batch.bytes()?)?;
        let count = batch.next_sequence().wrapping_sub(batch.first_sequence());
        let (first, port) = (batch.first_sequence(), self.port);
        let mut replies = Replies::default();
        let outcome = self.drain(|frame| {
            // Answers to an earlier batch may still have been queued.
            let ours = frame.header.sequence.wrapping_sub(first) < count && frame.header.port == port;
            if !ours || frame.header.kind != NLMSG_ERROR {
                return Ok(());
            }
            match frame.acknowledgement().transpose()? {
                Some(acknowledgement) if acknowledgement.errno != 0 => {
                    replies.refusals.push(Refusal::from_acknowledgement(acknowledgement));
                }
                _ => replies.acknowledged = replies.acknowledged.saturating_add(1),
            }
            Ok(())
        });
        // The messages are out: whatever goes wrong while reading leaves their fate unknown.
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

    /// A refusal of the opening mark is about the batch as a whole.
    fn from_whole(errno: Errno, refusals: Vec<Refusal>) -> Self {
        match errno {
            Errno::ERESTART => Self::GenerationMoved,
            Errno::EINTR => Self::Interrupted,
            Errno::EPERM => Self::NotPermitted,
            _ => Self::Refused(refusals),
        }
    }
}
