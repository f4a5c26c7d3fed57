//! The store in memory only. Its content is lost when the process ends.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use futures::future::{BoxFuture, FutureExt, ready};
use portolan_schema::Resource;
use tokio::sync::watch;

use crate::{
    Changes, CommitError, Committed, Expired, History, Metrics, Scope, Snapshot, Store, StoredObject,
    Transaction,
    metrics::Counters,
    published::{Publication, Published, reads_published},
    tables::Tables,
};

#[cfg(test)]
mod tests;

/// Objects and history in memory. Revisions start at the wall clock in microseconds. A client that outlives a restart
/// of the server then holds an expired revision and lists again. It never holds a revision that this process has yet
/// to reach.
#[derive(Debug)]
pub struct MemoryStore {
    published: Published,
    counters: Counters,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(limits: History) -> Self {
        Self::starting_at(limits, wall_clock())
    }

    /// Creates an empty store whose last revision is `revision` (at least 1).
    pub fn starting_at(limits: History, revision: u64) -> Self {
        Self {
            published: Published::new(Tables::new(limits, revision.max(1))),
            counters: Counters::default(),
        }
    }

    fn commit_now(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let mut committed = Committed::default();
        self.published.publish(|tables| {
            let view = |resource, key: &str| tables.get(resource, key);
            transaction.judge(view)?;
            let (answer, writes) = transaction.apply(tables.revision(), view);
            committed = answer;
            Ok::<_, CommitError>(Publication { writes, through: 0 })
        })?;
        Ok(committed)
    }
}

/// Returns the first revision of a new store: see [`MemoryStore`].
pub(crate) fn wall_clock() -> u64 {
    let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros());
    u64::try_from(micros).unwrap_or(1).max(1)
}

impl Store for MemoryStore {
    reads_published!();

    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        self.get(resource, key)
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        let outcome = self.commit_now(transaction);
        self.counters.outcome(&outcome);
        ready(outcome).boxed()
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        ready(Ok(self.revision())).boxed()
    }

    fn metrics(&self) -> Metrics {
        self.counters.read(&self.published.read())
    }
}
