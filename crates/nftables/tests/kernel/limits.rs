//! A user namespace, where the send buffer cannot grow, Services with too many endpoints, and too many clients with session
//! affinity.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::process::Command;

use portolan_engine::{Commit, Extent};
use portolan_model::{Backend, Change, Family, Forwarding, Frontend, Protocol as Transport};
use portolan_sock::{Protocol, Socket};
use portolan_testkit::{Namespace, Probe, ProbeResult, TestkitError, World, probe_many};

use super::support::{cluster_ip, in_namespace, ip, open, programmed, put, settings, started};
use super::table::Table;

/// Lowest number of Services. There are more if `net.core.wmem_max` is high.
const SERVICES: usize = 5_000;

/// A Service takes more bytes than this in a transaction.
const SERVICE_BYTES: usize = 500;

fn many(family: Family, services: u16, first_host: u16) -> Vec<Change> {
    let one = |number: u16| {
        let frontends = vec![
            Frontend::ClusterIp(ip(family, 96, number), 80),
            Frontend::LoadBalancerIp(ip(family, 2, number), 80),
            Frontend::NodePort(30_000 + number),
        ];
        let hosts = (0..10).map(|host| first_host + number + host);
        let affinity = number.is_multiple_of(10).then_some(600);
        put(
            &format!("service-{number}"),
            Forwarding { frontends: frontends.into(), affinity, ..cluster_ip(family, number, hosts) },
        )
    };
    (1..=services).map(one).collect()
}

#[test]
fn thousands_of_services_load_in_a_user_namespace() {
    let child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "limits::in_the_user_namespace", "--ignored", "--nocapture"])
        .output()
        .expect("unshare of util-linux is installed");
    let (out, err) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(
        child.status.success() && out.contains("1 passed"),
        "if unshare itself failed, this kernel forbids user namespaces, and the test cannot be made: {out}\n{err}"
    );
}

#[test]
#[ignore = "runs as the child of the test above, in a user namespace"]
fn in_the_user_namespace() {
    let limit = Socket::open(Protocol::Netfilter).unwrap().reserve_send_capacity(50_000_000).unwrap();
    let services = u16::try_from(SERVICES.max(limit / SERVICE_BYTES)).unwrap();
    assert!(services < 30_000, "lower net.core.wmem_max for this test: {limit} bytes can be sent at once");
    let family = Family::Ipv6;
    let state = many(family, services, 100);
    let (mut nftables, commit) = started(settings(family), &state);
    assert!(commit.bytes > limit, "in parts: {commit:?} of {limit}");
    let before = Table::read(family).meaning();
    let (_, commit) = started(settings(family), &state);
    assert_eq!((commit.elements, commit.objects), (0, 0));
    // Every endpoint changes, which takes more bytes than the buffer has.
    let commit = nftables.apply(&many(family, services, 200)).unwrap();
    assert!(commit.bytes > limit && !commit.full, "{commit:?}");
    nftables.apply(&state).unwrap();
    assert_eq!(Table::read(family).meaning(), before);
    nftables.remove().unwrap();
}

/// Returns a Service port with this number of endpoints, in the order of their addresses.
fn crowded(endpoints: u32, affinity: Option<u32>) -> Change {
    let family = Family::Ipv4;
    let endpoint = |number: u32| Backend {
        address: Ipv4Addr::from(0x0af4_0000 + number).into(),
        port: 8080,
        may_hairpin: false,
    };
    let cluster: Box<[Backend]> = (0..endpoints).map(endpoint).collect();
    put("crowded", Forwarding { cluster, has_endpoints: true, affinity, ..cluster_ip(family, 1, []) })
}

/// Returns the number of elements in all sets.
fn elements() -> usize {
    let table = Table::read(Family::Ipv4);
    table.sets().into_iter().map(|set| table.count(set)).sum()
}

#[test]
fn a_service_with_too_many_endpoints_uses_the_first_ones_and_is_reported() {
    in_namespace(|| {
        for (limit, affinity) in [(65_535, None), (8_191, Some(60))] {
            let other = put("other", cluster_ip(Family::Ipv4, 2, 1..3));
            let (mut nftables, commit) =
                started(settings(Family::Ipv4), &[crowded(limit, affinity), other.clone()]);
            assert_eq!(commit.refused, [], "as many as there can be");
            let elements = elements();
            assert!(elements > limit as usize, "{elements}");
            let too_many = crowded(limit + 1, affinity);
            let change = Change { old: crowded(limit, affinity).new, ..too_many.clone() };
            let assert_reported = |commit: &Commit| {
                let [refusal] = &*commit.refused else { panic!("{:?}", commit.refused) };
                assert_eq!((&*refusal.name.service, refusal.extent), ("crowded", Extent::Endpoints));
                let number = if affinity.is_some() { "8,191" } else { "65,535" };
                assert!(refusal.reason.contains(number), "{}", refusal.reason);
            };
            assert_reported(&nftables.apply(std::slice::from_ref(&change)).unwrap());
            assert_reported(&nftables.resync().unwrap());
            assert_eq!(self::elements(), elements, "as many as before");
            // The first ones by address are used, so the same ones after a restart.
            let mut nftables = open(settings(Family::Ipv4));
            nftables.probe().unwrap();
            let commit = nftables.compare(&[too_many, other]).unwrap();
            assert_reported(&commit);
            assert_eq!((commit.elements, commit.objects), (0, 0));
            let mended = Change { old: change.new, new: change.old, ..change };
            assert_eq!(nftables.apply(&[mended]).unwrap().refused, []);
            nftables.remove().unwrap();
        }
    });
}

/// Most session affinity bindings of a family: SPECIFICATION.md, "Limits".
const BINDINGS: u32 = 262_144;
const SERVED_PORT: u16 = 8080;

/// Adds bindings of other clients, of a Service that does not exist. Fails if the kernel refuses one of them.
fn bind_others(node: &Namespace, family: Family, clients: Range<u32>) -> Result<(), TestkitError> {
    let (table, first) = match family {
        Family::Ipv4 => ("ip portolan", IpAddr::from([10, 128, 0, 0])),
        Family::Ipv6 => ("ip6 portolan", ip(family, 0xff, 0)),
    };
    let mut script = format!("add element {table} affinity {{ ");
    for number in clients {
        let client: IpAddr = match first {
            IpAddr::V4(first) => Ipv4Addr::from(first.to_bits() + number).into(),
            IpAddr::V6(first) => Ipv6Addr::from(first.to_bits() + u128::from(number)).into(),
        };
        write!(script, "0xffffc000 . {client} timeout 1h : 0xffffc000, ").unwrap();
    }
    script.push_str("}\n");
    node.output_with_input("nft", &["-f", "-"], &script).map(drop)
}

/// Connects 24 times and returns the endpoints that answered. Fails if a connection has no answer.
fn reached(client: &Namespace, service: SocketAddr) -> BTreeSet<SocketAddr> {
    // The first packets of connections that begin at once could find no binding.
    client.probe(Probe::new(Transport::Tcp, service)).unwrap();
    let probes: Vec<_> = (0..24).map(|_| (client, Probe::new(Transport::Tcp, service))).collect();
    let endpoint = |result: &ProbeResult| match result {
        ProbeResult::Reached(reached) => reached.backend,
        other => panic!("{other:?}"),
    };
    probe_many(&probes).unwrap().iter().map(endpoint).collect()
}

#[test]
fn beyond_the_most_affinity_bindings_new_clients_are_balanced_without_affinity() {
    let world = World::builder().pods(3).build().unwrap();
    let node = world.node().namespace();
    let [first, second, new_client] = world.pods() else { panic!("three pods") };
    let [old_client, new_client] = [world.client().namespace(), new_client.namespace()];
    for pod in [first, second] {
        world.serve(pod, Transport::Tcp, SERVED_PORT).unwrap();
    }
    for family in Family::BOTH {
        let endpoint = |address| Backend { address, port: SERVED_PORT, may_hairpin: false };
        let cluster = [first, second].map(|pod| endpoint(pod.address(family)));
        let service = Forwarding {
            cluster: Box::new(cluster),
            has_endpoints: true,
            affinity: Some(10_800),
            ..cluster_ip(family, 1, [])
        };
        node.run(|| drop(programmed(settings(family), &[put("web", service)]))).unwrap();
        let service = SocketAddr::new(ip(family, 96, 1), 80);
        let bound = reached(old_client, service);
        assert_eq!(bound.len(), 1, "with affinity: {bound:?}");
        bind_others(node, family, 0..BINDINGS - 1).unwrap();
        let full = bind_others(node, family, BINDINGS - 1..BINDINGS).unwrap_err().to_string();
        assert!(full.contains("Too many open files in system"), "{full}");

        assert_eq!(reached(new_client, service).len(), 2, "{family}: without affinity");
        assert_eq!(reached(old_client, service), bound, "{family}: it is bound already");
        let table = if family == Family::Ipv4 { "ip" } else { "ip6" };
        node.output("nft", &["flush", "map", table, "portolan", "affinity"]).unwrap();
        assert_eq!(reached(new_client, service).len(), 1, "{family}: there is room again");
    }
}
