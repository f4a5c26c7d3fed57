use hickory_proto::rr::RecordType;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn settings() -> Settings {
    let ranges = vec!["10.96.0.0/12".parse().unwrap(), "fd00:96::/112".parse().unwrap()];
    Settings { ranges, ..Settings::new("cluster.local").unwrap() }
}

fn service(namespace: &str, name: &str, spec: &serde_json::Value) -> Service {
    Service::try_from(&json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})).unwrap()
}

fn slice(
    namespace: &str,
    name: &str,
    of: &str,
    endpoints: &serde_json::Value,
    ports: &serde_json::Value,
) -> Slice {
    Slice::try_from(&json!({
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": of}},
        "endpoints": endpoints, "ports": ports,
    }))
    .unwrap()
}

/// The objects of the specification's examples, and more.
fn cluster() -> Zone {
    let mut zone = Zone::new(settings(), 7);
    zone.set_in_sync(true);
    zone.set_service(service(
        "default",
        "kubernetes",
        &json!({"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}),
    ));
    zone.set_service(service(
        "kube-system",
        "kube-dns",
        &json!({"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::a"], "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53}]}),
    ));
    zone.set_service(service("shop", "db", &json!({"clusterIP": "None"})));
    zone.set_slice(slice(
        "shop",
        "db-4",
        "db",
        &json!([{"addresses": ["10.3.0.100"], "hostname": "my-pet"}, {"addresses": ["10.3.0.101"]},
                {"addresses": ["10.3.0.102"], "conditions": {"ready": false}}]),
        &json!([{"name": "https", "port": 8443}]),
    ));
    zone.set_slice(slice(
        "shop",
        "db-6",
        "db",
        &json!([{"addresses": ["2001:db8::1"], "hostname": "my-pet"}]),
        &json!([{"name": "https", "port": 8443}]),
    ));
    zone.set_service(service("shop", "idle", &json!({"clusterIP": "None"})));
    let external = |name: &str| json!({"type": "ExternalName", "externalName": name});
    zone.set_service(service("shop", "site", &external("www.example.com")));
    zone.set_service(service("shop", "inner", &external("kubernetes.default.svc.cluster.local")));
    zone.set_service(service("shop", "dangling", &external("nothing.default.svc.cluster.local")));
    zone.set_service(service("shop", "loop", &external("loop.shop.svc.cluster.local")));
    zone.set_service(service("empty", "pending", &json!({"clusterIP": ""})));
    zone
}

/// Returns a lookup as lines.
fn text(zone: &Zone, name: &str, kind: RecordType) -> Vec<String> {
    let Some(found) = zone.lookup(&Name::from_ascii(name).unwrap(), kind, 0) else {
        return vec!["not ours".to_owned()];
    };
    let line = |mark: &str, rr: Rr| {
        let owner = rr.owner.map_or_else(|| "=".to_owned(), |owner| owner.to_ascii());
        format!("{mark}{owner} {} {}", rr.data.record_type(), rr.data)
    };
    let mut lines: Vec<String> = found.answers.map(|rr| line("", rr)).collect();
    if found.outcome != LookupResult::Found {
        lines.push(format!("{:?}", found.outcome));
    }
    lines.extend(found.authority.map(|rr| format!("! {}", rr.owner.unwrap_or_default())));
    lines.extend(found.additional.map(|rr| line("+ ", rr)));
    lines.extend(found.beyond.map(|name| format!("> {name}")));
    lines
}

macro_rules! assert_lookup {
    ($zone:expr, $name:expr, $kind:ident, [$($line:expr),* $(,)?]) => {
        let expected: Vec<String> = vec![$($line.to_owned()),*];
        assert_eq!(text(&$zone, $name, RecordType::$kind), expected, "{}", $name);
    };
}

const NO_NAME: [&str; 2] = ["NoName", "! cluster.local."];
const NO_DATA: [&str; 2] = ["NoData", "! cluster.local."];

#[test]
fn schema_version_and_apex() {
    let zone = cluster();
    assert_lookup!(zone, "dns-version.cluster.local.", TXT, ["= TXT 1.1.0"]);
    assert_lookup!(zone, "dns-version.cluster.local.", A, [NO_DATA[0], NO_DATA[1]]);
    assert_lookup!(
        zone,
        "cluster.local.",
        NS,
        [
            "= NS ns.dns.cluster.local.",
            "+ ns.dns.cluster.local. A 10.96.0.10",
            "+ ns.dns.cluster.local. AAAA fd00:96::a"
        ]
    );
    assert_lookup!(zone, "ns.dns.cluster.local.", A, ["= A 10.96.0.10"]);
    let soa = text(&zone, "Cluster.Local.", RecordType::SOA);
    assert!(soa[0].starts_with("= SOA ns.dns.cluster.local. hostmaster.cluster.local. "), "{soa:?}");
    assert_lookup!(zone, "cluster.local.", A, [NO_DATA[0], NO_DATA[1]]);
    assert_lookup!(zone, "example.com.", A, ["not ours"]);
    assert_lookup!(zone, "local.", A, ["not ours"]);
    assert_lookup!(zone, "xcluster.local.", A, ["not ours"]);
    assert_lookup!(zone, ".", NS, ["not ours"]);
}

#[test]
fn services_with_cluster_ips() {
    let zone = cluster();
    assert_lookup!(zone, "kubernetes.default.svc.cluster.local.", A, ["= A 10.96.0.1"]);
    assert_lookup!(zone, "KUBERNETES.Default.SVC.cluster.LOCAL.", A, ["= A 10.96.0.1"]);
    assert_lookup!(zone, "kubernetes.default.svc.cluster.local.", ANY, ["= A 10.96.0.1"]);
    assert_lookup!(zone, "kubernetes.default.svc.cluster.local.", AAAA, [NO_DATA[0], NO_DATA[1]]);
    assert_lookup!(zone, "kubernetes.default.svc.cluster.local.", SRV, [NO_DATA[0], NO_DATA[1]]);
    assert_lookup!(zone, "kube-dns.kube-system.svc.cluster.local.", AAAA, ["= AAAA fd00:96::a"]);
    assert_lookup!(
        zone,
        "_https._tcp.kubernetes.default.svc.cluster.local.",
        SRV,
        [
            "= SRV 0 100 443 kubernetes.default.svc.cluster.local.",
            "+ kubernetes.default.svc.cluster.local. A 10.96.0.1"
        ]
    );
    assert_lookup!(zone, "_HTTPS._TCP.kubernetes.default.svc.cluster.local.", A, [NO_DATA[0], NO_DATA[1]]);
    assert_lookup!(zone, "_tcp.kubernetes.default.svc.cluster.local.", SRV, [NO_DATA[0], NO_DATA[1]]);
    for absent in
        ["_udp", "_https._udp", "_http._tcp", "https._tcp", "_https.tcp", "x", "a._https._tcp", "_x._tcp"]
    {
        let name = format!("{absent}.kubernetes.default.svc.cluster.local.");
        assert_lookup!(zone, &name, SRV, [NO_NAME[0], NO_NAME[1]]);
    }
}

#[test]
fn names_without_records() {
    let zone = cluster();
    for empty in ["svc", "default.svc", "shop.svc", "dns"] {
        assert_lookup!(zone, &format!("{empty}.cluster.local."), A, [NO_DATA[0], NO_DATA[1]]);
    }
    for absent in [
        "nothing.default.svc",
        "nothing.svc",
        "empty.svc",
        "pending.empty.svc",
        "pod",
        "10-1-2-3.default.pod",
        "x",
        "x.dns",
        "x.ns.dns",
        "x.dns-version",
    ] {
        assert_lookup!(zone, &format!("{absent}.cluster.local."), A, [NO_NAME[0], NO_NAME[1]]);
    }
}

#[test]
fn headless_services() {
    let zone = cluster();
    assert_lookup!(zone, "db.shop.svc.cluster.local.", A, ["= A 10.3.0.100", "= A 10.3.0.101"]);
    assert_lookup!(zone, "db.shop.svc.cluster.local.", AAAA, ["= AAAA 2001:db8::1"]);
    assert_lookup!(zone, "my-pet.db.shop.svc.cluster.local.", A, ["= A 10.3.0.100"]);
    assert_lookup!(zone, "my-pet.db.shop.svc.cluster.local.", AAAA, ["= AAAA 2001:db8::1"]);
    assert_lookup!(zone, "10-3-0-101.db.shop.svc.cluster.local.", A, ["= A 10.3.0.101"]);
    assert_lookup!(zone, "10-3-0-101.db.shop.svc.cluster.local.", AAAA, [NO_DATA[0], NO_DATA[1]]);
    assert_lookup!(zone, "10-3-0-102.db.shop.svc.cluster.local.", A, [NO_NAME[0], NO_NAME[1]]);
    assert_lookup!(zone, "idle.shop.svc.cluster.local.", A, [NO_NAME[0], NO_NAME[1]]);
    assert_lookup!(
        zone,
        "_https._tcp.db.shop.svc.cluster.local.",
        SRV,
        [
            "= SRV 0 100 8443 10-3-0-101.db.shop.svc.cluster.local.",
            "= SRV 0 100 8443 my-pet.db.shop.svc.cluster.local.",
            "+ 10-3-0-101.db.shop.svc.cluster.local. A 10.3.0.101",
            "+ my-pet.db.shop.svc.cluster.local. A 10.3.0.100",
            "+ my-pet.db.shop.svc.cluster.local. AAAA 2001:db8::1",
        ]
    );
}

#[test]
fn sets_begin_at_the_turn_of_the_request() {
    let zone = cluster();
    let name = Name::from_ascii("db.shop.svc.cluster.local.").unwrap();
    let first = |turn| {
        let found = zone.lookup(&name, RecordType::A, turn).unwrap();
        found.answers.map(|rr| rr.data.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(first(0), ["10.3.0.100", "10.3.0.101"]);
    assert_eq!(first(1), ["10.3.0.101", "10.3.0.100"]);
    assert_eq!(first(usize::MAX), first(1));
}

#[test]
fn external_names() {
    let zone = cluster();
    assert_lookup!(
        zone,
        "site.shop.svc.cluster.local.",
        A,
        ["= CNAME www.example.com.", "> www.example.com."]
    );
    assert_lookup!(zone, "site.shop.svc.cluster.local.", CNAME, ["= CNAME www.example.com."]);
    assert_lookup!(zone, "site.shop.svc.cluster.local.", ANY, ["= CNAME www.example.com."]);
    assert_lookup!(zone, "x.site.shop.svc.cluster.local.", A, [NO_NAME[0], NO_NAME[1]]);
    let target = "kubernetes.default.svc.cluster.local.";
    assert_lookup!(
        zone,
        "inner.shop.svc.cluster.local.",
        A,
        [format!("= CNAME {target}"), format!("{target} A 10.96.0.1")]
    );
    assert_lookup!(
        zone,
        "inner.shop.svc.cluster.local.",
        AAAA,
        [format!("= CNAME {target}"), NO_DATA[0].to_owned(), NO_DATA[1].to_owned()]
    );
    assert_lookup!(
        zone,
        "dangling.shop.svc.cluster.local.",
        A,
        ["= CNAME nothing.default.svc.cluster.local.", NO_NAME[0], NO_NAME[1]]
    );
    let round = text(&zone, "loop.shop.svc.cluster.local.", RecordType::A);
    assert_eq!(round.len(), 9, "{round:?}");
}

#[test]
fn reverse_names() {
    let zone = cluster();
    assert_lookup!(zone, "1.0.96.10.in-addr.arpa.", PTR, ["= PTR kubernetes.default.svc.cluster.local."]);
    let ipv6 = Name::from("fd00:96::a".parse::<IpAddr>().unwrap()).to_ascii();
    assert_lookup!(zone, &ipv6, PTR, ["= PTR kube-dns.kube-system.svc.cluster.local."]);
    assert_lookup!(zone, "100.0.3.10.in-addr.arpa.", PTR, ["= PTR my-pet.db.shop.svc.cluster.local."]);
    assert_lookup!(zone, "102.0.3.10.in-addr.arpa.", PTR, ["not ours"]);
    assert_lookup!(zone, "100.0.3.10.in-addr.arpa.", TXT, ["NoData"]);
    assert_lookup!(zone, "2.0.96.10.in-addr.arpa.", PTR, ["NoName", "! 96.10.in-addr.arpa."]);
    assert_lookup!(zone, "0.96.10.in-addr.arpa.", PTR, ["NoData", "! 96.10.in-addr.arpa."]);
    assert_lookup!(zone, "5.96.10.in-addr.arpa.", PTR, ["NoName", "! 96.10.in-addr.arpa."]);
    assert_lookup!(zone, "1.0.96.10.in-addr.arpa.", A, ["NoData", "! 96.10.in-addr.arpa."]);
    let apex = text(&zone, "97.10.in-addr.arpa.", RecordType::SOA);
    assert!(apex[0].starts_with("= SOA ns.dns.cluster.local."), "{apex:?}");
    assert_lookup!(zone, "10.in-addr.arpa.", SOA, ["not ours"]);
}

#[test]
fn a_cluster_ip_leads_to_its_service_before_endpoints() {
    let mut zone = cluster();
    zone.set_slice(slice("shop", "x", "db", &json!([{"addresses": ["10.96.0.1"]}]), &json!([])));
    assert_lookup!(zone, "1.0.96.10.in-addr.arpa.", PTR, ["= PTR kubernetes.default.svc.cluster.local."]);
    zone.remove_service(&ObjectName::new("default", "kubernetes"));
    assert_lookup!(zone, "1.0.96.10.in-addr.arpa.", PTR, ["= PTR 10-96-0-1.db.shop.svc.cluster.local."]);
}

#[test]
fn names_of_pods() {
    let mut zone = Zone::new(Settings { pod_names: true, ..settings() }, 1);
    zone.set_in_sync(true);
    assert_lookup!(zone, "10-1-2-3.any.pod.cluster.local.", A, ["= A 10.1.2.3"]);
    assert_lookup!(zone, "10-1-2-3.any.pod.cluster.local.", AAAA, [NO_DATA[0], NO_DATA[1]]);
    assert_lookup!(zone, "fd00--1.any.pod.cluster.local.", AAAA, ["= AAAA fd00::1"]);
    assert_lookup!(zone, "any.pod.cluster.local.", A, [NO_DATA[0], NO_DATA[1]]);
    for absent in ["x.any", "300-1-2-3.any", "1-2-3.any", "x.10-1-2-3.any"] {
        assert_lookup!(zone, &format!("{absent}.pod.cluster.local."), A, [NO_NAME[0], NO_NAME[1]]);
    }
}

#[test]
fn nothing_is_non_existent_before_all_objects_are_known() {
    let mut zone = cluster();
    zone.set_in_sync(false);
    assert_lookup!(zone, "kubernetes.default.svc.cluster.local.", A, ["= A 10.96.0.1"]);
    assert_lookup!(zone, "late.default.svc.cluster.local.", A, ["NotInSync", "! cluster.local."]);
}

#[test]
fn settings_need_a_domain() {
    assert_eq!(Settings::new("Cluster.Local").unwrap().domain.to_ascii(), "cluster.local.");
    for bad in ["", ".", "a..b", &"a".repeat(64)] {
        assert_eq!(Settings::new(bad), None, "{bad}");
    }
}

#[test]
fn lists_replace_what_they_do_not_name() {
    let mut zone = cluster();
    zone.replace_services([service("default", "new", &json!({"clusterIP": "10.96.0.9"}))]);
    zone.replace_slices([]);
    assert_lookup!(zone, "new.default.svc.cluster.local.", A, ["= A 10.96.0.9"]);
    let mut fresh = Zone::new(settings(), 0);
    fresh.set_service(service("default", "new", &json!({"clusterIP": "10.96.0.9"})));
    assert_eq!((&zone.namespaces, &zone.pointers), (&fresh.namespaces, &fresh.pointers));
}

#[derive(Debug, Clone)]
enum Step {
    Service(Service),
    NoService(ObjectName),
    Slice(Slice),
    NoSlice(ObjectName),
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["a", "b", "c"]
}

fn spec() -> impl Strategy<Value = serde_json::Value> {
    let ports = json!([{"name": "p", "port": 1}, {"name": "q", "port": 2, "protocol": "UDP"}]);
    prop_oneof![
        (0_u8..4).prop_map(move |last| json!({"clusterIP": format!("10.96.0.{last}"), "ports": ports})),
        any::<bool>().prop_map(|all| json!({"clusterIP": "None", "publishNotReadyAddresses": all})),
        name().prop_map(
            |name| json!({"type": "ExternalName", "externalName": format!("{name}.a.svc.cluster.local")})
        ),
        Just(json!({})),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let endpoint = (0_u8..4, proptest::option::of(name()), any::<bool>()).prop_map(|(last, hostname, ready)| {
        json!({"addresses": [format!("10.96.0.{last}")], "hostname": hostname, "conditions": {"ready": ready}})
    });
    let endpoints = proptest::collection::vec(endpoint, 0..4);
    prop_oneof![
        (name(), name(), spec())
            .prop_map(|(namespace, name, spec)| Step::Service(service(&namespace, &name, &spec))),
        (name(), name()).prop_map(|(namespace, name)| Step::NoService(ObjectName::new(&namespace, &name))),
        (name(), name(), name(), endpoints).prop_map(|(namespace, name, of, endpoints)| {
            Step::Slice(slice(&namespace, &name, &of, &json!(endpoints), &json!([{"name": "p", "port": 3}])))
        }),
        (name(), name()).prop_map(|(namespace, name)| Step::NoSlice(ObjectName::new(&namespace, &name))),
    ]
}

proptest! {
    /// Any sequence of changes gives the same index as the objects that are left, and counts what exists.
    #[test]
    fn changes_give_the_index_of_what_is_left(steps in proptest::collection::vec(step(), 0..40)) {
        let mut zone = Zone::new(settings(), 0);
        let mut services = BTreeMap::new();
        let mut slices = BTreeMap::new();
        for step in steps {
            match step {
                Step::Service(object) => {
                    services.insert(object.name.clone(), object.clone());
                    zone.set_service(object);
                }
                Step::NoService(name) => {
                    services.remove(&name);
                    zone.remove_service(&name);
                }
                Step::Slice(object) => {
                    slices.insert(object.name.clone(), object.clone());
                    zone.set_slice(object);
                }
                Step::NoSlice(name) => {
                    slices.remove(&name);
                    zone.remove_slice(&name);
                }
            }
        }
        let mut fresh = Zone::new(settings(), 0);
        for slice in slices.into_values() {
            fresh.set_slice(slice);
        }
        for service in services.into_values() {
            fresh.set_service(service);
        }
        prop_assert_eq!(&zone.namespaces, &fresh.namespaces);
        prop_assert_eq!(&zone.pointers, &fresh.pointers);
        for all in zone.namespaces.values() {
            let visible = all.services.values().filter(|entry| !entry.records.is_empty()).count();
            prop_assert_eq!(all.visible, visible);
        }
    }
}
