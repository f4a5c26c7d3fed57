//! Addresses and ports of writes that are dropped before the store returns their result.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures::{
    FutureExt,
    executor::block_on,
    future::{BoxFuture, pending, ready},
};
use portolan_schema::{Resource, json::json};
use portolan_store::{
    Changes, CommitError, Committed, Draft, Expired, History, MemoryStore, Scope, Snapshot, Step, Store,
    StoredObject, Transaction,
};
use tokio::sync::watch;

use super::{Target, create, delete, keys, refusal, service};
use crate::{
    api::{Api, Preconditions, WriteOptions},
    config::ApiConfig,
};

type Accepted = HashMap<(Resource, String), Arc<StoredObject>>;

/// A store that can be switched to accept writes without completing them.
#[derive(Debug)]
struct Slow {
    inner: MemoryStore,
    /// The accepted objects while writes do not complete; `None` otherwise.
    accepted: Mutex<Option<Accepted>>,
    last: Mutex<Transaction>,
    cannot_write: AtomicBool,
}

impl Slow {
    fn new(history: History) -> Arc<Self> {
        let (accepted, last, cannot_write) = <_>::default();
        Arc::new(Self { inner: MemoryStore::new(history), accepted, last, cannot_write })
    }

    fn hang(&self) {
        *self.accepted.lock().unwrap() = Some(HashMap::new());
    }

    /// Drops all accepted objects, like a disk that fails.
    fn fail(&self) {
        *self.accepted.lock().unwrap() = None;
    }
}

impl Store for Slow {
    fn revision(&self) -> u64 {
        self.inner.revision()
    }

    fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        self.inner.get(resource, key)
    }

    fn count(&self, resource: Resource) -> usize {
        self.inner.count(resource)
    }

    fn snapshot(&self, resource: Resource, scope: &Scope<'_>, at: Option<u64>) -> Result<Snapshot, Expired> {
        self.inner.snapshot(resource, scope, at)
    }

    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        let accepted = self.accepted.lock().unwrap();
        let accepted = accepted.as_ref().and_then(|accepted| accepted.get(&(resource, key.to_owned())));
        accepted.cloned().or_else(|| self.inner.get(resource, key))
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        *self.last.lock().unwrap() = transaction.clone();
        if self.cannot_write.load(Relaxed) {
            return ready(Err(CommitError::Unavailable("a full disk".to_owned()))).boxed();
        }
        let Some(accepted) = &mut *self.accepted.lock().unwrap() else {
            return self.inner.commit(transaction);
        };
        for step in transaction.steps {
            if let Step::Put { resource, draft, .. } = step {
                accepted.insert((resource, draft.key().to_owned()), Arc::new(draft.at(u64::MAX)));
            }
        }
        pending().boxed()
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        self.inner.refresh()
    }

    fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired> {
        self.inner.changes(resource, after, limit)
    }

    fn subscribe(&self, resource: Resource) -> watch::Receiver<u64> {
        self.inner.subscribe(resource)
    }

    fn metrics(&self) -> portolan_store::Metrics {
        self.inner.metrics()
    }
}

fn open(store: &Arc<Slow>) -> Api {
    let config = ApiConfig { service_ranges: "10.0.0.0/28".parse().unwrap(), ..ApiConfig::default() };
    block_on(Api::open(Arc::clone(store) as Arc<dyn Store>, &config)).unwrap()
}

#[test]
fn accepted_claims_stay_taken_until_the_write_fails() {
    let store = Slow::new(History::default());
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
    store.fail();
    assert_eq!(taken(&api), (0, 0));
    assert_eq!(create(&api, "next", &spec).unwrap()["clusterIP"], "10.0.0.7");
    assert_eq!(taken(&api), (1, 1));
}

#[test]
fn an_address_whose_object_was_deleted_by_hand_outlives_the_history() {
    let store = Slow::new(History { max_changes: 2, ..History::default() });
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
    let store = Slow::new(History::default());
    let api = open(&store);
    let by_hand = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.7"},
        "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "default", "name": "a"}}});
    api.blocking().apply(by_hand).unwrap();
    let recorded = store.get(Resource::IpAddress, "10.0.0.7").unwrap();
    create(&api, "a", &json!({"clusterIP": "10.0.0.7"})).unwrap();
    let steps = store.last.lock().unwrap().steps.clone();
    let required = steps.iter().find(|step| step.resource() == Resource::IpAddress).unwrap();
    assert!(matches!(required, Step::Require { .. }));
    assert_eq!(required.expected(), Some(recorded.revision()));
    assert_eq!(keys(&api, Resource::IpAddress), ["10.0.0.7"]);
    // The IPAddress of a listed address is not required by later writes: the repair loop restores it.
    let target = Target { resource: Resource::IpAddress, namespace: "", name: "10.0.0.7" };
    api.blocking().delete(target, &Preconditions::default(), WriteOptions::default()).unwrap();
    super::patch(&api, "a", &json!({"sessionAffinity": "ClientIP"})).unwrap();
    assert_eq!(store.last.lock().unwrap().steps.len(), 1);
}

#[test]
fn an_api_does_not_open_where_the_first_objects_cannot_be_written() {
    let store = Slow::new(History::default());
    let open = || block_on(Api::open(Arc::clone(&store) as Arc<dyn Store>, &ApiConfig::default()));
    store.cannot_write.store(true, Relaxed);
    assert_eq!(open().unwrap_err().code(), 503);
    store.cannot_write.store(false, Relaxed);
    assert!(open().is_ok());
    // An existing store has these objects.
    store.cannot_write.store(true, Relaxed);
    assert!(open().is_ok());
}
