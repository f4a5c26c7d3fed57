//! The writer thread: writes group after group, and recovers from failed writes.
//!
//! After a failed write it is unknown whether the changes are in the file. The writer therefore opens the file again
//! and reads its last revision. Until that succeeds, the conditions of transactions cannot be checked, so none are.
//! Each transaction that is submitted in between triggers another attempt.
//!
//! On a full disk only transactions that free space are written, from the reserve ([`super::space`]). All others are
//! refused until the reserve is complete again. Deletions free space within the file. When it is worthwhile, the
//! writer compacts the file: this gives the space back to the disk, and from there to the reserve. If necessary, it
//! drops the history first.

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
    file::{self, Folder, Forget, Numbers},
    queue::{Answer, Group, Settled},
    space::{Gain, Shorten, Space},
};
use crate::{CommitError, OpenError, Transaction, published::Publication, transaction::Write};

#[cfg(test)]
mod tests;

/// While writes fail, the writer probes this often whether they succeed again.
const PROBE: Duration = Duration::from_secs(2);
/// Maximum number of dropped changes whose entries are removed in one database transaction while the disk is full.
/// Each may change a page.
const FORGET_WHEN_FULL: usize = 256;
/// The reason that clients and the log get for a full disk.
const FULL: &str = "the disk with the data folder is full: delete objects, or make room on the disk";
/// Log messages for failed attempts.
const CANNOT_WRITE: &str = "the store cannot write; its state can be read, and it is tried again";
const CANNOT_SHORTEN: &str = "the store's file cannot be made shorter";
const CANNOT_OPEN: &str = "the store's file cannot be opened again";

/// The writer thread's own state.
pub(super) struct Writer {
    folder: Folder,
    file: State,
    /// Updates for changes that the history has dropped. The next group writes them.
    forget: Forget,
    /// Number of these updates in the current write.
    forgetting: usize,
    space: Space,
    shared: Arc<Shared>,
}

/// The relation of the file to the published state.
enum State {
    /// The file is the published state.
    Open(Database),
    /// The file may or may not contain these changes in addition to the published state. The database is closed.
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

/// A group whose write failed and whose commits are not completed yet.
struct Failed {
    group: Group,
    refused: CommitError,
    /// Transactions that were queued behind the group and are retried with it.
    behind: Vec<(Transaction, Answer)>,
    /// True if transactions that free space are retried, using the reserve.
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

    /// Runs until the store is dropped and every accepted transaction is settled.
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
        let most = if self.space.is_full { FORGET_WHEN_FULL } else { usize::MAX };
        // Counted now: more updates may be added before it is known whether this write is in the file.
        self.forgetting = most.min(self.forget.len());
        let numbers = self.numbers(revision, &group.writes);
        match file::write(database, &group.writes, numbers, (&self.forget, self.forgetting)) {
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
                // The database is closed, because the file is opened again before anything is published.
                self.file = State::Doubtful(mem::take(&mut group.writes));
                self.failed(CANNOT_WRITE, group, &reason);
            }
        }
    }

    /// Returns what the file says of itself after these changes of the published state.
    fn numbers(&self, revision: u64, writes: &[Write]) -> Numbers {
        let published = self.shared.published.read().total() as u64;
        let objects =
            writes.iter().fold(published, |count, Write { change, .. }| match (&change.old, &change.new) {
                (None, Some(_)) => count.saturating_add(1),
                (Some(_), None) => count.saturating_sub(1),
                _ => count,
            });
        Numbers { revision, objects }
    }

    /// Handles a failed write that leaves the state of the file unknown.
    fn failed(&mut self, tried: &str, group: Group, reason: &redb::Error) {
        let failed = self.fail(tried, group, reason);
        self.reopen(Some(failed));
        if self.space.is_full {
            self.space.restore();
        }
    }

    /// Records why the store cannot write. Logs the reason if it is new.
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

    /// Restricts writes to transactions that free space, and releases the reserve for them.
    fn enter_full(&mut self) {
        self.space.is_full = true;
        self.shared.lock().0.set_full(true);
        self.space.release();
    }

    /// Removes the first `count` updates, which have been written, and counts the bytes they freed.
    fn forgotten(&mut self, count: usize) {
        self.space.loose = self.space.loose.saturating_add(self.forget.done(count));
    }

    /// Stops checking transactions and refuses those queued behind the group. If the disk turns out to be full,
    /// instead keeps the ones that free space for a retry, and releases the reserve.
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

    /// Publishes a group that is durable or writes nothing, and completes its commits.
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

    /// Opens the file again and finds out whether it contains the changes in doubt.
    fn reopen(&mut self, failed: Option<Failed>) {
        let State::Doubtful(writes) = &self.file else { return };
        let mut is_overflow = false;
        let last = writes.last().map(|write| write.change.revision);
        let database = self.folder.open().or_else(|error| {
            // The database may have to write to the file before it can read it.
            if !self.folder.takes_overflow() {
                return Err(error);
            }
            is_overflow = true;
            self.space.release();
            let opened = self.folder.open();
            // The overflow of this attempt must not count as one of a later write.
            self.folder.takes_overflow();
            opened
        });
        let published = self.shared.published.read().revision();
        let State::Doubtful(writes) = &mut self.file else { return };
        let opened = database.and_then(|database| {
            let found = self.folder.last_revision(&database, published)?;
            Ok((database, Some(found) >= last))
        });
        match opened {
            Ok((database, written)) => {
                let writes = mem::take(writes);
                self.file = State::Open(database);
                debug!(written, "the store can be read from its file again");
                if is_overflow && !self.space.restore() {
                    self.enter_full();
                    self.note(CANNOT_WRITE, FULL);
                }
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
                }
                // Deleting objects does not help while the file must be copied.
                if is_overflow && !matches!(reason, OpenError::Copy { .. }) {
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

    /// Completes the commits of a group once it is known whether the group was written. Returns the transactions to
    /// retry.
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

    /// Submits the held-back transactions if there is enough space again, and refuses them otherwise.
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

    /// Returns true if there is enough space again for every transaction. Compacts the file first if that is needed
    /// and worthwhile.
    fn find_room(&mut self) -> bool {
        let mut has_room = self.is_open() && self.space.is_mended();
        if !has_room && self.space.may_shorten(Instant::now()) {
            for _ in 0..2 {
                // The history must not be dropped for a file that cannot be made shorter now.
                if !self.is_open() {
                    break;
                }
                let before = self.gain();
                let Some(way) = before.way(self.space.missing()) else { break };
                self.shorten(way);
                self.space.shortened(Instant::now());
                let is_whole = self.space.restore();
                has_room =
                    self.is_open() && (self.space.is_mended() || is_whole && before.is_much(self.gain()));
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

    fn is_open(&self) -> bool {
        matches!(self.file, State::Open(_))
    }

    fn gain(&self) -> Gain {
        Gain {
            file: self.folder.disk_bytes(),
            loose: self.space.loose.saturating_add(self.forget.bytes()),
            history: self.shared.published.read().history_bytes() as u64,
        }
    }

    /// Compacts the file, which gives its unused part back to the disk. Drops the history first if `way` says so.
    fn shorten(&mut self, way: Shorten) {
        let before = self.folder.file_bytes();
        if way == Shorten::Forget {
            let dropped = self.shared.published.forget_history();
            self.forget.add(&dropped);
        }
        let revision = self.shared.published.read().revision();
        let numbers = self.numbers(revision, &[]);
        self.space.release();
        let State::Open(database) = &mut self.file else { return };
        while !self.forget.is_empty() {
            if let Err(reason) = file::write(database, &[], numbers, (&self.forget, FORGET_WHEN_FULL)) {
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

    /// Handles a failed write that no transaction is waiting for.
    fn doubt(&mut self, tried: &str, reason: &redb::Error) {
        // It is unknown whether the entries were removed. Removing them again is harmless.
        self.forgetting = 0;
        self.file = State::Doubtful(Vec::new());
        self.failed(tried, Group::default(), reason);
    }

    /// Probes whether writes succeed again.
    fn probe(&mut self) {
        self.reopen(None);
        if self.space.is_full {
            self.find_room();
            return;
        }
        let revision = self.shared.published.read().revision();
        let State::Open(database) = &self.file else { return };
        match file::write(database, &[], self.numbers(revision, &[]), (&self.forget, 0)) {
            Ok(()) => self.mended(),
            Err(reason) => self.doubt(CANNOT_WRITE, &reason),
        }
    }
}

fn unavailable(reason: &impl ToString) -> CommitError {
    CommitError::Unavailable(reason.to_string())
}
