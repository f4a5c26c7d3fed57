//! Where the sets of records of each answer begin.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Step of the counter, which visits every number once (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
/// Generators, 2014, as of the three constants).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
const FIRST_FACTOR: u64 = 0xBF58_476D_1CE4_E5B9;
const SECOND_FACTOR: u64 = 0x94D0_49BB_1331_11EB;

/// A sequence of random numbers, one for each request.
///
/// A counter would not do: a client that asks for A and AAAA in turns would see every second number in its answers of
/// type A, and so the same one of two endpoints each time.
#[derive(Debug)]
pub(super) struct Turns(AtomicU64);

impl Turns {
    /// Starts a sequence. Each seed has its own.
    pub(super) fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// Returns the next number, at most 2^32 - 1.
    pub(super) fn next(&self) -> usize {
        let mut mixed = self.0.fetch_add(STEP, Relaxed);
        mixed = (mixed ^ (mixed >> 30_u32)).wrapping_mul(FIRST_FACTOR);
        mixed = (mixed ^ (mixed >> 27_u32)).wrapping_mul(SECOND_FACTOR);
        mixed ^= mixed >> 31_u32;
        usize::try_from(mixed >> 32_u32).unwrap_or(usize::MAX)
    }
}
