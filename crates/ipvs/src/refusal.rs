//! Objects that the kernel refuses. They are reported with the Service ports that need them, and everything else is
//! written.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::{Forwarding, ServicePortName};
use portolan_wire::ipset::Member;

use super::Error;
use super::desired::{Desired, Touched};
use super::difference::Operation;
use super::frontend::{Key, Needs, Server};
use super::set::Set;
use portolan_engine::dataplane::Refusal;
use portolan_engine::table::Table;

pub(super) const SCHEDULER: &str = "the kernel does not have the scheduler of its annotation \
    portolan.dev/ipvs-scheduler, so it has the default one; load the module ip_vs_NAME, or choose another one";
const FULL: &str = "an ipset that it needs is full, so it has no virtual servers (the log names the ipset); it is tried \
    again when members of the ipset go; use the nftables mode for a cluster of this size";
const SHADOWED: &str = "at one of its addresses and ports is a virtual server of another program, which stays \
    (ipvs.excludeCIDRs); give the Service another address, or take the network out of ipvs.excludeCIDRs";
const MEMBER: &str = "the kernel does not take one of its addresses, endpoints or source ranges into an ipset; the log \
    names it, and the rest of the Service works";
const REAL_SERVER: &str = "the kernel does not take one of its endpoints as a real server, such as one at a broadcast \
    address; the log names it, and its other endpoints work";
const VIRTUAL_SERVER: &str = "the kernel does not take one of its virtual servers; the log names it, and the rest of the Service works";
const ADDRESS: &str = "the kernel does not take one of its addresses on kube-ipvs0; the log names it, and the rest of \
    the Service works";

/// One object of a write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Item {
    /// A member to be added to or removed from a set.
    Member(Set, Member),
    /// A change of a virtual server or a real server.
    Operation(Operation),
    /// An address of the network device.
    Address(IpAddr),
}

/// One object that the kernel refused.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) item: Item,
    pub(super) error: Error,
}

/// The refused objects, indexed for lookup: a full set may refuse as many members as it has.
#[derive(Debug, Default)]
struct Index {
    members: HashSet<(Set, Member)>,
    servers: HashSet<Key>,
    real_servers: HashMap<Key, HashSet<SocketAddr>>,
    addresses: HashSet<IpAddr>,
}

/// What the kernel refused again at the last comparison.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// The error texts that have been logged.
    logged: BTreeSet<String>,
    /// The number of refused objects.
    count: usize,
    /// The Service ports that need them, with the reason.
    services: BTreeMap<Arc<ServicePortName>, &'static str>,
    /// Sets that had no room for all members.
    full: BTreeSet<Set>,
}

impl Refused {
    /// Returns the address of the device that the refusal is about, if it is about one.
    pub(super) const fn address(&self) -> Option<IpAddr> {
        match self.item {
            Item::Address(address) => Some(address),
            _ => None,
        }
    }

    /// Returns the set that the refusal is about, if it is about a member.
    pub(super) const fn set(&self) -> Option<Set> {
        match self.item {
            Item::Member(set, _) => Some(set),
            _ => None,
        }
    }
}

impl Refusals {
    /// Returns the number of refused objects.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Stores the current refusals, and logs those that have not been logged.
    pub(super) fn take(&mut self, refused: &[Refused], desired: &Desired, table: &Table) {
        let former = std::mem::take(&mut self.logged);
        for Refused { error, .. } in refused {
            let text = error.to_string();
            if !former.contains(&text) && !self.logged.contains(&text) {
                tracing::error!(%error, "the kernel refused a part of a Service; the other parts work");
            }
            self.logged.insert(text);
        }
        self.count = refused.len();
        self.services = owners(refused, desired, table);
        self.services.extend(desired.blocked(table).map(|name| (name.clone(), SHADOWED)));
    }

    /// Logs each full set, once for as long as it is full.
    pub(super) fn log_full(&self, overflow: &[Refused]) {
        let mut logged = self.full.clone();
        for Refused { error, .. } in
            overflow.iter().filter(|refused| refused.set().is_some_and(|set| logged.insert(set)))
        {
            tracing::error!(%error, "Services that need it are left out");
        }
    }

    /// Returns the full sets.
    pub(super) const fn full(&self) -> &BTreeSet<Set> {
        &self.full
    }

    /// Stores which sets are full.
    pub(super) fn set_full(&mut self, full: BTreeSet<Set>) {
        self.full = full;
    }

    /// Returns true if a change removes members from a full set.
    pub(super) fn makes_room(&self, touched: &Touched, desired: &Desired) -> bool {
        let goes = |member: &(Set, Member)| self.full.contains(&member.0) && !desired.has_member(member);
        !self.full.is_empty() && touched.members.iter().any(|(member, was_there)| *was_there && goes(member))
    }

    /// Returns the Service ports that are not programmed completely: those that are left out, and those that need a
    /// refused object.
    pub(super) fn of(&self, desired: &Desired, table: &Table) -> Vec<Refusal> {
        let left_out = desired.left_out().map(|name| (name, FULL));
        let services = self.services.iter().filter(|(name, _)| table.has(name));
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

    /// Returns why a Service port with these needs is not programmed completely. The refusal of a removal concerns no
    /// Service port.
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

/// Returns the Service ports that need refused objects, with the reason. Searches all of them: refusals are too rare
/// to keep an index for.
pub(super) fn owners(
    refused: &[Refused],
    desired: &Desired,
    table: &Table,
) -> BTreeMap<Arc<ServicePortName>, &'static str> {
    if refused.is_empty() {
        return BTreeMap::new();
    }
    let index = Index::new(refused);
    let reason = |(name, forwarding): (&Arc<ServicePortName>, Arc<Forwarding>)| {
        Some((name.clone(), index.reason(&desired.needs(&forwarding))?))
    };
    table.iter().filter_map(reason).collect()
}

#[cfg(test)]
mod tests;
