//! Reads the table of kube-proxy's nftables mode in the terms of Services ([`Observed`]).
//!
//! The raw table goes in, Service ports come out. kube-proxy's names hold most facts:
//!
//! | fact | where |
//! |---|---|
//! | frontends | the keys of `service-ips`, `service-nodeports`, `no-endpoint-services` and `no-endpoint-nodeports` |
//! | name of the Service port | the chain that a frontend's element goes to, or the element's comment |
//! | kind of a frontend | cluster IPs are in `cluster-ips`; load-balancer IPs with source ranges are in `firewall-ips` |
//! | cluster and local list | the maps of the chains `service-NAME` and `local-NAME`, or the chains of endpoints that they go to |
//! | affinity timeout | the sets `affinity-NAME` |
//! | source ranges | the rule of the chain `firewall-NAME` |
//! | addresses that accept node ports | the set `nodeport-ips`, if the rule of node ports looks it up |
//!
//! Not held: whether an address without source ranges is an external IP or a load-balancer IP. Not read: masquerading, the
//! chains `external-NAME`, hairpin connections, and whether a frontend without endpoints rejects or drops.
//!
//! A chain with rules that kube-proxy does not write has endpoints, or source ranges, that are not known.

mod chains;
mod raw;

#[cfg(feature = "fuzzing")]
use std::collections::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_engine::dataplane::Error;
use portolan_model::observed::{
    Fact, NodePortReach, Observed, ObservedEndpoints, ObservedFrontend, ObservedPlace, ObservedPort,
};
use portolan_model::{Family, Frontend, NodePortAddresses, Protocol, ServicePortName};
use portolan_sock::{Protocol as NetlinkProtocol, Socket};
use portolan_wire::nftables::{Data, Element, UserData};

use super::super::chain::FamilyTable;
use super::super::element::{Set, read_address};
use super::super::readback;
#[cfg(feature = "fuzzing")]
use super::super::readback::Outline;
use super::decode::{self, At};
use super::nothing;
use chains::{Chains, target_of};
use raw::Raw;

/// The table of kube-proxy, in either family.
const TABLE: &str = "kube-proxy";
/// The name in errors.
const MODE: &str = "nftables (kube-proxy)";

/// Returns what the kernel has of kube-proxy's nftables mode in the network namespace of this thread. `None` if its table
/// does not exist.
pub fn read_kube_proxy(family: Family) -> Result<Option<Observed>, Error> {
    let mut socket = Socket::open(NetlinkProtocol::Netfilter)?;
    let place = FamilyTable { family, table: TABLE };
    let raw = readback::undisturbed(MODE, || Ok(Raw::read(&mut socket, place)?))?;
    Ok(raw.map(|raw| observed(family, &raw)))
}

/// Returns what a table with these chains, rules, sets and elements means.
#[cfg(feature = "fuzzing")]
pub(in super::super) fn observed_kube_proxy(
    family: Family,
    outline: Outline,
    elements: HashMap<String, Vec<Element>>,
) -> Observed {
    observed(family, &Raw::of(outline, elements))
}

/// Returns what a table means.
fn observed(family: Family, raw: &Raw) -> Observed {
    let chains = Chains::new(family, raw);
    if !chains.is_entered() {
        return nothing(family);
    }
    let mut owners: BTreeMap<Owner, BTreeSet<At>> = BTreeMap::new();
    let frontends = Frontends { family, raw };
    for (owner, at) in frontends.served().into_iter().chain(frontends.refused()) {
        owners.entry(owner).or_default().insert(at);
    }
    let ports = owners.iter().map(|(owner, frontends)| service_port(&chains, owner, frontends)).collect();
    Observed { ports, node_ports: frontends.node_port_reach(&chains), ..nothing(family) }
}

/// What identifies a Service port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Name(Arc<ServicePortName>),
    /// The chains of a Service port whose name was cut: the base of their names.
    Base(String),
    /// A frontend without endpoints and without a name.
    Alone(At),
}

fn service_port(chains: &Chains<'_>, owner: &Owner, frontends: &BTreeSet<At>) -> ObservedPort {
    let (name, base) = match owner {
        Owner::Name(name) => (Some(Arc::clone(name)), chains::base_of(name)),
        Owner::Base(base) => (None, base.clone()),
        Owner::Alone(_) => (None, String::new()),
    };
    let protocol = name.as_ref().map(|name| name.protocol);
    let first = frontends.first().map_or(Protocol::Tcp, |at| at.protocol);
    let (cluster, local) = (chains.list("service-", &base), chains.list("local-", &base));
    let affinity = match (cluster.affinity, local.affinity) {
        (Fact::Known(None), Fact::Known(timeout)) | (Fact::Known(timeout), _) => Fact::Known(timeout),
        (Fact::Unknown, affinity) => affinity,
    };
    ObservedPort {
        name,
        protocol: protocol.unwrap_or(first),
        frontends: frontends.iter().map(|at| ObservedFrontend::at(at.place)).collect(),
        endpoints: ObservedEndpoints::Lists { cluster: cluster.endpoints, local: local.endpoints },
        affinity,
        source_ranges: chains.source_ranges(&base),
        counters: None,
    }
}

/// The sets and maps with frontends.
struct Frontends<'a> {
    family: Family,
    raw: &'a Raw,
}

impl Frontends<'_> {
    /// Returns the frontends whose packets are forwarded.
    fn served(&self) -> Vec<(Owner, At)> {
        let cluster_ips = self.addresses("cluster-ips");
        let guarded: BTreeSet<At> =
            self.elements("firewall-ips", Set::FirewallIps).into_iter().map(|(at, _)| at).collect();
        let by_address = self.elements("service-ips", Set::Services).into_iter();
        let by_node_port = self.elements("service-nodeports", Set::NodePorts).into_iter();
        let of = |(at, element): (At, &Element)| {
            let chain = target(element)?;
            let (kind, base) = chains::split(chain)?;
            let place = match at.place {
                ObservedPlace::Address(socket)
                    if kind != "external-" || cluster_ips.contains(&socket.ip()) =>
                {
                    ObservedPlace::Frontend(Frontend::ClusterIp(socket.ip(), socket.port()))
                }
                ObservedPlace::Address(socket) if guarded.contains(&at) => {
                    ObservedPlace::Frontend(Frontend::LoadBalancerIp(socket.ip(), socket.port()))
                }
                place => place,
            };
            let owner = match chains::name_of(base) {
                Some(name) => Owner::Name(Arc::new(name)),
                None => Owner::Base(base.to_owned()),
            };
            Some((owner, At { place, ..at }))
        };
        by_address.chain(by_node_port).filter_map(of).collect()
    }

    /// Returns the frontends whose packets are refused or dropped. One of them may be forwarded for some clients.
    fn refused(&self) -> Vec<(Owner, At)> {
        let cluster_ips = self.addresses("cluster-ips");
        let served: BTreeMap<At, Owner> = self
            .served()
            .into_iter()
            .map(|(owner, at)| (At { place: without_kind(at.place), ..at }, owner))
            .collect();
        let by_address = self.elements("no-endpoint-services", Set::NoEndpointServices).into_iter();
        let by_node_port = self.elements("no-endpoint-nodeports", Set::NoEndpointNodePorts).into_iter();
        let of = |(at, element): (At, &Element)| {
            if served.contains_key(&at) {
                return None;
            }
            let comment = UserData::from_bytes(&element.userdata);
            let name = comment.comment_text().and_then(|comment| decode::name(comment, at.protocol));
            let place = match at.place {
                ObservedPlace::Address(socket) if cluster_ips.contains(&socket.ip()) => {
                    ObservedPlace::Frontend(Frontend::ClusterIp(socket.ip(), socket.port()))
                }
                place => place,
            };
            let at = At { place, ..at };
            Some((name.map_or(Owner::Alone(at), Owner::Name), at))
        };
        by_address.chain(by_node_port).filter_map(of).collect()
    }

    fn node_port_reach(&self, chains: &Chains<'_>) -> Fact<NodePortReach> {
        let addresses = match chains.node_ports_at() {
            Fact::Unknown => return Fact::Unknown,
            Fact::Known(None) => NodePortAddresses::MatchAll,
            Fact::Known(Some(set)) => NodePortAddresses::Addresses(self.addresses(set).into_iter().collect()),
        };
        // kube-proxy excludes loopback addresses in this mode.
        Fact::Known(NodePortReach { addresses, loopback: Vec::new() })
    }

    /// Returns the elements of a set with the keys of `like`.
    fn elements(&self, set: &str, like: Set) -> Vec<(At, &Element)> {
        let elements = self.raw.elements(set).iter();
        elements
            .filter_map(|element| Some((decode::frontend(self.family, like, &element.key)?, element)))
            .collect()
    }

    fn addresses(&self, set: &str) -> BTreeSet<IpAddr> {
        self.raw.elements(set).iter().filter_map(|element| read_address(self.family, &element.key)).collect()
    }
}

/// Returns the chain that an element goes to.
fn target(element: &Element) -> Option<&str> {
    match &element.data {
        Some(Data::Verdict(verdict)) => target_of(verdict),
        _ => None,
    }
}

const fn without_kind(place: ObservedPlace) -> ObservedPlace {
    match place {
        ObservedPlace::Frontend(frontend) => match frontend.socket() {
            Some(socket) => ObservedPlace::Address(socket),
            None => place,
        },
        place => place,
    }
}
