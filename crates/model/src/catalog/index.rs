//! Services or EndpointSlices by a key that is not stored: the index holds ids and hashes, and the caller compares with the
//! records.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

use super::store::Id;

/// Ids of records by the hash of a key. A record may have several keys, and a key several records.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    table: HashTable<Entry>,
    hasher: RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: Id,
    /// The upper half of the key's hash, so that the table can grow without reading the record.
    hash: u32,
}

impl Index {
    /// Makes room for this number of keys.
    pub(super) fn with_capacity(keys: usize) -> Self {
        Self { table: HashTable::with_capacity(keys), hasher: RandomState::new() }
    }

    /// Adds a key of a record.
    pub(super) fn insert<K: Hash>(&mut self, key: &K, id: Id) {
        let hash = self.hash(key);
        self.table.insert_unique(spread(hash), Entry { id, hash }, |entry| spread(entry.hash));
    }

    /// Removes a key of a record.
    pub(super) fn remove<K: Hash>(&mut self, key: &K, id: Id) {
        let hash = self.hash(key);
        let is_it = |entry: &Entry| entry.id == id && entry.hash == hash;
        if let Ok(entry) = self.table.find_entry(spread(hash), is_it) {
            entry.remove();
        }
    }

    /// Returns the records with this key, and rarely another one whose key has the same hash.
    pub(super) fn candidates<K: Hash>(&self, key: &K) -> impl Iterator<Item = Id> {
        let hash = self.hash(key);
        let entries = self.table.iter_hash(spread(hash));
        entries.filter(move |entry| entry.hash == hash).map(|entry| entry.id)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    fn hash<K: Hash>(&self, key: &K) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }
}

/// Spreads 32 bits of hash over 64, because the table uses both ends.
const fn spread(hash: u32) -> u64 {
    (hash as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
