//! Detects changes of our tables, or of our chains in iptables mode, by other programs. The source are the kernel's
//! notifications.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use portolan_model::Family;
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{Event, Family as WireFamily, Rule};

use crate::iptables::{Writers, is_watched};
use crate::leftovers::tables::jump;

/// Multicast group of `nf_tables` changes (`NFNLGRP_NFTABLES`, `nfnetlink.h`).
const GROUP_NFTABLES: u32 = 7;

/// Objects to watch, and the writers whose changes are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Own {
    /// A table of a family, and the port ID of the socket that commits its changes.
    Table(Family, &'static str, u32),
    /// The chains of the iptables mode in a family, and the processes that write them.
    Chains(Family, Writers),
}

/// A subscription to changes of the ruleset.
#[derive(Debug)]
pub struct DriftWatch {
    socket: Socket,
    own: Vec<Own>,
}

impl DriftWatch {
    /// Subscribes in the network namespace of this thread.
    pub fn open(own: Vec<Own>) -> Result<Self, SocketError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.subscribe(&[GROUP_NFTABLES])?;
        Ok(Self { socket, own })
    }

    /// Reads the pending notifications and returns the families whose rules another program changed. Returns both
    /// families if notifications were lost.
    pub fn drifted(&mut self) -> Result<Vec<Family>, SocketError> {
        let mut drifted = Vec::new();
        let own = &self.own;
        let outcome = self.socket.receive(|frame| {
            let port = frame.header.port;
            if own.iter().any(|own| matches!(own, Own::Table(_, _, writer) if *writer == port)) {
                return Ok(());
            }
            let event = Event::decode(frame)?;
            let Some((family, table)) = place(&event) else { return Ok(()) };
            let is_drift = match own_chains(own, family) {
                _ if is_own_table(own, family, table) => true,
                Some(writers) if !writers.has(port) => match &event {
                    Event::DeleteTable(_) => ["mangle", "filter", "nat"].contains(&table),
                    Event::NewChain(chain) => is_watched(table, &chain.name),
                    Event::DeleteChain(chain) => is_watched(table, &chain.chain),
                    Event::NewRule(rule) => is_watched(table, &rule.chain),
                    Event::DeleteRule(rule) if is_watched(table, &rule.chain) => true,
                    // The rule may have been a jump to a watched chain.
                    Event::DeleteRule(_) => {
                        jump(Rule::decode(frame)?).is_some_and(|jump| is_watched(table, &jump.to))
                    }
                    _ => false,
                },
                _ => false,
            };
            if is_drift && !drifted.contains(&family) {
                drifted.push(family);
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

/// Returns the family and the table of a change.
fn place<'a>(event: &'a Event<'_>) -> Option<(Family, &'a str)> {
    let (family, table) = match event {
        Event::NewTable(table) => (table.family, &*table.name),
        Event::DeleteTable(table) => (table.family, &*table.table),
        Event::NewChain(chain) => (chain.family, &*chain.table),
        Event::DeleteChain(chain) => (chain.family, &*chain.table),
        Event::NewRule(rule) => (rule.family, &*rule.table),
        Event::DeleteRule(rule) => (rule.family, &*rule.table),
        Event::NewSet(set) => (set.family, &*set.table),
        Event::DeleteSet(set) => (set.family, &*set.table),
        Event::NewElements(list) | Event::DeleteElements(list) => (list.family, list.table),
        Event::Generation(_) | Event::Other { .. } => return None,
    };
    let family = match family {
        WireFamily::IPV4 => Family::Ipv4,
        WireFamily::IPV6 => Family::Ipv6,
        _ => return None,
    };
    Some((family, table))
}

/// Returns true for the tables to watch. Tables of a retired mode are not among them: the code that removes them
/// repeats the removal until it succeeds.
fn is_own_table(own: &[Own], family: Family, table: &str) -> bool {
    own.iter().any(|own| matches!(own, Own::Table(of, name, _) if (*of, *name) == (family, table)))
}

fn own_chains(own: &[Own], family: Family) -> Option<&Writers> {
    own.iter().find_map(|own| match own {
        Own::Chains(of, writers) if *of == family => Some(writers),
        _ => None,
    })
}
