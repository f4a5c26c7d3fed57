//! Predicts where a packet goes: the reference with which the kernel's behaviour is compared.
//!
//! The forwarding table of one family, the settings and this node's addresses go in. The handling of the first packet
//! of a new flow comes out. The code is written for readability, not for speed, and is independent of the encoders of
//! rules: it looks up the table step by step, in the order in which a packet is processed. It must not know rules,
//! sets or hooks.
//!
//! The semantics are those of nftables mode. Source ranges are checked first, for all sources. Node ports are not
//! available on loopback. A wrong port of a cluster IP is rejected and an unused address of a service CIDR is
//! dropped, but only if the packet would be forwarded or was sent from this node. The differences of other modes are
//! given as [`ModeDifferences`].

mod differences;

use std::net::IpAddr;

pub use differences::ModeDifferences;

use crate::{
    Backend, ExternalPolicy, Family, Forwarding, Frontend, LocalDetector, NodePortAddresses, Protocol,
    Settings, table::Outcome,
};

/// The state that determines the handling of packets.
#[derive(Debug, Clone, Copy)]
pub struct Oracle<'a> {
    /// The settings of the family.
    pub settings: &'a Settings,
    /// All addresses of this node's interfaces. Loopback addresses count as local even if they are not listed.
    pub local_addresses: &'a [IpAddr],
    /// The forwarding table of the family. No two entries have the same frontend.
    pub forwardings: &'a [&'a Forwarding],
    /// The differences of the mode from nftables mode.
    pub differences: &'a ModeDifferences,
}

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
}

/// The handling of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The packet goes to one of these backends, each equally likely. The set is never empty.
    Backends {
        /// The candidates.
        set: Vec<Backend>,
        /// For each candidate, true if it sees this node's address instead of the source.
        masqueraded: Vec<bool>,
        /// All flows of a source within this many seconds of each other go to the same candidate. `None` if there is
        /// no affinity.
        affinity: Option<u32>,
    },
    /// The packet is rejected: with a TCP reset, or an ICMP port unreachable for other protocols.
    Reject,
    /// The packet is dropped without reply.
    Drop,
    /// The packet is not affected by the proxy.
    NotOurs,
}

impl Oracle<'_> {
    /// Returns the handling of a packet. Packets of the other family are `NotOurs`.
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

    /// Returns true if the source ranges of a load-balancer IP exclude the packet. They apply to all sources, pods
    /// and this node included. If the ranges contain the node's own address, the node may also use a load-balancer IP
    /// of the Service as source.
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

    /// Returns true if the mode does not reject or drop the packet because this node sent it. Packets outside of
    /// source ranges are dropped regardless of origin.
    fn leaves_unstopped(&self, forwarding: &Forwarding, frontend: Frontend, packet: &Packet<'_>) -> bool {
        let is_guarded = matches!(frontend, Frontend::LoadBalancerIp(..))
            && self.has_endpoints(forwarding)
            && !forwarding.source_ranges.is_empty();
        self.differences.own_traffic_leaves
            && packet.origin == Origin::Node
            && !self.is_local_address(packet.destination)
            && !is_guarded
    }

    /// Returns true if the forwarding has endpoints. A protocol that the mode does not support counts as having none.
    fn has_endpoints(&self, forwarding: &Forwarding) -> bool {
        forwarding.has_endpoints && self.carries(forwarding)
    }

    fn carries(&self, forwarding: &Forwarding) -> bool {
        !self.differences.refuses_sctp || forwarding.protocol != Protocol::Sctp
    }

    /// Returns the handling of a packet to a node port without usable endpoints, at an address of this node that does
    /// not accept node ports.
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

    /// Returns the handling of a packet that no frontend matches. Packets from other hosts or pods to this node
    /// itself are left to the node.
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

    /// Returns true if the local detector matches the packet. Detection by interface applies only to packets that
    /// were received through one.
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
                // A backend that connects to itself would reply directly, bypassing the translation.
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
