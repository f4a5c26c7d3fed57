//! Numbers from 0 up, of which some are taken: what address ranges and node ports have in common.

use std::{
    collections::{HashSet, VecDeque},
    ops::Range,
};

use crate::{bitmap::Bitmap, random::Random};

/// The numbers below a size. The lowest are the static band, used for those who do not ask for a certain number only
/// when all others are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    size: u64,
    band: u64,
    taken: Bitmap,
    resting: Resting,
}

/// Numbers freed of late, the latest last. Other nodes may still know them by what they meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Resting {
    order: VecDeque<u64>,
    members: HashSet<u64>,
}

/// Most numbers that rest; of a small pool it is a quarter.
const MOST_RESTING: u64 = 1024;

impl Pool {
    /// All free.
    pub fn new(size: u64, band: u64) -> Self {
        Self { size, band: band.min(size), taken: Bitmap::new(), resting: Resting::default() }
    }

    /// How many numbers there are.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How many are taken.
    pub fn taken(&self) -> u64 {
        self.taken.len()
    }

    /// How many are not.
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.taken.len())
    }

    /// Whether the number is in the pool and taken.
    pub fn is_taken(&self, number: u64) -> bool {
        self.taken.contains(number)
    }

    /// Takes the number; false if it is taken or not in the pool.
    pub fn take(&mut self, number: u64) -> bool {
        let is_free = number < self.size && self.taken.insert(number);
        if is_free {
            self.resting.wake(number);
        }
        is_free
    }

    /// Frees the number; false if it was not taken.
    pub fn release(&mut self, number: u64) -> bool {
        self.taken.remove(number)
    }

    /// Frees the number, which was in use: as long as there are others, and it was not long ago, it is not found again.
    pub fn retire(&mut self, number: u64) -> bool {
        let was_taken = self.taken.remove(number);
        if was_taken {
            self.resting.add(number, self.size.checked_div(4).unwrap_or(0).min(MOST_RESTING));
        }
        was_taken
    }

    /// Which are taken, rising.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.taken.iter()
    }

    /// A free number: the first at or after a random one of the upper band, going round in it, else one of the static
    /// band in the same way (`pkg/registry/core/service/allocator/bitmap.go`). It stays free.
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

    /// One that does not rest, else one that does.
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
    fn what_was_freed_of_late_comes_last() {
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
        // A quarter of the pool rests at most: the oldest are like others again.
        (32..48).for_each(|number| assert!(pool.retire(number)));
        for _ in 0..50 {
            assert!((20..=22).contains(&find(&pool)));
        }
    }
}
