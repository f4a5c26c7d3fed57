use portolan_schema::{Resource, json::json};
use portolan_store::{Draft, Transaction};

use super::*;
use crate::{
    api::{Api, Part, Target, WriteOptions},
    config::ApiConfig,
    error::ApiError,
};

fn spec_of(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

/// Returns the spec after a create, or an update of `old`, and the fields that are wrong.
fn prepared(spec: Value, old: Option<Value>, configured: &[&'static str]) -> (Value, Vec<String>) {
    let ranges = configured.iter().map(|family| if *family == "IPv4" { "10.0.0.0/24" } else { "fd00::/112" });
    let service_ranges = ranges.collect::<Vec<_>>().join(",").parse().unwrap();
    let api = Api::new(&ApiConfig { service_ranges, ..ApiConfig::default() });
    let wrap = |spec: Value| {
        json!({"metadata": {"namespace": "default", "name": "a"}, "spec": spec}).as_object().unwrap().clone()
    };
    let options = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let result = if let Some(old) = old {
        let stored = Draft::new(Resource::Service, &wrap(old));
        api.blocking().commit(Transaction::put(Resource::Service, stored, None)).unwrap();
        let target = Target { resource: Resource::Service, namespace: "default", name: "a" };
        api.blocking().update(target, Part::Main, wrap(spec), options)
    } else {
        api.blocking().create(Resource::Service, "default", wrap(spec), options)
    };
    match result {
        Ok(outcome) => {
            let object: Value = serde_json::from_slice(&outcome.object).unwrap();
            (object["spec"].clone(), Vec::new())
        }
        Err(ApiError::Invalid { errors, .. }) => {
            (Value::Null, errors.into_iter().map(|error| error.field).collect())
        }
        Err(error) => panic!("{error}"),
    }
}

fn faults(spec: Value) -> Vec<String> {
    prepared(spec, None, &["IPv4", "IPv6"]).1
}

fn with(base: Value, more: &Value) -> Value {
    let mut spec = spec_of(base);
    spec.extend(more.as_object().unwrap().clone());
    spec.into()
}

fn plain() -> Value {
    json!({"ports": [{"port": 80}]})
}

#[test]
fn defaults_of_a_plain_service() {
    let (mut spec, faults) = prepared(plain(), None, &["IPv4"]);
    assert_eq!(faults, Vec::<String>::new());
    let object = spec.as_object_mut().unwrap();
    let address = object.remove("clusterIP").unwrap();
    assert_eq!(object.remove("clusterIPs").unwrap(), json!([address]));
    assert_eq!(
        spec,
        json!({
            "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        })
    );
}

#[test]
fn defaults_by_type_and_affinity() {
    let (spec, _) = prepared(with(plain(), &json!({"type": "LoadBalancer"})), None, &["IPv4"]);
    assert_eq!(spec["externalTrafficPolicy"], "Cluster");
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    let (spec, _) = prepared(with(plain(), &json!({"externalIPs": ["192.0.2.1"]})), None, &["IPv4"]);
    assert_eq!(spec["externalTrafficPolicy"], "Cluster");
    let (spec, _) = prepared(with(plain(), &json!({"sessionAffinity": "ClientIP"})), None, &["IPv4"]);
    assert_eq!(spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10_800);
    let (spec, _) = prepared(json!({"type": "ExternalName", "externalName": "a.example."}), None, &["IPv4"]);
    assert_eq!((spec.get("internalTrafficPolicy"), spec.get("ipFamilies")), (None, None));
}

#[test]
fn families_follow_the_table_of_policies() {
    let decided = |policy: Option<&str>, families: &[&str], configured: &[&'static str]| {
        let mut spec = spec_of(plain());
        if let Some(policy) = policy {
            spec.insert("ipFamilyPolicy".to_owned(), policy.into());
        }
        if !families.is_empty() {
            spec.insert("ipFamilies".to_owned(), json!(families));
        }
        let (spec, faults) = prepared(spec.into(), None, configured);
        if faults.is_empty() {
            json::texts(&spec_of(spec), "ipFamilies").map(|it| it.replace("IPv", "")).collect::<String>()
        } else {
            "E".to_owned()
        }
    };
    let clusters: [&[&'static str]; 4] = [&["IPv4"], &["IPv6"], &["IPv4", "IPv6"], &["IPv6", "IPv4"]];
    for (policy, families, expected) in [
        (None, &[][..], ["4", "6", "4", "6"]),
        (Some("SingleStack"), &["IPv4"], ["4", "E", "4", "4"]),
        (Some("SingleStack"), &["IPv4", "IPv6"], ["E", "E", "E", "E"]),
        (Some("PreferDualStack"), &[], ["4", "6", "46", "64"]),
        (Some("PreferDualStack"), &["IPv6"], ["E", "6", "64", "64"]),
        (Some("PreferDualStack"), &["IPv4", "IPv6"], ["E", "E", "46", "46"]),
        (Some("RequireDualStack"), &[], ["E", "E", "46", "64"]),
        (Some("RequireDualStack"), &["IPv4"], ["E", "E", "46", "46"]),
    ] {
        let got = clusters.map(|configured| decided(policy, families, configured));
        assert_eq!(got, expected, "{policy:?} {families:?}");
    }
}

#[test]
fn a_headless_service_without_selector_has_both_families_everywhere() {
    let (spec, faults) = prepared(json!({"clusterIP": "None"}), None, &["IPv4"]);
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(spec["clusterIPs"], json!(["None"]));
}

#[test]
fn every_bad_field_is_named() {
    let port = |more: Value| json!({"ports": [with(json!({"port": 80}), &more)]});
    for (spec, field) in [
        (json!({}), "spec.ports"),
        (port(json!({"port": 0})), "spec.ports[0].port"),
        (port(json!({"port": 70000})), "spec.ports[0].port"),
        (port(json!({"protocol": "ICMP"})), "spec.ports[0].protocol"),
        (port(json!({"targetPort": 70000})), "spec.ports[0].targetPort"),
        (port(json!({"targetPort": "Not_a_name"})), "spec.ports[0].targetPort"),
        (port(json!({"nodePort": 30000})), "spec.ports[0].nodePort"),
        (port(json!({"appProtocol": "a b"})), "spec.ports[0].appProtocol"),
        (json!({"ports": [{"port": 1, "name": "a"}, {"port": 2}]}), "spec.ports[1].name"),
        (json!({"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]}), "spec.ports[1].name"),
        (json!({"ports": [{"port": 1, "name": "a"}, {"port": 1, "name": "b"}]}), "spec.ports[1]"),
        (with(plain(), &json!({"type": "Other"})), "spec.type"),
        (with(plain(), &json!({"clusterIP": "300.0.0.1"})), "spec.clusterIPs[0]"),
        (with(plain(), &json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"]})), "spec.clusterIPs"),
        (with(plain(), &json!({"clusterIP": "10.0.0.1", "ipFamilies": ["IPv6"]})), "spec.clusterIPs[0]"),
        (with(plain(), &json!({"ipFamilies": ["IPv5"]})), "spec.ipFamilies[0]"),
        (with(plain(), &json!({"clusterIP": "None", "type": "NodePort"})), "spec.clusterIPs[0]"),
        (with(plain(), &json!({"sessionAffinity": "Cookie"})), "spec.sessionAffinity"),
        (
            with(
                plain(),
                &json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}),
            ),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        ),
        (with(plain(), &json!({"externalIPs": ["127.0.0.1"]})), "spec.externalIPs[0]"),
        (with(plain(), &json!({"externalTrafficPolicy": "Local"})), "spec.externalTrafficPolicy"),
        (with(plain(), &json!({"internalTrafficPolicy": "Near"})), "spec.internalTrafficPolicy"),
        (
            with(plain(), &json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]})),
            "spec.LoadBalancerSourceRanges",
        ),
        (
            with(plain(), &json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.1/8"]})),
            "spec.LoadBalancerSourceRanges[0]",
        ),
        (with(plain(), &json!({"healthCheckNodePort": 30000})), "spec.healthCheckNodePort"),
        (with(plain(), &json!({"trafficDistribution": "Far"})), "spec.trafficDistribution"),
        (with(plain(), &json!({"selector": {"a": "b c"}})), "spec.selector"),
        (json!({"type": "ExternalName"}), "spec.externalName"),
        (json!({"type": "ExternalName", "externalName": "a", "clusterIP": "10.0.0.1"}), "spec.clusterIPs"),
        (port(json!({"appProtocol": ""})), "spec.ports[0].appProtocol"),
        (with(plain(), &json!({"ipFamilyPolicy": ""})), "spec.ipFamilyPolicy"),
        (with(plain(), &json!({"internalTrafficPolicy": ""})), "spec.internalTrafficPolicy"),
        (with(plain(), &json!({"trafficDistribution": ""})), "spec.trafficDistribution"),
        (with(plain(), &json!({"type": "LoadBalancer", "loadBalancerClass": ""})), "spec.loadBalancerClass"),
    ] {
        assert_eq!(faults(spec.clone()).first().map(String::as_str), Some(field), "{spec}");
    }
}

fn stored(more: &Value) -> Value {
    let base = json!({
        "type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80}],
    });
    with(base, more)
}

#[test]
fn an_update_keeps_allocated_values_that_the_client_left_out() {
    let old = stored(&json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 1, "nodePort": 30001}, {"name": "b", "port": 2, "nodePort": 30002}]}));
    let new = json!({"type": "NodePort", "ports": [
        {"name": "b", "port": 2}, {"name": "c", "port": 3, "nodePort": 30001}, {"name": "a", "port": 1}]});
    let (spec, faults) = prepared(new, Some(old), &["IPv4"]);
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(spec["clusterIP"], "10.0.0.1");
    assert_eq!(spec["ports"][0]["nodePort"], 30002);
    assert_ne!(spec["ports"][2]["nodePort"], 30001, "another port of the new object uses it");
    assert_ne!(spec["ports"][2]["nodePort"], Value::Null);
}

#[test]
fn changes_of_type_clear_what_no_longer_fits() {
    let old = stored(
        &json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30005,
        "allocateLoadBalancerNodePorts": true, "ports": [{"port": 80, "nodePort": 30001}]}),
    );
    let mut new = spec_of(old.clone());
    new.insert("type".to_owned(), "ClusterIP".into());
    let (spec, faults) = prepared(new.into(), Some(old.clone()), &["IPv4"]);
    assert_eq!(faults, Vec::<String>::new());
    for key in ["externalTrafficPolicy", "healthCheckNodePort", "allocateLoadBalancerNodePorts"] {
        assert_eq!(spec.get(key), None, "{key}");
    }
    assert_eq!(spec["ports"][0].get("nodePort"), None);
    let mut new = spec_of(old.clone());
    new.extend(spec_of(
        json!({"type": "ExternalName", "externalName": "a.example", "ports": [{"port": 80}]}),
    ));
    for key in ["externalTrafficPolicy", "healthCheckNodePort", "allocateLoadBalancerNodePorts"] {
        new.remove(key);
    }
    let (spec, faults) = prepared(new.into(), Some(old), &["IPv4"]);
    assert_eq!(faults, Vec::<String>::new());
    for key in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
        assert_eq!(spec.get(key), None, "{key}");
    }
}

#[test]
fn the_first_address_and_family_are_fixed() {
    let change = |more: Value| prepared(stored(&more), Some(stored(&json!({}))), &["IPv4", "IPv6"]).1;
    assert_eq!(change(json!({"clusterIP": "10.0.0.2"})), ["spec.clusterIPs[0]"]);
    assert_eq!(change(json!({"clusterIP": "None", "clusterIPs": ["None"]})), ["spec.clusterIPs[0]"]);
    assert_eq!(change(json!({"ipFamilyPolicy": "PreferDualStack"})), Vec::<String>::new());
}

#[test]
fn the_second_family_goes_only_with_single_stack() {
    let dual = json!({"clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "PreferDualStack"});
    let change = |more: Value| prepared(with(stored(&dual), &more), Some(stored(&dual)), &["IPv4", "IPv6"]);
    let (spec, faults) = change(json!({"ipFamilyPolicy": "SingleStack"}));
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!((&spec["clusterIPs"], &spec["ipFamilies"]), (&json!(["10.0.0.1"]), &json!(["IPv4"])));
    let (_, faults) = change(json!({"clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]}));
    assert_eq!(faults, ["spec.ipFamilyPolicy"]);
}

#[test]
fn annotations_follow_the_rules_of_the_fields_they_stand_for() {
    const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    const MODE: &str = "service.kubernetes.io/topology-mode";
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    let faults = |annotations: &Value, kind: &str| {
        let object =
            json!({"metadata": {"annotations": annotations}, "spec": with(plain(), &json!({"type": kind}))});
        let errors = validate(object.as_object().unwrap(), None);
        errors.iter().map(|error| (format!("{:?}", error.reason), error.field.clone())).collect::<Vec<_>>()
    };
    let fault = |reason: &str, name: &str| {
        vec![(format!("FieldValue{reason}"), format!("metadata.annotations[{name}]"))]
    };
    for (annotations, kind, expected) in [
        (json!({RANGES: "10.0.0.0/8, fd00::/8"}), "LoadBalancer", vec![]),
        (json!({RANGES: " "}), "LoadBalancer", vec![]),
        (json!({RANGES: "10.0.0.1/8"}), "LoadBalancer", fault("Invalid", RANGES)),
        (json!({RANGES: "10.0.0.0/8"}), "NodePort", fault("Forbidden", RANGES)),
        (json!({MODE: "Auto", HINTS: "Auto"}), "ClusterIP", vec![]),
        (json!({MODE: "Auto", HINTS: "disabled"}), "ClusterIP", fault("Invalid", MODE)),
    ] {
        assert_eq!(faults(&annotations, kind), expected, "{annotations} {kind}");
    }
}

#[test]
fn the_mode_of_an_ingress_address_is_said() {
    let faults = |ingress: Value| {
        let object = json!({"spec": with(plain(), &json!({"type": "LoadBalancer"})),
            "status": {"loadBalancer": {"ingress": [ingress]}}});
        let errors = validate(object.as_object().unwrap(), None);
        errors.into_iter().map(|error| error.field).collect::<Vec<_>>()
    };
    assert_eq!(faults(json!({"ip": "192.0.2.1", "ipMode": "VIP"})), Vec::<String>::new());
    for (ingress, key) in [
        (json!({"ip": "192.0.2.1"}), "ipMode"),
        (json!({"ip": "192.0.2.1", "ipMode": "Other"}), "ipMode"),
        (json!({"hostname": "a.example", "ipMode": "VIP"}), "ipMode"),
        (json!({"ip": "192.0.2.01", "ipMode": "VIP"}), "ip"),
        (json!({"hostname": "192.0.2.1"}), "hostname"),
    ] {
        assert_eq!(faults(ingress.clone()), [format!("status.loadBalancer.ingress[0].{key}")], "{ingress}");
    }
}
