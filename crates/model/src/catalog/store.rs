//! Named records in a slab, indexed by namespace and name.
//!
//! The index holds only ids and compares keys in the records, so each key is stored once.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use hashbrown::HashTable;

/// The index of a record. Reused for another record after removal.
pub(super) type Id = u32;

/// A record with its own key.
pub(super) trait Named {
    fn namespace(&self) -> &str;
    fn name(&self) -> &str;
}

/// Records by id and by key.
#[derive(Debug, Clone)]
pub(super) struct Store<T> {
    records: Vec<Option<T>>,
    free: Vec<Id>,
    index: HashTable<Id>,
    hasher: RandomState,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { records: Vec::new(), free: Vec::new(), index: HashTable::new(), hasher: RandomState::new() }
    }
}

impl<T> Store<T> {
    pub(super) fn get(&self, id: Id) -> Option<&T> {
        self.records.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.records.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        (0..).zip(&self.records).filter_map(|(id, record)| Some((id, record.as_ref()?)))
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }
}

impl<T: Named> Store<T> {
    pub(super) fn find(&self, namespace: &str, name: &str) -> Option<Id> {
        let hash = self.hasher.hash_one((namespace, name));
        let is_it = |id: &Id| self.get(*id).is_some_and(|r| r.namespace() == namespace && r.name() == name);
        self.index.find(hash, is_it).copied()
    }

    /// Adds a record. No record with the same key may exist.
    pub(super) fn insert(&mut self, record: T) -> Id {
        let hash = hash(&self.hasher, &record);
        let id = if let Some(id) = self.free.pop() {
            if let Some(slot) = self.records.get_mut(id as usize) {
                *slot = Some(record);
            }
            id
        } else {
            self.records.push(Some(record));
            Id::try_from(self.records.len() - 1).unwrap_or(Id::MAX)
        };
        let Self { records, index, hasher, .. } = self;
        let rehash = |id: &Id| {
            records.get(*id as usize).and_then(Option::as_ref).map_or(0, |record| self::hash(hasher, record))
        };
        index.insert_unique(hash, id, rehash);
        id
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<T> {
        let record = self.records.get_mut(id as usize)?.take()?;
        if let Ok(entry) = self.index.find_entry(hash(&self.hasher, &record), |other| *other == id) {
            entry.remove();
        }
        self.free.push(id);
        Some(record)
    }
}

fn hash<T: Named>(hasher: &RandomState, record: &T) -> u64 {
    hasher.hash_one((record.namespace(), record.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Named for (String, String) {
        fn namespace(&self) -> &str {
            &self.0
        }
        fn name(&self) -> &str {
            &self.1
        }
    }

    #[test]
    fn places_are_used_again_and_keys_found_through_growth() {
        let mut store = Store::default();
        let key = |n: u32| ("ns".to_owned(), n.to_string());
        let ids: Vec<Id> = (0..1000).map(|n| store.insert(key(n))).collect();
        for (n, id) in (0..1000).zip(&ids) {
            assert_eq!(store.find("ns", &n.to_string()), Some(*id));
        }
        for id in &ids {
            assert!(store.remove(*id).is_some() && store.remove(*id).is_none());
        }
        assert_eq!((store.len(), store.find("ns", "1")), (0, None));
        for n in 0..1000 {
            store.insert(key(n));
        }
        assert_eq!((store.len(), store.records.len()), (1000, 1000));
    }

    #[test]
    fn namespace_and_name_do_not_run_together() {
        let mut store = Store::default();
        let id = store.insert(("ab".to_owned(), "c".to_owned()));
        assert_eq!((store.find("a", "bc"), store.find("ab", "c")), (None, Some(id)));
    }
}
