//! Admission: a limit for all, shared by Service ports.

/// A Service port that holds this many times the number of free places gets no more. So one alone gets at most four
/// fifths of all places, and a fifth stays free for those that hold fewer.
const SHARE_FACTOR: usize = 4;

/// A number of places, and how many are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    limit: usize,
    taken: usize,
}

impl Share {
    /// Creates `limit` places, all of them free.
    pub const fn new(limit: usize) -> Self {
        Self { limit, taken: 0 }
    }

    /// Takes a place for a user that holds `held` places. Returns false if the user must not get one.
    pub const fn take(&mut self, held: usize) -> bool {
        let has_room = self.has_room(held);
        if has_room {
            self.occupy();
        }
        has_room
    }

    /// Returns true if a user that holds `held` places may get another one.
    pub const fn has_room(&self, held: usize) -> bool {
        held < self.free().saturating_mul(SHARE_FACTOR)
    }

    /// Takes a place that was found free, or that was given back for this.
    pub const fn occupy(&mut self) {
        self.taken = self.taken.saturating_add(1);
    }

    /// Returns a place.
    pub const fn give_back(&mut self) {
        self.taken = self.taken.saturating_sub(1);
    }

    /// Returns the number of taken places.
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// Returns the number of free places.
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
    fn one_user_leaves_a_fifth_of_the_places() {
        let mut share = Share::new(1000);
        assert_eq!(take_all(&mut share), 800);
        assert_eq!(take_all(&mut share), 160);
        assert_eq!(share.free(), 40);
    }

    #[test]
    fn no_more_places_than_the_limit() {
        let mut share = Share::new(10);
        let held: usize = (0..100).map(|_| take_all(&mut share)).sum();
        assert_eq!((held, share.taken(), share.free()), (10, 10, 0));
        assert!(!share.take(0));
        share.give_back();
        assert!(share.take(0));
    }
}
