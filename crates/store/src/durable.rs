//! The store in one file, for a server that is alone.
//!
//! Accepted transactions go to one writer thread, which puts all that wait into one transaction of the database and
//! makes it durable with one fsync (*group commit*); then they are published and answered. Who reads sees only what is
//! durable.
//!
//! The history is in the file, too: a watch goes on over a restart with the revision it has.

mod disk;
mod entry;
mod file;
mod queue;
mod space;
mod writer;

use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use futures::future::{BoxFuture, FutureExt};
use portolan_schema::Resource;
use tokio::sync::{oneshot, watch};

use self::{
    disk::Faults,
    file::Folder,
    queue::{Answer, Queue, Submitted},
    space::Space,
    writer::Writer,
};
use crate::{
    Changes, CommitError, Committed, Expired, History, Metrics, OpenError, Scope, Snapshot, Store,
    StoredObject, Transaction,
    memory::wall_clock,
    metrics::Counters,
    published::{Published, reads_published},
    trouble::Trouble,
};

#[cfg(test)]
mod tests;

/// Objects and history in a file below a data folder.
///
/// What a commit promises: when it is answered, the transaction is in the file and the file is on the disk, by one
/// fdatasync (redb's `Durability::Immediate`) for all transactions that waited together. After a crash or a loss of
/// power at any moment everything that was answered is there, and of no transaction only a part.
///
/// If the disk fails, all that is on its way fails with [`CommitError::Unavailable`]; what is published can be read as
/// before, and each later transaction tries again. If it is full, transactions that only delete go on, from a reserve.
///
/// Revisions strictly increase over restarts. A new file begins at the wall clock in microseconds, so that a client
/// that knew an earlier file, now deleted, holds a revision that is too old, and lists again.
#[derive(Debug)]
pub struct DurableStore {
    published: Arc<Published>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the store and its writer thread share.
#[derive(Debug)]
struct Shared {
    published: Arc<Published>,
    counters: Arc<Counters>,
    queue: Mutex<(Queue, Closing)>,
    wake: Condvar,
    /// What keeps transactions from being written.
    trouble: Trouble,
}

/// Whether the store is being dropped.
type Closing = bool;

impl DurableStore {
    /// Opens the store in the folder `dir` and reads it, which blocks for as long as it takes. A missing folder is made;
    /// it and every file in it are for their owner only. Holds a lock on the folder as long as it lives.
    pub fn open(dir: &Path, limits: History) -> Result<Self, OpenError> {
        Self::open_with(dir, limits, Faults::default())
    }

    fn open_with(dir: &Path, limits: History, faults: Faults) -> Result<Self, OpenError> {
        let counters = Arc::new(Counters::default());
        let folder = Folder::take(dir, Arc::clone(&counters), faults)?;
        // After a crash the database may have to write before it can be read: on a full disk, too.
        let database = folder.open_or_create(wall_clock()).or_else(|error| {
            if !folder.takes_overflow() {
                return Err(error);
            }
            Space::take(folder.path()).release();
            folder.open_or_create(wall_clock())
        })?;
        let (tables, forget) = folder.load(&database, limits)?;
        let space = Space::take(folder.path());
        let queue = Mutex::new((Queue::new(tables.revision()), false));
        let published = Arc::new(Published::new(tables));
        let (wake, trouble) = (Condvar::new(), Trouble::default());
        let shared = Arc::new(Shared { published: Arc::clone(&published), counters, queue, wake, trouble });
        let writer = Writer::new(folder, database, (forget, space), Arc::clone(&shared));
        let thread = thread::Builder::new().name("store".into()).spawn(move || writer.run());
        let thread = thread.map_err(|source| OpenError::Io { path: dir.to_owned(), source })?;
        Ok(Self { published, shared, thread: Some(thread) })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, (Queue, Closing)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, transaction: Transaction, answer: Answer) {
        let submitted = {
            let (queue, _) = &mut *self.lock();
            let published = self.published.read();
            queue.submit(transaction, answer, |resource, key| published.get(resource, key))
        };
        match submitted {
            Submitted::Queued => self.wake.notify_one(),
            Submitted::Answered(answer, outcome) => self.answer(answer, outcome),
        }
    }

    fn answer(&self, answer: Answer, outcome: Result<Committed, CommitError>) {
        if answer.counted {
            self.counters.outcome(&outcome);
        }
        // Whoever asked may have gone.
        let _ = answer.to.send(outcome);
    }

    fn commit(
        &self,
        transaction: Transaction,
        counted: bool,
    ) -> BoxFuture<'static, Result<Committed, CommitError>> {
        let (to, answered) = oneshot::channel();
        self.submit(transaction, Answer { to, counted });
        let closed = || Err(CommitError::Unknown("the store was closed".into()));
        answered.map(move |outcome| outcome.unwrap_or_else(|_| closed())).boxed()
    }
}

impl Store for DurableStore {
    reads_published!();

    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        // Under the lock, what the writer publishes does not leave the queue before it is in the tables.
        let (queue, _) = &*self.shared.lock();
        queue.latest(resource, key, |resource, key| self.published.read().get(resource, key))
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        self.shared.commit(transaction, true)
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        // A transaction of no steps is answered when all those before it are published.
        let published = Arc::clone(&self.published);
        self.shared
            .commit(Transaction::default(), false)
            .map(move |done| done.map(|_| published.read().revision()))
            .boxed()
    }

    fn writable(&self) -> Result<(), String> {
        self.shared.trouble.reason().map_or(Ok(()), Err)
    }

    fn metrics(&self) -> Metrics {
        self.shared.counters.read(&self.published.read())
    }
}

impl Drop for DurableStore {
    fn drop(&mut self) {
        self.shared.lock().1 = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // What was accepted is written before the file is closed. A panic of the thread has been reported by it.
            let _ = thread.join();
        }
    }
}
