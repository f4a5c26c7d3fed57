//! The one thing here that is not a function of its input: where a search for a free number starts.

/// Source of random numbers. It is for spreading, not for secrecy: two servers that look for a free address at the
/// same moment should not both try the same one.
pub trait Random {
    /// Any number, each as likely as the others.
    fn next_u64(&mut self) -> u64;

    /// A number below `bound`; 0 if that is 0. Nearly uniform: the multiplication favours some numbers, by less than
    /// one part in a billion for any range of IPv4.
    fn below(&mut self, bound: u64) -> u64 {
        (u128::from(self.next_u64()).wrapping_mul(u128::from(bound)) >> 64) as u64
    }
}

impl<F: FnMut() -> u64> Random for F {
    fn next_u64(&mut self) -> u64 {
        self()
    }
}
