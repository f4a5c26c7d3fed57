//! What the node and its configuration add to the meaning: who is local, which addresses accept node ports.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::Family;

/// How traffic from this node's pods is told from other traffic (`detectLocalMode`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalDetector {
    /// Not implemented for this family: nothing is known to be local.
    None,
    /// Source address inside a CIDR (`ClusterCIDR` and `NodeCIDR`).
    Cidr(IpNet),
    /// Input interface has this name (`BridgeInterface`).
    Interface(Box<str>),
    /// Input interface name starts with this (`InterfaceNamePrefix`).
    InterfacePrefix(Box<str>),
}

/// The addresses of this node that accept node ports, for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Every local address but loopback (a zero CIDR, or no restriction).
    MatchAll,
    /// These local addresses only. Kept sorted and without loopback.
    Addresses(Vec<IpAddr>),
}

/// Everything besides Services and EndpointSlices that decides a packet's fate, for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Family that these settings are for.
    pub family: Family,
    /// Who counts as a pod.
    pub local_detector: LocalDetector,
    /// Masquerade all traffic to cluster IPs (`masqueradeAll`).
    pub masquerade_all: bool,
    /// Bit of the packet mark that asks for masquerading, 0 to 31 (`masqueradeBit`).
    pub masquerade_bit: u8,
    /// Who accepts node ports.
    pub node_port_addresses: NodePortAddresses,
    /// This node's primary address of the family, where known: a load-balancer IP whose source ranges
    /// contain it is also allowed as a source itself.
    pub node_ip: Option<IpAddr>,
    /// CIDRs of this family that cluster IPs are allocated from: traffic to an address in them that no
    /// Service has is dropped. Sorted, without duplicates.
    pub service_cidrs: Vec<IpNet>,
}

impl Settings {
    /// kube-proxy's defaults, where nobody counts as a pod and nothing is known of the node.
    pub const fn plain(family: Family) -> Self {
        Self {
            family,
            local_detector: LocalDetector::None,
            masquerade_all: false,
            masquerade_bit: 14,
            node_port_addresses: NodePortAddresses::MatchAll,
            node_ip: None,
            service_cidrs: Vec::new(),
        }
    }
}
