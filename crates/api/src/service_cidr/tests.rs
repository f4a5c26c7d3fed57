use futures::executor::block_on;
use portolan_schema::{
    Resource,
    json::{Value, json},
};

use super::*;
use crate::{
    ApiConfig, WriteResult,
    testing::{self, delete, get, list, service},
};

fn api() -> Api {
    testing::api("10.0.0.0/24")
}

fn apply(api: &Api, object: Value) -> Result<WriteResult, ApiError> {
    api.blocking().apply(object)
}

fn cidr(name: &str, cidr: &str) -> Value {
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
        "spec": {"cidrs": [cidr]}})
}

fn ready(api: &Api, name: &str) -> Value {
    let cidr = get(api, Resource::ServiceCidr, name).unwrap();
    let condition = &cidr["status"]["conditions"][0];
    assert_eq!(condition["type"], "Ready");
    json!([condition["status"], condition["reason"]])
}

#[test]
fn a_service_cidr_goes_when_nothing_needs_it() {
    let api = api();
    apply(&api, cidr("more", "10.1.0.0/24")).unwrap();
    let stored = get(&api, Resource::ServiceCidr, "more").unwrap();
    assert_eq!(stored["metadata"]["finalizers"], json!(["networking.k8s.io/service-cidr-finalizer"]));
    block_on(sync(&api));
    assert_eq!(ready(&api, "more"), json!(["True", ""]));
    apply(&api, service("a", "10.1.0.7")).unwrap();
    delete(&api, Resource::ServiceCidr, "more");
    assert!(block_on(sync(&api)));
    assert_eq!(ready(&api, "more"), json!(["False", "Terminating"]));
    // A ServiceCIDR that is being deleted allocates no addresses.
    assert_eq!(apply(&api, service("b", "10.1.0.8")).unwrap_err().code(), 422);
    let before = api.store().revision();
    block_on(sync(&api));
    assert_eq!(api.store().revision(), before, "nothing new, nothing written");
    delete(&api, Resource::Service, "a");
    block_on(sync(&api));
    assert_eq!(get(&api, Resource::ServiceCidr, "more"), None);
}

#[test]
fn another_service_cidr_that_stays_frees_one_that_goes() {
    let api = api();
    apply(&api, cidr("narrow", "10.1.1.0/24")).unwrap();
    apply(&api, cidr("twin", "10.1.1.0/24")).unwrap();
    apply(&api, cidr("wide", "10.1.0.0/16")).unwrap();
    apply(&api, service("edge", "10.1.1.0")).unwrap();
    apply(&api, service("inside", "10.1.1.9")).unwrap();
    delete(&api, Resource::ServiceCidr, "wide");
    block_on(sync(&api));
    assert!(get(&api, Resource::ServiceCidr, "wide").is_some(), "the edge has no other");
    delete(&api, Resource::Service, "edge");
    block_on(sync(&api));
    assert_eq!(get(&api, Resource::ServiceCidr, "wide"), None);
    // Two ServiceCIDRs that are deleted together do not justify each other's removal.
    delete(&api, Resource::ServiceCidr, "narrow");
    delete(&api, Resource::ServiceCidr, "twin");
    block_on(sync(&api));
    assert!(get(&api, Resource::ServiceCidr, "narrow").is_some());
    assert!(get(&api, Resource::ServiceCidr, "twin").is_some());
}

#[test]
fn a_range_in_the_way_of_nodes_or_pods_is_refused_with_the_reason() {
    let config = ApiConfig { pod_ranges: vec!["10.200.0.0/16".parse().unwrap()], ..ApiConfig::default() };
    let api = Api::new(&config);
    apply(
        &api,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"podCIDRs": ["10.201.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.168.7.1"}, {"type": "Hostname", "address": "n"}]}}),
    )
    .unwrap();
    for (range, part) in [
        ("10.200.3.0/24", "overlaps 10.200.0.0/16, which is a range of pods"),
        ("10.201.0.0/16", "overlaps 10.201.0.0/24, which is a range of pods"),
        ("192.168.0.0/16", "overlaps 192.168.7.1/32, which is a range of nodes"),
        ("127.0.0.0/24", "loopback"),
        ("169.254.1.0/24", "link-local"),
        ("fd00::/48", "too large"),
        ("10.0.0.1/24", "without host bits"),
    ] {
        let error = apply(&api, cidr("x", range)).unwrap_err();
        assert_eq!(error.code(), 422);
        let text = error.to_string();
        assert!(text.contains("spec.cidrs[0]: Invalid value") && text.contains(part), "{text}");
    }
    apply(&api, cidr("x", "10.202.0.0/16")).unwrap();
    assert!(apply(&api, cidr("x", "10.203.0.0/16")).unwrap_err().to_string().contains("may not change"));
}

#[test]
fn a_node_in_the_way_of_a_range_is_accepted_with_a_warning() {
    let api = api();
    apply(&api, cidr("more", "10.1.0.0/16")).unwrap();
    let node = |address: &str, pods: &str| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"podCIDRs": [pods]},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}})
    };
    let warnings = |object: Value| {
        let object = object.as_object().unwrap().clone();
        let created = api.blocking().create(Resource::Node, "", object, WriteOptions::default()).unwrap();
        delete(&api, Resource::Node, "n");
        created.warnings
    };
    assert_eq!(warnings(node("192.0.2.1", "10.9.0.0/24")), Vec::<String>::new());
    let texts = warnings(node("10.0.0.7", "10.1.2.0/24"));
    let expected = [
        "10.0.0.7/32, an address of the Node, overlaps the range 10.0.0.0/24 of cluster IPs; change one of them",
        "10.1.2.0/24, a range of pods of the Node, overlaps the range 10.1.0.0/16 of cluster IPs; change one of them",
    ];
    assert_eq!(texts, expected);
    // An update warns, too.
    let quiet = node("192.0.2.1", "10.9.0.0/24").as_object().unwrap().clone();
    api.blocking().create(Resource::Node, "", quiet, WriteOptions::default()).unwrap();
    let target = Target { resource: Resource::Node, namespace: "", name: "n" };
    let patch = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]}});
    let patch = patch.as_object().unwrap().clone();
    let change = |part| {
        block_on(api.merge_patch(target, part, patch.clone(), WriteOptions::default())).unwrap().warnings
    };
    assert_eq!(change(Part::Status), expected[..1]);
    delete(&api, Resource::Node, "n");
    // A write of the status warns about nothing that only the spec can change.
    let in_the_way = node("192.0.2.1", "10.1.2.0/24").as_object().unwrap().clone();
    let created = api.blocking().create(Resource::Node, "", in_the_way, WriteOptions::default()).unwrap();
    assert_eq!(created.warnings, expected[1..]);
    assert_eq!(change(Part::Status), expected[..1]);
    assert_eq!(change(Part::Main), expected);
}

#[test]
fn the_default_service_cidr_follows_the_configuration_only_to_a_second_family() {
    let first = api();
    let open = |ranges: &str| {
        let config = ApiConfig { service_ranges: ranges.parse().unwrap(), ..ApiConfig::default() };
        block_on(Api::open(std::sync::Arc::clone(first.store()), &config)).unwrap()
    };
    let cidrs = |api: &Api| get(api, Resource::ServiceCidr, "kubernetes").unwrap()["spec"]["cidrs"].clone();
    let dual = open("10.0.0.0/24,fd00::/112");
    assert_eq!(cidrs(&dual), json!(["10.0.0.0/24", "fd00::/112"]));
    assert_eq!(list(&dual, Resource::Event), Vec::<Value>::new());
    let other = open("10.9.0.0/24");
    assert_eq!(cidrs(&other), json!(["10.0.0.0/24", "fd00::/112"]));
    let events = list(&other, Resource::Event);
    assert_eq!(events[0]["reason"], "KubernetesDefaultServiceCIDRInconsistent");
    block_on(sync(&other));
    let events = list(&other, Resource::Event);
    assert_eq!((events.len(), &events[0]["series"]["count"]), (1, &json!(2)));
}
