//! Lists through the values of slots, in the order of their last use: a value joins, moves to the end or leaves without a
//! look at others than its neighbours.

use crate::slots::{Slot, Slots};

/// The neighbours of a value in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Links {
    before: Option<Slot>,
    after: Option<Slot>,
}

/// A list of values, each of which has its [`Links`] of this list. All calls must get the same slots.
#[derive(Debug)]
pub(crate) struct List<E> {
    first: Option<Slot>,
    last: Option<Slot>,
    links: fn(&mut E) -> &mut Links,
}

impl<E> List<E> {
    /// Creates an empty list of values with these links.
    pub(crate) const fn new(links: fn(&mut E) -> &mut Links) -> Self {
        Self { first: None, last: None, links }
    }

    /// Returns the value whose last use is the longest ago.
    pub(crate) const fn first(&self) -> Option<Slot> {
        self.first
    }

    /// Adds a value that is used now. It must not be in the list.
    pub(crate) fn push(&mut self, slot: Slot, slots: &mut Slots<E>) {
        let before = self.last.replace(slot);
        if let Some(entry) = slots.get_mut(slot) {
            *(self.links)(entry) = Links { before, after: None };
        }
        match before.and_then(|before| slots.get_mut(before)) {
            Some(entry) => (self.links)(entry).after = Some(slot),
            None => self.first = Some(slot),
        }
    }

    /// Removes a value, which must be in the list.
    pub(crate) fn remove(&mut self, slot: Slot, slots: &mut Slots<E>) {
        let Some(entry) = slots.get_mut(slot) else { return };
        let Links { before, after } = std::mem::take((self.links)(entry));
        match before.and_then(|before| slots.get_mut(before)) {
            Some(entry) => (self.links)(entry).after = after,
            None => self.first = after,
        }
        match after.and_then(|after| slots.get_mut(after)) {
            Some(entry) => (self.links)(entry).before = before,
            None => self.last = before,
        }
    }

    /// Moves a value to the end, because it is used now. It must be in the list.
    pub(crate) fn renew(&mut self, slot: Slot, slots: &mut Slots<E>) {
        if self.last != Some(slot) {
            self.remove(slot, slots);
            self.push(slot, slots);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Entry {
        number: u8,
        links: Links,
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Push,
        Remove(usize),
        Renew(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => Just(Step::Push),
            1 => (0_usize..8).prop_map(Step::Remove),
            2 => (0_usize..8).prop_map(Step::Renew),
        ];
        proptest::collection::vec(step, 0..60)
    }

    fn forwards(list: &List<Entry>, slots: &mut Slots<Entry>) -> Vec<u8> {
        let mut next = list.first();
        std::iter::from_fn(|| {
            let entry = slots.get(next?)?;
            next = entry.links.after;
            Some(entry.number)
        })
        .collect()
    }

    fn backwards(list: &List<Entry>, slots: &mut Slots<Entry>) -> Vec<u8> {
        let mut next = list.last;
        std::iter::from_fn(|| {
            let entry = slots.get(next?)?;
            next = entry.links.before;
            Some(entry.number)
        })
        .collect()
    }

    proptest! {
        #[test]
        fn a_list_has_the_order_of_a_vector(steps in steps()) {
            let (mut slots, mut list) = (Slots::default(), List::new(|entry: &mut Entry| &mut entry.links));
            let mut wanted: Vec<(u8, Slot)> = Vec::new();
            for (number, step) in (0_u8..).zip(steps) {
                match step {
                    Step::Push => {
                        let slot = slots.insert(Entry { number, links: Links::default() });
                        list.push(slot, &mut slots);
                        wanted.push((number, slot));
                    }
                    Step::Remove(at) if at < wanted.len() => {
                        let (_, slot) = wanted.remove(at);
                        list.remove(slot, &mut slots);
                        slots.remove(slot);
                    }
                    Step::Renew(at) if at < wanted.len() => {
                        let entry = wanted.remove(at);
                        list.renew(entry.1, &mut slots);
                        wanted.push(entry);
                    }
                    Step::Remove(_) | Step::Renew(_) => {}
                }
                let mut numbers: Vec<u8> = wanted.iter().map(|(number, _)| *number).collect();
                prop_assert_eq!(forwards(&list, &mut slots), numbers.clone());
                numbers.reverse();
                prop_assert_eq!(backwards(&list, &mut slots), numbers);
            }
        }
    }
}
