//! A model of the kernel for tests: it takes the writes of a [`Difference`] and shows what a comparison or a reader
//! finds then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use portolan_model::{Family, IpvsScheduler};
use portolan_wire::ipset::Member;
use portolan_wire::ipvs::{Counters, FLAG_HASHED, RealServer, VirtualServer};

use super::desired::Desired;
use super::device::Addresses;
use super::difference::{Difference, Operation, Present, Real, WEIGHT, WriteSettings};
use super::draining::UptimeSecs;
use super::frontend::Key;
use super::observe::Rows;
use super::rules::InForce;
use super::set::{Set, Sets};

pub(super) fn manner() -> WriteSettings<'static> {
    let drained_by = UptimeSecs::now().after(std::time::Duration::from_secs(9));
    WriteSettings { default: IpvsScheduler::Rr, missing: &[], drained_by }
}

/// A model of the kernel that refuses what the real one refuses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Kernel {
    pub(super) members: BTreeSet<(Set, Member)>,
    pub(super) addresses: BTreeSet<IpAddr>,
    pub(super) servers: BTreeMap<Key, Present>,
}

impl Kernel {
    pub(super) fn take(&mut self, difference: &Difference) {
        self.members.extend(difference.add.iter().copied());
        difference.servers.iter().for_each(|operation| self.operate(operation));
        for address in &difference.bind {
            assert!(self.addresses.insert(*address), "{address} is there");
        }
        difference.gone.iter().for_each(|operation| self.operate(operation));
        for address in &difference.unbind {
            assert!(self.addresses.remove(address), "{address} is not there");
        }
        for member in &difference.remove {
            assert!(self.members.remove(member), "{member:?} is not there");
        }
    }

    pub(super) fn operate(&mut self, operation: &Operation) {
        match *operation {
            Operation::New(key, config) => {
                let server = Present { config: Some(config), real: BTreeMap::new() };
                assert_eq!(self.servers.insert(key, server), None, "{operation}");
            }
            Operation::Set(key, config) => self.server(key).config = Some(config),
            Operation::Delete(key) => assert!(self.servers.remove(&key).is_some(), "{operation}"),
            Operation::NewReal(key, place) => {
                assert_eq!(self.server(key).real.insert(place, Real::Serving), None, "{operation}");
            }
            Operation::Restore(key, place) => {
                assert!(self.server(key).real.insert(place, Real::Serving).is_some(), "{operation}");
            }
            Operation::Drain(key, place, until) => {
                let drains = Real::Draining(Some(until));
                assert!(self.server(key).real.insert(place, drains).is_some(), "{operation}");
            }
            Operation::DeleteReal(key, place) => {
                assert!(self.server(key).real.remove(&place).is_some(), "{operation}");
            }
        }
    }

    fn server(&mut self, key: Key) -> &mut Present {
        self.servers.get_mut(&key).unwrap_or_else(|| panic!("{key} is not there"))
    }

    /// Returns what a comparison with this kernel would write.
    pub(super) fn compared(&self, desired: &Desired) -> Difference {
        let mut difference = Difference::default();
        for set in Set::ALL {
            let of_set = self.members.iter().filter(|(of, _)| *of == set);
            difference.members(set, &of_set.map(|(_, member)| *member).collect(), desired);
        }
        let present = Addresses { device: self.addresses.clone(), ..Addresses::default() };
        difference.addresses(&present, desired);
        let keys: BTreeSet<Key> =
            desired.servers().map(|(key, _)| *key).chain(self.servers.keys().copied()).collect();
        for key in keys {
            difference.server(key, self.servers.get(&key), desired.server(&key), manner());
        }
        difference
    }

    /// Returns what a reader finds on a node with these addresses on other devices.
    pub(super) fn rows(&self, family: Family, node: &[IpAddr]) -> Rows {
        let mut sets: Sets = Set::ALL.map(|set| (set, BTreeSet::new())).into();
        for (set, member) in &self.members {
            sets.entry(*set).or_default().insert(*member);
        }
        let addresses = Addresses {
            device: self.addresses.clone(),
            node: node.iter().copied().collect(),
            ..Addresses::default()
        };
        let virtual_server = |(key, present): (&Key, &Present)| {
            let config = present.config.expect("the scheduler is known");
            let server = VirtualServer {
                identity: key.identity(),
                scheduler: config.scheduler.name().to_owned(),
                flags: config.flags | FLAG_HASHED,
                timeout: config.timeout,
                counters: Counters::default(),
            };
            (*key, server)
        };
        let real_server = |(place, real): (&SocketAddr, &Real)| match real {
            Real::Draining(_) => RealServer::new(*place, 0),
            Real::Serving | Real::Other => RealServer::new(*place, WEIGHT),
        };
        Rows {
            family,
            local: addresses.device.union(&addresses.node).copied().collect(),
            addresses,
            sets,
            counts: self.members.iter().filter(|(set, _)| set.counts()).map(|member| (*member, 0)).collect(),
            servers: self.servers.iter().map(virtual_server).collect(),
            real: self
                .servers
                .iter()
                .map(|(key, present)| (*key, present.real.iter().map(real_server).collect()))
                .collect(),
            rules: InForce { restrict_sources: true, refuse_what_is_in_no_set: true },
        }
    }
}
