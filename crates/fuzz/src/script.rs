//! An input as a list of choices. Once it is at its end, each choice is the first one.

use arbitrary::Unstructured;

/// The first byte of an input that is a list of choices. Few other inputs begin with it.
pub(crate) const CHOICES: u8 = 255;

/// Reads choices from an input.
pub(crate) struct Script<'a>(Unstructured<'a>);

impl<'a> Script<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Returns the choices of an input that begins with [`CHOICES`]. Any other input is read as it is.
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        bytes.split_first().filter(|(first, _)| **first == CHOICES).map(|(_, choices)| Self::new(choices))
    }

    /// Returns the number of bytes that are left.
    pub(crate) fn length(&self) -> usize {
        self.0.len()
    }

    /// Returns a number less than `limit`, by how many bytes are left. Unlike a choice, it uses up none of them, so that the later
    /// choices of an input stay the same.
    pub(crate) fn below_by_length(&self, limit: usize) -> usize {
        self.length() % limit
    }

    /// Returns true if no byte is left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a number less than `limit`, or 0 if that is 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.int_in_range(0..=limit.saturating_sub(1)).unwrap_or_default()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or_default()
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// Returns up to `most` bytes. Their number is a choice.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let count = self.below(most.saturating_add(1)).min(self.0.len());
        self.0.bytes(count).unwrap_or_default()
    }
}

/// Returns an input of random choices.
#[cfg(test)]
pub(crate) fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = portolan_model::world::Rng::new(seed);
    std::iter::once(CHOICES).chain((0..length).map(|_| rng.bits().to_le_bytes()[0])).collect()
}
