//! Backups of the API server's objects, with which it can come back.

use std::sync::Arc;

use futures::executor::block_on;
use portolan_serve::{Api, ApiConfig, Draft, MemoryStore, Resource, Scope, Store, StoredObject, Transaction};

/// By how much the first revision of a restored API is lower than the newest revision so far. A test writes less often, so the
/// restored API does not use a revision again.
const OLDER: u64 = 1_000_000;

/// The objects of an API at one revision.
#[derive(Debug)]
pub struct Backup(Vec<(Resource, Arc<StoredObject>)>);

impl Backup {
    pub(crate) fn of(api: &Api) -> Self {
        let (store, revision) = (api.store(), api.store().revision());
        let mut objects = Vec::new();
        // `Resource::kept`, and what clients do not see, such as the records of node ports.
        let is_kept = |resource: &Resource| resource.is_stored() && resource.stored() == *resource;
        for resource in Resource::ALL.into_iter().filter(is_kept) {
            let snapshot = store.snapshot(resource, &Scope::default(), Some(revision)).unwrap();
            objects.extend(snapshot.objects.into_iter().map(|object| (resource, object)));
        }
        objects.sort_by_key(|(_, object)| object.revision());
        Self(objects)
    }

    /// Returns an API with these objects. `newest` is the newest revision that a client may have seen.
    pub(crate) fn restored(self, config: &ApiConfig, newest: u64) -> Api {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::starting_at(config.history, newest - OLDER));
        for (resource, object) in self.0 {
            let draft = Draft::new(resource, &object.decode());
            block_on(store.commit(Transaction::put(resource, draft, None))).unwrap();
        }
        block_on(Api::open(store, config)).unwrap()
    }
}
