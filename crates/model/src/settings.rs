//! Settings of the node that affect packets: which sources are local pods, and which addresses accept node ports.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::Family;

/// How traffic from this node's pods is recognised (`detectLocalMode`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalDetector {
    /// Not available for this family: no traffic is treated as local.
    None,
    /// By a source address inside a CIDR (`ClusterCIDR` and `NodeCIDR`).
    Cidr(IpNet),
    /// By the name of the input interface (`BridgeInterface`).
    Interface(Box<str>),
    /// By a prefix of the input interface's name (`InterfaceNamePrefix`).
    InterfacePrefix(Box<str>),
}

/// The addresses of this node that accept node ports, for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Every local address except loopback (a zero CIDR, or no restriction).
    MatchAll,
    /// Only these local addresses, sorted and without loopback.
    Addresses(Vec<IpAddr>),
}

/// All settings besides Services and EndpointSlices that determine how packets are handled, for one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The family.
    pub family: Family,
    /// The detection of traffic from local pods.
    pub local_detector: LocalDetector,
    /// True if all traffic to cluster IPs is masqueraded (`masqueradeAll`).
    pub masquerade_all: bool,
    /// Bit of the packet mark that requests masquerading, 0 to 31 (`masqueradeBit`).
    pub masquerade_bit: u8,
    /// The addresses that accept node ports.
    pub node_port_addresses: NodePortAddresses,
    /// This node's primary address of the family, or `None` if it is not known. A load-balancer IP whose source
    /// ranges contain this address is also allowed as a source itself.
    pub node_ip: Option<IpAddr>,
    /// CIDRs of this family from which cluster IPs are allocated. Traffic to an address in them that no Service has
    /// is dropped. Sorted, without duplicates.
    pub service_cidrs: Vec<IpNet>,
    /// True if rules count what passes each Service port and endpoint (`portolan.serviceCounters`). Modes that always count
    /// ignore it.
    pub counters: bool,
}

/// The bit of the packet mark for captured packets, and the bit to use if the first one is `masqueradeBit`.
/// Kubernetes and its common network plug-ins use other bits: 7, 8 to 11, 13 to 15, and above.
const CAPTURE_BITS: [u8; 2] = [12, 6];

impl Settings {
    /// Returns the mark of packets that are to be masqueraded: a single bit.
    pub fn masquerade_mark(&self) -> u32 {
        1_u32.checked_shl(self.masquerade_bit.into()).unwrap_or_default()
    }

    /// Returns the mark of packets that the userspace mode captures: a single bit.
    pub const fn capture_mark(&self) -> u32 {
        let [usual, other] = CAPTURE_BITS;
        1 << if self.masquerade_bit == usual { other } else { usual }
    }

    /// Returns kube-proxy's defaults, without local detector, node address or service CIDRs.
    pub const fn plain(family: Family) -> Self {
        Self {
            family,
            local_detector: LocalDetector::None,
            masquerade_all: false,
            masquerade_bit: 14,
            node_port_addresses: NodePortAddresses::MatchAll,
            node_ip: None,
            service_cidrs: Vec::new(),
            counters: false,
        }
    }
}
