//! The thread that writes: group after group, and what happens when one fails.
//!
//! A failed write leaves open whether it is in the file. So the file is opened again and asked. Until that has worked,
//! nothing is judged, for the same reason; each transaction that comes makes another attempt.

use std::{
    convert::Infallible,
    mem,
    sync::{Arc, PoisonError},
};

use redb::Database;
use tracing::{error, info, warn};

use super::{
    Shared,
    file::{self, Folder, Forget},
    queue::Group,
};
use crate::{CommitError, published::Publication, transaction::Write};

/// The writer thread's own state.
pub(super) struct Writer {
    folder: Folder,
    file: State,
    /// What the history has dropped; the next group takes it along.
    forget: Forget,
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
    Close,
}

impl Writer {
    pub(super) fn new(folder: Folder, database: Database, forget: Forget, shared: Arc<Shared>) -> Self {
        Self { folder, file: State::Open(database), forget, shared }
    }

    /// Works until the store is dropped and everything accepted is settled.
    pub(super) fn run(mut self) {
        loop {
            match self.next() {
                Task::Write(group) => self.write(group),
                Task::Reopen => self.reopen(None),
                Task::Close => return,
            }
        }
    }

    fn next(&self) -> Task {
        let mut guard = self.shared.lock();
        loop {
            let (queue, closing) = &mut *guard;
            if let Some(group) = queue.take_group() {
                return Task::Write(group);
            }
            if queue.has_unjudged() {
                return Task::Reopen;
            }
            if *closing {
                return Task::Close;
            }
            guard = self.shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write(&mut self, mut group: Group) {
        let Some(revision) = group.revision() else { return self.settle(group) };
        let State::Open(database) = &self.file else { return };
        match file::write(database, &group.writes, revision, &self.forget) {
            Ok(()) => {
                self.forget.clear();
                self.shared.counters.group(group.size());
                self.settle(group);
            }
            Err(reason) => {
                error!(%reason, "the store cannot write; its state can be read, and the next write tries again");
                // Nothing is published before the file has been asked; the database is closed for that.
                self.file = State::Doubtful(mem::take(&mut group.writes));
                let refused = unavailable(&reason);
                for answer in self.shared.lock().0.stop_judging() {
                    self.shared.answer(answer, Err(refused.clone()));
                }
                self.reopen(Some((group, refused)));
            }
        }
    }

    /// The group is durable, or writes nothing.
    fn settle(&mut self, mut group: Group) {
        self.publish(&mem::take(&mut group.writes));
        for (answer, outcome) in group.answers(None) {
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

    /// Opens the file again and finds out whether it has the doubtful changes. `failed` is the group that they are
    /// from, if it has not been answered yet.
    fn reopen(&mut self, failed: Option<(Group, CommitError)>) {
        let State::Doubtful(writes) = &mut self.file else { return };
        let last = writes.last().map(|write| write.change.revision);
        let opened = self.folder.open().and_then(|database| {
            let found = file::last_revision(&database).map_err(|error| self.folder.explain(error))?;
            Ok((database, found >= last))
        });
        match opened {
            Ok((database, written)) => {
                let writes = mem::take(writes);
                self.file = State::Open(database);
                info!(written, "the store can be written again");
                if written {
                    self.forget.clear();
                    self.publish(&writes);
                }
                if let Some((mut group, refused)) = failed {
                    for (answer, outcome) in group.answers((!written).then_some(&refused)) {
                        self.shared.answer(answer, outcome);
                    }
                }
                let waiting = self.shared.lock().0.judge_again();
                for (transaction, answer) in waiting {
                    self.shared.submit(transaction, answer);
                }
            }
            Err(reason) => {
                warn!(%reason, "the store's file cannot be opened again");
                if let Some((mut group, _)) = failed {
                    let unknown = CommitError::Unknown(reason.to_string());
                    for (answer, outcome) in group.answers(Some(&unknown)) {
                        self.shared.answer(answer, outcome);
                    }
                }
                for (_, answer) in self.shared.lock().0.take_unjudged() {
                    self.shared.answer(answer, Err(unavailable(&reason)));
                }
            }
        }
    }
}

fn unavailable(reason: &impl ToString) -> CommitError {
    CommitError::Unavailable(reason.to_string())
}
