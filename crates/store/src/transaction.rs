//! What is to be written, on which conditions.

use std::sync::Arc;

use portolan_schema::Resource;
use thiserror::Error;

use crate::{
    Change,
    object::{Draft, StoredObject},
};

/// Steps that are all done, in this order, or none of them. No two may be about the same object. Each that writes gets
/// a revision of its own, greater than those before it, so that a watch can be resumed between any two.
#[derive(Debug, Clone, Default)]
pub struct Transaction {
    /// The steps.
    pub steps: Vec<Step>,
}

/// One step. `expected` is the revision that the object must have, `None` if it must not exist.
#[derive(Debug, Clone)]
pub enum Step {
    /// Writes an object.
    Put {
        /// What kind of object.
        resource: Resource,
        /// Its new content.
        draft: Draft,
        /// The condition.
        expected: Option<u64>,
    },
    /// Removes an object.
    Remove {
        /// What kind of object.
        resource: Resource,
        /// Its key.
        key: Box<str>,
        /// The condition.
        expected: u64,
    },
    /// Writes nothing, and only asks for the condition.
    Require {
        /// What kind of object.
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
    /// Revision of the last step that wrote; of the store, if none did.
    pub revision: u64,
    /// The objects of the steps that put one, in order.
    pub objects: Vec<Arc<StoredObject>>,
}

/// Why a transaction was not carried out, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitError {
    /// A condition does not hold; nothing was written.
    #[error("{} {key} is not as expected: its revision is {actual:?}", .resource.info().kind)]
    Conflict {
        /// Position of the step.
        step: usize,
        /// What kind of object.
        resource: Resource,
        /// Its key.
        key: Box<str>,
        /// Its revision; `None` if it does not exist or where the store does not tell.
        actual: Option<u64>,
    },
    /// The store does not take transactions as large as this; nothing was written.
    #[error("the write is too large for the store: {0}")]
    TooLarge(String),
    /// The store cannot write now; nothing was written.
    #[error("the store cannot write: {0}")]
    Unavailable(String),
    /// The store did not answer in time or broke off: whether it wrote is not known.
    #[error("the store did not confirm the write, which may or may not have been done: {0}")]
    Unknown(String),
}

impl Transaction {
    /// Writes one object.
    pub fn put(resource: Resource, draft: Draft, expected: Option<u64>) -> Self {
        Self { steps: vec![Step::Put { resource, draft, expected }] }
    }

    /// Removes one object.
    pub fn remove(resource: Resource, key: &str, expected: u64) -> Self {
        Self { steps: vec![Step::Remove { resource, key: key.into(), expected }] }
    }
}

/// One change on its way to be published.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) resource: Resource,
    pub(crate) change: Change,
}

/// Bytes of an object that is being deleted which may be written where only what makes room is.
const MOST_ENDING: usize = 64 << 10;

impl Transaction {
    /// Whether it deletes something and writes nothing else: what is removed, and the mark on what is going to be.
    pub(crate) fn makes_room(&self) -> bool {
        self.writes()
            && self.steps.iter().all(|step| match step {
                Step::Put { draft, .. } => draft.is_ending() && draft.size() <= MOST_ENDING,
                Step::Remove { .. } | Step::Require { .. } => true,
            })
    }

    /// Whether it writes anything if its conditions hold.
    pub(crate) fn writes(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, Step::Require { .. }))
    }

    /// Whether every condition holds in `view`.
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

    /// The changes that this makes of `view`, with the revisions after `revision`, and what to answer.
    pub(crate) fn carry_out(
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
    /// This step's condition does not hold.
    pub(crate) fn conflict(&self, position: usize, actual: Option<u64>) -> CommitError {
        CommitError::Conflict { step: position, resource: self.resource(), key: self.key().into(), actual }
    }

    /// What kind of object it is about.
    pub fn resource(&self) -> Resource {
        match self {
            Self::Put { resource, .. } | Self::Remove { resource, .. } | Self::Require { resource, .. } => {
                *resource
            }
        }
    }

    /// Key of the object.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { draft, .. } => draft.key(),
            Self::Remove { key, .. } | Self::Require { key, .. } => key,
        }
    }

    /// Revision that the object must have, `None` if it must not exist.
    pub fn expected(&self) -> Option<u64> {
        match self {
            Self::Put { expected, .. } | Self::Require { expected, .. } => *expected,
            Self::Remove { expected, .. } => Some(*expected),
        }
    }
}
