//! The object store: one revision counter, the current objects, their history, and transactions. The history lets
//! clients resume watches and continue paged lists.
//!
//! Everything the API server reads and writes goes through [`Store`]. A transaction is carried out whole or not at
//! all. Its commit returns when its changes are *published*, that is, visible to readers. Each object that a
//! transaction writes gets its own revision, so a watch can be resumed between any two.
//!
//! Reads come from memory in every store and show only what is published. Writers see every accepted transaction
//! ([`Store::latest`]), so many writes share one fsync without waiting for each other.
//!
//! The stores differ in where the authoritative state is: in this process ([`MemoryStore`]), in a file
//! ([`DurableStore`]), or in etcd (`EtcdStore`, with the feature `etcd`). This crate must not know of HTTP, validation or allocation.

mod delta;
mod durable;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "faulty")]
pub mod faulty;
mod memory;
mod metrics;
mod names;
mod object;
mod published;
mod tables;
mod transaction;
mod trouble;

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use portolan_schema::Resource;
use thiserror::Error;
use tokio::sync::watch;

pub use self::{
    durable::{DurableStore, offline},
    error::OpenError,
    memory::MemoryStore,
    metrics::{GROUP_SIZE_BOUNDS, Metrics},
    object::{Draft, Pairs, StoredObject},
    transaction::{CommitError, Committed, Step, Transaction},
};

#[cfg(feature = "fuzzing")]
pub use self::durable::fuzzing;

#[cfg(feature = "etcd")]
pub use self::etcd::{Credentials, EtcdOptions, EtcdStore, EtcdTls, Renewal, Secrets};

/// Limits of the history that is kept for each resource. A watch or a page that starts before the history gets 410
/// Expired.
#[derive(Debug, Clone, Copy)]
pub struct History {
    /// Maximum number of changes.
    pub max_changes: usize,
    /// Maximum number of bytes in superseded objects: former versions and deleted objects.
    pub max_superseded_bytes: usize,
}

impl Default for History {
    fn default() -> Self {
        Self { max_changes: 65_536, max_superseded_bytes: 8 << 20 }
    }
}

/// A versioned store of objects with one global, strictly increasing revision.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns the revision of the last published write to any resource. Never 0.
    fn revision(&self) -> u64;

    /// Returns the published object with this key.
    fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>>;

    /// Returns the number of published objects of the resource.
    fn count(&self, resource: Resource) -> usize;

    /// Returns all objects in `scope`, in key order: the current ones, or those that existed right after revision
    /// `at`.
    fn snapshot(&self, resource: Resource, scope: &Scope<'_>, at: Option<u64>) -> Result<Snapshot, Expired>;

    /// Returns the object with this key as the next transaction finds it: with every accepted transaction applied,
    /// published or not.
    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>>;

    /// Carries out all steps of the transaction or none. [`MemoryStore`] and [`DurableStore`] check the conditions
    /// and fix the transaction's place in the order before this returns, so [`Store::latest`] shows its changes. The
    /// future completes when the transaction is published and as durable as the store promises. Dropping the future
    /// does not cancel the transaction.
    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>>;

    /// Returns how many steps a transaction may have, whatever they are. `None` if the store has no limit.
    fn most_steps(&self) -> Option<usize> {
        None
    }

    /// Waits until the published state is at least as new as the authoritative state was at the call. Returns its
    /// revision. Call it before retrying a transaction that met a conflict.
    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>>;

    /// Waits until the published state has every write that any server answered before the call. Returns its revision.
    /// Enough for reads: unlike [`Store::refresh`], it does not wait for transactions in progress.
    fn refresh_for_reads(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        self.refresh()
    }

    /// Returns at most `limit` changes with a revision greater than `after`, in order, without gaps. Returns
    /// [`Expired`] for a revision that is not in the history and for one that is not published. If several servers
    /// share one state, another server may have published that revision already: call [`Store::refresh_for_reads`] first. The
    /// same holds for [`Store::snapshot`].
    fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired>;

    /// Returns a signal that fires at each change of the resource.
    fn subscribe(&self, resource: Resource) -> watch::Receiver<u64>;

    /// Returns an error if writes or reads are known to fail; the text says why. Does not wait for anything.
    fn writable(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the store's counters.
    fn metrics(&self) -> Metrics;
}

/// Selects objects of a resource.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// Only this namespace.
    pub namespace: Option<&'a str>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
    /// Only the object with this key. The store looks it up directly instead of scanning the resource.
    pub key: Option<&'a str>,
}

/// Objects as they were at one revision.
#[derive(Debug)]
pub struct Snapshot {
    /// The revision.
    pub revision: u64,
    /// The objects, in key order.
    pub objects: Vec<Arc<StoredObject>>,
}

/// A run of changes.
#[derive(Debug)]
pub struct Changes {
    /// The changes, in order of revision.
    pub changes: Vec<Change>,
    /// Every change up to this revision is in `changes` or came before them.
    pub through: u64,
}

/// One change of one object: created (no `old`), changed, or deleted (no `new`).
#[derive(Debug, Clone)]
pub struct Change {
    /// Revision of the change.
    pub revision: u64,
    /// The object before.
    pub old: Option<Arc<StoredObject>>,
    /// The object after.
    pub new: Option<Arc<StoredObject>>,
}

/// The requested revision is older than the history, or this store never assigned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("revision {requested} is no longer known; the oldest is {oldest}")]
pub struct Expired {
    /// The requested revision.
    pub requested: u64,
    /// The oldest revision that can be requested.
    pub oldest: u64,
}
