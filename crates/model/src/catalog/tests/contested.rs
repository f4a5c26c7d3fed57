//! Frontends that several Services claim.

use super::*;
use crate::object::Notice;

#[test]
fn one_cluster_ip_can_serve_two_services_on_different_ports() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cluster_ip("a", "10.96.0.1", 80));
    let applied = catalog.apply(cluster_ip("b", "10.96.0.1", 81));
    assert_eq!(applied.faults, []);
    assert!(table(&catalog).values().all(|f| f.frontends.len() == 1));
}

#[test]
fn the_first_by_name_keeps_a_contested_frontend() {
    let frontends = |catalog: &Catalog, name: &str| {
        let found = catalog.forwardings(Family::Ipv4).find(|(n, _)| &*n.service == name);
        found.map(|(_, f)| f.frontends.to_vec()).unwrap_or_default()
    };
    let taken = Frontend::ClusterIp([10, 96, 0, 1].into(), 80);
    let mut catalog = Catalog::new("n1");
    assert_eq!(catalog.apply(cluster_ip("b", "10.96.0.1", 80)).faults, []);
    assert_eq!(frontends(&catalog, "b"), [taken]);

    // A stronger claim replaces it, and the fault names the loser.
    let applied = catalog.apply(cluster_ip("a", "10.96.0.1", 80));
    let [fault] = &*applied.faults else { panic!("one fault: {applied:?}") };
    assert_eq!(fault.key, key("b"));
    insta::assert_snapshot!(fault.fault, @"spec.clusterIPs: 10.96.0.1 80/TCP (IPv4) already belongs to Service ns/a; choose another");
    assert_eq!((frontends(&catalog, "a"), frontends(&catalog, "b")), (vec![taken], vec![]));
    assert_eq!(catalog.conflicts().map(|c| c.key).collect::<Vec<_>>(), [key("b")]);
    catalog.take_changes();

    // A weaker claim gets nothing, and the fault is its own.
    let applied = catalog.apply(cluster_ip("c", "10.96.0.1", 80));
    assert_eq!(applied.faults.iter().map(|f| f.key.clone()).collect::<Vec<_>>(), [key("c")]);

    // The next claimant gets the frontend without an event of its own.
    catalog.apply(Event::ServiceDeleted(key("a")));
    assert_eq!((frontends(&catalog, "b"), frontends(&catalog, "c")), (vec![taken], vec![]));
    assert_eq!(summary(&catalog.take_changes().changes).len(), 3);
}

#[test]
fn namespaces_sort_before_names() {
    let in_namespace = |namespace: &str, name: &str| {
        let spec = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] });
        let object = json!({ "metadata": { "namespace": namespace, "name": name }, "spec": spec });
        Event::Service(decode_service(object.to_string().as_bytes()).expect("decodes"))
    };
    for order in [[("a", "z"), ("b", "a")], [("b", "a"), ("a", "z")]] {
        let mut catalog = Catalog::new("n1");
        let applied = order.map(|(namespace, name)| catalog.apply(in_namespace(namespace, name)));
        assert_eq!(applied[1].faults[0].key, ObjectKey::new("b", "a"));
    }
    // Equal names in two namespaces are two Services. Only one of them owns the frontend.
    let mut catalog = Catalog::new("n1");
    catalog.apply(in_namespace("b", "web"));
    catalog.apply(in_namespace("a", "web"));
    let owners: Vec<_> = catalog.forwardings(Family::Ipv4).filter(|(_, f)| !f.frontends.is_empty()).collect();
    assert_eq!(owners.iter().map(|(name, _)| &*name.namespace).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn external_ips_cannot_take_a_cluster_ip_over() {
    let mut catalog = Catalog::new("n1");
    let spec = json!({ "clusterIP": "10.96.0.9", "ports": [{ "port": 80 }], "externalIPs": ["10.96.0.1"] });
    catalog.apply(service("aaa", spec));
    let applied = catalog.apply(cluster_ip("web", "10.96.0.1", 80));
    assert_eq!(applied.faults.iter().map(|f| f.key.clone()).collect::<Vec<_>>(), [key("aaa")]);
    let counts: BTreeMap<_, _> =
        catalog.forwardings(Family::Ipv4).map(|(n, f)| (n.service.clone(), f.frontends.len())).collect();
    assert_eq!(counts, [("aaa".into(), 1), ("web".into(), 1)].into());
}

#[test]
fn node_ports_are_contested_within_a_family_only() {
    let spec = |ip: &str| json!({ "type": "NodePort", "clusterIP": ip, "ports": [{ "port": 80, "nodePort": 30080 }] });
    let mut catalog = Catalog::new("n1");
    catalog.apply(service("a", spec("10.96.0.1")));
    assert_eq!(catalog.apply(service("b", spec("2001:db8::1"))).faults, []);
    let applied = catalog.apply(service("c", spec("10.96.0.2")));
    assert_eq!(&*applied.faults[0].fault.field, "spec.ports[].nodePort");
}

#[test]
fn the_earlier_of_two_ports_keeps_a_frontend_within_a_service() {
    let ports = json!([{ "name": "x", "port": 80 }, { "name": "y", "port": 80 }]);
    let mut catalog = Catalog::new("n1");
    catalog.apply(service("a", json!({ "clusterIP": "10.96.0.1", "ports": ports })));
    let counts: Vec<_> =
        catalog.forwardings(Family::Ipv4).map(|(n, f)| (n.port.clone(), f.frontends.len())).collect();
    assert_eq!(counts, [("x".into(), 1), ("y".into(), 0)]);
}

/// Returns the Services that have a node port or an external IP.
fn owners(catalog: &Catalog) -> Vec<String> {
    let external = |f: &Frontend| !matches!(f, Frontend::ClusterIp(..));
    let all = catalog.forwardings(Family::Ipv4);
    let with = all.filter(|(_, forwarding)| forwarding.frontends.iter().any(external));
    let mut names: Vec<String> = with.map(|(name, _)| name.service.to_string()).collect();
    names.sort();
    names
}

#[test]
fn an_older_service_keeps_its_frontends() {
    let node_port = |ip: &str| json!({ "type": "NodePort", "clusterIP": ip, "ports": [{ "port": 80, "nodePort": 30080 }] });
    let external =
        |ip: &str| json!({ "clusterIP": ip, "ports": [{ "port": 80 }], "externalIPs": ["192.0.2.7"] });
    for spec in [&node_port as &dyn Fn(&str) -> Value, &external] {
        let (old, young) = (made_at(1, "zzz", spec("10.96.0.1")), made_at(2, "aaa", spec("10.96.0.2")));
        for order in [[&old, &young], [&young, &old]] {
            let mut catalog = Catalog::new("n1");
            let applied = order.map(|event| catalog.apply(event.clone()));
            let [fault] = &*applied[1].faults else { panic!("one fault: {applied:?}") };
            assert_eq!((&fault.key, fault.fault.notice), (&key("aaa"), Some(Notice::Conflict)));
            assert!(fault.fault.reason.contains("Service ns/zzz"), "{}", fault.fault);
            assert_eq!(owners(&catalog), ["zzz"]);
        }
        let mut catalog = Catalog::new("n1");
        for event in [&old, &young] {
            catalog.apply(event.clone());
        }
        catalog.take_changes();
        // The Service is recreated between two takes, so it is the younger one.
        catalog.apply(made_at(3, "zzz", spec("10.96.0.1")));
        assert_eq!(owners(&catalog), ["aaa"]);
        assert_eq!(catalog.take_changes().changes.len(), 2, "both have changed");
        // In the same second the name decides. A Service without creation time is the youngest.
        catalog.apply(made_at(2, "zzz", spec("10.96.0.1")));
        assert_eq!(owners(&catalog), ["aaa"]);
        catalog.apply(service("aaa", spec("10.96.0.2")));
        assert_eq!(owners(&catalog), ["zzz"]);
    }
}
