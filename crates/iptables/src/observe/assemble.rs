//! Puts chains and rules together to Service ports.
//!
//! A frontend is one of the kernel only if all rules that its packets need are there: the jumps of the kernel's own chains,
//! the rule that matches it, and in the chain for external traffic a way on for packets from outside and from this node.
//! What has no rule that matches a frontend is left out, unless its name is known.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::observed::{
    Counters, Fact, Observed, ObservedEndpoint, ObservedEndpoints, ObservedFrontend, ObservedPlace,
    ObservedPort, Refused,
};
use portolan_model::{Frontend, Protocol, ServicePortName};

use super::chains::{Chains, Choice, Destination, Dispatch, Port, Verdict};
use super::comment::hash_of;
use crate::fixed::{EXTERNAL_SERVICES, PROXY_FIREWALL, SERVICES};
use crate::name::{Hash, Kind};
use crate::rule::IptablesTable;

/// Returns the Service ports that chains and rules make.
pub(super) fn observed(chains: &Chains) -> Observed {
    let assembly = Assembly::of(chains);
    let mut services = assembly.matched();
    let mut ports = assembly.add_refused(&mut services);
    for (hash, port) in &chains.ports {
        let found = services.remove(hash).unwrap_or_default();
        ports.extend(assembly.service_port(port, port.name.as_ref().or(found.name.as_ref()), &found));
    }
    // What is left has no chains: every frontend is refused.
    for found in services.into_values() {
        ports.extend(assembly.service_port(&Port::default(), found.name.as_ref(), &found));
    }
    let node_ports = chains.node_ports.reach(chains.family);
    Observed { family: chains.family, node_port_addresses: None, node_ports, ports }
}

/// A place without the kind of its frontend. Rules of the filter table do not hold the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RefusedAt {
    At(SocketAddr),
    NodePort(u16),
}

/// The frontends of one Service port.
#[derive(Debug, Default)]
struct Found {
    name: Option<Arc<ServicePortName>>,
    frontends: Vec<FoundFrontend>,
}

#[derive(Debug)]
struct FoundFrontend {
    place: ObservedPlace,
    protocol: Protocol,
    counters: Option<Counters>,
    refused: Refused,
    /// The source ranges. `None` if those of load-balancer IPs do not apply, or if they are not held.
    ranges: Option<Vec<IpNet>>,
}

/// The endpoints of one list.
#[derive(Debug, Default)]
struct List {
    endpoints: Vec<ObservedEndpoint>,
    /// The affinity timeouts of the endpoints.
    affinities: BTreeSet<Option<u32>>,
}

struct Assembly<'a> {
    chains: &'a Chains,
    /// Places at which packets from outside are refused or dropped.
    verdicts: HashSet<(Protocol, RefusedAt)>,
    /// What rules of the filter table have refused.
    refused: HashMap<(Protocol, RefusedAt), Refused>,
    /// The load-balancer IPs of Service ports with source ranges, by the hash of their chains.
    load_balancer_ips: BTreeMap<Hash, BTreeSet<IpAddr>>,
    /// True if packets enter the chain that matches frontends in the nat table.
    nat: bool,
    /// True if packets enter the chain that refuses and drops packets to cluster IPs.
    cluster_ips: bool,
    /// True if packets enter the chain that drops packets from sources that are not allowed.
    guards: bool,
}

impl<'a> Assembly<'a> {
    fn of(chains: &'a Chains) -> Self {
        let external = chains.is_entered(IptablesTable::Filter, EXTERNAL_SERVICES);
        let verdicts = chains.verdicts.iter().filter(|verdict| external && verdict.is_external);
        let mut load_balancer_ips: BTreeMap<Hash, BTreeSet<IpAddr>> = BTreeMap::new();
        for dispatch in chains.dispatches.iter().filter(|dispatch| dispatch.to.kind() == Kind::Firewall) {
            let own = load_balancer_ips.entry(dispatch.to.hash()).or_default();
            own.extend(address(dispatch.place).map(|at| at.ip()));
        }
        let mut refused: HashMap<_, Refused> = HashMap::new();
        for verdict in &chains.verdicts {
            if let Some(at) = place(verdict.place) {
                let sum = refused.entry((verdict.protocol, at)).or_default();
                *sum = sum.and(verdict.refused());
            }
        }
        for (&(protocol, at), dropped) in &chains.guards {
            let sum = refused.entry((protocol, RefusedAt::At(at))).or_default();
            let source_range = dropped.map(|dropped| dropped.connections);
            *sum = sum.and(Refused { source_range, ..Refused::default() });
        }
        Self {
            chains,
            load_balancer_ips,
            refused,
            verdicts: verdicts
                .filter_map(|verdict| Some((verdict.protocol, place(verdict.place)?)))
                .collect(),
            nat: chains.is_entered(IptablesTable::Nat, SERVICES),
            cluster_ips: chains.is_entered(IptablesTable::Filter, SERVICES),
            guards: chains.is_entered(IptablesTable::Filter, PROXY_FIREWALL),
        }
    }

    /// Returns the frontends that rules of the nat table match, by the hash of the chains of their Service port.
    fn matched(&self) -> BTreeMap<Hash, Found> {
        let mut services = BTreeMap::<Hash, Found>::new();
        // A rule for loopback addresses only adds to what the rule for all addresses counts.
        let (on_loopback, all): (Vec<_>, Vec<_>) =
            self.chains.dispatches.iter().partition(|dispatch| dispatch.is_on_loopback);
        for dispatch in all.into_iter().chain(on_loopback) {
            let found = services.entry(dispatch.to.hash()).or_default();
            let is_same = |frontend: &&mut FoundFrontend| {
                (frontend.place, frontend.protocol) == (dispatch.place, dispatch.protocol)
            };
            match found.frontends.iter_mut().find(is_same) {
                Some(frontend) => frontend.counters = Counters::sum(frontend.counters, dispatch.counters),
                None => found.frontends.extend(self.frontend(dispatch)),
            }
        }
        services
    }

    /// Adds the frontends for which there is only a rule that refuses or drops packets. Returns those whose rule does not
    /// name the Service port.
    fn add_refused(&self, services: &mut BTreeMap<Hash, Found>) -> Vec<ObservedPort> {
        let place_of = |dispatch: &Dispatch| Some((dispatch.protocol, place(dispatch.place)?));
        let matched: HashSet<_> = self.chains.dispatches.iter().filter_map(place_of).collect();
        let mut others = Vec::new();
        for verdict in &self.chains.verdicts {
            let Verdict { place: at, protocol, .. } = *verdict;
            // A packet that a rule of the nat table translates does not come here.
            let is_second = place(at).is_some_and(|at| matched.contains(&(protocol, at)));
            if is_second || !self.is_whole(verdict) {
                continue;
            }
            if let Some(name) = &verdict.name {
                let found = services.entry(hash_of(&name.to_string(), protocol)).or_default();
                found.name = Some(Arc::clone(name));
                let refused = verdict.refused();
                found.frontends.push(FoundFrontend {
                    place: at,
                    protocol,
                    counters: None,
                    refused,
                    ranges: None,
                });
            } else {
                let frontend = ObservedFrontend { refused: verdict.refused(), ..ObservedFrontend::at(at) };
                others.push(of_unknown(protocol, frontend, no_endpoints()));
            }
        }
        others
    }

    /// Returns the frontend of a rule of the nat table. `None` if packets to it need rules that are missing.
    fn frontend(&self, dispatch: &Dispatch) -> Option<FoundFrontend> {
        let port = self.chains.ports.get(&dispatch.to.hash())?;
        let is_whole = match dispatch.to.kind() {
            Kind::Cluster | Kind::Local => self.leads_on(port.choices(dispatch.to.kind())),
            Kind::External => self.leads_out(dispatch, port),
            Kind::Firewall => {
                let accepts = port.firewall.is_open || !port.firewall.ranges.is_empty();
                accepts && self.leads_out(dispatch, port)
            }
            Kind::Endpoint => false,
        };
        (self.nat && is_whole && !dispatch.is_on_loopback).then(|| FoundFrontend {
            place: dispatch.place,
            protocol: dispatch.protocol,
            counters: dispatch.counters,
            refused: self.refused(dispatch),
            ranges: self.ranges(dispatch, port),
        })
    }

    /// Returns what rules of the filter table have refused at a frontend that a rule of the nat table matches. No packet that
    /// was translated comes to them.
    fn refused(&self, dispatch: &Dispatch) -> Refused {
        let at = place(dispatch.place).map(|at| (dispatch.protocol, at));
        at.and_then(|at| self.refused.get(&at)).copied().unwrap_or_default()
    }

    /// Returns true if the chain for external traffic has a way for packets from outside and for those from this node.
    fn leads_out(&self, dispatch: &Dispatch, port: &Port) -> bool {
        let external = &port.external;
        let has_way = external.way.is_some_and(|way| self.leads_on(port.choices(way)));
        let is_refused =
            place(dispatch.place).is_some_and(|at| self.verdicts.contains(&(dispatch.protocol, at)));
        // With policy Local, this node reaches the endpoints of the cluster by a rule of its own.
        let needs_short_cut = external.way != Some(Kind::Cluster) && !port.cluster.is_empty();
        (has_way || is_refused) && (external.has_short_cut || !needs_short_cut)
    }

    /// Returns true if packets go on to the relay, where rules lead to its listeners. Missing endpoints are reported as
    /// such.
    fn leads_on(&self, choices: &[Choice]) -> bool {
        let Some((first, last)) = self.chains.listeners else { return true };
        choices.iter().filter(|choice| choice.within.is_none()).any(|choice| {
            match self.chains.endpoints.get(&choice.endpoint).and_then(|endpoint| endpoint.to) {
                Some(Destination::At(at)) => (first..=last).contains(&at.port()),
                Some(Destination::Port(port)) => (first..=last).contains(&port),
                None => false,
            }
        })
    }

    /// Returns true if a rule that refuses or drops packets is all that its frontend needs.
    fn is_whole(&self, verdict: &Verdict) -> bool {
        if !verdict.is_external {
            return self.cluster_ips;
        }
        let is_entered =
            place(verdict.place).is_some_and(|at| self.verdicts.contains(&(verdict.protocol, at)));
        // If only packets from outside are dropped, a rule of the nat table is for the others.
        let needs_other =
            verdict.drops && verdict.name.as_ref().is_some_and(|name| self.has_external_chain(name));
        is_entered && !needs_other
    }

    fn has_external_chain(&self, name: &ServicePortName) -> bool {
        let hash = hash_of(&name.to_string(), name.protocol);
        self.chains.ports.get(&hash).is_some_and(|port| port.external.exists)
    }

    /// Returns the source ranges of a frontend; empty if all sources are allowed.
    fn ranges(&self, dispatch: &Dispatch, port: &Port) -> Option<Vec<IpNet>> {
        let at = match dispatch.place {
            ObservedPlace::Frontend(Frontend::LoadBalancerIp(address, port)) => {
                SocketAddr::new(address, port)
            }
            ObservedPlace::Address(at) => at,
            ObservedPlace::Frontend(_) | ObservedPlace::NodePortAt(_) => return None,
        };
        if dispatch.to.kind() != Kind::Firewall {
            return Some(Vec::new());
        }
        // Without this rule, packets from other sources are not translated, but nothing stops them.
        let is_guarded = self.guards && self.chains.guards.contains_key(&(dispatch.protocol, at));
        if port.firewall.is_open || !is_guarded {
            return Some(Vec::new());
        }
        // They may be sources themselves. Where only such sources are left, they are the source ranges.
        let own = self.load_balancer_ips.get(&dispatch.to.hash());
        let is_added = |range: &&IpNet| {
            range.prefix_len() == range.max_prefix_len() && own.is_some_and(|own| own.contains(&range.addr()))
        };
        let ranges: Vec<IpNet> =
            port.firewall.ranges.iter().filter(|range| !is_added(range)).copied().collect();
        Some(if ranges.is_empty() { port.firewall.ranges.clone() } else { ranges })
    }

    /// Returns the entries of a Service port: one, or more where an entry cannot hold everything.
    fn service_port(
        &self,
        port: &Port,
        name: Option<&Arc<ServicePortName>>,
        found: &Found,
    ) -> Vec<ObservedPort> {
        let first = found.frontends.first().map(|frontend| frontend.protocol);
        // Chains without a name that no rule leads to are stale.
        let Some(protocol) = name.map(|name| name.protocol).or(first) else { return Vec::new() };
        let mut counted = HashSet::new();
        let cluster = self.list(&port.cluster, &mut counted);
        let local = self.list(&port.local, &mut counted);
        let mut affinities =
            cluster.affinities.iter().chain(&local.affinities).copied().collect::<BTreeSet<_>>();
        let is_relayed = self.chains.listeners.is_some();
        let affinity = affinities.pop_first().filter(|_| !is_relayed);
        let mut entry = ObservedPort {
            name: name.cloned(),
            protocol,
            frontends: Vec::new(),
            endpoints: ObservedEndpoints::Unknown,
            affinity: affinity.map_or(Fact::Unknown, Fact::Known),
            source_ranges: Fact::Unknown,
            counters: None,
        };
        if !is_relayed {
            let (cluster, local) = (Fact::Known(cluster.endpoints), Fact::Known(local.endpoints));
            entry.endpoints = ObservedEndpoints::Lists { cluster, local };
        }
        let mut others = add_frontends(&mut entry, found);
        if !is_relayed {
            // An entry has one timeout. What has another one is an entry of its own.
            others.extend(affinities.into_iter().map(|affinity| ObservedPort {
                frontends: if name.is_none() { uncounted(&entry.frontends) } else { Vec::new() },
                endpoints: ObservedEndpoints::Unknown,
                affinity: Fact::Known(affinity),
                source_ranges: Fact::Unknown,
                ..entry.clone()
            }));
        }
        others.insert(0, entry);
        others
    }

    /// Returns the endpoints that rules choose. A rule for former clients only is not enough. An endpoint that is not in
    /// `counted` gets its counters.
    fn list(&self, choices: &[Choice], counted: &mut HashSet<Hash>) -> List {
        if self.chains.listeners.is_some() {
            return List::default();
        }
        let mut list = List::default();
        let mut within = HashMap::new();
        for choice in choices {
            if let Some(seconds) = choice.within {
                within.insert(choice.endpoint, seconds);
            }
        }
        let mut seen = HashSet::new();
        for choice in choices.iter().filter(|choice| choice.within.is_none()) {
            let endpoint = self.chains.endpoints.get(&choice.endpoint);
            let Some(endpoint) = endpoint.filter(|_| seen.insert(choice.endpoint)) else { continue };
            let Some(Destination::At(at)) = endpoint.to else { continue };
            let seconds = within.get(&choice.endpoint).copied().filter(|_| endpoint.remembers);
            list.affinities.insert(seconds);
            let counters = endpoint.counters.filter(|_| counted.insert(choice.endpoint));
            list.endpoints.push(ObservedEndpoint { at, counters });
        }
        list
    }
}

/// Adds the frontends to the entry of a Service port. Returns further entries: for frontends of another protocol than the
/// name has, and for load-balancer IPs with other source ranges.
fn add_frontends(entry: &mut ObservedPort, found: &Found) -> Vec<ObservedPort> {
    let mut others: Vec<ObservedPort> = Vec::new();
    for frontend in &found.frontends {
        let FoundFrontend { place, counters, refused, .. } = *frontend;
        let observed = ObservedFrontend { place, counters, refused };
        if frontend.protocol != entry.protocol {
            others.push(of_unknown(frontend.protocol, observed, ObservedEndpoints::Unknown));
            continue;
        }
        let Some(ranges) = frontend.ranges.clone().map(Fact::Known) else {
            entry.frontends.push(observed);
            continue;
        };
        if entry.source_ranges == Fact::Unknown || entry.source_ranges == ranges {
            entry.source_ranges = ranges;
            entry.frontends.push(observed);
        } else {
            others.push(ObservedPort {
                name: entry.name.clone(),
                protocol: frontend.protocol,
                frontends: vec![observed],
                endpoints: ObservedEndpoints::Unknown,
                affinity: Fact::Unknown,
                source_ranges: ranges,
                counters: None,
            });
        }
    }
    others
}

/// Returns an entry of a frontend whose Service port is not known.
fn of_unknown(protocol: Protocol, frontend: ObservedFrontend, endpoints: ObservedEndpoints) -> ObservedPort {
    ObservedPort {
        name: None,
        protocol,
        frontends: vec![frontend],
        endpoints,
        affinity: Fact::Unknown,
        source_ranges: Fact::Unknown,
        counters: None,
    }
}

fn no_endpoints() -> ObservedEndpoints {
    ObservedEndpoints::Lists { cluster: Fact::Known(Vec::new()), local: Fact::Known(Vec::new()) }
}

fn uncounted(frontends: &[ObservedFrontend]) -> Vec<ObservedFrontend> {
    frontends.iter().map(|frontend| ObservedFrontend::at(frontend.place)).collect()
}

fn address(place: ObservedPlace) -> Option<SocketAddr> {
    match place {
        ObservedPlace::Frontend(frontend) => frontend.socket(),
        ObservedPlace::Address(at) => Some(at),
        ObservedPlace::NodePortAt(_) => None,
    }
}

fn place(observed: ObservedPlace) -> Option<RefusedAt> {
    match observed {
        ObservedPlace::Frontend(Frontend::NodePort(port)) => Some(RefusedAt::NodePort(port)),
        _ => address(observed).map(RefusedAt::At),
    }
}
