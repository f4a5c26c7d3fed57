//! Keys of an id and an index, as runs: an id mostly has all indexes from the first one on.
//!
//! A run takes 16 bytes, however many keys it has. Each key has 8.

use std::cell::Cell;
use std::ops::Range;

use super::super::element::{Key, read_number};

/// Length in bytes of a key: an id with 4 and an index with 4.
pub(super) const KEY_LENGTH: usize = 8;

/// Keys, each with its place: the first key that was added has place 0, and so on.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: Vec<Run>,
    /// The run in which the last key was found. Keys are mostly looked up in their order.
    last: Cell<usize>,
}

/// Keys of one id whose indexes follow each other, and whose places do, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    /// The id as bytes of the key.
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

    fn place_of(&self, (id, index): ([u8; 4], u32)) -> Option<usize> {
        let offset = index.checked_sub(self.first).filter(|&offset| self.id == id && offset < self.length)?;
        Some(self.place as usize + offset as usize)
    }

    fn keys(self) -> impl Iterator<Item = Key> {
        (0..self.length).map(move |offset| key(self.id, self.first.saturating_add(offset)))
    }
}

impl Runs {
    /// Adds a key. Returns false if it has another length.
    pub(super) fn push(&mut self, key: &[u8]) -> bool {
        let Some((id, first)) = parts(key) else { return false };
        self.extend(id, first, 1);
        true
    }

    fn extend(&mut self, id: [u8; 4], first: u32, length: u32) {
        let place = self.runs.last().map_or(0, |run| run.place.saturating_add(run.length));
        match self.runs.last_mut().filter(|run| run.id == id && run.end() == u64::from(first)) {
            Some(run) => run.length = run.length.saturating_add(length),
            None => self.runs.push(Run { id, first, place, length }),
        }
    }

    /// Returns the place of a key. The keys need to be [settled](Self::settle).
    pub(super) fn place(&self, key: &[u8]) -> Option<usize> {
        let key = parts(key)?;
        let in_run = |number: usize| Some((number, self.runs.get(number)?.place_of(key)?));
        let last = self.last.get();
        let (number, place) = in_run(last).or_else(|| in_run(last + 1)).or_else(|| {
            let after = self.runs.partition_point(|run| (run.id, run.first) <= key);
            in_run(after.checked_sub(1)?)
        })?;
        self.last.set(number);
        Some(place)
    }

    /// Returns the keys in the order of their places.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.runs.iter().flat_map(|run| run.keys())
    }

    /// Gives the keys their places by order, each once. Returns the former places in this order, or `None` if no place changes.
    pub(super) fn settle(&mut self) -> Option<Vec<Range<usize>>> {
        self.last.set(0);
        let are_in_order = |pair: &[Run]| matches!(pair, [run, next] if run.id < next.id || (run.id == next.id && run.end() <= next.first.into()));
        if self.runs.windows(2).all(are_in_order) {
            return None;
        }
        let mut runs = std::mem::take(&mut self.runs);
        runs.sort_unstable();
        let mut former = Vec::new();
        for run in runs {
            // Keys that the runs before have, too.
            let known = self.runs.last().filter(|last| last.id == run.id).map_or(0, Run::end);
            let known = known.saturating_sub(run.first.into()).min(run.length.into());
            let known = u32::try_from(known).unwrap_or(run.length);
            if known < run.length {
                let place = run.place as usize;
                former.push(place + known as usize..place + run.length as usize);
                self.extend(run.id, run.first.saturating_add(known), run.length - known);
            }
        }
        Some(former)
    }
}

/// Returns the id and the index of a key.
fn parts(key: &[u8]) -> Option<([u8; 4], u32)> {
    let (id, index) = key.split_first_chunk::<4>()?;
    (key.len() == KEY_LENGTH).then_some((*id, read_number(index)?))
}

/// Returns the key of an index of an id.
fn key(id: [u8; 4], index: u32) -> Key {
    Key::EMPTY.number(u32::from_ne_bytes(id)).number(index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_keep_their_places_until_they_are_settled(
            pushed in proptest::collection::vec((0..4_u32, 0..12_u32, 1..6_u32), 0..12),
        ) {
            let (mut runs, mut all) = (Runs::default(), Vec::new());
            for (id, first, length) in pushed {
                for index in first..first + length {
                    let key = Key::EMPTY.number(id).number(index);
                    prop_assert!(runs.push(key.as_slice()));
                    all.push(key);
                }
            }
            prop_assert_eq!(runs.keys().collect::<Vec<_>>(), all.clone());
            let former: Vec<usize> = match runs.settle() {
                Some(former) => former.into_iter().flatten().collect(),
                None => (0..all.len()).collect(),
            };
            let mut sorted: Vec<Key> = former.iter().map(|&place| all[place]).collect();
            prop_assert_eq!(runs.keys().collect::<Vec<_>>(), sorted.clone());
            prop_assert!(runs.settle().is_none());
            for (place, key) in sorted.iter().enumerate().rev() {
                prop_assert_eq!(runs.place(key.as_slice()), Some(place));
            }
            prop_assert_eq!(runs.place(Key::EMPTY.number(9).number(0).as_slice()), None);
            // Each key once, and none is lost.
            sorted.sort_unstable();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(sorted, all);
        }
    }

    #[test]
    fn an_id_has_one_run() {
        let mut runs = Runs::default();
        for (id, index) in [(1_u32, 5_u32), (2, 0), (2, 1), (1, 4), (2, 300), (1, 3)] {
            runs.push(Key::EMPTY.number(id).number(index).as_slice());
        }
        runs.settle();
        assert_eq!(runs.runs.len(), 3);
        assert!(!runs.push(&[0; 12]) && !runs.push(&[0; 4]));
    }
}
