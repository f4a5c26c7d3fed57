//! What has to be written for the kernel to have what it shall: of a change, or after everything was read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use portolan_model::{IpvsScheduler, Protocol};
use portolan_wire::ipset::Member;

use super::desired::{Desired, Touched};
use super::draining::Draining;
use super::frontend::{Config, Key, Server};
use super::set::Set;

/// The share of new connections that every endpoint has.
pub(super) const WEIGHT: u32 = 1;

/// How virtual servers of the table become the kernel's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedulers<'a> {
    /// For Services that ask for nothing.
    pub(super) default: IpvsScheduler,
    /// Those that the kernel does not have.
    pub(super) missing: &'a [IpvsScheduler],
}

/// A virtual server as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Present {
    /// Nothing where the scheduler is none that we know.
    pub(super) config: Option<Config>,
    /// Real servers with their weights; none where one does not work as ours do.
    pub(super) real: BTreeMap<SocketAddr, Option<u32>>,
}

/// One message about a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    New(Key, Config),
    Set(Key, Config),
    Delete(Key),
    NewReal(Key, SocketAddr),
    SetReal(Key, SocketAddr, u32),
    DeleteReal(Key, SocketAddr),
}

/// What has to be written, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Members to add to sets.
    pub(super) add: Vec<(Set, Member)>,
    /// Virtual servers that come or change, and their real servers.
    pub(super) servers: Vec<Operation>,
    /// Addresses to add to the network device.
    pub(super) bind: Vec<IpAddr>,
    /// Virtual servers that go.
    pub(super) gone: Vec<Operation>,
    /// Addresses to remove from the network device.
    pub(super) unbind: Vec<IpAddr>,
    /// Members to remove from sets.
    pub(super) remove: Vec<(Set, Member)>,
    /// Real servers that go on with the connections that they have.
    pub(super) draining: Vec<(Key, SocketAddr)>,
    /// Real servers that do not do so any more: they are needed again, or gone.
    pub(super) settled: Vec<(Key, SocketAddr)>,
}

impl Difference {
    /// What a change asks for, when the kernel has what was desired before.
    pub(super) fn of_change(
        touched: &Touched,
        desired: &Desired,
        draining: &Draining,
        schedulers: Schedulers<'_>,
    ) -> Self {
        let mut difference = Self::default();
        for (&member, &was_there) in &touched.members {
            match (was_there, desired.has_member(&member)) {
                (false, true) => difference.add_member(member),
                (true, false) => difference.remove_member(member),
                _ => {}
            }
        }
        for (key, former) in &touched.servers {
            let present = former.as_ref().map(|server| {
                let mut present = Present::of(server, schedulers);
                present.real.extend(draining.of(key).map(|place| (place, Some(0))));
                present
            });
            difference.server(*key, present.as_ref(), desired.server(key), schedulers);
        }
        difference
    }

    /// Compares the members of a set with what it is to have. The addresses of the network device are compared with the
    /// device itself.
    pub(super) fn members(&mut self, set: Set, present: &BTreeSet<Member>, desired: &Desired) {
        let add = desired.members_of(set).filter(|member| !present.contains(member));
        self.add.extend(add.map(|member| (set, *member)));
        let remove = present.iter().filter(|member| !desired.has_member(&(set, **member)));
        self.remove.extend(remove.map(|member| (set, *member)));
    }

    /// Compares the addresses of the network device with what it is to have.
    pub(super) fn addresses(&mut self, present: &BTreeSet<IpAddr>, desired: &Desired) {
        let wanted = desired.members_of(Set::IpvsIps).filter_map(address);
        self.bind.extend(wanted.filter(|address| !present.contains(address)));
        let is_wanted = |address: IpAddr| desired.has_member(&(Set::IpvsIps, Member::Ip(address)));
        self.unbind.extend(present.iter().filter(|address| !is_wanted(**address)));
    }

    /// Compares one virtual server with what it is to be.
    pub(super) fn server(
        &mut self,
        key: Key,
        present: Option<&Present>,
        desired: Option<&Server>,
        schedulers: Schedulers<'_>,
    ) {
        let Some(desired) = desired else {
            if let Some(present) = present {
                self.gone.push(Operation::Delete(key));
                self.settled.extend(present.real.keys().map(|place| (key, *place)));
            }
            return;
        };
        let config = desired.config(schedulers.default, schedulers.missing);
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
                Some(Some(WEIGHT)) => {}
                Some(_) => {
                    self.servers.push(Operation::SetReal(key, *place, WEIGHT));
                    self.settled.push((key, *place));
                }
            }
        }
        for (place, weight) in real.iter().filter(|(place, _)| !wanted.contains(place)) {
            self.surplus(key, *place, *weight, config.scheduler);
        }
    }

    /// A real server that is no endpoint any more.
    fn surplus(&mut self, key: Key, place: SocketAddr, weight: Option<u32>, scheduler: IpvsScheduler) {
        // A flow of UDP has no end that could be waited for; and by the destination's address alone, all go on to a
        // server that takes nothing new.
        if key.protocol == Protocol::Udp || scheduler == IpvsScheduler::Dh {
            self.servers.push(Operation::DeleteReal(key, place));
            return;
        }
        if weight != Some(0) {
            self.servers.push(Operation::SetReal(key, place, 0));
        }
        self.draining.push((key, place));
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

    /// How many messages it takes.
    pub(super) fn len(&self) -> usize {
        let members = self.add.len().saturating_add(self.remove.len());
        let addresses = self.bind.len().saturating_add(self.unbind.len());
        members.saturating_add(addresses).saturating_add(self.servers.len()).saturating_add(self.gone.len())
    }
}

impl Present {
    /// What the kernel has once a virtual server is written.
    fn of(server: &Server, schedulers: Schedulers<'_>) -> Self {
        Self {
            config: Some(server.config(schedulers.default, schedulers.missing)),
            real: server.places().map(|place| (place, Some(WEIGHT))).collect(),
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
    /// The scheduler that it needs.
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
            Self::SetReal(key, place, weight) => {
                write!(f, "giving real server {place} of virtual server {key} weight {weight}")
            }
            Self::DeleteReal(key, place) => {
                write!(f, "removing real server {place} from virtual server {key}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
