//! The explanation of a Service port: each endpoint with its slice and the reasons of the selection.

use super::*;
use crate::selection::HintUse;

fn name_of(service: &str) -> ServicePortName {
    let [namespace, service, port] = ["ns", service, ""].map(Arc::from);
    ServicePortName { namespace, service, port, protocol: Protocol::Tcp }
}

/// Returns a line for each endpoint: slice, address, both choices, zone hints, node.
fn lines(explained: &ExplainedPort) -> Vec<String> {
    let endpoints = explained.selection.endpoints.iter();
    let line = |e: &crate::selection::Explained<SliceOf>| {
        let zones = e.from.zone_hints.as_deref().unwrap_or_default().join(",");
        let node = e.from.node.as_deref().unwrap_or("?");
        let address = e.endpoint.backend.address;
        format!("{} {address} {} {} [{zones}] {node}", e.from.slice, e.cluster.code(), e.local.code())
    };
    endpoints.map(line).collect()
}

#[test]
fn endpoints_with_slices_hints_and_nodes() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(node("a"));
    let spec = json!({
        "type": "NodePort", "clusterIP": "10.96.0.1", "ports": [{ "port": 80, "nodePort": 30080 }],
        "externalTrafficPolicy": "Local",
    });
    catalog.apply(service("web", spec));
    let hinted = |address: &str, node: &str, zones: &[&str]| {
        let zones: Vec<_> = zones.iter().map(|zone| json!({ "name": zone })).collect();
        json!({ "addresses": [address], "nodeName": node, "hints": { "forZones": zones } })
    };
    let first = json!([hinted("10.0.0.1", "n1", &["b"]), hinted("10.0.0.2", "n2", &["a", "b"])]);
    let leaving = json!({ "addresses": ["10.0.0.2"], "nodeName": "n2",
        "conditions": { "ready": false, "serving": true, "terminating": true } });
    let Event::EndpointSlice(object) = slice("s1", "web", "TCP", first) else { panic!("a slice") };
    catalog.apply(Event::EndpointSlice(object.clone()));
    catalog.apply(slice("s2", "web", "TCP", json!([leaving])));

    let mut explained = catalog.explain(&name_of("web"), Family::Ipv4).expect("is in the table");
    assert_eq!(explained.selection.zone_hints, HintUse::Followed);
    assert_eq!(
        lines(&explained),
        [
            "s1 10.0.0.1 endpoint-hinted-other-zone endpoint-ready [b] ?",
            "s1 10.0.0.2 endpoint-hinted-zone endpoint-on-other-node [a,b] ?",
            "s2 10.0.0.2 endpoint-duplicate endpoint-duplicate [] ?",
        ]
    );
    explained.name_nodes("s1", &object.payload);
    let nodes: Vec<_> = explained.selection.endpoints.iter().map(|e| e.from.node.as_deref()).collect();
    assert_eq!(nodes, [Some("n1"), Some("n2"), None]);
}

#[test]
fn an_address_on_several_nodes_gets_no_name() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cluster_ip("web", "10.96.0.1", 80));
    let on = |node: &str| json!({ "addresses": ["10.0.0.1"], "nodeName": node });
    let Event::EndpointSlice(object) = slice("s", "web", "TCP", json!([on("n1"), on("n2")])) else {
        panic!("a slice")
    };
    catalog.apply(Event::EndpointSlice(object.clone()));
    let mut explained = catalog.explain(&name_of("web"), Family::Ipv4).expect("is in the table");
    explained.name_nodes("s", &object.payload);
    let [kept, duplicate] = &explained.selection.endpoints[..] else { panic!("{explained:?}") };
    assert_eq!((&kept.from.node, &duplicate.from.node), (&None, &None));
    assert!(kept.endpoint.local && !duplicate.endpoint.local);
}

#[test]
fn only_service_ports_of_the_table_are_explained() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cluster_ip("web", "10.96.0.1", 80));
    assert!(catalog.explain(&name_of("web"), Family::Ipv4).is_some());
    assert_eq!(catalog.explain(&name_of("web"), Family::Ipv6), None);
    assert_eq!(catalog.explain(&name_of("other"), Family::Ipv4), None);
    let udp = ServicePortName { protocol: Protocol::Udp, ..name_of("web") };
    assert_eq!(catalog.explain(&udp, Family::Ipv4), None);
}
