//! The planner: changes of Service ports go in, element operations and new classes come out. It is pure.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::{Change, Forwarding, Protocol, ServicePortName, Settings};

use super::changeset::Changeset;
use super::class::{Class, Classes};
use super::content::{self, ClassPair, Values};
use super::counted::{Counted, CountedAddresses};
use super::element::{Element, Set};
use super::layout::{Layout, Target};
use super::order;
use super::placement::{self, Before, Placement, Slots};
use super::value::{Ids, Value};
use portolan_engine::dataplane::{Extent, Refusal};

/// The content of a transaction, and of those before and after it if their [order] matters.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The transaction before it, with new chains: new source ranges.
    pub(crate) earlier: Changeset,
    pub(crate) elements: Changeset,
    /// The transaction after it: what goes and may still be looked up.
    pub(crate) later: Changeset,
    /// Classes whose chains have yet to be created, with their numbers.
    pub(crate) classes: Vec<(u16, Class)>,
    /// True if the first source ranges come, and with them the chains that check them. What is left of earlier ones is written
    /// again, because others may have changed it.
    pub(crate) creates_source_range_check: bool,
    pub(crate) refused: Vec<Refusal>,
}

impl Plan {
    /// Takes out of the elements of these changes what is written before them and after them.
    pub(crate) fn put_in_order(&mut self, changes: &[Change]) {
        let wanted = || changes.iter().filter_map(|change| change.new.clone());
        self.earlier = order::take_first_ranges(&mut self.elements);
        self.later = order::take_replaced_refusals(&mut self.elements, wanted);
        order::take_last_ranges(&mut self.elements, &mut self.later);
        order::take_moved_endpoints(&mut self.elements, &mut self.later);
    }

    /// Returns all elements, in the order of writing.
    pub(crate) const fn all_elements(&self) -> [&Changeset; 3] {
        [&self.earlier, &self.elements, &self.later]
    }
}

/// The positions of a Service port in the kernel's sets. There is one for every Service port, so what can be derived is
/// not stored, and the usual placement takes no memory of its own. The forwarding is in the
/// [table](portolan_engine::table::Table).
#[derive(Debug)]
pub(crate) struct Placed {
    /// The id, or 0 if none has been needed.
    pub(crate) id: u32,
    /// The number of endpoints of the usual placement.
    usual: u16,
    /// The placement, if it is not the usual one.
    other: Option<Box<Placement>>,
}

impl Placed {
    fn new(placement: Placement, id: u32) -> Self {
        match placement.usual() {
            Some(usual) => Self { id, usual, other: None },
            None => Self { id, usual: 0, other: Some(Box::new(placement)) },
        }
    }

    fn placement(&self) -> Cow<'_, Placement> {
        let usual = || Cow::Owned(Placement::of_usual(self.usual));
        self.other.as_deref().map_or_else(usual, Cow::Borrowed)
    }
}

/// A Service port before or after a change.
struct Side<'a> {
    forwarding: &'a Forwarding,
    placed: Placed,
}

impl Side<'_> {
    fn classes(&self) -> ClassPair {
        ClassPair::of(self.forwarding, &self.placed.placement())
    }
}

/// What the kernel's table has, or is to have after the last plan, of the wanted state.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) settings: Settings,
    /// Where packets are led.
    pub(crate) target: Target,
    pub(crate) ids: Ids,
    pub(crate) classes: Classes,
    /// The Service ports with elements. Those that were refused are missing.
    pub(crate) placed: HashMap<Arc<ServicePortName>, Placed>,
    pub(crate) cluster_ips: CountedAddresses,
    pub(crate) hairpins: Counted<(Protocol, SocketAddr)>,
    /// The number of placed Service ports with source ranges.
    pub(crate) with_source_ranges: usize,
}

impl Planner {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            target: Target::Endpoints,
            ids: Ids::default(),
            classes: Classes::default(),
            placed: HashMap::new(),
            cluster_ips: CountedAddresses::default(),
            hairpins: Counted::default(),
            with_source_ranges: 0,
        }
    }

    pub(crate) fn layout(&self) -> Layout<'_> {
        Layout { settings: &self.settings, target: self.target, has_source_ranges: self.has_source_ranges() }
    }

    /// Returns true if a placed Service port has source ranges.
    pub(crate) const fn has_source_ranges(&self) -> bool {
        self.with_source_ranges > 0
    }

    fn slots(&self) -> Slots {
        if self.layout().has_slots() { Slots::ForAll } else { Slots::ForAffinity }
    }

    /// Replaces the settings. If they change where endpoints are in the sets, nothing is placed any more: the next comparison
    /// adopts what the kernel has.
    pub(crate) fn configure(&mut self, settings: &Settings) {
        if settings.counters == self.settings.counters {
            self.settings.clone_from(settings);
        } else {
            *self = Self { target: self.target, ..Self::new(settings.clone()) };
        }
    }

    /// Returns true if the table should have a set.
    pub(crate) fn needs(&self, set: Set) -> bool {
        match set {
            Set::Affinity => self.classes.needs_affinity(),
            _ => !set.is_for_counters() || self.settings.counters,
        }
    }

    /// Plans the transactions that apply the changes.
    pub(crate) fn plan(&mut self, changes: &[Change]) -> Plan {
        let (mut plan, had_source_ranges) = (Plan::default(), self.has_source_ranges());
        for change in changes {
            self.plan_one(change, &mut plan);
        }
        plan.creates_source_range_check = self.has_source_ranges() && !had_source_ranges;
        plan.put_in_order(changes);
        plan
    }

    /// Applies changes to the Service ports that are placed, for a comparison, which finds all the others.
    pub(crate) fn follow(&mut self, changes: &[Change]) {
        let mut plan = Plan::default();
        for change in changes {
            if self.placed.contains_key(&change.name) {
                self.plan_one(change, &mut plan);
            }
        }
    }

    /// Returns the elements of a Service port of the table; none if it is not placed.
    pub(crate) fn elements_of(&self, name: &Arc<ServicePortName>, forwarding: &Forwarding) -> Vec<Element> {
        self.placed.get(name).map(|placed| self.elements(forwarding, placed)).unwrap_or_default()
    }

    fn elements(&self, forwarding: &Forwarding, placed: &Placed) -> Vec<Element> {
        let values = self.values(forwarding, placed);
        let options = content::ContentOptions {
            node_ip: self.settings.node_ip,
            slots: self.slots(),
            counters: self.settings.counters,
        };
        let mut elements = content::elements(forwarding, &placed.placement(), placed.id, values, options);
        if !self.target.kind().holds_endpoints {
            // The rules name the listeners, and do not count.
            elements.retain(|element| !matches!(element.set, Set::Endpoints | Set::ServiceCounters));
        }
        elements
    }

    /// Places a Service port that is not placed, with the id and the positions that the kernel has for it, or with id 0.
    pub(crate) fn place(
        &mut self,
        name: Arc<ServicePortName>,
        forwarding: &Forwarding,
        before: &Before,
        id: u32,
        plan: &mut Plan,
    ) {
        match self.placed_after(forwarding, before, id, plan) {
            Ok(placed) => {
                self.count(forwarding, &mut Changeset::default());
                self.placed.insert(name, placed);
            }
            Err(reason) => plan.refused.push(Refusal::whole(name, reason)),
        }
    }

    /// Plans one change. A Service port that is not placed is new.
    pub(crate) fn plan_one(&mut self, change: &Change, plan: &mut Plan) {
        let placed = self.placed.remove(&change.name);
        let old = change.old.as_deref().zip(placed).map(|(forwarding, placed)| Side { forwarding, placed });
        let old_elements =
            old.as_ref().map(|old| self.elements(old.forwarding, &old.placed)).unwrap_or_default();
        let before =
            old.as_ref().map(|old| Before::of(old.forwarding, &old.placed.placement())).unwrap_or_default();
        let id = old.as_ref().map_or(0, |old| old.placed.id);
        let new = match change.new.as_deref() {
            None => {
                self.ids.release(id);
                None
            }
            // A refused Service port is not placed. The next comparison tries it again.
            Some(forwarding) => self
                .placed_after(forwarding, &before, id, plan)
                .map_err(|reason| plan.refused.push(Refusal::whole(change.name.clone(), reason)))
                .ok()
                .map(|placed| Side { forwarding, placed }),
        };
        let new_elements =
            new.as_ref().map(|new| self.elements(new.forwarding, &new.placed)).unwrap_or_default();
        plan.elements.difference(&old_elements, &new_elements, &change.name.to_string());
        if let Some(new) = &new {
            self.count(new.forwarding, &mut plan.elements);
        }
        if let Some(old) = &old {
            self.uncount(old.forwarding, &mut plan.elements);
            old.classes().iter().for_each(|class| self.classes.release(class));
        }
        if let Some(new) = new {
            plan.refused.extend(self.left_out(&change.name, new.forwarding));
            self.placed.insert(change.name.clone(), new.placed);
        }
    }

    /// Returns a refusal if a placed Service port has more endpoints than it can use.
    pub(crate) fn placed_left_out(
        &self,
        name: &Arc<ServicePortName>,
        forwarding: &Forwarding,
    ) -> Option<Refusal> {
        self.placed.contains_key(name).then(|| self.left_out(name, forwarding))?
    }

    /// Returns a refusal if a Service port has more endpoints than it can use. With listeners instead of endpoints
    /// there is no such limit.
    fn left_out(&self, name: &Arc<ServicePortName>, forwarding: &Forwarding) -> Option<Refusal> {
        let reason =
            placement::too_many(forwarding, self.slots()).filter(|_| self.target.kind().holds_endpoints)?;
        Some(Refusal { name: name.clone(), reason, extent: Extent::Endpoints })
    }

    /// Assigns an id, positions and classes to a forwarding. After a failure the id is free again.
    fn placed_after(
        &mut self,
        forwarding: &Forwarding,
        before: &Before,
        id: u32,
        plan: &mut Plan,
    ) -> Result<Placed, &'static str> {
        let placement = Placement::after(before, forwarding, self.slots());
        let classes = ClassPair::of(forwarding, &placement);
        let id = match id {
            0 if classes != ClassPair::default() => self
                .ids
                .allocate()
                .ok_or("all 262,143 ids are in use: remove Services that are not needed")?,
            id => id,
        };
        if self.acquire(classes, plan) {
            Ok(Placed::new(placement, id))
        } else {
            self.ids.release(id);
            Err(
                "all 16,383 combinations of endpoint counts are in use: use fewer different numbers of endpoints",
            )
        }
    }

    /// Acquires both classes or none.
    fn acquire(&mut self, classes: ClassPair, plan: &mut Plan) -> bool {
        let mut acquired = Vec::with_capacity(2);
        for class in classes.iter() {
            let Some((number, new)) = self.classes.acquire(class) else {
                for class in acquired {
                    self.classes.release(class);
                }
                return false;
            };
            if new {
                plan.classes.push((number, class));
            }
            acquired.push(class);
        }
        true
    }

    /// Returns the classes of a Service port with their numbers; none if it is not placed.
    pub(crate) fn classes_of(
        &self,
        name: &Arc<ServicePortName>,
        forwarding: &Forwarding,
    ) -> Vec<(u16, Class)> {
        let Some(placed) = self.placed.get(name) else { return Vec::new() };
        let classes = ClassPair::of(forwarding, &placed.placement());
        classes.iter().filter_map(|class| Some((self.classes.number(class)?, class))).collect()
    }

    fn values(&self, forwarding: &Forwarding, placed: &Placed) -> Values {
        let value = |class: Option<Class>| Some(Value::new(placed.id, self.classes.number(class?)?));
        let ClassPair { internal, external } = ClassPair::of(forwarding, &placed.placement());
        Values { internal: value(internal), external: value(external) }
    }

    fn count(&mut self, forwarding: &Forwarding, changes: &mut Changeset) {
        self.with_source_ranges += usize::from(content::has_source_ranges(forwarding));
        for address in content::cluster_ips(forwarding) {
            if self.cluster_ips.add(address) {
                changes.add(&content::cluster_ip_element(address), "");
            }
        }
        for (protocol, socket) in content::hairpins(forwarding) {
            if self.hairpins.add((protocol, socket)) {
                changes.add(&content::hairpin_element(protocol, socket), "");
            }
        }
    }

    fn uncount(&mut self, forwarding: &Forwarding, changes: &mut Changeset) {
        let had_ranges = usize::from(content::has_source_ranges(forwarding));
        self.with_source_ranges = self.with_source_ranges.saturating_sub(had_ranges);
        for address in content::cluster_ips(forwarding) {
            if self.cluster_ips.remove(&address) {
                changes.remove(&content::cluster_ip_element(address));
            }
        }
        for (protocol, socket) in content::hairpins(forwarding) {
            if self.hairpins.remove(&(protocol, socket)) {
                changes.remove(&content::hairpin_element(protocol, socket));
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
