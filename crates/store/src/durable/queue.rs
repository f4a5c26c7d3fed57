//! Transactions between their acceptance and their publication.
//!
//! The conditions of a transaction are checked against the accepted transactions before it, and where these have not
//! changed an object, against the published state. So a check does not wait for the disk. An outcome that depends on
//! changes that are not yet durable is held until they are.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
};

use portolan_schema::Resource;
use tokio::sync::oneshot;

use crate::{CommitError, Committed, StoredObject, Transaction, transaction::Write};

/// Where the outcome of a transaction is sent.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to: oneshot::Sender<Result<Committed, CommitError>>,
    /// True for a client's transaction. False for an empty one that only waits for those before it.
    pub(super) counted: bool,
}

/// Maximum number of transactions and approximate maximum number of bytes in one group. The limits bound how long a
/// transaction waits for the rest of its group.
const GROUP_TRANSACTIONS: usize = 1024;
const GROUP_BYTES: usize = 4 << 20;
/// Maximum number of transactions in a group while the disk is full, so that the space they need temporarily fits
/// into the reserve.
const GROUP_WHEN_FULL: usize = 64;

/// Transactions that are accepted and not yet published.
#[derive(Debug)]
pub(super) struct Queue {
    /// The last revision assigned.
    revision: u64,
    overlay: [HashMap<Box<str>, Latest>; Resource::ALL.len()],
    judged: VecDeque<Judged>,
    /// True while a group is being written to the disk.
    writing: bool,
    /// Transactions submitted while the state of the file is unknown. They are checked when it is known. `None` while
    /// it is known.
    unjudged: Option<Vec<(Transaction, Answer)>>,
    /// True while the disk is full. Transactions that write without freeing space are then held back.
    is_full: bool,
    held_back: Vec<(Transaction, Answer)>,
}

/// The accepted state of an object. `object` is `None` if it is deleted.
#[derive(Debug)]
struct Latest {
    revision: u64,
    object: Option<Arc<StoredObject>>,
}

#[derive(Debug)]
struct Judged {
    writes: Vec<Write>,
    outcome: Result<Committed, CommitError>,
    answer: Answer,
    again: Option<Transaction>,
}

/// The outcome of a transaction of a group, and where it is sent.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) answer: Answer,
    pub(super) outcome: Result<Committed, CommitError>,
    /// The transaction itself, if it frees space and is worth a retry when the disk turns out to be full.
    pub(super) again: Option<Transaction>,
}

/// Transactions that become durable together.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// All changes of the group, in order.
    pub(super) writes: Vec<Write>,
    answers: Vec<Settled>,
}

/// What [`Queue::submit`] did with a transaction.
#[derive(Debug)]
pub(super) enum Submitted {
    /// The transaction is pending.
    Queued,
    /// The outcome is known and depends on nothing that is not yet durable.
    Answered(Answer, Result<Committed, CommitError>),
}

impl Queue {
    /// Creates an empty queue. The next revision follows `revision`.
    pub(super) fn new(revision: u64) -> Self {
        Self {
            revision,
            overlay: std::array::from_fn(|_| HashMap::new()),
            judged: VecDeque::new(),
            writing: false,
            unjudged: None,
            is_full: false,
            held_back: Vec::new(),
        }
    }

    /// Returns the last revision that was assigned.
    #[cfg(test)]
    pub(super) fn last_revision(&self) -> u64 {
        self.revision
    }

    /// Sets whether the disk is full.
    pub(super) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Returns true if transactions are held back because the disk is full.
    pub(super) fn has_held_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// Removes and returns the transactions that are held back because the disk is full.
    pub(super) fn take_held_back(&mut self) -> Vec<(Transaction, Answer)> {
        mem::take(&mut self.held_back)
    }

    /// Returns the object as the next transaction finds it. `published` looks up objects that no accepted transaction
    /// has changed.
    pub(super) fn latest(
        &self,
        resource: Resource,
        key: &str,
        published: impl Fn(Resource, &str) -> Option<Arc<StoredObject>>,
    ) -> Option<Arc<StoredObject>> {
        let accepted = self.overlay.get(resource.index()).and_then(|overlay| overlay.get(key));
        accepted.map_or_else(|| published(resource, key), |latest| latest.object.clone())
    }

    /// Checks the conditions of a transaction and appends it to the queue. If the state of the file is unknown, or
    /// the disk is full and the transaction does not free space, it is kept unchecked.
    pub(super) fn submit(
        &mut self,
        transaction: Transaction,
        answer: Answer,
        published: impl Fn(Resource, &str) -> Option<Arc<StoredObject>>,
    ) -> Submitted {
        if let Some(unjudged) = &mut self.unjudged {
            unjudged.push((transaction, answer));
            return Submitted::Queued;
        }
        let frees_space = transaction.frees_space();
        if self.is_full && transaction.writes() && !frees_space {
            self.held_back.push((transaction, answer));
            return Submitted::Queued;
        }
        let again = (frees_space && !self.is_full).then(|| transaction.clone());
        let view = |resource, key: &str| self.latest(resource, key, &published);
        let (outcome, writes) = match transaction.judge(view) {
            Ok(()) => {
                let (committed, writes) = transaction.apply(self.revision, view);
                (Ok(committed), writes)
            }
            Err(conflict) => (Err(conflict), Vec::new()),
        };
        if writes.is_empty() && self.is_idle() {
            return Submitted::Answered(answer, outcome);
        }
        for Write { resource, change } in &writes {
            self.revision = change.revision;
            let key = change.new.as_ref().or(change.old.as_ref()).map(|object| object.key());
            if let (Some(overlay), Some(key)) = (self.overlay.get_mut(resource.index()), key) {
                overlay.insert(key.into(), Latest { revision: change.revision, object: change.new.clone() });
            }
        }
        self.judged.push_back(Judged { writes, outcome, answer, again });
        Submitted::Queued
    }

    fn is_idle(&self) -> bool {
        !self.writing && self.judged.is_empty()
    }

    /// Removes the next group from the queue. Returns `None` if no transaction is pending.
    pub(super) fn take_group(&mut self) -> Option<Group> {
        let mut group = Group::default();
        let mut bytes = 0_usize;
        let most = if self.is_full { GROUP_WHEN_FULL } else { GROUP_TRANSACTIONS };
        while group.answers.len() < most && bytes < GROUP_BYTES {
            let Some(next) = self.judged.pop_front() else { break };
            let objects = next.writes.iter().filter_map(|write| write.change.new.as_ref());
            bytes = objects.fold(bytes, |sum, object| sum.saturating_add(object.body().len()));
            group.writes.extend(next.writes);
            let Judged { outcome, answer, again, .. } = next;
            group.answers.push(Settled { answer, outcome, again });
        }
        self.writing = !group.answers.is_empty();
        self.writing.then_some(group)
    }

    /// Removes the changes of a published group from those that `latest` consults.
    pub(super) fn published(&mut self, writes: &[Write]) {
        self.writing = false;
        for Write { resource, change } in writes {
            let key = change.new.as_ref().or(change.old.as_ref()).map(|object| object.key());
            if let (Some(overlay), Some(key)) = (self.overlay.get_mut(resource.index()), key)
                && overlay.get(key).is_some_and(|latest| latest.revision == change.revision)
            {
                overlay.remove(key);
            }
        }
    }

    /// Drops everything behind a failed group, because it depends on that group. Later transactions are kept
    /// unchecked. Returns what was dropped.
    pub(super) fn stop_judging(&mut self) -> Vec<(Answer, Option<Transaction>)> {
        self.writing = false;
        self.overlay.iter_mut().for_each(HashMap::clear);
        self.unjudged.get_or_insert_default();
        mem::take(&mut self.judged).into_iter().map(|judged| (judged.answer, judged.again)).collect()
    }

    /// Returns true if transactions are waiting for the file to be opened again.
    pub(super) fn has_unjudged(&self) -> bool {
        self.unjudged.as_ref().is_some_and(|unjudged| !unjudged.is_empty())
    }

    /// Removes and returns the transactions submitted since checking stopped. Checking stays stopped.
    pub(super) fn take_unjudged(&mut self) -> Vec<(Transaction, Answer)> {
        self.unjudged.as_mut().map(mem::take).unwrap_or_default()
    }

    /// Resumes checking, because the state of the file is known again. Returns the transactions submitted in between;
    /// the caller submits them again.
    pub(super) fn judge_again(&mut self) -> Vec<(Transaction, Answer)> {
        self.unjudged.take().unwrap_or_default()
    }
}

impl Group {
    /// Returns the last revision of the group; `None` if it writes nothing.
    pub(super) fn revision(&self) -> Option<u64> {
        self.writes.last().map(|write| write.change.revision)
    }

    /// Returns the number of clients' transactions that the group carries out.
    pub(super) fn size(&self) -> usize {
        self.answers.iter().filter(|settled| settled.outcome.is_ok() && settled.answer.counted).count()
    }

    /// Removes and returns the outcomes.
    pub(super) fn answers(&mut self) -> Vec<Settled> {
        mem::take(&mut self.answers)
    }
}
