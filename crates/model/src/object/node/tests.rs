use serde_json::json;

use super::*;
use crate::object::{decode_node, decode_service_cidr};

#[test]
fn a_node() {
    let object = json!({
        "metadata": {
            "name": "n1",
            "labels": { "topology.kubernetes.io/zone": "z1" },
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "podCIDRs": ["10.244.1.0/24", "2001:db8:1::/64"],
            "taints": [{ "key": "other" }, { "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }],
        },
        "status": { "addresses": [
            { "type": "ExternalIP", "address": "192.0.2.1" },
            { "type": "Hostname", "address": "n1" },
            { "type": "InternalIP", "address": "10.0.0.1" },
            { "type": "InternalIP", "address": "n1.example.net" },
            { "type": "InternalIP", "address": "2001:db8::1" },
        ] },
    });
    let object = decode_node(object.to_string().as_bytes()).expect("decodes");
    let node = &object.payload;
    assert_eq!(node.zone.as_deref(), Some("z1"));
    assert_eq!(node.internal_addresses.len(), 2);
    assert_eq!(node.external_addresses, [IpAddr::from([192, 0, 2, 1])]);
    assert_eq!(node.pod_cidrs.len(), 2);
    assert!(node.deleting && node.to_be_deleted && !node.eligible());
    assert_eq!(object.faults.len(), 1);
    assert_eq!(&*object.faults[0].field, "status.addresses[3].address");
}

#[test]
fn a_bare_node_is_eligible() {
    let object = json!({ "metadata": { "name": "n1", "labels": { "topology.kubernetes.io/zone": "" } } });
    let object = decode_node(object.to_string().as_bytes()).expect("decodes");
    assert_eq!(object.payload, Node::default());
    assert!(object.payload.eligible());
}

#[test]
fn a_service_cidr() {
    let object = json!({
        "metadata": { "name": "kubernetes", "namespace": "ignored" },
        "spec": { "cidrs": ["10.96.0.0/12", "2001:db8::/108", "bad"] },
    });
    let object = decode_service_cidr(object.to_string().as_bytes()).expect("decodes");
    assert_eq!((object.payload.cidrs.len(), object.faults.len()), (2, 1));
    assert_eq!(object.key.to_string(), "kubernetes");
}
