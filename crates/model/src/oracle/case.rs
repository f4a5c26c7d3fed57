//! One packet before the oracle: the lookup of a frontend, and what happens without one.

use std::net::SocketAddr;
use std::sync::Arc;

use super::packet::{FlowState, Origin, Packet, Translation};
use super::{ModeDifferences, Oracle};
use crate::table::{Disposition, Entry};
use crate::verdict::{Decision, EndpointList, Fate, Reason, Traffic, Verdict};
use crate::{
    Backend, ExternalPolicy, Family, Forwarding, Frontend, LocalDetector, NodePortAddresses, Protocol,
    ServicePortName,
};

/// A packet with the reasons found so far.
pub(super) struct Case<'a> {
    pub(super) oracle: Oracle<'a>,
    pub(super) packet: &'a Packet<'a>,
    pub(super) endpoints: Option<EndpointList>,
    reasons: Vec<Reason>,
}

/// A frontend of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Match<'a> {
    pub(super) name: &'a Arc<ServicePortName>,
    pub(super) forwarding: &'a Forwarding,
    pub(super) frontend: Frontend,
}

impl Match<'_> {
    fn decision(&self) -> Decision {
        Decision { name: Arc::clone(self.name), frontend: self.frontend }
    }
}

impl<'a> Case<'a> {
    pub(super) const fn new(oracle: Oracle<'a>, packet: &'a Packet<'a>) -> Self {
        Self { oracle, packet, endpoints: None, reasons: Vec::new() }
    }

    /// Returns the verdict.
    pub(super) fn decide(mut self) -> Verdict {
        let (fate, decided_by) = self.fate();
        Verdict { fate, decided_by, endpoints: self.endpoints, reasons: self.reasons }
    }

    pub(super) fn because(&mut self, reason: Reason) {
        self.reasons.push(reason);
    }

    pub(super) const fn differences(&self) -> &'a ModeDifferences {
        self.oracle.differences
    }

    fn fate(&mut self) -> (Fate, Option<Decision>) {
        let family = self.oracle.settings.family;
        if Family::of(self.packet.destination) != family {
            self.because(Reason::OtherFamily { table: family });
            return (Fate::NotOurs, None);
        }
        if let FlowState::Established(translation) = self.packet.flow {
            return (self.established(translation), None);
        }
        if let Some(found) = self.by_address().or_else(|| self.by_node_port()) {
            self.because(Reason::Matched { name: Arc::clone(found.name), frontend: found.frontend });
            return (self.at_frontend(found), Some(found.decision()));
        }
        if let Some((fate, found)) = self.at_closed_address() {
            return (fate, Some(found.decision()));
        }
        (self.stray(), None)
    }

    /// The entry of conntrack alone decides.
    fn established(&mut self, translation: Option<Translation>) -> Fate {
        let Some(Translation { endpoint, masqueraded }) = translation else {
            self.because(Reason::EstablishedNotTranslated);
            return Fate::NotOurs;
        };
        self.because(Reason::Established { endpoint });
        // Masquerading was decided with the first packet.
        let backend = Backend { address: endpoint.ip(), port: endpoint.port(), may_hairpin: false };
        Fate::Backends { set: vec![backend], masqueraded: vec![masqueraded], affinity: None }
    }

    fn by_address(&self) -> Option<Match<'a>> {
        let destination = self.destination();
        self.find(self.packet.protocol, |frontend| frontend.socket() == Some(destination))
    }

    fn by_node_port(&self) -> Option<Match<'a>> {
        if self.accepts_node_ports() { self.any_node_port() } else { None }
    }

    /// Returns the Service port with this node port, whether the destination accepts node ports or not.
    fn any_node_port(&self) -> Option<Match<'a>> {
        let wanted = Frontend::NodePort(self.packet.port);
        self.find(self.packet.protocol, |frontend| frontend == wanted)
    }

    fn accepts_node_ports(&self) -> bool {
        let address = self.packet.destination;
        if address.is_loopback() {
            return self.differences().loopback_node_ports.iter().any(|net| net.contains(&address));
        }
        match &self.oracle.settings.node_port_addresses {
            NodePortAddresses::MatchAll => self.oracle.is_local_address(address),
            NodePortAddresses::Addresses(addresses) => addresses.contains(&address),
        }
    }

    fn find(&self, protocol: Protocol, wanted: impl Fn(Frontend) -> bool) -> Option<Match<'a>> {
        let same_protocol = |(_, forwarding): &&Entry| forwarding.protocol == protocol;
        let mut entries = self.oracle.table.iter().filter(same_protocol);
        entries.find_map(|entry| with_frontend(entry, &wanted))
    }

    /// Returns the handling of a packet to a node port without usable endpoints, at an address of this node that does
    /// not accept node ports.
    fn at_closed_address(&mut self) -> Option<(Fate, Match<'a>)> {
        if !self.oracle.is_local_address(self.packet.destination) {
            return None;
        }
        let found = self.any_node_port()?;
        let (name, destination) = (Arc::clone(found.name), self.destination());
        self.because(Reason::NodePortNotAccepted { name, destination });
        if !self.differences().stops_node_ports_everywhere {
            return None;
        }
        if !self.carries(found.forwarding) {
            self.reasons.extend([Reason::NodePortStopped, Reason::SctpNotCarried]);
            return Some((Fate::Reject, found));
        }
        let (fate, reason) = match found.forwarding.external() {
            Disposition::Backends(_) => return None,
            Disposition::Reject => (Fate::Reject, Reason::NoEndpoints),
            Disposition::Drop => (Fate::Drop, Reason::EndpointsElsewhere(Traffic::External)),
        };
        let (list, policy) = match found.forwarding.external_policy {
            ExternalPolicy::Cluster => (EndpointList::Cluster, Reason::ClusterPolicy(Traffic::External)),
            ExternalPolicy::Local => (EndpointList::Local, Reason::LocalPolicy(Traffic::External)),
        };
        self.endpoints = Some(list);
        self.reasons.extend([Reason::NodePortStopped, policy, reason]);
        Some((fate, found))
    }

    /// Returns the handling of a packet that no frontend matches. Packets from other hosts or pods to this node
    /// itself are left to the node.
    fn stray(&mut self) -> Fate {
        let Packet { origin, destination, .. } = *self.packet;
        let is_local = self.oracle.is_local_address(destination);
        let (facts, fate) = self.facts_of_stray();
        let is_service_address = facts.iter().any(|fact| matches!(fact, Reason::OtherPort { .. }));
        self.reasons.extend(facts);
        if self.differences().refuses_at_virtual_addresses && !is_local && is_service_address {
            if self.is_health_check() {
                self.because(Reason::LeftToNode { address: destination });
                return Fate::NotOurs;
            }
            self.because(Reason::RefusedAtServiceAddress);
            return Fate::Reject;
        }
        if is_local && origin != Origin::Node {
            self.because(Reason::LeftToNode { address: destination });
            return Fate::NotOurs;
        }
        if self.differences().ignores_strays && fate != Fate::NotOurs {
            self.because(Reason::StraysIgnored);
            return Fate::NotOurs;
        }
        fate
    }

    /// Returns true if the packet is for a health-check server of this node.
    fn is_health_check(&self) -> bool {
        let Packet { protocol, port, .. } = self.packet;
        *protocol == Protocol::Tcp && self.oracle.health_check_ports.contains(port)
    }

    /// Returns what the table has of the destination of a stray packet, and the handling in nftables mode. Other ports
    /// of a cluster IP are rejected. Addresses of a service CIDR that are no cluster IP are dropped.
    fn facts_of_stray(&self) -> (Vec<Reason>, Fate) {
        let Packet { destination: address, protocol, port, .. } = *self.packet;
        let is_here = |frontend: Frontend| frontend.socket().is_some_and(|socket| socket.ip() == address);
        let is_cluster_ip =
            |frontend: Frontend| matches!(frontend, Frontend::ClusterIp(..)) && is_here(frontend);
        let cluster_ip = self.oracle.table.iter().find_map(|entry| with_frontend(entry, is_cluster_ip));
        let other = || self.oracle.table.iter().find_map(|entry| with_frontend(entry, is_here));
        let mut facts = Vec::new();
        if let Some(Match { name, frontend, .. }) = cluster_ip.or_else(other) {
            facts.push(Reason::OtherPort { name: Arc::clone(name), frontend, protocol, port });
        }
        if cluster_ip.is_some() {
            return (facts, Fate::Reject);
        }
        let mut cidrs = self.oracle.settings.service_cidrs.iter().copied();
        if let Some(cidr) = cidrs.find(|cidr| cidr.contains(&address)) {
            facts.push(Reason::UnusedAddress { address, cidr });
            return (facts, Fate::Drop);
        }
        if facts.is_empty() {
            facts.push(Reason::NoFrontend { destination: self.destination(), protocol });
        }
        (facts, Fate::NotOurs)
    }

    /// Returns true if the local detector matches the packet. Detection by interface applies only to packets that
    /// were received through one.
    pub(super) fn is_from_pod(&self) -> bool {
        let interface = self.packet.origin.input_interface();
        match &self.oracle.settings.local_detector {
            LocalDetector::None => false,
            LocalDetector::Cidr(cidr) => cidr.contains(&self.packet.source),
            LocalDetector::Interface(name) => interface == Some(&**name),
            LocalDetector::InterfacePrefix(prefix) => {
                interface.is_some_and(|name| name.starts_with(&**prefix))
            }
        }
    }

    pub(super) fn carries(&self, forwarding: &Forwarding) -> bool {
        !self.differences().refuses_sctp || forwarding.protocol != Protocol::Sctp
    }

    const fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.packet.destination, self.packet.port)
    }
}

/// Returns the first wanted frontend of an entry.
fn with_frontend((name, forwarding): &Entry, wanted: impl Fn(Frontend) -> bool) -> Option<Match<'_>> {
    let frontend = forwarding.frontends.iter().copied().find(|frontend| wanted(*frontend))?;
    Some(Match { name, forwarding, frontend })
}
