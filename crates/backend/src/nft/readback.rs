//! What the kernel has: the whole table, read once, in compact form.

mod rows;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use portolan_model::Family;
use portolan_sock::{Socket, SocketError};
use portolan_wire::nftables::{
    self as wire, Chain, DataRef, ElementRef, Event, Rule, SetData, UserData, Verdict, request,
};

use super::changeset::has_comment;
use super::element::{Key, Set, read_address, read_number};
use super::skeleton::{self, Place};
use rows::{Row, Rows};

/// A key with the end of its interval, where it has one.
pub(super) type KeyRange = (Key, Option<Key>);

/// The table as the kernel has it.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) table: Option<wire::Table>,
    pub(super) chains: HashMap<String, Chain>,
    pub(super) rules: HashMap<String, Vec<Rule>>,
    pub(super) sets: HashMap<String, wire::Set>,
    /// The elements of each set but those below.
    pub(super) rows: BTreeMap<Set, Rows>,
    /// Elements of [`Set::SourceRanges`].
    pub(super) ranges: HashSet<KeyRange>,
    /// Chain that each class leads to.
    pub(super) classes: HashMap<u16, String>,
    /// Elements that none of ours looks like.
    pub(super) strange: Vec<(Set, KeyRange)>,
}

/// The hash under which a comment is compared.
pub(super) fn comment_hash(comment: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    comment.hash(&mut hasher);
    hasher.finish()
}

/// The generation of the ruleset, which every commit of anybody moves.
pub(super) fn generation(socket: &mut Socket) -> Result<u32, SocketError> {
    let mut generation = 0;
    socket.query(&mut request::generation(), |frame| {
        if let Event::Generation(now) = Event::decode(frame)? {
            generation = now.id;
        }
        Ok(())
    })?;
    Ok(generation)
}

/// Our table, where there is one.
pub(super) fn table(socket: &mut Socket, place: Place) -> Result<Option<wire::Table>, SocketError> {
    let mut found = None;
    socket.dump(&mut request::tables(place.wire()), |frame| {
        match Event::decode(frame)? {
            Event::NewTable(table) if table.name == place.table && table.family == place.wire() => {
                found = Some(table);
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads the whole table; an empty view where there is none. [`SocketError::Interrupted`] when it changed
/// meanwhile.
pub(super) fn read(socket: &mut Socket, place: Place) -> Result<View, SocketError> {
    let mut view = View { table: table(socket, place)?, ..View::default() };
    if view.table.is_none() {
        return Ok(view);
    }
    view.read_chains(socket, place)?;
    view.read_sets(socket, place)?;
    for set in Set::ALL.into_iter().filter(|&set| set != Set::Affinity) {
        if view.sets.contains_key(set.name()) {
            view.read_elements(socket, place, set)?;
        }
    }
    Ok(view)
}

impl View {
    /// The data of an element.
    pub(super) fn data(&self, set: Set, key: &Key) -> Option<&[u8]> {
        self.rows.get(&set)?.get(key).map(|row| row.data)
    }

    /// The endpoints of an id, in the order of their indexes from `first` on.
    pub(super) fn endpoints(&self, family: Family, id: u32, first: u32) -> Vec<SocketAddr> {
        (first..).map_while(|index| self.endpoint(family, Set::Endpoints, choice_key(id, index))).collect()
    }

    /// The slots of an id, in the order of their indexes from `first` on.
    pub(super) fn choices(&self, id: u32, first: u32) -> Vec<u32> {
        (first..)
            .map_while(|index| read_number(self.data(Set::AffinityChoices, &choice_key(id, index))?))
            .collect()
    }

    /// The endpoint behind a key.
    pub(super) fn endpoint(&self, family: Family, set: Set, key: Key) -> Option<SocketAddr> {
        read_socket(family, self.data(set, &key)?)
    }

    fn read_chains(&mut self, socket: &mut Socket, place: Place) -> Result<(), SocketError> {
        socket.dump(&mut request::chains(place.wire()), |frame| {
            match Event::decode(frame)? {
                Event::NewChain(chain) if chain.table == place.table => {
                    self.chains.insert(chain.name.clone(), chain);
                }
                _ => {}
            }
            Ok(())
        })?;
        socket.dump(&mut request::rules(place.wire(), place.table, None), |frame| {
            match Event::decode(frame)? {
                Event::NewRule(rule) if rule.table == place.table => {
                    self.rules.entry(rule.chain.clone()).or_default().push(rule);
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn read_sets(&mut self, socket: &mut Socket, place: Place) -> Result<(), SocketError> {
        socket.dump(&mut request::sets(place.wire(), place.table), |frame| {
            match Event::decode(frame)? {
                Event::NewSet(set) if set.table == place.table => {
                    self.sets.insert(set.name.clone(), set);
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// A list taken while the kernel still moves the elements to a table of another size lacks some and has
    /// others twice; kernels that say how many there are let us notice.
    fn read_elements(&mut self, socket: &mut Socket, place: Place, set: Set) -> Result<(), SocketError> {
        let expected = self.sets.get(set.name()).and_then(|set| set.element_count);
        let mut rows = rows_of(place, set);
        rows.reserve(expected.unwrap_or_default() as usize);
        let others = self.others();
        socket.dump(&mut request::elements(place.wire(), place.table, set.name()), |frame| {
            if let Event::NewElements(list) = Event::decode(frame)? {
                for element in list.elements() {
                    self.take(set, &mut rows, &element?);
                }
            }
            Ok(())
        })?;
        rows.settle();
        let count = rows.len() + self.others().saturating_sub(others);
        self.rows.insert(set, rows);
        let interval = set == Set::SourceRanges;
        if !interval && expected.is_some_and(|expected| expected as usize != count) {
            return Err(SocketError::Interrupted);
        }
        Ok(())
    }

    /// How many elements there are that are no rows.
    fn others(&self) -> usize {
        self.ranges.len() + self.classes.len() + self.strange.len()
    }

    fn take(&mut self, set: Set, rows: &mut Rows, element: &ElementRef<'_>) {
        let (Some(key), end) = (Key::from_kernel(element.key), element.key_end.map(Key::from_kernel)) else {
            return;
        };
        let range = (key, end.flatten());
        match (set, element.data) {
            (Set::Classes, data) => {
                // Any other verdict leads nowhere of ours, but the number is taken.
                let chain = if let Some(DataRef::Verdict(Verdict::Goto(chain))) = data { chain } else { "" };
                match read_number(key.as_slice()).and_then(|number| u16::try_from(number).ok()) {
                    Some(number) => drop(self.classes.insert(number, chain.to_owned())),
                    None => self.strange.push((set, range)),
                }
            }
            (Set::SourceRanges, None) => drop(self.ranges.insert(range)),
            (_, None | Some(DataRef::Value(_))) => {
                let data = if let Some(DataRef::Value(data)) = element.data { data } else { &[] };
                let comment = has_comment(set).then(|| hash_of(element));
                if !rows.push(&Row { key: element.key, data, comment }) {
                    self.strange.push((set, range));
                }
            }
            _ => self.strange.push((set, range)),
        }
    }
}

/// No rows yet, of the shape that the elements of a set should have.
fn rows_of(place: Place, set: Set) -> Rows {
    let shape = skeleton::set(place, set);
    let data_length = match shape.data {
        Some(SetData::Value { length, .. }) => length,
        Some(SetData::Verdict) | None => 0,
    };
    Rows::new(shape.key_length as usize, data_length as usize, has_comment(set))
}

/// The key of an index of an id.
pub(super) fn choice_key(id: u32, index: u32) -> Key {
    Key::EMPTY.number(super::value::Value::new(id, 0).0).number(index)
}

fn hash_of(element: &ElementRef<'_>) -> u64 {
    comment_hash(UserData::from_bytes(element.userdata).comment_text().unwrap_or_default())
}

fn read_socket(family: Family, data: &[u8]) -> Option<SocketAddr> {
    let address = read_address(family, data)?;
    let length = super::element::address_length(family) as usize;
    let port = data.get(length..)?.first_chunk::<2>()?;
    Some(SocketAddr::new(address, u16::from_be_bytes(*port)))
}
