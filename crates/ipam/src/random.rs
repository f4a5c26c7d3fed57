//! Random numbers, which determine where the search for a free number starts. Everything else is deterministic.

/// A source of random numbers. It serves to spread allocations, not for secrecy: two servers that search for a free
/// address at the same moment should not both choose the same one.
pub trait Random {
    /// Returns a uniformly distributed number.
    fn next_u64(&mut self) -> u64;

    /// Returns a number below `bound`, or 0 if `bound` is 0. The distribution is nearly uniform: the multiplication
    /// favours some numbers, by less than one part in a billion for any IPv4 range.
    fn below(&mut self, bound: u64) -> u64 {
        (u128::from(self.next_u64()).wrapping_mul(u128::from(bound)) >> 64) as u64
    }
}

impl<F: FnMut() -> u64> Random for F {
    fn next_u64(&mut self) -> u64 {
        self()
    }
}
