//! Notices when another program changes a table of ours, by notification.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use portolan_model::Family;
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{Event, Family as WireFamily};

use super::skeleton::TABLE;

/// Multicast group of `nf_tables` changes (`NFNLGRP_NFTABLES`, `nfnetlink.h`).
const GROUP_NFTABLES: u32 = 7;

/// A subscription to the changes of the ruleset.
#[derive(Debug)]
pub struct DriftWatch {
    socket: Socket,
    own_ports: Vec<u32>,
}

impl DriftWatch {
    /// Subscribes. `own_ports` are the sockets whose changes do not count ([`Nftables::port`](super::Nftables::port)).
    pub fn open(own_ports: Vec<u32>) -> Result<Self, SocketError> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.subscribe(&[GROUP_NFTABLES])?;
        Ok(Self { socket, own_ports })
    }

    /// Reads the notifications that are there now and answers which families' tables somebody else changed.
    /// Where notifications were lost, it could be both.
    pub fn drifted(&mut self) -> Result<Vec<Family>, SocketError> {
        let mut drifted = Vec::new();
        let own_ports = &self.own_ports;
        let outcome = self.socket.receive(|frame| {
            if own_ports.contains(&frame.header.port) {
                return Ok(());
            }
            let family = match Event::decode(frame)? {
                Event::NewTable(table) => ours(&table.name, table.family),
                Event::DeleteTable(table) => ours(&table.table, table.family),
                Event::NewChain(chain) => ours(&chain.table, chain.family),
                Event::DeleteChain(chain) => ours(&chain.table, chain.family),
                Event::NewRule(rule) => ours(&rule.table, rule.family),
                Event::DeleteRule(rule) => ours(&rule.table, rule.family),
                Event::NewSet(set) => ours(&set.table, set.family),
                Event::DeleteSet(set) => ours(&set.table, set.family),
                Event::NewElements(list) | Event::DeleteElements(list) => ours(list.table, list.family),
                Event::Generation(_) | Event::Other { .. } => None,
            };
            if let Some(family) = family
                && !drifted.contains(&family)
            {
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

fn ours(table: &str, family: WireFamily) -> Option<Family> {
    match family {
        _ if table != TABLE => None,
        WireFamily::IPV4 => Some(Family::Ipv4),
        WireFamily::IPV6 => Some(Family::Ipv6),
        _ => None,
    }
}
