//! Values in numbered slots. A number that was freed does not match the slot's next value.

/// The number of one value. Fits into the lower 62 bits of an epoll token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot {
    index: u32,
    generation: u32,
}

const GENERATIONS: u32 = 1 << 30;

impl Slot {
    pub(crate) fn to_bits(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    #[expect(clippy::cast_possible_truncation, reason = "each half has 32 bits")]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, value: T) -> Slot {
        if let Some(index) = self.free.pop()
            && let Some((generation, place)) = self.entries.get_mut(index as usize)
        {
            *place = Some(value);
            return Slot { index, generation: *generation };
        }
        let index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push((0, Some(value)));
        Slot { index, generation: 0 }
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let (generation, value) = self.entries.get_mut(slot.index as usize)?;
        if *generation == slot.generation { value.as_mut() } else { None }
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        let (generation, value) = self.entries.get(slot.index as usize)?;
        if *generation == slot.generation { value.as_ref() } else { None }
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<T> {
        let (generation, value) = self.entries.get_mut(slot.index as usize)?;
        if *generation != slot.generation {
            return None;
        }
        let value = value.take()?;
        *generation = generation.wrapping_add(1) % GENERATIONS;
        self.free.push(slot.index);
        Some(value)
    }

    #[expect(clippy::cast_possible_truncation, reason = "slots are numbered by u32")]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, (generation, value))| {
            Some((Slot { index: index as u32, generation: *generation }, value.as_mut()?))
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_slot_finds_nothing() {
        let mut slots = Slots::default();
        let first = slots.insert('a');
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b');
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
        assert_eq!(Slot::from_bits(second.to_bits()), second);
    }
}
