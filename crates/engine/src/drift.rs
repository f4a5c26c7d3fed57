//! Notices changes of our rules by other programs. The source are the kernel's notifications of `nf_tables`.
//!
//! It owns the subscription. A subscriber slows down a first load, so the subscription begins when the load is complete. Until
//! then, the generation of the ruleset shows whether another program has changed anything.
//!
//! Each mode says what of a notification concerns its rules ([`Watched`]). It must not know a
//! mode.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use portolan_model::Family;
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{Family as WireFamily, NftablesEvent, request};
use portolan_wire::{DecodeError, Frame};

/// Multicast group of `nf_tables` changes (`NFNLGRP_NFTABLES`, `nfnetlink.h`).
const GROUP_NFTABLES: u32 = 7;

/// What of the kernel's notifications concerns the rules of a data plane.
pub trait Watched: Send + Sync {
    /// Returns true if the socket or process with this netlink port writes for the data plane.
    fn is_writer(&self, port: u32) -> bool;

    /// Returns true if a change of a table in the data plane's family is one of its rules. `frame` is the notification
    /// that `event` was read from.
    ///
    /// # Errors
    /// The notification cannot be read.
    fn is_drift(
        &self,
        table: &str,
        event: &NftablesEvent<'_>,
        frame: &Frame<'_>,
    ) -> Result<bool, DecodeError>;
}

/// The rules of one data plane in one family. Two are equal if they are clones of one.
#[derive(Clone)]
pub struct Own {
    family: Family,
    watched: Arc<dyn Watched>,
}

impl Own {
    /// Returns the rules of a data plane.
    pub fn new(family: Family, watched: impl Watched + 'static) -> Self {
        Self { family, watched: Arc::new(watched) }
    }
}

impl PartialEq for Own {
    fn eq(&self, other: &Self) -> bool {
        self.family == other.family
            && std::ptr::addr_eq(Arc::as_ptr(&self.watched), Arc::as_ptr(&other.watched))
    }
}

impl Eq for Own {}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").field("family", &self.family).finish_non_exhaustive()
    }
}

/// A subscription to changes of the ruleset.
#[derive(Debug)]
pub struct DriftWatch {
    socket: Socket,
    own: Vec<Own>,
    /// The generation of the last commit whose notifications have been read.
    generation: u32,
}

impl DriftWatch {
    /// Subscribes in the network namespace of this thread.
    pub fn open(own: Vec<Own>) -> Result<Self, SocketError> {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        let generation = generation(&mut socket)?;
        socket.subscribe(&[GROUP_NFTABLES])?;
        Ok(Self { socket, own, generation })
    }

    /// Returns the generation of the ruleset up to which [`Self::drifted`] has returned the changes of other programs.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Reads the pending notifications and returns the families whose rules another program changed. Returns both
    /// families if notifications were lost.
    ///
    /// # Errors
    /// The socket failed.
    pub fn drifted(&mut self) -> Result<Vec<Family>, SocketError> {
        let mut drifted = Vec::new();
        let (own, generation) = (&self.own, &mut self.generation);
        let outcome = self.socket.receive(|frame| {
            if let Some(id) = NftablesEvent::generation_of(frame)? {
                *generation = id;
                return Ok(());
            }
            if own.iter().any(|own| own.watched.is_writer(frame.header.port)) {
                return Ok(());
            }
            let event = NftablesEvent::decode(frame)?;
            let Some((family, table)) = place(&event) else { return Ok(()) };
            for own in own.iter().filter(|own| own.family == family) {
                if !drifted.contains(&family) && own.watched.is_drift(table, &event, frame)? {
                    drifted.push(family);
                }
            }
            Ok(())
        });
        match outcome {
            Ok(_) => Ok(drifted),
            Err(SocketError::Overrun | SocketError::Truncated { .. } | SocketError::Decode(_)) => {
                Ok(Family::BOTH.to_vec())
            }
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for DriftWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

impl AsFd for DriftWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Notices commits of other programs before the subscription begins. Each commit gives the ruleset another generation.
/// Between two turns of the engine, only other programs commit.
#[derive(Debug, Default)]
pub(crate) struct Unwatched {
    /// `None` if none could be opened yet.
    socket: Option<Socket>,
    generations: Generations,
}

impl Unwatched {
    /// Notes that the engine is about to write.
    pub(crate) fn turn_begins(&mut self) {
        let now = self.generation();
        self.generations.before(now);
    }

    /// Notes that what the engine has written is in the kernel.
    pub(crate) fn turn_ended(&mut self) {
        let now = self.generation();
        self.generations.after(now);
    }

    /// Returns true if another program has committed anything, to any table, since the engine's first turn with work.
    pub(crate) fn has_changed(mut self) -> bool {
        self.turn_begins();
        self.generations.has_changed
    }

    /// Returns the generation of the ruleset in this thread's network namespace. `None` if the kernel does not say.
    fn generation(&mut self) -> Option<u32> {
        let socket = match &mut self.socket {
            Some(socket) => socket,
            none => none.insert(Socket::open(Protocol::Netfilter).ok()?),
        };
        generation(socket).ok()
    }
}

/// Returns the generation of the ruleset. Every commit of any program increments it.
///
/// # Errors
/// The socket failed, or the kernel refuses to answer.
pub fn generation(socket: &mut Socket) -> Result<u32, SocketError> {
    let mut generation = 0;
    socket.query(&mut request::generation(), |frame| {
        if let NftablesEvent::Generation(now) = NftablesEvent::decode(frame)? {
            generation = now.id;
        }
        Ok(())
    })?;
    Ok(generation)
}

/// The generations before and after the turns of the engine.
#[derive(Debug, Default)]
struct Generations {
    /// After the last turn. `None` before the first one, and if it is not known.
    last: Option<u32>,
    /// True if another program has changed the ruleset, or may have.
    has_changed: bool,
}

impl Generations {
    fn before(&mut self, now: Option<u32>) {
        self.has_changed |= self.last.is_some() && self.last != now;
    }

    fn after(&mut self, now: Option<u32>) {
        self.has_changed |= self.last.is_some() && now.is_none();
        self.last = now;
    }
}

/// Returns the family and the table of a change.
fn place<'a>(event: &'a NftablesEvent<'_>) -> Option<(Family, &'a str)> {
    let (family, table) = match event {
        NftablesEvent::NewTable(table) => (table.family, &*table.name),
        NftablesEvent::DeleteTable(table) => (table.family, &*table.table),
        NftablesEvent::NewChain(chain) => (chain.family, &*chain.table),
        NftablesEvent::DeleteChain(chain) => (chain.family, &*chain.table),
        NftablesEvent::NewRule(rule) => (rule.family, &*rule.table),
        NftablesEvent::DeleteRule(rule) => (rule.family, &*rule.table),
        NftablesEvent::NewSet(set) => (set.family, &*set.table),
        NftablesEvent::DeleteSet(set) => (set.family, &*set.table),
        NftablesEvent::NewElements(list) | NftablesEvent::DeleteElements(list) => (list.family, list.table),
        NftablesEvent::Generation(_) | NftablesEvent::Other { .. } => return None,
    };
    let family = match family {
        WireFamily::IPV4 => Family::Ipv4,
        WireFamily::IPV6 => Family::Ipv6,
        _ => return None,
    };
    Some((family, table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_that_changes_between_turns_is_noticed() {
        let changed = |turns: &[(Option<u32>, Option<u32>)]| {
            let mut generations = Generations::default();
            for &(before, after) in turns {
                generations.before(before);
                generations.after(after);
            }
            generations.has_changed
        };
        assert!(
            !changed(&[(Some(1), Some(4)), (Some(4), Some(5)), (Some(5), Some(5))]),
            "only our own commits"
        );
        assert!(changed(&[(Some(1), Some(4)), (Some(5), Some(6)), (Some(6), Some(6))]));
        assert!(changed(&[(Some(1), Some(4)), (None, Some(4))]), "not known before a turn");
        assert!(
            changed(&[(Some(1), Some(4)), (Some(4), None), (Some(5), Some(5))]),
            "not known after a turn"
        );
        assert!(!changed(&[(None, None), (None, None)]), "a kernel that never says");
    }
}
