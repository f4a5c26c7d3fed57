//! What the kernel has of the forwarding table, in the terms of the table.
//!
//! A mode reads its own objects back (set elements, chains, virtual servers, the relay's table) and describes them as
//! [`Observed`]. [`Observed::difference`] compares that with the table and returns each [`Difference`] in the terms of
//! Services. This module must not know how a mode stores anything.
//!
//! The modes do not hold the same facts. A fact that a mode does not hold is [`Fact::Unknown`] and never a difference:
//!
//! | fact | nftables | iptables | IPVS | userspace |
//! |---|---|---|---|---|
//! | name of the Service port | a comment | a comment | not held: one entry for each frontend | as its rules |
//! | kind of a frontend | not held | a comment, if there are endpoints | the ipset that has it | as its rules |
//! | address of a node port | all of them together | all of them together | each by itself | as its rules |
//! | addresses that accept node ports | a set, or a match | rules | those of the node ports | as its rules |
//! | cluster and local list | each by itself | each by itself | one list for each frontend | the relay's table |
//! | affinity timeout | the chain of the class | a rule of each endpoint | the virtual server | the relay's table |
//! | source ranges | by load-balancer IP | rules, unless there are no endpoints | by load-balancer IP | as its rules |
//! | counters of frontends | refusals, if they are switched on | rules | virtual servers, added up every 2 s; refusals in ipsets | as its rules |
//! | counters of endpoints | if they are switched on | the rule that translates | real servers, added up every 2 s | not held |
//! | counters of the Service port | if they are switched on | not held: those of its frontends | not held: those of its frontends | not held |
//!
//! A source range that is one of the Service port's own load-balancer IPs is never compared: modes allow these IPs if the
//! ranges contain the node's address.
//!
//! An endpoint that drains, which the IPVS mode keeps with weight 0, is not an endpoint here.

mod compare;
mod counted;
mod difference;
#[cfg(any(test, feature = "world"))]
mod precise;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

pub use counted::{Counted, Total};
pub use difference::{Behind, Deviation, Difference};
#[cfg(any(test, feature = "world"))]
pub use precise::precise;

use crate::{Family, Frontend, NodePortAddresses, Protocol, ServicePortName};

/// Everything of one family that a mode has read back from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The family.
    pub family: Family,
    /// The addresses at which the mode programs each node port by itself, as [`ObservedPlace::NodePortAt`]. `None` if
    /// it programs a node port for all addresses together.
    pub node_port_addresses: Option<Vec<IpAddr>>,
    /// The addresses that accept node ports. Not compared by [`Observed::difference`].
    pub node_ports: Fact<NodePortReach>,
    /// The Service ports, in any order. Several entries may have the same name: their frontends and endpoints are those
    /// of one Service port. An entry with endpoints, but without frontends, has endpoints that no frontend leads to:
    /// they can be extra, but none is missing there.
    pub ports: Vec<ObservedPort>,
}

/// The addresses of this node that accept node ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePortReach {
    /// Those that are no loopback addresses.
    pub addresses: NodePortAddresses,
    /// The networks of loopback addresses; empty if these accept none.
    pub loopback: Vec<IpNet>,
}

/// A Service port, or a part of one, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPort {
    /// The name. `None` if the kernel does not hold it: the entry then belongs to the Service port of the table that
    /// has one of its frontends.
    pub name: Option<Arc<ServicePortName>>,
    /// The protocol.
    pub protocol: Protocol,
    /// The frontends.
    pub frontends: Vec<ObservedFrontend>,
    /// The endpoints.
    pub endpoints: ObservedEndpoints,
    /// The timeout of session affinity in seconds; `None` if there is no affinity.
    pub affinity: Fact<Option<u32>>,
    /// The source ranges of the load-balancer IPs, without the addresses that a mode adds to them; empty if all sources
    /// are allowed. Ranges that are a load-balancer IP of the Service port itself are not compared, because a mode may
    /// add them.
    pub source_ranges: Fact<Vec<IpNet>>,
    /// What went to endpoints from all frontends together. `None` if the mode does not count it as a whole.
    pub counters: Option<Counters>,
}

/// Something that a mode may hold or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fact<T> {
    /// The mode does not hold it.
    #[default]
    Unknown,
    /// The mode holds it.
    Known(T),
}

/// A frontend as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedFrontend {
    /// Where clients reach it.
    pub place: ObservedPlace,
    /// What passed here since the rule was written. `None` if the mode does not count.
    pub counters: Option<Counters>,
    /// What was refused here since the rule was written.
    pub refused: Refused,
}

/// Where clients reach a frontend, as precisely as the kernel holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObservedPlace {
    /// A frontend of a known kind.
    Frontend(Frontend),
    /// An address and port of a Service. Whether it is a cluster IP or an external one is not held.
    Address(SocketAddr),
    /// A node port at one address of this node.
    NodePortAt(SocketAddr),
}

/// The endpoints as the kernel has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ObservedEndpoints {
    /// Not held.
    #[default]
    Unknown,
    /// The two lists of the Service port.
    Lists {
        /// For traffic that may go to any node.
        cluster: Fact<Vec<ObservedEndpoint>>,
        /// For traffic that must stay on this node.
        local: Fact<Vec<ObservedEndpoint>>,
    },
    /// The endpoints behind the frontends of this entry, which all lead to the same ones. Whether they are those of the
    /// cluster or of this node is not held.
    Shared(Vec<ObservedEndpoint>),
}

/// An endpoint as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedEndpoint {
    /// The address and port.
    pub at: SocketAddr,
    /// What passed here since the rule was written. `None` if the mode does not count.
    pub counters: Option<Counters>,
}

/// What passed a rule or a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Number of new connections; of flows for UDP.
    pub connections: u64,
    /// Their packets. `None` for modes that translate by conntrack: their rules see the first packet of a connection only.
    pub traffic: Option<Traffic>,
}

/// Packets from clients and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes in these packets.
    pub bytes: u64,
}

/// Packets that were refused, by reason. A client that tries again is counted again. A number is `None` if the mode does not
/// count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused {
    /// Rejected: the Service port has no endpoint.
    pub no_endpoint: Option<u64>,
    /// Dropped: the traffic must stay on this node, which has no endpoint.
    pub no_local_endpoint: Option<u64>,
    /// Dropped: the source ranges do not allow the client.
    pub source_range: Option<u64>,
}

impl Counters {
    /// Returns counters of connections only.
    pub const fn of_connections(connections: u64) -> Self {
        Self { connections, traffic: None }
    }

    /// Returns the sum of what is counted. `None` if neither is.
    pub fn sum(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (Some(one), Some(other)) = (one, other) else { return one.or(other) };
        Some(one.and(other))
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let traffic = match (self.traffic, other.traffic) {
            (Some(one), Some(two)) => Some(Traffic {
                packets: one.packets.saturating_add(two.packets),
                bytes: one.bytes.saturating_add(two.bytes),
            }),
            (one, two) => one.or(two),
        };
        Self { connections: self.connections.saturating_add(other.connections), traffic }
    }
}

impl Refused {
    /// Returns the sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sum = |one: Option<u64>, two: Option<u64>| match (one, two) {
            (Some(one), Some(two)) => Some(one.saturating_add(two)),
            (one, two) => one.or(two),
        };
        Self {
            no_endpoint: sum(self.no_endpoint, other.no_endpoint),
            no_local_endpoint: sum(self.no_local_endpoint, other.no_local_endpoint),
            source_range: sum(self.source_range, other.source_range),
        }
    }
}

impl ObservedFrontend {
    /// Creates a frontend without counters.
    pub const fn at(place: ObservedPlace) -> Self {
        Self {
            place,
            counters: None,
            refused: Refused { no_endpoint: None, no_local_endpoint: None, source_range: None },
        }
    }
}

impl ObservedEndpoint {
    /// Creates an endpoint without counters.
    pub const fn at(at: SocketAddr) -> Self {
        Self { at, counters: None }
    }
}

impl fmt::Display for ObservedPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frontend(frontend) => frontend.fmt(f),
            Self::Address(socket) => write!(f, "frontend {socket}"),
            Self::NodePortAt(socket) => write!(f, "node port {} at {}", socket.port(), socket.ip()),
        }
    }
}

#[cfg(test)]
mod tests;
