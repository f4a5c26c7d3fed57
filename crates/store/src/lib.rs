//! Where objects live: one revision counter, the current objects, enough history to resume and to page, and
//! transactions.
//!
//! Everything the server reads goes through [`Store`]. Reads come from memory in every store: what is durable and
//! therefore *published*. Writes are transactions, all or nothing, and return when they are published. Stores differ
//! in where the truth is: in this process ([`MemoryStore`]), in a file ([`DurableStore`]), in etcd ([`EtcdStore`]). It must not know of HTTP, validation
//! or allocation.

mod durable;
mod error;
mod etcd;
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
    durable::DurableStore,
    error::OpenError,
    etcd::{Credentials, EtcdOptions, EtcdStore, EtcdTls},
    memory::MemoryStore,
    metrics::{GROUP_SIZE_BOUNDS, Metrics},
    object::{Draft, Pairs, StoredObject},
    transaction::{CommitError, Committed, Step, Transaction},
};

/// How much history each resource keeps. A watch or page from before it is answered with 410 Expired.
#[derive(Debug, Clone, Copy)]
pub struct History {
    /// Most changes kept.
    pub max_changes: usize,
    /// Most bytes kept of objects that are no longer current.
    pub max_superseded_bytes: usize,
}

impl Default for History {
    fn default() -> Self {
        Self { max_changes: 65_536, max_superseded_bytes: 8 << 20 }
    }
}

/// A versioned store of objects with one global, strictly increasing revision.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The revision of the last write, of any resource. Never 0.
    fn revision(&self) -> u64;

    /// The object with this key.
    fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>>;

    /// How many objects of the resource there are.
    fn count(&self, resource: Resource) -> usize;

    /// All objects in `scope`, in key order, as they are now or as they were right after revision `at`.
    fn snapshot(&self, resource: Resource, scope: &Scope<'_>, at: Option<u64>) -> Result<Snapshot, Expired>;

    /// The object with this key as the next transaction will find it: with every transaction that has been accepted,
    /// published or not.
    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>>;

    /// Does all steps of the transaction or none. A store of this process judges the conditions and takes the
    /// transaction's place in the order before this returns, so that [`Store::latest`] shows it; the future is ready
    /// once it is as safe as the store promises, and published. Dropping the future does not undo anything.
    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>>;

    /// Waits until what is published is at least as new as the truth was at the call; returns its revision. To be
    /// called before a transaction that met a conflict is made again.
    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>>;

    /// At most `limit` changes with a revision greater than `after`, in order, none missing. A revision that is not
    /// published is [`Expired`], too; where servers share one state, another of them may have published it already:
    /// [`Store::refresh`] comes first then. The same holds for [`Store::snapshot`].
    fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired>;

    /// A signal that fires at each change of the resource.
    fn subscribe(&self, resource: Resource) -> watch::Receiver<u64>;

    /// Whether writes are carried out, as far as is known; the text says what keeps them from it. Waits for nothing.
    fn writable(&self) -> Result<(), String> {
        Ok(())
    }

    /// What the store has counted so far.
    fn metrics(&self) -> Metrics;
}

/// Which objects of a resource.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// Only this namespace.
    pub namespace: Option<&'a str>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
    /// Only the object with this key; it is found without looking at others.
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
    /// Every change up to this revision is in here or was before.
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

/// The history no longer reaches back to the requested revision, or it never belonged to this store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("revision {requested} is no longer known; the oldest is {oldest}")]
pub struct Expired {
    /// What was asked.
    pub requested: u64,
    /// The oldest revision that can be asked.
    pub oldest: u64,
}
