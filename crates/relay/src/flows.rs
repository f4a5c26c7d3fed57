//! UDP flows: which backend gets the datagrams of one client to one destination, and for how long. Also which of them ends
//! early if a new flow finds no free place.

mod list;

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::slots::{Slot, Slots};
use list::{Links, List};

/// A flow's client address, and the address where its datagrams arrive (the virtual address, if it is not translated).
pub type Key = (SocketAddr, SocketAddr);

/// A flow that was used within this time does not end in favour of another. Resolvers ask twice from one port, for IPv4 and
/// IPv6 addresses. Most second answers come within this time after the first one.
const RECENT: Duration = Duration::from_secs(1);
/// A flow that is used this long after its first answer lasts. The kernel's conntrack has the same limit
/// (`nf_conntrack_udp_packet`), and ends only entries of other flows early, when its table is full.
const LASTING: Duration = Duration::from_secs(2);
/// How many of the Service ports with the most flows are asked for a place at most.
const LARGEST: usize = 8;

/// The id of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId(pub(crate) Slot);

/// Flows, each with a value and of a Service port `S`. Flows without use for the idle time are removed.
#[derive(Debug)]
pub struct Flows<S, T> {
    slots: Slots<Flow<T>>,
    ids: HashMap<Key, FlowId>,
    /// All flows by their last use.
    all: List<Flow<T>>,
    holders: HashMap<S, Holder<T>>,
    /// The holders by their number of flows.
    by_number: BTreeSet<(usize, S)>,
    service_of: fn(&T) -> S,
    idle: Duration,
}

#[derive(Debug)]
struct Flow<T> {
    key: Key,
    used: Instant,
    stage: Stage,
    in_all: Links,
    in_stage: Links,
    value: T,
}

/// What a flow has done. A flow without an answer never ends in favour of another, because its answer may be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has no answer yet.
    Asked,
    /// It had its first answer at this time.
    Answered(Instant),
    /// It went on after its first answer. It ends only if the Service port has no other flow to end.
    Lasting,
}

/// The flows of one Service port.
#[derive(Debug)]
struct Holder<T> {
    number: usize,
    /// Those at [`Stage::Answered`], by their last use.
    answered: List<Flow<T>>,
    /// Those at [`Stage::Lasting`], by their last use.
    lasting: List<Flow<T>>,
}

impl<S: Copy + Hash + Ord, T> Flows<S, T> {
    /// Creates an empty set of flows. `idle` is the time without use after which a flow is removed. `service_of` returns the
    /// Service port of a flow, which never changes.
    pub fn new(idle: Duration, service_of: fn(&T) -> S) -> Self {
        Self {
            slots: Slots::default(),
            ids: HashMap::new(),
            all: List::new(|flow| &mut flow.in_all),
            holders: HashMap::new(),
            by_number: BTreeSet::new(),
            service_of,
            idle,
        }
    }

    /// Returns the flow of a key.
    pub fn find(&self, key: &Key) -> Option<FlowId> {
        self.ids.get(key).copied()
    }

    /// Adds a flow. The key must have no flow yet.
    pub fn insert(&mut self, key: Key, value: T, now: Instant) -> FlowId {
        let service = (self.service_of)(&value);
        let (in_all, in_stage) = (Links::default(), Links::default());
        let flow = Flow { key, used: now, stage: Stage::Asked, in_all, in_stage, value };
        let id = FlowId(self.slots.insert(flow));
        self.ids.insert(key, id);
        self.all.push(id.0, &mut self.slots);
        self.count(service, |number| number.saturating_add(1));
        id
    }

    /// Returns a flow and records that it is used.
    pub fn using(&mut self, id: FlowId, now: Instant) -> Option<(&Key, &mut T)> {
        let flow = self.slots.get_mut(id.0)?;
        // The datagrams of one event have one time.
        if flow.used != now {
            flow.used = now;
            let stage = flow.stage.used(now);
            self.all.renew(id.0, &mut self.slots);
            self.set_stage(id.0, stage);
        }
        let flow = self.slots.get_mut(id.0)?;
        Some((&flow.key, &mut flow.value))
    }

    /// Records that a flow is used by an answer.
    pub fn answered(&mut self, id: FlowId, now: Instant) {
        self.using(id, now);
        if self.slots.get(id.0).is_some_and(|flow| flow.stage == Stage::Asked) {
            self.set_stage(id.0, Stage::Answered(now));
        }
    }

    /// Removes a flow.
    pub fn remove(&mut self, id: FlowId) -> Option<(Key, T)> {
        self.slots.get(id.0)?;
        self.set_stage(id.0, Stage::Asked);
        self.all.remove(id.0, &mut self.slots);
        let flow = self.slots.remove(id.0)?;
        self.ids.remove(&flow.key);
        self.count((self.service_of)(&flow.value), |number| number.saturating_sub(1));
        Some((flow.key, flow.value))
    }

    /// Removes and returns one flow that has been idle for too long.
    pub fn take_idle(&mut self, now: Instant) -> Option<(Key, T)> {
        let first = self.all.first()?;
        if self.idle_for(first, now)? < self.idle {
            return None;
        }
        self.remove(FlowId(first))
    }

    /// Returns when to call [`Self::take_idle`] again.
    pub fn next(&self) -> Option<Instant> {
        Some(self.slots.get(self.all.first()?)?.used + self.idle)
    }

    /// Returns the flow that is to end if a new flow of a Service port finds no free place: an answered flow that was not used
    /// within the last second, of those the one whose last use is the longest ago. Flows that last are the last choice, so that
    /// clients that ask once each, of which there can be any number, end no others. The Service port gives a place of its own.
    /// If it has no such flow, the one with the most flows gives a place, if it has more flows than this one.
    pub fn replaceable(&self, service: S, now: Instant) -> Option<FlowId> {
        let own = self.holders.get(&service);
        let number = own.map_or(0, |own| own.number);
        let larger = self.by_number.iter().rev().take(LARGEST).take_while(|(other, _)| *other > number);
        let larger = larger.filter_map(|(_, service)| self.holders.get(service));
        let holders = own.into_iter().chain(larger);
        let is_free = |slot: &Slot| self.idle_for(*slot, now).is_some_and(|idle| idle >= RECENT);
        let first = |list: &List<Flow<T>>| list.first().filter(is_free);
        let answered = holders.clone().find_map(|holder| first(&holder.answered));
        answered.or_else(|| holders.clone().find_map(|holder| first(&holder.lasting))).map(FlowId)
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if there are no flows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn idle_for(&self, slot: Slot, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.slots.get(slot)?.used))
    }

    /// Puts a flow that is used now at the end of the list of a stage.
    fn set_stage(&mut self, slot: Slot, stage: Stage) {
        let Some(flow) = self.slots.get_mut(slot) else { return };
        let before = std::mem::replace(&mut flow.stage, stage);
        let service = (self.service_of)(&flow.value);
        if (before, stage) == (Stage::Asked, Stage::Asked) {
            return;
        }
        let Some(holder) = self.holders.get_mut(&service) else { return };
        if let Some(list) = holder.list(before) {
            list.remove(slot, &mut self.slots);
        }
        if let Some(list) = holder.list(stage) {
            list.push(slot, &mut self.slots);
        }
    }

    /// Changes the number of flows of a Service port.
    fn count(&mut self, service: S, change: impl Fn(usize) -> usize) {
        let holder = self.holders.entry(service).or_insert_with(Holder::new);
        self.by_number.remove(&(holder.number, service));
        holder.number = change(holder.number);
        if holder.number > 0 {
            self.by_number.insert((holder.number, service));
        } else {
            self.holders.remove(&service);
        }
    }
}

impl Stage {
    /// Returns the stage after a use.
    fn used(self, now: Instant) -> Self {
        match self {
            Self::Answered(at) if now.saturating_duration_since(at) > LASTING => Self::Lasting,
            same => same,
        }
    }
}

impl<T> Holder<T> {
    fn new() -> Self {
        let list = || List::new(|flow: &mut Flow<T>| &mut flow.in_stage);
        Self { number: 0, answered: list(), lasting: list() }
    }

    /// Returns the flows at a stage, if they can end in favour of others.
    const fn list(&mut self, stage: Stage) -> Option<&mut List<Flow<T>>> {
        match stage {
            Stage::Asked => None,
            Stage::Answered(_) => Some(&mut self.answered),
            Stage::Lasting => Some(&mut self.lasting),
        }
    }
}

#[cfg(test)]
mod tests;
