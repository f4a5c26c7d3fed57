use futures::executor::block_on;
use portolan_api::{
    ApiConfig,
    testing::{delete, get, list},
};
use portolan_schema::json::{Value, json};

use super::*;

fn api(ranges: &str) -> Arc<Api> {
    let load_balancer_ranges = ranges.parse().unwrap();
    Arc::new(Api::new(&ApiConfig { load_balancer_ranges, ..ApiConfig::default() }))
}

fn create(api: &Api, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    api.blocking().apply(object).unwrap();
}

fn address(api: &Api, name: &str) -> Option<String> {
    let service = get(api, Resource::Service, &format!("default/{name}")).unwrap();
    Some(service.pointer("/status/loadBalancer/ingress/0/ip")?.as_str().unwrap().to_owned())
}

fn events(api: &Api) -> Vec<(String, u64)> {
    let of = |event: &Value| {
        let count = event.pointer("/series/count").and_then(Value::as_u64).unwrap_or(1);
        assert_eq!(event["reason"], "LoadBalancerIPPending");
        (event["regarding"]["name"].as_str().unwrap().to_owned(), count)
    };
    list(api, Resource::Event).iter().map(of).collect()
}

#[test]
fn who_waits_longest_is_first() {
    let api = api("192.0.2.0/30");
    let mut controller = LoadBalancers::new(&api);
    for name in ["a", "b", "y", "x"] {
        create(&api, name);
    }
    block_on(controller.pass());
    assert_eq!((address(&api, "x"), address(&api, "y")), (None, None));
    let mut reported = events(&api);
    reported.sort();
    assert_eq!(reported, [("x".to_owned(), 1), ("y".to_owned(), 1)]);
    block_on(controller.pass());
    assert_eq!(events(&api).len(), 2, "one Event is enough");
    let freed = address(&api, "a");
    delete(&api, Resource::Service, "a");
    block_on(controller.pass());
    assert_eq!((address(&api, "y"), address(&api, "x")), (freed, None));
    delete(&api, Resource::Service, "b");
    delete(&api, Resource::Service, "y");
    block_on(controller.pass());
    assert!(address(&api, "x").is_some());
    block_on(controller.pass());
    assert!(controller.waiting.is_empty() && controller.since.is_empty() && controller.reported.is_empty());
}

#[test]
fn a_deleted_service_is_forgotten() {
    let api = api("192.0.2.0/30");
    let mut controller = LoadBalancers::new(&api);
    for name in ["a", "b", "late"] {
        create(&api, name);
    }
    block_on(controller.pass());
    assert_eq!(controller.waiting.len(), 1);
    delete(&api, Resource::Service, "late");
    block_on(controller.pass());
    assert!(controller.waiting.is_empty() && controller.reported.is_empty());
}

#[test]
fn services_of_an_earlier_server_get_their_addresses_at_the_start() {
    let before = Api::new(&ApiConfig::default());
    create(&before, "a");
    let config = ApiConfig { load_balancer_ranges: "192.0.2.0/30".parse().unwrap(), ..ApiConfig::default() };
    let api = Arc::new(block_on(Api::open(Arc::clone(before.store()), &config)).unwrap());
    block_on(LoadBalancers::new(&api).pass());
    assert!(address(&api, "a").is_some());
    assert_eq!(events(&api), []);
}
