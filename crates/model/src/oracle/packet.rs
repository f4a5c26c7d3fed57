//! The packet that the oracle judges.

use std::net::{IpAddr, SocketAddr};

use crate::Protocol;

/// The origin of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    /// A pod on this node, through this interface.
    Pod {
        /// Name of the interface on which the node receives the packet.
        input_interface: &'a str,
    },
    /// A process on this node.
    Node,
    /// Any other host, through this interface.
    Remote {
        /// Name of the interface on which the node receives the packet.
        input_interface: &'a str,
    },
}

impl<'a> Origin<'a> {
    pub(super) const fn input_interface(&self) -> Option<&'a str> {
        match self {
            Self::Pod { input_interface } | Self::Remote { input_interface } => Some(input_interface),
            Self::Node => None,
        }
    }
}

/// A packet from a client to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The origin.
    pub origin: Origin<'a>,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Destination port.
    pub port: u16,
    /// The state of its flow.
    pub flow: FlowState,
}

/// What conntrack has of the flow of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlowState {
    /// No entry: the packet is the first one of its flow. The same holds for a packet in the middle of a connection
    /// whose entry was deleted.
    #[default]
    New,
    /// An entry, with its translation. `None` if it does not translate the destination: the flow began when no
    /// frontend matched. In the userspace mode the relay's connection, and in the IPVS mode its connection entry, is
    /// the translation.
    Established(Option<Translation>),
}

/// The translation of an established flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Translation {
    /// The endpoint that the flow goes to.
    pub endpoint: SocketAddr,
    /// True if the endpoint sees an address of this node instead of the source.
    pub masqueraded: bool,
}
