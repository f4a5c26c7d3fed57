use futures::executor::block_on;
use portolan_schema::json::{Value, json};
use portolan_store::Scope;

use super::*;
use crate::{
    config::ApiConfig,
    testing::{delete, get},
};

fn api(ranges: &str) -> Api {
    Api::new(&ApiConfig {
        service_ranges: "10.0.0.0/24,fd00::/112".parse().unwrap(),
        load_balancer_ranges: ranges.parse().unwrap(),
        ..ApiConfig::default()
    })
}

fn apply(api: &Api, name: &str, spec: &Value) {
    let mut spec = spec.clone();
    spec["ports"] = json!([{"port": 80}]);
    spec["type"] = spec.get("type").cloned().unwrap_or_else(|| "LoadBalancer".into());
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
    api.blocking().apply(object).unwrap();
}

fn seen(api: &Api, name: &str) -> Option<Pending> {
    pending(api, &api.store().get(Resource::Service, &format!("default/{name}")).unwrap())
}

#[test]
fn only_services_without_an_address_wait() {
    let api = api("192.0.2.0/30");
    apply(&api, "plain", &json!({"type": "ClusterIP"}));
    apply(&api, "other", &json!({"loadBalancerClass": "example.com/cloud"}));
    apply(&api, "a", &json!({}));
    // The second family has no range.
    apply(&api, "dual", &json!({"ipFamilyPolicy": "RequireDualStack"}));
    for name in ["plain", "other", "a", "dual"] {
        assert_eq!(seen(&api, name), None, "{name}");
    }
    assert_eq!(free_families(&api), []);
    apply(&api, "late", &json!({}));
    let late = seen(&api, "late").unwrap();
    assert_eq!((late.families, late.requested), (vec![Family::Ipv4], vec![]));
    assert_eq!(
        late.note,
        "no IPv4 load-balancer address is free in 192.0.2.0/30; the Service gets one when another Service releases it"
    );
    apply(&api, "six", &json!({"ipFamilies": ["IPv6"]}));
    let six = seen(&api, "six").unwrap();
    assert_eq!(six.families, [Family::Ipv6]);
    assert!(six.note.starts_with("--load-balancer-ip-range has no IPv6 range"), "{}", six.note);
}

#[test]
fn a_waiting_service_gets_an_address_that_becomes_free() {
    let api = api("192.0.2.0/30");
    for name in ["a", "b", "late"] {
        apply(&api, name, &json!({}));
    }
    let late = ServiceKey::new("default", "late");
    assert!(!block_on(settle(&api, &late)).unwrap());
    delete(&api, Resource::Service, "a");
    assert_eq!(free_families(&api), [Family::Ipv4]);
    assert!(block_on(settle(&api, &late)).unwrap());
    assert!(!block_on(settle(&api, &late)).unwrap(), "it has one");
    assert_eq!((seen(&api, "late"), free_families(&api)), (None, vec![]));
    assert!(!block_on(settle(&api, &ServiceKey::new("default", "gone"))).unwrap());
    let addresses = api.store().snapshot(Resource::IpAddress, &Scope::default(), None).unwrap().objects;
    let balanced = addresses.iter().filter(|it| it.key().starts_with("192.0.2.")).count();
    assert_eq!(balanced, 2);
}

#[test]
fn a_request_that_is_not_met_is_named() {
    let before = Api::new(&ApiConfig::default());
    apply(&before, "a", &json!({"loadBalancerIP": "192.0.2.2"}));
    apply(&before, "b", &json!({"loadBalancerIP": "192.0.2.2"}));
    let config = ApiConfig { load_balancer_ranges: "192.0.2.0/30".parse().unwrap(), ..ApiConfig::default() };
    let api = block_on(Api::open(std::sync::Arc::clone(before.store()), &config)).unwrap();
    let note = seen(&api, "a").unwrap().note;
    assert_eq!(note, "spec.loadBalancerIP: the address is not allocated yet");
    assert!(block_on(settle(&api, &ServiceKey::new("default", "a"))).unwrap());
    assert!(!block_on(settle(&api, &ServiceKey::new("default", "b"))).unwrap(), "it wants no other address");
    let note = seen(&api, "b").unwrap().note;
    assert_eq!(note, "spec.loadBalancerIP: 192.0.2.2 is already allocated to Service default/a");
    delete(&api, Resource::Service, "a");
    assert!(block_on(settle(&api, &ServiceKey::new("default", "b"))).unwrap());
    let service = get(&api, Resource::Service, "default/b").unwrap();
    assert_eq!(service["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.2");
}
