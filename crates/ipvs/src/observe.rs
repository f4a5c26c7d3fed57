//! Translates what the kernel has of one family into the terms of Services.
//!
//! Pure: [`Rows`] in, [`Observed`] out. It must not know the forwarding table, nor whether this mode or kube-proxy wrote
//! the rows.
//!
//! Each virtual server of ours becomes an entry of its own. The name of its Service is not held. The rest is:
//!
//! | fact | where |
//! |---|---|
//! | kind of the frontend | the set of cluster IPs, external IPs or load-balancer IPs that has its address and port |
//! | node port | the sets of node ports, and an address of this node |
//! | endpoints | real servers that get connections |
//! | affinity | flag and timeout of the virtual server |
//! | refused packets | the counters of sets that have the address and port |
//! | source ranges | a set, if the address and port are in the set of those that are guarded, and rules use both |
//!
//! A virtual server is a frontend only if packets of clients get to it. Otherwise it is left out, so a comparison reports
//! the frontend as missing:
//!
//! - No interface has its address.
//! - The rules refuse connections to it, because it is in no set of Services. So a virtual server that another program
//!   adds at an address of `kube-ipvs0` is left out, too.
//! - Its source ranges allow no source.
//!
//! If the sets refuse or drop new connections to a frontend, it has no endpoint.
//!
//! Left out, because [`Observed`] does not have it: masquerading, schedulers, weights other than 0, and whether packets
//! without an endpoint are refused or dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::observed::{
    Counters, Fact, NodePortReach, Observed, ObservedEndpoint, ObservedEndpoints, ObservedFrontend,
    ObservedPlace, ObservedPort, Refused, Traffic,
};
use portolan_model::{Family, Frontend, NodePortAddresses, Protocol};
use portolan_wire::ipset::Member;
use portolan_wire::ipvs::{self, FLAG_PERSISTENT, FORWARD_MASQUERADE, RealServer, VirtualServer};

use super::device::Addresses;
use super::frontend::Key;
use super::owners::{Evidence, has_node_port};
use super::rules::InForce;
use super::set::{Counts, Set, Sets};

/// What the kernel has of one family.
#[derive(Debug, Clone)]
pub(super) struct Rows {
    pub(super) family: Family,
    pub(super) addresses: Addresses,
    /// The addresses of all interfaces, of any scope. Those of `addresses` are among them.
    pub(super) local: BTreeSet<IpAddr>,
    pub(super) sets: Sets,
    /// What the sets of refused packets have counted.
    pub(super) counts: Counts,
    /// Virtual servers at addresses, including those of other programs.
    pub(super) servers: BTreeMap<Key, VirtualServer>,
    /// The real servers of our virtual servers.
    pub(super) real: BTreeMap<Key, Vec<RealServer>>,
    pub(super) rules: InForce,
}

/// Makes a frontend of one kind from an address and port.
type Kind = fn(IpAddr, u16) -> Frontend;

/// The kinds of frontends at an address, with the sets that have them.
const KINDS: [(Set, Kind); 4] = [
    (Set::ClusterIp, Frontend::ClusterIp),
    (Set::ExternalIp, Frontend::ExternalIp),
    (Set::ExternalIpLocal, Frontend::ExternalIp),
    (Set::LoadBalancer, Frontend::LoadBalancerIp),
];

/// Describes the rows. Virtual servers in `exclude` belong to other programs, unless they are noted as ours.
///
/// The result has the addresses of node ports that the kernel shows: those of virtual servers of node ports, and those
/// noted as ours. An address at which not one node port is programmed is not among them.
pub(super) fn observed(rows: &Rows, exclude: &[IpNet]) -> Observed {
    let own = rows.own(exclude);
    let node_port_addresses = rows.node_port_addresses(&own);
    Observed {
        family: rows.family,
        node_ports: reach(&node_port_addresses),
        node_port_addresses: Some(node_port_addresses),
        ports: own.iter().filter_map(|key| rows.port(key)).collect(),
    }
}

/// Returns the addresses that accept node ports. Without a node port they are not known.
pub(super) fn reach(addresses: &[IpAddr]) -> Fact<NodePortReach> {
    if addresses.is_empty() {
        return Fact::Unknown;
    }
    let (on_loopback, others): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().partition(|address| address.is_loopback());
    let loopback = on_loopback.into_iter().map(IpNet::from).collect();
    Fact::Known(NodePortReach { addresses: NodePortAddresses::Addresses(others), loopback })
}

impl Rows {
    /// Returns true if the kernel has nothing of this mode: no virtual server of ours, and no set.
    pub(super) fn is_empty(&self, exclude: &[IpNet]) -> bool {
        self.sets.is_empty() && self.own(exclude).is_empty()
    }

    /// Returns the virtual servers that are not those of other programs.
    pub(super) fn own(&self, exclude: &[IpNet]) -> BTreeSet<Key> {
        let keys = self.servers.keys().copied().collect();
        Evidence { addresses: &self.addresses, sets: &self.sets, exclude }.owners(&keys).own
    }

    /// Describes a virtual server. Returns `None` if packets do not get to it.
    fn port(&self, key: &Key) -> Option<ObservedPort> {
        let server = self.servers.get(key)?;
        let ranges = self.source_ranges(key);
        let allows_no_source = ranges.as_ref().is_some_and(Vec::is_empty);
        if allows_no_source || !self.local.contains(&key.address) || self.is_refused_as_foreign(key) {
            return None;
        }
        let counters = Some(counters(server.counters));
        let frontend = ObservedFrontend { place: self.place(key), counters, refused: self.refused(key) };
        Some(ObservedPort {
            name: None,
            protocol: key.protocol,
            frontends: vec![frontend],
            endpoints: ObservedEndpoints::Shared(self.endpoints(key)),
            affinity: Fact::Known((server.flags & FLAG_PERSISTENT != 0).then_some(server.timeout)),
            source_ranges: Fact::Known(ranges.unwrap_or_default()),
            counters: None,
        })
    }

    /// Returns true if the rules refuse connections because the address is one of the device, and no set of Services
    /// has it with this port.
    fn is_refused_as_foreign(&self, key: &Key) -> bool {
        self.rules.refuse_what_is_in_no_set
            && self.has(Set::IpvsIps, &Member::Ip(key.address))
            && self.kinds(key).next().is_none()
            && !self.has(Set::HealthCheckNodePort, &Member::Port(key.port))
    }

    fn place(&self, key: &Key) -> ObservedPlace {
        let mut kinds: Vec<Frontend> = self.kinds(key).collect();
        kinds.dedup();
        match *kinds {
            [kind] => ObservedPlace::Frontend(kind),
            [] if has_node_port(&self.sets, key) && self.is_at_node(key) => {
                ObservedPlace::NodePortAt(key.socket())
            }
            // An address of two kinds has one virtual server in kube-proxy.
            _ => ObservedPlace::Address(key.socket()),
        }
    }

    /// Returns the kinds that the sets have for an address and port.
    fn kinds(&self, key: &Key) -> impl Iterator<Item = Frontend> {
        KINDS
            .into_iter()
            .filter(|(set, _)| self.has(*set, &key.member()))
            .map(|(_, kind)| kind(key.address, key.port))
    }

    /// Returns true for an address of this node, or one at which a virtual server is noted as ours.
    fn is_at_node(&self, key: &Key) -> bool {
        self.addresses.node.contains(&key.address) || self.has(Set::Own, &key.member())
    }

    fn endpoints(&self, key: &Key) -> Vec<ObservedEndpoint> {
        // The rule for the set of refusals matches TCP only.
        let is_refused = key.protocol == Protocol::Tcp && self.has(Set::Reject, &key.member());
        if is_refused || self.has(Set::Drop, &key.member()) {
            return Vec::new();
        }
        // A real server of weight 0 drains. With another forwarding method, the endpoint gets packets to an address
        // that is not its own.
        let serves = |real: &&RealServer| real.weight > 0 && real.forward == FORWARD_MASQUERADE;
        let endpoint =
            |real: &RealServer| ObservedEndpoint { at: real.place, counters: Some(counters(real.counters)) };
        self.real.get(key).into_iter().flatten().filter(serves).map(endpoint).collect()
    }

    /// Returns the counts of packets that the rules, or IPVS itself, refuse to pass to the virtual server.
    fn refused(&self, key: &Key) -> Refused {
        let in_sets = |sets: &[Set]| {
            let counts = sets.iter().filter_map(|set| self.counts.get(&(*set, key.member())));
            counts.copied().reduce(u64::saturating_add)
        };
        Refused {
            no_endpoint: in_sets(&[Set::Reject, Set::CountReject]),
            no_local_endpoint: in_sets(&[Set::Drop, Set::DropExternal]),
            source_range: in_sets(&[Set::SourceRanges]),
        }
    }

    /// Returns the sources that may reach an address and port; `None` if all may.
    fn source_ranges(&self, key: &Key) -> Option<Vec<IpNet>> {
        if !self.rules.restrict_sources || !self.has(Set::LoadBalancerFirewall, &key.member()) {
            return None;
        }
        let number = key.protocol.number();
        // The smallest member of this address and port in the order of members.
        let first = Member::IpPortNet(key.address, number, key.port, IpAddr::from([0; 4]), 0);
        let members = self.sets.get(&Set::LoadBalancerSourceCidr).into_iter();
        let ranges = members.flat_map(|members| members.range(first..)).map_while(|member| match *member {
            Member::IpPortNet(address, protocol, port, network, prefix)
                if (address, protocol, port) == (key.address, number, key.port) =>
            {
                Some(IpNet::new(network, prefix).ok())
            }
            _ => None,
        });
        Some(ranges.flatten().collect())
    }

    /// Returns the addresses of the virtual servers of node ports, including those that are noted and missing.
    fn node_port_addresses(&self, own: &BTreeSet<Key>) -> Vec<IpAddr> {
        let noted = self.sets.get(&Set::Own).into_iter().flatten().filter_map(Key::of_member);
        let noted = noted.filter(|key| !self.addresses.device.contains(&key.address));
        let present =
            own.iter().copied().filter(|key| has_node_port(&self.sets, key) && self.is_at_node(key));
        let is_of_no_address = |key: &Key| self.kinds(key).next().is_none();
        let addresses: BTreeSet<IpAddr> =
            noted.chain(present).filter(is_of_no_address).map(|key| key.address).collect();
        addresses.into_iter().collect()
    }

    fn has(&self, set: Set, member: &Member) -> bool {
        self.sets.get(&set).is_some_and(|members| members.contains(member))
    }
}

const fn counters(of: ipvs::Counters) -> Counters {
    let ipvs::Counters { connections, packets, bytes } = of;
    Counters { connections, traffic: Some(Traffic { packets, bytes }) }
}

#[cfg(test)]
mod tests;
