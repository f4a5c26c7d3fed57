//! A pool of numbers, some of them taken: the common part of address ranges and node ports.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
};

use crate::{bitmap::Bitmap, random::Random};

/// The numbers below a size. The lowest form the static band, from which dynamic allocation takes a number only after
/// all others are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    size: u64,
    band: u64,
    taken: Bitmap,
    resting: Resting,
}

/// Recently retired numbers, the latest last. Other nodes may still have them in their rules with the former meaning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Resting {
    order: VecDeque<u64>,
    members: HashSet<u64>,
}

/// Largest number of resting numbers. In a small pool the limit is a quarter of its size.
const MOST_RESTING: u64 = 1024;

impl Pool {
    /// Creates a pool in which all numbers are free.
    pub fn new(size: u64, band: u64) -> Self {
        Self { size, band: band.min(size), taken: Bitmap::new(), resting: Resting::default() }
    }

    /// Returns how many numbers the pool has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns how many numbers are taken.
    pub fn taken(&self) -> u64 {
        self.taken.len()
    }

    /// Returns how many numbers are free.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.taken.len())
    }

    /// Returns true if the number is in the pool and taken.
    pub fn is_taken(&self, number: u64) -> bool {
        self.taken.contains(number)
    }

    /// Takes the number. Returns false if it is taken or not in the pool.
    pub fn take(&mut self, number: u64) -> bool {
        let is_free = number < self.size && self.taken.insert(number);
        if is_free {
            self.resting.wake(number);
        }
        is_free
    }

    /// Frees the number. Returns false if it was not taken.
    pub fn release(&mut self, number: u64) -> bool {
        self.taken.remove(number)
    }

    /// Frees a number that was in use. [`find`](Self::find) avoids recently retired numbers while it finds another in
    /// the same band. Returns false if the number was not taken.
    pub fn retire(&mut self, number: u64) -> bool {
        let was_taken = self.taken.remove(number);
        if was_taken {
            self.resting.add(number, self.size.checked_div(4).unwrap_or(0).min(MOST_RESTING));
        }
        was_taken
    }

    /// Iterates over the taken numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.taken.iter()
    }

    /// Finds a free number: the first at or after a random number of the upper band, wrapping around within the band,
    /// else one of the static band in the same way (`pkg/registry/core/service/allocator/bitmap.go`). The number
    /// stays free.
    pub fn find(&self, random: &mut dyn Random) -> Option<u64> {
        if self.free() == 0 {
            return None;
        }
        let start = self.band.saturating_add(random.below(self.size.saturating_sub(self.band)));
        self.find_round(self.band..self.size, start).or_else(|| {
            let start = random.below(self.band);
            self.find_round(0..self.band, start)
        })
    }

    /// Finds a number that does not rest, else one that does.
    fn find_round(&self, band: Range<u64>, start: u64) -> Option<u64> {
        let find = |may_rest| {
            self.find_in(start..band.end, may_rest).or_else(|| self.find_in(band.start..start, may_rest))
        };
        find(false).or_else(|| find(true))
    }

    fn find_in(&self, mut part: Range<u64>, may_rest: bool) -> Option<u64> {
        loop {
            let number = self.taken.next_absent(part.start).filter(|number| *number < part.end)?;
            if may_rest || !self.resting.members.contains(&number) {
                return Some(number);
            }
            part.start = number.saturating_add(1);
        }
    }
}

impl Resting {
    fn add(&mut self, number: u64, most: u64) {
        self.order.push_back(number);
        self.members.insert(number);
        while self.order.len() as u64 > most {
            let Some(oldest) = self.order.pop_front() else { return };
            self.members.remove(&oldest);
        }
    }

    fn wake(&mut self, number: u64) {
        if self.members.remove(&number) {
            self.order.retain(|other| *other != number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_retired_numbers_are_found_last() {
        let mut seed = fastrand::Rng::with_seed(3);
        let mut pool = Pool::new(64, 16);
        let mut find = |pool: &Pool| pool.find(&mut || seed.u64(..)).unwrap();
        (0..64).for_each(|number| assert!(pool.take(number)));
        for number in [20, 21, 22, 3] {
            assert!(pool.retire(number));
        }
        assert!(pool.release(30));
        assert!(!pool.retire(30), "it was free");
        assert_eq!(find(&pool), 30, "the only one that does not rest");
        assert!(pool.take(30));
        let again = find(&pool);
        assert!((20..=22).contains(&again), "before the static band is touched: {again}");
        assert!(pool.take(again) && pool.retire(again));
        // At most a quarter of the pool rests: the oldest resting numbers are found like any other again.
        (32..48).for_each(|number| assert!(pool.retire(number)));
        for _ in 0..50 {
            assert!((20..=22).contains(&find(&pool)));
        }
    }
}
