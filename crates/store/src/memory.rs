//! The store that lives and dies with the process.

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

/// Objects and history in memory. Revisions start at the wall clock in microseconds, so that a client which outlives
/// a restart holds a revision that is too old (and lists again), never one that this process has yet to reach.
#[derive(Debug)]
pub struct MemoryStore {
    published: Published,
    counters: Counters,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: History) -> Self {
        Self::starting_at(limits, wall_clock())
    }

    /// An empty store whose last revision is `revision` (at least 1).
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
            let (answer, writes) = transaction.carry_out(tables.revision(), view);
            committed = answer;
            Ok::<_, CommitError>(Publication { writes, through: 0 })
        })?;
        Ok(committed)
    }
}

/// The first revision of a store that begins now: see [`MemoryStore`].
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
