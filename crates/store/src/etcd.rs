//! The store in etcd, for several API servers that share one state.
//!
//! etcd checks the conditions of transactions. All reads come from memory, which one watch keeps in sync with etcd. A
//! server therefore sees the writes of all servers, its own included, in etcd's order. If a transaction fails because
//! the server's memory was behind etcd, the server calls [`Store::refresh`] and plans the write again.
//!
//! Every transaction that writes an object also writes the key `head` ([`layout`]). A read of `head` shows up to
//! which revision the watch must come, without relying on etcd's progress notifications ([`follow`]). The exception are
//! removals from a full etcd: other servers may show the objects until their watch delivers the removal. A server starts
//! with such a write, so the state it reads has a revision that the other servers know, too ([`begin`]).

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
mod renew;

use std::{sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use portolan_schema::Resource;
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::AbortHandle,
    time::{Instant, timeout_at},
};

pub use self::options::{Credentials, EtcdOptions, EtcdTls, Renewal, Secrets};
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

/// Objects in etcd, with a copy of them and of the last changes in memory.
///
/// A revision consists of etcd's revision times 256 plus the position of the change within its transaction. Every
/// server on the same etcd assigns the same revision to the same change. [`Store::revision`] ends in 255 when a
/// transaction is published as a whole. It never exceeds what this server has published.
///
/// A commit returns when etcd has the transaction (a majority of its members has synced it) and this server has
/// published it.
#[derive(Debug)]
pub struct EtcdStore {
    published: Arc<Published>,
    shared: Arc<Shared>,
    runtime: Handle,
    tasks: Vec<AbortHandle>,
}

/// State shared by the store and its tasks.
#[derive(Debug)]
struct Shared {
    client: Client,
    layout: Layout,
    limits: History,
    published: Arc<Published>,
    counters: Counters,
    /// Notified when a request has waited longer than [`LONG`] for a change that etcd has, so that the watch is
    /// opened at another server.
    behind: Notify,
    /// Why the last write failed. Empty after a write that succeeded.
    trouble: Trouble,
    /// Why the last read failed. Empty after a read that succeeded.
    unreadable: Trouble,
    /// Why the state cannot be kept in sync with etcd. Empty while etcd answers on a watch.
    unfollowed: Trouble,
    /// Notified when a write or a read fails.
    failing: Notify,
}

/// How long the watch may take to deliver a change that etcd has before another server is tried. Usually it takes
/// some milliseconds.
const LONG: Duration = Duration::from_secs(2);

impl EtcdStore {
    /// Reads everything in etcd, with the recent history, and follows it from there. Call it within a Tokio runtime,
    /// whose tasks do the work.
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
            unreadable: Trouble::default(),
            unfollowed: Trouble::default(),
            failing: Notify::new(),
        });
        let Loaded { tables, position } = begin::begin(&shared).await?;
        published.replace(tables);
        let mut tasks = vec![tokio::spawn(follow::follow(Arc::clone(&shared), position)).abort_handle()];
        tasks.push(tokio::spawn(probe::probe(Arc::clone(&shared))).abort_handle());
        if let Some(window) = options.compaction {
            tasks.push(tokio::spawn(compact::compact(Arc::clone(&shared), window)).abort_handle());
        }
        if let Some(renewal) = options.renewal.clone() {
            tasks.push(tokio::spawn(renew::renew(Arc::clone(&shared), options, renewal)).abort_handle());
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
        let mut answer = self.client.transact(request, deadline).await;
        let is_full = answer.as_ref().is_err_and(commit::is_full);
        if is_full && transaction.only_removes() {
            let request = commit::request_without_head(&self.layout, &transaction);
            answer = self.client.transact(request, deadline).await;
        }
        let answer = answer.map_err(|failure| commit::failure(&failure))?;
        let done = commit::outcome(transaction, &answer);
        let done = if is_full { done.map_err(commit::after_full)? } else { done? };
        let Some(revision) = done.revision else {
            return Ok(Committed { revision: self.published.read().revision(), objects: Vec::new() });
        };
        if !self.has_published(revision, deadline).await {
            return Err(CommitError::Unknown(
                "etcd has it, but did not show it to this server in time".into(),
            ));
        }
        if !is_full {
            self.mended();
        }
        let tables = self.published.read();
        let objects = done.objects.into_iter().map(|(resource, draft, revision)| {
            let published = tables.get(resource, draft.key()).filter(|object| object.revision() == revision);
            published.unwrap_or_else(|| Arc::new(draft.at(revision)))
        });
        Ok(Committed { revision, objects: objects.collect() })
    }

    async fn refresh(&self) -> Result<u64, CommitError> {
        let done = self.see_head().await;
        done.inspect_err(|reason| self.cannot_read(reason)).map_err(CommitError::Unreadable)
    }

    /// Reads up to which revision etcd has writes, and waits until this server has published them.
    async fn see_head(&self) -> Result<u64, String> {
        let deadline = self.client.deadline();
        let request = RangeRequest { key: self.layout.head(), ..RangeRequest::default() };
        let answer = self.client.range(request).await.map_err(|failure| failure.text())?;
        let last = answer.kvs.first().map_or(0, |head| unsigned(head.mod_revision));
        if !self.has_published(revision(last, 0), deadline).await {
            return Err("etcd did not show its last writes to this server in time".into());
        }
        Ok(self.published.read().revision())
    }

    /// Waits until this server has published that revision. Returns false if the deadline passes first.
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
        // A task of its own, so the transaction is carried out even if the caller drops the future.
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

    fn most_steps(&self) -> Option<usize> {
        Some(commit::MOST_STEPS)
    }

    fn refresh(&self) -> BoxFuture<'static, Result<u64, CommitError>> {
        let shared = Arc::clone(&self.shared);
        // The caller may be a thread without a runtime.
        let task = self.runtime.spawn(async move { shared.refresh().await });
        let ended = |error: tokio::task::JoinError| Err(CommitError::Unreadable(error.to_string()));
        task.map(move |done| done.unwrap_or_else(ended)).boxed()
    }

    fn writable(&self) -> Result<(), String> {
        let unreadable =
            self.shared.unreadable.reason().map(|reason| format!("etcd cannot be read: {reason}"));
        let unfollowed =
            || self.shared.unfollowed.reason().map(|reason| format!("etcd cannot be followed: {reason}"));
        unreadable.or_else(unfollowed).or_else(|| self.shared.trouble.reason()).map_or(Ok(()), Err)
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
