use std::net::SocketAddr;

use portolan_engine::table::Table;
use portolan_model::observed::{Behind, Deviation, Difference};
use portolan_model::table::Entry;
use portolan_model::world::{Edit, Ranges, Rng, World, random_edit};
use portolan_model::{Catalog, NodePortAddresses, Settings};
use portolan_wire::ipvs::Counters as WireCounters;
use proptest::prelude::*;

use super::*;
use crate::desired::{Desired, Touched};
use crate::difference::Difference as Writes;
use crate::draining::Draining;
use crate::memory::{Kernel, manner};

#[path = "../../../iptables/tests/iptables/example.rs"]
mod example;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn key(protocol: Protocol, text: &str) -> Key {
    Key { address: at(text).ip(), port: at(text).port(), protocol }
}

fn tcp(text: &str) -> Key {
    key(Protocol::Tcp, text)
}

fn nodes(family: Family) -> Vec<IpAddr> {
    match family {
        Family::Ipv4 => vec![ip("192.168.0.2"), ip("192.168.1.2")],
        Family::Ipv6 => vec![ip("fd00:192:168::2"), ip("fd00:192:168:1::2")],
    }
}

/// The data plane of one family with a kernel in memory, and the table that it programs.
struct Node {
    family: Family,
    exclude: Vec<IpNet>,
    catalog: Catalog,
    table: Table,
    desired: Desired,
    draining: Draining,
    kernel: Kernel,
}

impl Node {
    fn new(settings: Settings, exclude: Vec<IpNet>) -> Self {
        let family = settings.family;
        let table = Table::new(settings.clone());
        let mut desired = Desired::new(settings, exclude.clone());
        desired.set_node_addresses(nodes(family), &table);
        Self {
            family,
            exclude,
            catalog: Catalog::new("n1"),
            table,
            desired,
            draining: Draining::default(),
            kernel: Kernel::default(),
        }
    }

    /// Plans these edits as one change, and commits it.
    fn apply(&mut self, edits: &[Edit]) {
        for edit in edits {
            self.catalog.apply(edit.event().unwrap());
        }
        let mut touched = Touched::default();
        let changes = self.table.take(self.catalog.take_changes().changes, []);
        self.desired.apply(&changes, &mut touched);
        let writes = Writes::of_change(&touched, &self.desired, &self.draining, manner());
        self.kernel.take(&writes);
        writes.settled.iter().for_each(|(key, place)| self.draining.remove(key, *place));
        for (key, place, until) in &writes.draining {
            self.draining.add(*key, *place, *until);
        }
    }

    fn rows(&self) -> Rows {
        self.kernel.rows(self.family, &nodes(self.family))
    }

    fn differences(&self, rows: &Rows) -> Vec<Difference> {
        let table: Vec<Entry> = self.catalog.forwardings(self.family).collect();
        observed(rows, &self.exclude).difference(&table)
    }
}

/// Adds virtual servers of other programs: one at an address that the node does not have, one at a node's address, and
/// one at each address of Services, at a port that they do not use.
fn add_foreign(rows: &mut Rows) {
    let mut foreign = vec![SocketAddr::new(nodes(rows.family)[0], 9999)];
    foreign.push(at(if rows.family == Family::Ipv4 { "203.0.113.99:80" } else { "[2001:db8:9::9]:80" }));
    foreign.extend(rows.addresses.device.iter().map(|address| SocketAddr::new(*address, 9999)));
    for socket in foreign {
        let key = Key { address: socket.ip(), port: socket.port(), protocol: Protocol::Tcp };
        rows.servers.insert(key, server(&key, 0, 0));
        rows.real.insert(key, vec![RealServer::new(socket, 1)]);
    }
}

fn server(key: &Key, flags: u32, timeout: u32) -> VirtualServer {
    let scheduler = "rr".to_owned();
    VirtualServer {
        identity: key.identity(),
        scheduler,
        flags,
        timeout,
        counters: WireCounters { connections: 1, packets: 3, bytes: 180 },
    }
}

fn settings(family: Family, node_ports: usize) -> Settings {
    let node_port_addresses = match node_ports {
        3 => NodePortAddresses::MatchAll,
        count => NodePortAddresses::Addresses(nodes(family).into_iter().take(count).collect()),
    };
    Settings { node_port_addresses, ..Settings::plain(family) }
}

fn ranges(family: Family) -> Ranges {
    let mut ranges = Ranges::example();
    // Some addresses of Services are those of the node.
    ranges.external_ips.extend(nodes(family));
    ranges
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What was planned and committed reads back with no difference, and virtual servers of other programs do not
    /// matter.
    #[test]
    fn what_was_committed_reads_back(
        seed in any::<u64>(),
        v6 in any::<bool>(),
        node_ports in 0..=3_usize,
        excludes in any::<bool>(),
    ) {
        let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
        let exclude = ["10.96.0.0/24", "2001:db8:96::/64", "192.168.1.0/24"].map(|net| net.parse().unwrap());
        let exclude = if excludes { exclude.to_vec() } else { Vec::new() };
        let (mut rng, ranges) = (Rng::new(seed), ranges(family));
        let mut world = World::random(&mut rng, 8, &ranges);
        let mut node = Node::new(settings(family, node_ports), exclude);
        let mut edits = world.edits();
        for _ in 0..12 {
            node.apply(&edits);
            let mut rows = node.rows();
            prop_assert_eq!(node.differences(&rows), []);
            add_foreign(&mut rows);
            prop_assert_eq!(node.differences(&rows), []);
            edits = vec![random_edit(&mut rng, &mut world, &ranges)];
        }
    }

    /// A real server that is removed is the only difference, and so is one that drains.
    #[test]
    fn each_endpoint_that_is_gone_is_seen(seed in any::<u64>(), drains in any::<bool>()) {
        let (mut rng, ranges) = (Rng::new(seed), ranges(Family::Ipv4));
        let world = World::random(&mut rng, 8, &ranges);
        let mut node = Node::new(settings(Family::Ipv4, 3), Vec::new());
        node.apply(&world.edits());
        let rows = node.rows();
        for (key, servers) in &rows.real {
            for (index, server) in servers.iter().enumerate() {
                let mut rows = rows.clone();
                let real = rows.real.get_mut(key).unwrap();
                if drains {
                    real[index].weight = 0;
                } else {
                    real.remove(index);
                }
                let found = node.differences(&rows);
                prop_assert_eq!(found.len(), 1);
                let Deviation::EndpointMissing { endpoint, behind: Behind::Frontend(place) } = found[0].deviation else {
                    panic!("{found:?}");
                };
                prop_assert_eq!((endpoint, found[0].protocol), (server.place, key.protocol));
                let socket = match place {
                    ObservedPlace::Frontend(frontend) => frontend.socket().unwrap(),
                    ObservedPlace::Address(socket) | ObservedPlace::NodePortAt(socket) => socket,
                };
                prop_assert_eq!(socket, key.socket());
            }
        }
    }

    /// A virtual server that is removed is missing for one Service port, which is named.
    #[test]
    fn each_virtual_server_that_is_gone_is_seen(seed in any::<u64>()) {
        let (mut rng, ranges) = (Rng::new(seed), ranges(Family::Ipv6));
        let world = World::random(&mut rng, 8, &ranges);
        let mut node = Node::new(settings(Family::Ipv6, 3), Vec::new());
        node.apply(&world.edits());
        let rows = node.rows();
        for key in rows.servers.keys() {
            let mut rows = rows.clone();
            rows.servers.remove(key);
            let found = node.differences(&rows);
            prop_assert_eq!(found.len(), 1);
            prop_assert!(found[0].name.is_some());
            let missing = matches!(
                found[0].deviation,
                Deviation::FrontendMissing(_) | Deviation::ServicePortMissing
            );
            prop_assert!(missing, "{:?}", found);
        }
    }
}

/// The table of the worked example, as entries.
fn entries(family: Family) -> Vec<Entry> {
    let changes = match family {
        Family::Ipv4 => example::ipv4(),
        Family::Ipv6 => example::ipv6(),
    };
    changes.into_iter().filter_map(|change| Some((change.name, change.new?))).collect()
}

/// Returns the rows of the example after one commit.
fn committed(family: Family) -> Rows {
    let settings = example::settings(family);
    let mut table = Table::new(settings.clone());
    let mut desired = Desired::new(settings, Vec::new());
    desired.set_node_addresses(nodes(family), &table);
    let changes = match family {
        Family::Ipv4 => example::ipv4(),
        Family::Ipv6 => example::ipv6(),
    };
    desired.apply(&table.take(changes, []), &mut Touched::default());
    let mut kernel = Kernel::default();
    kernel.take(&kernel.compared(&desired));
    kernel.rows(family, &nodes(family))
}

/// Returns the differences of the example after this change of the kernel.
fn after(family: Family, change: impl FnOnce(&mut Rows)) -> Vec<String> {
    let mut rows = committed(family);
    change(&mut rows);
    observed(&rows, &[]).difference(&entries(family)).iter().map(ToString::to_string).collect()
}

fn delete(rows: &mut Rows, set: Set, member: Member) {
    assert!(rows.sets.get_mut(&set).unwrap().remove(&member), "{member:?} is not in {set:?}");
}

#[test]
fn damage_to_virtual_servers_and_addresses() {
    let after = |change: fn(&mut Rows)| after(Family::Ipv4, change);
    assert_eq!(after(|_| {}), [""; 0]);
    let weights = |rows: &mut Rows| rows.real.get_mut(&tcp("172.30.10.1:80")).unwrap()[0].weight = 100;
    assert_eq!(after(weights), [""; 0]);
    let tunnel = |rows: &mut Rows| rows.real.get_mut(&tcp("172.30.10.1:80")).unwrap()[0].forward = 2;
    assert_eq!(
        after(tunnel),
        ["demo/web:http (TCP): endpoint 10.180.0.11:8080 is missing behind cluster IP 172.30.10.1:80"]
    );
    let more = |rows: &mut Rows| {
        let real = RealServer::new(at("10.9.9.9:443"), 1);
        rows.real.get_mut(&tcp("192.168.1.2:30443")).unwrap().push(real);
    };
    assert_eq!(
        after(more),
        ["demo/edge:api (TCP): extra endpoint 10.9.9.9:443 behind node port 30443 at 192.168.1.2"]
    );
    let affinity = |rows: &mut Rows| {
        rows.servers.get_mut(&tcp("172.30.10.3:443")).unwrap().flags = 0;
        rows.servers.get_mut(&tcp("198.51.100.7:443")).unwrap().timeout = 10_800;
    };
    assert_eq!(
        after(affinity),
        [
            "demo/shop:https (TCP): session affinity is none instead of 600 s",
            "demo/shop:https (TCP): session affinity is 10800 s instead of 600 s",
        ]
    );
    let unbound = |rows: &mut Rows| assert!(rows.local.remove(&ip("198.51.100.7")));
    assert_eq!(
        after(unbound),
        ["demo/shop:https (TCP): load-balancer IP 198.51.100.7:443 is not programmed"]
    );
    // An address on another interface is as good.
    let moved = |rows: &mut Rows| {
        rows.addresses.device.remove(&ip("198.51.100.7"));
        rows.addresses.node.insert(ip("198.51.100.7"));
        rows.sets.get_mut(&Set::Own).unwrap().insert(tcp("198.51.100.7:443").member());
    };
    assert_eq!(after(moved), [""; 0]);
    let one_address = |rows: &mut Rows| drop(rows.servers.remove(&tcp("192.168.1.2:30555")));
    assert_eq!(
        after(one_address),
        ["demo/shop:https (TCP): node port 30555 at 192.168.1.2 is not programmed"]
    );
    let only_cluster_ip = |rows: &mut Rows| assert!(rows.local.remove(&ip("172.30.10.1")));
    assert_eq!(after(only_cluster_ip), ["demo/web:http (TCP): nothing is programmed"]);
}

#[test]
fn damage_to_sets() {
    let after = |change: fn(&mut Rows)| after(Family::Ipv4, change);
    assert_eq!(
        after(|rows| delete(rows, Set::ClusterIp, tcp("172.30.10.2:443").member())),
        ["demo/edge:api (TCP): cluster IP 172.30.10.2:443 is not programmed"]
    );
    let other_kind = |rows: &mut Rows| {
        delete(rows, Set::LoadBalancer, tcp("198.51.100.7:443").member());
        rows.sets.get_mut(&Set::ExternalIp).unwrap().insert(tcp("198.51.100.7:443").member());
    };
    assert_eq!(
        after(other_kind),
        [
            "demo/shop:https (TCP): load-balancer IP 198.51.100.7:443 is not programmed",
            "demo/shop:https (TCP): extra external IP 198.51.100.7:443",
            "demo/shop:https (TCP): extra source range 192.168.0.0/24",
            "demo/shop:https (TCP): extra source range 203.0.113.0/25",
        ]
    );
    let range = |address, prefix| Member::IpPortNet(ip("198.51.100.7"), 6, 443, ip(address), prefix);
    assert_eq!(
        self::after(Family::Ipv4, |rows| delete(rows, Set::LoadBalancerSourceCidr, range("203.0.113.0", 25))),
        ["demo/shop:https (TCP): source range 203.0.113.0/25 is missing"]
    );
    assert_eq!(
        after(|rows| rows.sets.get_mut(&Set::LoadBalancerSourceCidr).unwrap().clear()),
        ["demo/shop:https (TCP): load-balancer IP 198.51.100.7:443 is not programmed"]
    );
    let unrestricted = ["demo/shop:https (TCP): all sources are allowed instead of the source ranges"];
    assert_eq!(
        after(|rows| delete(rows, Set::LoadBalancerFirewall, tcp("198.51.100.7:443").member())),
        unrestricted
    );
    assert_eq!(after(|rows| rows.rules.restrict_sources = false), unrestricted);
    assert_eq!(after(|rows| rows.rules.refuse_what_is_in_no_set = false), [""; 0]);
    // Without the set of node ports, the virtual servers still are those that the table requires.
    assert_eq!(after(|rows| delete(rows, Set::NodePort(Protocol::Tcp), Member::Port(30443))), [""; 0]);
    let refused = |rows: &mut Rows| {
        rows.sets.get_mut(&Set::Reject).unwrap().insert(tcp("192.168.0.2:30443").member());
    };
    assert_eq!(
        after(refused),
        ["demo/edge:api (TCP): endpoint 10.180.0.21:8443 is missing behind node port 30443 at 192.168.0.2"]
    );
}

#[test]
fn sctp_node_ports_and_dropped_frontends_of_ipv6() {
    assert_eq!(after(Family::Ipv6, |_| {}), [""; 0]);
    let sctp = key(Protocol::Sctp, "[fd00:192:168::2]:30999");
    assert_eq!(
        after(Family::Ipv6, |rows| drop(rows.servers.remove(&sctp))),
        ["demo/dual (SCTP): node port 30999 at fd00:192:168::2 is not programmed"]
    );
}

#[test]
fn virtual_servers_of_other_programs() {
    let add = |rows: &mut Rows, key: Key| drop(rows.servers.insert(key, server(&key, 0, 0)));
    // Packets to these do not get past the rules, or are not for a Service.
    for foreign in ["172.30.10.1:81", "203.0.113.1:80", "192.168.0.2:30081"] {
        assert_eq!(after(Family::Ipv4, |rows| add(rows, tcp(foreign))), [""; 0], "{foreign}");
    }
    let stale = |rows: &mut Rows| {
        add(rows, tcp("172.30.10.1:81"));
        rows.sets.get_mut(&Set::ClusterIp).unwrap().insert(tcp("172.30.10.1:81").member());
    };
    assert_eq!(after(Family::Ipv4, stale), ["no Service (TCP): extra cluster IP 172.30.10.1:81"]);
    // Without the rules, packets get there.
    let without_rules = |rows: &mut Rows| {
        add(rows, tcp("172.30.10.1:81"));
        rows.rules.refuse_what_is_in_no_set = false;
    };
    assert_eq!(after(Family::Ipv4, without_rules), ["no Service (TCP): extra frontend 172.30.10.1:81"]);
}

#[test]
fn counters_are_those_of_the_kernel() {
    let mut rows = committed(Family::Ipv4);
    let web = tcp("172.30.10.1:80");
    rows.servers.insert(web, server(&web, 0, 0));
    rows.real.get_mut(&web).unwrap()[1].counters = WireCounters { connections: 2, packets: 5, bytes: 120 };
    let port = rows.port(&web).unwrap();
    assert_eq!(
        port.frontends[0].counters,
        Some(Counters { connections: 1, traffic: Some(Traffic { packets: 3, bytes: 180 }) })
    );
    let ObservedEndpoints::Shared(endpoints) = port.endpoints else { panic!("{:?}", port.endpoints) };
    let counted: Vec<_> = endpoints.iter().map(|endpoint| endpoint.counters.unwrap()).collect();
    let two = Counters { connections: 2, traffic: Some(Traffic { packets: 5, bytes: 120 }) };
    let none = Counters { connections: 0, traffic: Some(Traffic::default()) };
    assert_eq!(counted, [none, two, none]);
}

#[test]
fn refused_packets_are_those_that_the_sets_count() {
    let mut rows = committed(Family::Ipv4);
    let web = tcp("172.30.10.1:80");
    let refused = |rows: &Rows| rows.port(&web).unwrap().frontends[0].refused;
    assert_eq!(refused(&rows), Refused::default());
    let sets = [Set::Reject, Set::Drop, Set::DropExternal, Set::SourceRanges, Set::CountReject];
    for (set, count) in sets.into_iter().zip([1, 20, 300, 4_000, 50_000]) {
        rows.counts.insert((set, web.member()), count);
        rows.counts.insert((set, key(Protocol::Udp, "172.30.10.1:80").member()), 7);
    }
    assert_eq!(
        refused(&rows),
        Refused { no_endpoint: Some(50_001), no_local_endpoint: Some(320), source_range: Some(4_000) }
    );
}

/// What kube-proxy 1.36 writes for the example: it has no sets of its own for virtual servers, refusals and drops.
fn of_kube_proxy() -> Rows {
    let mut rows = committed(Family::Ipv4);
    rows.sets.retain(|set, _| set.name(Family::Ipv4).starts_with("KUBE-"));
    rows
}

#[test]
fn what_kube_proxy_wrote() {
    let rows = of_kube_proxy();
    let found = observed(&rows, &[]);
    assert_eq!(found.node_port_addresses, Some(nodes(Family::Ipv4)));
    assert_eq!(found.difference(&entries(Family::Ipv4)), []);
    // A node port that another address has shows that this one is missing.
    let mut damaged = rows.clone();
    damaged.servers.remove(&tcp("192.168.1.2:30443"));
    let found: Vec<String> =
        observed(&damaged, &[]).difference(&entries(Family::Ipv4)).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["demo/edge:api (TCP): node port 30443 at 192.168.1.2 is not programmed"]);
}

/// One Service may have the same address as external IP and as load-balancer IP; kube-proxy puts it into both sets.
#[test]
fn an_address_of_two_kinds() {
    let mut rows = of_kube_proxy();
    rows.sets.get_mut(&Set::ExternalIp).unwrap().insert(tcp("198.51.100.7:443").member());
    assert_eq!(observed(&rows, &[]).difference(&entries(Family::Ipv4)), []);
}

#[test]
fn nothing_is_nothing() {
    let mut rows = committed(Family::Ipv4);
    assert!(!rows.is_empty(&[]));
    rows.sets.clear();
    assert!(!rows.is_empty(&[]), "the virtual servers at addresses of the device are left");
    rows.addresses = Addresses::default();
    assert!(rows.is_empty(&[]));
    assert_eq!(observed(&rows, &[]).ports, []);
}
