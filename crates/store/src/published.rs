//! The published state, shared by all stores: the tables behind a lock, and the signals that fire when they change.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use portolan_schema::Resource;
use tokio::sync::watch;

use crate::{
    tables::{Dropped, Tables},
    transaction::Write,
};

/// The published objects and their history.
#[derive(Debug)]
pub(crate) struct Published {
    tables: RwLock<Tables>,
    signals: [watch::Sender<u64>; Resource::ALL.len()],
    revision: watch::Sender<u64>,
}

/// Changes that are published together.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    /// The changes, in order.
    pub(crate) writes: Vec<Write>,
    /// The revision up to which the state is complete: no later publication contains a revision up to `through` or up
    /// to the last one in `writes`. 0 if `writes` alone determines it.
    pub(crate) through: u64,
}

impl Published {
    pub(crate) fn new(tables: Tables) -> Self {
        let revision = tables.revision();
        Self {
            tables: RwLock::new(tables),
            signals: std::array::from_fn(|_| watch::Sender::new(revision)),
            revision: watch::Sender::new(revision),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Tables> {
        // A panic cannot leave the tables half-written, because every change consists of a few infallible steps.
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the changes that `work` derives from the tables, in one step, and wakes the subscribers. Returns the
    /// changes that the history dropped.
    pub(crate) fn publish<E>(
        &self,
        work: impl FnOnce(&Tables) -> Result<Publication, E>,
    ) -> Result<Vec<Dropped>, E> {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let Publication { writes, through } = work(&tables)?;
        let mut dropped = Vec::new();
        let mut touched = [0; Resource::ALL.len()];
        for Write { resource, change } in writes {
            if let Some(last) = touched.get_mut(resource.index()) {
                *last = change.revision;
            }
            tables.apply(resource, change, &mut dropped);
        }
        tables.complete(through);
        let revision = tables.revision();
        drop(tables);
        self.signal(&touched, revision);
        Ok(dropped)
    }

    /// Drops the history and returns it. A watch that has not received all of it has to list again.
    pub(crate) fn forget_history(&self) -> Vec<Dropped> {
        let mut dropped = Vec::new();
        self.tables.write().unwrap_or_else(PoisonError::into_inner).forget_history(&mut dropped);
        dropped
    }

    /// Replaces the tables. Subscribers wake up and find that the history does not reach back to their revisions.
    #[cfg(feature = "etcd")]
    pub(crate) fn replace(&self, other: Tables) {
        let revision = other.revision();
        *self.tables.write().unwrap_or_else(PoisonError::into_inner) = other;
        for signal in self.signals.iter().chain([&self.revision]) {
            signal.send_replace(revision);
        }
    }

    /// Returns a signal that fires at each change of the resource.
    pub(crate) fn subscribe(&self, resource: Resource) -> watch::Receiver<u64> {
        let signal = self.signals.get(resource.index());
        signal.map_or_else(|| watch::channel(0).1, watch::Sender::subscribe)
    }

    /// Returns a signal with the published revision.
    #[cfg(feature = "etcd")]
    pub(crate) fn revisions(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    fn signal(&self, touched: &[u64], revision: u64) {
        // This runs outside of the lock, so another publication may have signalled first. A signal never goes back.
        let touched = self.signals.iter().zip(touched).filter(|(_, last)| **last > 0);
        for (signal, last) in touched.chain([(&self.revision, &revision)]) {
            signal.send_modify(|known| *known = (*known).max(*last));
        }
    }
}

/// The read methods of [`crate::Store`], implemented on the field `published`.
macro_rules! reads_published {
    () => {
        fn revision(&self) -> u64 {
            self.published.read().revision()
        }

        fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
            self.published.read().get(resource, key)
        }

        fn count(&self, resource: Resource) -> usize {
            self.published.read().count(resource)
        }

        fn snapshot(
            &self,
            resource: Resource,
            scope: &Scope<'_>,
            at: Option<u64>,
        ) -> Result<Snapshot, Expired> {
            self.published.read().snapshot(resource, scope, at)
        }

        fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired> {
            self.published.read().changes(resource, after, limit)
        }

        fn subscribe(&self, resource: Resource) -> watch::Receiver<u64> {
            self.published.subscribe(resource)
        }
    };
}
pub(crate) use reads_published;
