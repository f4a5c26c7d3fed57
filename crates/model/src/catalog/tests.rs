use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::object::{decode_endpoint_slice, decode_node, decode_service, decode_service_cidr};
use crate::{Change, Frontend, Protocol};

mod api_server;
mod aside;
mod contested;
mod explain;
mod faults;
mod guard;
mod random;

type Table = BTreeMap<(Family, ServicePortName), Forwarding>;

fn table(catalog: &Catalog) -> Table {
    let of =
        |family| catalog.forwardings(family).map(move |(name, f)| ((family, (*name).clone()), (*f).clone()));
    Family::BOTH.into_iter().flat_map(of).collect()
}

#[expect(clippy::needless_pass_by_value, reason = "`json!` makes values")]
fn service(name: &str, spec: Value) -> Event {
    let object = json!({ "metadata": { "namespace": "ns", "name": name }, "spec": spec });
    Event::Service(decode_service(object.to_string().as_bytes()).expect("decodes"))
}

/// A Service event. The Service was created at this second after 12:00.
#[expect(clippy::needless_pass_by_value, reason = "`json!` makes values")]
fn made_at(second: u32, name: &str, spec: Value) -> Event {
    let time = format!("2026-01-31T12:00:{second:02}Z");
    let metadata = json!({ "namespace": "ns", "name": name, "creationTimestamp": time });
    let object = json!({ "metadata": metadata, "spec": spec });
    Event::Service(decode_service(object.to_string().as_bytes()).expect("decodes"))
}

fn cluster_ip(name: &str, ip: &str, port: u16) -> Event {
    let spec = json!({ "clusterIP": ip, "ports": [{ "port": port }] });
    service(name, spec)
}

#[expect(clippy::needless_pass_by_value, reason = "`json!` makes values")]
fn slice(name: &str, owner: &str, protocol: &str, endpoints: Value) -> Event {
    let object = json!({
        "metadata": { "namespace": "ns", "name": name, "labels": { "kubernetes.io/service-name": owner },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": "1970-01-01T00:00:01Z" } },
        "addressType": "IPv4",
        "ports": [{ "name": "", "port": 8080, "protocol": protocol }],
        "endpoints": endpoints,
    });
    Event::EndpointSlice(decode_endpoint_slice(object.to_string().as_bytes()).expect("decodes"))
}

fn ready(address: &str) -> Value {
    json!({ "addresses": [address], "nodeName": "n1" })
}

fn node(zone: &str) -> Event {
    let object = json!({ "metadata": { "name": "n1", "labels": { "topology.kubernetes.io/zone": zone } } });
    Event::Node(decode_node(object.to_string().as_bytes()).expect("decodes"))
}

fn cidr(name: &str, cidrs: &[&str]) -> Event {
    let object = json!({ "metadata": { "name": name }, "spec": { "cidrs": cidrs } });
    Event::ServiceCidr(decode_service_cidr(object.to_string().as_bytes()).expect("decodes"))
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("ns", name)
}

/// The Service names of these changes with the number of frontends and the cluster backends, `-` for none.
fn summary(changes: &[Change]) -> Vec<String> {
    let side = |side: &Option<Arc<Forwarding>>| match side {
        None => "-".to_owned(),
        Some(f) => format!(
            "{}f{:?}",
            f.frontends.len(),
            f.cluster.iter().map(|b| b.address.to_string()).collect::<Vec<_>>()
        ),
    };
    changes.iter().map(|c| format!("{} {} {}->{}", c.name, c.family, side(&c.old), side(&c.new))).collect()
}

#[test]
fn changes_of_a_service_from_creation_to_deletion() {
    let mut catalog = Catalog::new("n1");
    assert!(catalog.apply(slice("web-1", "web", "TCP", json!([ready("10.0.0.1")]))).changed);
    let changes = catalog.take_changes();
    assert!(changes.changes.is_empty(), "a slice alone means nothing");
    assert_eq!(changes.triggers.ipv4, [1_000_000_000]);

    assert!(catalog.apply(cluster_ip("web", "10.96.0.1", 80)).changed);
    assert_eq!(summary(&catalog.take_changes().changes), [r#"ns/web IPv4 -->1f["10.0.0.1"]"#]);

    assert!(!catalog.apply(cluster_ip("web", "10.96.0.1", 80)).changed);
    assert!(catalog.take_changes().is_empty());

    // Two events result in one change.
    catalog.apply(slice("web-1", "web", "TCP", json!([ready("10.0.0.2")])));
    catalog.apply(slice("web-1", "web", "TCP", json!([ready("10.0.0.3")])));
    let changes = catalog.take_changes();
    assert_eq!(summary(&changes.changes), [r#"ns/web IPv4 1f["10.0.0.1"]->1f["10.0.0.3"]"#]);
    assert_eq!(changes.triggers.ipv4.len(), 2);

    // A change is undone: the Service is touched, but there is no change.
    catalog.apply(Event::EndpointSliceDeleted(key("web-1")));
    assert!(catalog.has_pending());
    catalog.apply(slice("web-1", "web", "TCP", json!([ready("10.0.0.3")])));
    assert!(catalog.take_changes().is_empty());
    assert!(!catalog.has_pending());

    catalog.apply(Event::ServiceDeleted(key("web")));
    assert_eq!(summary(&catalog.take_changes().changes), [r#"ns/web IPv4 1f["10.0.0.3"]->-"#]);
    catalog.apply(Event::EndpointSliceDeleted(key("web-1")));
    assert!(catalog.take_changes().is_empty());
    assert_eq!((catalog.services.len(), catalog.slices.len()), (0, 0), "nothing is kept of what is gone");
}

#[test]
fn a_deleted_slice_voids_its_trigger_times() {
    let mut catalog = Catalog::new("n1").with_triggers_since(999_999_999);
    catalog.apply(slice("web-1", "web", "TCP", json!([ready("10.0.0.1")])));
    catalog.apply(Event::EndpointSliceDeleted(key("web-1")));
    assert_eq!(catalog.take_changes().triggers, PerFamily::default());
    let mut late = Catalog::new("n1").with_triggers_since(1_000_000_000);
    late.apply(slice("web-1", "web", "TCP", json!([ready("10.0.0.1")])));
    assert_eq!(late.take_changes().triggers, PerFamily::default());
}

#[test]
fn a_slice_that_moves_leaves_nothing_behind() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cluster_ip("a", "10.96.0.1", 80));
    catalog.apply(cluster_ip("b", "10.96.0.2", 80));
    catalog.apply(slice("s", "a", "TCP", json!([ready("10.0.0.1")])));
    catalog.take_changes();
    catalog.apply(slice("s", "b", "TCP", json!([ready("10.0.0.1")])));
    let mut changes = summary(&catalog.take_changes().changes);
    changes.sort();
    assert_eq!(changes, [r#"ns/a IPv4 1f["10.0.0.1"]->1f[]"#, r#"ns/b IPv4 1f[]->1f["10.0.0.1"]"#]);
}

#[test]
fn an_external_policy_without_external_frontends_selects_nothing() {
    // The Service has external IPs of the other family only.
    let spec = json!({
        "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }],
        "externalIPs": ["2001:db8::1"], "externalTrafficPolicy": "Local",
    });
    let mut catalog = Catalog::new("n1");
    catalog.apply(service("web", spec));
    catalog.apply(slice("s", "web", "TCP", json!([ready("10.0.0.1")])));
    let (_, forwarding) = catalog.forwardings(Family::Ipv4).next().expect("one Service");
    assert_eq!((forwarding.cluster.len(), forwarding.local.len()), (1, 0));
}

#[test]
fn endpoints_without_a_node_are_not_local_but_may_hairpin() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(service(
        "web",
        json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }], "internalTrafficPolicy": "Local" }),
    ));
    let endpoints = json!([
        { "addresses": ["10.0.0.1"] },
        { "addresses": ["10.0.0.2"], "nodeName": "n2" },
        { "addresses": ["10.0.0.3"], "nodeName": "n1" },
    ]);
    catalog.apply(slice("s", "web", "TCP", endpoints.clone()));
    let (_, forwarding) = catalog.forwardings(Family::Ipv4).next().expect("one Service");
    assert_eq!(forwarding.local.iter().map(|b| b.address.to_string()).collect::<Vec<_>>(), ["10.0.0.3"]);
    catalog.apply(cluster_ip("web", "10.96.0.1", 80));
    let (_, forwarding) = catalog.forwardings(Family::Ipv4).next().expect("one Service");
    assert_eq!(forwarding.cluster.iter().map(|b| b.may_hairpin).collect::<Vec<_>>(), [true, false, true]);
    // A node without a name has no local endpoints, not even those with an empty node name.
    let mut nameless = Catalog::new("");
    nameless.apply(cluster_ip("web", "10.96.0.1", 80));
    nameless.apply(slice("s", "web", "TCP", json!([{ "addresses": ["10.0.0.1"], "nodeName": "" }])));
    let (_, forwarding) = nameless.forwardings(Family::Ipv4).next().expect("one Service");
    assert!(forwarding.cluster[0].may_hairpin && forwarding.local.is_empty());
}

#[test]
fn a_list_removes_unlisted_objects_at_its_end() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cluster_ip("a", "10.96.0.1", 80));
    catalog.apply(cluster_ip("b", "10.96.0.2", 80));
    catalog.take_changes();
    catalog.apply(Event::ListStart(Kind::Service));
    catalog.apply(cluster_ip("a", "10.96.0.1", 80));
    // The connection breaks. Another list starts and contains the other Service.
    catalog.apply(Event::ListStart(Kind::Service));
    assert!(!catalog.apply(cluster_ip("b", "10.96.0.2", 80)).changed);
    assert!(catalog.take_changes().is_empty());
    assert!(catalog.apply(Event::ListEnd(Kind::Service)).changed);
    assert_eq!(summary(&catalog.take_changes().changes), ["ns/a IPv4 1f[]->-"]);
    // Watch events after the list count as seen in it.
    catalog.apply(cluster_ip("c", "10.96.0.3", 80));
    assert!(catalog.apply(Event::ListEnd(Kind::EndpointSlice)).faults.is_empty());
    assert_eq!(catalog.service_count(), 2);
}

#[test]
fn synced_after_three_complete_lists() {
    let mut catalog = Catalog::new("n1");
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::ServiceCidr] {
        assert!(!catalog.synced());
        catalog.apply(Event::ListStart(kind));
        assert!(!catalog.synced());
        catalog.apply(Event::ListEnd(kind));
    }
    assert!(catalog.synced());
    let mut without = Catalog::new("n1");
    without.apply(Event::ServiceCidrsUnavailable);
    without.apply(Event::ListEnd(Kind::Service));
    without.apply(Event::ListEnd(Kind::EndpointSlice));
    assert!(without.synced());
}

#[test]
fn a_change_of_zone_touches_hinted_services_only() {
    let mut catalog = Catalog::new("n1");
    let hinted = |address: &str, zone: &str| json!({ "addresses": [address], "hints": { "forZones": [{ "name": zone }] } });
    for (name, ip) in [("a", "10.96.0.1"), ("b", "10.96.0.2")] {
        catalog.apply(cluster_ip(name, ip, 80));
    }
    catalog.apply(slice("a-1", "a", "TCP", json!([hinted("10.0.0.1", "z1"), hinted("10.0.0.2", "z2")])));
    catalog.apply(slice("b-1", "b", "TCP", json!([ready("10.0.0.1"), ready("10.0.0.2")])));
    catalog.take_changes();
    catalog.apply(node("z1"));
    assert_eq!(catalog.pending.dirty.len(), 1);
    let changes = summary(&catalog.take_changes().changes);
    assert_eq!(changes, [r#"ns/a IPv4 1f["10.0.0.1", "10.0.0.2"]->1f["10.0.0.1"]"#]);
    // The deletion of this node changes nothing.
    catalog.apply(Event::NodeDeleted(ObjectKey::new("", "n1")));
    assert!(!catalog.has_pending());
    assert_eq!(catalog.node().and_then(|node| node.zone.as_deref()), Some("z1"));
}

#[test]
fn changes_of_service_cidrs_are_reported() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cidr("a", &["10.96.0.0/12", "2001:db8::/108"]));
    catalog.apply(cidr("b", &["10.96.0.0/12"]));
    assert!(catalog.take_changes().service_cidrs);
    assert_eq!(catalog.service_cidrs(Family::Ipv4).len(), 1);
    catalog.apply(Event::ServiceCidrDeleted(ObjectKey::new("", "b")));
    assert!(!catalog.take_changes().service_cidrs, "the other one still has it");
    catalog.apply(Event::ListStart(Kind::ServiceCidr));
    catalog.apply(Event::ListEnd(Kind::ServiceCidr));
    assert!(catalog.take_changes().service_cidrs);
    assert_eq!(catalog.service_cidrs(Family::Ipv6), []);
}

#[test]
fn health_checks_count_distinct_local_ready_addresses() {
    let spec = json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
    });
    let mut catalog = Catalog::new("n1");
    catalog.apply(service("web", spec));
    let leaving = json!({ "addresses": ["10.0.0.3"], "nodeName": "n1",
        "conditions": { "ready": false, "serving": true, "terminating": true } });
    let remote = json!({ "addresses": ["10.0.0.4"], "nodeName": "n2" });
    catalog.apply(slice("s1", "web", "TCP", json!([ready("10.0.0.1"), ready("10.0.0.2"), leaving, remote])));
    catalog.apply(slice("s2", "web", "UDP", json!([ready("10.0.0.1")])));
    assert_eq!(Family::BOTH.map(|family| catalog.health_check_ports(family)), [vec![31000], vec![]]);
    let check = HealthCheck { port: 31000, local_ready: PerFamily { ipv4: Some(2), ipv6: None } };
    let changes = catalog.take_changes();
    assert_eq!(changes.health_checks, [HealthCheckChange { key: key("web"), old: None, new: Some(check) }]);
    assert_eq!(catalog.health_checks(), [(key("web"), check)]);
    catalog.apply(Event::EndpointSliceDeleted(key("s2")));
    assert_eq!(catalog.take_changes().health_checks, []);
    catalog.apply(Event::ServiceDeleted(key("web")));
    let gone = HealthCheckChange { key: key("web"), old: Some(check), new: None };
    assert_eq!(catalog.take_changes().health_checks, [gone]);
    assert_eq!(catalog.health_checks(), []);
}

#[test]
fn service_ports_without_local_endpoints_are_counted() {
    let spec = json!({
        "type": "NodePort", "clusterIP": "10.96.0.1", "ports": [{ "port": 80, "nodePort": 30080 }],
        "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
    });
    let mut catalog = Catalog::new("n1");
    catalog.apply(service("web", spec));
    let remote = json!([{ "addresses": ["10.0.0.1"], "nodeName": "n2" }]);
    catalog.apply(slice("s", "web", "TCP", remote));
    catalog.take_changes();
    let both = NoLocalEndpoints { internal: 1, external: 1 };
    assert_eq!(catalog.no_local_endpoints(Family::Ipv4), both);
    catalog.apply(slice("s", "web", "TCP", json!([ready("10.0.0.1")])));
    catalog.take_changes();
    assert_eq!(catalog.no_local_endpoints(Family::Ipv4), NoLocalEndpoints::default());
}

#[test]
fn conntrack_is_checked_for_udp_only() {
    let udp = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 53, "protocol": "UDP" }] });
    let unready = json!({ "addresses": ["10.0.0.2"], "conditions": { "ready": false, "serving": true } });
    let mut catalog = Catalog::new("n1");
    catalog.apply(service("dns", udp));
    catalog.apply(cluster_ip("web", "10.96.0.2", 80));
    catalog.apply(slice("s", "dns", "UDP", json!([ready("10.0.0.1")])));
    assert_eq!(catalog.take_changes().conntrack_check, PerFamily { ipv4: true, ipv6: false });
    catalog.apply(slice("t", "web", "TCP", json!([ready("10.0.0.1")])));
    assert_eq!(catalog.take_changes().conntrack_check, PerFamily::default());
    // A serving endpoint that is not ready changes no forwarding, but it may keep its flows.
    catalog.apply(slice("s", "dns", "UDP", json!([ready("10.0.0.1"), unready])));
    let changes = catalog.take_changes();
    assert_eq!((changes.changes.len(), changes.conntrack_check.ipv4, changes.udp.len()), (0, true, 1));
    let (family, name) = &changes.udp[0];
    let found = catalog.udp_service(name, *family).expect("still there");
    assert_eq!(found.serving.len(), 2);
    assert_eq!(found.frontends, [Frontend::ClusterIp([10, 96, 0, 1].into(), 53)]);
    assert_eq!(catalog.udp_services(Family::Ipv4).collect::<Vec<_>>(), [found]);
}

#[test]
fn udp_service_ports_are_found_by_their_addresses() {
    let at = |spec: Value| service("dns", spec);
    let udp = json!([{ "name": "dns", "port": 30053, "protocol": "UDP" }, { "name": "web", "port": 30053 }]);
    let mut catalog = Catalog::new("n1");
    catalog.apply(at(json!({ "clusterIP": "10.96.0.1", "externalIPs": ["192.0.2.1"], "ports": udp })));
    let found = |catalog: &Catalog, address: &str, port| {
        let addresses = [address.parse().expect("an address"), "192.0.2.9".parse().expect("an address")];
        let found = catalog.udp_services_at(&addresses, port).into_iter();
        found.map(|udp| udp.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found(&catalog, "192.0.2.1", 30053), ["ns/dns:dns"]);
    assert_eq!(found(&catalog, "192.0.2.1", 53), [""; 0]);
    assert_eq!(found(&catalog, "192.0.2.2", 30053), [""; 0]);
    catalog.apply(at(json!({ "clusterIP": "10.96.0.1", "ports": udp })));
    assert_eq!(found(&catalog, "192.0.2.1", 30053), [""; 0]);
}

#[test]
fn duplicates_across_slices_do_not_depend_on_their_order() {
    let leaving = json!({ "addresses": ["10.0.0.1"], "nodeName": "n2",
        "conditions": { "ready": false, "serving": true, "terminating": true } });
    let tables = [["s1", "s2"], ["s2", "s1"]].map(|[first, second]| {
        let mut catalog = Catalog::new("n1");
        catalog.apply(cluster_ip("web", "10.96.0.1", 80));
        catalog.apply(slice(first, "web", "TCP", json!([leaving])));
        catalog.apply(slice(second, "web", "TCP", json!([ready("10.0.0.1")])));
        table(&catalog)
    });
    assert_eq!(tables[0], tables[1]);
    let forwarding = tables[0].values().next().expect("one Service");
    assert!(forwarding.cluster[0].may_hairpin, "the one that stays is on this node");
}

#[test]
fn drained_changes_are_not_returned_again() {
    let mut catalog = Catalog::new("n1");
    catalog.apply(cluster_ip("web", "10.96.0.1", 80));
    let mut count = 0;
    let rest = catalog.drain_changes(|_| count += 1);
    assert_eq!((count, rest.changes.len()), (1, 0));
    assert!(catalog.take_changes().is_empty());
    let name = catalog.forwardings(Family::Ipv4).next().expect("one").0;
    assert!(catalog.forwarding(&name, Family::Ipv4).is_some());
    assert!(catalog.forwarding(&name, Family::Ipv6).is_none());
}
