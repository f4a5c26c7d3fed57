//! The thread that writes: group after group, and what happens when one fails.
//!
//! A failed write leaves open whether it is in the file. So the file is opened again and asked. Until that has worked,
//! nothing is judged, for the same reason; each transaction that comes makes another attempt.
//!
//! On a full disk deletions go on, from the reserve ([`super::space`]); everything else is refused until the reserve is
//! whole again. Deletions make room inside the file. When that is worth it, the file is made as short as it can be, which
//! gives the room to the disk, and so to the reserve; the history is forgotten first where it has to be.

use std::{
    convert::Infallible,
    mem,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use redb::Database;
use tracing::{debug, error, info};

use super::{
    Shared,
    file::{self, Folder, Forget},
    queue::{Answer, Group, Settled},
    space::{Gain, Shorten, Space},
};
use crate::{CommitError, Transaction, published::Publication, transaction::Write};

/// While writes fail, it is tried this often whether they would do again.
const PROBE: Duration = Duration::from_secs(2);
/// Changes whose entries are forgotten in one transaction of the database while the disk is full: each may change a page.
const FORGET_WHEN_FULL: usize = 256;
/// What is said of a full disk.
const FULL: &str = "the disk with the data folder is full: delete objects, or make room on the disk";
/// What is said of what cannot be done.
const CANNOT_WRITE: &str = "the store cannot write; its state can be read, and it is tried again";
const CANNOT_SHORTEN: &str = "the store's file cannot be made shorter";
const CANNOT_OPEN: &str = "the store's file cannot be opened again";

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
            writer.shared.lock().0.set_full(true);
            writer.note(CANNOT_WRITE, FULL);
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
        let fails = self.shared.trouble.reason().is_some();
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
                self.forgotten(self.forgetting);
                self.shared.counters.group(group.size());
                if self.space.is_full {
                    self.space.restore();
                } else {
                    self.mended();
                }
                self.settle(group);
            }
            Err(reason) => {
                // Nothing is published before the file has been asked; the database is closed for that.
                self.file = State::Doubtful(mem::take(&mut group.writes));
                self.failed(CANNOT_WRITE, group, &reason);
            }
        }
    }

    /// Something could not be written, and the file is in doubt.
    fn failed(&mut self, tried: &str, group: Group, reason: &redb::Error) {
        let failed = self.fail(tried, group, reason);
        self.reopen(Some(failed));
        if self.space.is_full {
            self.space.restore();
        }
    }

    /// Tells what keeps the store from writing, if that is new.
    fn note(&self, tried: &str, reason: &str) {
        if self.shared.trouble.set(reason) {
            error!(reason, "{tried}");
        }
    }

    fn mended(&self) {
        if self.shared.trouble.clear() {
            info!("the store can write again");
        }
    }

    /// From now on only what makes room is written, from the reserve.
    fn enter_full(&mut self) {
        self.space.is_full = true;
        self.shared.lock().0.set_full(true);
        self.space.release();
    }

    /// The first so many changes that were to be forgotten are.
    fn forgotten(&mut self, count: usize) {
        self.space.loose = self.space.loose.saturating_add(self.forget.done(count));
    }

    /// Stops judging, and refuses what was behind the group; but where the disk turns out to be full, what makes room
    /// is kept, and the reserve is given for it.
    fn fail(&mut self, tried: &str, group: Group, reason: &redb::Error) -> Failed {
        let is_overflow = self.folder.takes_overflow();
        let again = is_overflow && !self.space.is_full;
        let refused = if is_overflow {
            CommitError::Unavailable(format!("{FULL} ({reason})"))
        } else {
            unavailable(reason)
        };
        self.note(tried, &refused.to_string());
        if is_overflow {
            self.enter_full();
        }
        let stopped = self.shared.lock().0.stop_judging();
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
        let State::Doubtful(writes) = &self.file else { return };
        let mut is_overflow = false;
        let last = writes.last().map(|write| write.change.revision);
        let database = self.folder.open().or_else(|error| {
            // To be read, the file may have to be written to.
            if !self.folder.takes_overflow() {
                return Err(error);
            }
            is_overflow = true;
            self.space.release();
            self.folder.open()
        });
        let State::Doubtful(writes) = &mut self.file else { return };
        let opened = database.and_then(|database| {
            let found = file::last_revision(&database).map_err(|error| self.folder.explain(error))?;
            Ok((database, found >= last))
        });
        match opened {
            Ok((database, written)) => {
                let writes = mem::take(writes);
                self.file = State::Open(database);
                debug!(written, "the store can be read from its file again");
                if written {
                    self.forgotten(self.forgetting);
                    self.publish(&writes);
                }
                let mut waiting = failed.map_or_else(Vec::new, |failed| self.judged(failed, written));
                waiting.extend(self.shared.lock().0.judge_again());
                for (transaction, answer) in waiting {
                    self.shared.submit(transaction, answer);
                }
            }
            Err(reason) => {
                if is_overflow {
                    self.enter_full();
                    self.note(CANNOT_OPEN, &format!("{FULL} ({reason})"));
                } else {
                    self.note(CANNOT_OPEN, &reason.to_string());
                }
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
        let has_room = self.find_room();
        let waiting = self.shared.lock().0.take_held_back();
        for (transaction, answer) in waiting {
            if has_room {
                self.shared.submit(transaction, answer);
            } else {
                self.shared.answer(answer, Err(CommitError::Unavailable(FULL.to_owned())));
            }
        }
    }

    /// Whether there is room again for everything, after the file was made shorter where that is worth it.
    fn find_room(&mut self) -> bool {
        let mut has_room = matches!(self.file, State::Open(_)) && self.space.is_mended();
        if !has_room && self.space.may_shorten(Instant::now()) {
            for _ in 0..2 {
                let before = self.gain();
                let Some(way) = before.way(self.space.missing()) else { break };
                self.shorten(way);
                self.space.shortened(Instant::now());
                let is_whole = self.space.restore();
                let is_open = matches!(self.file, State::Open(_));
                has_room = is_open && (self.space.is_mended() || is_whole && before.is_much(self.gain()));
                if has_room {
                    break;
                }
            }
        }
        if has_room {
            info!("there is room on the disk again");
            self.space.is_full = false;
            self.shared.lock().0.set_full(false);
            self.mended();
        }
        has_room
    }

    fn gain(&self) -> Gain {
        Gain {
            file: self.folder.file_bytes(),
            loose: self.space.loose.saturating_add(self.forget.bytes()),
            history: self.shared.published.read().history_bytes() as u64,
        }
    }

    /// Gives what is free in the file to the disk, and what only the history uses if that is the way.
    fn shorten(&mut self, way: Shorten) {
        let before = self.folder.file_bytes();
        if way == Shorten::Forget {
            let dropped = self.shared.published.forget_history();
            self.forget.add(&dropped);
        }
        let revision = self.shared.published.read().revision();
        self.space.release();
        let State::Open(database) = &mut self.file else { return };
        while !self.forget.is_empty() {
            if let Err(reason) = file::write(database, &[], revision, (&self.forget, FORGET_WHEN_FULL)) {
                return self.doubt(CANNOT_SHORTEN, &reason);
            }
            self.forget.done(FORGET_WHEN_FULL);
        }
        match database.compact() {
            Ok(_) => {
                let (after, forgot_history) = (self.folder.file_bytes(), way == Shorten::Forget);
                info!(before, after, forgot_history, "the store's file was made shorter");
            }
            Err(reason) => self.doubt(CANNOT_SHORTEN, &reason.into()),
        }
    }

    /// Writing has failed, of nothing that anybody waits for.
    fn doubt(&mut self, tried: &str, reason: &redb::Error) {
        // Nothing is known to be forgotten; to forget it again does no harm.
        self.forgetting = 0;
        self.file = State::Doubtful(Vec::new());
        self.failed(tried, Group::default(), reason);
    }

    /// Finds out whether writes would do again.
    fn probe(&mut self) {
        self.reopen(None);
        if self.space.is_full {
            self.find_room();
            return;
        }
        let revision = self.shared.published.read().revision();
        let State::Open(database) = &self.file else { return };
        match file::write(database, &[], revision, (&self.forget, 0)) {
            Ok(()) => self.mended(),
            Err(reason) => self.doubt(CANNOT_WRITE, &reason),
        }
    }
}

fn unavailable(reason: &impl ToString) -> CommitError {
    CommitError::Unavailable(reason.to_string())
}
