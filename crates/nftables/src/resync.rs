//! Compares the desired table with the kernel's. Adopts the ids, indexes and slots that the kernel has, and plans
//! only the difference.

use std::collections::{BTreeSet, HashSet};
use std::convert::Infallible;
use std::sync::Arc;

use portolan_engine::dataplane::Refusal;
use portolan_model::{Forwarding, ServicePortName};
use portolan_wire::nftables::Transaction;

use super::chain::ChainBody;
use super::changeset::{Changeset, comment_for};
use super::class::{Balance, Class};
use super::content;
use super::element::{Element, Set};
use super::encode;
use super::layout::Layout;
use super::load::shared_elements;
use super::order;
use super::planner::{Plan, Planner};
use super::readback::{Actual, View, same_rules};
use super::skeleton;
use placing::place_missing;
pub(super) use placing::{before, own_id};
use portolan_engine::table::Table;

mod placing;

/// Number of Service ports between two pauses. A piece of them is unpacked at once.
const PIECE: usize = 256;

/// What is called in a pause of a comparison. An error ends the comparison.
pub(super) type Pause<'a, E> = &'a mut dyn FnMut(&mut Planner, &mut View) -> Result<(), E>;

/// The difference between the desired table and the kernel's.
#[derive(Debug)]
pub(super) struct Difference {
    pub(super) elements: Changeset,
    /// The transaction after it: what goes and may still be looked up.
    pub(super) later: Changeset,
    pub(super) plan: Plan,
    /// True if the table is created anew: it does not exist, or parts differ that cannot be changed in place.
    pub(super) rebuild: bool,
    pub(super) chains: Vec<ChainWork>,
    pub(super) classes: Vec<ClassWork>,
    /// Optional sets to create, besides those that are created with the table.
    pub(super) sets: Vec<Set>,
    /// Base chains in our table that another program created. Packets pass through them until they are deleted.
    pub(super) foreign_base_chains: Vec<String>,
}

/// What is written of a chain.
#[derive(Debug)]
pub(super) enum ChainWork {
    Make(ChainBody),
    Refill(ChainBody),
}

/// What is written of the element that leads to the chain of a class.
#[derive(Debug)]
pub(super) struct ClassWork {
    pub(super) number: u16,
    /// True if an element with this number leads to another chain.
    pub(super) replace: bool,
    pub(super) class: Option<Class>,
}

impl Difference {
    /// Compares everything. First places the Service ports that are not placed, with the ids and positions that the
    /// kernel has for them.
    pub(super) fn between(planner: &mut Planner, table: &Table, view: &mut View) -> Self {
        let adopts = planner.placed.is_empty();
        let Ok(difference) =
            Self::with_pauses(planner, table, view, adopts, &mut |_, _| Ok::<_, Infallible>(()));
        difference
    }

    /// Does the same as [`Self::between`], with pauses in which [`super::early`] may write changes that arrive. If `adopts` is
    /// true, the planner takes over the classes of the kernel.
    pub(super) fn with_pauses<E>(
        planner: &mut Planner,
        table: &Table,
        view: &mut View,
        adopts: bool,
        pause: Pause<'_, E>,
    ) -> Result<Self, E> {
        let rebuild = !has_shape(view, planner);
        let mut plan = Plan::default();
        if !rebuild && adopts {
            adopt_classes(planner, view);
        }
        place_missing(planner, table, view, rebuild, &mut plan, pause)?;
        let mut empty = View::default();
        let exists = view.table.is_some();
        let actual = if rebuild { &mut empty } else { &mut *view };
        // Without a table all elements are missing. They are written piece by piece, see `Pieces`.
        let mut elements =
            if exists { elements(planner, table, actual, pause)? } else { Changeset::default() };
        planner.ids.release_reserved();
        // What arrived has been placed or deleted since it was refused, or it is refused now.
        plan.refused.retain(|Refusal { name, .. }| match view.arrived.get(name) {
            Some(arrived) => arrived.is_some() && !planner.placed.contains_key(name),
            None => true,
        });
        plan.refused.extend(review(planner, table, view));
        let later = later(&mut elements, table, view, rebuild);
        let mut difference = Self {
            elements,
            later,
            plan,
            rebuild,
            chains: Vec::new(),
            classes: Vec::new(),
            sets: Vec::new(),
            foreign_base_chains: Vec::new(),
        };
        let actual = if rebuild { &empty } else { &*view };
        difference.compare_chains(planner, actual);
        difference.foreign_base_chains = foreign_chains(planner, actual);
        // A collection removes those of source ranges, unless they have rules of others.
        let is_ours = has_source_range_chains(actual, planner);
        difference
            .foreign_base_chains
            .retain(|name| has_hook(actual, name) && !(is_ours && skeleton::is_for_source_ranges(name)));
        Ok(difference)
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.rebuild
            && self.elements.is_empty()
            && self.chains.is_empty()
            && self.classes.is_empty()
            && self.sets.is_empty()
            && self.foreign_base_chains.is_empty()
    }

    /// Returns the number of objects to write other than elements of Services.
    pub(super) fn objects(&self) -> usize {
        let chains = self.chains.len() + self.foreign_base_chains.len();
        chains + self.classes.len() + usize::from(self.rebuild) + self.sets.len()
    }

    /// Writes all of the difference except for the elements of Services.
    pub(super) fn encode(&self, transaction: &mut Transaction, planner: &Planner, table_exists: bool) {
        let layout = planner.layout();
        let place = layout.place();
        if self.rebuild {
            if table_exists {
                transaction.delete_table(place.wire(), place.table);
            }
            encode::skeleton(transaction, layout);
            if table_exists {
                encode::base_chains(transaction, layout);
            }
        }
        for &set in &self.sets {
            encode::new_set(transaction, place, set);
        }
        // Every chain comes before the rules that lead to it.
        for work in &self.chains {
            match work {
                ChainWork::Make(body) => encode::chain(transaction, place, body),
                ChainWork::Refill(body) => encode::refill(transaction, place, body),
            }
        }
        for chain in &self.foreign_base_chains {
            transaction.flush_chain(place.wire(), place.table, chain);
            transaction.delete_chain(place.wire(), place.table, chain);
        }
        for work in &self.classes {
            if work.replace {
                encode::delete_class_element(transaction, place, work.number);
            }
            if let Some(class) = work.class {
                encode::class_element(transaction, place, work.number, class);
            }
        }
    }

    fn compare_chains(&mut self, planner: &Planner, view: &View) {
        let layout = planner.layout();
        let is_made = |set: &Set| self.rebuild && layout.has_at_start(*set);
        let is_missing = |set: &Set| planner.needs(*set) && !view.sets.contains_key(set.name());
        let optional = Set::ALL.into_iter().filter(|set| set.is_optional());
        self.sets = optional.filter(is_missing).filter(|set| !is_made(set)).collect();
        let balances: BTreeSet<Balance> = planner.classes.balances().collect();
        for balance in balances {
            self.compare_chain(view, skeleton::balance_chain(layout, balance));
        }
        for (number, class) in planner.classes.iter() {
            self.compare_chain(view, skeleton::class_chain(layout, class));
            let leads_to = view.classes.get(&number);
            if leads_to != Some(&class.to_string()) {
                self.classes.push(ClassWork { number, replace: leads_to.is_some(), class: Some(class) });
            }
        }
        for &number in view.classes.keys().collect::<BTreeSet<_>>() {
            if !planner.classes.iter().any(|(known, _)| known == number) {
                self.classes.push(ClassWork { number, replace: true, class: None });
            }
        }
        if !self.rebuild {
            for body in skeleton::chains(layout) {
                self.compare_chain(view, body);
            }
        }
    }

    fn compare_chain(&mut self, view: &View, body: ChainBody) {
        if !view.chains.contains_key(&body.name) {
            self.chains.push(ChainWork::Make(body));
        } else if !same_rules(view, &body) {
            self.chains.push(ChainWork::Refill(body));
        }
    }
}

/// Returns true for a base chain.
pub(super) fn has_hook(view: &View, chain: &str) -> bool {
    view.chains.get(chain).is_some_and(|chain| chain.base.is_some())
}

/// Returns the names of the kernel's chains that we do not need.
pub(super) fn foreign_chains(planner: &Planner, view: &View) -> Vec<String> {
    let mut needed: HashSet<String> =
        skeleton::chains(planner.layout()).into_iter().map(|body| body.name).collect();
    needed.extend(planner.classes.iter().map(|(_, class)| class.to_string()));
    needed.extend(planner.classes.balances().map(|balance| balance.to_string()));
    view.chains.keys().filter(|name| !needed.contains(*name)).cloned().collect()
}

/// Returns true if the sets and base chains match. They cannot be changed in place.
fn has_shape(view: &View, planner: &Planner) -> bool {
    let place = planner.layout().place();
    let sets = Set::ALL.into_iter().all(|set| match view.sets.get(set.name()) {
        Some(actual) => actual.clone().normalized() == skeleton::set(place, set).normalized(),
        None => set.is_optional(),
    });
    // A dormant table may be complete, but has no effect.
    let awake = view.table.as_ref().is_some_and(|table| table.flags == 0);
    let no_other_sets = view.sets.keys().all(|name| Set::from_name(name).is_some());
    sets && awake
        && no_other_sets
        && skeleton::chains(Layout { has_source_ranges: true, ..planner.layout() }).into_iter().all(|body| {
            view.chains
                .get(&body.name)
                .is_none_or(|actual| actual.clone().normalized().base == body.chain(place).normalized().base)
        })
}

/// Returns true if elements can be written into the table as it is: its sets, and its rules outside of classes, are those
/// that it should have.
pub(super) fn has_current_rules(view: &View, planner: &Planner) -> bool {
    let has_set =
        |set: Set| set == Set::Affinity || !planner.needs(set) || view.sets.contains_key(set.name());
    has_shape(view, planner)
        && Set::ALL.into_iter().all(has_set)
        && skeleton::chains(planner.layout()).iter().all(|body| same_rules(view, body))
}

/// Returns true if the check of source ranges is there.
pub(super) fn has_source_range_chains(view: &View, planner: &Planner) -> bool {
    skeleton::source_range_chains(planner.layout()).iter().all(|body| same_rules(view, body))
}

/// Returns true if the chains of a class have the rules that they should have.
pub(super) fn has_rules_of(view: &View, planner: &Planner, class: Class) -> bool {
    skeleton::chains_of(planner.layout(), class).iter().all(|body| same_rules(view, body))
}

/// Gives the classes of the kernel to a planner without any.
pub(super) fn adopt_classes(planner: &mut Planner, view: &View) {
    for (&number, chain) in &view.classes {
        if let Ok(class) = chain.parse::<Class>() {
            planner.classes.adopt(class, number);
        }
    }
}

/// Counts the Service ports with source ranges, and returns refusals for all that have more endpoints than they can use.
fn review(planner: &mut Planner, table: &Table, view: &View) -> Vec<Refusal> {
    let (mut refusals, mut with_source_ranges) = (Vec::new(), 0);
    for (name, forwarding) in wanted(table, view) {
        let is_counted = planner.placed.contains_key(name) && content::has_source_ranges(&forwarding);
        with_source_ranges += usize::from(is_counted);
        refusals.extend(planner.placed_left_out(name, &forwarding));
    }
    planner.with_source_ranges = with_source_ranges;
    refusals
}

/// Returns the Service ports of the table, with those that have arrived.
fn wanted<'a>(
    table: &'a Table,
    view: &'a View,
) -> impl Iterator<Item = (&'a Arc<ServicePortName>, Arc<Forwarding>)> {
    let of_table = table.iter().filter(|(name, _)| !view.arrived.contains_key(*name));
    let arrived = view.arrived.iter().filter_map(|(name, forwarding)| Some((name, forwarding.clone()?)));
    of_table.chain(arrived)
}

/// Takes out of the elements what goes in the transaction after them: the ends of refusals that they replace, also of the table that
/// is in the place of a new one, and what may still be looked up.
fn later(elements: &mut Changeset, table: &Table, view: &View, rebuild: bool) -> Changeset {
    let wanted = || wanted(table, view).map(|(_, forwarding)| forwarding);
    if rebuild {
        let former = |set: Set| view.rows_of(set).map(|row| row.key);
        order::keep_replaced_refusals(elements, former, wanted)
    } else {
        let mut later = order::take_replaced_refusals(elements, wanted);
        order::take_last_ranges(elements, &mut later);
        order::take_moved_endpoints(elements, &mut later);
        later
    }
}

/// Returns some Service ports after `last`, or `None` if there are none.
fn piece_after(
    table: &Table,
    last: Option<&Arc<ServicePortName>>,
) -> Option<Vec<(Arc<ServicePortName>, Arc<Forwarding>)>> {
    let rest = table.iter_after(last).take(PIECE);
    let piece: Vec<_> = rest.map(|(name, forwarding)| (name.clone(), forwarding)).collect();
    (!piece.is_empty()).then_some(piece)
}

/// Compares every element. Adds missing ones, and deletes those of no Service port.
fn elements<E>(
    planner: &mut Planner,
    table: &Table,
    view: &mut View,
    pause: Pause<'_, E>,
) -> Result<Changeset, E> {
    let counters = planner.settings.counters;
    let mut changes = Changeset::default();
    let mut last = None;
    while let Some(piece) = piece_after(table, last.as_ref()) {
        let mut comparison = Comparison { view: &mut *view, counters, changes };
        for (name, forwarding) in &piece {
            if !comparison.view.arrived.contains_key(name) {
                comparison.want_all(planner, name, forwarding);
            }
        }
        changes = comparison.changes;
        last = piece.last().map(|(name, _)| name.clone());
        // The differences found so far are written at the end. A change must not write them before.
        if changes.is_empty() {
            pause(planner, view)?;
        }
    }
    let arrived = view.arrived.clone();
    let mut comparison = Comparison { view, counters, changes };
    for (name, forwarding) in &arrived {
        if let Some(forwarding) = forwarding {
            comparison.want_all(planner, name, forwarding);
        }
    }
    shared_elements(planner, |element| comparison.want(&element, ""));
    Ok(comparison.finish())
}

/// A comparison of elements. Takes each wanted element out of the view; elements left in the view at the end are
/// deleted.
struct Comparison<'a> {
    view: &'a mut View,
    /// True if elements should count.
    counters: bool,
    changes: Changeset,
}

impl Comparison<'_> {
    fn want_all(&mut self, planner: &Planner, name: &Arc<ServicePortName>, forwarding: &Forwarding) {
        let comment = name.to_string();
        for element in planner.elements_of(name, forwarding) {
            self.want(&element, &comment);
        }
    }

    fn want(&mut self, element: &Element, comment: &str) {
        let comment = comment_for(element.set, comment);
        if element.set == Set::SourceRanges {
            let there = self.view.take_range((element.key, element.key_end));
            self.write(element, comment, there, there);
        } else {
            let actual = self.view.take_actual(element.set, &element.key);
            let same = actual == Some(Actual::of(element, comment, self.counters));
            self.write(element, comment, actual.is_some(), same);
        }
    }

    fn write(&mut self, element: &Element, comment: &str, there: bool, same: bool) {
        if same {
            return;
        }
        if there {
            self.changes.remove(element);
        }
        self.changes.add(element, comment);
    }

    fn finish(mut self) -> Changeset {
        for (set, rows) in &self.view.rows {
            for key in rows.left() {
                if !self.view.is_touched(*set, &key) {
                    self.changes.delete(*set, &key, None);
                }
            }
        }
        for (set, key) in self.view.touched_left() {
            self.changes.delete(set, &key, None);
        }
        for (key, end) in self.view.ranges_left() {
            self.changes.delete(Set::SourceRanges, key, end.as_ref());
        }
        for (set, (key, end)) in &self.view.unexpected {
            self.changes.delete(*set, key, end.as_ref());
        }
        self.changes
    }
}
