//! Addresses and ports of writes that are dropped before the store returns their result.

use std::sync::Arc;

use futures::{FutureExt, executor::block_on};
use portolan_schema::{Resource, json::json};
use portolan_store::{Draft, History, Step, Store, Transaction, faulty::FaultyStore};

use super::{create, delete, keys, refusal, service};
use crate::{
    api::{Api, WriteOptions},
    config::ApiConfig,
};

fn faulty(history: History) -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(history))
}

fn open(store: &Arc<FaultyStore>) -> Api {
    let config = ApiConfig { service_ranges: "10.0.0.0/28".parse().unwrap(), ..ApiConfig::default() };
    block_on(Api::open(Arc::clone(store) as Arc<dyn Store>, &config)).unwrap()
}

#[test]
fn accepted_claims_stay_taken_until_the_write_fails() {
    let store = faulty(History::default());
    let api = open(&store);
    store.hang();
    let spec =
        json!({"type": "NodePort", "clusterIP": "10.0.0.7", "ports": [{"port": 80, "nodePort": 30007}]});
    let object = service("gone", &spec).as_object().unwrap().clone();
    let write = api.create(Resource::Service, "default", object, WriteOptions::default());
    // The client disconnects: the write is dropped.
    assert!(write.now_or_never().is_none());
    let taken = |api: &Api| {
        let metrics = api.allocator_metrics();
        (metrics.addresses["10.0.0.0/28"].0, metrics.ports.0)
    };
    assert_eq!(taken(&api), (1, 1));
    assert_eq!(taken(&api), (1, 1), "it may still be stored");
    store.drop_accepted();
    assert_eq!(taken(&api), (0, 0));
    assert_eq!(create(&api, "next", &spec).unwrap()["clusterIP"], "10.0.0.7");
    assert_eq!(taken(&api), (1, 1));
}

#[test]
fn an_address_whose_object_was_deleted_by_hand_outlives_the_history() {
    let store = faulty(History { max_changes: 2, ..History::default() });
    let api = open(&store);
    create(&api, "a", &json!({"clusterIP": "10.0.0.7"})).unwrap();
    delete(&api, Resource::IpAddress, "10.0.0.7");
    // More changes than the history keeps, before the ledger follows them.
    for name in ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"] {
        let object = json!({"metadata": {"name": name}});
        let draft = Draft::new(Resource::IpAddress, object.as_object().unwrap());
        api.blocking().commit(Transaction::put(Resource::IpAddress, draft, None)).unwrap();
    }
    assert_eq!(refusal(&api, "b", &json!({"clusterIP": "10.0.0.7"})).0, 422);
}

#[test]
fn an_address_that_is_found_recorded_must_stay_recorded() {
    let store = faulty(History::default());
    let api = open(&store);
    let by_hand = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.7"},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "a"}}});
    api.blocking().apply(by_hand).unwrap();
    let recorded = store.get(Resource::IpAddress, "10.0.0.7").unwrap();
    create(&api, "a", &json!({"clusterIP": "10.0.0.7"})).unwrap();
    let steps = store.last_steps();
    let required = steps.iter().find(|step| step.resource() == Resource::IpAddress).unwrap();
    assert!(matches!(required, Step::Require { .. }));
    assert_eq!(required.expected(), Some(recorded.revision()));
    // Its range must stay, too.
    let range = steps.iter().find(|step| step.resource() == Resource::ServiceCidr).unwrap();
    assert!(matches!(range, Step::Require { expected: Some(_), .. }));
    assert_eq!(keys(&api, Resource::IpAddress), ["10.0.0.7"]);
    // The IPAddress of a listed address is not required by later writes: the repair loop restores it.
    delete(&api, Resource::IpAddress, "10.0.0.7");
    super::patch(&api, "a", &json!({"sessionAffinity": "ClientIP"})).unwrap();
    assert_eq!(store.last_steps().len(), 1);
}

#[test]
fn an_api_does_not_open_where_the_first_objects_cannot_be_written() {
    let store = faulty(History::default());
    let open = || block_on(Api::open(Arc::clone(&store) as Arc<dyn Store>, &ApiConfig::default()));
    store.refuse_writes(true);
    assert_eq!(open().unwrap_err().code(), 503);
    store.refuse_writes(false);
    assert!(open().is_ok());
    // An existing store has these objects.
    store.refuse_writes(true);
    assert!(open().is_ok());
}
