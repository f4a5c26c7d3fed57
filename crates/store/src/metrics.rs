//! A store's counters, as plain values without the names that metrics have.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use portolan_schema::Resource;

use crate::tables::Tables;

/// Upper bounds of the buckets in [`Metrics::group_sizes`]. The last bucket has no bound.
pub const GROUP_SIZE_BOUNDS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// A snapshot of a store's counters. They start at 0 when the store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// Transactions carried out.
    pub committed: u64,
    /// Transactions refused because a condition did not hold.
    pub conflicts: u64,
    /// Transactions that failed for any other reason, or whose outcome is unknown.
    pub failed: u64,
    /// Histogram of the number of transactions that were made durable together, with the buckets of
    /// [`GROUP_SIZE_BOUNDS`]. Only a durable store has groups.
    pub group_sizes: [u64; GROUP_SIZE_BOUNDS.len() + 1],
    /// Number of fsync calls.
    pub syncs: u64,
    /// Total time of these calls.
    pub sync_time: Duration,
    /// How often the published state was read from etcd as a whole, including the first time.
    pub loads: u64,
    /// Number of published objects of each resource.
    pub objects: Vec<(Resource, usize)>,
    /// The published revision.
    pub revision: u64,
}

/// The counters behind [`Metrics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    committed: AtomicU64,
    conflicts: AtomicU64,
    failed: AtomicU64,
    group_sizes: [AtomicU64; GROUP_SIZE_BOUNDS.len() + 1],
    syncs: AtomicU64,
    sync_nanos: AtomicU64,
    /// When the fsync in progress began.
    sync_began: Mutex<Option<Instant>>,
    loads: AtomicU64,
}

impl Counters {
    pub(crate) fn outcome<T>(&self, outcome: &Result<T, crate::CommitError>) {
        let counter = match outcome {
            Ok(_) => &self.committed,
            Err(crate::CommitError::Conflict { .. }) => &self.conflicts,
            Err(_) => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the number of transactions that were carried out.
    #[cfg(test)]
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Relaxed)
    }

    pub(crate) fn group(&self, size: usize) {
        let class = GROUP_SIZE_BOUNDS.partition_point(|bound| *bound < size as u64);
        if let Some(counter) = self.group_sizes.get(class) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Notes that an fsync begins. [`Counters::sync`] must follow.
    pub(crate) fn begin_sync(&self, now: Instant) {
        *self.sync_began.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// Returns when the fsync in progress began, if there is one.
    pub(crate) fn sync_in_progress(&self) -> Option<Instant> {
        *self.sync_began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an fsync has ended.
    pub(crate) fn sync(&self, took: Duration) {
        *self.sync_began.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.syncs.fetch_add(1, Relaxed);
        self.sync_nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    #[cfg(feature = "etcd")]
    pub(crate) fn load(&self) {
        self.loads.fetch_add(1, Relaxed);
    }

    pub(crate) fn read(&self, tables: &Tables) -> Metrics {
        Metrics {
            committed: self.committed.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            failed: self.failed.load(Relaxed),
            group_sizes: std::array::from_fn(|class| {
                self.group_sizes.get(class).map_or(0, |counter| counter.load(Relaxed))
            }),
            syncs: self.syncs.load(Relaxed),
            sync_time: Duration::from_nanos(self.sync_nanos.load(Relaxed)),
            loads: self.loads.load(Relaxed),
            objects: Resource::ALL
                .into_iter()
                .filter(|resource| resource.is_stored())
                .map(|resource| (resource, tables.count(resource)))
                .collect(),
            revision: tables.revision(),
        }
    }
}
