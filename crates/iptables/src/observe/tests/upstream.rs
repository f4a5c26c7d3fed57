//! The rules that kube-proxy v1.36 writes.

use portolan_model::observed::ObservedEndpoint;
use portolan_model::{ExternalPolicy, Forwarding, InternalPolicy, Protocol};

use super::*;
use crate::planner::tests::example::{backends, cluster_ip, ip, put};

/// A save of a node on which kube-proxy has served four Services, with what kubelet and the network plugin write. It
/// refuses TCP with an ICMP error, and its Services are in no order.
const SAVE: &str = include_str!("kube-proxy.save");

/// Returns what the Services of the save are in the forwarding table.
fn table() -> Vec<Entry> {
    let web = cluster_ip("172.30.10.1", 80, &["10.180.0.11:8080", "10.180.1.12:8080"]);
    let shop = Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip("172.30.10.3"), 443),
            Frontend::ExternalIp(ip("192.0.2.50"), 443),
            Frontend::LoadBalancerIp(ip("198.51.100.7"), 443),
            Frontend::NodePort(30555),
        ]),
        affinity: Some(10_800),
        source_ranges: ["192.168.0.0/24", "203.0.113.0/25"].map(|range| range.parse().unwrap()).into(),
        ..cluster_ip("172.30.10.3", 443, &["10.180.0.31:9443", "10.180.1.32:9443"])
    };
    // Every endpoint is on another node.
    let edge = Forwarding {
        protocol: Protocol::Udp,
        frontends: Box::new([Frontend::ClusterIp(ip("172.30.10.2"), 53), Frontend::NodePort(30053)]),
        internal_policy: InternalPolicy::Local,
        external_policy: ExternalPolicy::Local,
        ..cluster_ip("172.30.10.2", 53, &["10.180.1.22:5353"])
    };
    let empty = Forwarding {
        frontends: Box::new([Frontend::ClusterIp(ip("172.30.10.4"), 9), Frontend::NodePort(30009)]),
        local: backends(&[]),
        ..cluster_ip("172.30.10.4", 9, &[])
    };
    entries(&[
        put("web", "http", web),
        put("shop", "https", shop),
        put("edge", "dns", edge),
        put("empty", "", empty),
    ])
}

/// Returns one line for each Service port, frontend and endpoint, with the connections that passed, or the packets that were refused.
fn described(observed: &Observed) -> String {
    let packets =
        |counters: Option<Counters>| counters.map_or("none".to_owned(), |own| own.connections.to_string());
    let mut lines = Vec::new();
    for port in &observed.ports {
        let name = port.name.as_ref().map(ToString::to_string).unwrap_or_default();
        lines.push(format!("{name} ({})", port.protocol));
        lines.push(format!("  affinity {:?}, source ranges {:?}", port.affinity, port.source_ranges));
        for frontend in &port.frontends {
            let refused = frontend.refused.no_endpoint.or(frontend.refused.no_local_endpoint);
            let counted = frontend.counters.or(refused.map(Counters::of_connections));
            lines.push(format!("  {}: {}", frontend.place, packets(counted)));
        }
        let ObservedEndpoints::Lists { cluster, local } = &port.endpoints else { panic!("{port:?}") };
        for (list, endpoints) in [("cluster", cluster), ("local", local)] {
            let Fact::Known(endpoints) = endpoints else { panic!("{port:?}") };
            let line = |own: &ObservedEndpoint| format!("  {list} {}: {}", own.at, packets(own.counters));
            lines.extend(endpoints.iter().map(line));
        }
    }
    lines.join("\n")
}

#[test]
fn what_kube_proxy_wrote_does_not_differ() {
    let reading = reading(Family::Ipv4, SAVE).unwrap();
    assert_eq!(texts(&reading.observed.difference(&table())), [""; 0]);
    assert_eq!(reading.unknown, UnknownRules::default());
    insta::assert_snapshot!(described(&reading.observed));
}
