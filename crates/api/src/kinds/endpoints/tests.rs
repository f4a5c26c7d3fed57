use portolan_schema::json::json;

use super::*;

fn endpoints(subset: &Value) -> Object {
    let mut object = json!({"subsets": [subset]}).as_object().unwrap().clone();
    set_defaults(&mut object);
    object
}

fn faults(object: &Object, old: Option<&Object>) -> Vec<String> {
    validate(object, old).iter().map(FieldError::brief).collect()
}

#[test]
fn protocols_are_filled_in() {
    let object = endpoints(&json!({"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}));
    assert_eq!(object["subsets"][0]["ports"][0]["protocol"], "TCP");
    assert_eq!(faults(&object, None), Vec::<String>::new());
    let headless =
        endpoints(&json!({"notReadyAddresses": [{"ip": "fd00::1", "nodeName": "n", "hostname": "h"}]}));
    assert_eq!(faults(&headless, None), Vec::<String>::new());
}

#[test]
fn each_rule() {
    let address = |address: Value| json!({"addresses": [{"ip": "10.0.0.1"}, address]});
    let port = |port: Value| json!({"addresses": [{"ip": "10.0.0.1"}], "ports": [port]});
    let ports =
        |other: Value| json!({"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 1, "name": "a"}, other]});
    for (subset, fault) in [
        (json!({"ports": [{"port": 80}]}), "Required subsets[0]"),
        (address(json!({})), "Invalid subsets[0].addresses[1].ip"),
        (address(json!({"ip": "010.0.0.1"})), "Invalid subsets[0].addresses[1].ip"),
        (address(json!({"ip": "0.0.0.0"})), "Invalid subsets[0].addresses[1].ip"),
        (address(json!({"ip": "127.0.0.1"})), "Invalid subsets[0].addresses[1].ip"),
        (address(json!({"ip": "fe80::1"})), "Invalid subsets[0].addresses[1].ip"),
        (address(json!({"ip": "224.0.0.1"})), "Invalid subsets[0].addresses[1].ip"),
        (address(json!({"ip": "10.0.0.2", "hostname": "A"})), "Invalid subsets[0].addresses[1].hostname"),
        (address(json!({"ip": "10.0.0.2", "nodeName": "_"})), "Invalid subsets[0].addresses[1].nodeName"),
        (json!({"notReadyAddresses": [{"ip": "x"}]}), "Invalid subsets[0].notReadyAddresses[0].ip"),
        (port(json!({})), "Invalid subsets[0].ports[0].port"),
        (port(json!({"port": 70000})), "Invalid subsets[0].ports[0].port"),
        (port(json!({"port": 80, "protocol": "ICMP"})), "NotSupported subsets[0].ports[0].protocol"),
        (port(json!({"port": 80, "name": "A"})), "Invalid subsets[0].ports[0].name"),
        (port(json!({"port": 80, "appProtocol": "a b"})), "Invalid subsets[0].ports[0].appProtocol"),
        (ports(json!({"port": 2})), "Required subsets[0].ports[1].name"),
    ] {
        assert_eq!(faults(&endpoints(&subset), None), [fault], "{subset}");
    }
}

#[test]
fn stored_subsets_are_not_validated_again() {
    let bad = endpoints(&json!({"addresses": [{"ip": "127.0.0.1"}]}));
    assert_eq!(faults(&bad, Some(&bad)), Vec::<String>::new());
    let worse = endpoints(&json!({"addresses": [{"ip": "127.0.0.2"}]}));
    assert_eq!(faults(&worse, Some(&bad)).len(), 1);
}
