//! Transactions between their acceptance and their publication.
//!
//! A transaction is judged against what is published and, before that, against what has been accepted ahead of it; so
//! nobody waits for the disk to be judged. An answer that rests on something not yet durable waits until that is.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::Arc,
};

use portolan_schema::Resource;
use tokio::sync::oneshot;

use crate::{CommitError, Committed, StoredObject, Transaction, transaction::Write};

/// Where the answer to a transaction goes.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) to: oneshot::Sender<Result<Committed, CommitError>>,
    /// Whether it is a client's transaction, and not only the wait for those before it.
    pub(super) counted: bool,
}

/// Most transactions and about the most bytes in one group, so that none waits long for the others.
const GROUP_TRANSACTIONS: usize = 1024;
const GROUP_BYTES: usize = 4 << 20;
/// Most transactions in a group while the disk is full, so that what they need for a moment is within the reserve.
const GROUP_WHEN_FULL: usize = 64;

/// What has been accepted and is not yet published.
#[derive(Debug)]
pub(super) struct Queue {
    /// The last revision given out.
    revision: u64,
    overlay: [HashMap<Box<str>, Latest>; Resource::ALL.len()],
    judged: VecDeque<Judged>,
    /// Whether a group is on its way to the disk.
    writing: bool,
    /// Transactions that came while the state of the file is not known. They are judged when it is.
    unjudged: Option<Vec<(Transaction, Answer)>>,
    /// Whether the disk is full: what makes no room is held back.
    is_full: bool,
    held_back: Vec<(Transaction, Answer)>,
}

/// The accepted state of an object: `None` if it will be gone.
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

/// How a transaction of a group was judged, and where that goes.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) answer: Answer,
    pub(super) outcome: Result<Committed, CommitError>,
    /// The transaction itself, if it is worth another try where the disk turns out to be full.
    pub(super) again: Option<Transaction>,
}

/// Transactions that become durable together.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// All that they write, in order.
    pub(super) writes: Vec<Write>,
    answers: Vec<Settled>,
}

/// What [`Queue::submit`] did with a transaction.
#[derive(Debug)]
pub(super) enum Submitted {
    /// It waits for the writer.
    Queued,
    /// It can be answered at once.
    Answered(Answer, Result<Committed, CommitError>),
}

impl Queue {
    /// Nothing yet, after this revision.
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

    /// From now on the disk is full, or is so no longer.
    pub(super) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Whether something waits for room.
    pub(super) fn has_held_back(&self) -> bool {
        !self.held_back.is_empty()
    }

    /// What waits for room.
    pub(super) fn take_held_back(&mut self) -> Vec<(Transaction, Answer)> {
        mem::take(&mut self.held_back)
    }

    /// The object as the next transaction finds it. `published` is consulted for what is not here.
    pub(super) fn latest(
        &self,
        resource: Resource,
        key: &str,
        published: impl Fn(Resource, &str) -> Option<Arc<StoredObject>>,
    ) -> Option<Arc<StoredObject>> {
        let accepted = self.overlay.get(resource.index()).and_then(|overlay| overlay.get(key));
        accepted.map_or_else(|| published(resource, key), |latest| latest.object.clone())
    }

    /// Judges a transaction and gives it its place in the order.
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
        let makes_room = transaction.makes_room();
        if self.is_full && transaction.writes() && !makes_room {
            self.held_back.push((transaction, answer));
            return Submitted::Queued;
        }
        let again = (makes_room && !self.is_full).then(|| transaction.clone());
        let view = |resource, key: &str| self.latest(resource, key, &published);
        let (outcome, writes) = match transaction.judge(view) {
            Ok(()) => {
                let (committed, writes) = transaction.carry_out(self.revision, view);
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

    /// The next group, once there is one.
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

    /// The group is published: `latest` no longer needs it.
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

    /// A group failed: everything behind it rests on it and is dropped, and from now on nothing is judged.
    pub(super) fn stop_judging(&mut self) -> Vec<(Answer, Option<Transaction>)> {
        self.writing = false;
        self.overlay.iter_mut().for_each(HashMap::clear);
        self.unjudged.get_or_insert_default();
        mem::take(&mut self.judged).into_iter().map(|judged| (judged.answer, judged.again)).collect()
    }

    /// Whether something waits for the file to be opened again.
    pub(super) fn has_unjudged(&self) -> bool {
        self.unjudged.as_ref().is_some_and(|unjudged| !unjudged.is_empty())
    }

    /// What came since judging stopped, to be refused while it goes on like this.
    pub(super) fn take_unjudged(&mut self) -> Vec<(Transaction, Answer)> {
        self.unjudged.as_mut().map(mem::take).unwrap_or_default()
    }

    /// The file is known again. What came meanwhile is to be submitted.
    pub(super) fn judge_again(&mut self) -> Vec<(Transaction, Answer)> {
        self.unjudged.take().unwrap_or_default()
    }
}

impl Group {
    /// The last revision in it; `None` if it writes nothing.
    pub(super) fn revision(&self) -> Option<u64> {
        self.writes.last().map(|write| write.change.revision)
    }

    /// How many transactions it carries out.
    pub(super) fn size(&self) -> usize {
        self.answers.iter().filter(|settled| settled.outcome.is_ok() && settled.answer.counted).count()
    }

    /// Takes the answers.
    pub(super) fn answers(&mut self) -> Vec<Settled> {
        mem::take(&mut self.answers)
    }
}
