//! A store in memory with faults that a test switches on, for tests of what uses a store.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, pending, ready},
};
use portolan_schema::Resource;
use tokio::sync::watch;

use super::{
    Changes, CommitError, Committed, Draft, Expired, History, MemoryStore, Metrics, Scope, Snapshot, Step,
    Store, StoredObject, Transaction,
};

/// The text of the error of a refused write.
pub const REFUSAL: &str = "a full disk";

/// A [`MemoryStore`] with faults. Without one, it does everything that a [`MemoryStore`] does.
#[derive(Debug)]
pub struct FaultyStore {
    inner: MemoryStore,
    refuses: AtomicBool,
    /// The objects of accepted transactions while writes do not finish; `None` otherwise.
    accepted: Mutex<Option<Objects>>,
    last: Mutex<Transaction>,
    is_behind: AtomicBool,
    /// Former versions that are shown until the next refresh.
    former: Mutex<Objects>,
    subscribed_behind: AtomicBool,
    /// Refreshes for which a later version of each object is accepted and not published.
    ahead: AtomicU32,
    /// Most steps of a transaction; 0 without a limit.
    most_steps: AtomicUsize,
}

type Objects = HashMap<(Resource, String), Arc<StoredObject>>;

impl FaultyStore {
    /// Creates an empty store without faults.
    pub fn new(history: History) -> Self {
        let (refuses, accepted, last, is_behind, former, subscribed_behind, ahead, most_steps) =
            <_>::default();
        Self {
            inner: MemoryStore::new(history),
            refuses,
            accepted,
            last,
            is_behind,
            former,
            subscribed_behind,
            ahead,
            most_steps,
        }
    }

    /// Sets how many steps a transaction may have.
    pub fn limit_steps(&self, most: usize) {
        self.most_steps.store(most, Relaxed);
    }

    /// Until so many refreshes, each object has an accepted version with the same content that is not published: as if another
    /// one was accepted each time that one was published.
    pub fn run_ahead(&self, refreshes: u32) {
        self.ahead.store(refreshes, Relaxed);
    }

    /// Returns how many refreshes are left of [`FaultyStore::run_ahead`].
    pub fn ahead(&self) -> u32 {
        self.ahead.load(Relaxed)
    }

    /// Sets whether every write is refused with [`CommitError::Unavailable`] and the text [`REFUSAL`].
    pub fn refuse_writes(&self, refuses: bool) {
        self.refuses.store(refuses, Relaxed);
    }

    /// From this call on, writes are accepted and never finish, and neither do refreshes.
    pub fn hang(&self) {
        *lock(&self.accepted) = Some(HashMap::new());
    }

    /// Drops all writes that were accepted since [`FaultyStore::hang`]. Later writes finish.
    pub fn drop_accepted(&self) {
        *lock(&self.accepted) = None;
    }

    /// Returns the steps of the last write, even if it failed.
    pub fn last_steps(&self) -> Vec<Step> {
        lock(&self.last).steps.clone()
    }

    /// Until the next refresh, the last revision is not known here. This is how a store that several servers share looks
    /// after another server has written.
    pub fn fall_behind(&self) {
        self.is_behind.store(true, Relaxed);
    }

    /// Until the next refresh, this former version of an object is shown. This is how a store that several servers share
    /// looks after another server has changed the object.
    pub fn show_former(&self, resource: Resource, object: Arc<StoredObject>) {
        lock(&self.former).insert((resource, object.key().to_owned()), object);
        self.fall_behind();
    }

    /// Returns true if a reader subscribed to changes while the store was behind. It gets no signal for a change that
    /// was made before.
    pub fn was_subscribed_to_behind(&self) -> bool {
        self.subscribed_behind.load(Relaxed)
    }

    /// Returns an error for a revision that is not published.
    fn known(&self, revision: u64) -> Result<(), Expired> {
        if revision > self.revision() { Err(Expired { requested: revision, oldest: 1 }) } else { Ok(()) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for FaultyStore {
    fn revision(&self) -> u64 {
        self.inner.revision().saturating_sub(u64::from(self.is_behind.load(Relaxed)))
    }

    fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        let former = lock(&self.former).get(&(resource, key.to_owned())).cloned();
        former.or_else(|| self.inner.get(resource, key))
    }

    fn count(&self, resource: Resource) -> usize {
        self.inner.count(resource)
    }

    fn snapshot(&self, resource: Resource, scope: &Scope<'_>, at: Option<u64>) -> Result<Snapshot, Expired> {
        self.known(at.unwrap_or(0))?;
        self.inner.snapshot(resource, scope, at)
    }

    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        let accepted = lock(&self.accepted);
        let accepted = accepted.as_ref().and_then(|accepted| accepted.get(&(resource, key.to_owned())));
        let latest = accepted.cloned().or_else(|| self.get(resource, key))?;
        if self.ahead() == 0 {
            return Some(latest);
        }
        let accepted = Draft::new(resource, &latest.decode()).at(self.inner.revision().saturating_add(1));
        Some(Arc::new(accepted))
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        lock(&self.last).clone_from(&transaction);
        if self.refuses.load(Relaxed) {
            return ready(Err(CommitError::Unavailable(REFUSAL.to_owned()))).boxed();
        }
        if self.most_steps().is_some_and(|most| transaction.steps.len() > most) {
            return ready(Err(CommitError::TooLarge("too many steps".to_owned()))).boxed();
        }
        if self.ahead() > 0 && !transaction.writes() {
            return ready(Ok(Committed::default())).boxed();
        }
        let Some(accepted) = &mut *lock(&self.accepted) else {
            return self.inner.commit(transaction);
        };
        for step in transaction.steps {
            if let Step::Put { resource, draft, .. } = step {
                accepted.insert((resource, draft.key().to_owned()), Arc::new(draft.at(u64::MAX)));
            }
        }
        pending().boxed()
    }

    fn most_steps(&self) -> Option<usize> {
        Some(self.most_steps.load(Relaxed)).filter(|most| *most > 0)
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        if lock(&self.accepted).is_some() {
            return pending().boxed();
        }
        self.refresh_for_reads()
    }

    fn refresh_for_reads(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        self.is_behind.store(false, Relaxed);
        lock(&self.former).clear();
        self.ahead.store(self.ahead().saturating_sub(1), Relaxed);
        self.inner.refresh()
    }

    fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired> {
        self.known(after)?;
        self.inner.changes(resource, after, limit)
    }

    fn subscribe(&self, resource: Resource) -> watch::Receiver<u64> {
        self.subscribed_behind.fetch_or(self.is_behind.load(Relaxed), Relaxed);
        self.inner.subscribe(resource)
    }

    fn metrics(&self) -> Metrics {
        self.inner.metrics()
    }
}
