//! kube-proxy's tables, as kube-proxy writes them, are read in the terms of Services.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use portolan_model::observed::{Fact, NodePortReach, Observed};
use portolan_model::table::Entry;
use portolan_model::{
    Backend, ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, NodePortAddresses, Protocol,
    ServicePortName,
};
use portolan_nftables::read_kube_proxy;

use super::support::{in_namespace, nft};

/// Four Services of one node: `web` is plain, `edge` has policy Local, `shop` has session affinity and source ranges, and
/// `empty` has no endpoint.
pub(super) const IPV4: &str = include_str!("upstream/ipv4.nft");
/// `dual` has policies Local and its only endpoint on another node; `far` has one source range and an endpoint.
pub(super) const IPV6: &str = include_str!("upstream/ipv6.nft");

pub(super) fn load(text: &str) {
    let mut child = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn backends(sockets: &[&str]) -> Box<[Backend]> {
    let backend = |text: &&str| Backend { address: at(text).ip(), port: at(text).port(), may_hairpin: false };
    sockets.iter().map(backend).collect()
}

fn entry(service: &str, port: &str, forwarding: Forwarding) -> Entry {
    let name = ServicePortName {
        namespace: "demo".into(),
        service: service.into(),
        port: port.into(),
        protocol: forwarding.protocol,
    };
    (name.into(), forwarding.into())
}

fn plain(cluster_ip: &str, protocol: Protocol, cluster: &[&str]) -> Forwarding {
    Forwarding {
        has_endpoints: !cluster.is_empty(),
        ..Forwarding::plain(at(cluster_ip), protocol, backends(cluster))
    }
}

/// The Service ports of [`IPV4`].
pub(super) fn ipv4() -> Vec<Entry> {
    let web =
        plain("172.30.10.1:80", Protocol::Tcp, &["10.180.0.11:8080", "10.180.1.12:8080", "10.180.1.13:8080"]);
    let edge = plain("172.30.10.2:443", Protocol::Tcp, &["10.180.0.21:8443", "10.180.1.22:8443"]);
    let edge = Forwarding {
        frontends: [Frontend::ClusterIp(ip("172.30.10.2"), 443), Frontend::NodePort(30_443)].into(),
        local: backends(&["10.180.0.21:8443"]),
        external_policy: ExternalPolicy::Local,
        ..edge
    };
    let shop = plain("172.30.10.3:443", Protocol::Tcp, &["10.180.0.31:9443", "10.180.1.32:9443"]);
    let shop = Forwarding {
        frontends: [
            Frontend::ClusterIp(ip("172.30.10.3"), 443),
            Frontend::LoadBalancerIp(ip("198.51.100.7"), 443),
            Frontend::NodePort(30_555),
        ]
        .into(),
        affinity: Some(600),
        source_ranges: ["192.168.0.0/24".parse().unwrap(), "203.0.113.0/25".parse().unwrap()].into(),
        ..shop
    };
    let empty = plain("172.30.10.4:53", Protocol::Udp, &[]);
    vec![
        entry("edge", "api", edge),
        entry("empty", "dns", empty),
        entry("shop", "https", shop),
        entry("web", "http", web),
    ]
}

/// The Service ports of [`IPV6`].
pub(super) fn ipv6() -> Vec<Entry> {
    let dual = plain("[fd00:172:30::14]:99", Protocol::Sctp, &["[fd00:10:180:1::62]:9099"]);
    let dual = Forwarding {
        frontends: [
            Frontend::ClusterIp(ip("fd00:172:30::14"), 99),
            Frontend::ExternalIp(ip("2001:db8:1::50"), 99),
            Frontend::NodePort(30_999),
        ]
        .into(),
        internal_policy: InternalPolicy::Local,
        external_policy: ExternalPolicy::Local,
        affinity: Some(10_800),
        ..dual
    };
    let far = plain("[fd00:172:30::15]:80", Protocol::Tcp, &["[fd00:10:180:1::63]:8080"]);
    let far = Forwarding {
        frontends: [
            Frontend::ClusterIp(ip("fd00:172:30::15"), 80),
            Frontend::LoadBalancerIp(ip("2001:db8:1::51"), 80),
        ]
        .into(),
        source_ranges: ["2001:db8:2::/47".parse().unwrap()].into(),
        ..far
    };
    vec![entry("dual", "", dual), entry("far", "", far)]
}

fn read(family: Family) -> Observed {
    read_kube_proxy(family).unwrap().expect("a table")
}

pub(super) fn texts(observed: &Observed, table: &[Entry]) -> Vec<String> {
    observed.difference(table).iter().map(ToString::to_string).collect()
}

#[test]
fn what_kube_proxy_writes_is_read_without_a_difference() {
    in_namespace(|| {
        assert_eq!(read_kube_proxy(Family::Ipv4).unwrap(), None);
        load(IPV4);
        load(IPV6);
        let (v4, v6) = (read(Family::Ipv4), read(Family::Ipv6));
        assert_eq!(texts(&v4, &ipv4()), [""; 0], "{v4:#?}");
        assert_eq!(texts(&v6, &ipv6()), [""; 0], "{v6:#?}");
        let addresses = NodePortAddresses::Addresses(vec![ip("192.168.0.2")]);
        assert_eq!(v4.node_ports, Fact::Known(NodePortReach { addresses, loopback: Vec::new() }));
        let all = NodePortReach { addresses: NodePortAddresses::MatchAll, loopback: Vec::new() };
        assert_eq!(v6.node_ports, Fact::Known(all));
    });
}

/// Changes of the IPv4 table as nft commands, and the differences.
const CHANGES: [(&str, &[&str]); 8] = [
    (
        "delete element ip kube-proxy service-nodeports { tcp . 30443 }",
        &["demo/edge:api (TCP): node port 30443 is not programmed"],
    ),
    (
        "delete element ip kube-proxy no-endpoint-services { 172.30.10.4 . udp . 53 }",
        &["demo/empty:dns (UDP): nothing is programmed"],
    ),
    (
        "delete element ip kube-proxy service-ips { 198.51.100.7 . tcp . 443 }",
        &[
            "demo/shop:https (TCP): load-balancer IP 198.51.100.7:443 is not programmed",
            "demo/shop:https (TCP): extra source range 192.168.0.0/24",
            "demo/shop:https (TCP): extra source range 203.0.113.0/25",
        ],
    ),
    (
        "flush chain ip kube-proxy local-ILXDUVF4-demo/edge/tcp/api",
        &["demo/edge:api (TCP): endpoint 10.180.0.21:8443 is missing in the local list"],
    ),
    (
        "flush chain ip kube-proxy firewall-LVNO75SX-demo/shop/tcp/https",
        &["demo/shop:https (TCP): all sources are allowed instead of the source ranges"],
    ),
    (
        "add element ip kube-proxy service-ips { 172.30.10.9 . tcp . 80 : goto service-AXK6CI2C-demo/web/tcp/http }",
        &["demo/web:http (TCP): extra cluster IP 172.30.10.9:80"],
    ),
    (
        "add element ip kube-proxy no-endpoint-nodeports { udp . 31000 comment \"demo/gone:x\" : goto reject-chain }",
        &["demo/gone:x (UDP): extra Service port"],
    ),
    (
        "flush chain ip kube-proxy nat-prerouting",
        &[
            "demo/edge:api (TCP): nothing is programmed",
            "demo/empty:dns (UDP): nothing is programmed",
            "demo/shop:https (TCP): nothing is programmed",
            "demo/web:http (TCP): nothing is programmed",
        ],
    ),
];

#[test]
fn each_change_is_the_only_difference() {
    for (command, differences) in CHANGES {
        in_namespace(|| {
            load(IPV4);
            load(command);
            assert_eq!(texts(&read(Family::Ipv4), &ipv4()), differences, "{command}");
        });
    }
}

#[test]
fn a_listing_stays_as_it_is() {
    in_namespace(|| {
        load(IPV4);
        let before = nft("list ruleset");
        read(Family::Ipv4);
        assert_eq!(nft("list ruleset"), before);
    });
}
