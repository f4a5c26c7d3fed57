use portolan_schema::json::json;

use super::*;

fn faults(value: Value) -> Vec<String> {
    let Value::Object(mut object) = value else { panic!("an object") };
    set_defaults(&mut object);
    validate(&object, None).iter().map(ToString::to_string).collect()
}

#[test]
fn a_plain_slice_is_fine_and_defaulted() {
    let mut object = json!({"addressType": "IPv4", "ports": [{"port": 80}]}).as_object().unwrap().clone();
    set_defaults(&mut object);
    assert_eq!(
        Value::from(object.clone()),
        json!({"addressType": "IPv4", "endpoints": [], "ports": [{"port": 80, "name": "", "protocol": "TCP"}]})
    );
    assert_eq!(validate(&object, None), []);
}

#[test]
fn ports_have_no_range_as_upstream() {
    for port in [json!(0), json!(70000), json!(-1), json!(null)] {
        assert_eq!(faults(json!({"addressType": "IPv4", "ports": [{"port": port}]})), Vec::<String>::new());
    }
}

#[test]
fn every_bad_field_is_named() {
    let endpoint = |address: &str| json!({"addresses": [address]});
    let slice = json!({
        "addressType": "IPv4",
        "endpoints": [
            endpoint("10.0.0.1"), endpoint("fd00::1"), endpoint("127.0.0.1"), endpoint("010.0.0.1"), {"addresses": []},
            {"addresses": ["10.0.0.2"], "hostname": "A", "nodeName": "_",
             "hints": {"forZones": [{"name": "a"}, {"name": "a"}], "forNodes": [{"name": ""}]}},
        ],
        "ports": [{"name": "a"}, {"name": "a", "protocol": "ICMP"}, {"name": "B"}],
    });
    let fields: Vec<String> =
        faults(slice).iter().map(|fault| fault.split(": ").next().unwrap().to_owned()).collect();
    assert_eq!(
        fields,
        [
            "endpoints[1].addresses[0]",
            "endpoints[2].addresses[0]",
            "endpoints[3].addresses[0]",
            "endpoints[4].addresses",
            "endpoints[5].hostname",
            "endpoints[5].nodeName",
            "endpoints[5].hints.forZones[1].name",
            "endpoints[5].hints.forNodes[0].name",
            "ports[1].name",
            "ports[1].protocol",
            "ports[2].name",
        ]
    );
}

#[test]
fn address_types_and_limits() {
    assert!(faults(json!({}))[0].starts_with("addressType: Required value"));
    assert!(faults(json!({"addressType": "ipv4"}))[0].starts_with("addressType: Unsupported value"));
    let many = vec![json!({"addresses": ["10.0.0.1"]}); 1001];
    let fault = faults(json!({"addressType": "IPv4", "endpoints": many}));
    assert_eq!(fault, ["endpoints: Too many: 1001: must have at most 1000 items"]);
    let address = |kind: &str, text: &str| {
        faults(json!({"addressType": kind, "endpoints": [{"addresses": [text]}]})).is_empty()
    };
    assert!(
        address("IPv6", "fd00::1") && !address("IPv6", "fd00:0::1") && !address("IPv6", "::ffff:1.2.3.4")
    );
    assert!(address("FQDN", "a.example") && !address("FQDN", "a"));
}

#[test]
fn topology_of_old_clients_goes_when_endpoints_change() {
    let slice = |endpoints: Value| json!({"endpoints": endpoints}).as_object().unwrap().clone();
    let old_endpoint =
        json!({"addresses": ["10.0.0.1"], "deprecatedTopology": {"kubernetes.io/hostname": "n1"}});
    let old = slice(json!([old_endpoint]));
    let mut same = old.clone();
    drop_topology(&mut same, Some(&old));
    assert_eq!(same, old);
    let unknown = json!({"addresses": ["10.0.0.2"], "deprecatedTopology": {"kubernetes.io/hostname": "n2"}});
    let mut changed = slice(json!([old_endpoint, unknown]));
    drop_topology(&mut changed, Some(&old));
    let expected = json!([{"addresses": ["10.0.0.1"], "nodeName": "n1"}, {"addresses": ["10.0.0.2"]}]);
    assert_eq!(changed["endpoints"], expected);
    let mut new = slice(json!([unknown]));
    drop_topology(&mut new, None);
    assert_eq!(new["endpoints"], json!([{"addresses": ["10.0.0.2"]}]));
}

#[test]
fn the_address_type_fqdn_causes_a_warning() {
    let slice = |kind: &str| json!({"addressType": kind}).as_object().unwrap().clone();
    assert_eq!(warnings(&slice("FQDN")).len(), 1);
    assert!(warnings(&slice("IPv4")).is_empty());
}
