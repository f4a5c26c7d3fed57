//! What the kernel and the relay have, in the terms of Services ([`Observed`]).
//!
//! The rules have the frontends, the names and the source ranges; the relay has the endpoints and the affinity. As for
//! packets, both are joined by the frontend: the relay finds a Service port by the destination, whatever name the rules
//! have for it. Pure, except for [`read`] and [`read_redirect`].
//!
//! - The rules reject or drop what comes to a frontend without endpoints. It never reaches the relay.
//! - A frontend that the relay does not know has no endpoints.
//! - A Service port that only the relay has is an entry without frontends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use portolan_engine::dataplane::Error;
use portolan_iptables::{Programs, Reading};
use portolan_model::observed::{
    Counters, Fact, Observed, ObservedEndpoint, ObservedEndpoints, ObservedFrontend, ObservedPlace,
    ObservedPort,
};
use portolan_model::table::Entry;
use portolan_model::{Backend, Family, Frontend, Protocol};
use portolan_relay::{Handle, Relayed};

/// Returns what the kernel has of the rules that capture by `tproxy`, in the network namespace of this thread. `None` if the
/// rules do not exist.
///
/// Endpoints and session affinity are in the process of the relay. In another process, or after the relay has ended, they
/// are not known.
pub fn read(family: Family, relay: Option<&Handle>) -> Result<Option<Observed>, Error> {
    let rules = portolan_nftables::read_capture(family)?;
    Ok(rules.map(|rules| with_relay(without_refused(rules), relay)))
}

/// Returns what the kernel has of the rules that capture by redirect, in the network namespace of this thread. `None` if
/// there are no rules of this mode. Without a relay, rules that lead to no listener are those of the iptables mode.
///
/// Endpoints and session affinity are known as in [`read`].
///
/// # Errors
/// The program failed, or cannot print a table.
pub fn read_redirect(
    programs: &Programs,
    family: Family,
    relay: Option<&Handle>,
) -> Result<Option<Observed>, portolan_iptables::Error> {
    let is_own = |reading: &Reading| relay.is_some() || reading.listeners.is_some();
    let reading = Reading::read(programs, family)?.filter(is_own);
    Ok(reading.map(|reading| with_relay(without_sctp(reading.observed), relay)))
}

/// Adds what the relay has to what the rules have.
fn with_relay(rules: Observed, relay: Option<&Handle>) -> Observed {
    match relay.and_then(|relay| relay.snapshot(rules.family)) {
        Some(entries) => with_entries(rules, &entries),
        None => rules,
    }
}

/// Leaves out SCTP Service ports that the rules reject or drop. This mode refuses all SCTP Service ports.
fn without_refused(mut rules: Observed) -> Observed {
    rules.ports.retain(|port| port.protocol != Protocol::Sctp || !has_no_endpoints(port));
    rules
}

/// Leaves out SCTP Service ports. The rules of a redirect refuse all of them, and their reader does not know whether a rule
/// refuses packets or leads them to the relay.
fn without_sctp(mut rules: Observed) -> Observed {
    rules.ports.retain(|port| port.protocol != Protocol::Sctp);
    rules
}

/// Adds what the relay has to what the rules have.
fn with_entries(rules: Observed, relay: &[Relayed]) -> Observed {
    let owners = Owners::of(relay);
    let mut reached = BTreeSet::new();
    let mut counted = BTreeSet::new();
    let (mut ports, mut rejected) = (Vec::new(), Vec::new());
    for port in rules.ports {
        if has_no_endpoints(&port) {
            rejected.push(port);
            continue;
        }
        let mut groups: BTreeMap<Option<usize>, Vec<ObservedFrontend>> = BTreeMap::new();
        for frontend in &port.frontends {
            groups.entry(owners.find(port.protocol, *frontend)).or_default().push(*frontend);
        }
        if groups.is_empty() {
            ports.push(port);
            continue;
        }
        for (index, frontends) in groups {
            reached.extend(index);
            let part = ObservedPort { frontends, ..port.clone() };
            // Parts are added up. So one of them has the counts.
            let has_counts = index.is_some_and(|index| counted.insert(index));
            ports.push(part_with(part, index.and_then(|index| relay.get(index)), has_counts));
        }
    }
    for port in rejected {
        let found: BTreeSet<usize> =
            port.frontends.iter().filter_map(|frontend| owners.find(port.protocol, *frontend)).collect();
        // If nothing of the Service port leads to the relay, its connections went to endpoints that are gone.
        let index = found.first().filter(|index| counted.insert(**index));
        let earlier = index.and_then(|index| relay.get(*index)).map(|it| counters(it.connections));
        reached.extend(found);
        ports.push(ObservedPort { counters: earlier, ..port });
    }
    let unreached = relay.iter().enumerate().filter(|(index, _)| !reached.contains(index));
    ports.extend(unreached.map(|(_, relayed)| without_frontends(&relayed.entry)));
    Observed { ports, ..rules }
}

/// Returns true if the rules reject or drop everything that comes to the frontends.
fn has_no_endpoints(port: &ObservedPort) -> bool {
    matches!(&port.endpoints, ObservedEndpoints::Shared(endpoints) if endpoints.is_empty())
}

/// The relay's Service ports by frontend.
struct Owners {
    addresses: HashMap<(Protocol, SocketAddr), usize>,
    node_ports: HashMap<(Protocol, u16), usize>,
}

impl Owners {
    fn of(relay: &[Relayed]) -> Self {
        let mut owners = Self { addresses: HashMap::new(), node_ports: HashMap::new() };
        for (index, Relayed { entry: (name, forwarding), .. }) in relay.iter().enumerate() {
            for frontend in &forwarding.frontends {
                match (frontend.socket(), frontend) {
                    (Some(socket), _) => drop(owners.addresses.insert((name.protocol, socket), index)),
                    (None, Frontend::NodePort(port)) => {
                        owners.node_ports.insert((name.protocol, *port), index);
                    }
                    (None, _) => {}
                }
            }
        }
        owners
    }

    fn find(&self, protocol: Protocol, frontend: ObservedFrontend) -> Option<usize> {
        let address = |socket| self.addresses.get(&(protocol, socket)).copied();
        let node_port = |port| self.node_ports.get(&(protocol, port)).copied();
        match frontend.place {
            ObservedPlace::Frontend(Frontend::NodePort(port)) => node_port(port),
            ObservedPlace::Frontend(frontend) => address(frontend.socket()?),
            ObservedPlace::Address(socket) => address(socket),
            ObservedPlace::NodePortAt(socket) => address(socket).or_else(|| node_port(socket.port())),
        }
    }
}

/// Adds what the relay has of a Service port to a part of it.
fn part_with(part: ObservedPort, relayed: Option<&Relayed>, has_counts: bool) -> ObservedPort {
    let Some(relayed) = relayed else {
        return ObservedPort { endpoints: ObservedEndpoints::Shared(Vec::new()), ..part };
    };
    let (_, forwarding) = &relayed.entry;
    let counts = has_counts.then_some(&relayed.by_backend);
    ObservedPort {
        endpoints: lists(&forwarding.cluster, &forwarding.local, counts),
        affinity: Fact::Known(forwarding.affinity),
        counters: has_counts.then(|| counters(relayed.connections)),
        ..part
    }
}

fn without_frontends((name, forwarding): &Entry) -> ObservedPort {
    ObservedPort {
        name: Some(name.clone()),
        protocol: name.protocol,
        frontends: Vec::new(),
        endpoints: lists(&forwarding.cluster, &forwarding.local, None),
        affinity: Fact::Known(forwarding.affinity),
        source_ranges: Fact::Unknown,
        counters: None,
    }
}

/// Returns the lists of a Service port, with counts if there are any. The lists are added up, so an endpoint of both has its
/// count in the first.
fn lists(
    cluster: &[Backend],
    local: &[Backend],
    counts: Option<&HashMap<SocketAddr, u64>>,
) -> ObservedEndpoints {
    let endpoint = |at: SocketAddr, is_counted: bool| {
        let count = counts.filter(|_| is_counted).map(|counts| counts.get(&at).copied().unwrap_or_default());
        ObservedEndpoint { at, counters: count.map(counters) }
    };
    let in_cluster = |backend: &Backend| cluster.binary_search(backend).is_ok();
    ObservedEndpoints::Lists {
        cluster: Fact::Known(cluster.iter().map(|backend| endpoint(backend.socket(), true)).collect()),
        local: Fact::Known(
            local.iter().map(|backend| endpoint(backend.socket(), !in_cluster(backend))).collect(),
        ),
    }
}

const fn counters(connections: u64) -> Counters {
    Counters { connections, traffic: None }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::{Forwarding, ServicePortName};

    use super::*;

    fn socket(net: u8, host: u8, port: u16) -> SocketAddr {
        SocketAddr::from(([10, net, 0, host], port))
    }

    /// Returns a Service port with a cluster IP, a node port and two endpoints.
    fn entry(service: &str, host: u8, affinity: Option<u32>) -> Entry {
        let [namespace, service, port] = ["demo", service, ""].map(Arc::from);
        let name = ServicePortName { namespace, service, port, protocol: Protocol::Tcp };
        let backend = |last| Backend { address: socket(244, last, 0).ip(), port: 8080, may_hairpin: false };
        let cluster = [host, host + 1].map(backend).into();
        let plain = Forwarding::plain(socket(96, host, 80), Protocol::Tcp, cluster);
        let node_port = Frontend::NodePort(30_000 + u16::from(host));
        let frontends = plain.frontends.iter().copied().chain([node_port]).collect();
        (Arc::new(name), Arc::new(Forwarding { frontends, affinity, ..plain }))
    }

    /// Returns what the rules have of Service ports.
    fn rules(entries: &[Entry]) -> Observed {
        let place = |frontend: &Frontend| {
            ObservedFrontend::at(
                frontend.socket().map_or(ObservedPlace::Frontend(*frontend), ObservedPlace::Address),
            )
        };
        let port = |(name, forwarding): &Entry| ObservedPort {
            frontends: forwarding.frontends.iter().map(place).collect(),
            endpoints: ObservedEndpoints::Unknown,
            affinity: Fact::Unknown,
            source_ranges: Fact::Known(Vec::new()),
            ..without_frontends(&(name.clone(), forwarding.clone()))
        };
        Observed {
            family: Family::Ipv4,
            node_port_addresses: None,
            node_ports: Fact::Unknown,
            ports: entries.iter().map(port).collect(),
        }
    }

    /// Returns what a relay has that has served nothing.
    fn relayed(entries: &[Entry]) -> Vec<Relayed> {
        let relayed =
            |entry: &Entry| Relayed { entry: entry.clone(), connections: 0, by_backend: HashMap::new() };
        entries.iter().map(relayed).collect()
    }

    fn texts(observed: &Observed, wanted: &[Entry]) -> Vec<String> {
        observed.difference(wanted).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_and_relay_together_have_everything() {
        let wanted = [entry("a", 1, None), entry("b", 11, Some(60))];
        assert_eq!(texts(&with_entries(rules(&wanted), &relayed(&wanted)), &wanted), [""; 0]);
        let other = [entry("a", 1, None), entry("b", 11, None)];
        assert_eq!(
            texts(&with_entries(rules(&wanted), &relayed(&other)), &wanted),
            ["demo/b (TCP): session affinity is none instead of 60 s"]
        );
    }

    #[test]
    fn endpoints_are_those_of_the_frontend_in_the_relay() {
        let wanted = [entry("a", 1, None), entry("b", 11, None)];
        let mut renamed = rules(&wanted);
        renamed.ports[0].name = None;
        assert_eq!(
            texts(&with_entries(renamed, &relayed(&wanted)), &wanted),
            [""; 0],
            "found by its frontends"
        );
        let mut relay = wanted.clone();
        let cluster = relay[0].1.cluster[..1].into();
        relay[0].1 = Arc::new(Forwarding { cluster, ..(*relay[0].1).clone() });
        assert_eq!(
            texts(&with_entries(rules(&wanted), &relayed(&relay)), &wanted),
            ["demo/a (TCP): endpoint 10.244.0.2:8080 is missing in the cluster list"]
        );
    }

    #[test]
    fn what_only_one_of_them_has() {
        let both = [entry("a", 1, None), entry("b", 11, None)];
        let [a, _] = both.clone();
        assert_eq!(
            texts(&with_entries(rules(&both), &relayed(std::slice::from_ref(&a))), &both)[0],
            "demo/b (TCP): endpoint 10.244.0.11:8080 is missing behind node port 30011"
        );
        let only_relay = with_entries(rules(std::slice::from_ref(&a)), &relayed(&both));
        assert_eq!(
            texts(&only_relay, &both),
            [
                "demo/b (TCP): cluster IP 10.96.0.11:80 is not programmed",
                "demo/b (TCP): node port 30011 is not programmed",
            ]
        );
        assert_eq!(texts(&only_relay, &[a]), ["demo/b (TCP): extra Service port"]);
    }

    #[test]
    fn connections_are_counted_once_however_many_parts_and_lists_have_an_endpoint() {
        let (name, forwarding) = entry("a", 1, None);
        let local = forwarding.cluster[..1].into();
        let wanted = [(name, Arc::new(Forwarding { local, ..(*forwarding).clone() }))];
        let mut relay = relayed(&wanted);
        relay[0].connections = 5;
        relay[0].by_backend = [(socket(244, 1, 8080), 3)].into();
        let mut rules = rules(&wanted);
        let second =
            ObservedPort { frontends: rules.ports[0].frontends.split_off(1), ..rules.ports[0].clone() };
        rules.ports.push(second);
        let counted = with_entries(rules, &relay).counted(&wanted).remove(0);
        assert_eq!(counted.total.passed, Some(counters(5)), "also those of an endpoint that is gone");
        let endpoints = [(socket(244, 1, 8080), counters(3)), (socket(244, 2, 8080), counters(0))];
        assert_eq!(counted.endpoints, endpoints.into());

        // A part that is rejected comes first.
        let mut rejected = self::rules(&wanted);
        let mut first = rejected.ports[0].clone();
        first.frontends.truncate(1);
        first.endpoints = ObservedEndpoints::Shared(Vec::new());
        rejected.ports[0].frontends.remove(0);
        rejected.ports.insert(0, first);
        let counted = with_entries(rejected, &relay).counted(&wanted).remove(0);
        assert_eq!((counted.total.passed, counted.endpoints), (Some(counters(5)), endpoints.into()));

        let mut rejected = self::rules(&wanted);
        rejected.ports[0].endpoints = ObservedEndpoints::Shared(Vec::new());
        let counted = with_entries(rejected, &relay).counted(&wanted).remove(0);
        assert_eq!((counted.total.passed, counted.endpoints.len()), (Some(counters(5)), 0), "none is left");
    }

    #[test]
    fn what_the_rules_reject_never_reaches_the_relay() {
        let wanted = [entry("a", 1, None)];
        let mut rejected = rules(&wanted);
        rejected.ports[0].endpoints = ObservedEndpoints::Shared(Vec::new());
        let texts = texts(&with_entries(rejected.clone(), &relayed(&wanted)), &wanted);
        assert_eq!(texts[0], "demo/a (TCP): endpoint 10.244.0.1:8080 is missing behind node port 30001");
        rejected.ports[0].protocol = Protocol::Sctp;
        assert_eq!(without_refused(rejected).ports, []);
    }
}
