//! What a server writes before it serves clients.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use futures::{
    FutureExt as _,
    executor::block_on,
    future::{BoxFuture, ready},
};
use portolan_serve::{
    Api, ApiConfig, Changes, CommitError, Committed, Config, ControllersConfig, Expired, History,
    MemoryStore, Resource, Scope, Server, Snapshot, Store, StoredObject, Target, Transaction,
    json::{Value, json},
};
use tokio::sync::watch;

/// A store that can be switched to refuse all writes.
#[derive(Debug)]
struct Full {
    inner: MemoryStore,
    cannot_write: AtomicBool,
}

impl Store for Full {
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
        self.inner.latest(resource, key)
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        if self.cannot_write.load(Relaxed) {
            return ready(Err(CommitError::Unavailable("a full disk".to_owned()))).boxed();
        }
        self.inner.commit(transaction)
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

fn get(api: &Api, resource: Resource, key: &str) -> Option<Value> {
    api.store().get(resource, key).map(|object| object.decode().into())
}

fn list(api: &Api, resource: Resource) -> Vec<Value> {
    let snapshot = api.store().snapshot(resource, &Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.decode().into()).collect()
}

#[test]
fn a_start_fails_where_the_first_objects_cannot_be_written() {
    let store =
        Arc::new(Full { inner: MemoryStore::new(History::default()), cannot_write: AtomicBool::new(false) });
    let controllers = ControllersConfig { kubernetes_service: true, ..ControllersConfig::default() };
    let config = Config { controllers, ..Config::default() };
    let api = block_on(Api::open(Arc::clone(&store) as Arc<dyn Store>, &config.api)).unwrap();
    // The store opens, but the Service with the first address does not exist yet.
    store.cannot_write.store(true, Relaxed);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start_with(Arc::new(api), config, listener).unwrap();
    // A server that serves would only end when stopped, and without an error.
    let ended = server.stop().unwrap_err().to_string();
    assert!(ended.contains("default/kubernetes") && ended.contains("a full disk"), "{ended}");
}

#[test]
fn the_servers_own_service_is_there_before_clients_are() {
    let api = ApiConfig { service_ranges: "10.0.0.0/24".parse().unwrap(), ..ApiConfig::default() };
    let controllers = ControllersConfig {
        kubernetes_service: true,
        advertise_address: Some("192.0.2.7".parse().unwrap()),
        ..ControllersConfig::default()
    };
    let server = Server::start(Config { api, controllers, ..Config::default() }).unwrap();
    let port = server.local_addr().port();
    let target = Target { resource: Resource::Service, namespace: "default", name: "kubernetes" };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while server.store().get(Resource::Service, &target.key()).is_none() {
        assert!(std::time::Instant::now() < deadline, "never made");
        std::thread::yield_now();
    }
    let service = get(server.api(), Resource::Service, "default/kubernetes").unwrap();
    assert_eq!(
        (&service["spec"]["clusterIP"], &service["spec"]["ports"][0]["targetPort"]),
        (&json!("10.0.0.1"), &json!(port))
    );
    assert_eq!(service["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
    let api = server.stop().unwrap();
    assert_eq!(list(&api, Resource::EndpointSlice), Vec::<Value>::new(), "the endpoint goes with the server");
    assert!(get(&api, Resource::Service, "default/kubernetes").is_some());
}
