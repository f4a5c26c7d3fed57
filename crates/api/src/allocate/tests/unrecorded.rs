//! Addresses whose IPAddress was deleted by hand, on two servers that share a store.

use std::sync::Arc;

use futures::executor::block_on;
use portolan_schema::{Resource, json::json};
use portolan_store::{Draft, Transaction};

use super::{create, delete, patch};
use crate::{
    api::Api,
    config::ApiConfig,
    testing::{api, get},
};

const ADDRESS: &str = "10.0.0.7";

/// Two servers on one store, with a range of 14 addresses, and a Service that has lost its IPAddress on both.
fn two_servers() -> [Api; 2] {
    let one = api("10.0.0.0/28");
    create(&one, "a", &json!({"clusterIP": ADDRESS})).unwrap();
    let other = open(&one);
    delete(&one, Resource::IpAddress, ADDRESS);
    let both = [one, other];
    assert_eq!(taken(&both), [1, 1]);
    both
}

fn open(one: &Api) -> Api {
    let config = ApiConfig { service_ranges: "10.0.0.0/28".parse().unwrap(), ..ApiConfig::default() };
    block_on(Api::open(Arc::clone(one.store()), &config)).unwrap()
}

fn taken(both: &[Api; 2]) -> [u64; 2] {
    both.each_ref().map(|api| api.allocator_metrics().addresses["10.0.0.0/28"].0)
}

#[test]
fn the_address_is_free_everywhere_when_its_service_goes() {
    let both = two_servers();
    delete(&both[0], Resource::Service, "a");
    assert_eq!(taken(&both), [0, 0]);
    for name in (0..14).map(|number| format!("s{number}")) {
        create(&both[1], &name, &json!({})).unwrap();
    }
}

#[test]
fn the_address_is_free_everywhere_when_its_service_gives_it_up() {
    let both = two_servers();
    patch(
        &both[0],
        "a",
        &json!({"type": "ExternalName", "externalName": "a.example", "clusterIP": null, "clusterIPs": null}),
    )
    .unwrap();
    assert_eq!(taken(&both), [0, 0]);
}

#[test]
fn a_server_that_starts_meanwhile_knows_the_address_too() {
    let both = two_servers();
    let [one, _] = both;
    let both = [open(&one), one];
    assert_eq!(taken(&both), [1, 1]);
    delete(&both[1], Resource::Service, "a");
    assert_eq!(taken(&both), [0, 0]);
}

#[test]
fn an_address_that_is_recorded_again_stays_taken() {
    let both = two_servers();
    let record = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": ADDRESS},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "a"}}});
    both[1].blocking().apply(record).unwrap();
    patch(&both[0], "a", &json!({"ports": [{"port": 81}]})).unwrap();
    assert_eq!(taken(&both), [1, 1]);
    delete(&both[0], Resource::Service, "a");
    assert_eq!((taken(&both), get(&both[0], Resource::IpAddress, ADDRESS)), ([0, 0], None));
}

#[test]
fn an_address_that_another_service_lists_stays_taken() {
    let both = two_servers();
    // As imported data may have it.
    let mut twin = get(&both[0], Resource::Service, "default/a").unwrap();
    twin["metadata"]["name"] = "twin".into();
    let draft = Draft::new(Resource::Service, twin.as_object().unwrap());
    let put = Transaction::put(Resource::Service, draft, None);
    both[0].blocking().commit(put).unwrap();
    delete(&both[0], Resource::Service, "a");
    assert_eq!(taken(&both)[1], 1);
    delete(&both[0], Resource::Service, "twin");
    assert_eq!(taken(&both), [0, 0]);
}
