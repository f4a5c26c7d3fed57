//! Computes the writes that bring the kernel to the desired state, for a change or a comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use portolan_model::{IpvsScheduler, Protocol};
use portolan_wire::ipset::Member;

use super::desired::{Desired, Touched};
use super::device::Addresses;
use super::draining::{Draining, UptimeSecs};
use super::frontend::{Config, Key, Server};
use super::owners::Owners;
use super::set::Set;

/// The weight of every endpoint. All have the same share of new connections.
pub(super) const WEIGHT: u32 = 1;

/// Settings for turning virtual servers of the table into those of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteSettings<'a> {
    /// The scheduler for Services that do not specify one.
    pub(super) default: IpvsScheduler,
    /// Schedulers that the kernel lacks.
    pub(super) missing: &'a [IpvsScheduler],
    /// The deadline of a real server that starts to drain.
    pub(super) drained_by: UptimeSecs,
}

/// A real server as the kernel has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Real {
    /// It gets its share of new connections.
    Serving,
    /// It gets no new connections. Holds the deadline, if the kernel has one for it.
    Draining(Option<UptimeSecs>),
    /// It has settings that this mode does not write.
    Other,
}

/// A virtual server as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Present {
    /// `None` if the scheduler is unknown.
    pub(super) config: Option<Config>,
    pub(super) real: BTreeMap<SocketAddr, Real>,
}

/// One message about a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    New(Key, Config),
    Set(Key, Config),
    Delete(Key),
    NewReal(Key, SocketAddr),
    /// Gives a real server its share of new connections again.
    Restore(Key, SocketAddr),
    /// Stops new connections to a real server and sets its deadline.
    Drain(Key, SocketAddr, UptimeSecs),
    DeleteReal(Key, SocketAddr),
}

/// The writes, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Members to add to sets. Those of [`Set::LoadBalancerFirewall`] are last: with them the rules start to drop packets
    /// of clients that no other member allows.
    pub(super) add: Vec<(Set, Member)>,
    /// Virtual servers to add or change, and their real servers.
    pub(super) servers: Vec<Operation>,
    /// Addresses to add to the network device.
    pub(super) bind: Vec<IpAddr>,
    /// Virtual servers to remove.
    pub(super) gone: Vec<Operation>,
    /// Addresses to remove from the network device.
    pub(super) unbind: Vec<IpAddr>,
    /// Members to remove from sets, in the order of [`Set::ALL`]. So those of [`Set::LoadBalancerFirewall`] go before the
    /// members that allow clients.
    pub(super) remove: Vec<(Set, Member)>,
    /// Real servers that drain after the writes.
    pub(super) draining: Vec<(Key, SocketAddr, UptimeSecs)>,
    /// Real servers that do not drain after the writes: they are needed again, or removed.
    pub(super) settled: Vec<(Key, SocketAddr)>,
}

impl Difference {
    /// Computes the writes for a change, given that the kernel has the former state.
    pub(super) fn of_change(
        touched: &Touched,
        desired: &Desired,
        draining: &Draining,
        manner: WriteSettings<'_>,
    ) -> Self {
        let mut difference = Self::default();
        for (&member, &was_there) in &touched.members {
            match (was_there, desired.has_member(&member)) {
                (false, true) => difference.add_member(member),
                (true, false) => difference.remove_member(member),
                _ => {}
            }
        }
        difference.restrict_last();
        for (key, former) in &touched.servers {
            let present = former.as_ref().map(|server| {
                let mut present = Present::of(server, manner);
                let drains = |(place, until)| (place, Real::Draining(Some(until)));
                present.real.extend(draining.of(key).map(drains));
                present
            });
            difference.server(*key, present.as_ref(), desired.server(key), manner);
        }
        difference
    }

    /// Compares the members of a set with the desired ones. Does not compare the addresses of the network device: see
    /// `addresses`.
    pub(super) fn members(&mut self, set: Set, present: &BTreeSet<Member>, desired: &Desired) {
        let add = desired.members_of(set).filter(|member| !present.contains(member));
        self.add.extend(add.map(|member| (set, *member)));
        self.restrict_last();
        let remove = present.iter().filter(|member| !desired.has_member(&(set, **member)));
        self.remove.extend(remove.map(|member| (set, *member)));
    }

    /// Compares the addresses of the network device with the desired ones.
    pub(super) fn addresses(&mut self, present: &Addresses, desired: &Desired) {
        let wanted = desired.members_of(Set::IpvsIps).filter_map(address);
        self.bind.extend(wanted.filter(|address| !present.device.contains(address)));
        let is_wanted = |address: IpAddr| desired.has_member(&(Set::IpvsIps, Member::Ip(address)));
        let surplus = present.device.difference(&present.staying).filter(|address| !is_wanted(**address));
        self.unbind.extend(surplus);
    }

    /// Adds the removal of virtual servers that the table does not need, if they are ours.
    pub(super) fn remove_stale(&mut self, found: BTreeMap<Key, Option<Config>>, owners: &Owners) {
        let stale = found.into_keys().filter(|key| owners.own.contains(key));
        self.gone.extend(stale.map(Operation::Delete));
    }

    /// Compares one virtual server with the desired one.
    pub(super) fn server(
        &mut self,
        key: Key,
        present: Option<&Present>,
        desired: Option<&Server>,
        manner: WriteSettings<'_>,
    ) {
        let Some(desired) = desired else {
            if let Some(present) = present {
                self.gone.push(Operation::Delete(key));
                self.settled.extend(present.real.keys().map(|place| (key, *place)));
            }
            return;
        };
        let config = desired.config(manner.default, manner.missing);
        let none = BTreeMap::new();
        let real = match present {
            None => {
                self.servers.push(Operation::New(key, config));
                &none
            }
            Some(present) => {
                if present.config != Some(config) {
                    self.servers.push(Operation::Set(key, config));
                }
                &present.real
            }
        };
        let wanted: BTreeSet<SocketAddr> = desired.places().collect();
        for place in &wanted {
            match real.get(place) {
                None => self.servers.push(Operation::NewReal(key, *place)),
                Some(Real::Serving) => {}
                Some(_) => {
                    self.servers.push(Operation::Restore(key, *place));
                    self.settled.push((key, *place));
                }
            }
        }
        for (place, real) in real.iter().filter(|(place, _)| !wanted.contains(place)) {
            self.surplus(key, *place, *real, (config.scheduler, manner.drained_by));
        }
    }

    /// Drains or deletes a real server that is not an endpoint.
    fn surplus(
        &mut self,
        key: Key,
        place: SocketAddr,
        real: Real,
        (scheduler, drained_by): (IpvsScheduler, UptimeSecs),
    ) {
        // A UDP flow has no end to wait for. The scheduler `dh` chooses by the destination's address only, so it
        // would choose the draining server for all connections.
        if key.protocol == Protocol::Udp || scheduler == IpvsScheduler::Dh {
            self.servers.push(Operation::DeleteReal(key, place));
            return;
        }
        let until = match real {
            Real::Draining(Some(until)) => until.min(drained_by),
            _ => drained_by,
        };
        if real != Real::Draining(Some(until)) {
            self.servers.push(Operation::Drain(key, place, until));
        }
        self.draining.push((key, place, until));
    }

    /// Puts the members that restrict clients after those that allow some. The others keep their order.
    fn restrict_last(&mut self) {
        // A stable sort takes runs that are in order as they are, so this costs one pass.
        self.add.sort_by_key(|(set, _)| *set == Set::LoadBalancerFirewall);
    }

    fn add_member(&mut self, (set, member): (Set, Member)) {
        self.add.push((set, member));
        if set == Set::IpvsIps {
            self.bind.extend(address(&member));
        }
    }

    fn remove_member(&mut self, (set, member): (Set, Member)) {
        self.remove.push((set, member));
        if set == Set::IpvsIps {
            self.unbind.extend(address(&member));
        }
    }

    /// Returns the number of messages.
    pub(super) fn len(&self) -> usize {
        let members = self.add.len().saturating_add(self.remove.len());
        let addresses = self.bind.len().saturating_add(self.unbind.len());
        members.saturating_add(addresses).saturating_add(self.servers.len()).saturating_add(self.gone.len())
    }
}

impl Present {
    /// Returns the state of the kernel after a virtual server is written.
    fn of(server: &Server, manner: WriteSettings<'_>) -> Self {
        Self {
            config: Some(server.config(manner.default, manner.missing)),
            real: server.places().map(|place| (place, Real::Serving)).collect(),
        }
    }
}

fn address(member: &Member) -> Option<IpAddr> {
    match member {
        Member::Ip(address) => Some(*address),
        _ => None,
    }
}

impl Operation {
    /// Returns the scheduler that the operation needs.
    pub(super) const fn scheduler(&self) -> Option<IpvsScheduler> {
        match self {
            Self::New(_, config) | Self::Set(_, config) => Some(config.scheduler),
            _ => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port), self.protocol)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New(key, config) => {
                write!(f, "adding virtual server {key} with scheduler {}", config.scheduler)
            }
            Self::Set(key, config) => {
                write!(f, "changing virtual server {key} to scheduler {}", config.scheduler)
            }
            Self::Delete(key) => write!(f, "removing virtual server {key}"),
            Self::NewReal(key, place) => write!(f, "adding real server {place} to virtual server {key}"),
            Self::Restore(key, place) => {
                write!(f, "giving real server {place} of virtual server {key} weight {WEIGHT}")
            }
            Self::Drain(key, place, _) => {
                write!(f, "giving real server {place} of virtual server {key} weight 0")
            }
            Self::DeleteReal(key, place) => {
                write!(f, "removing real server {place} from virtual server {key}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
