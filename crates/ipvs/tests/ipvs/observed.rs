//! Tests that what was written reads back in terms of Services without a difference, and that each damage is the only
//! difference.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use portolan_ipvs::{Known, read};
use portolan_model::observed::{Counters, Observed, ObservedEndpoints, ObservedPlace, Traffic};
use portolan_model::table::Entry;
use portolan_model::world::{Edit, Ranges, Rng, World, random_edit};
use portolan_model::{Catalog, Change, Family, Forwarding, Frontend, Protocol};
use portolan_testkit::eventually;

use super::example::{self, cluster_ip, put};
use super::support::{in_namespace, loaded, open, options, run};

const EDITS: usize = 24;
const SIZE: usize = 8;

/// Returns the differences that a reader without an agent finds.
fn differences(family: Family, table: &[Entry]) -> Vec<String> {
    let observed = read(family, None).unwrap().expect("the mode is there");
    texts(&observed, table)
}

fn texts(observed: &Observed, table: &[Entry]) -> Vec<String> {
    observed.difference(table).iter().map(ToString::to_string).collect()
}

/// Reads with what an agent knows.
fn observe(family: Family) -> Observed {
    let (settings, options) = (example::settings(family), options());
    let node_port_addresses = &settings.node_port_addresses;
    let known = Known { exclude: &options.exclude, node_port_addresses, variant: None };
    read(family, Some(known)).unwrap().expect("the mode is there")
}

#[test]
fn what_was_written_reads_back() {
    in_namespace(|| {
        let seed = std::env::var("PORTOLAN_SEED").map_or(11, |seed| seed.parse().unwrap());
        let (mut rng, ranges) = (Rng::new(seed), Ranges::example());
        let mut world = World::random(&mut rng, SIZE, &ranges);
        let mut catalog = Catalog::new("n1");
        let mut planes = Family::BOTH.map(open);
        assert_eq!(read(Family::Ipv4, None).unwrap(), None);
        for plane in &mut planes {
            plane.resync().unwrap();
        }
        let mut edits = world.edits();
        for index in 0..EDITS {
            for edit in std::mem::take(&mut edits) {
                catalog.apply(Edit::event(&edit).unwrap());
            }
            let changes = catalog.take_changes().changes;
            for (plane, family) in planes.iter_mut().zip(Family::BOTH) {
                let own: Vec<Change> =
                    changes.iter().filter(|change| change.family == family).cloned().collect();
                plane.apply(&own).unwrap();
            }
            // A reading takes longer than a change.
            if index % 8 == 0 || index + 1 == EDITS {
                for family in Family::BOTH {
                    let table: Vec<Entry> = catalog.forwardings(family).collect();
                    assert_eq!(differences(family, &table), [""; 0], "seed {seed}, edit {index}, {family}");
                    assert_eq!(
                        texts(&observe(family), &table),
                        [""; 0],
                        "seed {seed}, edit {index}, {family}"
                    );
                }
            }
            edits.push(random_edit(&mut rng, &mut world, &ranges));
        }
    });
}

/// A Service whose endpoint is an address of the node.
fn own_dns() -> Change {
    let forwarding = Forwarding {
        protocol: Protocol::Udp,
        frontends: Box::new([Frontend::ClusterIp(example::ip("172.30.10.5"), 53)]),
        ..cluster_ip("172.30.10.5", 53, &["192.168.0.2:5353"])
    };
    put("own", "dns", forwarding)
}

#[test]
fn each_damage_is_the_only_difference() {
    in_namespace(|| {
        let mut changes = example::ipv4();
        changes.push(own_dns());
        let mut ipvs = loaded(Family::Ipv4, &changes);
        let table: Vec<Entry> =
            changes.into_iter().filter_map(|change| Some((change.name, change.new?))).collect();
        assert_eq!(differences(Family::Ipv4, &table), [""; 0]);
        assert_eq!(read(Family::Ipv6, None).unwrap(), None);
        let mut expected: Vec<&str> = Vec::new();
        let mut damage = |program: &str, arguments: &str, difference: Option<&'static str>| {
            run(program, arguments);
            expected.extend(difference);
            expected.sort_unstable();
            let mut found = differences(Family::Ipv4, &table);
            found.sort_unstable();
            assert_eq!(found, expected, "{program} {arguments}");
        };
        damage("ipvsadm", "--add-service --tcp-service 203.0.113.1:80 --scheduler wlc", None);
        damage("ipvsadm", "--add-service --tcp-service 172.30.10.1:81 --scheduler wlc", None);
        damage(
            "ipset",
            "add KUBE-CLUSTER-IP 172.30.10.1,tcp:81",
            Some("no Service (TCP): extra cluster IP 172.30.10.1:81"),
        );
        damage(
            "ipvsadm",
            "--delete-server --tcp-service 172.30.10.1:80 --real-server 10.180.0.11:8080",
            Some(
                "demo/web:http (TCP): endpoint 10.180.0.11:8080 is missing behind cluster IP 172.30.10.1:80",
            ),
        );
        damage(
            "ipvsadm",
            "--edit-server --tcp-service 172.30.10.1:80 --real-server 10.180.1.12:8080 --masquerading --weight 7",
            None,
        );
        damage(
            "ipvsadm",
            "--edit-server --tcp-service 192.168.1.2:30443 --real-server 10.180.0.21:8443 --masquerading --weight 0",
            Some(
                "demo/edge:api (TCP): endpoint 10.180.0.21:8443 is missing behind node port 30443 at 192.168.1.2",
            ),
        );
        damage(
            "ipset",
            "del KUBE-LOAD-BALANCER-SOURCE-CIDR 198.51.100.7,tcp:443,203.0.113.0/25",
            Some("demo/shop:https (TCP): source range 203.0.113.0/25 is missing"),
        );
        damage(
            "ip",
            "address delete 172.30.10.3/32 dev kube-ipvs0",
            Some("demo/shop:https (TCP): cluster IP 172.30.10.3:443 is not programmed"),
        );
        damage(
            "ipset",
            "del KUBE-CLUSTER-IP 172.30.10.4,udp:53",
            Some("demo/empty:dns (UDP): nothing is programmed"),
        );
        // All of this is mended, and nothing else was there to mend.
        ipvs.resync().unwrap();
        assert_eq!(differences(Family::Ipv4, &table), [""; 0]);
        run("iptables-nft", "--flush INPUT");
        assert_eq!(
            differences(Family::Ipv4, &table),
            ["demo/shop:https (TCP): all sources are allowed instead of the source ranges"]
        );
        counts();
    });
}

/// The kernel adds up its counters every two seconds.
fn counts() {
    let frontend: SocketAddr = "172.30.10.5:53".parse().unwrap();
    let client = UdpSocket::bind((IpAddr::from([192, 168, 0, 2]), 0)).unwrap();
    client.send_to(b"question", frontend).unwrap();
    // The headers of IPv4 and UDP have 28 bytes.
    let sent = Some(Counters { connections: 1, traffic: Some(Traffic { packets: 1, bytes: 36 }) });
    let counted = || {
        let observed = observe(Family::Ipv4);
        let place = ObservedPlace::Frontend(Frontend::ClusterIp(frontend.ip(), frontend.port()));
        let port = observed.ports.iter().find(|port| port.frontends[0].place == place).unwrap();
        let ObservedEndpoints::Shared(endpoints) = &port.endpoints else { panic!("{port:?}") };
        port.frontends[0].counters == sent && endpoints[0].counters == sent
    };
    eventually(Duration::from_secs(60), "counters", counted).unwrap();
}
