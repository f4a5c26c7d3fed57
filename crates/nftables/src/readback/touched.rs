//! Elements that were written while the table was read and compared. What was read of them before is out of date.

use std::collections::{BTreeSet, HashMap};

use portolan_sock::{Socket, SocketError};

use super::super::chain::{ChainBody, FamilyTable};
use super::super::changeset::has_more;
use super::super::element::{Data, Element, Key, Set, read_number};
use super::super::value::Value;
use super::{KeyRange, View, by_key, hash_of};

/// Data of an element and what it has besides, as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in super::super) struct Actual {
    pub(in super::super) data: Data,
    /// Hash of the comment and of whether the element counts. `None` in a set whose elements have neither.
    pub(in super::super) more: Option<u64>,
}

impl Actual {
    /// Returns what the kernel has after the element was written.
    pub(in super::super) fn of(element: &Element, comment: &str, counters: bool) -> Self {
        let counts = counters && element.set.has_counters();
        Self { data: element.data, more: has_more(element.set).then(|| hash_of(comment, counts)) }
    }
}

/// Elements that were written, by set and key.
#[derive(Debug, Default)]
pub(in super::super) struct Touched(HashMap<(Set, Key), Entry>);

#[derive(Debug)]
struct Entry {
    /// True if the kernel had the element when the view was begun.
    was_there: bool,
    /// What the kernel has now; `None` if the element was deleted.
    now: Option<Actual>,
    /// True if the element is wanted.
    is_taken: bool,
}

impl View {
    /// Returns true if this set is read by key where it is large.
    pub(in super::super) fn is_read_by_key(set: Set) -> bool {
        by_key::ORDER.contains(&set)
    }

    /// Returns true if changes can be written: the kernel has the table, its classes have been read, and `check` finds nothing
    /// in the way.
    pub(in super::super) fn is_usable(&mut self, check: impl FnOnce(&Self) -> bool) -> bool {
        if self.table.is_none() || !self.has_classes {
            return false;
        }
        let is_usable = self.is_usable.unwrap_or_else(|| check(self));
        self.is_usable = Some(is_usable);
        is_usable
    }

    /// Notes that an element was written, or deleted if `now` is `None`.
    pub(in super::super) fn touch(&mut self, element: &Element, was_there: bool, now: Option<Actual>) {
        if element.set == Set::SourceRanges {
            let range = (element.key, element.key_end);
            match now {
                Some(_) => drop(self.ranges.insert(range)),
                None => drop(self.ranges.remove(&range)),
            }
            return;
        }
        let entry = Entry { was_there, now: None, is_taken: false };
        self.touched.0.entry((element.set, element.key)).or_insert(entry).now = now;
    }

    /// Returns true if an element was written or deleted.
    pub(in super::super) fn is_touched(&self, set: Set, key: &Key) -> bool {
        !self.touched.0.is_empty() && self.touched.0.contains_key(&(set, *key))
    }

    /// Returns the elements that were written and are not wanted.
    pub(in super::super) fn touched_left(&self) -> impl Iterator<Item = (Set, Key)> {
        let left = self.touched.0.iter().filter(|(_, entry)| entry.now.is_some() && !entry.is_taken);
        left.map(|(place, _)| *place)
    }

    /// Returns true if the kernel has a source range, and notes that it is wanted.
    pub(in super::super) fn take_range(&mut self, range: KeyRange) -> bool {
        self.wanted_ranges.insert(range);
        self.ranges.contains(&range)
    }

    /// Returns the source ranges of a frontend.
    pub(in super::super) fn ranges_of(&self, frontend: &Key) -> impl Iterator<Item = Element> {
        let is_of_frontend = move |(key, _): &&KeyRange| key.as_slice().starts_with(frontend.as_slice());
        let of_frontend = self.ranges.range((*frontend, None)..).take_while(is_of_frontend);
        of_frontend.map(|&(key, key_end)| Element { set: Set::SourceRanges, key, key_end, data: Data::EMPTY })
    }

    /// Notes that a chain was written.
    pub(in super::super) fn note_chain(&mut self, place: FamilyTable, body: &ChainBody) {
        self.chains.insert(body.name.clone(), body.chain(place));
        self.rules.insert(body.name.clone(), body.rules(place).collect());
    }

    /// Returns the source ranges that are not wanted.
    pub(in super::super) fn ranges_left(&self) -> impl Iterator<Item = &KeyRange> {
        self.ranges.difference(&self.wanted_ranges)
    }

    /// Returns what the kernel has with a key, as far as it was read or written.
    pub(in super::super) fn actual(&self, set: Set, key: &Key) -> Option<Actual> {
        if self.is_touched(set, key) {
            return self.touched.0.get(&(set, *key))?.now;
        }
        let row = self.rows.get(&set)?.get(key)?;
        Some(Actual { data: row.data, more: row.comment })
    }

    /// Does the same as [`View::actual`], and notes that the element is wanted.
    pub(in super::super) fn take_actual(&mut self, set: Set, key: &Key) -> Option<Actual> {
        if let Some(entry) = self.touched.0.get_mut(&(set, *key)) {
            entry.is_taken = true;
            return entry.now;
        }
        let row = self.rows.get_mut(&set)?.take(key)?;
        Some(Actual { data: row.data, more: row.comment })
    }

    /// Returns the elements of the view as they are deleted.
    pub(in super::super) fn elements(&self) -> impl Iterator<Item = Element> {
        self.rows.iter().flat_map(|(&set, rows)| {
            rows.iter().map(move |row| Element { set, key: row.key, key_end: None, data: Data::EMPTY })
        })
    }

    /// Returns the highest id that a frontend led to when all of them had been read.
    pub(in super::super) fn highest_id(&mut self) -> u32 {
        let ids =
            |set| self.rows_of(set).filter_map(|row| Some(Value(read_number(row.data.as_slice())?).id()));
        let highest = || ids(Set::Services).chain(ids(Set::NodePorts)).max().unwrap_or_default();
        let highest = self.highest_id.unwrap_or_else(highest);
        self.highest_id = Some(highest);
        highest
    }

    /// Reads elements by set and key, and adds those that the kernel has to `found`. Returns false if they are not known.
    pub(in super::super) fn read_some(
        &self,
        socket: &mut Socket,
        place: FamilyTable,
        elements: &BTreeSet<(Set, Key)>,
        found: &mut Self,
    ) -> Result<bool, SocketError> {
        let mut view = Self::default();
        for set in Set::ALL.into_iter().filter(|set| self.sets.contains_key(set.name())) {
            let keys = elements.iter().filter(|(of, _)| *of == set).map(|(_, key)| *key);
            if !view.read_single_keys(socket, place, set, keys)? {
                return Ok(false);
            }
        }
        Ok(found.add(view))
    }

    /// Adds what another view has. Returns false if its elements have lengths that ours do not have.
    fn add(&mut self, other: Self) -> bool {
        for (set, rows) in other.rows {
            match self.rows.get_mut(&set) {
                Some(others) => others.add(&rows),
                None => drop(self.rows.insert(set, rows)),
            }
        }
        other.unexpected.is_empty()
    }

    /// Reads the elements of ids in the sets that are read by key, and adds them to `found`. Returns false if they are not
    /// known.
    pub(in super::super) fn read_ids(
        &self,
        socket: &mut Socket,
        place: FamilyTable,
        ids: &BTreeSet<u32>,
        found: &mut Self,
    ) -> Result<bool, SocketError> {
        if ids.is_empty() {
            return Ok(true);
        }
        let mut view = Self::default();
        for set in by_key::ORDER.into_iter().filter(|set| self.sets.contains_key(set.name())) {
            if !view.read_set_of_ids(socket, place, set, ids)? {
                return Ok(false);
            }
        }
        Ok(found.add(view))
    }

    /// Returns the number of rows of a set that were not touched.
    pub(super) fn untouched(&self, set: Set, rows: &super::Rows) -> usize {
        let touched = self.touched.0.keys().filter(|(of, key)| *of == set && rows.get(key).is_some());
        rows.len().saturating_sub(touched.count())
    }

    /// Returns how many elements of a set were not touched, of those that the kernel had when the view was begun.
    pub(super) fn untouched_of(&self, set: Set, count: u32) -> usize {
        let touched = self.touched.0.iter().filter(|((of, _), entry)| *of == set && entry.was_there);
        (count as usize).saturating_sub(touched.count())
    }
}
