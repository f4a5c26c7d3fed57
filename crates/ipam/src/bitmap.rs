//! A set of numbers below 2^64 that finds the next absent number fast and stays small, whether nearly empty or nearly
//! full.
//!
//! Numbers are grouped in chunks of 4096. Neither empty nor full chunks take memory of their own: runs of full chunks
//! are kept as intervals, so a search skips any number of them at once. Any other chunk is a short sorted list, or 64
//! words with a summary of the full words.

use std::collections::BTreeMap;

use chunk::{CHUNK_BITS, Chunk};

mod chunk;
#[cfg(test)]
mod tests;

const LAST_CHUNK: u64 = u64::MAX / CHUNK_BITS as u64;

/// A set of numbers below 2^64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bitmap {
    /// Chunks that are neither empty nor full, by index.
    partial: BTreeMap<u64, Chunk>,
    /// First to last index of each run of full chunks. No two runs touch.
    full: BTreeMap<u64, u64>,
    len: u64,
}

impl Bitmap {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many numbers are in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let (index, bit) = split(number);
        self.run_over(index).is_some() || self.partial.get(&index).is_some_and(|chunk| chunk.contains(bit))
    }

    /// Adds the number. Returns false if it was present.
    pub fn insert(&mut self, number: u64) -> bool {
        let (index, bit) = split(number);
        if self.run_over(index).is_some() {
            return false;
        }
        let chunk = self.partial.entry(index).or_default();
        let is_new = chunk.insert(bit);
        if is_new && chunk.is_full() {
            self.partial.remove(&index);
            self.add_full(index);
        }
        self.len = self.len.saturating_add(u64::from(is_new));
        is_new
    }

    /// Removes the number. Returns false if it was absent.
    pub fn remove(&mut self, number: u64) -> bool {
        let (index, bit) = split(number);
        if let Some((first, last)) = self.run_over(index) {
            self.split_run(first, last, index);
            self.partial.insert(index, Chunk::full_but(bit));
            self.len = self.len.saturating_sub(1);
            return true;
        }
        let Some(chunk) = self.partial.get_mut(&index) else { return false };
        let was_there = chunk.remove(bit);
        if chunk.is_empty() {
            self.partial.remove(&index);
        }
        self.len = self.len.saturating_sub(u64::from(was_there));
        was_there
    }

    /// Returns the least absent number that is not below `from`.
    pub fn next_absent(&self, from: u64) -> Option<u64> {
        let (mut index, mut bit) = split(from);
        // The loop takes few rounds: a partial chunk without room from `bit` on, a run of full chunks, then a chunk
        // with room.
        while index <= LAST_CHUNK {
            if let Some((_, last)) = self.run_over(index) {
                (index, bit) = (last.checked_add(1)?, 0);
            } else if let Some(chunk) = self.partial.get(&index) {
                if let Some(bit) = chunk.next_absent(bit) {
                    return Some(join(index, bit));
                }
                (index, bit) = (index.checked_add(1)?, 0);
            } else {
                return Some(join(index, bit));
            }
        }
        None
    }

    /// Iterates over all numbers of the set in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let mut next = Some(0);
        std::iter::from_fn(move || {
            let number = self.next_present(next?)?;
            next = number.checked_add(1);
            Some(number)
        })
    }

    /// Returns the least number of the set that is not below `from`.
    fn next_present(&self, from: u64) -> Option<u64> {
        let (index, bit) = split(from);
        if self.run_over(index).is_some() {
            return Some(from);
        }
        if let Some(bit) = self.partial.get(&index).and_then(|chunk| chunk.next_present(bit)) {
            return Some(join(index, bit));
        }
        let above = index.checked_add(1)?..;
        let partial = self.partial.range(above.clone()).next();
        let partial = partial.and_then(|(index, chunk)| Some(join(*index, chunk.next_present(0)?)));
        let full = self.full.range(above).next().map(|(first, _)| join(*first, 0));
        partial.into_iter().chain(full).min()
    }

    /// Returns the first and last index of the run of full chunks that contains this chunk.
    fn run_over(&self, index: u64) -> Option<(u64, u64)> {
        let (first, last) = self.full.range(..=index).next_back()?;
        (*last >= index).then_some((*first, *last))
    }

    fn add_full(&mut self, index: u64) {
        let before = index.checked_sub(1).and_then(|before| self.run_over(before));
        let first = before.map_or(index, |(first, _)| first);
        let after = index.checked_add(1).and_then(|after| self.full.remove(&after));
        self.full.insert(first, after.unwrap_or(index));
    }

    fn split_run(&mut self, first: u64, last: u64, index: u64) {
        self.full.remove(&first);
        if first < index {
            self.full.insert(first, index.saturating_sub(1));
        }
        if index < last {
            self.full.insert(index.saturating_add(1), last);
        }
    }
}

impl FromIterator<u64> for Bitmap {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut bitmap = Self::new();
        for number in numbers {
            bitmap.insert(number);
        }
        bitmap
    }
}

/// Returns the index of the chunk and the bit within it.
#[expect(clippy::cast_possible_truncation, reason = "below CHUNK_BITS")]
fn split(number: u64) -> (u64, u16) {
    (number / u64::from(CHUNK_BITS), (number % u64::from(CHUNK_BITS)) as u16)
}

fn join(index: u64, bit: u16) -> u64 {
    index.saturating_mul(u64::from(CHUNK_BITS)).saturating_add(u64::from(bit))
}
