use std::collections::BTreeSet;

use futures::executor::block_on;
use portolan_schema::{
    Resource,
    json::{Value, json},
};
use portolan_store::Scope;

use crate::{
    ApiError, Effect,
    api::{Api, Part, Preconditions, WriteOptions},
    config::ApiConfig,
    testing::{api, delete, target},
};

mod concurrent;
mod landing;
mod load_balancer;
mod nodes;
mod unrecorded;

pub(super) fn service(name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    if spec.get("ports").is_none() {
        spec["ports"] = json!([{"port": 80}]);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// Creates a Service and returns its spec.
fn create(api: &Api, name: &str, spec: &Value) -> Result<Value, ApiError> {
    let object = service(name, spec).as_object().unwrap().clone();
    let outcome = api.blocking().create(Resource::Service, "default", object, WriteOptions::default())?;
    let object: Value = serde_json::from_slice(&outcome.object).unwrap();
    Ok(object["spec"].clone())
}

fn refusal(api: &Api, name: &str, spec: &Value) -> (u16, String) {
    let error = create(api, name, spec).unwrap_err();
    (error.code(), error.to_string())
}

fn patch(api: &Api, name: &str, spec: &Value) -> Result<Value, ApiError> {
    let patch = json!({"spec": spec}).as_object().unwrap().clone();
    let options = WriteOptions::default();
    let outcome = api.blocking().merge_patch(target(Resource::Service, name), Part::Main, patch, options)?;
    let object: Value = serde_json::from_slice(&outcome.object).unwrap();
    Ok(object["spec"].clone())
}

pub(super) fn keys(api: &Api, resource: Resource) -> Vec<String> {
    let snapshot = api.store().snapshot(resource, &Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.key().to_owned()).collect()
}

fn stored(api: &Api, resource: Resource, key: &str) -> Value {
    api.store().get(resource, key).unwrap().decode().into()
}

fn last(address: &str) -> u8 {
    address.rsplit('.').next().unwrap().parse().unwrap()
}

#[test]
fn an_address_is_an_object_from_the_same_revision_on() {
    let api = api("10.0.0.0/24,fd00::/112");
    let spec = create(&api, "a", &json!({"ipFamilyPolicy": "RequireDualStack", "type": "NodePort"})).unwrap();
    let addresses: BTreeSet<String> =
        spec["clusterIPs"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect();
    assert_eq!(addresses, keys(&api, Resource::IpAddress).into_iter().collect());
    let first = spec["clusterIP"].as_str().unwrap();
    let object = stored(&api, Resource::IpAddress, first);
    assert_eq!(
        object["metadata"]["labels"],
        json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"})
    );
    let parent = json!({"resource": "services", "namespace": "default", "name": "a"});
    assert_eq!(object["spec"]["parentRef"], parent);
    assert_eq!(keys(&api, Resource::NodePort), [spec["ports"][0]["nodePort"].to_string()]);
    delete(&api, Resource::Service, "a");
    assert_eq!(keys(&api, Resource::IpAddress), Vec::<String>::new());
    assert_eq!(keys(&api, Resource::NodePort), Vec::<String>::new());
    let metrics = api.allocator_metrics();
    assert_eq!(metrics.addresses["10.0.0.0/24"], (0, 254));
    assert_eq!(metrics.ports.0, 0);
    assert_eq!(metrics.addresses_allocated.values().sum::<u64>(), 2);
    assert_eq!(metrics.durations.keys().collect::<Vec<_>>(), ["10.0.0.0/24", "fd00::/112"]);
}

#[test]
fn fourteen_of_the_upper_band_then_the_lower_then_none() {
    let api = api("192.168.1.0/27");
    for number in 1..=30 {
        let spec = create(&api, &format!("s{number}"), &json!({})).unwrap();
        let is_upper = (17..=30).contains(&last(spec["clusterIP"].as_str().unwrap()));
        assert_eq!(is_upper, number <= 14, "{number}: {spec}");
    }
    let (code, message) = refusal(&api, "more", &json!({}));
    assert_eq!(code, 500);
    assert!(message.contains("range is full"), "{message}");
    let tenth = keys(&api, Resource::Service)
        .into_iter()
        .find(|key| stored(&api, Resource::Service, key)["spec"]["clusterIP"] == "192.168.1.10");
    delete(&api, Resource::Service, tenth.unwrap().strip_prefix("default/").unwrap());
    assert_eq!(create(&api, "again", &json!({})).unwrap()["clusterIP"], "192.168.1.10");
}

#[test]
fn explicit_addresses_once_and_never_the_ends() {
    let api = api("10.0.0.0/24");
    for edge in ["10.0.0.0", "10.0.0.255", "10.0.1.1"] {
        let (code, message) = refusal(&api, "edge", &json!({"clusterIP": edge}));
        assert_eq!(code, 422);
        assert!(message.contains("spec.clusterIPs: Invalid value"), "{message}");
    }
    for (name, address) in [("first", "10.0.0.1"), ("last", "10.0.0.254")] {
        create(&api, name, &json!({"clusterIP": address})).unwrap();
        let (code, message) = refusal(&api, "second", &json!({"clusterIP": address}));
        assert_eq!(code, 422);
        assert!(message.contains(&format!("already allocated to Service default/{name}")), "{message}");
    }
}

/// Upstream allocates before it looks whether the name is free.
#[test]
fn what_an_existing_service_holds_is_not_for_a_second_one_of_its_name() {
    let api = api("10.0.0.0/24,fd00::/112");
    let spec = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilyPolicy": "RequireDualStack",
        "type": "NodePort", "ports": [{"port": 80, "nodePort": 30_001}]});
    create(&api, "a", &spec).unwrap();
    let before = (keys(&api, Resource::IpAddress), keys(&api, Resource::NodePort), api.store().revision());
    for (spec, field) in [
        (json!({"clusterIP": "10.0.0.1"}), "spec.clusterIPs"),
        (json!({"clusterIP": "fd00::1"}), "spec.clusterIPs"),
        (json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_001}]}), "spec.ports[0].nodePort"),
    ] {
        let (code, message) = refusal(&api, "a", &spec);
        assert_eq!(code, 422, "{message}");
        assert!(
            message.contains(field) && message.contains("already allocated to Service default/a"),
            "{message}"
        );
    }
    assert_eq!(refusal(&api, "a", &json!({})).0, 409);
    assert_eq!(refusal(&api, "a", &json!({"clusterIP": "10.0.0.9"})).0, 409);
    // Nothing is taken meanwhile.
    assert_eq!(
        (keys(&api, Resource::IpAddress), keys(&api, Resource::NodePort), api.store().revision()),
        before
    );
    create(&api, "b", &json!({"clusterIP": "10.0.0.9"})).unwrap();
}

#[test]
fn create_absent_says_that_the_object_exists() {
    let api = api("10.0.0.0/24");
    create(&api, "a", &json!({"clusterIP": "10.0.0.1"})).unwrap();
    let again = |name: &str, spec: &Value| {
        let object = service(name, spec).as_object().unwrap().clone();
        let options = WriteOptions::default();
        block_on(api.create_absent(Resource::Service, "default", object, options))
            .map_err(|error| error.code())
    };
    assert_eq!(again("a", &json!({"clusterIP": "10.0.0.1"})).unwrap_err(), 409);
    assert_eq!(again("b", &json!({"clusterIP": "10.0.0.1"})).unwrap_err(), 422);
    assert_eq!(again("b", &json!({})).unwrap().effect, Effect::Created);
}

fn service_cidr(api: &Api, name: &str, cidr: &str) {
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
        "spec": {"cidrs": [cidr]}});
    assert_eq!(api.blocking().apply(object).unwrap().effect, Effect::Created);
}

#[test]
fn a_second_service_cidr_widens_the_range_at_once() {
    let api = api("10.0.0.0/28");
    for number in 0..14 {
        create(&api, &format!("a{number}"), &json!({})).unwrap();
    }
    assert_eq!(refusal(&api, "full", &json!({})).0, 500);
    service_cidr(&api, "more", "10.0.0.0/24");
    for number in 0..240 {
        create(&api, &format!("b{number}"), &json!({})).unwrap();
    }
    assert_eq!(refusal(&api, "full", &json!({})).0, 500);
    assert_eq!(api.allocator_metrics().addresses["10.0.0.0/24"], (254, 0));
}

#[test]
fn the_ends_of_a_range_inside_another_are_given_by_the_wider_one() {
    let api = api("192.168.1.0/24");
    let edges = ["192.168.1.0", "192.168.1.255"];
    for edge in edges {
        assert_eq!(refusal(&api, "edge", &json!({"clusterIP": edge})).0, 422);
    }
    service_cidr(&api, "wide", "192.168.0.0/16");
    for edge in edges {
        create(&api, &format!("s{}", last(edge)), &json!({"clusterIP": edge})).unwrap();
    }
}

#[test]
fn changes_of_type_take_and_give_back_in_one_write() {
    let api = api("10.0.0.0/24");
    create(&api, "a", &json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"})).unwrap();
    assert_eq!(keys(&api, Resource::NodePort).len(), 2, "one for the port and one for the health check");
    let spec = patch(&api, "a", &json!({"type": "ClusterIP"})).unwrap();
    assert_eq!(keys(&api, Resource::NodePort), Vec::<String>::new());
    assert_eq!(keys(&api, Resource::IpAddress), [spec["clusterIP"].as_str().unwrap()]);
    let spec = patch(&api, "a", &json!({"type": "ExternalName", "externalName": "a.example"})).unwrap();
    assert_eq!((spec.get("clusterIP"), spec.get("ipFamilies")), (None, None));
    assert_eq!(keys(&api, Resource::IpAddress), Vec::<String>::new());
    let spec = patch(&api, "a", &json!({"type": "NodePort", "externalName": null})).unwrap();
    assert_eq!(keys(&api, Resource::IpAddress), [spec["clusterIP"].as_str().unwrap()]);
    assert_eq!(keys(&api, Resource::NodePort).len(), 1);
    let headless = create(&api, "h", &json!({"clusterIP": "None", "selector": {"a": "b"}})).unwrap();
    assert_eq!(headless["clusterIPs"], json!(["None"]));
    assert_eq!(keys(&api, Resource::IpAddress).len(), 1);
}

#[test]
fn the_second_family_comes_and_goes() {
    let api = api("10.0.0.0/24,fd00::/112");
    create(&api, "a", &json!({})).unwrap();
    let spec = patch(&api, "a", &json!({"ipFamilyPolicy": "PreferDualStack"})).unwrap();
    assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(keys(&api, Resource::IpAddress).len(), 2);
    let spec = patch(&api, "a", &json!({"ipFamilyPolicy": "SingleStack"})).unwrap();
    assert_eq!(keys(&api, Resource::IpAddress), [spec["clusterIP"].as_str().unwrap()]);
}

#[test]
fn node_ports_are_refused_by_their_field() {
    let api = api("10.0.0.0/24");
    let port = |number: u16| json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": number}]});
    create(&api, "a", &port(30_001)).unwrap();
    for (number, part) in [
        (30_001, "provided value is already allocated to Service default/a"),
        (29_999, "provided port is not in the valid range, 30000-32767"),
    ] {
        let (code, message) = refusal(&api, "b", &port(number));
        assert_eq!(code, 422);
        assert!(
            message.contains(&format!("spec.ports[0].nodePort: Invalid value: {number}: {part}")),
            "{message}"
        );
    }
    let twins = json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 1, "nodePort": 30_005}, {"name": "b", "port": 2, "nodePort": 30_005}]});
    let (code, message) = refusal(&api, "b", &twins);
    assert_eq!(code, 422);
    assert!(message.contains("spec.ports[1].nodePort: Duplicate value"), "{message}");
    let both = json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 53, "protocol": "UDP", "nodePort": 30_005},
        {"name": "b", "port": 53, "nodePort": 30_005}]});
    create(&api, "dns", &both).unwrap();
    let health =
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_001});
    assert_eq!(refusal(&api, "lb", &health).0, 500);
    assert_eq!(keys(&api, Resource::NodePort), ["30001", "30005"]);
}

#[test]
fn objects_written_by_hand_count() {
    let api = api("10.0.0.0/28");
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": "10.0.0.5"},
        "spec": {"parentRef": {"group": "gateway.networking.k8s.io", "resource": "gateways", "namespace": "x", "name": "g"}}});
    api.blocking().apply(object).unwrap();
    let (code, message) = refusal(&api, "a", &json!({"clusterIP": "10.0.0.5"}));
    assert_eq!(code, 422);
    assert!(message.contains("already allocated"), "{message}");
    for number in 0..13 {
        create(&api, &format!("s{number}"), &json!({})).unwrap();
    }
    assert_eq!(refusal(&api, "full", &json!({})).0, 500);
    delete(&api, Resource::IpAddress, "10.0.0.5");
    assert_eq!(create(&api, "a", &json!({})).unwrap()["clusterIP"], "10.0.0.5");
    // An address that a Service lists is not allocated again, even if its IPAddress was deleted by hand.
    delete(&api, Resource::IpAddress, "10.0.0.5");
    assert_eq!(refusal(&api, "b", &json!({})).0, 500);
    delete(&api, Resource::Service, "a");
    assert_eq!(create(&api, "b", &json!({})).unwrap()["clusterIP"], "10.0.0.5");
}

#[test]
fn an_address_recorded_for_a_service_must_be_in_a_range() {
    let api = api("10.0.0.0/28");
    for address in ["192.168.5.5", "127.0.0.1", "10.0.0.0", "10.0.0.5"] {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": address},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "a"}}});
        api.blocking().apply(object).unwrap();
    }
    for address in ["192.168.5.5", "127.0.0.1", "10.0.0.0"] {
        let (code, message) = refusal(&api, "a", &json!({"clusterIP": address}));
        assert_eq!(code, 422);
        assert!(message.contains("spec.clusterIPs: Invalid value"), "{message}");
    }
    assert_eq!(create(&api, "a", &json!({"clusterIP": "10.0.0.5"})).unwrap()["clusterIP"], "10.0.0.5");
}

#[test]
fn a_service_that_only_claims_an_address_does_not_free_it() {
    let config =
        ApiConfig { service_ranges: "10.0.0.0/24".parse().unwrap(), validate: false, ..ApiConfig::default() };
    let api = Api::new(&config);
    create(&api, "owner", &json!({"clusterIP": "10.0.0.9"})).unwrap();
    create(&api, "twin", &json!({"clusterIP": "10.0.0.9"})).unwrap();
    delete(&api, Resource::Service, "twin");
    assert_eq!(keys(&api, Resource::IpAddress), ["10.0.0.9"]);
    delete(&api, Resource::Service, "owner");
    assert_eq!(keys(&api, Resource::IpAddress), Vec::<String>::new());
}

#[test]
fn refusals_are_counted_by_range_and_by_how_it_was_asked() {
    let api = api("10.0.0.0/29");
    create(&api, "single", &json!({"clusterIP": "10.0.0.1"})).unwrap();
    create(&api, "plural", &json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"]})).unwrap();
    for number in 0..4 {
        create(&api, &format!("s{number}"), &json!({})).unwrap();
    }
    for address in ["", "10.0.0.3", "10.0.0.7", "10.9.9.9"] {
        create(&api, "x", &json!({"clusterIP": address})).unwrap_err();
    }
    let allocated = api.allocator_metrics().addresses_allocated;
    let scopes: Vec<_> = allocated.iter().map(|((_, scope), count)| (scope.name(), *count)).collect();
    assert_eq!(scopes, [("static", 2), ("dynamic", 4)]);
    let errors = api.allocator_metrics().address_errors;
    let count = |cidr: &str, scope| errors.get(&(cidr.to_owned(), scope)).copied();
    assert_eq!(count("10.0.0.0/29", crate::AllocationScope::Dynamic), Some(1));
    assert_eq!(count("10.0.0.0/29", crate::AllocationScope::Static), Some(2), "held, and broadcast");
    assert_eq!((count("", crate::AllocationScope::Static), errors.len()), (Some(1), 3));
}

#[test]
fn a_restart_reads_who_holds_what() {
    let config = ApiConfig { service_ranges: "10.0.0.0/28".parse().unwrap(), ..ApiConfig::default() };
    let before = Api::new(&config);
    for number in 0..14 {
        create(&before, &format!("s{number}"), &json!({"type": "NodePort"})).unwrap();
    }
    let after = block_on(Api::open(std::sync::Arc::clone(before.store()), &config)).unwrap();
    assert_eq!(refusal(&after, "full", &json!({})).0, 500);
    assert_eq!(after.allocator_metrics().ports.0, 14);
    delete(&after, Resource::Service, "s3");
    create(&after, "new", &json!({})).unwrap();
    // The first server sees the second one's writes, as servers that share a store do.
    assert_eq!(refusal(&before, "full", &json!({})).0, 500);
    assert_eq!(before.allocator_metrics().ports.0, 13);
}
