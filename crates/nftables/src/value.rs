//! The 32-bit value that the first lookup of a packet returns: the id of the Service port and its class.

use std::collections::{HashSet, VecDeque};

/// Number of bits of the class. The id has the others.
const CLASS_BITS: u32 = 14;

/// Mask of the class bits in a [`Value`].
pub(crate) const CLASS_MASK: u32 = (1 << CLASS_BITS) - 1;

/// Mask of the id bits in a [`Value`].
pub(crate) const ID_MASK: u32 = !CLASS_MASK;

/// Highest id: a family can have 262,143 Service ports.
pub(crate) const MAX_ID: u32 = u32::MAX >> CLASS_BITS;

/// Highest class number, and highest slot of an endpoint in a Service port with session affinity.
#[expect(clippy::cast_possible_truncation, reason = "a class has CLASS_BITS bits")]
pub(crate) const MAX_CLASS: u16 = CLASS_MASK as u16;

/// Most backends of a set. The indexes of local endpoints start at [`LOCAL_OFFSET`].
pub(crate) const MAX_BACKENDS: usize = 65_535;

/// First index of the local endpoints, in maps that hold both sets.
pub(crate) const LOCAL_OFFSET: u32 = 65_536;

/// The id in the upper bits and the class number in the lower ones. After the class has been looked up, the lower
/// bits may hold a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Value(pub(crate) u32);

impl Value {
    pub(crate) const fn new(id: u32, low: u16) -> Self {
        Self((id << CLASS_BITS) | (low as u32 & CLASS_MASK))
    }

    pub(crate) const fn id(self) -> u32 {
        self.0 >> CLASS_BITS
    }

    pub(crate) const fn low(self) -> u16 {
        (self.0 & CLASS_MASK) as u16
    }
}

/// Allocates ids. An id that has been unused for the longest time comes first, so that the kernel's bindings to a
/// former owner (session affinity) have the most time to expire. These outlast a restart, so ids go on above those that
/// the kernel has.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    /// Every id above this one is unused. The highest id that was given or that the kernel had.
    last: u32,
    /// The other unused ids in their order, once `has_gaps` is true; until then, those that were released.
    free: VecDeque<u32>,
    /// True if `free` has the ids below `last` that were never in use here, too. A former run may have used them.
    has_gaps: bool,
    taken: HashSet<u32>,
    /// The last id given while lower ones may belong to Service ports that are not placed yet.
    above: Option<u32>,
}

impl Ids {
    /// Returns true if [`Self::adopt`] would take the id.
    pub(crate) fn can_adopt(&self, id: u32) -> bool {
        (1..=MAX_ID).contains(&id) && !self.taken.contains(&id)
    }

    /// Marks an id found in the kernel as used. Returns false if it was in use or is not valid.
    pub(crate) fn adopt(&mut self, id: u32) -> bool {
        let is_adopted = self.can_adopt(id) && self.taken.insert(id);
        if is_adopted {
            self.go_on_above(id);
        }
        is_adopted
    }

    /// Gives ids above `highest` first: the kernel has this id, or had it a moment ago.
    pub(crate) fn go_on_above(&mut self, highest: u32) {
        self.last = self.last.max(highest.min(MAX_ID));
    }

    /// Gives only ids above `highest`, because any lower one may be in use, until there are no more. Ends with
    /// [`Self::release_reserved`].
    pub(crate) fn reserve_to(&mut self, highest: u32) {
        self.go_on_above(highest);
        let above = self.above.get_or_insert(highest);
        *above = highest.max(*above);
    }

    /// Returns true if there are so many unused ids that are not reserved.
    pub(crate) fn has_unreserved(&self, count: usize) -> bool {
        let first = self.above.map_or(MAX_ID, |above| above.min(MAX_ID)) + 1;
        let unused = (first..=MAX_ID).filter(|id| !self.taken.contains(id));
        unused.take(count).count() == count
    }

    /// Gives every id again that is not in use.
    pub(crate) const fn release_reserved(&mut self) {
        self.above = None;
    }

    /// Returns an unused id, or `None` if all are in use.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        while self.last < MAX_ID {
            self.last += 1;
            if self.taken.insert(self.last) {
                return Some(self.last);
            }
        }
        if let Some(above) = &mut self.above {
            while *above < MAX_ID {
                *above += 1;
                if self.taken.insert(*above) {
                    return Some(*above);
                }
            }
            self.above = None;
        }
        self.add_gaps();
        while let Some(id) = self.free.pop_front() {
            if self.taken.insert(id) {
                return Some(id);
            }
        }
        None
    }

    /// Puts the gaps before the released ids. Those were in use here, so the gaps have been unused for longer.
    fn add_gaps(&mut self) {
        if std::mem::replace(&mut self.has_gaps, true) {
            return;
        }
        let released: HashSet<u32> = self.free.iter().copied().collect();
        let is_gap = |id: &u32| !self.taken.contains(id) && !released.contains(id);
        let gaps = (1..=MAX_ID).filter(is_gap);
        self.free = gaps.chain(self.free.iter().copied()).collect();
    }

    pub(crate) fn release(&mut self, id: u32) {
        if self.taken.remove(&id) {
            self.free.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_keeps_both_parts() {
        let value = Value::new(MAX_ID, MAX_CLASS);
        assert_eq!((value.id(), value.low()), (MAX_ID, MAX_CLASS));
        assert_eq!(value.0 & ID_MASK, Value::new(MAX_ID, 0).0);
    }

    #[test]
    fn adopted_ids_are_not_given_again() {
        let mut ids = Ids::default();
        assert!(ids.adopt(2));
        assert!(!ids.adopt(2));
        assert!(!ids.adopt(0));
        assert_eq!([ids.allocate(), ids.allocate()], [Some(3), Some(4)]);
        ids.release(3);
        assert_eq!(ids.allocate(), Some(5), "fresh ids before released ones");
    }

    #[test]
    fn an_adopted_id_that_was_released_comes_last() {
        let mut ids = Ids::default();
        assert!(ids.adopt(1) && ids.adopt(2));
        ids.release(1);
        assert_eq!(ids.allocate(), Some(3));
    }

    #[test]
    fn reserved_ids_are_not_given() {
        let mut ids = Ids::default();
        ids.reserve_to(6);
        assert_eq!([ids.allocate(), ids.allocate()], [Some(7), Some(8)]);
        assert!(ids.adopt(3) && ids.adopt(9));
        ids.reserve_to(6);
        assert_eq!(ids.allocate(), Some(10));
        ids.release(8);
        assert_eq!(ids.allocate(), Some(11), "above the reserved ones, but released a moment ago");
        ids.release_reserved();
        assert!(!ids.has_unreserved(1));
        ids.reserve_to(MAX_ID - 2);
        assert!(ids.has_unreserved(2) && !ids.has_unreserved(3));
        assert!(ids.adopt(MAX_ID));
        assert!(ids.has_unreserved(1) && !ids.has_unreserved(2));
        assert_eq!(ids.allocate(), Some(MAX_ID - 1));
        assert!(!ids.has_unreserved(1));
        ids.release_reserved();
        assert_eq!(ids.allocate(), Some(1), "lower ones at last");
    }

    #[test]
    fn with_the_highest_id_in_use_lower_ones_come_in_the_order_of_their_last_use() {
        let mut ids = Ids::default();
        assert!((1..=MAX_ID).filter(|id| ![2, 4].contains(id)).all(|id| ids.adopt(id)));
        ids.release(3);
        ids.release(1);
        assert_eq!([2, 4, 3].map(Some), std::array::from_fn(|_| ids.allocate()));
        ids.release(2);
        ids.release(7);
        assert_eq!([Some(1), Some(2), Some(7), None], std::array::from_fn(|_| ids.allocate()));
    }

    #[test]
    fn all_ids_taken_is_no_id() {
        let mut ids = Ids::default();
        for _ in 0..MAX_ID {
            assert!(ids.allocate().is_some());
        }
        assert_eq!(ids.allocate(), None);
        ids.release(77);
        assert_eq!(ids.allocate(), Some(77));
    }
}
