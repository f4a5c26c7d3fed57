//! The thread that writes: group after group, and what happens when one fails.
//!
//! A failed write leaves open whether it is in the file. So the file is opened again and asked. Until that has worked,
//! nothing is judged, for the same reason; each transaction that comes makes another attempt.
//!
//! On a full disk deletions go on, from the reserve ([`super::space`]); everything else is refused until the reserve is
//! whole again. Deletions make room inside the file. When something else is to be written, the history is forgotten and
//! the file is made as short as it can be: that gives the room to the disk, and so to the reserve.

use std::{
    convert::Infallible,
    mem,
    sync::{Arc, PoisonError},
    time::Duration,
};

use redb::Database;
use tracing::{error, info, warn};

use super::{
    Shared,
    file::{self, Folder, Forget},
    queue::{Answer, Group, Settled},
    space::Space,
};
use crate::{CommitError, Transaction, published::Publication, transaction::Write};

/// While writes fail, it is tried this often whether they would do again.
const PROBE: Duration = Duration::from_secs(2);
/// Changes whose entries are forgotten in one transaction of the database while the disk is full: each may change a page.
const FORGET_WHEN_FULL: usize = 256;
/// What is said of a full disk.
const FULL: &str = "the disk with the data folder is full: delete objects, or make room on the disk";

/// The writer thread's own state.
pub(super) struct Writer {
    folder: Folder,
    file: State,
    /// What the history has dropped; the next group takes it along.
    forget: Forget,
    /// How many of these the write under way takes along.
    forgetting: usize,
    space: Space,
    shared: Arc<Shared>,
}

/// What is known about the file.
enum State {
    /// It is what is published.
    Open(Database),
    /// It may or may not have these changes in addition.
    Doubtful(Vec<Write>),
}

/// What to do next.
enum Task {
    Write(Group),
    Reopen,
    MakeRoom,
    Probe,
    Close,
}

/// A group that failed and has not been answered yet.
struct Failed {
    group: Group,
    refused: CommitError,
    /// Transactions behind it that are tried again with it.
    behind: Vec<(Transaction, Answer)>,
    /// Whether what makes room is tried again, from the reserve.
    again: bool,
}

impl Writer {
    pub(super) fn new(
        folder: Folder,
        database: Database,
        (forget, space): (Forget, Space),
        shared: Arc<Shared>,
    ) -> Self {
        let writer = Self { folder, file: State::Open(database), forget, forgetting: 0, space, shared };
        if writer.space.is_full {
            warn!("{FULL}");
            writer.shared.lock().0.set_full(true);
            *writer.shared.trouble() = Some(FULL.to_owned());
        }
        writer
    }

    /// Works until the store is dropped and everything accepted is settled.
    pub(super) fn run(mut self) {
        loop {
            match self.next() {
                Task::Write(group) => self.write(group),
                Task::Reopen => self.reopen(None),
                Task::MakeRoom => self.make_room(),
                Task::Probe => self.probe(),
                Task::Close => return,
            }
        }
    }

    fn next(&self) -> Task {
        let fails = self.shared.trouble().is_some();
        let mut guard = self.shared.lock();
        loop {
            let (queue, closing) = &mut *guard;
            if let Some(group) = queue.take_group() {
                return Task::Write(group);
            }
            if queue.has_unjudged() {
                return Task::Reopen;
            }
            if queue.has_held_back() {
                return Task::MakeRoom;
            }
            if *closing {
                return Task::Close;
            }
            if fails {
                let waited = self.shared.wake.wait_timeout(guard, PROBE);
                let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                guard = again;
                if waited.timed_out() {
                    return Task::Probe;
                }
            } else {
                guard = self.shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn write(&mut self, mut group: Group) {
        let Some(revision) = group.revision() else { return self.settle(group) };
        if self.space.is_full {
            self.space.release();
        }
        let State::Open(database) = &self.file else { return };
        self.forgetting = if self.space.is_full { FORGET_WHEN_FULL } else { usize::MAX };
        match file::write(database, &group.writes, revision, (&self.forget, self.forgetting)) {
            Ok(()) => {
                self.forget.done(self.forgetting);
                self.shared.counters.group(group.size());
                if self.space.is_full {
                    self.space.has_freed = true;
                    self.space.restore();
                } else {
                    *self.shared.trouble() = None;
                }
                self.settle(group);
            }
            Err(reason) => {
                error!(%reason, "the store cannot write; its state can be read, and the next write tries again");
                // Nothing is published before the file has been asked; the database is closed for that.
                self.file = State::Doubtful(mem::take(&mut group.writes));
                let failed = self.fail(group, &reason);
                self.reopen(Some(failed));
                if self.space.is_full {
                    self.space.restore();
                }
            }
        }
    }

    /// Stops judging, and refuses what was behind the group; but where the disk turns out to be full, what makes room
    /// is kept, and the reserve is given for it.
    fn fail(&mut self, group: Group, reason: &redb::Error) -> Failed {
        let is_overflow = self.folder.takes_overflow();
        let again = is_overflow && !self.space.is_full;
        let refused = if is_overflow {
            CommitError::Unavailable(format!("{FULL} ({reason})"))
        } else {
            unavailable(reason)
        };
        *self.shared.trouble() = Some(refused.to_string());
        let stopped = {
            let (queue, _) = &mut *self.shared.lock();
            queue.set_full(self.space.is_full || is_overflow);
            queue.stop_judging()
        };
        if is_overflow {
            (self.space.is_full, self.space.has_freed) = (true, false);
            self.space.release();
        }
        let mut behind = Vec::new();
        for (answer, transaction) in stopped {
            match transaction.filter(|_| again) {
                Some(transaction) => behind.push((transaction, answer)),
                None => self.shared.answer(answer, Err(refused.clone())),
            }
        }
        Failed { group, refused, behind, again }
    }

    /// The group is durable, or writes nothing.
    fn settle(&mut self, mut group: Group) {
        self.publish(&mem::take(&mut group.writes));
        for Settled { answer, outcome, .. } in group.answers() {
            self.shared.answer(answer, outcome);
        }
    }

    fn publish(&mut self, writes: &[Write]) {
        let mut guard = self.shared.lock();
        let publication = Publication { writes: writes.to_vec(), through: 0 };
        let Ok(dropped) = self.shared.published.publish(|_| Ok::<_, Infallible>(publication));
        guard.0.published(writes);
        drop(guard);
        self.forget.add(&dropped);
    }

    /// Opens the file again and finds out whether it has the doubtful changes.
    fn reopen(&mut self, failed: Option<Failed>) {
        let State::Doubtful(writes) = &mut self.file else { return };
        let last = writes.last().map(|write| write.change.revision);
        let database = self.folder.open().or_else(|error| {
            // To be read, the file may have to be written to.
            if !self.folder.takes_overflow() {
                return Err(error);
            }
            self.space.release();
            self.folder.open()
        });
        let opened = database.and_then(|database| {
            let found = file::last_revision(&database).map_err(|error| self.folder.explain(error))?;
            Ok((database, found >= last))
        });
        match opened {
            Ok((database, written)) => {
                let writes = mem::take(writes);
                self.file = State::Open(database);
                info!(written, "the store can be read from its file again");
                if written {
                    self.forget.done(self.forgetting);
                    self.publish(&writes);
                }
                let mut waiting = failed.map_or_else(Vec::new, |failed| self.judged(failed, written));
                waiting.extend(self.shared.lock().0.judge_again());
                for (transaction, answer) in waiting {
                    self.shared.submit(transaction, answer);
                }
            }
            Err(reason) => {
                warn!(%reason, "the store's file cannot be opened again");
                *self.shared.trouble() = Some(reason.to_string());
                if let Some(mut failed) = failed {
                    let unknown = CommitError::Unknown(reason.to_string());
                    for Settled { answer, .. } in failed.group.answers() {
                        self.shared.answer(answer, Err(unknown.clone()));
                    }
                    for (_, answer) in failed.behind {
                        self.shared.answer(answer, Err(failed.refused.clone()));
                    }
                }
                for (_, answer) in self.shared.lock().0.take_unjudged() {
                    self.shared.answer(answer, Err(unavailable(&reason)));
                }
            }
        }
    }

    /// Answers a group of which it is known now whether it was written; returns what is to be tried again.
    fn judged(&self, mut failed: Failed, written: bool) -> Vec<(Transaction, Answer)> {
        let mut again = Vec::new();
        for Settled { answer, outcome, again: transaction } in failed.group.answers() {
            match transaction.filter(|_| failed.again && !written) {
                Some(transaction) => again.push((transaction, answer)),
                None if written => self.shared.answer(answer, outcome),
                None => self.shared.answer(answer, Err(failed.refused.clone())),
            }
        }
        again.extend(failed.behind);
        again
    }

    /// Something waits that makes no room: it is done if there is room again, and refused otherwise.
    fn make_room(&mut self) {
        let mut is_mended = self.space.is_mended();
        if !is_mended && mem::take(&mut self.space.has_freed) {
            self.shorten();
            // What was deleted left room within the file, if not on the disk.
            is_mended = self.space.restore();
        }
        if is_mended {
            self.leave_full();
        }
        let waiting = self.shared.lock().0.take_held_back();
        for (transaction, answer) in waiting {
            if is_mended {
                self.shared.submit(transaction, answer);
            } else {
                self.shared.answer(answer, Err(CommitError::Unavailable(FULL.to_owned())));
            }
        }
    }

    fn leave_full(&mut self) {
        info!("there is room on the disk again");
        self.space.is_full = false;
        self.shared.lock().0.set_full(false);
        *self.shared.trouble() = None;
    }

    /// Forgets the history and gives what is free in the file to the disk.
    fn shorten(&mut self) {
        let dropped = self.shared.published.forget_history();
        self.forget.add(&dropped);
        let revision = self.shared.published.read().revision();
        self.space.release();
        let State::Open(database) = &mut self.file else { return };
        while !self.forget.is_empty() {
            if let Err(reason) = file::write(database, &[], revision, (&self.forget, FORGET_WHEN_FULL)) {
                return self.doubt(&reason);
            }
            self.forget.done(FORGET_WHEN_FULL);
        }
        if let Err(reason) = database.compact() {
            self.doubt(&reason);
        }
    }

    /// Writing has failed, of nothing that anybody waits for.
    fn doubt(&mut self, reason: &dyn std::fmt::Display) {
        warn!(%reason, "the store's file cannot be made shorter");
        self.folder.takes_overflow();
        let stopped = self.shared.lock().0.stop_judging();
        for (answer, _) in stopped {
            self.shared.answer(answer, Err(unavailable(&reason)));
        }
        // Nothing is known to be forgotten; to forget it again does no harm.
        self.forgetting = 0;
        self.file = State::Doubtful(Vec::new());
        self.reopen(None);
    }

    /// Finds out whether writes would do again.
    fn probe(&mut self) {
        self.reopen(None);
        if self.space.is_full {
            if matches!(self.file, State::Open(_)) && self.space.is_mended() {
                self.leave_full();
            }
            return;
        }
        let revision = self.shared.published.read().revision();
        let State::Open(database) = &self.file else { return };
        match file::write(database, &[], revision, (&self.forget, 0)) {
            Ok(()) => *self.shared.trouble() = None,
            Err(reason) => self.doubt(&reason),
        }
    }
}

fn unavailable(reason: &impl ToString) -> CommitError {
    CommitError::Unavailable(reason.to_string())
}
