//! Values that wait, one for each key.

use std::collections::HashMap;
use std::hash::Hash;

/// The latest value of each key, in the order in which these values came.
#[derive(Debug)]
pub struct Latest<K, V> {
    values: HashMap<K, (u64, V)>,
    next: u64,
}

impl<K, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self { values: HashMap::new(), next: 0 }
    }
}

impl<K: Eq + Hash, V> Latest<K, V> {
    /// Returns true if no value waits.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns true if a value waits for this key.
    pub fn contains(&self, key: &K) -> bool {
        self.values.contains_key(key)
    }

    /// Adds a value, in place of the one that its key has.
    pub fn insert(&mut self, key: K, value: V) {
        self.values.insert(key, (self.next, value));
        self.next = self.next.saturating_add(1);
    }

    /// Removes and returns all values. Their memory is freed: after a first load there are many of them.
    pub fn take(&mut self) -> Vec<V> {
        let mut values: Vec<_> = std::mem::take(&mut self.values).into_values().collect();
        self.next = 0;
        values.sort_unstable_by_key(|(number, _)| *number);
        values.into_iter().map(|(_, value)| value).collect()
    }

    /// The values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        let mut values: Vec<_> = self.values.values().collect();
        values.sort_unstable_by_key(|(number, _)| *number);
        values.into_iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_value_of_a_key_counts_and_comes_last() {
        let mut latest = Latest::default();
        latest.insert("a", 1);
        latest.insert("b", 2);
        latest.insert("a", 3);
        assert!(latest.contains(&"a") && !latest.contains(&"c"));
        assert_eq!(latest.values().copied().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(latest.take(), [2, 3]);
        assert!(latest.is_empty());
    }
}
