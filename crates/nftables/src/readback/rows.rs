//! The elements of a set as rows of equal length in one block, sorted by key. They take little more room than their
//! bytes.

use std::cell::Cell;

use super::super::element::Key;

/// Length in bytes of a comment's hash.
const HASH: usize = size_of::<u64>();

/// Keys with their data and the hash of their comment, each key once. Rows are added with [`Rows::push`], then sorted
/// once with [`Rows::settle`], then looked up.
#[derive(Debug)]
pub(in super::super) struct Rows {
    key_length: usize,
    data_length: usize,
    with_comment: bool,
    bytes: Vec<u8>,
    /// True for each row that has been taken.
    taken: Vec<bool>,
    /// The place of the last row that was found. Rows are mostly looked up in their order.
    last: Cell<usize>,
}

/// One element, borrowed from the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Row<'a> {
    pub(in super::super) key: &'a [u8],
    /// Empty if the set is not a map.
    pub(in super::super) data: &'a [u8],
    /// Hash of the comment and of whether the element counts. `None` in a set whose elements have neither.
    pub(in super::super) comment: Option<u64>,
}

impl Rows {
    /// Creates empty rows with keys and data of these lengths.
    pub(in super::super) fn new(key_length: usize, data_length: usize, with_comment: bool) -> Self {
        Self {
            key_length,
            data_length,
            with_comment,
            bytes: Vec::new(),
            taken: Vec::new(),
            last: Cell::new(0),
        }
    }

    /// Allocates room for exactly this many rows.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.bytes.reserve_exact(rows.saturating_mul(self.row_length()));
    }

    /// Adds an element. Returns false if its lengths do not match.
    pub(super) fn push(&mut self, row: &Row<'_>) -> bool {
        let fits = row.key.len() == self.key_length
            && row.data.len() == self.data_length
            && row.comment.is_some() == self.with_comment;
        if fits {
            self.bytes.extend_from_slice(row.key);
            self.bytes.extend_from_slice(row.data);
            self.bytes.extend(row.comment.into_iter().flat_map(u64::to_ne_bytes));
        }
        fits
    }

    /// Sorts the rows and removes duplicate keys.
    pub(super) fn settle(&mut self) {
        self.sort();
        let (length, mut kept) = (self.row_length(), 0);
        for place in 0..self.len() {
            if kept == 0 || self.key(place) != self.key(kept - 1) {
                if kept < place {
                    self.bytes.copy_within(place * length..(place + 1) * length, kept * length);
                }
                kept += 1;
            }
        }
        self.bytes.truncate(kept * length);
        self.taken = vec![false; kept];
    }

    /// Adds rows of the same lengths.
    pub(super) fn add(&mut self, others: &Self) {
        self.bytes.extend_from_slice(&others.bytes);
        self.settle();
    }

    /// Returns the number of rows.
    pub(in super::super) fn len(&self) -> usize {
        self.bytes.len() / self.row_length()
    }

    /// Returns the rows in the order of their keys.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        (0..self.len()).filter_map(|place| self.row(place))
    }

    /// Returns the row with a key.
    pub(in super::super) fn get(&self, key: &Key) -> Option<Row<'_>> {
        self.row(self.place(key)?)
    }

    /// Returns the row with a key and removes it from those [left](Self::left).
    pub(in super::super) fn take(&mut self, key: &Key) -> Option<Row<'_>> {
        let place = self.place(key)?;
        if let Some(taken) = self.taken.get_mut(place) {
            *taken = true;
        }
        self.row(place)
    }

    /// Returns the keys of the rows that have not been taken.
    pub(in super::super) fn left(&self) -> impl Iterator<Item = &[u8]> {
        let rows = self.bytes.chunks_exact(self.row_length()).zip(&self.taken);
        rows.filter(|(_, taken)| !**taken).filter_map(|(row, _)| row.get(..self.key_length))
    }

    fn place(&self, key: &Key) -> Option<usize> {
        let next = self.last.get() + 1;
        let place = if self.key(next) == key.as_slice() { Some(next) } else { self.search(key) };
        self.last.set(place.unwrap_or_default());
        place
    }

    fn search(&self, key: &Key) -> Option<usize> {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from.midpoint(to);
            match self.key(middle).cmp(key.as_slice()) {
                std::cmp::Ordering::Less => from = middle + 1,
                std::cmp::Ordering::Greater => to = middle,
                std::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    fn row(&self, place: usize) -> Option<Row<'_>> {
        let (key, rest) = self.bytes_at(place).split_at_checked(self.key_length)?;
        let (data, hash) = rest.split_at_checked(self.data_length)?;
        Some(Row { key, data, comment: hash.first_chunk().copied().map(u64::from_ne_bytes) })
    }

    fn key(&self, place: usize) -> &[u8] {
        self.bytes_at(place).get(..self.key_length).unwrap_or_default()
    }

    fn bytes_at(&self, place: usize) -> &[u8] {
        let (length, start) = (self.row_length(), place * self.row_length());
        self.bytes.get(start..start + length).unwrap_or_default()
    }

    fn row_length(&self) -> usize {
        // Never 0, also not for rows without bytes.
        (self.key_length + self.data_length + if self.with_comment { HASH } else { 0 }).max(1)
    }

    /// Sorts the rows by their bytes. Row lengths of large sets are sorted in place.
    fn sort(&mut self) {
        let length = self.row_length();
        let bytes = &mut self.bytes;
        match length {
            4 => bytes.as_chunks_mut::<4>().0.sort_unstable(),
            12 => bytes.as_chunks_mut::<12>().0.sort_unstable(),
            16 => bytes.as_chunks_mut::<16>().0.sort_unstable(),
            20 => bytes.as_chunks_mut::<20>().0.sort_unstable(),
            24 => bytes.as_chunks_mut::<24>().0.sort_unstable(),
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
            seeds in proptest::collection::vec(0..200_u8, 0..100),
        ) {
            let bytes = |seed: u8, length: usize| -> Vec<u8> {
                (0_u32..8).cycle().take(length).map(|index| seed.wrapping_mul(31).rotate_left(index)).collect()
            };
            let mut rows = Rows::new(key_length, data_length, with_comment);
            let mut expected = BTreeMap::new();
            for &seed in &seeds {
                let (key, data) = (bytes(seed, key_length), bytes(seed, data_length));
                let comment = with_comment.then_some(u64::from(seed));
                let row = Row { key: &key, data: &data, comment };
                prop_assert!(rows.push(&row));
                expected.insert(key, (data, comment));
            }
            rows.settle();
            prop_assert_eq!(rows.len(), expected.len());
            for seed in 0..=255 {
                let wanted = bytes(seed, key_length);
                let found = rows.get(&key(&wanted)).map(|row| (row.data.to_vec(), row.comment));
                prop_assert_eq!(found, expected.get(&wanted).cloned());
            }
            let (half, others): (Vec<_>, Vec<_>) = expected.keys().partition(|key| key[0] % 2 == 0);
            for wanted in half {
                prop_assert!(rows.take(&key(wanted)).is_some());
            }
            prop_assert_eq!(rows.left().collect::<Vec<_>>(), others);
        }
    }

    #[test]
    fn other_shapes_do_not_fit() {
        let mut rows = Rows::new(4, 4, true);
        let row = Row { key: &[0; 4], data: &[0; 4], comment: Some(0) };
        assert!(!rows.push(&Row { key: &[0; 8], ..row }));
        assert!(!rows.push(&Row { data: &[], ..row }));
        assert!(!rows.push(&Row { comment: None, ..row }));
        assert!(rows.push(&row));
        rows.settle();
        assert!(rows.get(&key(&[0; 8])).is_none() && rows.get(&key(&[0; 4])).is_some());
    }

    #[test]
    fn rows_of_large_sets_are_sorted_in_place() {
        let large = Set::ALL.into_iter().filter(|set| {
            !matches!(set, Set::Classes | Set::Affinity | Set::SourceRanges | Set::HairpinConnections)
        });
        for (set, family) in large.flat_map(|set| Family::BOTH.map(|family| (set, family))) {
            let length = super::super::rows_of(
                super::super::FamilyTable { family, table: super::super::super::layout::TABLE },
                set,
            )
            .row_length();
            assert!([4, 12, 16, 20, 24, 28, 32, 36].contains(&length), "{set:?}: {length}");
        }
    }
}
