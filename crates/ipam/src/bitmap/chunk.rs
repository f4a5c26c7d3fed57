//! A set of numbers below 4096: a short sorted list while there are few, a bitmap otherwise.

/// Size of a chunk: 64 words of 64 bits, so that the summary of full words fits into one word.
pub(super) const CHUNK_BITS: u16 = 4096;

/// Longest list. Its 64 numbers of 2 bytes take a quarter of the memory of a bitmap.
const MOST_FEW: usize = 64;

/// Length at which a bitmap becomes a list again. It is well below [`MOST_FEW`], so that a chunk near that limit does
/// not change its form with each write.
const FEW_AGAIN: u16 = 32;

#[derive(Debug, Clone)]
pub(super) enum Chunk {
    /// Sorted in ascending order.
    Few(Vec<u16>),
    Bits(Box<Bits>),
}

#[derive(Debug, Clone)]
pub(super) struct Bits {
    /// Bit i is set if word i is full.
    full_words: u64,
    len: u16,
    words: [u64; 64],
}

impl Default for Chunk {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

/// Two chunks are equal if they hold the same numbers, whatever their form.
impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.present().eq(other.present())
    }
}

impl Eq for Chunk {}

impl Chunk {
    /// Creates a chunk of all numbers except this one.
    pub(super) fn full_but(absent: u16) -> Self {
        let mut bits = Bits { full_words: u64::MAX, len: CHUNK_BITS, words: [u64::MAX; 64] };
        bits.remove(absent);
        Self::Bits(Box::new(bits))
    }

    pub(super) fn len(&self) -> u16 {
        match self {
            Self::Few(list) => u16::try_from(list.len()).unwrap_or(u16::MAX),
            Self::Bits(bits) => bits.len,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= CHUNK_BITS
    }

    pub(super) fn contains(&self, bit: u16) -> bool {
        match self {
            Self::Few(list) => list.binary_search(&bit).is_ok(),
            Self::Bits(bits) => bits.contains(bit),
        }
    }

    pub(super) fn insert(&mut self, bit: u16) -> bool {
        match self {
            Self::Few(list) => {
                let Err(position) = list.binary_search(&bit) else { return false };
                if list.len() < MOST_FEW {
                    list.insert(position, bit);
                } else {
                    let mut bits = Bits::of(list);
                    bits.insert(bit);
                    *self = Self::Bits(Box::new(bits));
                }
                true
            }
            Self::Bits(bits) => bits.insert(bit),
        }
    }

    pub(super) fn remove(&mut self, bit: u16) -> bool {
        match self {
            Self::Few(list) => list.binary_search(&bit).map(|position| list.remove(position)).is_ok(),
            Self::Bits(bits) => {
                let was_there = bits.remove(bit);
                if bits.len <= FEW_AGAIN {
                    let list = self.present().collect();
                    *self = Self::Few(list);
                }
                was_there
            }
        }
    }

    /// Returns the least absent number that is not below `from`.
    pub(super) fn next_absent(&self, from: u16) -> Option<u16> {
        match self {
            Self::Few(list) => {
                let mut candidate = from;
                for present in list.iter().skip(list.partition_point(|present| *present < from)) {
                    if *present != candidate {
                        break;
                    }
                    candidate = candidate.saturating_add(1);
                }
                (candidate < CHUNK_BITS).then_some(candidate)
            }
            Self::Bits(bits) => bits.next_absent(from),
        }
    }

    /// Returns the least present number that is not below `from`.
    pub(super) fn next_present(&self, from: u16) -> Option<u16> {
        match self {
            Self::Few(list) => list.get(list.partition_point(|present| *present < from)).copied(),
            Self::Bits(bits) => bits.next_present(from),
        }
    }

    fn present(&self) -> impl Iterator<Item = u16> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let bit = self.next_present(next)?;
            next = bit.saturating_add(1);
            Some(bit)
        })
    }
}

impl Bits {
    fn of(list: &[u16]) -> Self {
        let mut bits = Self { full_words: 0, len: 0, words: [0; 64] };
        for bit in list {
            bits.insert(*bit);
        }
        bits
    }

    fn contains(&self, bit: u16) -> bool {
        let (index, mask) = place(bit);
        self.word(index) & mask != 0
    }

    fn insert(&mut self, bit: u16) -> bool {
        let (index, mask) = place(bit);
        let Some(word) = self.words.get_mut(index) else { return false };
        if *word & mask != 0 {
            return false;
        }
        *word |= mask;
        if *word == u64::MAX {
            self.full_words |= 1 << index;
        }
        self.len = self.len.saturating_add(1);
        true
    }

    fn remove(&mut self, bit: u16) -> bool {
        let (index, mask) = place(bit);
        let Some(word) = self.words.get_mut(index) else { return false };
        if *word & mask == 0 {
            return false;
        }
        *word &= !mask;
        self.full_words &= !(1 << index);
        self.len = self.len.saturating_sub(1);
        true
    }

    fn next_absent(&self, from: u16) -> Option<u16> {
        let (index, mask) = place(from);
        let here = !self.word(index) & from_mask(mask);
        if here != 0 {
            return Some(bit_of(index, here));
        }
        // The words after this one that are not full.
        let behind = !self.full_words & behind_mask(index);
        let index = behind.trailing_zeros() as usize;
        (behind != 0).then(|| bit_of(index, !self.word(index)))
    }

    fn next_present(&self, from: u16) -> Option<u16> {
        let (index, mask) = place(from);
        let here = self.word(index) & from_mask(mask);
        if here != 0 {
            return Some(bit_of(index, here));
        }
        let behind = self.words.iter().enumerate().skip(index.saturating_add(1));
        behind.into_iter().find(|(_, word)| **word != 0).map(|(index, word)| bit_of(index, *word))
    }

    fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or_default()
    }
}

/// Returns the word's index and the mask of a bit. The index is out of bounds if the bit is.
fn place(bit: u16) -> (usize, u64) {
    (usize::from(bit / 64), 1 << (bit % 64))
}

/// Returns a mask of this bit and all higher ones.
fn from_mask(bit: u64) -> u64 {
    !bit.wrapping_sub(1)
}

/// Returns a mask of all bits above this index.
fn behind_mask(index: usize) -> u64 {
    u32::try_from(index).ok().and_then(|index| u64::MAX.checked_shl(index)).unwrap_or(0) << 1
}

/// Returns the lowest set bit of a word as a number of the chunk.
#[expect(clippy::cast_possible_truncation, reason = "a chunk has 65,536 bits, so at most 1,024 words")]
fn bit_of(index: usize, word: u64) -> u16 {
    (index as u16).saturating_mul(64).saturating_add(word.trailing_zeros() as u16)
}
