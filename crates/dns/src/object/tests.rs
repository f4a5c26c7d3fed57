use serde_json::json;

use super::*;

fn service(spec: &serde_json::Value) -> Service {
    let object = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec});
    let decoded = Service::try_from(&object).unwrap();
    assert_eq!(decoded, Service::decode(object.to_string().as_bytes()).unwrap());
    decoded
}

#[test]
fn a_service_with_cluster_ips_of_both_families() {
    let decoded = service(&json!({
        "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
        "ports": [{"name": "http", "port": 80}, {"port": 53, "protocol": "UDP"}],
    }));
    assert_eq!(decoded.name, ObjectName::new("shop", "web"));
    assert_eq!(
        decoded.kind,
        Kind::ClusterIps(Box::new(["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]))
    );
    assert_eq!(
        *decoded.ports,
        [
            Port { name: "http".into(), protocol: Protocol::Tcp, number: 80 },
            Port { name: "".into(), protocol: Protocol::Udp, number: 53 }
        ]
    );
    assert!(!decoded.publish_not_ready);
}

#[test]
fn kinds() {
    let one = Kind::ClusterIps(Box::new(["10.0.0.1".parse().unwrap()]));
    assert_eq!(service(&json!({"clusterIP": "10.0.0.1"})).kind, one);
    assert_eq!(service(&json!({"clusterIP": "10.0.0.1", "clusterIPs": []})).kind, one);
    assert_eq!(service(&json!({"clusterIP": "None", "clusterIPs": ["None"]})).kind, Kind::Headless);
    assert_eq!(service(&json!({"clusterIP": ""})).kind, Kind::Unallocated);
    assert_eq!(service(&json!({"clusterIP": "no address"})).kind, Kind::Unallocated);
    assert_eq!(service(&json!(null)).kind, Kind::Unallocated);
    let external =
        service(&json!({"type": "ExternalName", "externalName": "www.example.com", "clusterIP": "None"}));
    assert_eq!(external.kind, Kind::ExternalName("www.example.com".into()));
    assert_eq!(service(&json!({"type": "ExternalName"})).kind, Kind::Unallocated);
}

#[test]
fn endpoints_that_are_not_ready_may_be_published() {
    assert!(service(&json!({"publishNotReadyAddresses": true})).publish_not_ready);
    let annotated =
        json!({"metadata": {"name": "a", "namespace": "b", "annotations": {TOLERATE_UNREADY: "true"}}});
    assert!(Service::try_from(&annotated).unwrap().publish_not_ready);
}

#[test]
fn ports_that_cannot_be_used_are_left_out() {
    let decoded = service(&json!({"ports": [
        {"name": "a", "port": 0}, {"name": "b", "port": 65_536}, {"name": "c", "port": 1, "protocol": "X"},
        {"name": "no label", "port": 2}, {"name": "d"}, {"name": "e", "port": 3, "protocol": "SCTP"},
    ]}));
    assert_eq!(*decoded.ports, [Port { name: "e".into(), protocol: Protocol::Sctp, number: 3 }]);
}

#[test]
fn an_endpoint_slice() {
    let decoded = Slice::try_from(&json!({
        "metadata": {"name": "web.x-1", "namespace": "shop", "labels": {SERVICE_LABEL: "web"}},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.1.0.1"], "hostname": "web-0", "conditions": {"ready": true}},
            {"addresses": ["10.1.0.2", "bad"], "hostname": "No Label", "conditions": {"ready": false}},
            {"addresses": ["10.1.0.3"], "conditions": {}},
        ],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    }))
    .unwrap();
    assert_eq!(decoded.name, ObjectName::new("shop", "web.x-1"));
    assert_eq!(decoded.service.as_deref(), Some("web"));
    let found: Vec<_> = decoded
        .endpoints
        .iter()
        .map(|endpoint| (endpoint.addresses.len(), endpoint.hostname.as_deref(), endpoint.ready))
        .collect();
    assert_eq!(found, [(1, Some("web-0"), true), (1, None, false), (1, None, true)]);
    assert_eq!(decoded.ports.len(), 1);
}

#[test]
fn slices_without_service_endpoints_or_addresses() {
    let named = json!({"name": "a", "namespace": "b"});
    let empty = Slice::try_from(&json!({"metadata": named, "endpoints": null, "ports": null})).unwrap();
    assert_eq!((empty.service, empty.endpoints.len(), empty.ports.len()), (None, 0, 0));
    let hosts =
        json!({"metadata": named, "addressType": "FQDN", "endpoints": [{"addresses": ["a.example"]}]});
    assert!(Slice::try_from(&hosts).unwrap().endpoints.is_empty());
}

#[test]
fn objects_without_a_usable_name_are_errors() {
    for metadata in [json!({}), json!({"name": "a"}), json!({"name": "a", "namespace": "B"}), json!(3)] {
        let object = json!({"metadata": metadata});
        assert!(Service::try_from(&object).is_err(), "{object}");
        assert!(Slice::try_from(&object).is_err(), "{object}");
    }
    assert!(Service::try_from(&json!({"metadata": {"name": "A", "namespace": "b"}})).is_err());
    assert!(Service::decode(b"{").is_err());
    assert!(Slice::decode(b"[]").is_err());
}
