//! What the kernel does not take, and whose it is: it harms nothing else, and is told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::ServicePortName;
use portolan_wire::ipset::Member;

use super::Error;
use super::desired::{Desired, Touched};
use super::difference::Operation;
use super::frontend::Needs;
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

impl Item {
    /// Whether a Service port with these needs is why it was to be written. What was to be removed is nobody's.
    fn is_for(&self, needs: &Needs) -> bool {
        let has = |set, member| needs.members.contains(&(set, member));
        match *self {
            Self::Member(set, member) => has(set, member),
            Self::Address(address) => has(Set::IpvsIps, Member::Ip(address)),
            Self::Operation(Operation::New(key, _) | Operation::Set(key, _) | Operation::Delete(key)) => {
                needs.servers.iter().any(|(of, _)| *of == key)
            }
            Self::Operation(
                Operation::NewReal(key, place)
                | Operation::SetReal(key, place, _)
                | Operation::DeleteReal(key, place),
            ) => needs
                .servers
                .iter()
                .any(|(of, server)| *of == key && server.places().any(|other| other == place)),
        }
    }

    const fn reason(&self) -> &'static str {
        match self {
            Self::Member(..) => MEMBER,
            Self::Address(_) => ADDRESS,
            Self::Operation(Operation::New(..) | Operation::Set(..) | Operation::Delete(_)) => VIRTUAL_SERVER,
            Self::Operation(_) => REAL_SERVER,
        }
    }
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
            .map(|(name, reason)| Refusal { name: name.clone(), reason })
            .collect()
    }
}

/// Who needs what was refused. Each is asked: refusals are rare, and not worth keeping a list for.
pub(super) fn owners(refused: &[Refused], desired: &Desired) -> BTreeMap<Arc<ServicePortName>, &'static str> {
    let mut owners = BTreeMap::new();
    if refused.is_empty() {
        return owners;
    }
    for (name, forwarding) in desired.forwardings() {
        let needs = desired.needs(forwarding);
        if let Some(Refused { item, .. }) = refused.iter().find(|refused| refused.item.is_for(&needs)) {
            owners.insert(name.clone(), item.reason());
        }
    }
    owners
}
