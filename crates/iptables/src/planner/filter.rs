//! The filter table in a full load. Rules that refuse or drop packets come before the nat table is written, and go after
//! it.
//!
//! Each table takes effect by itself. A packet of a Service that had no endpoint is refused until the nat table translates
//! it. A packet of a Service that loses its last endpoint is refused once the nat table no longer translates it. A packet
//! that met neither would leave this node as it is, and connection tracking would keep it so for the whole connection.

use std::collections::BTreeMap;
use std::fmt;

use super::super::fixed::{self, FILTER_CHAINS, FILTER_DISPATCH, FIREWALL, PROXY_FIREWALL};
use super::super::rule::{self, IptablesTable, Rule};
use super::super::saved::{Content, saved};
use super::super::{Present, Rules};
use super::{Planner, declare_canary, jumps, needs};
use portolan_engine::table::Table as Wanted;

/// The filter table of a full load.
pub(super) struct FilterLoad<'a> {
    planner: &'a Planner,
    wanted: &'a Wanted,
    present: &'a Present,
    /// The fixed rules before those of Services, and after them.
    fixed: (Vec<Rule>, Vec<Rule>),
    steps: BTreeMap<&'static str, Steps>,
}

/// What is written of a chain before the nat table, and whether the whole chain is written after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Steps {
    before: Before,
    after: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// The rules that the chain lacks, after those that it has.
    Missing,
    /// The whole chain.
    Whole,
}

/// The content of a chain.
struct Contents {
    wanted: Content,
    /// The present content, with the rules that it lacks.
    united: Content,
    lacks: bool,
}

impl<'a> FilterLoad<'a> {
    /// Compares the table with `present`. Adds the numbers of its rules to `counts`.
    pub(super) fn new(
        planner: &'a Planner,
        wanted: &'a Wanted,
        present: &'a Present,
        counts: &mut Rules,
    ) -> Self {
        let context = planner.context();
        let fixed = (fixed::filter_first(context), fixed::filter_last(context));
        // If this mode has no rules in the chain, its rules may be kubelet's and stay.
        let has_firewall = !fixed.0.is_empty() || present.lacks(IptablesTable::Filter, FIREWALL);
        let mut contents: BTreeMap<&str, Contents> = all_chains()
            .filter(|chain| has_firewall || *chain != FIREWALL)
            .map(|chain| {
                let united = present.content(IptablesTable::Filter, chain).unwrap_or_default();
                (chain, Contents { wanted: Content::default(), united, lacks: false })
            })
            .collect();
        let mut load = Self { planner, wanted, present, fixed, steps: BTreeMap::new() };
        for rule in load.rules() {
            counts.add(rule.table, 1);
            let Some(of_chain) = contents.get_mut(rule.chain) else { continue };
            let text = saved(planner.settings.family, &rule.text);
            of_chain.wanted.add(&text);
            if !present.has_filter_rule(rule.chain, &text) {
                of_chain.united.add(&text);
                of_chain.lacks = true;
            }
        }
        load.steps =
            contents.iter().map(|(chain, of_chain)| (*chain, of_chain.steps(present, chain))).collect();
        load
    }

    /// Writes what the table needs before the nat table.
    pub(super) fn before(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let is_there = self.steps.values().all(|steps| steps.before == Before::Nothing);
        if is_there && !needs(IptablesTable::Filter, self.present) {
            return Ok(());
        }
        rule::begin(out, IptablesTable::Filter)?;
        let mut whole = all_chains().filter(|chain| self.steps(chain).before == Before::Whole);
        whole.try_for_each(|chain| rule::declare(out, chain))?;
        declare_canary(IptablesTable::Filter, self.present, out)?;
        self.append(out, |rule| match self.steps(rule.chain).before {
            Before::Nothing => false,
            Before::Missing => {
                let text = saved(self.planner.settings.family, &rule.text);
                !self.present.has_filter_rule(rule.chain, &text)
            }
            Before::Whole => true,
        })?;
        jumps(IptablesTable::Filter, self.present, out)?;
        rule::commit(out)
    }

    /// Writes the chains that have rules to be removed after the nat table. Removes the jumps of the IPVS mode in the same
    /// transaction: its connections would be dropped by the rules of this mode, which only new connections may meet.
    pub(super) fn after(&self, out: &mut impl fmt::Write) -> fmt::Result {
        if !self.steps.values().any(|steps| steps.after) && self.present.ipvs_jumps().next().is_none() {
            return Ok(());
        }
        rule::begin(out, IptablesTable::Filter)?;
        self.present.ipvs_jumps().try_for_each(|jump| rule::remove(out, jump.from, jump.rule))?;
        let mut whole = all_chains().filter(|chain| self.steps(chain).after);
        whole.try_for_each(|chain| rule::declare(out, chain))?;
        self.append(out, |rule| self.steps(rule.chain).after)?;
        rule::commit(out)
    }

    fn append(&self, out: &mut impl fmt::Write, is_due: impl Fn(&Rule) -> bool) -> fmt::Result {
        let mut due = self.rules().filter(is_due);
        due.try_for_each(|rule| rule::append(out, rule.chain, rule.text))
    }

    /// Makes the rules of the table.
    fn rules(&self) -> impl Iterator<Item = Rule> {
        let (first, last) = &self.fixed;
        let of_services = self.planner.all_dispatch(IptablesTable::Filter, self.wanted);
        first.iter().cloned().chain(of_services).chain(last.iter().cloned())
    }

    fn steps(&self, chain: &str) -> Steps {
        self.steps.get(chain).copied().unwrap_or(Steps { before: Before::Nothing, after: false })
    }
}

impl Contents {
    fn steps(&self, present: &Present, chain: &'static str) -> Steps {
        let steps = |before, after| Steps { before, after };
        let Some(there) = present.content(IptablesTable::Filter, chain) else {
            return steps(Before::Whole, false);
        };
        if present.is_unprinted(IptablesTable::Filter) {
            // Its rules may be those of the IPVS mode: see below.
            let is_late = chain == PROXY_FIREWALL;
            return steps(if is_late { Before::Nothing } else { Before::Whole }, is_late);
        }
        let is_shared = FILTER_DISPATCH.contains(&chain);
        let is_there = if is_shared { there.has_same(&self.wanted) } else { there == self.wanted };
        if is_there {
            return steps(Before::Nothing, false);
        }
        // Packets still pass rules of the IPVS mode with the Service's address. The rules of this mode would drop them.
        let is_of_ipvs = present.matches_sets(chain) || present.ipvs_jumps().next().is_some();
        if chain == PROXY_FIREWALL && is_of_ipvs {
            return steps(Before::Nothing, true);
        }
        // If iptables prints a rule in another way, it seems to be missing. A load that fails each time would add it each
        // time, so a chain that has a rule twice gets no more.
        if !is_shared || present.repeats(chain) {
            return steps(Before::Whole, false);
        }
        let before = if self.lacks { Before::Missing } else { Before::Nothing };
        steps(before, !self.united.has_same(&self.wanted))
    }
}

/// Returns the chains of the table in the order in which they are written.
fn all_chains() -> impl Iterator<Item = &'static str> {
    FILTER_CHAINS.into_iter().chain([FIREWALL])
}
