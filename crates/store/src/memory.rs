//! The store that lives and dies with the process.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use futures::future::{BoxFuture, FutureExt, ready};
use portolan_schema::Resource;
use tokio::sync::watch;

use crate::{
    Change, Changes, CommitError, Committed, Expired, History, Scope, Snapshot, Step, Store, StoredObject,
    Transaction, tables::Tables,
};

#[cfg(test)]
mod tests;

/// Objects and history in memory. Revisions start at the wall clock in microseconds, so that a client which outlives
/// a restart holds a revision that is too old (and lists again), never one that this process has yet to reach.
#[derive(Debug)]
pub struct MemoryStore {
    tables: Mutex<Tables>,
    signals: [watch::Sender<u64>; Resource::ALL.len()],
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: History) -> Self {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros());
        Self::starting_at(limits, u64::try_from(micros).unwrap_or(1))
    }

    /// An empty store whose last revision is `revision` (at least 1).
    pub fn starting_at(limits: History, revision: u64) -> Self {
        let revision = revision.max(1);
        let signals = std::array::from_fn(|_| watch::Sender::new(revision));
        Self { tables: Mutex::new(Tables::new(limits, revision)), signals }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic elsewhere cannot leave the tables half-written: every change is a few infallible steps.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit_now(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let mut tables = self.lock();
        check(&tables, &transaction)?;
        let mut committed = Committed { revision: tables.revision(), objects: Vec::new() };
        let mut touched = Vec::new();
        for step in transaction.steps {
            let resource = step.resource();
            let old = tables.get(resource, step.key());
            let revision = tables.revision().saturating_add(1);
            let new = match step {
                Step::Put { draft, .. } => Some(Arc::new(draft.at(revision))),
                Step::Remove { .. } => None,
                Step::Require { .. } => continue,
            };
            committed.revision = revision;
            committed.objects.extend(new.clone());
            tables.apply(resource, Change { revision, old, new });
            touched.push((resource, revision));
        }
        drop(tables);
        for (resource, revision) in touched {
            if let Some(signal) = self.signals.get(resource.index()) {
                signal.send_modify(|last| *last = revision.max(*last));
            }
        }
        Ok(committed)
    }
}

/// Whether every condition holds.
fn check(tables: &Tables, transaction: &Transaction) -> Result<(), CommitError> {
    for (step, it) in transaction.steps.iter().enumerate() {
        let actual = tables.get(it.resource(), it.key()).map(|object| object.revision());
        if actual != it.expected() {
            return Err(CommitError::Conflict {
                step,
                resource: it.resource(),
                key: it.key().into(),
                actual,
            });
        }
    }
    Ok(())
}

impl Store for MemoryStore {
    fn revision(&self) -> u64 {
        self.lock().revision()
    }

    fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        self.lock().get(resource, key)
    }

    fn count(&self, resource: Resource) -> usize {
        self.lock().count(resource)
    }

    fn snapshot(&self, resource: Resource, scope: &Scope<'_>, at: Option<u64>) -> Result<Snapshot, Expired> {
        self.lock().snapshot(resource, scope, at)
    }

    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        self.get(resource, key)
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        ready(self.commit_now(transaction)).boxed()
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        ready(Ok(self.revision())).boxed()
    }

    fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired> {
        self.lock().changes(resource, after, limit)
    }

    fn subscribe(&self, resource: Resource) -> watch::Receiver<u64> {
        let signal = self.signals.get(resource.index());
        signal.map_or_else(|| watch::channel(0).1, watch::Sender::subscribe)
    }
}
