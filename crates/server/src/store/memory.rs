//! The store that lives and dies with the process.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::sync::watch;

use super::{Change, Changes, Expired, Scope, Snapshot, Store, Superseded};
use crate::{
    config::History,
    object::{Draft, StoredObject},
    resource::Resource,
};

#[cfg(test)]
mod tests;

/// Objects and history in memory. Revisions start at the wall clock in microseconds, so that a client which outlives
/// a restart holds a revision that is too old (and lists again), never one that this process has yet to reach.
#[derive(Debug)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
    signals: [watch::Sender<u64>; Resource::ALL.len()],
}

#[derive(Debug)]
struct Inner {
    revision: u64,
    limits: History,
    tables: [Table; Resource::ALL.len()],
}

/// Objects of one resource.
#[derive(Debug, Default)]
struct Table {
    objects: BTreeSet<ByKey>,
    history: VecDeque<Change>,
    /// Bytes of objects that only the history keeps alive.
    superseded_bytes: usize,
    /// The revision of the last change that the history has dropped.
    compacted: u64,
}

/// An object ordered by its key, so that the key is stored once.
#[derive(Debug)]
struct ByKey(Arc<StoredObject>);

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: History) -> Self {
        let micros = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros());
        Self::starting_at(limits, u64::try_from(micros).unwrap_or(1))
    }

    /// An empty store whose last revision is `revision` (at least 1).
    pub fn starting_at(limits: History, revision: u64) -> Self {
        let revision = revision.max(1);
        let table = || Table { compacted: revision, ..Table::default() };
        let tables = std::array::from_fn(|_| table());
        let signals = std::array::from_fn(|_| watch::Sender::new(revision));
        Self { inner: Mutex::new(Inner { revision, limits, tables }), signals }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave the tables half-written: every change is a few infallible steps.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, resource: Resource, revision: u64) {
        if let Some(signal) = self.signals.get(resource.index()) {
            signal.send_modify(|last| *last = revision.max(*last));
        }
    }
}

impl Store for MemoryStore {
    fn revision(&self) -> u64 {
        self.lock().revision
    }

    fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        self.lock().table(resource)?.get(key)
    }

    fn count(&self, resource: Resource) -> usize {
        self.lock().table(resource).map_or(0, |table| table.objects.len())
    }

    fn snapshot(&self, resource: Resource, scope: &Scope<'_>, at: Option<u64>) -> Result<Snapshot, Expired> {
        let inner = self.lock();
        let revision = at.unwrap_or(inner.revision);
        let empty = || Snapshot { revision, objects: Vec::new() };
        let Some(table) = inner.table(resource) else { return Ok(empty()) };
        if revision < table.compacted || revision > inner.revision {
            return Err(Expired { requested: revision, oldest: table.compacted });
        }
        let objects = if revision == inner.revision {
            table.objects_in(scope).cloned().collect()
        } else {
            table.objects_at(scope, revision)
        };
        Ok(Snapshot { revision, objects })
    }

    fn put(
        &self,
        resource: Resource,
        draft: Draft,
        expected: Option<u64>,
    ) -> Result<Arc<StoredObject>, Superseded> {
        let mut inner = self.lock();
        let (revision, limits) = (inner.revision.saturating_add(1), inner.limits);
        let Some(table) = inner.tables.get_mut(resource.index()) else {
            return Err(Superseded { actual: None });
        };
        let old = table.expect(draft.key(), expected)?;
        let new = Arc::new(draft.at(revision));
        table.objects.replace(ByKey(Arc::clone(&new)));
        table.record(Change { revision, old, new: Some(Arc::clone(&new)) }, limits);
        inner.revision = revision;
        drop(inner);
        self.signal(resource, revision);
        Ok(new)
    }

    fn remove(&self, resource: Resource, key: &str, expected: u64) -> Result<u64, Superseded> {
        let mut inner = self.lock();
        let (revision, limits) = (inner.revision.saturating_add(1), inner.limits);
        let Some(table) = inner.tables.get_mut(resource.index()) else {
            return Err(Superseded { actual: None });
        };
        let old = table.expect(key, Some(expected))?;
        table.objects.remove(key);
        table.record(Change { revision, old, new: None }, limits);
        inner.revision = revision;
        drop(inner);
        self.signal(resource, revision);
        Ok(revision)
    }

    fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired> {
        let inner = self.lock();
        let Some(table) = inner.table(resource) else {
            return Ok(Changes { changes: Vec::new(), through: inner.revision });
        };
        // A revision that this store never gave out belongs to an earlier life whose clock was ahead: waiting for it
        // would starve the client, so it is told to list again.
        if after < table.compacted || after > inner.revision {
            return Err(Expired { requested: after, oldest: table.compacted });
        }
        let start = table.history.partition_point(|change| change.revision <= after);
        let changes: Vec<Change> = table.history.range(start..).take(limit).cloned().collect();
        let complete = start.saturating_add(changes.len()) == table.history.len();
        let last = changes.last().map_or(after, |change| change.revision);
        Ok(Changes { changes, through: if complete { inner.revision } else { last } })
    }

    fn subscribe(&self, resource: Resource) -> watch::Receiver<u64> {
        let signal = self.signals.get(resource.index());
        signal.map_or_else(|| watch::channel(0).1, watch::Sender::subscribe)
    }
}

impl Inner {
    fn table(&self, resource: Resource) -> Option<&Table> {
        self.tables.get(resource.index())
    }
}

impl Table {
    fn get(&self, key: &str) -> Option<Arc<StoredObject>> {
        self.objects.get(key).map(|object| Arc::clone(&object.0))
    }

    /// The object with this key, if it is at the expected revision (`None`: if it does not exist).
    fn expect(&self, key: &str, expected: Option<u64>) -> Result<Option<Arc<StoredObject>>, Superseded> {
        let old = self.get(key);
        let actual = old.as_ref().map(|object| object.revision());
        if actual == expected { Ok(old) } else { Err(Superseded { actual }) }
    }

    fn objects_in<'a>(&'a self, scope: &Scope<'a>) -> impl Iterator<Item = &'a Arc<StoredObject>> {
        let namespace = scope.namespace.map(|name| format!("{name}/"));
        let start = namespace.clone().unwrap_or_default();
        let from = match scope.after {
            Some(after) if after >= start.as_str() => Bound::Excluded(after.to_owned()),
            _ => Bound::Included(start),
        };
        let range = self.objects.range::<str, _>((from.as_ref().map(String::as_str), Bound::Unbounded));
        range.map(|object| &object.0).take_while(move |object| {
            namespace.as_ref().is_none_or(|prefix| object.key().starts_with(prefix))
        })
    }

    /// The objects as they were at an older revision: today's, with each later change undone.
    fn objects_at(&self, scope: &Scope<'_>, revision: u64) -> Vec<Arc<StoredObject>> {
        let mut objects: BTreeMap<&str, &Arc<StoredObject>> =
            self.objects_in(scope).map(|object| (object.key(), object)).collect();
        for change in self.history.iter().rev().take_while(|change| change.revision > revision) {
            match (&change.old, &change.new) {
                (Some(old), _) if scope.holds(old) => {
                    objects.insert(old.key(), old);
                }
                (None, Some(new)) => {
                    objects.remove(new.key());
                }
                _ => {}
            }
        }
        objects.into_values().cloned().collect()
    }

    fn record(&mut self, change: Change, limits: History) {
        self.superseded_bytes = self.superseded_bytes.saturating_add(old_bytes(&change));
        self.history.push_back(change);
        while self.history.len() > limits.max_changes || self.superseded_bytes > limits.max_superseded_bytes {
            let Some(oldest) = self.history.pop_front() else { return };
            self.superseded_bytes = self.superseded_bytes.saturating_sub(old_bytes(&oldest));
            self.compacted = oldest.revision;
        }
    }
}

impl Scope<'_> {
    fn holds(&self, object: &StoredObject) -> bool {
        self.namespace.is_none_or(|namespace| namespace == object.namespace())
            && self.after.is_none_or(|after| object.key() > after)
    }
}

fn old_bytes(change: &Change) -> usize {
    change.old.as_ref().map_or(0, |old| old.body().len())
}

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key().cmp(other.0.key())
    }
}
