//! The planner: changes of Service ports go in, element operations and new classes come out. It is pure.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::{Change, Forwarding, Protocol, ServicePortName, Settings};

use super::capture::Listeners;
use super::changeset::Changeset;
use super::class::{Class, Classes};
use super::content::{self, ClassPair, Values};
use super::counted::{Counted, CountedAddresses};
use super::element::{Element, Set};
use super::placement::{self, Before, Placement};
use super::skeleton::Layout;
use super::value::{Ids, Value};
use crate::dataplane::{Extent, Refusal};

/// The content of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) elements: Changeset,
    /// Classes whose chains have yet to be created, with their numbers.
    pub(crate) classes: Vec<(u16, Class)>,
    pub(crate) refused: Vec<Refusal>,
}

/// A Service port with its positions in the table. There is one for every Service port, so what can be derived is not
/// stored.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) forwarding: Arc<Forwarding>,
    pub(crate) placement: Placement,
    /// The id, or 0 if none has been needed.
    pub(crate) id: u32,
}

impl Placed {
    fn classes(&self) -> ClassPair {
        ClassPair::of(&self.forwarding, &self.placement)
    }
}

/// The desired state of the table.
#[derive(Debug)]
pub(crate) struct Planner {
    pub(crate) settings: Settings,
    /// The listeners to send packets to. `None` if packets are translated.
    pub(crate) capture: Option<Listeners>,
    pub(crate) ids: Ids,
    pub(crate) classes: Classes,
    pub(crate) placed: HashMap<Arc<ServicePortName>, Box<Placed>>,
    /// Service ports that have not been placed: before the first comparison, or refused.
    pub(crate) waiting: HashMap<Arc<ServicePortName>, Arc<Forwarding>>,
    pub(crate) cluster_ips: CountedAddresses,
    pub(crate) hairpins: Counted<(Protocol, SocketAddr)>,
}

impl Planner {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            capture: None,
            ids: Ids::default(),
            classes: Classes::default(),
            placed: HashMap::new(),
            waiting: HashMap::new(),
            cluster_ips: CountedAddresses::default(),
            hairpins: Counted::default(),
        }
    }

    pub(crate) fn layout(&self) -> Layout<'_> {
        Layout { settings: &self.settings, capture: self.capture }
    }

    /// Stores changes without placing anything, before the complete state is known.
    pub(crate) fn remember(&mut self, changes: &[Change]) {
        for change in changes {
            match &change.new {
                Some(forwarding) => self.waiting.insert(change.name.clone(), forwarding.clone()),
                None => self.waiting.remove(&change.name),
            };
        }
    }

    /// Plans the transaction that applies the changes.
    pub(crate) fn plan(&mut self, changes: &[Change]) -> Plan {
        let mut plan = Plan::default();
        for change in changes {
            self.plan_one(change, &mut plan);
        }
        plan
    }

    /// Places every waiting Service port. First come those for which `found` returns the id and positions that the
    /// kernel has, then the others.
    pub(crate) fn place_waiting(
        &mut self,
        found: impl Fn(&Forwarding) -> Option<(u32, Before)>,
        plan: &mut Plan,
    ) {
        self.placed.reserve(self.waiting.len());
        let mut fresh = Vec::new();
        for (name, forwarding) in std::mem::take(&mut self.waiting) {
            match found(&forwarding) {
                Some((id, before)) if self.ids.adopt(id) => self.place(name, &forwarding, &before, id, plan),
                _ => fresh.push((name, forwarding)),
            }
        }
        for (name, forwarding) in fresh {
            self.place(name, &forwarding, &Before::default(), 0, plan);
        }
    }

    /// Returns the elements of a placed Service port.
    pub(crate) fn elements(&self, placed: &Placed) -> Vec<Element> {
        let values = self.values(placed);
        let node_ip = self.settings.node_ip;
        let mut elements =
            content::elements(&placed.forwarding, &placed.placement, placed.id, values, node_ip);
        if self.capture.is_some() {
            // The rules name the listeners.
            elements.retain(|element| element.set != Set::Endpoints);
        }
        elements
    }

    fn place(
        &mut self,
        name: Arc<ServicePortName>,
        forwarding: &Arc<Forwarding>,
        before: &Before,
        id: u32,
        plan: &mut Plan,
    ) {
        match self.placed_after(forwarding, before, id, plan) {
            Ok(placed) => {
                self.count(forwarding, &mut Changeset::default());
                self.placed.insert(name, Box::new(placed));
            }
            Err(reason) => self.refuse(name, forwarding, reason, plan),
        }
    }

    fn plan_one(&mut self, change: &Change, plan: &mut Plan) {
        let old = self.placed.remove(&change.name);
        self.waiting.remove(&change.name);
        let old_elements = old.as_ref().map(|old| self.elements(old)).unwrap_or_default();
        let before = old.as_ref().map(|old| Before::of(&old.forwarding, &old.placement)).unwrap_or_default();
        let id = old.as_ref().map_or(0, |old| old.id);
        let new = match &change.new {
            None => {
                self.ids.release(id);
                None
            }
            Some(forwarding) => self
                .placed_after(forwarding, &before, id, plan)
                .map_err(|reason| self.refuse(change.name.clone(), forwarding, reason, plan))
                .ok(),
        };
        let new_elements = new.as_ref().map(|new| self.elements(new)).unwrap_or_default();
        plan.elements.difference(&old_elements, &new_elements, &change.name.to_string());
        if let Some(new) = &new {
            self.count(&new.forwarding, &mut plan.elements);
        }
        if let Some(old) = &old {
            self.uncount(&old.forwarding, &mut plan.elements);
            old.classes().iter().for_each(|class| self.classes.release(class));
        }
        if let Some(new) = new {
            plan.refused.extend(self.left_out(&change.name, &new.forwarding));
            self.placed.insert(change.name.clone(), Box::new(new));
        }
    }

    /// Returns a refusal for every Service port that has more endpoints than it can use.
    pub(crate) fn all_left_out(&self) -> impl Iterator<Item = Refusal> {
        self.placed.iter().filter_map(|(name, placed)| self.left_out(name, &placed.forwarding))
    }

    /// Returns a refusal if a Service port has more endpoints than it can use. With listeners instead of endpoints
    /// there is no such limit.
    fn left_out(&self, name: &Arc<ServicePortName>, forwarding: &Forwarding) -> Option<Refusal> {
        let reason = placement::too_many(forwarding).filter(|_| self.capture.is_none())?;
        Some(Refusal { name: name.clone(), reason, extent: Extent::Endpoints })
    }

    /// Refuses a Service port. It waits, and the next comparison tries it again.
    fn refuse(
        &mut self,
        name: Arc<ServicePortName>,
        forwarding: &Arc<Forwarding>,
        reason: &'static str,
        plan: &mut Plan,
    ) {
        plan.refused.push(Refusal::whole(name.clone(), reason));
        self.waiting.insert(name, forwarding.clone());
    }

    /// Assigns an id, positions and classes to a forwarding. After a failure the id is free again.
    fn placed_after(
        &mut self,
        forwarding: &Arc<Forwarding>,
        before: &Before,
        id: u32,
        plan: &mut Plan,
    ) -> Result<Placed, &'static str> {
        let placement = Placement::after(before, forwarding);
        let classes = ClassPair::of(forwarding, &placement);
        let id = match id {
            0 if classes != ClassPair::default() => self
                .ids
                .allocate()
                .ok_or("all 262,143 ids are in use: remove Services that are not needed")?,
            id => id,
        };
        if self.acquire(classes, plan) {
            Ok(Placed { forwarding: forwarding.clone(), placement, id })
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

    fn values(&self, placed: &Placed) -> Values {
        let value = |class: Option<Class>| Some(Value::new(placed.id, self.classes.number(class?)?));
        let ClassPair { internal, external } = placed.classes();
        Values { internal: value(internal), external: value(external) }
    }

    fn count(&mut self, forwarding: &Forwarding, changes: &mut Changeset) {
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
mod tests;
