//! Transactions: what is to be written, and on which conditions.

use std::sync::Arc;

use portolan_schema::Resource;
use thiserror::Error;

use crate::{
    Change,
    object::{Draft, StoredObject},
};

/// Steps that are carried out all, in this order, or not at all. No two steps may concern the same object. Each step
/// that writes gets a revision of its own, greater than those before it, so a watch can be resumed between any two.
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    /// The steps.
    pub steps: Vec<Step>,
}

/// One step. `expected` is the revision that the object must have; `None` if it must not exist.
#[derive(Debug, Clone)]
pub enum Step {
    /// Writes an object.
    Put {
        /// The resource of the object.
        resource: Resource,
        /// Its new content.
        draft: Draft,
        /// The condition.
        expected: Option<u64>,
    },
    /// Removes an object.
    Remove {
        /// The resource of the object.
        resource: Resource,
        /// Its key.
        key: Box<str>,
        /// The condition.
        expected: u64,
    },
    /// Only checks the condition and writes nothing.
    Require {
        /// The resource of the object.
        resource: Resource,
        /// Its key.
        key: Box<str>,
        /// The condition.
        expected: Option<u64>,
    },
}

/// A transaction that was carried out.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    /// Revision of the last step that wrote. If no step wrote, the revision of the store.
    pub revision: u64,
    /// The objects of the [`Step::Put`] steps, in order.
    pub objects: Vec<Arc<StoredObject>>,
}

/// Why a transaction was not carried out, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitError {
    /// A condition does not hold; nothing was written.
    #[error("{} {key} is not as expected: its revision is {actual:?}", .resource.info().kind)]
    Conflict {
        /// Index of the step.
        step: usize,
        /// The resource of the object.
        resource: Resource,
        /// Its key.
        key: Box<str>,
        /// Its revision. `None` if it does not exist or the store does not know it.
        actual: Option<u64>,
    },
    /// The store does not accept transactions of this size. Nothing was written.
    #[error("the write is too large for the store: {0}")]
    TooLarge(String),
    /// The store cannot write. Nothing was written.
    #[error("the store cannot write: {0}")]
    Unavailable(String),
    /// The store cannot show its current state. Returned by [`Store::refresh`](crate::Store::refresh).
    #[error("the store cannot be read: {0}")]
    Unreadable(String),
    /// The store failed or did not answer in time. It is unknown whether the transaction was carried out.
    #[error("the store did not confirm the write, which may or may not have been done: {0}")]
    Unknown(String),
}

impl Transaction {
    /// Creates a transaction that writes one object.
    pub fn put(resource: Resource, draft: Draft, expected: Option<u64>) -> Self {
        Self { steps: vec![Step::Put { resource, draft, expected }] }
    }

    /// Creates a transaction that removes one object.
    pub fn remove(resource: Resource, key: &str, expected: u64) -> Self {
        Self { steps: vec![Step::Remove { resource, key: key.into(), expected }] }
    }
}

/// One change before its publication.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) resource: Resource,
    pub(crate) change: Change,
}

/// Maximum size in bytes of an object with a deletionTimestamp that may be written on a full disk.
const MOST_ENDING: usize = 64 << 10;

impl Transaction {
    /// Returns true if the transaction only removes objects or writes objects with a deletionTimestamp, and at least
    /// one of these. Such transactions free space, at once or later.
    pub(crate) fn frees_space(&self) -> bool {
        self.writes()
            && self.steps.iter().all(|step| match step {
                Step::Put { draft, .. } => draft.is_ending() && draft.size() <= MOST_ENDING,
                Step::Remove { .. } | Step::Require { .. } => true,
            })
    }

    /// Returns true if the transaction removes objects and writes none.
    #[cfg(feature = "etcd")]
    pub(crate) fn only_removes(&self) -> bool {
        self.writes() && !self.steps.iter().any(|step| matches!(step, Step::Put { .. }))
    }

    /// Returns true if the transaction writes anything when its conditions hold.
    pub(crate) fn writes(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, Step::Require { .. }))
    }

    /// Checks that every condition holds in `view`.
    pub(crate) fn judge(
        &self,
        view: impl Fn(Resource, &str) -> Option<Arc<StoredObject>>,
    ) -> Result<(), CommitError> {
        for (position, step) in self.steps.iter().enumerate() {
            let actual = view(step.resource(), step.key()).map(|object| object.revision());
            if actual != step.expected() {
                return Err(step.conflict(position, actual));
            }
        }
        Ok(())
    }

    /// Returns the result of the transaction and the changes that it makes to `view`. Their revisions follow
    /// `revision`.
    pub(crate) fn apply(
        self,
        mut revision: u64,
        view: impl Fn(Resource, &str) -> Option<Arc<StoredObject>>,
    ) -> (Committed, Vec<Write>) {
        let (mut objects, mut writes) = (Vec::new(), Vec::new());
        for step in self.steps {
            let resource = step.resource();
            let old = view(resource, step.key());
            let next = revision.saturating_add(1);
            let new = match step {
                Step::Put { draft, .. } => Some(Arc::new(draft.at(next))),
                Step::Remove { .. } => None,
                Step::Require { .. } => continue,
            };
            revision = next;
            objects.extend(new.clone());
            writes.push(Write { resource, change: Change { revision, old, new } });
        }
        (Committed { revision, objects }, writes)
    }
}

impl Step {
    /// Returns the error for this step's condition.
    pub(crate) fn conflict(&self, position: usize, actual: Option<u64>) -> CommitError {
        CommitError::Conflict { step: position, resource: self.resource(), key: self.key().into(), actual }
    }

    /// Returns the resource of the object.
    pub fn resource(&self) -> Resource {
        match self {
            Self::Put { resource, .. } | Self::Remove { resource, .. } | Self::Require { resource, .. } => {
                *resource
            }
        }
    }

    /// Returns the key of the object.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { draft, .. } => draft.key(),
            Self::Remove { key, .. } | Self::Require { key, .. } => key,
        }
    }

    /// Returns the revision that the object must have; `None` if it must not exist.
    pub fn expected(&self) -> Option<u64> {
        match self {
            Self::Put { expected, .. } | Self::Require { expected, .. } => *expected,
            Self::Remove { expected, .. } => Some(*expected),
        }
    }
}
