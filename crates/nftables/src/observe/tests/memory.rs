//! A table in memory: applies the messages of a transaction, and is read like the kernel's.

use std::collections::{BTreeMap, HashMap};

use portolan_model::{Change, Settings};
use portolan_wire::nftables::{
    Chain, Data, DataRef, Element, ElementRef, NftTable as WireTable, NftablesEvent, Rule, Transaction,
    Verdict,
};

use super::super::super::chain::FamilyTable;
use super::super::super::changeset::Changeset;
use super::super::super::element::Set;
use super::super::super::encode;
use super::super::super::layout::{Kind, Target};
use super::super::super::planner::Planner;
use super::super::super::readback::View;
use super::super::super::resync::Difference;
use super::super::super::skeleton;
use super::super::observed;
use portolan_engine::table::Table;
use portolan_model::observed::Observed;
use portolan_model::table::Entry;

/// The place of an element: set, key and end of the interval.
pub(super) type ElementPlace = (Set, Vec<u8>, Option<Vec<u8>>);

/// A table of the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) table: Option<WireTable>,
    pub(super) chains: HashMap<String, Chain>,
    pub(super) rules: HashMap<String, Vec<Rule>>,
    pub(super) elements: BTreeMap<ElementPlace, Element>,
}

impl Memory {
    /// Applies a transaction as the kernel would. Panics if the kernel would refuse it.
    fn apply(&mut self, transaction: Transaction) {
        let batch = transaction.finish().unwrap();
        for sequence in batch.first_sequence()..batch.next_sequence() {
            let Some(frame) = batch.frame(sequence) else { continue };
            match NftablesEvent::decode(&frame).unwrap() {
                NftablesEvent::NewTable(table) => self.table = Some(table),
                NftablesEvent::DeleteTable(_) => *self = Self::default(),
                NftablesEvent::NewChain(chain) => drop(self.chains.insert(chain.name.clone(), chain)),
                NftablesEvent::DeleteChain(name) => {
                    assert!(self.rules.remove(&name.chain).unwrap_or_default().is_empty());
                    assert!(self.chains.remove(&name.chain).is_some());
                }
                NftablesEvent::NewRule(rule) => {
                    assert!(self.chains.contains_key(&rule.chain));
                    self.rules.entry(rule.chain.clone()).or_default().push(rule);
                }
                NftablesEvent::DeleteRule(name) => drop(self.rules.remove(&name.chain)),
                NftablesEvent::NewElements(list) => {
                    for element in list.elements() {
                        let element = element.unwrap().to_owned();
                        assert!(self.elements.insert(place(list.set, &element), element).is_none());
                    }
                }
                NftablesEvent::DeleteElements(list) => {
                    for element in list.elements() {
                        let element = element.unwrap().to_owned();
                        assert!(self.elements.remove(&place(list.set, &element)).is_some());
                    }
                }
                _ => {}
            }
        }
    }

    /// Reads the table, as the data plane does.
    pub(super) fn view(&self, place: FamilyTable) -> View {
        let mut view = View::with_comments();
        view.table.clone_from(&self.table);
        view.chains.clone_from(&self.chains);
        view.rules.clone_from(&self.rules);
        for set in Set::ALL {
            let elements: Vec<ElementRef<'_>> =
                self.elements.iter().filter(|((of, ..), _)| *of == set).map(|(_, e)| reference(e)).collect();
            view.add_elements(place, set, &elements);
        }
        view
    }

    /// Returns what the table means.
    pub(super) fn observed(&self, kind: &Kind, place: FamilyTable) -> Observed {
        observed(self.view(place), kind, place)
    }
}

fn place(set: &str, element: &Element) -> ElementPlace {
    (Set::from_name(set).unwrap(), element.key.clone(), element.key_end.clone())
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

/// A planner with its wanted table, and the kernel's table that it has written.
pub(super) struct Written {
    pub(super) planner: Planner,
    pub(super) table: Table,
    pub(super) memory: Memory,
}

impl Written {
    /// Writes a table from scratch.
    pub(super) fn new(settings: Settings, target: Target, state: &[Change]) -> Self {
        let mut planner = Planner::new(settings.clone());
        planner.target = target;
        let mut table = Table::new(settings);
        table.take(state.iter().cloned(), []);
        let mut this = Self { planner, table, memory: Memory::default() };
        this.compare();
        this
    }

    /// Compares and writes the difference, as the data plane does. Returns true if there was any.
    pub(super) fn compare(&mut self) -> bool {
        let place = self.place();
        let mut view = self.memory.view(place);
        // A table that exists, so that the elements are part of the difference.
        view.table.get_or_insert_with(|| skeleton::table(place));
        view.sets = Set::ALL.map(|set| (set.name().to_owned(), skeleton::set(place, set))).into();
        if self.memory.table.is_none() {
            view.sets.clear();
        }
        let difference = Difference::between(&mut self.planner, &self.table, &mut view);
        assert!(difference.plan.refused.is_empty());
        let mut transaction = Transaction::begin(1, None);
        difference.encode(&mut transaction, &self.planner, true);
        self.commit(transaction, &difference.elements);
        !difference.is_empty()
    }

    /// Plans changes and writes the plan, as the data plane does.
    pub(super) fn apply(&mut self, changes: &[Change]) {
        let changes = self.table.take(changes.iter().cloned(), []);
        let plan = self.planner.plan(&changes.forwardings);
        assert!(plan.refused.is_empty());
        let mut transaction = Transaction::begin(1, None);
        if plan.creates_source_range_check {
            for body in skeleton::source_range_chains(&self.planner.settings) {
                encode::chain(&mut transaction, self.place(), &body);
            }
        }
        for &(number, class) in &plan.classes {
            for balance in class.balances() {
                encode::balance(&mut transaction, self.planner.layout(), balance);
            }
            encode::class(&mut transaction, self.planner.layout(), number, class);
        }
        self.commit(transaction, &plan.elements);
    }

    fn commit(&mut self, mut transaction: Transaction, elements: &Changeset) {
        let counters = self.planner.settings.counters;
        encode::elements(&mut transaction, self.place(), elements, counters);
        self.memory.apply(transaction);
    }

    pub(super) fn place(&self) -> FamilyTable {
        self.planner.layout().place()
    }

    /// Returns the wanted table.
    pub(super) fn wanted(&self) -> Vec<Entry> {
        self.table.iter().map(|(name, forwarding)| (name.clone(), forwarding)).collect()
    }

    /// Returns what is read back.
    pub(super) fn observed(&self) -> Observed {
        self.memory.observed(self.planner.target.kind(), self.place())
    }

    /// Returns the differences that are read back, as texts.
    pub(super) fn differences(&self) -> Vec<String> {
        self.observed().difference(&self.wanted()).iter().map(ToString::to_string).collect()
    }
}
