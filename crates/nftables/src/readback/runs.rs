//! Keys of an id and an index, as runs: an id mostly has all indexes from the first one on.
//!
//! A run takes 16 bytes, however many keys it has. A key alone takes 8.

use std::cell::Cell;

use super::super::element::{Key, read_number};

/// Length in bytes of a key: an id with 4 and an index with 4.
pub(super) const KEY_LENGTH: usize = 8;

/// The id of a key, as its bytes, and the index. Keys are in this order.
pub(super) type Parts = ([u8; 4], u32);

/// Keys in their order. The first key has place 0, the next one place 1, and so on.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
    /// The run in which the last key was found. Keys are mostly looked up in their order.
    last: Cell<usize>,
}

/// Keys of one id whose indexes follow each other.
#[derive(Debug, Clone, Copy)]
struct Run {
    id: [u8; 4],
    first: u32,
    /// The place of the first key.
    place: u32,
    length: u32,
}

impl Run {
    /// Returns the index after the last one.
    fn end(&self) -> u64 {
        u64::from(self.first) + u64::from(self.length)
    }

    fn place_of(&self, (id, index): Parts) -> Option<usize> {
        let offset = index.checked_sub(self.first).filter(|&offset| self.id == id && offset < self.length)?;
        Some(self.place as usize + offset as usize)
    }

    fn keys(self) -> impl Iterator<Item = Parts> {
        (0..self.length).map(move |offset| (self.id, self.first.saturating_add(offset)))
    }
}

impl Runs {
    /// Adds a key after the others. Returns false if it does not come after them.
    pub(super) fn push(&mut self, (id, index): Parts) -> bool {
        let Some(last) = self.runs.last_mut() else {
            self.runs.push(Run { id, first: index, place: 0, length: 1 });
            return true;
        };
        let (is_same_id, index_after) = (last.id == id, last.end());
        if last.id > id || (is_same_id && index_after > u64::from(index)) {
            return false;
        }
        if is_same_id && index_after == u64::from(index) {
            last.length = last.length.saturating_add(1);
        } else {
            let place = last.place.saturating_add(last.length);
            self.runs.push(Run { id, first: index, place, length: 1 });
        }
        true
    }

    /// Returns the place of a key.
    pub(super) fn place(&self, key: Parts) -> Option<usize> {
        let in_run = |number: usize| Some((number, self.runs.get(number)?.place_of(key)?));
        let last = self.last.get();
        let (number, place) = in_run(last).or_else(|| in_run(last + 1)).or_else(|| {
            let after = self.runs.partition_point(|run| (run.id, run.first) <= key);
            in_run(after.checked_sub(1)?)
        })?;
        self.last.set(number);
        Some(place)
    }

    /// Returns the keys in their order.
    pub(super) fn keys(&self) -> impl Iterator<Item = Parts> {
        self.runs.iter().flat_map(|run| run.keys())
    }
}

/// Returns the id and the index of a key. `None` if it has another length.
pub(super) fn parts(key: &[u8]) -> Option<Parts> {
    let (id, index) = key.split_first_chunk::<4>()?;
    (key.len() == KEY_LENGTH).then_some((*id, read_number(index)?))
}

/// Returns the key of an id and an index.
pub(super) fn key((id, index): Parts) -> Key {
    Key::EMPTY.number(u32::from_ne_bytes(id)).number(index)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_have_their_places(keys in any::<BTreeSet<(u8, u8)>>()) {
            let keys: Vec<Parts> = keys.into_iter().map(|(id, index)| ([id; 4], index.into())).collect();
            let mut runs = Runs::default();
            for key in &keys {
                prop_assert!(runs.push(*key));
                prop_assert!(!runs.push(*key), "it does not come after itself");
            }
            prop_assert_eq!(runs.keys().collect::<Vec<_>>(), keys.clone());
            for (place, key) in keys.iter().enumerate().rev() {
                prop_assert_eq!(runs.place(*key), Some(place));
            }
            for index in 0..256 {
                let (one, place) = (([7; 4], index), keys.iter().position(|key| *key == ([7; 4], index)));
                prop_assert_eq!(runs.place(one), place);
            }
        }
    }

    #[test]
    fn indexes_that_follow_each_other_are_one_run() {
        let mut runs = Runs::default();
        for (id, index) in
            [(1, 3), (1, 4), (1, 5), (2, 0), (2, 1), (2, 300), (2, u32::MAX - 1), (2, u32::MAX)]
        {
            assert!(runs.push(([id; 4], index)));
        }
        assert_eq!(runs.runs.len(), 4);
        assert!(!runs.push(([1; 4], 6)) && !runs.push(([2; 4], 299)));
        assert_eq!(runs.place(([2; 4], u32::MAX)), Some(7));
    }

    #[test]
    fn keys_of_another_length_have_no_parts() {
        assert!(parts(&[0; 4]).is_none() && parts(&[0; 12]).is_none());
        assert_eq!(parts(key(([1; 4], 7)).as_slice()), Some(([1; 4], 7)));
    }
}
