//! Reads the whole table from the kernel once, in compact form.

mod by_key;
mod rows;
mod runs;
mod saved;
mod touched;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_engine::dataplane::Error;
use portolan_engine::drift::generation;
use portolan_model::{Family, Forwarding, ServicePortName};
use portolan_sock::{CommitError, Protocol, Socket, SocketError};
use portolan_wire::nftables::{
    self as wire, CATCH_ALL, Chain, DataRef, ElementRef, NftablesEvent, Rule, SetData, UserData, Verdict,
    request,
};

use portolan_wire::{DecodeError, Frame};

use super::chain::{ChainBody, FamilyTable, RuleBody};
use super::changeset::{has_comment, has_more};
use super::element::{Data, Key, Set, read_address, read_number};
use super::skeleton;
use super::value::MAX_CLASS;
pub(super) use by_key::LARGE;
use rows::{Row, Rows};
pub use saved::SavedElements;
#[cfg(feature = "fuzzing")]
pub(super) use saved::fuzzing as saved_elements;
pub(super) use touched::Actual;
use touched::Touched;

/// A key and, if it is an interval, the key of its end.
pub(super) type KeyRange = (Key, Option<Key>);

/// The table in the kernel.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) table: Option<wire::NftTable>,
    pub(super) chains: HashMap<String, Chain>,
    pub(super) rules: HashMap<String, Vec<Rule>>,
    pub(super) sets: HashMap<String, wire::Set>,
    /// The elements of each set, except for those in the fields below.
    pub(super) rows: BTreeMap<Set, Rows>,
    /// Elements of [`Set::SourceRanges`].
    pub(super) ranges: BTreeSet<KeyRange>,
    /// Those that are wanted.
    pub(super) wanted_ranges: BTreeSet<KeyRange>,
    /// The chain of each class number. Empty if the element does not go to a chain.
    pub(super) classes: HashMap<u16, String>,
    /// Elements of our sets with a key or data that none of our elements has.
    pub(super) unexpected: Vec<(Set, KeyRange)>,
    /// The comments of rows by their hash. `None` if neither comments nor counts are kept.
    pub(super) comments: Option<HashMap<u64, Box<str>>>,
    /// The packets that elements have counted.
    pub(super) counts: HashMap<(Set, Key), u64>,
    /// The generation of the ruleset that the view is of.
    pub(super) generation: u32,
    /// What was written since the view was begun.
    pub(super) touched: Touched,
    /// The Service ports that were changed since the view was begun, with their last state.
    pub(super) arrived: BTreeMap<Arc<ServicePortName>, Option<Arc<Forwarding>>>,
    /// The ids of which every element is noted as touched.
    pub(super) early_ids: HashSet<u32>,
    /// True if all Service ports of the table have been placed.
    pub(super) is_placed: bool,
    /// True if classes and source ranges have been read, and the chains with their rules.
    pub(super) has_classes: bool,
    /// True if all frontends that lead to ids have been read.
    pub(super) has_frontends: bool,
    /// The highest id that a frontend led to when all of them had been read.
    pub(super) highest_id: Option<u32>,
    /// Whether changes can be written into the table as it is. `None` if that has not been asked for.
    pub(super) is_usable: Option<bool>,
}

/// The socket for requests and commits, and another one for listings during which there are pauses.
type Sockets<'a> = (&'a mut Socket, Option<&'a mut Socket>);

/// What is called in a pause while a table is read. An error ends the reading.
pub(super) type Pause<'a> = &'a mut dyn FnMut(&mut View, &mut Socket) -> Result<(), SocketError>;

/// Returns the hash by which what an element has besides key and data is compared: its comment, and whether it counts.
pub(super) fn hash_of(comment: &str, counts: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (comment, counts).hash(&mut hasher);
    hasher.finish()
}

/// The chains of a table with their rules in order, and its sets without elements. The keys are names.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub(super) chains: HashMap<String, Chain>,
    pub(super) rules: HashMap<String, Vec<Rule>>,
    pub(super) sets: HashMap<String, wire::Set>,
}

impl Outline {
    /// Adds what a message lists, if it belongs to the table.
    pub(super) fn take(&mut self, event: NftablesEvent<'_>, table: &str) {
        match event {
            NftablesEvent::NewChain(chain) if chain.table == table => {
                self.chains.insert(chain.name.clone(), chain);
            }
            NftablesEvent::NewRule(rule) if rule.table == table => {
                self.rules.entry(rule.chain.clone()).or_default().push(rule);
            }
            NftablesEvent::NewSet(set) if set.table == table => {
                self.sets.insert(set.name.clone(), set);
            }
            _ => {}
        }
    }
}

/// Reads the outline of a table.
pub(super) fn outline(socket: &mut Socket, place: FamilyTable) -> Result<Outline, SocketError> {
    let mut outline = Outline::default();
    let FamilyTable { table, .. } = place;
    let chains = request::chains(place.wire());
    for mut listing in [chains, request::rules(place.wire(), table, None), request::sets(place.wire(), table)]
    {
        socket.dump(&mut listing, |frame| {
            outline.take(NftablesEvent::decode(frame)?, table);
            Ok(())
        })?;
    }
    Ok(outline)
}

/// Returns our table, or `None` if it does not exist.
pub(super) fn table(socket: &mut Socket, place: FamilyTable) -> Result<Option<wire::NftTable>, SocketError> {
    let mut found = None;
    socket.dump(&mut request::tables(place.wire()), |frame| {
        match NftablesEvent::decode(frame)? {
            NftablesEvent::NewTable(table) if table.name == place.table && table.family == place.wire() => {
                found = Some(table);
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads the whole table. Returns an empty view if it does not exist, and [`SocketError::Interrupted`] if it changed
/// meanwhile.
pub(super) fn read(socket: &mut Socket, place: FamilyTable) -> Result<View, SocketError> {
    View::default().filled((socket, None), place, Large::of(LARGE), &mut |_, _| Ok(()))
}

/// How elements of large sets are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Large<'a> {
    /// Number of elements from which a set is read by key.
    pub(super) from: u32,
    /// The elements that the last run knew.
    pub(super) saved: Option<&'a SavedElements>,
}

impl Large<'_> {
    const fn of(from: u32) -> Self {
        Self { from, saved: None }
    }
}

/// Does the same as [`read`], with pauses in which changes may be written.
pub(super) fn read_with_pauses(
    socket: &mut Socket,
    place: FamilyTable,
    large: Large<'_>,
    pause: Pause<'_>,
) -> Result<View, SocketError> {
    // A socket has one listing at a time, and a commit comes between two parts of it.
    let mut lister = Socket::open(Protocol::Netfilter)?;
    View::default().filled((socket, Some(&mut lister)), place, large, pause)
}

/// Does the same as [`read`], and keeps the comments and the counts of elements. The view is that of one generation of the ruleset.
pub(super) fn read_with_comments(socket: &mut Socket, place: FamilyTable) -> Result<View, SocketError> {
    let before = generation(socket)?;
    let view = View::with_comments().filled((socket, None), place, Large::of(LARGE), &mut |_, _| Ok(()))?;
    if generation(socket)? == before { Ok(view) } else { Err(SocketError::Interrupted) }
}

/// Number of attempts at reading while other programs change the ruleset.
pub(super) const ATTEMPTS: u32 = 8;

/// Runs `work` again, after a pause, if other programs changed the ruleset meanwhile.
pub(super) fn undisturbed<T>(
    mode: &'static str,
    mut work: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    for attempt in 0..ATTEMPTS {
        match work() {
            Err(
                Error::Commit(CommitError::GenerationMoved | CommitError::Interrupted)
                | Error::Socket(SocketError::Interrupted | SocketError::Overrun),
            ) => std::thread::sleep(Duration::from_millis(2 << attempt)),
            outcome => return outcome,
        }
    }
    Err(Error::Contended { mode, attempts: ATTEMPTS, is_unchanged: false })
}

impl View {
    /// Creates an empty view that keeps the comments and the counts of elements.
    pub(super) fn with_comments() -> Self {
        Self { comments: Some(HashMap::new()), ..Self::default() }
    }

    /// Returns the comment with this hash; `None` if comments are not kept.
    pub(super) fn comment(&self, hash: u64) -> Option<&str> {
        self.comments.as_ref()?.get(&hash).map(|comment| &**comment)
    }

    /// Reads everything. Large sets are read by key, where other sets lead to the keys.
    fn filled(
        mut self,
        (socket, mut second): Sockets<'_>,
        place: FamilyTable,
        large: Large<'_>,
        pause: Pause<'_>,
    ) -> Result<Self, SocketError> {
        let begun_at = generation(socket)?;
        self.generation = begun_at;
        let mut saved = large.saved.and_then(|saved| saved.take(place, begun_at)).unwrap_or_default();
        self.table = table(socket, place)?;
        if self.table.is_none() {
            return Ok(self);
        }
        let Outline { chains, rules, sets } = outline(socket, place)?;
        (self.chains, self.rules, self.sets) = (chains, rules, sets);
        // The kernel's rules fill the set of bindings, so there is nothing to compare.
        let is_there = |set: &Set| *set != Set::Affinity && self.sets.contains_key(set.name());
        let (by_key, listed): (Vec<Set>, Vec<Set>) =
            Set::ALL.into_iter().filter(is_there).partition(|set| by_key::ORDER.contains(set));
        // Changes that arrive need these; both are small.
        let first = [Set::Classes, Set::SourceRanges];
        for set in first.into_iter().filter(|set| listed.contains(set)) {
            self.read_elements((socket, None), place, set, pause)?;
        }
        self.has_classes = true;
        for set in listed.into_iter().filter(|set| !first.contains(set)) {
            self.read_elements((socket, second.as_deref_mut()), place, set, pause)?;
            self.has_frontends |= set == Set::NodePorts;
            pause(&mut self, socket)?;
        }
        let mut any_by_key = false;
        for set in by_key {
            pause(&mut self, socket)?;
            let count = self.sets.get(set.name()).and_then(|set| set.element_count);
            if let Some(rows) = saved.remove(&set) {
                self.adopt(set, rows, count)?;
                any_by_key = true;
                continue;
            }
            match count.filter(|&count| count >= large.from) {
                Some(count) if self.read_by_key(socket, place, set, count, pause)? => any_by_key = true,
                _ => self.read_elements((socket, second.as_deref_mut()), place, set, pause)?,
            }
        }
        // The kernel says of a listing that the table changed meanwhile, but not of single elements.
        let any_change = any_by_key || self.generation != begun_at;
        if any_change && generation(socket)? != self.generation {
            return Err(SocketError::Interrupted);
        }
        Ok(self)
    }

    /// Takes over the elements of a set from the last run. Everything is read again if the set has another number of elements: then the
    /// file is wrong, whatever the reason. It is gone by now.
    fn adopt(&mut self, set: Set, rows: Rows, count: Option<u32>) -> Result<(), SocketError> {
        let found = self.untouched(set, &rows);
        if count.is_some_and(|count| self.untouched_of(set, count) != found) {
            tracing::warn!(
                set = set.name(),
                count,
                found,
                "what the last run has saved is wrong; the table is read again"
            );
            return Err(SocketError::Interrupted);
        }
        self.rows.insert(set, rows);
        Ok(())
    }

    /// Returns the rows of a set.
    pub(super) fn rows_of(&self, set: Set) -> impl Iterator<Item = Row> {
        self.rows.get(&set).into_iter().flat_map(Rows::iter)
    }

    /// Returns the data of an element.
    pub(super) fn data(&self, set: Set, key: &Key) -> Option<Data> {
        self.rows.get(&set)?.get(key).map(|row| row.data)
    }

    /// Returns the endpoints of an id, in the order of their indexes from `first` on.
    pub(super) fn endpoints(&self, family: Family, id: u32, first: u32) -> Vec<SocketAddr> {
        (first..).map_while(|index| self.endpoint(family, Set::Endpoints, choice_key(id, index))).collect()
    }

    /// Returns the slots of an id, in the order of their indexes from `first` on.
    pub(super) fn choices(&self, id: u32, first: u32) -> Vec<u32> {
        (first..)
            .map_while(|index| {
                read_number(self.data(Set::AffinityChoices, &choice_key(id, index))?.as_slice())
            })
            .collect()
    }

    /// Returns the endpoint that a key maps to.
    pub(super) fn endpoint(&self, family: Family, set: Set, key: Key) -> Option<SocketAddr> {
        read_socket(family, self.data(set, &key)?.as_slice())
    }

    /// Reads the elements of a set. While the kernel resizes a set, a listing lacks some elements and has others
    /// twice. On kernels that report the number of elements, such a listing is detected, and with a `lister` there are pauses.
    fn read_elements(
        &mut self,
        (socket, lister): Sockets<'_>,
        place: FamilyTable,
        set: Set,
        pause: Pause<'_>,
    ) -> Result<(), SocketError> {
        let expected = self.sets.get(set.name()).and_then(|set| set.element_count);
        if let Some(lister) = lister.filter(|_| expected.is_some()) {
            let unexpected = self.unexpected.len();
            let is_complete = self.list(lister, place, set, &mut |view| pause(view, socket))?;
            if is_complete {
                return Ok(());
            }
            tracing::debug!(set = set.name(), "the set is listed again: it was changed meanwhile");
            self.rows.remove(&set);
            self.unexpected.truncate(unexpected);
        }
        let is_complete = self.list(socket, place, set, &mut |_| Ok(()))?;
        if is_complete { Ok(()) } else { Err(SocketError::Interrupted) }
    }

    /// Lists a set, with pauses. Returns false if the elements are not as many as the set has.
    fn list(
        &mut self,
        socket: &mut Socket,
        place: FamilyTable,
        set: Set,
        pause: &mut dyn FnMut(&mut Self) -> Result<(), SocketError>,
    ) -> Result<bool, SocketError> {
        let expected = self.sets.get(set.name()).and_then(|set| set.element_count);
        let mut rows = rows_of(place, set);
        rows.reserve(expected.unwrap_or_default() as usize);
        let others = self.others(set);
        let (mut uncounted, mut outcome, begun_at) = (0, Ok(()), self.generation);
        let listed = socket.dump(&mut request::elements(place.wire(), place.table, set.name()), |frame| {
            if outcome.is_ok() {
                outcome = self.take_frame(set, &mut rows, frame, &mut uncounted).map_err(SocketError::from);
            }
            if outcome.is_ok() {
                outcome = pause(self);
            }
            Ok(())
        });
        outcome?;
        match listed {
            // Our own commits changed the ruleset.
            Err(SocketError::Interrupted) if self.generation != begun_at => {}
            listed => listed?,
        }
        rows.settle();
        let count = (self.untouched(set, &rows) + self.others(set)).saturating_sub(others + uncounted);
        self.rows.insert(set, rows);
        let interval = set == Set::SourceRanges;
        Ok(interval || expected.is_none_or(|expected| self.untouched_of(set, expected) == count))
    }

    /// Adds the elements of a message. Adds to `uncounted` how many of them are not in the kernel's number of elements.
    fn take_frame(
        &mut self,
        set: Set,
        rows: &mut Rows,
        frame: &Frame<'_>,
        uncounted: &mut usize,
    ) -> Result<(), DecodeError> {
        if let NftablesEvent::NewElements(list) = NftablesEvent::decode(frame)? {
            for element in list.elements() {
                let element = element?;
                // The kernel's count is without the element for all other keys (`nft_add_set_elem`).
                *uncounted += usize::from(element.flags & CATCH_ALL != 0);
                self.take(set, rows, &element);
            }
        }
        Ok(())
    }

    /// Adds the elements of a set as if they had been read.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn add_elements(&mut self, place: FamilyTable, set: Set, elements: &[ElementRef<'_>]) {
        let mut rows = rows_of(place, set);
        for element in elements {
            self.take(set, &mut rows, element);
        }
        rows.settle();
        self.rows.insert(set, rows);
    }

    /// Returns the hash of what an element has besides key and data. Keeps the comment if comments are kept.
    fn keep_comment(&mut self, set: Set, element: &ElementRef<'_>) -> u64 {
        let userdata = UserData::from_bytes(element.userdata);
        let comment = if has_comment(set) { userdata.comment_text().unwrap_or_default() } else { "" };
        let hash = hash_of(comment, set.has_counters() && element.counter.is_some());
        if let Some(comments) = &mut self.comments {
            comments.entry(hash).or_insert_with(|| comment.into());
        }
        hash
    }

    /// Returns the number of elements of a set that are not rows, and of unexpected ones of other sets.
    fn others(&self, set: Set) -> usize {
        let of_set = match set {
            Set::Classes => self.classes.len(),
            Set::SourceRanges => self.ranges.len(),
            _ => 0,
        };
        of_set + self.unexpected.len()
    }

    fn take(&mut self, set: Set, rows: &mut Rows, element: &ElementRef<'_>) {
        let (Some(key), end) = (Key::from_kernel(element.key), element.key_end.map(Key::from_kernel)) else {
            return;
        };
        let range = (key, end.flatten());
        match (set, element.data) {
            (Set::Classes, data) => {
                // Any other verdict leads to no chain of ours, but the number is in use.
                let chain = if let Some(DataRef::Verdict(Verdict::Goto(chain))) = data { chain } else { "" };
                let number = read_number(key.as_slice()).and_then(|number| u16::try_from(number).ok());
                // A greater number than a class can have is not ours, and could not be deleted as a class.
                match number.filter(|number| *number <= MAX_CLASS) {
                    Some(number) => drop(self.classes.insert(number, chain.to_owned())),
                    None => self.unexpected.push((set, range)),
                }
            }
            (Set::SourceRanges, None) => drop(self.ranges.insert(range)),
            (_, None | Some(DataRef::Value(_))) => {
                let data = if let Some(DataRef::Value(data)) = element.data { data } else { &[] };
                if let (Some(_), Some(counter)) = (&self.comments, element.counter) {
                    self.counts.insert((set, key), counter.packets);
                }
                let comment = has_more(set).then(|| self.keep_comment(set, element));
                if !rows.push(element.key, data, comment) {
                    self.unexpected.push((set, range));
                }
            }
            _ => self.unexpected.push((set, range)),
        }
    }
}

/// Number of zeros after a port in the data of an element.
const PORT_PADDING: usize = 2;

/// Returns empty rows with the lengths that elements of the set should have.
pub(super) fn rows_of(place: FamilyTable, set: Set) -> Rows {
    let shape = skeleton::set(place, set);
    let data_length = match shape.data {
        Some(SetData::Value { length, .. }) => length,
        Some(SetData::Verdict) | None => 0,
    };
    match set {
        Set::Endpoints => Rows::of_indexes(data_length as usize, PORT_PADDING, has_more(set)),
        Set::AffinityChoices => Rows::of_indexes(data_length as usize, 0, has_more(set)),
        _ => Rows::new(shape.key_length as usize, data_length as usize, has_more(set)),
    }
}

/// Returns true if a chain has exactly these rules.
pub(super) fn same_rules(view: &View, body: &ChainBody) -> bool {
    let actual = view.rules.get(&body.name).map(Vec::as_slice).unwrap_or_default();
    let comment = |rule: &RuleBody| rule.comment;
    actual.len() == body.rules.len()
        && actual.iter().zip(&body.rules).all(|(actual, desired)| {
            actual.userdata.comment_text().unwrap_or_default() == comment(desired)
                && actual.expressions.len() == desired.expressions.len()
                && actual
                    .expressions
                    .iter()
                    .zip(&desired.expressions)
                    .all(|(a, b)| a.clone().normalized() == b.clone().normalized())
        })
}

/// Returns the key of an index of an id.
pub(super) fn choice_key(id: u32, index: u32) -> Key {
    Key::EMPTY.number(super::value::Value::new(id, 0).0).number(index)
}

/// Reads an endpoint from the data of an element.
pub(super) fn read_socket(family: Family, data: &[u8]) -> Option<SocketAddr> {
    let address = read_address(family, data)?;
    let length = super::element::address_length(family) as usize;
    let port = data.get(length..)?.first_chunk::<2>()?;
    Some(SocketAddr::new(address, u16::from_be_bytes(*port)))
}
