//! The store in etcd, for several servers that share one state.
//!
//! Conditions are judged by etcd. Everything that is read comes from memory, where it follows etcd by one watch: so a
//! server sees the writes of all in etcd's order, its own among them.

mod begin;
mod client;
mod commit;
mod compact;
mod events;
mod follow;
mod layout;
mod messages;
mod options;
mod probe;

use std::{sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use portolan_schema::Resource;
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::AbortHandle,
    time::{Instant, timeout_at},
};

pub use self::options::{Credentials, EtcdOptions, EtcdTls};
use self::{
    client::Client,
    follow::Loaded,
    layout::{Layout, revision, unsigned},
    messages::RangeRequest,
};
use crate::{
    Changes, CommitError, Committed, Expired, History, Metrics, OpenError, Scope, Snapshot, Store,
    StoredObject, Transaction,
    metrics::Counters,
    published::{Published, reads_published},
    tables::Tables,
    trouble::Trouble,
};

/// Objects in etcd, and the same objects and the last changes in memory.
///
/// A revision is etcd's, times 256, plus the position within the transaction; every server on the same etcd gives the
/// same change the same revision. [`Store::revision`] ends in 255 when a transaction is published as a whole, and never
/// claims more than what this server has published.
///
/// A commit returns when etcd has it (its majority has synced it) and this server has published it.
#[derive(Debug)]
pub struct EtcdStore {
    published: Arc<Published>,
    shared: Arc<Shared>,
    runtime: Handle,
    tasks: Vec<AbortHandle>,
}

/// What the store and its tasks share.
#[derive(Debug)]
struct Shared {
    client: Client,
    layout: Layout,
    limits: History,
    published: Arc<Published>,
    counters: Counters,
    /// Someone waits for what the watch should have shown long ago.
    behind: Notify,
    /// Why the last write failed, if etcd did not carry it out.
    trouble: Trouble,
    /// Notified when there is trouble.
    failing: Notify,
}

/// How long the watch may take to show what etcd has, before another server is tried. It takes some milliseconds.
const LONG: Duration = Duration::from_secs(2);

impl EtcdStore {
    /// Reads everything in etcd, with what happened a while before, and follows it from there. To be called within a runtime, whose tasks do the work.
    pub async fn connect(options: EtcdOptions, limits: History) -> Result<Self, OpenError> {
        let layout = Layout::new(&options.checked_prefix()?);
        let client = Client::new(&options)?;
        let published = Arc::new(Published::new(Tables::new(limits, 1)));
        let counters = Counters::default();
        let shared = Arc::new(Shared {
            client,
            layout,
            limits,
            published: Arc::clone(&published),
            counters,
            behind: Notify::new(),
            trouble: Trouble::default(),
            failing: Notify::new(),
        });
        let Loaded { tables, position } = begin::begin(&shared).await?;
        published.replace(tables);
        let mut tasks = vec![tokio::spawn(follow::follow(Arc::clone(&shared), position)).abort_handle()];
        tasks.push(tokio::spawn(probe::probe(Arc::clone(&shared))).abort_handle());
        if let Some(window) = options.compaction {
            tasks.push(tokio::spawn(compact::compact(Arc::clone(&shared), window)).abort_handle());
        }
        Ok(Self { published, shared, runtime: Handle::current(), tasks })
    }
}

impl Shared {
    fn failed(&self, reason: String) -> OpenError {
        OpenError::Etcd { endpoints: self.client.names().to_owned(), reason }
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, CommitError> {
        let deadline = self.client.deadline();
        commit::check(&transaction, |resource, key| self.published.read().get(resource, key))?;
        let request = commit::request(&self.layout, &transaction);
        let answer = self.client.transact(request, deadline).await;
        let answer = answer.map_err(|failure| commit::failure(&failure))?;
        let done = commit::outcome(transaction, &answer)?;
        let Some(revision) = done.revision else {
            return Ok(Committed { revision: self.published.read().revision(), objects: Vec::new() });
        };
        if !self.has_published(revision, deadline).await {
            return Err(CommitError::Unknown(
                "etcd has it, but did not show it to this server in time".into(),
            ));
        }
        self.mended();
        let tables = self.published.read();
        let objects = done.objects.into_iter().map(|(resource, draft, revision)| {
            let published = tables.get(resource, draft.key()).filter(|object| object.revision() == revision);
            published.unwrap_or_else(|| Arc::new(draft.at(revision)))
        });
        Ok(Committed { revision, objects: objects.collect() })
    }

    async fn refresh(&self) -> Result<u64, CommitError> {
        let deadline = self.client.deadline();
        let request = RangeRequest { key: self.layout.head(), ..RangeRequest::default() };
        let answer = self.client.range(request).await;
        let answer = answer.map_err(|failure| CommitError::Unavailable(failure.text()))?;
        let last = answer.kvs.first().map_or(0, |head| unsigned(head.mod_revision));
        if !self.has_published(revision(last, 0), deadline).await {
            return Err(CommitError::Unavailable(
                "etcd did not show its last writes to this server in time".into(),
            ));
        }
        Ok(self.published.read().revision())
    }

    /// Waits until this server has published that revision; whether it came to that in time.
    async fn has_published(&self, revision: u64, deadline: Instant) -> bool {
        let mut revisions = self.published.revisions();
        let mut reached = async |time: Instant| {
            matches!(timeout_at(time, revisions.wait_for(|last| *last >= revision)).await, Ok(Ok(_)))
        };
        let soon = Instant::now().checked_add(LONG).unwrap_or(deadline);
        if soon < deadline {
            if reached(soon).await {
                return true;
            }
            self.behind.notify_waiters();
        }
        reached(deadline).await
    }
}

impl Store for EtcdStore {
    reads_published!();

    fn latest(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        self.get(resource, key)
    }

    fn commit(&self, transaction: Transaction) -> BoxFuture<'static, Result<Committed, CommitError>> {
        let shared = Arc::clone(&self.shared);
        // A task of its own: it is carried to its end even if nobody waits for that.
        let task = self.runtime.spawn(async move {
            let outcome = shared.commit(transaction).await;
            shared.counters.outcome(&outcome);
            if let Err(error) = &outcome {
                shared.note(error);
            }
            outcome
        });
        task.map(|ended| ended.unwrap_or_else(|error| Err(CommitError::Unknown(error.to_string())))).boxed()
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        let shared = Arc::clone(&self.shared);
        async move { shared.refresh().await }.boxed()
    }

    fn writable(&self) -> Result<(), String> {
        self.shared.trouble.reason().map_or(Ok(()), Err)
    }

    fn metrics(&self) -> Metrics {
        self.shared.counters.read(&self.published.read())
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
