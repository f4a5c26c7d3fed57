//! Compares what the kernel has with the table.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::{
    Behind, Deviation, Difference, Fact, Observed, ObservedEndpoint, ObservedEndpoints, ObservedPlace,
    ObservedPort,
};
use crate::table::Entry;
use crate::verdict::EndpointList;
use crate::{Backend, ExternalPolicy, Forwarding, Frontend, InternalPolicy, Protocol, ServicePortName};

impl Observed {
    /// Returns the differences from the table of the family, sorted by Service port. Empty if the kernel has what the
    /// table requires, as far as the mode holds it.
    ///
    /// `table` must have what the mode should program: Service ports that it cannot carry, or that the kernel refuses,
    /// are to be left out by the caller, or they are reported as missing.
    pub fn difference(&self, table: &[Entry]) -> Vec<Difference> {
        let owners = Owners::of(table);
        let mut parts: Vec<Vec<&ObservedPort>> = vec![Vec::new(); table.len()];
        let mut differences = Vec::new();
        for port in &self.ports {
            match owners.find(self, port).and_then(|index| parts.get_mut(index)) {
                Some(parts) => parts.push(port),
                None => differences.extend(without_owner(port)),
            }
        }
        for ((name, forwarding), parts) in table.iter().zip(&parts) {
            let comparison = Comparison { observed: self, owners: &owners, forwarding, parts };
            differences.extend(comparison.deviations().into_iter().map(|deviation| Difference {
                name: Some(Arc::clone(name)),
                protocol: forwarding.protocol,
                deviation,
            }));
        }
        differences.sort();
        differences.dedup();
        differences
    }
}

/// Returns what is extra of an entry that belongs to no Service port of the table.
fn without_owner(port: &ObservedPort) -> Vec<Difference> {
    let of = |deviation| Difference { name: port.name.clone(), protocol: port.protocol, deviation };
    if port.name.is_some() || port.frontends.is_empty() {
        return vec![of(Deviation::ServicePortExtra)];
    }
    port.frontends.iter().map(|frontend| of(Deviation::FrontendExtra(frontend.place))).collect()
}

/// The Service ports of the table by name and by frontend.
pub(super) struct Owners<'a> {
    names: HashMap<&'a ServicePortName, usize>,
    addresses: HashMap<(Protocol, SocketAddr), usize>,
    node_ports: HashMap<(Protocol, u16), usize>,
}

impl<'a> Owners<'a> {
    pub(super) fn of(table: &'a [Entry]) -> Self {
        let mut owners =
            Self { names: HashMap::new(), addresses: HashMap::new(), node_ports: HashMap::new() };
        for (index, (name, forwarding)) in table.iter().enumerate() {
            owners.names.insert(&**name, index);
            for frontend in &forwarding.frontends {
                if let Some(socket) = frontend.socket() {
                    owners.addresses.insert((forwarding.protocol, socket), index);
                } else if let Frontend::NodePort(port) = frontend {
                    owners.node_ports.insert((forwarding.protocol, *port), index);
                }
            }
        }
        owners
    }

    /// Returns true if a Service port of the table has this address and port as a frontend.
    fn has_address(&self, protocol: Protocol, socket: SocketAddr) -> bool {
        self.addresses.contains_key(&(protocol, socket))
    }

    /// Returns the Service port of an entry: by its name, or by the first of its frontends that the table has.
    pub(super) fn find(&self, observed: &Observed, port: &ObservedPort) -> Option<usize> {
        if let Some(name) = &port.name {
            return self.names.get(&**name).copied();
        }
        let node_port = |number: u16| self.node_ports.get(&(port.protocol, number)).copied();
        let address = |socket: SocketAddr| self.addresses.get(&(port.protocol, socket)).copied();
        port.frontends.iter().find_map(|frontend| match frontend.place {
            ObservedPlace::Frontend(Frontend::NodePort(number)) => node_port(number),
            ObservedPlace::Frontend(frontend) => address(frontend.socket()?),
            ObservedPlace::NodePortAt(socket) => node_port(socket.port()),
            ObservedPlace::Address(socket) => address(socket).or_else(|| {
                let at_node = observed.node_port_addresses.iter().flatten().any(|node| *node == socket.ip());
                if at_node { node_port(socket.port()) } else { None }
            }),
        })
    }
}

/// A Service port of the table, and the entries of the kernel that belong to it.
struct Comparison<'a> {
    observed: &'a Observed,
    owners: &'a Owners<'a>,
    forwarding: &'a Forwarding,
    parts: &'a [&'a ObservedPort],
}

impl Comparison<'_> {
    fn deviations(&self) -> Vec<Deviation> {
        let wanted = self.wanted_places();
        if self.parts.is_empty() {
            return if wanted.is_empty() { Vec::new() } else { vec![Deviation::ServicePortMissing] };
        }
        let mut deviations = self.frontends(&wanted);
        for part in self.parts {
            deviations.extend(self.endpoints(part, &wanted));
            deviations.extend(self.affinity(part));
            deviations.extend(self.source_ranges(part, &wanted));
        }
        deviations
    }

    /// Returns the frontends with the places at which the mode programs them. Where a Service has the address and port
    /// itself, packets to it are not those of a node port.
    fn wanted_places(&self) -> Vec<(Frontend, ObservedPlace)> {
        let mut places = Vec::new();
        for frontend in self.forwarding.frontends.iter().copied() {
            match (frontend, &self.observed.node_port_addresses) {
                (Frontend::NodePort(port), Some(addresses)) => {
                    let sockets = addresses.iter().map(|address| SocketAddr::new(*address, port));
                    let free =
                        sockets.filter(|socket| !self.owners.has_address(self.forwarding.protocol, *socket));
                    places.extend(free.map(|socket| (frontend, ObservedPlace::NodePortAt(socket))));
                }
                _ => places.push((frontend, ObservedPlace::Frontend(frontend))),
            }
        }
        places
    }

    fn frontends(&self, wanted: &[(Frontend, ObservedPlace)]) -> Vec<Deviation> {
        let found: Vec<ObservedPlace> =
            self.parts.iter().flat_map(|part| &part.frontends).map(|frontend| frontend.place).collect();
        let is_found = |place: &ObservedPlace| found.iter().any(|found| is_same(found, place));
        let is_wanted = |found: &ObservedPlace| wanted.iter().any(|(_, place)| is_same(found, place));
        let missing = wanted.iter().map(|(_, place)| *place).filter(|place| !is_found(place));
        let extra = found.iter().copied().filter(|found| !is_wanted(found));
        missing.map(Deviation::FrontendMissing).chain(extra.map(Deviation::FrontendExtra)).collect()
    }

    fn endpoints(&self, part: &ObservedPort, wanted: &[(Frontend, ObservedPlace)]) -> Vec<Deviation> {
        match &part.endpoints {
            ObservedEndpoints::Unknown => Vec::new(),
            ObservedEndpoints::Lists { cluster, local } => {
                let mut deviations = self.list(part, EndpointList::Cluster, cluster);
                deviations.extend(self.list(part, EndpointList::Local, local));
                deviations
            }
            ObservedEndpoints::Shared(found) => {
                let places = part.frontends.iter().map(|frontend| frontend.place);
                let compare = |place: ObservedPlace| {
                    let (frontend, _) = wanted.iter().find(|(_, wanted)| is_same(&place, wanted))?;
                    let backends = self.forwarding.shared_backends(*frontend);
                    Some(endpoint_deviations(backends, found, Behind::Frontend(place)))
                };
                places.filter_map(compare).flatten().collect()
            }
        }
    }

    /// Compares one of the lists of endpoints. The mode need not write a list that no frontend leads to, and an entry
    /// without frontends has only what is beside the lists of the others.
    fn list(
        &self,
        part: &ObservedPort,
        list: EndpointList,
        found: &Fact<Vec<ObservedEndpoint>>,
    ) -> Vec<Deviation> {
        let Fact::Known(found) = found else { return Vec::new() };
        let backends = match list {
            EndpointList::Cluster => &self.forwarding.cluster,
            EndpointList::Local => &self.forwarding.local,
        };
        let mut deviations = endpoint_deviations(backends, found, Behind::List(list));
        if part.frontends.is_empty() || !self.uses(list) {
            deviations.retain(|deviation| matches!(deviation, Deviation::EndpointExtra { .. }));
        }
        deviations
    }

    /// Returns true if a frontend leads to a list.
    fn uses(&self, list: EndpointList) -> bool {
        let Forwarding { internal_policy, external_policy, frontends, .. } = self.forwarding;
        frontends.iter().any(|frontend| match (frontend, list) {
            (Frontend::ClusterIp(..), EndpointList::Cluster) => *internal_policy == InternalPolicy::Cluster,
            (Frontend::ClusterIp(..), EndpointList::Local) => *internal_policy == InternalPolicy::Local,
            // With policy Local, pods and this node use the cluster list.
            (_, EndpointList::Cluster) => true,
            (_, EndpointList::Local) => *external_policy == ExternalPolicy::Local,
        })
    }

    fn affinity(&self, part: &ObservedPort) -> Option<Deviation> {
        let Fact::Known(found) = part.affinity else { return None };
        let wanted = self.forwarding.affinity;
        (found != wanted).then_some(Deviation::Affinity { wanted, found })
    }

    /// Compares the source ranges of an entry. They are those of its load-balancer IPs.
    fn source_ranges(&self, part: &ObservedPort, wanted: &[(Frontend, ObservedPlace)]) -> Vec<Deviation> {
        let Fact::Known(found) = &part.source_ranges else { return Vec::new() };
        let load_balancer_ips =
            wanted.iter().filter(|(frontend, _)| matches!(frontend, Frontend::LoadBalancerIp(..)));
        let is_guarded = load_balancer_ips
            .clone()
            .any(|(_, place)| part.frontends.iter().any(|frontend| is_same(&frontend.place, place)));
        let ranges: &[IpNet] = if is_guarded { &self.forwarding.source_ranges } else { &[] };
        if found.is_empty() && !ranges.is_empty() {
            return vec![Deviation::SourcesUnrestricted];
        }
        let set = |ranges: &[IpNet]| {
            let compared: Vec<IpNet> =
                ranges.iter().filter(|range| !self.is_own_ip(range)).copied().collect();
            IpNet::aggregate(&compared).into_iter().collect::<BTreeSet<_>>()
        };
        let (wanted, found) = (set(ranges), set(found));
        let missing = wanted.difference(&found).copied().map(Deviation::SourceRangeMissing);
        missing.chain(found.difference(&wanted).copied().map(Deviation::SourceRangeExtra)).collect()
    }

    /// Returns true for a source range that is one of the Service port's load-balancer IPs. A mode allows these IPs
    /// if the ranges contain the node's address, so the kernel does not hold whether the Service asks for it.
    fn is_own_ip(&self, range: &IpNet) -> bool {
        range.prefix_len() == range.max_prefix_len()
            && self.forwarding.frontends.iter().any(
                |frontend| matches!(frontend, Frontend::LoadBalancerIp(address, _) if *address == range.addr()),
            )
    }
}

/// Returns true if a place in the kernel can be a place that the table requires.
fn is_same(found: &ObservedPlace, wanted: &ObservedPlace) -> bool {
    use ObservedPlace::{Address, Frontend as Exact, NodePortAt};
    match (*found, *wanted) {
        (Exact(found), Exact(wanted)) => found == wanted,
        (Address(found), Exact(wanted)) => wanted.socket() == Some(found),
        (Address(found) | NodePortAt(found), NodePortAt(wanted)) => found == wanted,
        (Exact(Frontend::NodePort(port)), NodePortAt(socket))
        | (NodePortAt(socket), Exact(Frontend::NodePort(port))) => socket.port() == port,
        _ => false,
    }
}

fn endpoint_deviations(wanted: &[Backend], found: &[ObservedEndpoint], behind: Behind) -> Vec<Deviation> {
    let wanted: BTreeSet<SocketAddr> = wanted.iter().map(Backend::socket).collect();
    let found: BTreeSet<SocketAddr> = found.iter().map(|endpoint| endpoint.at).collect();
    let missing = wanted.difference(&found).map(|&endpoint| Deviation::EndpointMissing { endpoint, behind });
    let extra = found.difference(&wanted).map(|&endpoint| Deviation::EndpointExtra { endpoint, behind });
    missing.chain(extra).collect()
}
