//! What `nft list table` shows of the tables of this mode. `make nft-versions` runs this with other versions of nft.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_engine::Driven;
use portolan_model::world::Edited;
use portolan_model::{
    Backend, Change, ExternalPolicy, Family, Forwarding, Frontend, LocalDetector, Protocol, ServicePortName,
    Settings,
};
use portolan_relay::RelayOptions;
use portolan_testkit::Namespace;
use portolan_userspace::Userspace;

/// Returns the text for a family.
fn either<'a>(family: Family, v4: &'a str, v6: &'a str) -> &'a str {
    if family == Family::Ipv4 { v4 } else { v6 }
}

/// Returns `10.NET.0.HOST` or `2001:db8:NET::HOST`.
fn ip(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::Ipv4 => IpAddr::from([10, net, 0, host]),
        Family::Ipv6 => IpAddr::from([0x2001, 0xdb8, net.into(), 0, 0, 0, 0, host.into()]),
    }
}

fn put(service: &str, forwarding: Forwarding) -> Change {
    let [namespace, service, port] = ["demo", service, ""].map(Arc::from);
    let name = ServicePortName { namespace, service, port, protocol: forwarding.protocol };
    Change { name: name.into(), family: forwarding.family, old: None, new: Some(forwarding.into()) }
}

/// Returns Services with frontends of each kind, for both listeners, with source ranges, and without endpoints.
fn services(family: Family) -> Vec<Change> {
    let backend = |host| Backend { address: ip(family, 244, host), port: 8080, may_hairpin: false };
    let plain = |host, port, protocol| {
        let frontend = SocketAddr::new(ip(family, 96, host), port);
        Forwarding::plain(frontend, protocol, Box::new([backend(1), backend(2)]))
    };
    let external = |host, node_port| Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip(family, 96, host), 80),
            Frontend::ExternalIp(ip(family, 1, host), 80),
            Frontend::LoadBalancerIp(ip(family, 2, host), 80),
            Frontend::NodePort(node_port),
        ]),
        ..plain(host, 80, Protocol::Tcp)
    };
    // nft 0.9.8 shows a /64 for most prefixes of IPv6.
    let range = either(family, "192.0.2.0/24", "2001:db8:1::/64").parse().unwrap();
    let ranges = Forwarding { source_ranges: Box::new([range]), ..external(3, 30_003) };
    let local = Forwarding {
        external_policy: ExternalPolicy::Local,
        local: Box::new([backend(2)]),
        ..external(4, 30_004)
    };
    let elsewhere = Forwarding { external_policy: ExternalPolicy::Local, ..external(5, 30_005) };
    let empty = Forwarding { cluster: Box::default(), has_endpoints: false, ..external(6, 30_006) };
    vec![
        put("web", plain(1, 80, Protocol::Tcp)),
        put("dns", plain(2, 53, Protocol::Udp)),
        put("ranges", ranges),
        put("local", local),
        put("elsewhere", elsewhere),
        put("empty", empty),
    ]
}

/// Programs Services in a namespace. Returns the listings of the table that captures and of the relay's connections.
fn listings(family: Family, counters: bool, changes: &[Change]) -> [String; 2] {
    let namespace = Namespace::new("listing").unwrap();
    namespace.ip("link set lo up").unwrap();
    let pods = either(family, "10.244.0.0/16", "2001:db8:f4::/48").parse().unwrap();
    let settings =
        Settings { counters, local_detector: LocalDetector::Cidr(pods), ..Settings::plain(family) };
    let programmed = namespace.run(|| {
        let relay = portolan_relay::spawn(&[family], RelayOptions::default()).unwrap();
        let mut plane = Driven::new(settings.clone(), Userspace::open(settings, relay).unwrap());
        plane.apply(changes).unwrap();
        plane.resync().unwrap();
        plane
    });
    let list = |table| {
        let table_of_family = ["list", "table", either(family, "ip", "ip6"), table];
        namespace.output("nft", &table_of_family).unwrap()
    };
    let listings = ["portolan-userspace", "portolan-relay"].map(list);
    drop(programmed.unwrap());
    listings
}

/// Returns the rules of a chain.
fn rules(listing: &str, chain: &str) -> Vec<String> {
    let lines = listing.lines().skip_while(|line| line.trim() != format!("chain {chain} {{")).skip(1);
    let rules = lines.map(str::trim).take_while(|line| *line != "}").filter(|line| !line.contains(" hook "));
    // nft 0.9.8 shows the second form.
    rules.map(|rule| rule.replace("ct state & established == 0x0", "ct state ! established")).collect()
}

fn assert_captures(family: Family, listing: &str) {
    let ip = either(family, "ip", "ip6");
    let loopback = either(family, "127.0.0.1", "[::1]");
    let relayed = "meta priority 706f:7270 accept comment \"of connections of the relay\"";
    let translated = "ct status dnat accept comment \"another's connections\"";
    for (chain, port) in [("endpoints-1", 10_261), ("local-endpoints-1", 10_262)] {
        let tproxy = format!(
            "meta priority set none tproxy to {loopback}:{port} meta mark set meta mark | 0x00001000 accept"
        );
        assert_eq!(rules(listing, chain), [&*tproxy, "goto reject-chain comment \"no listener\""]);
    }
    assert_eq!(
        rules(listing, "replies"),
        [
            "meta l4proto tcp accept comment \"answers\"",
            "fib daddr type local socket transparent 0 accept comment \"answers to this node's sockets\"",
        ]
    );
    assert_eq!(
        rules(listing, "capture-prerouting"),
        [relayed, "ct direction reply jump replies", translated, "jump services"]
    );
    let own = format!(
        "meta priority set {ip} daddr . meta l4proto . th dport map @services meta priority set none \
         meta mark set meta mark | 0x00001000 ct mark set ct mark | 0x00001000 \
         comment \"traffic of this node comes back by loopback\""
    );
    assert_eq!(rules(listing, "capture-output"), [relayed, translated, &own]);
}

fn assert_delivers(listing: &str) {
    let found = "socket transparent 1 meta mark set meta mark | 0x00001000";
    let [known, first, udp] = [
        format!(
            "meta l4proto tcp ct state established {found} meta priority set 706f:7270 accept \
             comment \"connections of the relay\""
        ),
        format!("meta l4proto tcp ct state ! established {found} accept comment \"not known to be\""),
        format!("meta l4proto udp {found} accept comment \"answers to clients whose address it keeps\""),
    ];
    assert_eq!(rules(listing, "prerouting"), [known, first, udp]);
    let own = "ct mark & 0x00001000 != 0x00000000 meta l4proto tcp ct direction original \
               meta mark set meta mark | 0x00001000 comment \"this node's connections to the relay\"";
    assert_eq!(rules(listing, "output"), [own]);
}

#[test]
fn nft_lists_both_tables_in_both_families() {
    for (family, counters) in Family::BOTH.into_iter().flat_map(|family| [(family, false), (family, true)]) {
        let [captures, connections] = listings(family, counters, &services(family));
        // The elements of frontends, those that are refused and those with source ranges.
        for (service, elements) in
            [("web", 1), ("dns", 1), ("ranges", 5), ("local", 4), ("elsewhere", 7), ("empty", 4)]
        {
            let comment = format!("comment \"demo/{service}\"");
            assert_eq!(captures.matches(&comment).count(), elements, "{service}: {captures}");
        }
        let range = either(family, "tcp . 80 . 192.0.2.0/24", "tcp . 80 . 2001:db8:1::/64");
        assert!(captures.contains(range), "{captures}");
        assert_captures(family, &captures);
        assert_delivers(&connections);

        let mut random = Edited::new(7, 12).first().changes;
        random.retain(|change| change.family == family);
        let [captures, connections] = listings(family, counters, &random);
        assert!(captures.contains("comment \"default/svc-"), "{captures}");
        assert_captures(family, &captures);
        assert_delivers(&connections);
    }
}
