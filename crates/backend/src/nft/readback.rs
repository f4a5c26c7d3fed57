//! What the kernel has: the whole table, read once, in compact form.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use portolan_model::Family;
use portolan_sock::{Socket, SocketError};
use portolan_wire::nftables::{
    self as wire, Chain, DataRef, ElementRef, Event, Rule, UserData, Verdict, request,
};

use super::element::{Bytes, Data, Key, Set, read_address, read_number};
use super::expression::wire_family;
use super::skeleton::TABLE;

/// A key with the end of its interval, where it has one.
pub(super) type KeyRange = (Key, Option<Key>);

/// Key of a frontend: an IPv6 address, protocol and port at most.
pub(super) type FrontendKey = Bytes<24>;

/// Key of an endpoint or choice: two numbers at most.
pub(super) type BackendKey = Bytes<8>;

/// Data of a frontend: a value, or nothing.
pub(super) type FrontendData = Bytes<4>;

/// The table as the kernel has it.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) table: Option<wire::Table>,
    pub(super) chains: HashMap<String, Chain>,
    pub(super) rules: HashMap<String, Vec<Rule>>,
    pub(super) sets: HashMap<String, wire::Set>,
    /// Elements that carry a comment: data and hash of the comment.
    pub(super) frontends: HashMap<(Set, FrontendKey), (FrontendData, u64)>,
    /// Elements of other sets.
    pub(super) members: HashSet<(Set, Key)>,
    /// Elements of [`Set::SourceRanges`].
    pub(super) ranges: HashSet<KeyRange>,
    /// Endpoints and choices, sorted.
    pub(super) backends: Vec<(Set, BackendKey, Data)>,
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
pub(super) fn table(socket: &mut Socket, family: Family) -> Result<Option<wire::Table>, SocketError> {
    let mut found = None;
    socket.dump(&mut request::tables(wire_family(family)), |frame| {
        match Event::decode(frame)? {
            Event::NewTable(table) if table.name == TABLE && table.family == wire_family(family) => {
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
pub(super) fn read(socket: &mut Socket, family: Family) -> Result<View, SocketError> {
    let mut view = View { table: table(socket, family)?, ..View::default() };
    if view.table.is_none() {
        return Ok(view);
    }
    view.read_chains(socket, family)?;
    view.read_sets(socket, family)?;
    for set in Set::ALL.into_iter().filter(|&set| set != Set::Affinity) {
        if view.sets.contains_key(set.name()) {
            view.read_elements(socket, family, set)?;
        }
    }
    view.backends.sort_unstable();
    Ok(view)
}

impl View {
    /// The data of an endpoint or choice.
    pub(super) fn backend(&self, set: Set, key: &Key) -> Option<&Data> {
        self.backends.get(self.backend_place(set, key)?).map(|(_, _, data)| data)
    }

    /// Where in the sorted list a backend is.
    pub(super) fn backend_place(&self, set: Set, key: &Key) -> Option<usize> {
        let key = key.resized()?;
        self.backends.binary_search_by(|(s, k, _)| (*s, k).cmp(&(set, &key))).ok()
    }

    /// The endpoints of an id, in the order of their indexes from `first` on.
    pub(super) fn endpoints(&self, family: Family, id: u32, first: u32) -> Vec<SocketAddr> {
        (first..).map_while(|index| self.endpoint(family, Set::Endpoints, choice_key(id, index))).collect()
    }

    /// The slots of an id, in the order of their indexes from `first` on.
    pub(super) fn choices(&self, id: u32, first: u32) -> Vec<u32> {
        (first..)
            .map_while(|index| {
                read_number(self.backend(Set::AffinityChoices, &choice_key(id, index))?.as_slice())
            })
            .collect()
    }

    /// The endpoint behind a key.
    pub(super) fn endpoint(&self, family: Family, set: Set, key: Key) -> Option<SocketAddr> {
        read_socket(family, self.backend(set, &key)?.as_slice())
    }

    fn read_chains(&mut self, socket: &mut Socket, family: Family) -> Result<(), SocketError> {
        socket.dump(&mut request::chains(wire_family(family)), |frame| {
            match Event::decode(frame)? {
                Event::NewChain(chain) if chain.table == TABLE => {
                    self.chains.insert(chain.name.clone(), chain);
                }
                _ => {}
            }
            Ok(())
        })?;
        socket.dump(&mut request::rules(wire_family(family), TABLE, None), |frame| {
            match Event::decode(frame)? {
                Event::NewRule(rule) if rule.table == TABLE => {
                    self.rules.entry(rule.chain.clone()).or_default().push(rule);
                }
                _ => {}
            }
            Ok(())
        })
    }

    fn read_sets(&mut self, socket: &mut Socket, family: Family) -> Result<(), SocketError> {
        socket.dump(&mut request::sets(wire_family(family), TABLE), |frame| {
            match Event::decode(frame)? {
                Event::NewSet(set) if set.table == TABLE => {
                    self.sets.insert(set.name.clone(), set);
                }
                _ => {}
            }
            Ok(())
        })
    }

    /// A list taken while the kernel still moves the elements to a table of another size lacks some and has
    /// others twice; kernels that say how many there are let us notice.
    fn read_elements(&mut self, socket: &mut Socket, family: Family, set: Set) -> Result<(), SocketError> {
        let before = self.in_tables();
        let first_backend = self.backends.len();
        socket.dump(&mut request::elements(wire_family(family), TABLE, set.name()), |frame| {
            if let Event::NewElements(list) = Event::decode(frame)? {
                for element in list.elements() {
                    self.take(set, &element?);
                }
            }
            Ok(())
        })?;
        let new = self.backends.get_mut(first_backend..).unwrap_or_default();
        new.sort_unstable();
        let backends = new.chunk_by(|a, b| a.1 == b.1).count();
        let count = backends + self.in_tables().saturating_sub(before);
        let expected = self.sets.get(set.name()).and_then(|set| set.element_count);
        let interval = set == Set::SourceRanges;
        if !interval && expected.is_some_and(|expected| expected as usize != count) {
            return Err(SocketError::Interrupted);
        }
        Ok(())
    }

    /// How many different elements there are besides backends.
    fn in_tables(&self) -> usize {
        let tables = self.frontends.len() + self.members.len() + self.ranges.len();
        tables + self.classes.len() + self.strange.len()
    }

    fn take(&mut self, set: Set, element: &ElementRef<'_>) {
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
            (
                Set::Endpoints | Set::AffinityChoices | Set::AffinityEndpoints | Set::AffinityLocalEndpoints,
                Some(DataRef::Value(data)),
            ) => match (key.resized(), Data::from_kernel(data)) {
                (Some(key), Some(data)) => self.backends.push((set, key, data)),
                _ => self.strange.push((set, range)),
            },
            (Set::Services | Set::NodePorts, Some(DataRef::Value(data))) => {
                self.take_frontend(set, key, FrontendData::from_kernel(data).unwrap_or_default(), element);
            }
            (_, None) if super::changeset::has_comment(set) => {
                self.take_frontend(set, key, FrontendData::EMPTY, element);
            }
            (Set::SourceRanges, None) => drop(self.ranges.insert(range)),
            (_, None) => drop(self.members.insert((set, key))),
            _ => self.strange.push((set, range)),
        }
    }

    fn take_frontend(&mut self, set: Set, key: Key, data: FrontendData, element: &ElementRef<'_>) {
        match key.resized() {
            Some(key) => drop(self.frontends.insert((set, key), (data, hash_of(element)))),
            None => self.strange.push((set, (key, None))),
        }
    }
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
