use insta::assert_snapshot;
use serde_json::{Value, json};

use super::*;
use crate::object::{Object, decode_endpoint_slice};

#[expect(clippy::needless_pass_by_value, reason = "`json!` makes values")]
fn slice(extra: Value) -> Object<EndpointSlice> {
    let mut object = json!({
        "metadata": {
            "namespace": "ns", "name": "web-abc",
            "labels": { "kubernetes.io/service-name": "web" },
            "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": "1970-01-01T00:00:01Z" },
        },
        "addressType": "IPv4",
    });
    for (key, value) in extra.as_object().expect("an object") {
        object[key] = value.clone();
    }
    decode_endpoint_slice(object.to_string().as_bytes()).expect("decodes")
}

fn faults(object: &Object<EndpointSlice>) -> String {
    object.faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn all_fields_are_decoded() {
    let object = slice(json!({
        "ports": [{ "name": "", "port": 8080 }, { "name": "dns", "protocol": "UDP", "port": 53 }],
        "endpoints": [
            {
                "addresses": ["10.0.0.1", "10.0.0.99"],
                "nodeName": "n1",
                "zone": "z1",
                "targetRef": { "kind": "Pod", "name": "x" },
                "conditions": { "ready": false, "serving": true, "terminating": true },
                "hints": { "forZones": [{ "name": "z1" }, { "name": "z2" }], "forNodes": [{ "name": "n1" }] },
            },
            { "addresses": ["10.0.0.2"], "conditions": { "ready": null } },
            { "addresses": ["010.0.0.3"], "conditions": { "ready": false }, "hints": { "forZones": [] } },
        ],
    }));
    assert_eq!(faults(&object), "");
    let slice = &object.payload;
    assert_eq!((slice.service.as_deref(), slice.headless), (Some("web"), false));
    assert_eq!((slice.family, slice.trigger_time), (Some(Family::Ipv4), Some(1_000_000_000)));
    assert_eq!(slice.ports.len(), 2);
    let [first, second, third] = &*slice.endpoints else { panic!("three endpoints") };
    assert_eq!(slice.node(first), Some("n1"));
    assert_eq!(slice.zone_hints(first).collect::<Vec<_>>(), ["z1", "z2"]);
    assert_eq!(slice.node_hints(first).collect::<Vec<_>>(), ["n1"]);
    assert_eq!((first.ready, first.serving, first.terminating), (false, true, true));
    assert_eq!((second.ready, second.serving, second.terminating), (true, true, false));
    assert_eq!((slice.node(second), slice.zone_hints(second).count()), (None, 0));
    assert_eq!((third.ready, third.serving), (false, true));
    assert_eq!(third.address, IpAddr::from([10, 0, 0, 3]));
    assert_eq!(slice.names.len(), 3, "each name is held once");
}

#[test]
fn bad_ports_and_endpoints_are_left_out_and_named() {
    let object = slice(json!({
        "ports": [
            { "name": "zero", "port": 0 }, { "name": "null", "port": null }, { "name": "minus", "port": -1 },
            { "name": "big", "port": 70000 }, { "port": 80 }, { "name": "text", "port": "80" },
            { "name": "half", "port": 80.5 }, { "name": "huge", "port": u64::MAX },
            { "name": "good", "port": 80, "protocol": null },
        ],
        "endpoints": [
            { "addresses": ["2001:db8::1"] }, { "addresses": [] }, {}, { "addresses": ["x"] }, 5,
            { "addresses": "10.0.0.1" }, { "addresses": [7] }, { "addresses": ["10.0.0.1%eth0"] },
            { "addresses": ["::ffff:10.0.0.9"], "conditions": [], "nodeName": {}, "hints": { "forZones": [1] } },
        ],
    }));
    assert_eq!(object.payload.ports.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["good"]);
    assert_eq!(object.payload.endpoints.len(), 1);
    assert_eq!(object.payload.endpoints[0].address, IpAddr::from([10, 0, 0, 9]));
    assert_snapshot!(faults(&object), @r#"
    ports[0].port: 0 is not a port; write 1 to 65535
    ports[1].port: is missing; write 1 to 65535 (a slice for all ports is not supported)
    ports[2].port: -1 is not a port; write 1 to 65535
    ports[3].port: 70000 is not a port; write 1 to 65535
    ports[4].name: is missing; write the name of the Service port, or ""
    ports[5].port: is text; write a number from 1 to 65535
    ports[6].port: is not a whole number; write a number from 1 to 65535
    ports[7].port: 9223372036854775807 is not a port; write 1 to 65535
    endpoints[0].addresses[0]: 2001:db8::1 is not IPv4; make it agree with addressType
    endpoints[1].addresses[0]: is missing; write an IPv4 address
    endpoints[2].addresses[0]: is missing; write an IPv4 address
    endpoints[3].addresses[0]: "x" is not an IP address; write one such as 10.0.0.1
    endpoints[4]: is a number; write an object
    endpoints[5].addresses: is text; write a list of addresses
    endpoints[6].addresses[0]: is a number; write an IP address
    endpoints[7].addresses[0]: "10.0.0.1%eth0" is not an IP address; write one such as 10.0.0.1
    endpoints[8].conditions: is a list; write an object
    endpoints[8].nodeName: is an object; write a node name
    endpoints[8].hints.forZones[0]: is a number; write an object with a name
    "#);
}

#[test]
fn fqdn_and_headless_slices_are_passed_over_in_silence() {
    let fqdn = slice(json!({ "addressType": "FQDN", "endpoints": [{ "addresses": ["a.example.net"] }] }));
    assert_eq!((fqdn.payload.family, fqdn.faults.len()), (None, 0));
    let metadata = json!({
        "namespace": "ns", "name": "web-abc",
        "labels": { "kubernetes.io/service-name": "web", "service.kubernetes.io/headless": "" },
    });
    let headless = slice(json!({ "metadata": metadata, "endpoints": [{ "addresses": ["bad"] }] }));
    assert!(headless.payload.headless && headless.payload.endpoints.is_empty());
    assert_eq!(headless.faults, []);
    let strange = slice(json!({ "addressType": "Carrier" }));
    assert_eq!((strange.payload.family, strange.faults.len()), (None, 1));
}

#[test]
fn ten_thousand_addresses_in_one_slice() {
    let endpoints: Vec<Value> = (0..10_000_u32)
        .map(|n| {
            let address = std::net::Ipv4Addr::from(0x0A00_0000 + n);
            json!({ "addresses": [address], "nodeName": format!("node-{n}") })
        })
        .collect();
    let object = slice(json!({ "ports": [{ "name": "", "port": 80 }], "endpoints": endpoints }));
    assert_eq!(object.faults, []);
    assert_eq!(object.payload.endpoints.len(), 10_000);
    let last = object.payload.endpoints.last().expect("an endpoint");
    assert_eq!(object.payload.node(last), Some("node-9999"));
}

#[test]
fn the_list_of_faults_is_bounded() {
    let endpoints: Vec<Value> = (0..10_000).map(|_| json!({ "addresses": ["bad"] })).collect();
    let object = slice(json!({ "endpoints": endpoints }));
    assert_eq!(object.faults.len(), 33);
}

#[test]
fn an_endpoint_is_small() {
    assert!(size_of::<SliceEndpoint>() <= 32, "{}", size_of::<SliceEndpoint>());
}
