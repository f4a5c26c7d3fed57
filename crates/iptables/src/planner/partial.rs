//! The restore of a change: only the chains and rules that differ.

use std::collections::HashMap;
use std::fmt;

use super::super::fixed::{FILTER_DISPATCH, NAT_DISPATCH, SERVICES, filter_dispatch, nat_last};
use super::super::rule::{self, Chain, IptablesTable, Rule};
use super::{Planner, append_all};
use portolan_engine::table::Table as Wanted;

/// From this many removed rules on, the shared chains of a table are written as a whole: iptables looks for each rule
/// to be removed from the start of its chain.
const REMOVE_MAX: usize = 100;

/// The differences of all Service ports of a change.
#[derive(Debug, Default)]
pub(super) struct Partial {
    removed: Vec<Rule>,
    added: Vec<Rule>,
    written: Vec<Chain>,
    stale: Vec<String>,
}

impl Partial {
    /// Adds the differences of a Service port in shared chains.
    pub(super) fn dispatch(&mut self, old: &[Rule], new: &[Rule]) {
        let added = new.iter().filter(|rule| !old.contains(rule)).cloned();
        self.added.extend(added);
        self.removed.extend(old.iter().filter(|rule| !new.contains(rule)).cloned());
    }

    /// Adds the differences between the chains of a Service port.
    pub(super) fn chains(&mut self, old: Vec<Chain>, new: Vec<Chain>) {
        let mut old: HashMap<String, Vec<String>> =
            old.into_iter().map(|chain| (chain.name, chain.rules)).collect();
        for chain in new {
            if old.remove(&chain.name).as_ref() != Some(&chain.rules) {
                self.written.push(chain);
            }
        }
        let mut stale: Vec<String> = old.into_keys().collect();
        stale.sort_unstable();
        self.stale.extend(stale);
    }

    /// Returns the text of the restore. The changes of one table take effect at once.
    ///
    /// Refusals come before the nat table changes, and go after it. So each packet is refused or translated at every
    /// moment.
    pub(super) fn restore(&self, planner: &Planner, wanted: &Wanted) -> String {
        let mut text = String::new();
        let with_nat = self.touches_nat();
        // Writing to a String cannot fail.
        if with_nat {
            let _ = self.refusals(&mut text);
            let _ = self.nat(planner, wanted, &mut text);
        }
        let _ = self.filter(planner, wanted, with_nat, &mut text);
        text
    }

    /// Writes the rules to be added to the filter table.
    fn refusals(&self, out: &mut impl fmt::Write) -> fmt::Result {
        if !self.adds(IptablesTable::Filter) {
            return Ok(());
        }
        rule::begin(out, IptablesTable::Filter)?;
        self.add(IptablesTable::Filter, out)?;
        rule::commit(out)
    }

    /// Writes the changes of the filter table, without the additions if they are there already.
    fn filter(
        &self,
        planner: &Planner,
        wanted: &Wanted,
        has_additions: bool,
        out: &mut impl fmt::Write,
    ) -> fmt::Result {
        let adds = !has_additions && self.adds(IptablesTable::Filter);
        if !adds && !self.removes(IptablesTable::Filter) {
            return Ok(());
        }
        rule::begin(out, IptablesTable::Filter)?;
        if self.is_much(IptablesTable::Filter) {
            FILTER_DISPATCH.iter().try_for_each(|chain| rule::declare(out, chain))?;
            planner.append_dispatch(IptablesTable::Filter, wanted, out)?;
            append_all(out, filter_dispatch(planner.context()))?;
        } else {
            self.remove(IptablesTable::Filter, out)?;
            if adds {
                self.add(IptablesTable::Filter, out)?;
            }
        }
        rule::commit(out)
    }

    fn nat(&self, planner: &Planner, wanted: &Wanted, out: &mut impl fmt::Write) -> fmt::Result {
        rule::begin(out, IptablesTable::Nat)?;
        let written = self.written.iter().map(|chain| &chain.name);
        written.chain(&self.stale).try_for_each(|chain| rule::declare(out, chain))?;
        for chain in &self.written {
            chain.rules.iter().try_for_each(|text| rule::append(out, &chain.name, text))?;
        }
        if self.is_much(IptablesTable::Nat) {
            NAT_DISPATCH.iter().try_for_each(|chain| rule::declare(out, chain))?;
            planner.append_dispatch(IptablesTable::Nat, wanted, out)?;
            append_all(out, nat_last(planner.context()))?;
        } else {
            self.remove(IptablesTable::Nat, out)?;
            self.add(IptablesTable::Nat, out)?;
        }
        self.stale.iter().try_for_each(|chain| rule::remove_chain(out, chain))?;
        rule::commit(out)
    }

    fn remove(&self, table: IptablesTable, out: &mut impl fmt::Write) -> fmt::Result {
        let mut removed = self.removed.iter().filter(|rule| rule.table == table);
        removed.try_for_each(|rule| rule::remove(out, rule.chain, &rule.text))
    }

    fn add(&self, table: IptablesTable, out: &mut impl fmt::Write) -> fmt::Result {
        let mut added = self.added.iter().filter(|rule| rule.table == table);
        // Where a rule has to stay last, new rules go to the front. The order is free otherwise: no packet matches
        // the rules of two Services.
        added.try_for_each(|rule| match (table, rule.chain) {
            (IptablesTable::Nat, SERVICES) => rule::prepend(out, rule.chain, &rule.text),
            _ => rule::append(out, rule.chain, &rule.text),
        })
    }

    fn touches_nat(&self) -> bool {
        let of_services = !self.written.is_empty() || !self.stale.is_empty();
        of_services || self.adds(IptablesTable::Nat) || self.removes(IptablesTable::Nat)
    }

    fn adds(&self, table: IptablesTable) -> bool {
        self.added.iter().any(|rule| rule.table == table)
    }

    fn removes(&self, table: IptablesTable) -> bool {
        self.removed.iter().any(|rule| rule.table == table)
    }

    fn is_much(&self, table: IptablesTable) -> bool {
        self.removed.iter().filter(|rule| rule.table == table).count() >= REMOVE_MAX
    }
}
