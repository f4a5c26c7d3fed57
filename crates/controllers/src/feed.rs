//! The changes of some resources, starting with their present state, without gaps.

use std::{hash::Hash, sync::Arc};

use futures::{FutureExt, future::select_all};
use portolan_schema::Resource;
use portolan_store::{Change, Scope, Store, StoredObject};
use tokio::sync::watch;

use super::{BATCH, queue::Queue};

/// Follows some resources. Starts with their whole state.
#[derive(Debug)]
pub struct Feed {
    store: Arc<dyn Store>,
    sources: Vec<Source>,
}

/// An observation.
#[derive(Debug)]
pub enum Seen {
    /// All objects of the resource: at the start, and after a gap in the history.
    State(Resource, Vec<Arc<StoredObject>>),
    /// One change.
    Change(Resource, Change),
}

#[derive(Debug)]
struct Source {
    resource: Resource,
    signal: watch::Receiver<u64>,
    /// The revision up to which everything has been returned. `None` before the first read.
    through: Option<u64>,
    has_more: bool,
}

impl Feed {
    /// Creates a feed of these resources.
    pub fn new(store: &Arc<dyn Store>, resources: impl IntoIterator<Item = Resource>) -> Self {
        let source =
            |resource| Source { resource, signal: store.subscribe(resource), through: None, has_more: true };
        Self { store: Arc::clone(store), sources: resources.into_iter().map(source).collect() }
    }

    /// Returns new observations, at most `BATCH` changes of each resource.
    pub fn take(&mut self) -> Vec<Seen> {
        self.sources.iter_mut().flat_map(|source| source.take(&*self.store)).collect()
    }

    /// Returns true if there may be new observations already.
    pub fn has_more(&self) -> bool {
        self.sources.iter().any(|source| source.has_more || source.signal.has_changed().unwrap_or(false))
    }

    /// Returns the revision up to which everything has been returned, for all resources.
    pub(crate) fn through(&self) -> u64 {
        self.sources.iter().map(|source| source.through.unwrap_or(0)).min().unwrap_or(u64::MAX)
    }

    /// Waits until there may be new observations, or a delayed item of a queue is due.
    pub(crate) async fn changed_or_due<T: Clone + Eq + Hash>(&mut self, queue: &Queue<T>) {
        tokio::select! {
            () = self.changed() => {}
            () = queue.due() => {}
        }
    }

    /// Waits until there may be new observations.
    pub async fn changed(&mut self) {
        if self.has_more() || self.sources.is_empty() {
            return;
        }
        // An error means that the store was dropped, which happens only when the process ends.
        let _ = select_all(self.sources.iter_mut().map(|source| source.signal.changed().boxed())).await;
        for source in &mut self.sources {
            source.has_more = true;
        }
    }
}

impl Source {
    fn take(&mut self, store: &dyn Store) -> Vec<Seen> {
        self.signal.mark_unchanged();
        let changes = self.through.map(|through| store.changes(self.resource, through, BATCH));
        if let Some(Ok(changes)) = changes {
            self.through = Some(changes.through);
            self.has_more = changes.changes.len() >= BATCH;
            return changes.changes.into_iter().map(|change| Seen::Change(self.resource, change)).collect();
        }
        // The present state cannot have expired. If a store reports that it has, the next call reads again.
        let Ok(snapshot) = store.snapshot(self.resource, &Scope::default(), None) else { return Vec::new() };
        self.through = Some(snapshot.revision);
        self.has_more = false;
        vec![Seen::State(self.resource, snapshot.objects)]
    }
}
