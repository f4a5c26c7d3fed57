//! Helpers for the tests of all stores: stores under test, and short functions for objects and transactions.

pub mod etcd;
pub mod proxy;

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use portolan_schema::Resource;
use portolan_schema::json::json;
use portolan_store::{
    CommitError, Committed, Draft, DurableStore, EtcdOptions, EtcdStore, History, MemoryStore, Step, Store,
    Transaction,
};
use tempfile::TempDir;

use self::etcd::Etcd;

pub const SERVICE: Resource = Resource::Service;
pub const SLICE: Resource = Resource::EndpointSlice;
pub const NODE: Resource = Resource::Node;

/// A store and what it needs to run.
#[derive(Debug)]
pub struct World {
    pub store: Arc<dyn Store>,
    ground: Ground,
    history: History,
}

#[derive(Debug)]
enum Ground {
    Memory,
    File(TempDir),
    Etcd { server: Arc<Etcd>, prefix: String },
}

impl World {
    pub async fn memory(history: History) -> Option<Self> {
        Some(Self { store: Arc::new(MemoryStore::new(history)), ground: Ground::Memory, history })
    }

    pub async fn durable(history: History) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let store = DurableStore::open(dir.path(), history).unwrap();
        Some(Self { store: Arc::new(store), ground: Ground::File(dir), history })
    }

    /// One etcd server is shared by all tests that do not disturb it. Each uses its own prefix.
    pub async fn etcd(history: History) -> Option<Self> {
        static SHARED: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
        static PREFIXES: AtomicUsize = AtomicUsize::new(0);
        let server = {
            let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
            let server = shared.upgrade().map_or_else(|| Etcd::start().map(Arc::new), Some)?;
            *shared = Arc::downgrade(&server);
            server
        };
        let prefix = format!("/test/{}", PREFIXES.fetch_add(1, Relaxed));
        let store = connect(&server, &prefix, history).await;
        Some(Self { store, ground: Ground::Etcd { server, prefix }, history })
    }

    /// Restarts the store on the same state. Returns false for a store that does not survive a restart.
    pub async fn reopen(&mut self) -> bool {
        match &self.ground {
            Ground::Memory => false,
            Ground::File(dir) => {
                let path = dir.path().to_owned();
                self.store = Arc::new(MemoryStore::new(self.history));
                self.store = Arc::new(DurableStore::open(&path, self.history).unwrap());
                true
            }
            Ground::Etcd { server, prefix } => {
                self.store = connect(server, prefix, self.history).await;
                true
            }
        }
    }

    /// Opens another server on the same state; `None` if the store does not support that.
    pub async fn second(&self) -> Option<Arc<dyn Store>> {
        let Ground::Etcd { server, prefix } = &self.ground else { return None };
        Some(connect(server, prefix, self.history).await)
    }

    pub fn is_etcd(&self) -> bool {
        matches!(self.ground, Ground::Etcd { .. })
    }

    /// Returns true for the store in a file.
    pub fn is_file(&self) -> bool {
        matches!(self.ground, Ground::File(_))
    }
}

pub fn options(server: &Etcd, prefix: &str) -> EtcdOptions {
    // Longer than any delay on a busy machine.
    let timeout = Duration::from_secs(60);
    let prefix = prefix.to_owned();
    EtcdOptions { endpoints: vec![server.endpoint()], prefix, timeout, ..EtcdOptions::default() }
}

pub async fn connect(server: &Etcd, prefix: &str, history: History) -> Arc<dyn Store> {
    Arc::new(EtcdStore::connect(options(server, prefix), history).await.unwrap())
}

/// Creates an object with the given content. Namespaced objects are in the namespace `n`.
pub fn draft(resource: Resource, key: &str, content: &str) -> Draft {
    let mut value = json!({"metadata": {"name": key}, "spec": {"content": content}});
    if let Some((namespace, name)) = key.split_once('/') {
        value["metadata"] = json!({"name": name, "namespace": namespace});
    }
    Draft::new(resource, value.as_object().unwrap())
}

pub fn put(resource: Resource, key: &str, content: &str, expected: Option<u64>) -> Step {
    Step::Put { resource, draft: draft(resource, key, content), expected }
}

pub fn remove(resource: Resource, key: &str, expected: u64) -> Step {
    Step::Remove { resource, key: key.into(), expected }
}

pub fn require(resource: Resource, key: &str, expected: Option<u64>) -> Step {
    Step::Require { resource, key: key.into(), expected }
}

pub async fn commit(store: &dyn Store, steps: Vec<Step>) -> Result<Committed, CommitError> {
    store.commit(Transaction { steps }).await
}

/// Returns the content that was passed to [`draft`].
pub fn content(object: &portolan_store::StoredObject) -> String {
    object.decode()["spec"]["content"].as_str().unwrap().to_owned()
}
