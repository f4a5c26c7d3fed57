//! Removes Events after their time to live.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portolan_api::Api;
use portolan_schema::{Resource, json as fields, shape::timestamp};
use portolan_store::{Change, CommitError, StoredObject, Transaction};
use tokio::time::Instant;

use super::{
    BATCH, all, boxed,
    feed::{Feed, Seen},
};

#[cfg(test)]
mod tests;

/// Delay until a failed removal of an Event is retried.
const RETRY: Duration = Duration::from_secs(10);
/// Removes Events that have not been written to for the time to live. Other servers may write to the same store: an
/// Event is removed only at the revision that it had when its time began.
#[derive(Debug)]
pub(super) struct Expiry {
    api: Arc<Api>,
    feed: Feed,
    ttl: Duration,
    /// The Events, by the time when they expire and their revision.
    due: BTreeMap<(Instant, u64), Arc<str>>,
    times: HashMap<Arc<str>, (Instant, u64)>,
}

impl Expiry {
    pub(super) fn new(api: &Arc<Api>, ttl: Duration) -> Self {
        let feed = Feed::new(api.store(), [Resource::Event]);
        Self { api: Arc::clone(api), feed, ttl, due: BTreeMap::new(), times: HashMap::new() }
    }

    /// Removes expired Events. Never returns.
    pub(super) async fn run(mut self) {
        loop {
            self.observe();
            self.expire().await;
            if self.feed.has_more() {
                continue;
            }
            let next = self.due.first_key_value().map(|((due, _), _)| *due);
            let due = async {
                match next {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.feed.changed() => {}
                () = due => {}
            }
        }
    }

    fn observe(&mut self) {
        for seen in self.feed.take() {
            match seen {
                Seen::State(_, events) => {
                    self.due.clear();
                    self.times.clear();
                    for event in events {
                        let age = age(&event).min(self.ttl);
                        self.set(&event, self.ttl.saturating_sub(age));
                    }
                }
                Seen::Change(_, Change { new: Some(event), .. }) => self.set(&event, self.ttl),
                Seen::Change(_, Change { old: Some(event), .. }) => self.forget(event.key()),
                Seen::Change(..) => {}
            }
        }
    }

    async fn expire(&mut self) {
        let now = Instant::now();
        let due: Vec<(u64, Arc<str>)> = self
            .due
            .range(..=(now, u64::MAX))
            .take(BATCH)
            .map(|((_, revision), key)| (*revision, Arc::clone(key)))
            .collect();
        let store = self.api.store();
        let work = due.into_iter().map(|(revision, key)| {
            let removal = store.commit(Transaction::remove(Resource::Event, &key, revision));
            boxed(async move { (revision, key, removal.await) })
        });
        for (revision, key, result) in all(work.collect()).await {
            self.forget(&key);
            if let Err(error) = result
                && !matches!(error, CommitError::Conflict { .. })
            {
                tracing::warn!(event = &*key, %error, "an Event that has expired stays for now");
                self.put((now + RETRY, revision), key);
            }
        }
    }

    fn set(&mut self, event: &StoredObject, after: Duration) {
        self.forget(event.key());
        self.put((Instant::now() + after, event.revision()), event.key().into());
    }

    fn put(&mut self, at: (Instant, u64), key: Arc<str>) {
        self.times.insert(Arc::clone(&key), at);
        self.due.insert(at, key);
    }

    fn forget(&mut self, key: &str) {
        if let Some(at) = self.times.remove(key) {
            self.due.remove(&at);
        }
    }
}

/// Returns the time since the last write to an Event that existed before this process started, as far as the Event's
/// own timestamps tell.
fn age(event: &StoredObject) -> Duration {
    let object = event.decode();
    let metadata = fields::object(&object, "metadata").and_then(|it| fields::text(it, "creationTimestamp"));
    let series = fields::object(&object, "series").and_then(|it| fields::text(it, "lastObservedTime"));
    let deprecated = fields::text(&object, "deprecatedLastTimestamp");
    let times = [metadata, series, deprecated, fields::text(&object, "eventTime")];
    let last = times.into_iter().flatten().filter_map(timestamp::parse).map(|(seconds, _)| seconds).max();
    let since = last.map_or(0, |last| unix().saturating_sub(last));
    Duration::from_secs(u64::try_from(since).unwrap_or(0))
}

/// Returns the current time in seconds since 1970.
fn unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
