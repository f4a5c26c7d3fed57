use serde_json::json;

use super::*;

fn service(spec: &serde_json::Value) -> Service {
    Service::try_from(&json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec})).unwrap()
}

fn slice(endpoints: &serde_json::Value, ports: &serde_json::Value) -> Slice {
    Slice::try_from(&json!({
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": endpoints, "ports": ports,
    }))
    .unwrap()
}

fn ips(texts: &[&str]) -> Box<[IpAddr]> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn srv(protocol: Protocol, port: &str, number: u16, host: Option<&str>) -> Srv {
    Srv { protocol, port: port.into(), number, host: host.map(Into::into) }
}

#[test]
fn cluster_ips_have_addresses_named_ports_and_pointers() {
    let records = Records::of(
        &service(&json!({
            "clusterIPs": ["fd00::1", "10.0.0.1"],
            "ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}],
        })),
        [],
    );
    assert_eq!(records.addresses, ips(&["10.0.0.1", "fd00::1"]));
    assert_eq!(*records.srv, [srv(Protocol::Tcp, "http", 80, None), srv(Protocol::Udp, "dns", 53, None)]);
    assert!(records.hosts.is_empty());
    let pointers: Vec<_> = records.pointers().collect();
    assert_eq!(pointers, [("10.0.0.1".parse().unwrap(), None), ("fd00::1".parse().unwrap(), None)]);
}

#[test]
fn unnamed_ports_have_no_srv_record() {
    let records = Records::of(&service(&json!({"clusterIP": "10.0.0.1", "ports": [{"port": 80}]})), []);
    assert!(records.srv.is_empty());
    let endpoints = slice(&json!([{"addresses": ["10.1.0.1"]}]), &json!([{"name": "", "port": 80}]));
    assert!(Records::of(&service(&json!({"clusterIP": "None"})), [&endpoints]).srv.is_empty());
}

#[test]
fn a_headless_service_has_its_ready_endpoints() {
    let endpoints = slice(
        &json!([
            {"addresses": ["10.1.0.2"], "hostname": "web-0"},
            {"addresses": ["10.1.0.1"]},
            {"addresses": ["10.1.0.3"], "conditions": {"ready": false}},
        ]),
        &json!([{"name": "http", "port": 8080}]),
    );
    let records = Records::of(&service(&json!({"clusterIP": "None"})), [&endpoints]);
    assert_eq!(records.addresses, ips(&["10.1.0.1", "10.1.0.2"]));
    let hosts: Vec<_> = records.hosts.iter().map(|(host, addresses)| (&**host, addresses.clone())).collect();
    assert_eq!(hosts, [("10-1-0-1", ips(&["10.1.0.1"])), ("web-0", ips(&["10.1.0.2"]))]);
    let expected = ["10-1-0-1", "web-0"].map(|host| srv(Protocol::Tcp, "http", 8080, Some(host)));
    assert_eq!(*records.srv, expected);
    let pointers: Vec<_> =
        records.pointers().map(|(ip, host)| (ip.to_string(), host.map(|host| &**host))).collect();
    assert_eq!(pointers, [("10.1.0.1".to_owned(), Some("10-1-0-1")), ("10.1.0.2".to_owned(), Some("web-0"))]);

    let all =
        Records::of(&service(&json!({"clusterIP": "None", "publishNotReadyAddresses": true})), [&endpoints]);
    assert_eq!(all.addresses, ips(&["10.1.0.1", "10.1.0.2", "10.1.0.3"]));
}

#[test]
fn one_host_in_slices_of_both_families_has_one_srv_record() {
    let ports = json!([{"name": "http", "port": 80}]);
    let v4 = slice(&json!([{"addresses": ["10.1.0.1"], "hostname": "web-0"}]), &ports);
    let v6 = slice(&json!([{"addresses": ["fd00::1"], "hostname": "web-0"}]), &ports);
    let records = Records::of(&service(&json!({"clusterIP": "None"})), [&v6, &v4]);
    assert_eq!(records.srv.len(), 1);
    assert_eq!(records.hosts.get("web-0"), Some(&ips(&["10.1.0.1", "fd00::1"])));
}

#[test]
fn srv_records_are_found_by_protocol_and_port() {
    let spec = json!({"clusterIP": "10.0.0.1", "ports": [
        {"name": "a", "port": 1}, {"name": "b", "port": 2}, {"name": "b", "port": 3, "protocol": "UDP"},
    ]});
    let records = Records::of(&service(&spec), []);
    let numbers = |protocol, port: &str| -> Vec<u16> {
        records.srv_of(protocol, port).iter().map(|srv| srv.number).collect()
    };
    assert_eq!(numbers(Protocol::Tcp, "a"), [1]);
    assert_eq!(numbers(Protocol::Tcp, "b"), [2]);
    assert_eq!(numbers(Protocol::Udp, "b"), [3]);
    assert!(numbers(Protocol::Udp, "a").is_empty());
    assert!(numbers(Protocol::Tcp, "").is_empty());
    assert!(numbers(Protocol::Sctp, "z").is_empty());
    assert!(records.has_protocol(Protocol::Udp) && !records.has_protocol(Protocol::Sctp));
}

#[test]
fn names_of_endpoints_without_hostname() {
    for (address, name) in [
        ("10.1.2.3", "10-1-2-3"),
        ("2001:db8::7", "2001-db8--7"),
        ("fd00::", "fd00--0"),
        ("::1", "0--1"),
        ("::ffff:1.2.3.4", "0--ffff-1-2-3-4"),
    ] {
        assert_eq!(&*dashed(address.parse().unwrap()), name);
    }
}

#[test]
fn external_names() {
    let alias = |name: &str| {
        let spec = json!({"type": "ExternalName", "externalName": name});
        Records::of(&service(&spec), []).alias.map(|name| name.to_ascii())
    };
    for name in ["www.example.com", "www.example.com."] {
        assert_eq!(alias(name).as_deref(), Some("www.example.com."));
    }
    let long = "a.".repeat(128);
    for name in ["", ".", "10.0.0.1", "fd00::1", "a..b", "é.example", &"a".repeat(64), &long] {
        assert_eq!(alias(name), None, "{name}");
    }
    assert!(Records::of(&service(&json!({"clusterIP": ""})), []).is_empty());
}
