use portolan_schema::json::json;

use super::*;

fn node(spec: &Value, status: &Value) -> Object {
    let mut object = json!({"spec": spec, "status": status}).as_object().unwrap().clone();
    set_defaults(&mut object);
    object
}

fn faults(object: &Object, old: Option<&Object>) -> Vec<String> {
    validate(object, old).iter().map(FieldError::brief).collect()
}

#[test]
fn ranges_and_amounts_are_completed() {
    let object = node(&json!({"podCIDR": "10.0.0.0/24"}), &json!({"capacity": {"cpu": "4"}}));
    assert_eq!(object["spec"]["podCIDRs"], json!(["10.0.0.0/24"]));
    assert_eq!(object["status"]["allocatable"], json!({"cpu": "4"}));
    let object = node(&json!({"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}), &json!({"allocatable": {}}));
    assert_eq!(object["spec"]["podCIDR"], "10.0.0.0/24");
    assert_eq!(faults(&object, None), Vec::<String>::new());
}

#[test]
fn the_configuration_of_a_kubelet_is_dropped_unless_it_is_stored() {
    let full = json!({"spec": {"configSource": {}, "providerID": "a"}, "status": {"config": {}, "phase": "Running"}});
    let full = full.as_object().unwrap();
    let dropped = |old: Option<&Object>| {
        let mut new = full.clone();
        drop_disabled(&mut new, old);
        new
    };
    let plain = dropped(None);
    assert_eq!(plain["spec"], json!({"providerID": "a"}));
    assert_eq!(plain["status"], json!({"phase": "Running"}));
    assert_eq!(dropped(Some(&plain)), plain);
    assert_eq!(dropped(Some(full)), *full);
}

#[test]
fn each_rule() {
    let taint = |more: Value| {
        let mut taint = json!({"key": "a/b", "effect": "NoSchedule"});
        taint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"taints": [taint]})
    };
    let twice = json!({"key": "a", "effect": "NoExecute"});
    let address = json!({"type": "InternalIP", "address": "192.0.2.1"});
    for (spec, status, fault) in [
        (json!({"podCIDR": "10.0.0.1/24"}), json!({}), "Invalid spec.podCIDRs[0]"),
        (json!({"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]}), json!({}), "Invalid spec.podCIDRs"),
        (json!({"podCIDRs": ["10.0.0.0/24", "fd00::/64", "fd01::/64"]}), json!({}), "Invalid spec.podCIDRs"),
        (json!({"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.0.0/24"]}), json!({}), "Invalid spec.podCIDR"),
        (taint(json!({"key": ""})), json!({}), "Invalid metadata.taints[0].key"),
        (taint(json!({"value": "a b"})), json!({}), "Invalid metadata.taints[0].value"),
        (taint(json!({"effect": ""})), json!({}), "Required metadata.taints[0].effect"),
        (taint(json!({"effect": "Never"})), json!({}), "NotSupported metadata.taints[0].effect"),
        (json!({"taints": [twice, twice]}), json!({}), "Duplicate metadata.taints[1]"),
        (json!({}), json!({"allocatable": {"cpu": "-1"}}), "Invalid status.allocatable.cpu"),
        (
            json!({}),
            json!({"capacity": {"pods": "1500m"}, "allocatable": {"pods": "1"}}),
            "Invalid status.capacity.pods",
        ),
        (
            json!({}),
            json!({"allocatable": {"example.com/gpu": "0.5"}}),
            "Invalid status.allocatable.example.com/gpu",
        ),
    ] {
        assert_eq!(faults(&node(&spec, &status), None), [fault], "{spec} {status}");
    }
    let same = json!({"podCIDRs": ["10.0.0.0/24", "10.0.0.0/24"]});
    let faults_of_same = ["Invalid spec.podCIDRs", "Duplicate spec.podCIDRs[1]"];
    assert_eq!(faults(&node(&same, &json!({})), None), faults_of_same);
    let amounts = json!({"capacity": {"cpu": "1500m", "pods": "110", "hugepages-2Mi": "0", "a.kubernetes.io/b": "0.5"}});
    assert_eq!(faults(&node(&json!({}), &amounts), None), Vec::<String>::new());
    let twice = node(&json!({}), &json!({"addresses": [address, address]}));
    assert_eq!(faults(&twice, None), Vec::<String>::new());
    assert_eq!(faults(&twice, Some(&twice)), ["Duplicate status.addresses[1]"]);
}

#[test]
fn ranges_and_the_provider_are_set_once() {
    let none = node(&json!({}), &json!({}));
    let set = node(&json!({"podCIDR": "10.0.0.0/24", "providerID": "a"}), &json!({}));
    let other = node(&json!({"podCIDR": "10.0.1.0/24", "providerID": "b"}), &json!({}));
    assert_eq!(faults(&set, Some(&none)), Vec::<String>::new());
    assert_eq!(faults(&set, Some(&set)), Vec::<String>::new());
    for changed in [other, none] {
        assert_eq!(faults(&changed, Some(&set)), ["Forbidden spec.podCIDRs", "Forbidden spec.providerID"]);
    }
}
