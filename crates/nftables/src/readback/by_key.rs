//! Reads the elements of large sets by their keys.
//!
//! The kernel lists a set in messages. For each message it walks from the start of the set to the next element, so the time of a
//! listing grows with the square of the number of elements (`nft_rhash_walk`). Requests for single elements take the
//! same time each.
//!
//! The sets with frontends and the chains of classes lead to all keys of [`ORDER`], unless another program
//! has written elements. The number of elements shows whether that is so; if it has, the set is listed. An element for all
//! other keys is not in the number, so it is requested, too.

use std::collections::{BTreeSet, HashSet};

use portolan_sock::{Errno, Socket, SocketError};
use portolan_wire::Batch;
use portolan_wire::nftables::{ElementRef, ElementsWriter, NftablesEvent};

use super::super::chain::FamilyTable;
use super::super::class::{Balance, Class};
use super::super::element::{Key, Set, read_number};
use super::super::value::{LOCAL_OFFSET, Value};
use super::rows::Rows;
use super::{Pause, View, choice_key, rows_of};

/// The sets that can be read by key, each after those that lead to its keys.
pub(super) const ORDER: [Set; 4] =
    [Set::Endpoints, Set::AffinityChoices, Set::AffinityEndpoints, Set::AffinityLocalEndpoints];

/// Number of elements from which a set is read by key. A listing of fewer elements takes no more than about 0.1 s.
pub(in super::super) const LARGE: u32 = 50_000;

/// Number of keys that are requested at once. The answers wait in the socket's receive buffer, where each takes about
/// 5 KiB (`NLMSG_GOODSIZE` and the kernel's own data).
const BATCH: usize = MESSAGE as usize;

/// Most keys in one message. The list in a message is limited to 65,535 bytes; a key takes at most 56.
const MESSAGE: u16 = 1_000;

/// Number of indexes that are requested first where the number of endpoints is not known.
const PROBED: u16 = 8;

/// Indexes of an id: `count` of them from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Indexes {
    id: u32,
    first: u32,
    count: u16,
    /// True if a class chooses from exactly these. Otherwise there may be fewer or more.
    is_known: bool,
}

impl Indexes {
    fn keys(self) -> impl Iterator<Item = Key> {
        (0..u32::from(self.count)).map(move |index| choice_key(self.id, self.first.saturating_add(index)))
    }

    /// Returns the indexes after these, and more of them.
    fn next(self) -> Self {
        let count = self.count.saturating_mul(2).min(MESSAGE);
        Self { first: self.first.saturating_add(self.count.into()), count, ..self }
    }

    /// Returns the same indexes in parts that each fit into a message.
    fn in_parts(self) -> impl Iterator<Item = Self> {
        (0..self.count).step_by(MESSAGE.into()).map(move |done| Self {
            first: self.first.saturating_add(done.into()),
            count: self.count.saturating_sub(done).min(MESSAGE),
            ..self
        })
    }
}

impl View {
    /// Reads the elements of a set by key. Returns false if they are not all of the `count` elements that the set has.
    pub(super) fn read_by_key(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        set: Set,
        count: u32,
        pause: Pause<'_>,
    ) -> Result<bool, SocketError> {
        let mut rows = rows_of(place, set);
        rows.reserve(count as usize);
        let unexpected = self.unexpected.len();
        let complete = !self.has_catch_all(socket, place, set, &mut rows)?
            && match set {
                Set::AffinityEndpoints | Set::AffinityLocalEndpoints => {
                    // Taken out, so that the elements can be added to the view.
                    let choices = self.rows.remove(&Set::AffinityChoices);
                    let keys =
                        choices.iter().flat_map(|rows| slots(rows, set == Set::AffinityLocalEndpoints));
                    let complete = self.request_keys(socket, place, set, &mut rows, keys, pause);
                    self.rows.extend(choices.map(|rows| (Set::AffinityChoices, rows)));
                    complete?
                }
                _ => {
                    let indexes = self.indexes(set);
                    self.request_indexes(socket, place, set, &mut rows, indexes, pause)?
                }
            };
        rows.settle();
        let has_all = self.untouched(set, &rows) == self.untouched_of(set, count);
        let complete = complete && has_all && self.unexpected.len() == unexpected;
        if complete {
            self.rows.insert(set, rows);
        } else {
            // The listing finds them, too.
            self.unexpected.truncate(unexpected);
            tracing::debug!(
                set = set.name(),
                count,
                found = rows.len(),
                "the set is listed: it has other elements"
            );
        }
        Ok(complete)
    }

    /// Reads the elements of ids in a set, as far as the sets before it in [`ORDER`] lead to them. Returns false if one is
    /// missing, or if an answer is.
    pub(super) fn read_set_of_ids(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        set: Set,
        ids: &BTreeSet<u32>,
    ) -> Result<bool, SocketError> {
        let mut rows = rows_of(place, set);
        let no_pause: Pause<'_> = &mut |_, _| Ok(());
        let complete = if matches!(set, Set::AffinityEndpoints | Set::AffinityLocalEndpoints) {
            let choices = self.rows.remove(&Set::AffinityChoices);
            let keys = choices.iter().flat_map(|rows| slots(rows, set == Set::AffinityLocalEndpoints));
            let complete = self.request_keys(socket, place, set, &mut rows, keys, no_pause);
            self.rows.extend(choices.map(|rows| (Set::AffinityChoices, rows)));
            complete?
        } else {
            let both = |&id: &u32| {
                [0, LOCAL_OFFSET].map(|first| Indexes { id, first, count: PROBED, is_known: false })
            };
            self.request_indexes(
                socket,
                place,
                set,
                &mut rows,
                ids.iter().flat_map(both).collect(),
                no_pause,
            )?
        };
        rows.settle();
        self.rows.insert(set, rows);
        Ok(complete)
    }

    /// Reads the elements with these keys, of which the set may lack some. Returns false if an answer is missing.
    pub(super) fn read_single_keys(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        set: Set,
        keys: impl Iterator<Item = Key>,
    ) -> Result<bool, SocketError> {
        let mut rows = rows_of(place, set);
        let mut keys = keys.peekable();
        let mut are_known = true;
        while keys.peek().is_some() {
            let mut batch = Batch::new(socket.next_sequence(MESSAGE.into()));
            // The kernel leaves out the elements after a missing one in a message.
            for key in keys.by_ref().take(BATCH) {
                write(&mut batch, place, set, std::iter::once(key));
            }
            are_known &= self.ask(socket, &batch, set, &mut rows)?.is_some();
        }
        rows.settle();
        self.rows.insert(set, rows);
        Ok(are_known)
    }

    /// Returns true if the set has an element for all other keys, which is not in the number of elements, or if that is not known.
    fn has_catch_all(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        set: Set,
        rows: &mut Rows,
    ) -> Result<bool, SocketError> {
        let mut batch = Batch::new(socket.next_sequence(1));
        ElementsWriter::requests(&mut batch, place.wire(), place.table, set.name())
            .push(&ElementRef::catch_all());
        Ok(self.ask(socket, &batch, set, rows)?.is_none_or(|missing| missing.is_empty()))
    }

    /// Requests the elements with these keys. Returns false if one is missing, or if an answer is.
    fn request_keys(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        set: Set,
        rows: &mut Rows,
        mut keys: impl Iterator<Item = Key>,
        pause: Pause<'_>,
    ) -> Result<bool, SocketError> {
        loop {
            pause(self, socket)?;
            let mut batch = Batch::new(socket.next_sequence(1));
            let is_early = |key: &Key| {
                let id = read_number(key.as_slice()).map(|slot| Value(slot).id());
                id.is_some_and(|id| self.early_ids.contains(&id))
            };
            write(&mut batch, place, set, keys.by_ref().filter(|key| !is_early(key)).take(BATCH));
            if batch.is_empty() {
                return Ok(true);
            }
            if self.ask(socket, &batch, set, rows)?.is_none_or(|missing| !missing.is_empty()) {
                return Ok(false);
            }
        }
    }

    /// Requests the elements with these indexes, except for those of ids that were changed meanwhile. Returns false if answers
    /// are missing.
    fn request_indexes(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        set: Set,
        rows: &mut Rows,
        mut wanted: Vec<Indexes>,
        pause: Pause<'_>,
    ) -> Result<bool, SocketError> {
        while !wanted.is_empty() {
            let mut pending = wanted.into_iter().flat_map(Indexes::in_parts);
            let mut further = Vec::new();
            loop {
                pause(self, socket)?;
                let mut batch = Batch::new(socket.next_sequence(MESSAGE.into()));
                let (mut asked, mut keys) = (Vec::new(), 0);
                while keys < BATCH
                    && let Some(part) = pending.find(|part| !self.early_ids.contains(&part.id))
                {
                    write(&mut batch, place, set, part.keys());
                    keys += usize::from(part.count);
                    asked.push(part);
                }
                if asked.is_empty() {
                    break;
                }
                let Some(missing) = self.ask(socket, &batch, set, rows)? else { return Ok(false) };
                let ended = |sequence| missing.contains(&sequence);
                let asked = (batch.first_sequence()..).zip(asked);
                let open = asked.filter(|&(sequence, part)| !part.is_known && !ended(sequence));
                further.extend(open.map(|(_, part)| part.next()));
            }
            wanted = further;
        }
        Ok(true)
    }

    /// Sends requests. Returns the sequence numbers of those with an element that the kernel does not have; `None` if answers
    /// were lost, or if the kernel refused a request for another reason.
    fn ask(
        &mut self,
        socket: &mut Socket,
        batch: &Batch,
        set: Set,
        rows: &mut Rows,
    ) -> Result<Option<HashSet<u32>>, SocketError> {
        let replies = socket.ask(batch, |frame| {
            if let NftablesEvent::NewElements(list) = NftablesEvent::decode(frame)? {
                for element in list.elements() {
                    self.take(set, rows, &element?);
                }
            }
            Ok(())
        })?;
        let all_known =
            !replies.lost && replies.refusals.iter().all(|refusal| refusal.errno == Errno::ENOENT);
        let missing = || replies.refusals.iter().map(|refusal| refusal.sequence).collect();
        Ok(all_known.then(missing))
    }

    /// Returns the indexes of all ids. The chains of an id's classes say how many endpoints they choose from. If they choose from
    /// the local endpoints only, they do not say how many the cluster has, and the other way round.
    fn indexes(&self, set: Set) -> Vec<Indexes> {
        // With counters all choices are slots.
        let all_are_slots = self.sets.contains_key(Set::ServiceCounters.name());
        let frontends = [Set::Services, Set::NodePorts].map(|set| self.rows.get(&set).map_or(0, Rows::len));
        // Mostly the known indexes of each, and the other ones.
        let mut all = Vec::with_capacity(2 * frontends.iter().sum::<usize>());
        for row in self.rows_of(Set::Services).chain(self.rows_of(Set::NodePorts)) {
            let Some(value) = read_number(row.data.as_slice()).map(Value) else { continue };
            let Some(chain) = self.classes.get(&value.low()) else { continue };
            let Ok(class) = chain.parse::<Class>() else { continue };
            let is_of_set = |balance: &Balance| {
                (all_are_slots || balance.affinity.is_some()) == (set == Set::AffinityChoices)
            };
            for balance in class.balances().filter(is_of_set) {
                let first = if balance.local { LOCAL_OFFSET } else { 0 };
                let other = LOCAL_OFFSET - first;
                let known = Indexes { id: value.id(), first, count: balance.backends, is_known: true };
                all.extend([known, Indexes { first: other, count: PROBED, is_known: false, ..known }]);
            }
        }
        // What is known comes first among the indexes from the same one on. The rows of a usual table come in their order,
        // so that sorting them is quick.
        all.sort_unstable_by_key(|it| (Value::new(it.id, 0).0.to_ne_bytes(), it.first, !it.is_known));
        all.dedup_by_key(|it| (it.id, it.first));
        all
    }
}

/// Writes a request for these keys.
fn write(batch: &mut Batch, place: FamilyTable, set: Set, keys: impl Iterator<Item = Key>) {
    let mut writer = ElementsWriter::requests(batch, place.wire(), place.table, set.name());
    for key in keys {
        writer.push(&ElementRef::key(key.as_slice()));
    }
}

/// Returns the keys of the slots that choices lead to, of the local endpoints or of the cluster's.
fn slots(choices: &Rows, local: bool) -> impl Iterator<Item = Key> {
    choices.iter().filter_map(move |row| {
        let index = read_number(row.key.as_slice().get(4..)?)?;
        let slot = read_number(row.data.as_slice())?;
        ((index >= LOCAL_OFFSET) == local).then(|| Key::EMPTY.number(slot))
    })
}

#[cfg(test)]
mod tests;
