//! Services must not hide the API server from this node.

use super::*;
use crate::object::Notice;

fn api_server(sockets: &[&str], addresses: &[&str], node_ports: &[u16]) -> ApiServer {
    ApiServer {
        sockets: sockets.iter().map(|socket| socket.parse().expect("a socket")).collect(),
        addresses: addresses.iter().map(|address| address.parse().expect("an address")).collect(),
        node_ports: node_ports.iter().map(|port| (Family::Ipv4, *port)).collect(),
    }
}

/// A Service with three ports, 80/TCP, 6443/TCP and 6443/UDP. Each has two external IPs, a load-balancer IP and a
/// node port.
fn greedy(namespace: &str, name: &str) -> Event {
    let object = json!({
        "metadata": { "namespace": namespace, "name": name },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.9", "externalIPs": ["192.0.2.1", "192.0.2.2"],
            "ports": [{ "name": "a", "port": 80, "nodePort": 30080 }, { "name": "b", "port": 6443, "nodePort": 30443 },
                { "name": "u", "port": 6443, "protocol": "UDP", "nodePort": 30443 }],
        },
        "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.3" }] } },
    });
    Event::Service(decode_service(object.to_string().as_bytes()).expect("decodes"))
}

/// Returns the number of frontends of each port: `a`, `b`, `u`.
fn frontends(catalog: &Catalog) -> Vec<usize> {
    table(catalog).values().map(|forwarding| forwarding.frontends.len()).collect()
}

const ALL: [usize; 3] = [5, 5, 5];

#[test]
fn only_frontends_that_hide_the_api_server_are_left_out() {
    let cases: &[(ApiServer, [usize; 3], &[&str], usize)] = &[
        (api_server(&[], &[], &[]), ALL, &[], 0),
        (api_server(&["192.0.2.1:443", "192.0.2.9:6443"], &[], &[]), ALL, &[], 0),
        (api_server(&["192.0.2.1:6443"], &[], &[]), [5, 4, 5], &["spec.externalIPs"], 1),
        (api_server(&["192.0.2.3:80"], &[], &[]), [4, 5, 5], &["status.loadBalancer.ingress"], 1),
        (api_server(&["192.0.2.1:6443", "192.0.2.2:6443"], &[], &[]), [5, 3, 5], &["spec.externalIPs"; 2], 2),
        // The agent connects to a cluster IP, as in a pod.
        (api_server(&["10.96.0.9:6443"], &["10.96.0.9"], &[]), ALL, &[], 0),
        (api_server(&[], &["192.0.2.2"], &[]), [4, 4, 4], &["spec.externalIPs"; 3], 1),
        (api_server(&[], &[], &[30_443]), [5, 4, 5], &["spec.ports[].nodePort"], 0),
    ];
    for (api_server, wanted, fields, addresses) in cases {
        // The API server's address is known before the Service, and after it.
        for first in [true, false] {
            let mut catalog = Catalog::new("n1");
            let service = greedy("ns", "web");
            let applied = if first {
                assert_eq!(catalog.set_api_server(api_server.clone()), Applied::default());
                catalog.apply(service)
            } else {
                catalog.apply(service);
                catalog.take_changes();
                catalog.set_api_server(api_server.clone())
            };
            assert_eq!(frontends(&catalog), wanted, "{api_server:?}");
            let reported: Vec<&str> = applied.faults.iter().map(|fault| &*fault.fault.field).collect();
            assert_eq!(reported, *fields, "{api_server:?}");
            assert_eq!(catalog.api_server_addresses(), *addresses, "{api_server:?}");
            for fault in &applied.faults {
                assert_eq!((&fault.key, fault.fault.notice), (&key("web"), Some(Notice::ApiServerAddress)));
            }
        }
    }
}

#[test]
fn the_fault_names_the_frontend_and_the_reason() {
    let mut catalog = Catalog::new("n1");
    catalog.set_api_server(api_server(&["192.0.2.1:6443"], &[], &[]));
    let applied = catalog.apply(greedy("ns", "web"));
    let texts: Vec<String> = applied.faults.iter().map(|fault| fault.fault.to_string()).collect();
    insta::assert_snapshot!(texts.join("\n"), @"spec.externalIPs: 192.0.2.1 6443/TCP (IPv4) is left out on this node, which reaches the API server there; choose another");
    // A repeated event reports no fault.
    assert_eq!(catalog.apply(greedy("ns", "web")).faults, []);
}

#[test]
fn frontends_return_when_the_api_server_moves() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(greedy("ns", "web"));
    catalog.apply(cluster_ip("other", "10.96.0.1", 80));
    catalog.take_changes();
    catalog.set_api_server(api_server(&["192.0.2.1:6443"], &[], &[]));
    let changed = catalog.take_changes().changes;
    assert_eq!(summary(&changed), ["ns/web:b IPv4 5f[]->4f[]"]);
    assert_eq!(catalog.set_api_server(api_server(&["192.0.2.1:6443"], &[], &[])), Applied::default());
    catalog.set_api_server(api_server(&["192.0.2.2:80"], &[], &[]));
    assert_eq!(catalog.take_changes().changes.len(), 2);
    catalog.set_api_server(ApiServer::default());
    assert_eq!(catalog.api_server_addresses(), 0);
    assert_eq!(frontends(&catalog), [1, 5, 5, 5]);
    assert_eq!(summary(&catalog.take_changes().changes), ["ns/web:a IPv4 4f[]->5f[]"]);
}

#[test]
fn the_kubernetes_service_keeps_its_frontends() {
    let mut catalog = Catalog::new("n1");
    let everything = api_server(&["192.0.2.1:6443"], &["192.0.2.3"], &[30_443]);
    catalog.set_api_server(everything);
    assert_eq!(catalog.apply(greedy("default", "kubernetes")).faults, []);
    assert_eq!(frontends(&catalog), ALL);
}

#[test]
fn the_api_servers_behind_a_cluster_ip_are_those_of_its_slices() {
    let mut catalog = Catalog::new("n1");
    let sockets = |texts: &[&str]| api_server(texts, &[], &[]).sockets;
    let (by_cluster_ip, direct) = (sockets(&["10.96.0.1:443"]), sockets(&["192.0.2.1:6443"]));
    let slice = |name: &str, addresses: &[&str]| {
        let endpoints: Vec<_> = addresses.iter().map(|address| json!({ "addresses": [address] })).collect();
        let object = json!({
            "metadata": { "namespace": "default", "name": name, "labels": { "kubernetes.io/service-name": "kubernetes" } },
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "name": "https", "port": 6443 }],
        });
        Event::EndpointSlice(decode_endpoint_slice(object.to_string().as_bytes()).expect("decodes"))
    };
    let behind = |catalog: &Catalog, sockets| -> Vec<String> {
        catalog.api_servers_behind(sockets).iter().map(ToString::to_string).collect()
    };
    catalog.apply(slice("kubernetes", &["192.0.2.1", "192.0.2.2"]));
    assert!(behind(&catalog, &by_cluster_ip).is_empty(), "no Service");
    let service = json!({
        "metadata": { "namespace": "default", "name": "kubernetes" },
        "spec": { "clusterIP": "10.96.0.1", "ports": [{ "name": "https", "port": 443, "targetPort": 6443 }] },
    });
    catalog.apply(Event::Service(decode_service(service.to_string().as_bytes()).expect("decodes")));
    assert_eq!(behind(&catalog, &by_cluster_ip), ["192.0.2.1", "192.0.2.2"]);
    assert!(behind(&catalog, &direct).is_empty());
    catalog.apply(slice("more", &["192.0.2.3"]));
    catalog.apply(slice("kubernetes", &["192.0.2.2"]));
    assert_eq!(behind(&catalog, &by_cluster_ip), ["192.0.2.2", "192.0.2.3"]);
}
