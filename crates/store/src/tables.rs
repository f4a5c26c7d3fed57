//! The tables behind the published state: the current objects and the history of each resource.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Bound,
    sync::Arc,
};

use portolan_schema::Resource;

use crate::{Change, Changes, Expired, History, Scope, Snapshot, StoredObject};

/// The objects and the history of all resources.
#[derive(Debug)]
pub(crate) struct Tables {
    revision: u64,
    limits: History,
    resources: [KindTable; Resource::ALL.len()],
}

/// A change that the history has dropped.
#[derive(Debug)]
pub(crate) struct Dropped {
    pub(crate) resource: Resource,
    pub(crate) change: Change,
}

/// Objects of one resource.
#[derive(Debug, Default)]
struct KindTable {
    objects: BTreeSet<ByKey>,
    history: VecDeque<Change>,
    /// Bytes of superseded objects, which only the history keeps.
    superseded_bytes: usize,
    /// The revision of the last change that the history has dropped.
    compacted: u64,
}

/// An object ordered by its key, so that the key is stored once.
#[derive(Debug)]
struct ByKey(Arc<StoredObject>);

impl Tables {
    /// Creates empty tables. The last revision is `revision`, and the history begins after it.
    pub(crate) fn new(limits: History, revision: u64) -> Self {
        let resources = std::array::from_fn(|_| KindTable { compacted: revision, ..KindTable::default() });
        Self { revision, limits, resources }
    }

    /// Returns the last revision.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the object with this key.
    pub(crate) fn get(&self, resource: Resource, key: &str) -> Option<Arc<StoredObject>> {
        self.table(resource)?.get(key)
    }

    /// Returns the number of objects of the resource.
    pub(crate) fn count(&self, resource: Resource) -> usize {
        self.table(resource).map_or(0, |table| table.objects.len())
    }

    /// Returns the number of objects of all resources.
    pub(crate) fn total(&self) -> usize {
        self.resources.iter().map(|table| table.objects.len()).sum()
    }

    /// Sets the revision after which the history of a resource begins. Must be called before anything is loaded or
    /// applied.
    pub(crate) fn begin_history(&mut self, resource: Resource, revision: u64) {
        if let Some(table) = self.resources.get_mut(resource.index()) {
            table.compacted = revision;
        }
    }

    /// Returns the revision after which the history of a resource begins.
    pub(crate) fn compacted(&self, resource: Resource) -> u64 {
        self.table(resource).map_or(self.revision, |table| table.compacted)
    }

    /// Notes that every change up to `revision` is applied.
    pub(crate) fn complete(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// Adds an object from before the history. It is part of the initial state and not a change.
    pub(crate) fn load(&mut self, resource: Resource, object: Arc<StoredObject>) {
        if let Some(table) = self.resources.get_mut(resource.index()) {
            table.objects.replace(ByKey(object));
        }
    }

    /// Applies a change. Changes must be applied in the order of their revisions. Adds what the history drops in turn
    /// to `dropped`.
    pub(crate) fn apply(&mut self, resource: Resource, change: Change, dropped: &mut Vec<Dropped>) {
        let limits = self.limits;
        self.revision = self.revision.max(change.revision);
        let Some(table) = self.resources.get_mut(resource.index()) else { return };
        match (&change.new, &change.old) {
            (Some(new), _) => {
                table.objects.replace(ByKey(Arc::clone(new)));
            }
            (None, Some(old)) => {
                table.objects.remove(old.key());
            }
            (None, None) => return,
        }
        table.record(change, limits, |change| dropped.push(Dropped { resource, change }));
    }

    /// Drops the whole history, even if it is within the limits. Adds it to `dropped`.
    pub(crate) fn forget_history(&mut self, dropped: &mut Vec<Dropped>) {
        for resource in Resource::ALL {
            if let Some(table) = self.resources.get_mut(resource.index()) {
                let nothing = History { max_changes: 0, max_superseded_bytes: 0 };
                table.cut(nothing, |change| dropped.push(Dropped { resource, change }));
            }
        }
    }

    /// Returns the bytes of superseded objects, which only the history keeps.
    pub(crate) fn history_bytes(&self) -> usize {
        self.resources.iter().fold(0, |sum, table| sum.saturating_add(table.superseded_bytes))
    }

    /// Returns all objects in `scope`: see [`crate::Store::snapshot`].
    pub(crate) fn snapshot(
        &self,
        resource: Resource,
        scope: &Scope<'_>,
        at: Option<u64>,
    ) -> Result<Snapshot, Expired> {
        let revision = at.unwrap_or(self.revision);
        let empty = || Snapshot { revision, objects: Vec::new() };
        let Some(table) = self.table(resource) else { return Ok(empty()) };
        if revision < table.compacted || revision > self.revision {
            return Err(Expired { requested: revision, oldest: table.compacted });
        }
        let objects = if revision == self.revision {
            table.objects_in(scope).cloned().collect()
        } else {
            table.objects_at(scope, revision)
        };
        Ok(Snapshot { revision, objects })
    }

    /// Returns the changes after a revision: see [`crate::Store::changes`].
    pub(crate) fn changes(&self, resource: Resource, after: u64, limit: usize) -> Result<Changes, Expired> {
        let Some(table) = self.table(resource) else {
            return Ok(Changes { changes: Vec::new(), through: self.revision });
        };
        // A revision that this store has not assigned is from another history, such as that of a former process whose
        // clock was ahead. Later changes do not follow on it, even after the store has passed it, so the client has to
        // list again. A watch waits a while before it says so.
        if after < table.compacted || after > self.revision {
            return Err(Expired { requested: after, oldest: table.compacted });
        }
        let start = table.history.partition_point(|change| change.revision <= after);
        let changes: Vec<Change> = table.history.range(start..).take(limit).cloned().collect();
        let complete = start.saturating_add(changes.len()) == table.history.len();
        let last = changes.last().map_or(after, |change| change.revision);
        Ok(Changes { changes, through: if complete { self.revision } else { last } })
    }

    fn table(&self, resource: Resource) -> Option<&KindTable> {
        self.resources.get(resource.index())
    }
}

impl KindTable {
    fn get(&self, key: &str) -> Option<Arc<StoredObject>> {
        self.objects.get(key).map(|object| Arc::clone(&object.0))
    }

    fn objects_in<'a>(&'a self, scope: &Scope<'a>) -> impl Iterator<Item = &'a Arc<StoredObject>> {
        let namespace = scope.namespace.map(|name| format!("{name}/"));
        let start = namespace.clone().unwrap_or_default();
        let from = match scope.after {
            Some(after) if after >= start.as_str() => Bound::Excluded(after.to_owned()),
            _ => Bound::Included(start),
        };
        let named = scope.key.and_then(|key| self.objects.get(key)).map(|object| &object.0);
        let scope = *scope;
        let named = named.filter(move |object| scope.holds(object));
        let others = scope.key.is_none().then(|| {
            let range = self.objects.range::<str, _>((from.as_ref().map(String::as_str), Bound::Unbounded));
            range.map(|object| &object.0).take_while(move |object| {
                namespace.as_ref().is_none_or(|prefix| object.key().starts_with(prefix))
            })
        });
        named.into_iter().chain(others.into_iter().flatten())
    }

    /// Returns the objects as they were at an older revision: the current ones, with each later change undone.
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

    fn record(&mut self, change: Change, limits: History, drop: impl FnMut(Change)) {
        self.superseded_bytes = self.superseded_bytes.saturating_add(old_bytes(&change));
        self.history.push_back(change);
        self.cut(limits, drop);
    }

    fn cut(&mut self, limits: History, mut drop: impl FnMut(Change)) {
        while self.history.len() > limits.max_changes || self.superseded_bytes > limits.max_superseded_bytes {
            let Some(oldest) = self.history.pop_front() else { return };
            self.superseded_bytes = self.superseded_bytes.saturating_sub(old_bytes(&oldest));
            self.compacted = oldest.revision;
            drop(oldest);
        }
    }
}

impl Scope<'_> {
    fn holds(&self, object: &StoredObject) -> bool {
        self.namespace.is_none_or(|namespace| namespace == object.namespace())
            && self.after.is_none_or(|after| object.key() > after)
            && self.key.is_none_or(|key| object.key() == key)
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
