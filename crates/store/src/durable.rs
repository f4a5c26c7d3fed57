//! The store in one file, for a single API server.
//!
//! Accepted transactions go to one writer thread. It puts all pending transactions into one database transaction and
//! makes them durable with one fsync (*group commit*). Then it publishes them and completes their commits. Readers
//! see only durable changes.
//!
//! The file is a log: what each change wrote, under its revision. Read in order, it gives the objects and the
//! history. A client can therefore resume a watch after a restart of the server with the revision it has.
//!
//! If the database transaction fails, it may or may not be in the file. The writer opens the file again and reads its
//! last revision before it checks the conditions of any other transaction ([`writer`]).
//!
//! On a full disk the store accepts only transactions that free space. It writes them from a reserve that nothing
//! else may use, and refuses all others until the reserve is complete again ([`space`]).

mod ahead;
mod disk;
mod entry;
mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(test)]
mod journal;
pub mod offline;
mod pages;
mod queue;
mod space;
mod writer;

use std::{
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, FutureExt, ready};
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

/// Objects and history in a file in a data folder.
///
/// When a commit completes, its transaction is in the file and the file is on the disk. One fdatasync (redb's
/// `Durability::Immediate`) serves all transactions that were pending together. After a crash or a power loss at any
/// moment, every completed commit is there, and no transaction is there in part.
///
/// If the disk fails, pending transactions fail with [`CommitError::Unavailable`], unless they turn out to be in the
/// file. If the file cannot be opened to find that out, they may fail with [`CommitError::Unknown`]. The published
/// state stays readable, and each later transaction tries again. If the disk is full, transactions that only delete
/// are still written, from a reserve.
///
/// Revisions strictly increase across restarts. A new file begins at the wall clock in microseconds: to a client of a
/// former, deleted file, the new revisions are later than its own, so the client's revision is expired and the client
/// lists again.
#[derive(Debug)]
pub struct DurableStore {
    published: Arc<Published>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// After this time in one sync the store counts as not writable.
const SLOW_SYNC: Duration = Duration::from_secs(5);

/// State shared by the store and its writer thread.
#[derive(Debug)]
struct Shared {
    published: Arc<Published>,
    counters: Arc<Counters>,
    queue: Mutex<(Queue, Closing)>,
    wake: Condvar,
    /// The reason why transactions cannot be written, if there is one.
    trouble: Trouble,
}

/// True while the store is being dropped.
type Closing = bool;

impl DurableStore {
    /// Opens the store in the folder `dir` and reads it. Blocks until that is done. Creates the folder if it is
    /// missing. A new folder and every new file in it are accessible to their owner only. Holds a lock on the folder
    /// as long as the store exists.
    pub fn open(dir: &Path, limits: History) -> Result<Self, OpenError> {
        Self::open_with(dir, limits, Faults::default())
    }

    fn open_with(dir: &Path, limits: History, faults: Faults) -> Result<Self, OpenError> {
        let (writer, shared) = Self::read(dir, limits, faults)?;
        let published = Arc::clone(&shared.published);
        let thread = thread::Builder::new().name("store".into()).spawn(move || writer.run());
        let thread = thread.map_err(|source| OpenError::Io { path: dir.to_owned(), source })?;
        Ok(Self { published, shared, thread: Some(thread) })
    }

    /// Opens and reads the file. Returns the writer, which does not run yet.
    fn read(dir: &Path, limits: History, faults: Faults) -> Result<(Writer, Arc<Shared>), OpenError> {
        let counters = Arc::new(Counters::default());
        let folder = Folder::take(dir, Arc::clone(&counters), faults)?;
        // After a crash the database may have to write before it can be read. On a full disk it does so from the
        // reserve.
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
        let shared = Arc::new(Shared { published, counters, queue, wake, trouble });
        let writer = Writer::new(folder, database, (forget, space), Arc::clone(&shared));
        Ok((writer, shared))
    }
}

impl DurableStore {
    /// Returns why writes fail, or wait for a disk that hangs.
    fn writable_at(&self, now: Instant) -> Result<(), String> {
        if let Some(reason) = self.shared.trouble.reason() {
            return Err(reason);
        }
        let began = self.shared.counters.sync_in_progress();
        let took = began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        if took < SLOW_SYNC {
            return Ok(());
        }
        Err(format!("the disk with the data folder has not finished a sync for {} s", took.as_secs()))
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
        // The caller may have dropped its future.
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
        // Under the lock, a published group cannot leave the queue before it is in the tables.
        let (queue, _) = &*self.shared.lock();
        queue.latest(resource, key, |resource, key| self.published.read().get(resource, key))
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        self.shared.commit(transaction, true)
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        // A transaction without steps completes when all transactions before it are published.
        let published = Arc::clone(&self.published);
        self.shared
            .commit(Transaction::default(), false)
            .map(move |done| done.map(|_| published.read().revision()))
            .boxed()
    }

    fn refresh_for_reads(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        // A write is answered only after it was published.
        ready(Ok(self.published.read().revision())).boxed()
    }

    fn writable(&self) -> Result<(), String> {
        self.writable_at(Instant::now())
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
            // The thread writes everything accepted before it ends and closes the file. If it panicked, the panic is
            // already reported.
            let _ = thread.join();
        }
    }
}
