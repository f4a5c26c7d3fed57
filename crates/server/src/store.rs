//! Where objects live: one revision counter, the current objects, and enough history to resume and to page.
//!
//! Everything the server reads goes through [`Store`]; a durable store replaces [`MemoryStore`] behind it. Reads are
//! served from memory in any case (a durable store keeps the same cache), writes return when they are as safe as the
//! store promises.

mod memory;

use std::{fmt, sync::Arc};

use thiserror::Error;
use tokio::sync::watch;

pub use self::memory::MemoryStore;
use crate::{
    object::{Draft, StoredObject},
    resource::Resource,
};

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

    /// Writes one object. `expected` is the revision it must have now, `None` if it must not exist.
    fn put(
        &self,
        resource: Resource,
        draft: Draft,
        expected: Option<u64>,
    ) -> Result<Arc<StoredObject>, Superseded>;

    /// Removes the object, which must be at revision `expected`; returns the revision of the removal.
    fn remove(&self, resource: Resource, key: &str, expected: u64) -> Result<u64, Superseded>;

    /// At most `limit` changes with a revision greater than `after`, in order, none missing.
    fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired>;

    /// A signal that fires at each change of the resource.
    fn subscribe(&self, resource: Resource) -> watch::Receiver<u64>;
}

/// Which objects of a resource.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// Only this namespace.
    pub namespace: Option<&'a str>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
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

/// The object is not at the expected revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the object is at revision {actual:?}, not the expected one")]
pub struct Superseded {
    /// Revision of the object now; `None` if it does not exist.
    pub actual: Option<u64>,
}
