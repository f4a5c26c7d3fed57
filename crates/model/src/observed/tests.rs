use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::table::Entry;
use crate::world::{Ranges, Rng, World};
use crate::{Backend, Catalog, ExternalPolicy, Forwarding, InternalPolicy};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("a socket")
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a CIDR")
}

fn backends(sockets: &[&str]) -> Box<[Backend]> {
    let backend =
        |socket: SocketAddr| Backend { address: socket.ip(), port: socket.port(), may_hairpin: false };
    sockets.iter().map(|socket| backend(at(socket))).collect()
}

/// The Service port `default/web:http` with a frontend of each kind.
fn web() -> Entry {
    let [namespace, service, port] = ["default", "web", "http"].map(Arc::from);
    let name = ServicePortName { namespace, service, port, protocol: Protocol::Tcp };
    let plain =
        Forwarding::plain(at("10.96.0.1:80"), Protocol::Tcp, backends(&["10.0.0.2:8080", "10.0.0.3:8080"]));
    let forwarding = Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip("10.96.0.1"), 80),
            Frontend::ExternalIp(ip("192.0.2.10"), 80),
            Frontend::LoadBalancerIp(ip("192.0.2.20"), 80),
            Frontend::NodePort(30080),
        ]),
        local: backends(&["10.0.0.2:8080"]),
        external_policy: ExternalPolicy::Local,
        source_ranges: Box::new([net("203.0.113.0/24")]),
        ..plain
    };
    (Arc::new(name), Arc::new(forwarding))
}

fn list(backends: &[Backend]) -> Vec<ObservedEndpoint> {
    backends.iter().map(|backend| ObservedEndpoint::at(backend.socket())).collect()
}

fn has_load_balancer_ip(forwarding: &Forwarding) -> bool {
    forwarding.frontends.iter().any(|frontend| matches!(frontend, Frontend::LoadBalancerIp(..)))
}

/// Returns what a mode reads back that holds neither names nor kinds of frontends, like IPVS: one entry for each
/// address and port.
fn by_address(table: &[Entry], nodes: &[IpAddr]) -> Observed {
    let mut ports = Vec::new();
    for (_, forwarding) in table {
        for frontend in forwarding.frontends.iter().copied() {
            let places: Vec<ObservedPlace> = match frontend {
                Frontend::NodePort(port) => {
                    nodes.iter().map(|node| ObservedPlace::NodePortAt(SocketAddr::new(*node, port))).collect()
                }
                _ => frontend.socket().map(ObservedPlace::Address).into_iter().collect(),
            };
            let ranges = match frontend {
                Frontend::LoadBalancerIp(..) => forwarding.source_ranges.to_vec(),
                _ => Vec::new(),
            };
            ports.extend(places.into_iter().map(|place| ObservedPort {
                name: None,
                protocol: forwarding.protocol,
                frontends: vec![ObservedFrontend::at(place)],
                endpoints: ObservedEndpoints::Shared(list(forwarding.shared_backends(frontend))),
                affinity: Fact::Known(forwarding.affinity),
                source_ranges: Fact::Known(ranges.clone()),
                counters: None,
            }));
        }
    }
    let node_port_addresses = Some(nodes.to_vec());
    Observed { family: Family::Ipv4, node_port_addresses, node_ports: Fact::Unknown, ports }
}

/// Returns the texts of the differences after a change of what was read back.
fn after(observed: Observed, change: impl FnOnce(&mut Observed)) -> Vec<String> {
    let mut observed = observed;
    change(&mut observed);
    observed.difference(&[web()]).iter().map(ToString::to_string).collect()
}

fn cluster_of(port: &mut ObservedPort) -> &mut Vec<ObservedEndpoint> {
    match &mut port.endpoints {
        ObservedEndpoints::Lists { cluster: Fact::Known(list), .. } | ObservedEndpoints::Shared(list) => list,
        other => panic!("{other:?}"),
    }
}

#[test]
fn frontends_that_are_missing_or_extra() {
    let after = |change: fn(&mut Observed)| after(precise(&[web()]), change);
    assert_eq!(after(|_| {}), [""; 0]);
    assert_eq!(after(|o| o.ports.clear()), ["default/web:http (TCP): nothing is programmed"]);
    assert_eq!(
        after(|o| o.ports[0].frontends.truncate(3)),
        ["default/web:http (TCP): node port 30080 is not programmed"]
    );
    assert_eq!(
        after(|o| o.ports[0].frontends[1].place = ObservedPlace::Frontend(Frontend::NodePort(30081))),
        [
            "default/web:http (TCP): external IP 192.0.2.10:80 is not programmed",
            "default/web:http (TCP): extra node port 30081",
        ]
    );
    assert_eq!(
        after(|o| o.ports[0].frontends[1].place = ObservedPlace::Address(at("192.0.2.10:80"))),
        [""; 0]
    );
    let other = |o: &mut Observed| {
        let mut name = (*web().0).clone();
        name.port = "".into();
        let mut other = o.ports[0].clone();
        other.name = Some(Arc::new(name));
        o.ports.push(other);
    };
    assert_eq!(after(other), ["default/web (TCP): extra Service port"]);
    assert_eq!(after(|o| o.ports[0].protocol = Protocol::Udp), [""; 0], "the name has the protocol");
}

#[test]
fn endpoints_that_are_missing_or_extra() {
    let after = |change: fn(&mut Observed)| after(precise(&[web()]), change);
    assert_eq!(
        after(|o| cluster_of(&mut o.ports[0]).truncate(1)),
        ["default/web:http (TCP): endpoint 10.0.0.3:8080 is missing in the cluster list"]
    );
    assert_eq!(
        after(|o| cluster_of(&mut o.ports[0]).push(ObservedEndpoint::at(at("10.0.0.9:8080")))),
        ["default/web:http (TCP): extra endpoint 10.0.0.9:8080 in the cluster list"]
    );
    let without_local = |o: &mut Observed| {
        if let ObservedEndpoints::Lists { local, .. } = &mut o.ports[0].endpoints {
            *local = Fact::Known(Vec::new());
        }
    };
    assert_eq!(
        after(without_local),
        ["default/web:http (TCP): endpoint 10.0.0.2:8080 is missing in the local list"]
    );
}

#[test]
fn a_list_that_no_frontend_leads_to_may_be_missing() {
    let (name, forwarding) = web();
    let internal = Forwarding {
        frontends: Box::new([Frontend::ClusterIp(ip("10.96.0.1"), 80)]),
        internal_policy: InternalPolicy::Local,
        source_ranges: Box::default(),
        ..(*forwarding).clone()
    };
    let table = [(name, Arc::new(internal))];
    let mut observed = precise(&table);
    cluster_of(&mut observed.ports[0]).clear();
    assert_eq!(observed.difference(&table), []);
    cluster_of(&mut observed.ports[0]).push(ObservedEndpoint::at(at("10.0.0.9:8080")));
    assert_eq!(observed.difference(&table).len(), 1);
}

#[test]
fn affinity_and_source_ranges() {
    let after = |change: fn(&mut Observed)| after(precise(&[web()]), change);
    assert_eq!(
        after(|o| o.ports[0].affinity = Fact::Known(Some(10_800))),
        ["default/web:http (TCP): session affinity is 10800 s instead of none"]
    );
    assert_eq!(
        after(|o| o.ports[0].source_ranges = Fact::Known(vec![net("203.0.113.0/25")])),
        [
            "default/web:http (TCP): source range 203.0.113.0/24 is missing",
            "default/web:http (TCP): extra source range 203.0.113.0/25",
        ]
    );
    let halves = |o: &mut Observed| {
        o.ports[0].source_ranges = Fact::Known(vec![net("203.0.113.0/25"), net("203.0.113.128/25")]);
    };
    assert_eq!(after(halves), [""; 0]);
    assert_eq!(
        after(|o| o.ports[0].source_ranges = Fact::Known(Vec::new())),
        ["default/web:http (TCP): all sources are allowed instead of the source ranges"]
    );
}

fn ranges(texts: &[&str]) -> Fact<Vec<IpNet>> {
    Fact::Known(texts.iter().map(|text| net(text)).collect())
}

#[test]
fn load_balancer_ips_as_sources_are_not_compared() {
    let after = |change: fn(&mut Observed)| after(precise(&[web()]), change);
    assert_eq!(after(|o| o.ports[0].source_ranges = ranges(&["203.0.113.0/24", "192.0.2.20/32"])), [""; 0]);
    assert_eq!(
        after(|o| o.ports[0].source_ranges = ranges(&["203.0.113.0/24", "192.0.2.21/32"])),
        ["default/web:http (TCP): extra source range 192.0.2.21/32"]
    );
    let (name, forwarding) = web();
    let own = Forwarding { source_ranges: Box::new([net("192.0.2.20/32")]), ..(*forwarding).clone() };
    let table = [(name, Arc::new(own))];
    let mut observed = precise(&table);
    assert_eq!(observed.difference(&table), []);
    observed.ports[0].source_ranges = Fact::Known(Vec::new());
    assert_eq!(observed.difference(&table).len(), 1, "all sources are allowed");
}

#[test]
fn endpoints_that_no_frontend_leads_to_can_only_be_extra() {
    let (mut observed, table) = (precise(&[web()]), [web()]);
    let mut beside = observed.ports[0].clone();
    beside.frontends.clear();
    beside.source_ranges = Fact::Unknown;
    cluster_of(&mut beside).truncate(1);
    observed.ports.push(beside);
    assert_eq!(observed.difference(&table), []);
    cluster_of(&mut observed.ports[1]).push(ObservedEndpoint::at(at("10.0.0.9:8080")));
    let texts: Vec<String> = observed.difference(&table).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["default/web:http (TCP): extra endpoint 10.0.0.9:8080 in the cluster list"]);
}

/// A mode may add the load-balancer IP to the sources, and its reader leaves it out.
#[test]
fn a_source_range_that_is_the_load_balancer_ip_may_be_missing() {
    let (name, forwarding) = web();
    let ranges: Box<[IpNet]> = Box::new([net("192.0.2.20/32"), net("192.0.2.30/32"), net("203.0.113.0/24")]);
    let table = [(name, Arc::new(Forwarding { source_ranges: ranges, ..(*forwarding).clone() }))];
    let mut observed = precise(&table);
    assert_eq!(observed.difference(&table), []);
    observed.ports[0].source_ranges = Fact::Known(vec![net("203.0.113.0/24")]);
    let left: Vec<String> = observed.difference(&table).iter().map(ToString::to_string).collect();
    assert_eq!(left, ["default/web:http (TCP): source range 192.0.2.30/32 is missing"]);
}

#[test]
fn what_a_mode_does_not_hold_is_no_difference() {
    let unknown = |o: &mut Observed| {
        o.ports[0].endpoints = ObservedEndpoints::Unknown;
        o.ports[0].affinity = Fact::Unknown;
        o.ports[0].source_ranges = Fact::Unknown;
    };
    assert_eq!(after(precise(&[web()]), unknown), [""; 0]);
    let no_lists = |o: &mut Observed| {
        o.ports[0].endpoints = ObservedEndpoints::Lists { cluster: Fact::Unknown, local: Fact::Unknown };
    };
    assert_eq!(after(precise(&[web()]), no_lists), [""; 0]);
}

#[test]
fn entries_without_names() {
    let nodes = [ip("172.16.0.1"), ip("172.17.0.1")];
    let after = |change: fn(&mut Observed)| after(by_address(&[web()], &nodes), change);
    assert_eq!(after(|_| {}), [""; 0]);
    assert_eq!(
        after(|o| o.ports.truncate(4)),
        ["default/web:http (TCP): node port 30080 at 172.17.0.1 is not programmed"]
    );
    assert_eq!(
        after(|o| cluster_of(&mut o.ports[1]).clear()),
        ["default/web:http (TCP): endpoint 10.0.0.2:8080 is missing behind frontend 192.0.2.10:80"]
    );
    assert_eq!(
        after(|o| o.ports[0].frontends[0].place = ObservedPlace::Address(at("10.96.0.2:80"))),
        [
            "no Service (TCP): extra frontend 10.96.0.2:80",
            "default/web:http (TCP): cluster IP 10.96.0.1:80 is not programmed",
        ]
    );
    assert_eq!(
        after(|o| o.ports[2].source_ranges = Fact::Known(Vec::new())),
        ["default/web:http (TCP): all sources are allowed instead of the source ranges"]
    );
    // A virtual server at an address of the node can be an external IP or a node port.
    assert_eq!(
        after(|o| o.ports[3].frontends[0].place = ObservedPlace::Address(at("172.16.0.1:30080"))),
        [""; 0]
    );
    assert_eq!(
        after(|o| o.ports[0].protocol = Protocol::Udp),
        [
            "no Service (UDP): extra frontend 10.96.0.1:80",
            "default/web:http (TCP): cluster IP 10.96.0.1:80 is not programmed",
        ]
    );
}

/// A node port at an address that is also a Service's own address and port.
#[test]
fn an_address_of_a_service_goes_before_a_node_port_there() {
    let (name, forwarding) = web();
    let owner = ServicePortName { service: "owner".into(), ..(*name).clone() };
    let external = Forwarding {
        frontends: Box::new([Frontend::ExternalIp(ip("172.16.0.1"), 30080)]),
        ..Forwarding::plain(at("10.96.0.2:80"), Protocol::Tcp, backends(&["10.0.0.4:8080"]))
    };
    let table = [(name, forwarding), (Arc::new(owner), Arc::new(external))];
    let shared = at("172.16.0.1:30080");
    let mut observed = by_address(&table, &[ip("172.16.0.1"), ip("172.17.0.1")]);
    observed.ports.retain(|port| port.frontends[0].place != ObservedPlace::NodePortAt(shared));
    assert_eq!(observed.difference(&table), []);
    observed.ports.retain(|port| port.frontends[0].place != ObservedPlace::Address(shared));
    let found: Vec<String> = observed.difference(&table).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["default/owner:http (TCP): nothing is programmed"]);
}

#[test]
fn without_local_endpoints_external_traffic_shares_those_of_the_cluster() {
    let (name, forwarding) = web();
    let table = [(name, Arc::new(Forwarding { local: Box::default(), ..(*forwarding).clone() }))];
    let nodes = [ip("172.16.0.1")];
    assert_eq!(by_address(&table, &nodes).difference(&table), []);
    assert_eq!(table[0].1.shared_backends(Frontend::NodePort(30080)).len(), 2);
}

#[test]
fn a_service_port_without_frontends_needs_nothing() {
    let (name, forwarding) = web();
    let table = [(name, Arc::new(Forwarding { frontends: Box::default(), ..(*forwarding).clone() }))];
    let nothing = Observed {
        family: Family::Ipv4,
        node_port_addresses: None,
        node_ports: Fact::Unknown,
        ports: Vec::new(),
    };
    assert_eq!(nothing.difference(&table), []);
}

fn random_table(seed: u64, family: Family) -> Vec<Entry> {
    let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
    let mut catalog = Catalog::new("n1");
    for edit in World::random(&mut rng, 6, &ranges).edits() {
        catalog.apply(edit.event().expect("worlds decode"));
    }
    catalog.forwardings(family).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_table_read_back_does_not_differ(seed in any::<u64>(), v6 in any::<bool>()) {
        let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
        let table = random_table(seed, family);
        let nodes = [ip(if v6 { "fd00::1" } else { "172.16.0.1" })];
        prop_assert_eq!(precise(&table).difference(&table), []);
        prop_assert_eq!(by_address(&table, &nodes).difference(&table), []);
    }

    /// What was read back of another state of the world shows each Service port that changed, and no other.
    #[test]
    fn differences_are_those_of_the_tables(seed in any::<u64>(), other in any::<u64>()) {
        let (before, after) = (random_table(seed, Family::Ipv4), random_table(other, Family::Ipv4));
        let find = |table: &[Entry], name: &ServicePortName| {
            table.iter().find(|(own, _)| **own == *name).map(|(_, forwarding)| Arc::clone(forwarding))
        };
        let mut names: Vec<_> = before.iter().chain(&after).map(|(name, _)| Arc::clone(name)).collect();
        names.sort();
        names.dedup();
        let differs = |name: &&Arc<ServicePortName>| {
            match (find(&before, name), find(&after, name)) {
                (Some(before), Some(after)) => {
                    visible(&before) != visible(&after) || lists_differ(&before, &after)
                }
                (None, Some(after)) => !after.frontends.is_empty(),
                (Some(_), None) => true,
                (None, None) => false,
            }
        };
        let expected: Vec<_> = names.iter().filter(differs).cloned().collect();
        let mut found: Vec<_> =
            precise(&before).difference(&after).into_iter().filter_map(|difference| difference.name).collect();
        found.dedup();
        prop_assert_eq!(found, expected);
    }
}

/// What of a forwarding is compared with a mode that holds every fact, besides the lists of endpoints.
fn visible(forwarding: &Forwarding) -> impl PartialEq + use<> {
    let mut frontends = forwarding.frontends.to_vec();
    frontends.sort();
    let ranges = if has_load_balancer_ip(forwarding) {
        IpNet::aggregate(&forwarding.source_ranges.to_vec())
    } else {
        Vec::new()
    };
    (frontends, forwarding.affinity, ranges)
}

/// Returns true if the lists of endpoints differ. An endpoint that is missing in a list counts only if a frontend leads to
/// the list.
fn lists_differ(before: &Forwarding, after: &Forwarding) -> bool {
    let is_internal = |frontend: &Frontend| matches!(frontend, Frontend::ClusterIp(..));
    let (internal, external): (Vec<&Frontend>, Vec<_>) =
        after.frontends.iter().partition(|one| is_internal(one));
    let of_policies = |internal_uses: bool, external_uses: bool| {
        (internal_uses && !internal.is_empty()) || (external_uses && !external.is_empty())
    };
    let uses_cluster = of_policies(after.internal_policy == InternalPolicy::Cluster, true);
    let uses_local = of_policies(
        after.internal_policy == InternalPolicy::Local,
        after.external_policy == ExternalPolicy::Local,
    );
    let lacks = |list: &[Backend], of: &[Backend]| {
        of.iter().any(|one| list.iter().all(|backend| backend.socket() != one.socket()))
    };
    let differ = |before: &[Backend], after: &[Backend], is_used: bool| {
        lacks(after, before) || is_used && lacks(before, after)
    };
    differ(&before.cluster, &after.cluster, uses_cluster) || differ(&before.local, &after.local, uses_local)
}
