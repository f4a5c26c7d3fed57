//! A planner with its wanted table, and what it writes.

use portolan_engine::table::Table;
use portolan_model::observed::Observed;
use portolan_model::table::Entry;
use portolan_model::{Change, Settings};
use portolan_wire::nftables::Transaction;

use super::super::super::chain::FamilyTable;
use super::super::super::changeset::Changeset;
use super::super::super::element::Set;
use super::super::super::encode;
use super::super::super::layout::{Kind, Target};
use super::super::super::memory::Memory;
use super::super::super::planner::Planner;
use super::super::super::readback::View;
use super::super::super::resync::Difference;
use super::super::super::skeleton;
use super::super::observed;

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
        let mut view = self.memory.view(place, View::with_comments());
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
        self.commit(Transaction::begin(1, None), &difference.later);
        !difference.is_empty()
    }

    /// Plans changes and writes the plan, as the data plane does.
    pub(super) fn apply(&mut self, changes: &[Change]) {
        let changes = self.table.take(changes.iter().cloned(), []);
        let plan = self.planner.plan(&changes.forwardings);
        assert!(plan.refused.is_empty());
        let mut transaction = Transaction::begin(1, None);
        if plan.creates_source_range_check {
            for body in skeleton::source_range_chains(self.planner.layout()) {
                encode::chain(&mut transaction, self.place(), &body);
            }
        }
        for &(number, class) in &plan.classes {
            for balance in class.balances() {
                encode::balance(&mut transaction, self.planner.layout(), balance);
            }
            encode::class(&mut transaction, self.planner.layout(), number, class);
        }
        self.commit(transaction, &plan.earlier);
        self.commit(Transaction::begin(1, None), &plan.elements);
        self.commit(Transaction::begin(1, None), &plan.later);
    }

    fn commit(&mut self, mut transaction: Transaction, elements: &Changeset) {
        let counters = self.planner.settings.counters;
        encode::elements(&mut transaction, self.place(), elements, counters);
        self.memory.apply(&transaction.finish().unwrap()).unwrap();
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
        observed_of(&self.memory, self.planner.target.kind(), self.place())
    }

    /// Returns the differences that are read back, as texts.
    pub(super) fn differences(&self) -> Vec<String> {
        self.observed().difference(&self.wanted()).iter().map(ToString::to_string).collect()
    }
}

/// Returns what a table means.
pub(super) fn observed_of(memory: &Memory, kind: &Kind, place: FamilyTable) -> Observed {
    observed(memory.view(place, View::with_comments()), kind, place)
}
