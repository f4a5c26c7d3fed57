//! A table in memory: takes the messages of a listing or of a transaction, and is read like the kernel's. For tests and fuzz
//! targets.

use std::collections::{BTreeMap, HashMap};

use portolan_wire::Batch;
#[cfg(feature = "fuzzing")]
use portolan_wire::Frames;
use portolan_wire::nftables::{
    Chain, Data, DataRef, Element, ElementRef, NftTable, NftablesEvent, Rule, Set as WireSet, Verdict,
};

use super::chain::FamilyTable;
use super::element::Set;
use super::readback::View;
#[cfg(feature = "fuzzing")]
use super::skeleton;

/// The place of an element: set, key and end of the interval.
pub(super) type ElementPlace = (Set, Vec<u8>, Option<Vec<u8>>);

/// A table of the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) table: Option<NftTable>,
    pub(super) chains: HashMap<String, Chain>,
    pub(super) rules: HashMap<String, Vec<Rule>>,
    pub(super) sets: HashMap<String, WireSet>,
    pub(super) elements: BTreeMap<ElementPlace, Element>,
}

impl Memory {
    /// Takes what the messages list of a table. What is listed twice is there once, but for rules. What the kernel cannot list
    /// is left out: rules without their chain, elements without their set or with keys of another length, and all of a table
    /// that is not listed.
    #[cfg(feature = "fuzzing")]
    pub(super) fn listed(place: FamilyTable, bytes: &[u8]) -> Self {
        let mut memory = Self::default();
        for frame in Frames::new(bytes).map_while(Result::ok) {
            match NftablesEvent::decode(&frame) {
                Ok(NftablesEvent::NewTable(table))
                    if table.name == place.table && table.family == place.wire() =>
                {
                    memory.table = Some(table);
                }
                Ok(NftablesEvent::NewChain(chain)) if chain.table == place.table => {
                    memory.chains.insert(chain.name.clone(), chain);
                }
                Ok(NftablesEvent::NewRule(rule)) if rule.table == place.table => {
                    memory.rules.entry(rule.chain.clone()).or_default().push(rule);
                }
                Ok(NftablesEvent::NewSet(set)) if set.table == place.table => {
                    memory.sets.insert(set.name.clone(), set);
                }
                Ok(NftablesEvent::NewElements(list)) if list.table == place.table => {
                    let elements = list.elements().flatten().map(|element| element.to_owned());
                    memory.elements.extend(elements.filter_map(|it| Some((place_of(list.set, &it)?, it))));
                }
                _ => {}
            }
        }
        memory.rules.retain(|chain, _| memory.chains.contains_key(chain));
        memory.elements.retain(|(set, key, key_end), _| {
            let length = skeleton::set(place, *set).key_length as usize;
            let fits = |key: &Vec<u8>| key.len() == length;
            memory.sets.contains_key(set.name()) && fits(key) && key_end.as_ref().is_none_or(fits)
        });
        if memory.table.is_some() { memory } else { Self::default() }
    }

    /// Applies a transaction as the kernel would. Returns the reason if the kernel would refuse it.
    pub(super) fn apply(&mut self, batch: &Batch) -> Result<(), &'static str> {
        for sequence in batch.first_sequence()..batch.next_sequence() {
            let Some(frame) = batch.frame(sequence) else { continue };
            self.take(NftablesEvent::decode(&frame).map_err(|_| "a message cannot be read")?)?;
        }
        Ok(())
    }

    fn take(&mut self, event: NftablesEvent<'_>) -> Result<(), &'static str> {
        let check = |is_right: bool, reason| if is_right { Ok(()) } else { Err(reason) };
        match event {
            NftablesEvent::NewTable(table) => self.table = Some(table),
            NftablesEvent::DeleteTable(_) => *self = Self::default(),
            NftablesEvent::NewSet(set) => drop(self.sets.insert(set.name.clone(), set)),
            NftablesEvent::NewChain(chain) => drop(self.chains.insert(chain.name.clone(), chain)),
            NftablesEvent::DeleteChain(name) => {
                check(self.rules.remove(&name.chain).unwrap_or_default().is_empty(), "the chain has rules")?;
                check(self.chains.remove(&name.chain).is_some(), "there is no such chain to delete")?;
            }
            NftablesEvent::NewRule(rule) => {
                check(self.chains.contains_key(&rule.chain), "there is no such chain for a rule")?;
                self.rules.entry(rule.chain.clone()).or_default().push(rule);
            }
            NftablesEvent::DeleteRule(name) => drop(self.rules.remove(&name.chain)),
            NftablesEvent::NewElements(list) => {
                for element in list.elements() {
                    let element = element.map_err(|_| "an element cannot be read")?.to_owned();
                    let place = place_of(list.set, &element).ok_or("a set of another table")?;
                    check(self.elements.insert(place, element).is_none(), "the element exists")?;
                }
            }
            NftablesEvent::DeleteElements(list) => {
                for element in list.elements() {
                    let element = element.map_err(|_| "an element cannot be read")?.to_owned();
                    let place = place_of(list.set, &element).ok_or("a set of another table")?;
                    check(self.elements.remove(&place).is_some(), "there is no such element to delete")?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the table, as the data plane does, into an empty view.
    pub(super) fn view(&self, place: FamilyTable, empty: View) -> View {
        let mut view = View {
            table: self.table.clone(),
            chains: self.chains.clone(),
            rules: self.rules.clone(),
            sets: self.sets.clone(),
            ..empty
        };
        for set in Set::ALL {
            let elements: Vec<ElementRef<'_>> =
                self.elements.iter().filter(|((of, ..), _)| *of == set).map(|(_, e)| reference(e)).collect();
            view.add_elements(place, set, &elements);
        }
        view
    }
}

fn place_of(set: &str, element: &Element) -> Option<ElementPlace> {
    Some((Set::from_name(set)?, element.key.clone(), element.key_end.clone()))
}

fn reference(element: &Element) -> ElementRef<'_> {
    let data = element.data.as_ref().map(|data| match data {
        Data::Value(value) => DataRef::Value(value),
        Data::Verdict(Verdict::Goto(chain)) => DataRef::Verdict(Verdict::Goto(chain)),
        Data::Verdict(_) => DataRef::Verdict(Verdict::Drop),
    });
    ElementRef {
        key: &element.key,
        key_end: element.key_end.as_deref(),
        data,
        userdata: &element.userdata,
        counter: element.counter,
        ..ElementRef::default()
    }
}
