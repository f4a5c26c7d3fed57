//! Numbers from 0 up, of which some are taken: what address ranges and node ports have in common.

use std::ops::Range;

use crate::{bitmap::Bitmap, random::Random};

/// The numbers below a size. The lowest are the static band, used for those who do not ask for a certain number only
/// when all others are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    size: u64,
    band: u64,
    taken: Bitmap,
}

impl Pool {
    /// All free.
    pub fn new(size: u64, band: u64) -> Self {
        Self { size, band: band.min(size), taken: Bitmap::new() }
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
        number < self.size && self.taken.insert(number)
    }

    /// Frees the number; false if it was not taken.
    pub fn release(&mut self, number: u64) -> bool {
        self.taken.remove(number)
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

    fn find_round(&self, band: Range<u64>, start: u64) -> Option<u64> {
        self.find_in(start..band.end).or_else(|| self.find_in(band.start..start))
    }

    fn find_in(&self, part: Range<u64>) -> Option<u64> {
        self.taken.next_absent(part.start).filter(|number| *number < part.end)
    }
}
