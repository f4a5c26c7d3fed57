//! A node with a Service of each kind.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::{
    Backend, Change, ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, LocalDetector,
    NodePortAddresses, Protocol, ServicePortName, Settings,
};

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn settings(family: Family) -> Settings {
    let (cidr, node) = match family {
        Family::Ipv4 => ("10.180.0.0/16", "192.168.0.2"),
        Family::Ipv6 => ("fd00:10:180::/48", "fd00:192:168::2"),
    };
    Settings {
        family,
        local_detector: LocalDetector::Cidr(cidr.parse().unwrap()),
        masquerade_all: false,
        masquerade_bit: 14,
        node_port_addresses: NodePortAddresses::MatchAll,
        node_ip: Some(ip(node)),
        service_cidrs: Vec::new(),
        counters: false,
    }
}

pub(crate) fn backends(places: &[&str]) -> Box<[Backend]> {
    let backend = |place: &&str| {
        let socket: SocketAddr = place.parse().unwrap();
        Backend { address: socket.ip(), port: socket.port(), may_hairpin: true }
    };
    places.iter().map(backend).collect()
}

pub(crate) fn cluster_ip(address: &str, port: u16, places: &[&str]) -> Forwarding {
    let frontend = SocketAddr::new(ip(address), port);
    Forwarding {
        has_endpoints: !places.is_empty(),
        ..Forwarding::plain(frontend, Protocol::Tcp, backends(places))
    }
}

pub(crate) fn put(service: &str, port: &str, forwarding: Forwarding) -> Change {
    let (family, protocol) = (forwarding.family, forwarding.protocol);
    let name =
        ServicePortName { namespace: "demo".into(), service: service.into(), port: port.into(), protocol };
    Change { name: Arc::new(name), family, old: None, new: Some(Arc::new(forwarding)) }
}

/// A cluster IP, a node port with policy Local, a load balancer with session affinity and source ranges, and a
/// Service without endpoints.
pub(crate) fn ipv4() -> Vec<Change> {
    let web = cluster_ip("172.30.10.1", 80, &["10.180.0.11:8080", "10.180.1.12:8080", "10.180.1.13:8080"]);
    let edge = Forwarding {
        frontends: Box::new([Frontend::ClusterIp(ip("172.30.10.2"), 443), Frontend::NodePort(30443)]),
        external_policy: ExternalPolicy::Local,
        local: backends(&["10.180.0.21:8443"]),
        ..cluster_ip("172.30.10.2", 443, &["10.180.0.21:8443", "10.180.1.22:8443"])
    };
    let shop = Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip("172.30.10.3"), 443),
            Frontend::LoadBalancerIp(ip("198.51.100.7"), 443),
            Frontend::NodePort(30555),
        ]),
        affinity: Some(600),
        source_ranges: ["203.0.113.0/25", "192.168.0.0/24"].map(|range| range.parse().unwrap()).into(),
        ..cluster_ip("172.30.10.3", 443, &["10.180.0.31:9443", "10.180.1.32:9443"])
    };
    let empty = Forwarding { protocol: Protocol::Udp, ..cluster_ip("172.30.10.4", 53, &[]) };
    vec![
        put("web", "http", web),
        put("edge", "api", edge),
        put("shop", "https", shop),
        put("empty", "dns", empty),
    ]
}

/// A load balancer with policy Local, and a Service whose endpoints are all on other nodes.
pub(crate) fn ipv6() -> Vec<Change> {
    let shop = Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip("fd00:172::3"), 443),
            Frontend::ExternalIp(ip("2001:db8::50"), 443),
            Frontend::LoadBalancerIp(ip("2001:db8::7"), 443),
            Frontend::NodePort(30555),
        ]),
        affinity: Some(10_800),
        external_policy: ExternalPolicy::Local,
        local: backends(&["[fd00:10:180::1]:9"]),
        source_ranges: Box::new(["fd00:192:168::/64".parse().unwrap()]),
        ..cluster_ip("fd00:172::3", 443, &["[fd00:10:180::1]:9", "[fd00:10:180::62]:9"])
    };
    let elsewhere = Forwarding {
        protocol: Protocol::Sctp,
        frontends: Box::new([
            Frontend::ClusterIp(ip("fd00:172::20"), 99),
            Frontend::ExternalIp(ip("2001:db8::51"), 99),
            Frontend::NodePort(30999),
        ]),
        internal_policy: InternalPolicy::Local,
        external_policy: ExternalPolicy::Local,
        ..cluster_ip("fd00:172::20", 99, &["[fd00:10:180::62]:9099"])
    };
    vec![put("shop", "https", shop), put("dual", "", elsewhere)]
}
