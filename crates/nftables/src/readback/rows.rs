//! The elements of a set as rows of equal length in one block, sorted by key. They take little more room than their
//! bytes. Keys of an id and an index are not stored in the rows, but as [`Runs`].

use std::cell::Cell;

use super::super::element::{Data, Key};
use super::runs::{self, KEY_LENGTH, Parts, Runs};

/// Length in bytes of a comment's hash.
const HASH: usize = size_of::<u64>();

/// Keys with their data and the hash of their comment, each key once. Rows are added with [`Rows::push`], then sorted
/// once with [`Rows::settle`], then looked up.
#[derive(Debug)]
pub(in super::super) struct Rows {
    keys: Keys,
    data_length: usize,
    /// Number of bytes at the end of the data that are zero in each row. They are not stored.
    padding: usize,
    with_comment: bool,
    /// For each row its key, unless the keys are runs, then the data and the hash of the comment.
    bytes: Vec<u8>,
    /// A bit for each row that has been taken.
    taken: Vec<u64>,
}

/// Where the keys are.
#[derive(Debug)]
enum Keys {
    /// At the start of each row.
    InRows {
        length: usize,
        /// The place of the last row that was found. Rows are mostly looked up in their order.
        last: Cell<usize>,
    },
    /// Beside the rows.
    Runs {
        runs: Runs,
        /// Rows that did not come in the order of their keys, until they are settled: each with the id, the index in network
        /// order, and what a row has besides.
        unsorted: Vec<u8>,
        /// The number of rows that [`Rows::reserve`] was called with.
        expected: usize,
    },
}

/// One element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Row {
    pub(in super::super) key: Key,
    /// Empty if the set is not a map.
    pub(in super::super) data: Data,
    /// Hash of the comment and of whether the element counts. `None` in a set whose elements have neither.
    pub(in super::super) comment: Option<u64>,
}

impl Rows {
    /// Creates empty rows with keys and data of these lengths.
    pub(in super::super) const fn new(key_length: usize, data_length: usize, with_comment: bool) -> Self {
        let keys = Keys::InRows { length: key_length, last: Cell::new(0) };
        Self { keys, data_length, padding: 0, with_comment, bytes: Vec::new(), taken: Vec::new() }
    }

    /// Creates empty rows whose keys are an id and an index. The last `padding` bytes of their data are zero.
    pub(in super::super) fn of_indexes(data_length: usize, padding: usize, with_comment: bool) -> Self {
        let keys = Keys::Runs { runs: Runs::default(), unsorted: Vec::new(), expected: 0 };
        Self { keys, padding, ..Self::new(KEY_LENGTH, data_length, with_comment) }
    }

    /// Allocates room for exactly this many rows.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.bytes.reserve_exact(rows.saturating_mul(self.row_length()));
        if let Keys::Runs { expected, .. } = &mut self.keys {
            *expected = rows;
        }
    }

    /// Returns the lengths of a key and of the data, in bytes.
    pub(in super::super) const fn lengths(&self) -> (usize, usize) {
        let key = match self.keys {
            Keys::InRows { length, .. } => length,
            Keys::Runs { .. } => KEY_LENGTH,
        };
        (key, self.data_length)
    }

    /// Adds an element. Returns false if its lengths or its padding do not match.
    pub(in super::super) fn push(&mut self, key: &[u8], data: &[u8], comment: Option<u64>) -> bool {
        if data.len() != self.data_length || comment.is_some() != self.with_comment {
            return false;
        }
        let Some((data, padding)) = data.split_at_checked(self.stored_length()) else { return false };
        if padding.iter().any(|&byte| byte != 0) {
            return false;
        }
        let hash = comment.into_iter().flat_map(u64::to_ne_bytes);
        let row_length = self.row_length();
        match &mut self.keys {
            Keys::InRows { length, .. } => {
                if key.len() != *length {
                    return false;
                }
                self.bytes.extend_from_slice(key);
            }
            Keys::Runs { runs, unsorted, expected } => {
                let Some((id, index)) = runs::parts(key) else { return false };
                if !unsorted.is_empty() || !runs.push((id, index)) {
                    if unsorted.is_empty() {
                        unsorted.reserve_exact(expected.saturating_mul(KEY_LENGTH + row_length));
                    }
                    unsorted.extend(id.into_iter().chain(index.to_be_bytes()));
                    unsorted.extend_from_slice(data);
                    unsorted.extend(hash);
                    return true;
                }
            }
        }
        self.bytes.extend_from_slice(data);
        self.bytes.extend(hash);
        true
    }

    /// Sorts the rows and removes duplicate keys.
    pub(in super::super) fn settle(&mut self) {
        match &mut self.keys {
            Keys::InRows { .. } => self.sort_and_deduplicate(),
            Keys::Runs { unsorted, .. } => {
                let unsorted = std::mem::take(unsorted);
                if !unsorted.is_empty() {
                    self.sort_in(unsorted);
                }
            }
        }
        self.taken = vec![0; self.len().div_ceil(WORD)];
    }

    /// Sorts rows in, in their own memory.
    fn sort_in(&mut self, mut all: Vec<u8>) {
        let Keys::Runs { runs, .. } = &mut self.keys else { return };
        let (sorted, bytes) = (std::mem::take(runs), std::mem::take(&mut self.bytes));
        let length = self.row_length();
        for ((id, index), row) in sorted.keys().zip(bytes.chunks_exact(length)) {
            all.extend(id.into_iter().chain(index.to_be_bytes()));
            all.extend_from_slice(row);
        }
        drop((sorted, bytes));
        sort(&mut all, KEY_LENGTH + length);
        let (mut runs, mut kept) = (Runs::default(), 0);
        for place in 0..all.len() / (KEY_LENGTH + length) {
            let start = place * (KEY_LENGTH + length);
            let Some(parts) = all.get(start..).and_then(sortable_parts) else { break };
            // Keys come in their order now, so one that does not come after the others is there already.
            if runs.push(parts) {
                all.copy_within(start + KEY_LENGTH..start + KEY_LENGTH + length, kept);
                kept += length;
            }
        }
        all.truncate(kept);
        all.shrink_to_fit();
        self.bytes = all;
        if let Keys::Runs { runs: settled, .. } = &mut self.keys {
            *settled = runs;
        }
    }

    fn sort_and_deduplicate(&mut self) {
        let (length, mut kept) = (self.row_length(), 0);
        sort(&mut self.bytes, length);
        for place in 0..self.len() {
            if kept == 0 || self.key_bytes(place) != self.key_bytes(kept - 1) {
                if kept < place {
                    self.bytes.copy_within(place * length..(place + 1) * length, kept * length);
                }
                kept += 1;
            }
        }
        self.bytes.truncate(kept * length);
    }

    /// Adds rows of the same lengths.
    pub(super) fn add(&mut self, others: &Self) {
        for row in others.iter() {
            self.push(row.key.as_slice(), row.data.as_slice(), row.comment);
        }
        self.settle();
    }

    /// Returns the number of rows.
    pub(in super::super) fn len(&self) -> usize {
        self.bytes.len() / self.row_length()
    }

    /// Returns the rows in the order of their keys.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = Row> {
        self.keys().enumerate().filter_map(|(place, key)| self.row(place, key))
    }

    /// Returns the row with a key.
    pub(in super::super) fn get(&self, key: &Key) -> Option<Row> {
        self.row(self.place(key)?, *key)
    }

    /// Returns the row with a key and removes it from those [left](Self::left).
    pub(in super::super) fn take(&mut self, key: &Key) -> Option<Row> {
        let place = self.place(key)?;
        if let Some(word) = self.taken.get_mut(place / WORD) {
            *word |= 1 << (place % WORD);
        }
        self.row(place, *key)
    }

    /// Returns the keys of the rows that have not been taken.
    pub(in super::super) fn left(&self) -> impl Iterator<Item = Key> {
        let is_taken =
            |place: usize| self.taken.get(place / WORD).is_some_and(|word| word >> (place % WORD) & 1 == 1);
        self.keys().enumerate().filter(move |(place, _)| !is_taken(*place)).map(|(_, key)| key)
    }

    /// Returns the keys in order.
    fn keys(&self) -> impl Iterator<Item = Key> {
        let (in_rows, runs) = match &self.keys {
            Keys::InRows { .. } => (0..self.len(), None),
            Keys::Runs { runs, .. } => (0..0, Some(runs)),
        };
        let in_rows = in_rows.map(|place| Key::from_kernel(self.key_bytes(place)).unwrap_or_default());
        in_rows.chain(runs.into_iter().flat_map(Runs::keys).map(runs::key))
    }

    fn place(&self, key: &Key) -> Option<usize> {
        match &self.keys {
            Keys::InRows { last, .. } => {
                let next = last.get() + 1;
                let place =
                    if self.key_bytes(next) == key.as_slice() { Some(next) } else { self.search(key) };
                last.set(place.unwrap_or_default());
                place
            }
            Keys::Runs { runs, .. } => runs.place(runs::parts(key.as_slice())?),
        }
    }

    fn search(&self, key: &Key) -> Option<usize> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match self.key_bytes(middle).cmp(key.as_slice()) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Greater => to = middle,
                std::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    fn row(&self, place: usize, key: Key) -> Option<Row> {
        let (_, rest) = self.bytes_at(place).split_at_checked(self.key_length())?;
        let (data, hash) = rest.split_at_checked(self.stored_length())?;
        let data = Data::from_kernel(data)?.padded(self.padding);
        Some(Row { key, data, comment: hash.first_chunk().copied().map(u64::from_ne_bytes) })
    }

    /// Returns the key that is stored in a row. Empty if the keys are runs.
    fn key_bytes(&self, place: usize) -> &[u8] {
        self.bytes_at(place).get(..self.key_length()).unwrap_or_default()
    }

    fn bytes_at(&self, place: usize) -> &[u8] {
        let (length, start) = (self.row_length(), place * self.row_length());
        self.bytes.get(start..start + length).unwrap_or_default()
    }

    /// Returns the length of a key in a row, in bytes.
    const fn key_length(&self) -> usize {
        match self.keys {
            Keys::InRows { length, .. } => length,
            Keys::Runs { .. } => 0,
        }
    }

    /// Returns the number of bytes of the data that are stored.
    const fn stored_length(&self) -> usize {
        self.data_length.saturating_sub(self.padding)
    }

    fn row_length(&self) -> usize {
        // Never 0, also not for rows without bytes.
        (self.key_length() + self.stored_length() + if self.with_comment { HASH } else { 0 }).max(1)
    }
}

/// Number of bits in a word of [`Rows::taken`].
const WORD: usize = u64::BITS as usize;

/// Reads the id and the index of a row that is to be sorted in.
fn sortable_parts(row: &[u8]) -> Option<Parts> {
    let (id, rest) = row.split_first_chunk::<4>()?;
    Some((*id, u32::from_be_bytes(*rest.first_chunk::<4>()?)))
}

/// Sorts rows of this length by their bytes. Row lengths of large sets are sorted in place.
fn sort(bytes: &mut Vec<u8>, length: usize) {
    match length {
        4 => bytes.as_chunks_mut::<4>().0.sort_unstable(),
        12 => bytes.as_chunks_mut::<12>().0.sort_unstable(),
        14 => bytes.as_chunks_mut::<14>().0.sort_unstable(),
        16 => bytes.as_chunks_mut::<16>().0.sort_unstable(),
        20 => bytes.as_chunks_mut::<20>().0.sort_unstable(),
        24 => bytes.as_chunks_mut::<24>().0.sort_unstable(),
        26 => bytes.as_chunks_mut::<26>().0.sort_unstable(),
        28 => bytes.as_chunks_mut::<28>().0.sort_unstable(),
        32 => bytes.as_chunks_mut::<32>().0.sort_unstable(),
        36 => bytes.as_chunks_mut::<36>().0.sort_unstable(),
        _ => {
            let mut rows: Vec<&[u8]> = bytes.chunks_exact(length).collect();
            rows.sort_unstable();
            *bytes = rows.concat();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::super::element::Set;
    use super::*;
    use portolan_model::Family;

    fn key(bytes: &[u8]) -> Key {
        Key::from_kernel(bytes).unwrap()
    }

    proptest! {
        #[test]
        fn finds_what_was_pushed(
            (key_length, data_length, with_comment) in (1..=40_usize, 0..=20_usize, any::<bool>()),
            are_indexes in any::<bool>(),
            seeds in proptest::collection::vec(0..200_u8, 0..100),
        ) {
            let bytes = |seed: u8, length: usize| -> Vec<u8> {
                (0_u32..8).cycle().take(length).map(|index| seed.wrapping_mul(31).rotate_left(index)).collect()
            };
            let key_length = if are_indexes { KEY_LENGTH } else { key_length };
            let data_length = if are_indexes { data_length.max(1) } else { data_length };
            let mut rows = if are_indexes {
                Rows::of_indexes(data_length, 0, with_comment)
            } else {
                Rows::new(key_length, data_length, with_comment)
            };
            let mut expected = BTreeMap::new();
            for &seed in &seeds {
                let (key, data) = (bytes(seed, key_length), bytes(seed, data_length));
                let comment = with_comment.then_some(u64::from(seed));
                prop_assert!(rows.push(&key, &data, comment));
                expected.insert(key, (data, comment));
            }
            rows.settle();
            prop_assert_eq!(rows.len(), expected.len());
            for seed in 0..=255 {
                let wanted = bytes(seed, key_length);
                let found = rows.get(&key(&wanted)).map(|row| (row.data.as_slice().to_vec(), row.comment));
                prop_assert_eq!(found, expected.get(&wanted).cloned());
            }
            let (half, others): (Vec<_>, Vec<_>) = expected.keys().partition(|key| key[0] % 2 == 0);
            for wanted in half {
                prop_assert!(rows.take(&key(wanted)).is_some());
            }
            let mut left: Vec<Vec<u8>> = rows.left().map(|key| key.as_slice().to_vec()).collect();
            left.sort_unstable();
            prop_assert_eq!(left, others.into_iter().cloned().collect::<Vec<_>>());
        }

        #[test]
        fn indexes_are_found_in_whatever_order_they_came(
            pushed in proptest::collection::vec((0..3_u8, 0..600_u32), 0..60),
            more in proptest::collection::vec((0..4_u8, 0..600_u32), 0..20),
        ) {
            let (mut rows, mut added) = (Rows::of_indexes(8, 2, false), Rows::of_indexes(8, 2, false));
            let mut expected = BTreeMap::new();
            let data = |id: u8, index: u32| {
                let [low, high, ..] = index.to_le_bytes();
                [id, low, high, 1, 0, 80, 0, 0]
            };
            for (rows, of) in [(&mut rows, pushed), (&mut added, more)] {
                for (id, index) in of {
                    let key = runs::key(([id; 4], index));
                    prop_assert!(rows.push(key.as_slice(), &data(id, index), None));
                    expected.insert((id, index), key);
                }
                rows.settle();
            }
            rows.add(&added);
            let all: Vec<Key> = rows.iter().map(|row| row.key).collect();
            prop_assert_eq!(all, expected.values().copied().collect::<Vec<_>>());
            prop_assert_eq!(rows.bytes.len(), 6 * expected.len());
            for (&(id, index), key) in expected.iter().rev() {
                let row = rows.get(key).unwrap();
                prop_assert_eq!(row.data.as_slice(), data(id, index));
            }
            let (taken, left): (Vec<Key>, Vec<Key>) = expected.values().partition(|key| key.as_slice()[4] % 2 == 0);
            for key in &taken {
                prop_assert!(rows.take(key).is_some());
            }
            prop_assert_eq!(rows.left().collect::<Vec<_>>(), left);
        }
    }

    #[test]
    fn padding_is_not_stored() {
        let mut rows = Rows::of_indexes(8, 2, false);
        assert!(rows.push(&[1; 8], &[7, 7, 7, 7, 0, 80, 0, 0], None));
        assert!(!rows.push(&[2; 8], &[7, 7, 7, 7, 0, 80, 0, 1], None));
        rows.settle();
        assert_eq!(rows.bytes.len(), 6);
        assert_eq!(rows.get(&key(&[1; 8])).unwrap().data.as_slice(), [7, 7, 7, 7, 0, 80, 0, 0]);
    }

    #[test]
    fn other_shapes_do_not_fit() {
        let mut rows = Rows::new(4, 4, true);
        assert!(!rows.push(&[0; 8], &[0; 4], Some(0)));
        assert!(!rows.push(&[0; 4], &[], Some(0)));
        assert!(!rows.push(&[0; 4], &[0; 4], None));
        assert!(rows.push(&[0; 4], &[0; 4], Some(0)));
        rows.settle();
        assert!(rows.get(&key(&[0; 8])).is_none() && rows.get(&key(&[0; 4])).is_some());
    }

    #[test]
    fn rows_of_large_sets_are_sorted_in_place() {
        let large = Set::ALL.into_iter().filter(|set| {
            !matches!(set, Set::Classes | Set::Affinity | Set::SourceRanges | Set::HairpinConnections)
        });
        for (set, family) in large.flat_map(|set| Family::BOTH.map(|family| (set, family))) {
            let place = super::super::FamilyTable { family, table: super::super::super::layout::TABLE };
            let rows = super::super::rows_of(place, set);
            let sorted_in = if matches!(rows.keys, Keys::Runs { .. }) { KEY_LENGTH } else { 0 };
            let length = rows.row_length() + sorted_in;
            assert!([4, 12, 14, 16, 20, 24, 26, 28, 32, 36].contains(&length), "{set:?}: {length}");
        }
    }
}
