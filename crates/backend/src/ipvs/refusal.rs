//! What the kernel does not take, and whose it is: it harms nothing else, and is told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::ServicePortName;
use portolan_wire::ipset::Member;

use super::Error;
use super::desired::{Desired, Touched};
use super::difference::Operation;
use super::frontend::{Key, Needs, Server};
use super::set::Set;
use crate::dataplane::Refusal;

pub(super) const SCHEDULER: &str = "the kernel does not have the scheduler of its annotation \
    portolan.dev/ipvs-scheduler, so it has the default one; load the module ip_vs_NAME, or choose another one";
const FULL: &str = "an ipset that it needs is full, so it has no virtual servers (the log names the ipset); it is tried \
    again when members of the ipset go; use the nftables mode for a cluster of this size";
const SHADOWED: &str = "at one of its addresses and ports is a virtual server of somebody else (ipvs.excludeCIDRs), which \
    stays; give the Service another address, or take the network out of ipvs.excludeCIDRs";
const MEMBER: &str = "the kernel does not take one of its addresses, endpoints or source ranges into an ipset; the log \
    names it, and the rest of the Service works";
const REAL_SERVER: &str = "the kernel does not take one of its endpoints as a real server, such as one at a broadcast \
    address; the log names it, and its other endpoints work";
const VIRTUAL_SERVER: &str = "the kernel does not take one of its virtual servers; the log names it, and the rest of the Service works";
const ADDRESS: &str = "the kernel does not take one of its addresses on kube-ipvs0; the log names it, and the rest of \
    the Service works";

/// One thing that was to be written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Item {
    /// To or from a set.
    Member(Set, Member),
    /// Of a virtual server.
    Operation(Operation),
    /// Of the network device.
    Address(IpAddr),
}

/// One thing that the kernel refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) item: Item,
    pub(super) error: Error,
}

/// What was refused, to be looked up: a full set refuses as many members as it has.
#[derive(Debug, Default)]
struct Index {
    members: HashSet<(Set, Member)>,
    servers: HashSet<Key>,
    real_servers: HashMap<Key, HashSet<SocketAddr>>,
    addresses: HashSet<IpAddr>,
}

/// What the kernel went on to refuse at the last comparison.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// In words, as far as they are in the log.
    told: BTreeSet<String>,
    /// How many.
    count: usize,
    /// Whose.
    services: BTreeMap<Arc<ServicePortName>, &'static str>,
    /// Sets that had no room for all of their members.
    full: BTreeSet<Set>,
}

impl Refused {
    /// The set that it is about.
    pub(super) const fn set(&self) -> Option<Set> {
        match self.item {
            Item::Member(set, _) => Some(set),
            _ => None,
        }
    }
}

impl Refusals {
    /// How many things the kernel refused.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Takes in what is refused now; what has not been told is told.
    pub(super) fn take(&mut self, refused: &[Refused], desired: &Desired) {
        let former = std::mem::take(&mut self.told);
        for Refused { error, .. } in refused {
            let text = error.to_string();
            if !former.contains(&text) && !self.told.contains(&text) {
                tracing::error!(%error, "the kernel takes everything of Services but this");
            }
            self.told.insert(text);
        }
        self.count = refused.len();
        self.services = owners(refused, desired);
        self.services.extend(desired.shadowed().map(|name| (name.clone(), SHADOWED)));
    }

    /// Tells of sets without room, once each for as long as they are so.
    pub(super) fn tell_full(&self, overflow: &[Refused]) {
        let mut told = self.full.clone();
        for Refused { error, .. } in
            overflow.iter().filter(|refused| refused.set().is_some_and(|set| told.insert(set)))
        {
            tracing::error!(%error, "Services that need it are left out");
        }
    }

    /// Sets that have no room.
    pub(super) const fn full(&self) -> &BTreeSet<Set> {
        &self.full
    }

    /// Takes in which sets have no room.
    pub(super) fn set_full(&mut self, full: BTreeSet<Set>) {
        self.full = full;
    }

    /// Whether a change removes members from a set that had no room for others.
    pub(super) fn makes_room(&self, touched: &Touched, desired: &Desired) -> bool {
        let goes = |member: &(Set, Member)| self.full.contains(&member.0) && !desired.has_member(member);
        !self.full.is_empty() && touched.members.iter().any(|(member, was_there)| *was_there && goes(member))
    }

    /// Service ports that are not programmed as they ask for: those that are left out, and those of which the kernel lacks
    /// something.
    pub(super) fn of(&self, desired: &Desired) -> Vec<Refusal> {
        let left_out = desired.left_out().map(|name| (name, FULL));
        let services = self.services.iter().filter(|(name, _)| desired.has(name));
        left_out
            .chain(services.map(|(name, reason)| (name, *reason)))
            .map(|(name, reason)| Refusal::whole(name.clone(), reason))
            .collect()
    }
}

impl Index {
    fn new(refused: &[Refused]) -> Self {
        let mut index = Self::default();
        for Refused { item, .. } in refused {
            match *item {
                Item::Member(set, member) => drop(index.members.insert((set, member))),
                Item::Operation(Operation::New(key, _) | Operation::Set(key, _) | Operation::Delete(key)) => {
                    index.servers.insert(key);
                }
                Item::Operation(
                    Operation::NewReal(key, place)
                    | Operation::Restore(key, place)
                    | Operation::Drain(key, place, _)
                    | Operation::DeleteReal(key, place),
                ) => drop(index.real_servers.entry(key).or_default().insert(place)),
                Item::Address(address) => drop(index.addresses.insert(address)),
            }
        }
        index
    }

    /// What is the matter with a Service port that has these needs. What was to be removed is nobody's.
    fn reason(&self, needs: &Needs) -> Option<&'static str> {
        let lacks_real = |(key, server): &(Key, Server)| {
            let refused = self.real_servers.get(key);
            refused.is_some_and(|refused| server.places().any(|place| refused.contains(&place)))
        };
        let lacks_address = |&(set, member): &(Set, Member)| {
            set == Set::IpvsIps && member.address().is_some_and(|address| self.addresses.contains(&address))
        };
        if needs.members.iter().any(|member| self.members.contains(member)) {
            Some(MEMBER)
        } else if needs.servers.iter().any(|(key, _)| self.servers.contains(key)) {
            Some(VIRTUAL_SERVER)
        } else if needs.servers.iter().any(lacks_real) {
            Some(REAL_SERVER)
        } else if needs.members.iter().any(lacks_address) {
            Some(ADDRESS)
        } else {
            None
        }
    }
}

/// Who needs what was refused. Each is asked: refusals are rare, and not worth keeping a list for.
pub(super) fn owners(refused: &[Refused], desired: &Desired) -> BTreeMap<Arc<ServicePortName>, &'static str> {
    if refused.is_empty() {
        return BTreeMap::new();
    }
    let index = Index::new(refused);
    let reason = |(name, forwarding): (&Arc<ServicePortName>, _)| {
        Some((name.clone(), index.reason(&desired.needs(forwarding))?))
    };
    desired.forwardings().filter_map(reason).collect()
}

#[cfg(test)]
mod tests;
