//! Where a packet goes, said plainly: the reference that the kernel is compared with.
//!
//! Takes the forwarding table of one family, the settings and this node's addresses; answers what becomes of
//! the first packet of a new flow. Written for reading, not for speed, and apart from every encoder: it asks
//! the table one question after another, in the order in which a packet meets them. It must not know of
//! rules, sets or hooks.
//!
//! The meaning is that of nftables mode: source ranges are checked before everything else and for everybody;
//! node ports never answer on loopback; a wrong port of a cluster IP is refused and an unused address of a
//! service CIDR is dropped, but only where the packet would be forwarded or was sent from this node. What another
//! mode does otherwise comes in as [`ModeDifferences`].

mod differences;

use std::net::IpAddr;

pub use differences::ModeDifferences;

use crate::{
    Backend, ExternalPolicy, Family, Forwarding, Frontend, LocalDetector, NodePortAddresses, Protocol,
    Settings, table::Outcome,
};

/// The world that a packet meets.
#[derive(Debug, Clone, Copy)]
pub struct Oracle<'a> {
    /// Settings of the family.
    pub settings: &'a Settings,
    /// Every address of this node's interfaces; loopback counts as local even where it is not listed.
    pub local_addresses: &'a [IpAddr],
    /// The forwarding table of the family. No two entries have the same frontend.
    pub forwardings: &'a [&'a Forwarding],
    /// What the mode does otherwise than nftables mode.
    pub differences: &'a ModeDifferences,
}

/// Where a packet comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin<'a> {
    /// A pod on this node, through this interface.
    Pod {
        /// Name of the interface on which the node receives the packet.
        input_interface: &'a str,
    },
    /// A process on this node.
    Node,
    /// Somewhere else, through this interface.
    Remote {
        /// Name of the interface on which the node receives the packet.
        input_interface: &'a str,
    },
}

impl<'a> Origin<'a> {
    const fn input_interface(&self) -> Option<&'a str> {
        match self {
            Self::Pod { input_interface } | Self::Remote { input_interface } => Some(input_interface),
            Self::Node => None,
        }
    }
}

/// The first packet of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Where it comes from.
    pub origin: Origin<'a>,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Destination port.
    pub port: u16,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It goes to one of these, each equally likely. Never empty.
    Backends {
        /// The candidates.
        set: Vec<Backend>,
        /// For each candidate, whether it sees this node's address instead of the source.
        masqueraded: Vec<bool>,
        /// All flows of one source within this many seconds of each other go to the same candidate.
        affinity: Option<u32>,
    },
    /// Refused: TCP with a reset, others with an ICMP port unreachable.
    Reject,
    /// Dropped in silence.
    Drop,
    /// Left alone.
    NotOurs,
}

impl Oracle<'_> {
    /// The fate of a packet of this oracle's family; packets of the other are not its business.
    pub fn fate(&self, packet: &Packet<'_>) -> Fate {
        if Family::of(packet.destination) != self.settings.family {
            return Fate::NotOurs;
        }
        if self.outside_source_ranges(packet) {
            return Fate::Drop;
        }
        let found = self.by_address(packet).or_else(|| self.by_node_port(packet));
        match found {
            Some((forwarding, Frontend::ClusterIp(..))) => self.internal(forwarding, packet),
            Some((forwarding, frontend)) => match self.external(forwarding, packet) {
                Fate::Reject | Fate::Drop if self.leaves_unstopped(forwarding, frontend, packet) => {
                    Fate::NotOurs
                }
                fate => fate,
            },
            None => self.at_closed_address(packet).unwrap_or_else(|| self.stray(packet)),
        }
    }

    /// A load-balancer IP with source ranges takes only those sources, pods and this node included. Where the
    /// ranges contain the node's own address, the node may also appear under the load balancer's.
    fn outside_source_ranges(&self, packet: &Packet<'_>) -> bool {
        let Some((forwarding, Frontend::LoadBalancerIp(..))) = self.by_address(packet) else { return false };
        if self.differences.source_ranges_need_endpoints && !self.has_endpoints(forwarding) {
            return false;
        }
        let ranges = &forwarding.source_ranges;
        let in_ranges = |address: IpAddr| ranges.iter().any(|range| range.contains(&address));
        let node_included = self.settings.node_ip.is_some_and(in_ranges);
        let is_own_address = forwarding
            .frontends
            .iter()
            .any(|f| matches!(f, Frontend::LoadBalancerIp(address, _) if *address == packet.source));
        !(ranges.is_empty() || in_ranges(packet.source) || (node_included && is_own_address))
    }

    fn by_address(&self, packet: &Packet<'_>) -> Option<(&Forwarding, Frontend)> {
        self.find(packet.protocol, |frontend| match frontend {
            Frontend::ClusterIp(address, port)
            | Frontend::ExternalIp(address, port)
            | Frontend::LoadBalancerIp(address, port) => address == packet.destination && port == packet.port,
            Frontend::NodePort(_) => false,
        })
    }

    fn by_node_port(&self, packet: &Packet<'_>) -> Option<(&Forwarding, Frontend)> {
        if !self.accepts_node_ports(packet.destination) {
            return None;
        }
        self.find(packet.protocol, |frontend| frontend == Frontend::NodePort(packet.port))
    }

    fn accepts_node_ports(&self, address: IpAddr) -> bool {
        if address.is_loopback() {
            return self.differences.loopback_node_ports.iter().any(|net| net.contains(&address));
        }
        match &self.settings.node_port_addresses {
            NodePortAddresses::MatchAll => self.is_local_address(address),
            NodePortAddresses::Addresses(addresses) => addresses.contains(&address),
        }
    }

    /// Whether a mode only stops what comes in. Source ranges stop whatever is not translated, wherever it goes.
    fn leaves_unstopped(&self, forwarding: &Forwarding, frontend: Frontend, packet: &Packet<'_>) -> bool {
        let is_guarded = matches!(frontend, Frontend::LoadBalancerIp(..))
            && self.has_endpoints(forwarding)
            && !forwarding.source_ranges.is_empty();
        self.differences.own_traffic_leaves
            && packet.origin == Origin::Node
            && !self.is_local_address(packet.destination)
            && !is_guarded
    }

    /// What is not carried is to rules as if it had none.
    fn has_endpoints(&self, forwarding: &Forwarding) -> bool {
        forwarding.has_endpoints && self.carries(forwarding)
    }

    fn carries(&self, forwarding: &Forwarding) -> bool {
        !self.differences.refuses_sctp || forwarding.protocol != Protocol::Sctp
    }

    /// A node port without usable endpoints, at an address of this node that takes no node ports.
    fn at_closed_address(&self, packet: &Packet<'_>) -> Option<Fate> {
        if !self.differences.stops_node_ports_everywhere || !self.is_local_address(packet.destination) {
            return None;
        }
        let (forwarding, _) =
            self.find(packet.protocol, |frontend| frontend == Frontend::NodePort(packet.port))?;
        match forwarding.external() {
            _ if !self.carries(forwarding) => Some(Fate::Reject),
            Outcome::Backends(_) => None,
            Outcome::Reject => Some(Fate::Reject),
            Outcome::Drop => Some(Fate::Drop),
        }
    }

    fn find(&self, protocol: Protocol, wanted: impl Fn(Frontend) -> bool) -> Option<(&Forwarding, Frontend)> {
        let same_protocol = self.forwardings.iter().filter(|forwarding| forwarding.protocol == protocol);
        for forwarding in same_protocol {
            for frontend in &forwarding.frontends {
                if wanted(*frontend) {
                    return Some((forwarding, *frontend));
                }
            }
        }
        None
    }

    fn internal(&self, forwarding: &Forwarding, packet: &Packet<'_>) -> Fate {
        let detecting = self.settings.local_detector != LocalDetector::None;
        let from_outside = detecting && !self.is_from_pod(packet);
        let masquerade = self.settings.masquerade_all || from_outside;
        self.fate_of(forwarding.internal(), forwarding, packet, masquerade)
    }

    fn external(&self, forwarding: &Forwarding, packet: &Packet<'_>) -> Fate {
        if forwarding.external_policy == ExternalPolicy::Cluster {
            return self.fate_of(forwarding.external(), forwarding, packet, true);
        }
        let short_cut = if self.differences.local_for_everybody && !forwarding.local.is_empty() {
            forwarding.external()
        } else {
            forwarding.external_short_cut()
        };
        if self.is_from_pod(packet) {
            return self.fate_of(short_cut, forwarding, packet, false);
        }
        if self.is_local_address(packet.source) {
            return self.fate_of(short_cut, forwarding, packet, true);
        }
        self.fate_of(forwarding.external(), forwarding, packet, false)
    }

    /// No frontend has it. What a packet to this node itself asks for is this node's own business.
    fn stray(&self, packet: &Packet<'_>) -> Fate {
        let has = |frontend: &Frontend| match frontend {
            Frontend::ClusterIp(address, _)
            | Frontend::ExternalIp(address, _)
            | Frontend::LoadBalancerIp(address, _) => *address == packet.destination,
            Frontend::NodePort(_) => false,
        };
        if self.differences.refuses_at_virtual_addresses
            && !self.is_local_address(packet.destination)
            && self.forwardings.iter().flat_map(|forwarding| &forwarding.frontends).any(has)
        {
            return Fate::Reject;
        }
        let to_this_node = packet.origin != Origin::Node && self.is_local_address(packet.destination);
        if to_this_node || self.differences.ignores_strays {
            return Fate::NotOurs;
        }
        let is_cluster_ip = self.forwardings.iter().flat_map(|forwarding| &forwarding.frontends).any(
            |frontend| matches!(frontend, Frontend::ClusterIp(address, _) if *address == packet.destination),
        );
        let in_service_cidr =
            self.settings.service_cidrs.iter().any(|cidr| cidr.contains(&packet.destination));
        match (is_cluster_ip, in_service_cidr) {
            (true, _) => Fate::Reject,
            (false, true) => Fate::Drop,
            (false, false) => Fate::NotOurs,
        }
    }

    /// Whether the local detector takes the packet for one of this node's pods'. By interface it can only
    /// judge what came in through one.
    fn is_from_pod(&self, packet: &Packet<'_>) -> bool {
        let interface = packet.origin.input_interface();
        match &self.settings.local_detector {
            LocalDetector::None => false,
            LocalDetector::Cidr(cidr) => cidr.contains(&packet.source),
            LocalDetector::Interface(name) => interface == Some(&**name),
            LocalDetector::InterfacePrefix(prefix) => {
                interface.is_some_and(|name| name.starts_with(&**prefix))
            }
        }
    }

    fn is_local_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.local_addresses.contains(&address)
    }

    fn fate_of(
        &self,
        outcome: Outcome<'_>,
        forwarding: &Forwarding,
        packet: &Packet<'_>,
        masquerade: bool,
    ) -> Fate {
        if !self.carries(forwarding) {
            return Fate::Reject;
        }
        let masquerade = masquerade || self.differences.hides_clients;
        match outcome {
            Outcome::Reject => Fate::Reject,
            Outcome::Drop => Fate::Drop,
            Outcome::Backends(backends) => {
                // A backend that reaches itself would answer itself directly, past the translation.
                let is_hairpin = |backend: &Backend| {
                    let may = backend.may_hairpin || self.differences.masquerades_every_hairpin;
                    may && backend.address == packet.source
                };
                Fate::Backends {
                    set: backends.to_vec(),
                    masqueraded: backends.iter().map(|backend| masquerade || is_hairpin(backend)).collect(),
                    affinity: forwarding.affinity,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
