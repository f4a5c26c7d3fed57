//! Who is let in when there is little room: a budget for all, shared by Services.

/// A Service that holds this many times what is free gets no more: one alone can have four fifths of everything, and
/// there is always a fifth for those that have less.
const GREED: usize = 4;

/// So many places for so many users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    limit: usize,
    taken: usize,
}

impl Share {
    /// All free.
    pub const fn new(limit: usize) -> Self {
        Self { limit, taken: 0 }
    }

    /// Takes a place for a user that has `held` already. Says whether there was one for it.
    pub const fn take(&mut self, held: usize) -> bool {
        let fits = held < self.free().saturating_mul(GREED);
        if fits {
            self.taken = self.taken.saturating_add(1);
        }
        fits
    }

    /// Gives a place back.
    pub const fn give_back(&mut self) {
        self.taken = self.taken.saturating_sub(1);
    }

    /// Places that are taken.
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// Places that are left.
    pub const fn free(&self) -> usize {
        self.limit.saturating_sub(self.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(share: &mut Share) -> usize {
        let mut held = 0;
        while share.take(held) {
            held += 1;
        }
        held
    }

    #[test]
    fn one_user_leaves_a_fifth_to_others() {
        let mut share = Share::new(1000);
        assert_eq!(take_all(&mut share), 800);
        assert_eq!(take_all(&mut share), 160);
        assert_eq!(share.free(), 40);
    }

    #[test]
    fn never_more_than_there_are() {
        let mut share = Share::new(10);
        let held: usize = (0..100).map(|_| take_all(&mut share)).sum();
        assert_eq!((held, share.taken(), share.free()), (10, 10, 0));
        assert!(!share.take(0));
        share.give_back();
        assert!(share.take(0));
    }
}
