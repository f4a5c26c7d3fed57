//! Makes restores from the forwarding table: a full load, or the restore that a change needs.
//!
//! The planner stores neither the forwarding table nor the rules: it makes the former rules again from the former states
//! in the changes. A restore depends on table, changes and settings only, and its text has a stable order.

mod filter;
mod lack;
mod partial;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use portolan_model::{Backend, Change, Forwarding, ServicePortName, Settings};

use super::fixed::{self, CANARY, FILTER_CHAINS, NAT_DISPATCH, NAT_FIXED, SERVICES};
use super::rule::{self, Chain, IptablesTable, Rule};
use super::saved::{Content, saved};
use super::service::{Context, Service};
use super::{IptablesOptions, Present, Rules, chains, dispatch};
use filter::FilterLoad;
use lack::Lack;
use partial::Partial;
use portolan_engine::dataplane::Refusal;
use portolan_engine::table::{Changes, Table as Wanted};

/// From more endpoints than this on, rules of single endpoints have no comments (as in kube-proxy).
const LARGE: usize = 1000;
/// The number of transactions in which a full load writes the chains of Service ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pieces {
    /// One.
    One,
    /// One for this many Service ports. The rules that lead to the chains come last.
    Of(NonZeroUsize),
}

/// Plans the rules of one family.
#[derive(Debug)]
pub struct Planner {
    settings: Settings,
    options: IptablesOptions,
    /// Service ports of the table that have no rules, or not all.
    refused: BTreeMap<Arc<ServicePortName>, Lack>,
    endpoint_comments: bool,
    rules: Rules,
}

/// What the rules of a Service port depend on, besides the settings.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) forwarding: Arc<Forwarding>,
    pub(super) health_check: Option<u16>,
}

/// Service ports that changes touch, with their forwardings before; `None` for new ones.
type Touched<'a> = BTreeMap<&'a Arc<ServicePortName>, Option<Arc<Forwarding>>>;

impl Planner {
    /// Creates a planner.
    pub const fn new(settings: Settings, options: IptablesOptions) -> Self {
        Self {
            settings,
            options,
            refused: BTreeMap::new(),
            endpoint_comments: true,
            rules: Rules { filter: 0, nat: 0 },
        }
    }

    /// Sets the settings and options. A full load has to follow.
    pub fn configure(&mut self, settings: Settings, options: IptablesOptions) {
        (self.settings, self.options) = (settings, options);
    }

    /// Returns the settings that rules are made for.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the options that rules are made for.
    pub const fn options(&self) -> &IptablesOptions {
        &self.options
    }

    /// Returns the Service ports that have no rules, or not all, with the reason.
    pub fn refused(&self) -> impl Iterator<Item = Refusal> {
        self.refused.iter().map(|(name, lack)| Refusal::whole(name.clone(), lack.reason()))
    }

    /// Returns the numbers of rules in the kernel once the last plan is written.
    pub const fn rules(&self) -> Rules {
        self.rules
    }

    /// Notes changes that the next full load writes.
    pub fn follow(&mut self, changes: &Changes) {
        for Change { name, new, .. } in &changes.forwardings {
            match new.as_ref().and_then(|new| self.lack(name, new)) {
                Some(lack) => drop(self.refused.insert(name.clone(), lack)),
                None => drop(self.refused.remove(name)),
            }
        }
    }

    /// Returns the restore that brings a kernel from the table before `changes` to `wanted`, the one after them; empty
    /// if no rule changes.
    pub fn plan(&mut self, wanted: &Wanted, changes: &Changes) -> String {
        self.follow(changes);
        let (mut partial, mut counts) = (Partial::default(), self.rules);
        let former_ports: BTreeMap<_, _> = changes
            .health_checks
            .iter()
            .map(|check| ((&check.namespace, &check.service), check.old))
            .collect();
        for (name, old) in touched(wanted, changes) {
            let port = wanted.health_check_port(&name.namespace, &name.service);
            let former = former_ports.get(&(&name.namespace, &name.service)).copied().unwrap_or(port);
            let entry = |forwarding: Option<Arc<Forwarding>>, health_check| {
                forwarding.and_then(|forwarding| self.entry(name, forwarding, health_check))
            };
            let (old, new) = (entry(old, former), entry(wanted.get(name), port));
            if old == new {
                continue;
            }
            let rules =
                |entry: Option<&Entry>| entry.map(|entry| self.dispatch(name, entry)).unwrap_or_default();
            let (old_rules, new_rules) = (rules(old.as_ref()), rules(new.as_ref()));
            let chains =
                |entry: Option<&Entry>| entry.map(|entry| self.chains(name, entry)).unwrap_or_default();
            let (old_chains, new_chains) = (chains(old.as_ref()), chains(new.as_ref()));
            counts.subtract(IptablesTable::Nat, total(&old_chains));
            counts.add(IptablesTable::Nat, total(&new_chains));
            for table in [IptablesTable::Filter, IptablesTable::Nat] {
                let of = |rules: &[Rule]| rules.iter().filter(|rule| rule.table == table).count();
                counts.subtract(table, of(&old_rules));
                counts.add(table, of(&new_rules));
            }
            partial.dispatch(&old_rules, &new_rules);
            partial.chains(old_chains, new_chains);
        }
        self.rules = counts;
        partial.restore(self, wanted)
    }

    /// Writes the restore of everything that `present`, the state of the kernel, lacks or has otherwise: into empty
    /// tables, or over the rules of other Services. Decides whether rules of single endpoints have comments.
    pub fn full(
        &mut self,
        wanted: &Wanted,
        present: &Present,
        pieces: Pieces,
        out: &mut impl fmt::Write,
    ) -> fmt::Result {
        let refused = wanted.iter().filter_map(|(name, forwarding)| {
            self.lack(name, &forwarding).map(|lack| (Arc::clone(name), lack))
        });
        self.refused = refused.collect();
        let endpoints: usize = self.entries(wanted).map(|(_, entry)| reachable(&entry.forwarding)).sum();
        self.endpoint_comments = endpoints <= LARGE;
        if present.lacks(IptablesTable::Mangle, CANARY) {
            rule::begin(out, IptablesTable::Mangle)?;
            rule::declare(out, CANARY)?;
            rule::commit(out)?;
        }
        let mut counts = Rules::default();
        let filter = FilterLoad::new(self, wanted, present, &mut counts);
        filter.before(out)?;
        self.full_nat((wanted, present), pieces, &mut counts, out)?;
        filter.after(out)?;
        self.rules = counts;
        Ok(())
    }

    fn full_nat(
        &self,
        (wanted, present): (&Wanted, &Present),
        pieces: Pieces,
        counts: &mut Rules,
        out: &mut impl fmt::Write,
    ) -> fmt::Result {
        let mut transaction = Transactions { out, open: false };
        let first = fixed::nat_first(self.context());
        counts.add(IptablesTable::Nat, first.len());
        let are_there = self.is_there(present, NAT_FIXED.into_iter(), first.iter().cloned());
        // Another mode may have written the rules that masquerade. Until its rules that lead to Services are replaced, its
        // packets need them. So both are replaced in the last transaction.
        let fixed_last =
            !are_there && pieces != Pieces::One && present.has_rules(IptablesTable::Nat, &NAT_FIXED);
        if fixed_last {
            let out = transaction.open()?;
            declare_missing(&NAT_FIXED, present, out)?;
            declare_canary(IptablesTable::Nat, present, out)?;
        } else if !are_there || present.lacks(IptablesTable::Nat, CANARY) {
            let out = transaction.open()?;
            NAT_FIXED.iter().try_for_each(|chain| rule::declare(out, chain))?;
            declare_canary(IptablesTable::Nat, present, out)?;
            append_all(out, first.clone())?;
        }
        let mut stale: BTreeSet<&String> = present.service_chains.keys().collect();
        let mut written: usize = 0;
        for (name, entry) in self.entries(wanted) {
            let mut chains = self.chains(name, &entry);
            counts.add(IptablesTable::Nat, total(&chains));
            chains.retain(|chain| {
                stale.remove(&chain.name);
                let rules = || chain.rules.iter().map(String::as_str);
                let there = present.service_chains.get(&chain.name);
                there.is_none_or(|there| *there != Content::of(self.settings.family, rules()))
            });
            if chains.is_empty() {
                continue;
            }
            let is_full = |limit: NonZeroUsize| written > 0 && written.is_multiple_of(limit.get());
            if matches!(pieces, Pieces::Of(limit) if is_full(limit)) {
                transaction.commit()?;
            }
            written = written.saturating_add(1);
            write_chains(transaction.open()?, &chains)?;
        }
        // The rules that lead to the chains of Services come after all of these are complete.
        if pieces != Pieces::One {
            transaction.commit()?;
        }
        let is_empty = |chain: &str| present.service_chains.get(chain) == Some(&Content::default());
        stale.retain(|chain| !present.is_held(IptablesTable::Nat, chain) || !is_empty(chain));
        let fixed = if fixed_last { first } else { Vec::new() };
        self.full_nat_dispatch((wanted, present), &stale, fixed, counts, &mut transaction)?;
        transaction.commit()
    }

    fn full_nat_dispatch<W: fmt::Write>(
        &self,
        (wanted, present): (&Wanted, &Present),
        stale: &BTreeSet<&String>,
        fixed: Vec<Rule>,
        counts: &mut Rules,
        transaction: &mut Transactions<'_, W>,
    ) -> fmt::Result {
        let last = fixed::nat_last(self.context());
        let rules = self.all_dispatch(IptablesTable::Nat, wanted).chain(last.iter().cloned());
        let rules = rules.inspect(|rule| counts.add(rule.table, 1));
        let is_there = self.is_there(present, NAT_DISPATCH.into_iter(), rules);
        if is_there && stale.is_empty() && fixed.is_empty() && !needs(IptablesTable::Nat, present) {
            return Ok(());
        }
        let out = transaction.open()?;
        if !fixed.is_empty() {
            NAT_FIXED.iter().try_for_each(|chain| rule::declare(out, chain))?;
            append_all(out, fixed)?;
        }
        NAT_DISPATCH.iter().try_for_each(|chain| rule::declare(out, chain))?;
        stale.iter().try_for_each(|chain| rule::declare(out, chain))?;
        self.append_dispatch(IptablesTable::Nat, wanted, out)?;
        append_all(out, last)?;
        jumps(IptablesTable::Nat, present, out)?;
        // A chain that rules of other programs lead to stays, without rules.
        let mut removable = stale.iter().filter(|chain| !present.is_held(IptablesTable::Nat, chain));
        removable.try_for_each(|chain| rule::remove_chain(out, chain))
    }

    /// Returns true if these chains of the nat table have these rules. The order of Services may differ.
    fn is_there(
        &self,
        present: &Present,
        mut chains: impl Iterator<Item = &'static str>,
        rules: impl Iterator<Item = Rule>,
    ) -> bool {
        let mut wanted: BTreeMap<&str, Content> = BTreeMap::new();
        for rule in rules {
            wanted.entry(rule.chain).or_default().add(&saved(self.settings.family, &rule.text));
        }
        chains.all(|chain| {
            let wanted = wanted.get(chain).copied().unwrap_or_default();
            // If no address accepts node ports, a rule of any Service may be the last.
            let last_matters = chain == SERVICES && !fixed::nat_last(self.context()).is_empty();
            present.content(IptablesTable::Nat, chain).is_some_and(|there| {
                match (NAT_FIXED.contains(&chain), last_matters) {
                    (true, _) => there == wanted,
                    (false, true) => there.is_like(&wanted),
                    (false, false) => there.has_same(&wanted),
                }
            })
        })
    }

    fn all_dispatch(&self, table: IptablesTable, wanted: &Wanted) -> impl Iterator<Item = Rule> {
        let rules = self.entries(wanted).flat_map(|(name, entry)| self.dispatch(name, &entry));
        rules.filter(move |rule| rule.table == table)
    }

    /// Returns the rules to look for in a check: for each chain that exists independently of Services, its fixed rules, or
    /// else one rule of a Service.
    pub(super) fn marks(&self, wanted: &Wanted) -> Vec<Rule> {
        let context = self.context();
        let filter = fixed::filter_first(context).into_iter().chain(fixed::filter_last(context));
        let nat = fixed::nat_first(context).into_iter().chain(fixed::nat_last(context));
        let mut marks: Vec<Rule> = filter.chain(nat).collect();
        let filter = FILTER_CHAINS.into_iter().map(|chain| (IptablesTable::Filter, chain));
        let nat = NAT_DISPATCH.into_iter().map(|chain| (IptablesTable::Nat, chain));
        let is_marked =
            |chain: &(IptablesTable, &str)| marks.iter().any(|mark| (mark.table, mark.chain) == *chain);
        let mut unmarked: Vec<_> = filter.chain(nat).filter(|chain| !is_marked(chain)).collect();
        for (name, entry) in self.entries(wanted) {
            if unmarked.is_empty() {
                break;
            }
            for rule in self.dispatch(name, &entry) {
                if let Some(place) = unmarked.iter().position(|chain| *chain == (rule.table, rule.chain)) {
                    unmarked.swap_remove(place);
                    marks.push(rule);
                }
            }
        }
        marks
    }

    /// Writes the rules of all Services in the shared chains of a table.
    fn append_dispatch(
        &self,
        table: IptablesTable,
        wanted: &Wanted,
        out: &mut impl fmt::Write,
    ) -> fmt::Result {
        self.all_dispatch(table, wanted).try_for_each(|rule| rule::append(out, rule.chain, rule.text))
    }

    const fn context(&self) -> Context<'_> {
        Context {
            settings: &self.settings,
            options: &self.options,
            endpoint_comments: self.endpoint_comments,
        }
    }

    /// Returns the Service ports that have rules.
    fn entries<'a>(&self, wanted: &'a Wanted) -> impl Iterator<Item = (&'a Arc<ServicePortName>, Entry)> {
        wanted.iter().filter_map(|(name, forwarding)| {
            let health_check = wanted.health_check_port(&name.namespace, &name.service);
            Some((name, self.entry(name, forwarding, health_check)?))
        })
    }

    /// Returns what the rules of a Service port depend on; `None` if it has none.
    fn entry(
        &self,
        name: &ServicePortName,
        forwarding: Arc<Forwarding>,
        health_check: Option<u16>,
    ) -> Option<Entry> {
        let forwarding = match self.lack(name, &forwarding) {
            None => forwarding,
            Some(Lack::Affinity) => Arc::new(Forwarding { affinity: None, ..(*forwarding).clone() }),
            Some(Lack::Name | Lack::Sctp) => return None,
        };
        Some(Entry { forwarding, health_check })
    }

    fn lack(&self, name: &ServicePortName, forwarding: &Forwarding) -> Option<Lack> {
        Lack::of(&self.options, name, forwarding)
    }

    pub(super) fn dispatch(&self, name: &ServicePortName, entry: &Entry) -> Vec<Rule> {
        dispatch::rules(&Service::new(self.context(), name, &entry.forwarding), entry.health_check)
    }

    pub(super) fn chains(&self, name: &ServicePortName, entry: &Entry) -> Vec<Chain> {
        chains::chains(&Service::new(self.context(), name, &entry.forwarding))
    }
}

/// Returns the changed Service ports, and those of Services whose health-check node port changed.
fn touched<'a>(wanted: &'a Wanted, changes: &'a Changes) -> Touched<'a> {
    let mut touched = Touched::new();
    for check in &changes.health_checks {
        let ports = wanted.of_service(&check.namespace, &check.service);
        touched.extend(ports.map(|(name, forwarding)| (name, Some(forwarding))));
    }
    touched.extend(changes.forwardings.iter().map(|change| (&change.name, change.old.clone())));
    touched
}

/// Returns the number of different endpoints.
pub(super) fn reachable(forwarding: &Forwarding) -> usize {
    let place = |backend: &Backend| (backend.address, backend.port);
    let elsewhere =
        |backend: &&Backend| forwarding.cluster.binary_search_by_key(&place(backend), place).is_err();
    forwarding.cluster.len() + forwarding.local.iter().filter(elsewhere).count()
}

/// Returns the number of rules.
fn total(chains: &[Chain]) -> usize {
    chains.iter().map(|chain| chain.rules.len()).sum()
}

fn append_all(out: &mut impl fmt::Write, rules: Vec<Rule>) -> fmt::Result {
    rules.into_iter().try_for_each(|rule| rule::append(out, rule.chain, rule.text))
}

fn write_chains(out: &mut impl fmt::Write, chains: &[Chain]) -> fmt::Result {
    chains.iter().try_for_each(|chain| rule::declare(out, &chain.name))?;
    for chain in chains {
        chain.rules.iter().try_for_each(|text| rule::append(out, &chain.name, text))?;
    }
    Ok(())
}

/// Writes transactions of the nat table. A transaction begins with its first line, so none is empty.
struct Transactions<'a, W> {
    out: &'a mut W,
    open: bool,
}

impl<W: fmt::Write> Transactions<'_, W> {
    fn open(&mut self) -> Result<&mut W, fmt::Error> {
        if !std::mem::replace(&mut self.open, true) {
            rule::begin(self.out, IptablesTable::Nat)?;
        }
        Ok(self.out)
    }

    fn commit(&mut self) -> fmt::Result {
        if std::mem::replace(&mut self.open, false) { rule::commit(self.out) } else { Ok(()) }
    }
}

/// Returns true if the canary or a jump is missing.
fn needs(table: IptablesTable, present: &Present) -> bool {
    present.lacks(table, CANARY) || present.missing_jumps().any(|jump| jump.table == table)
}

fn declare_missing(chains: &[&'static str], present: &Present, out: &mut impl fmt::Write) -> fmt::Result {
    let mut missing = chains.iter().filter(|chain| present.lacks(IptablesTable::Nat, chain));
    missing.try_for_each(|chain| rule::declare(out, chain))
}

fn declare_canary(table: IptablesTable, present: &Present, out: &mut impl fmt::Write) -> fmt::Result {
    if present.lacks(table, CANARY) { rule::declare(out, CANARY) } else { Ok(()) }
}

fn jumps(table: IptablesTable, present: &Present, out: &mut impl fmt::Write) -> fmt::Result {
    let mut missing = present.missing_jumps().filter(|jump| jump.table == table);
    missing.try_for_each(|jump| rule::prepend(out, jump.from, jump.rule))
}

#[cfg(test)]
pub(crate) mod meaning;
#[cfg(test)]
mod order;
#[cfg(test)]
pub(crate) mod tests;
