//! The 32-bit value that the first lookup of a packet returns: the id of the Service port and its class.

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
/// former owner (session affinity) have the most time to expire.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    next: u32,
    free: std::collections::VecDeque<u32>,
    taken: std::collections::HashSet<u32>,
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
        self.can_adopt(id) && self.taken.insert(id)
    }

    /// Gives only ids above `highest`, because any lower one may be in use, until there are no more. Ends with
    /// [`Self::release_reserved`].
    pub(crate) fn reserve_to(&mut self, highest: u32) {
        let above = self.above.get_or_insert(highest);
        *above = highest.max(*above);
    }

    /// Returns true if there are so many ids that are not reserved.
    pub(crate) fn has_unreserved(&self, count: usize) -> bool {
        let left = self.above.map_or(0, |above| MAX_ID.saturating_sub(above));
        usize::try_from(left).is_ok_and(|left| left >= count)
    }

    /// Gives every id again that is not in use.
    pub(crate) const fn release_reserved(&mut self) {
        self.above = None;
    }

    /// Returns an unused id, or `None` if all are in use.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        if let Some(above) = &mut self.above {
            while *above < MAX_ID {
                *above += 1;
                if self.taken.insert(*above) {
                    return Some(*above);
                }
            }
            self.above = None;
        }
        while self.next < MAX_ID {
            self.next += 1;
            if self.taken.insert(self.next) {
                return Some(self.next);
            }
        }
        while let Some(id) = self.free.pop_front() {
            if self.taken.insert(id) {
                return Some(id);
            }
        }
        None
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
        assert_eq!([ids.allocate(), ids.allocate()], [Some(1), Some(3)]);
        ids.release(1);
        assert_eq!(ids.allocate(), Some(4), "fresh ids before released ones");
    }

    #[test]
    fn reserved_ids_are_not_given() {
        let mut ids = Ids::default();
        ids.reserve_to(6);
        assert_eq!([ids.allocate(), ids.allocate()], [Some(7), Some(8)]);
        assert!(ids.adopt(3) && ids.adopt(9));
        ids.reserve_to(6);
        assert_eq!(ids.allocate(), Some(10));
        ids.release_reserved();
        assert_eq!([1, 2, 4, 5, 6, 11].map(Some), std::array::from_fn(|_| ids.allocate()));
        ids.reserve_to(MAX_ID - 1);
        assert!(ids.has_unreserved(1) && !ids.has_unreserved(2));
        assert_eq!([ids.allocate(), ids.allocate()], [Some(MAX_ID), Some(12)], "lower ones at last");
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
