//! The allocator of cluster IPs, load-balancer addresses and node ports: which ones are free, and which ones a Service
//! takes and releases.
//!
//! [`Ledger`] is guarded by the write lock. It follows the published IPAddress, ServiceCIDR, NodePort and Node objects,
//! and adds the claims of writes under way. It is a cache, never the truth: the transaction of a write requires that each
//! object it creates is absent. `portolan-ipam` decides which address a Service gets; this module translates from and
//! to objects and JSON.

mod load_balancer;
mod nodes;
mod records;
mod refusal;
mod spec;
mod steps;
#[cfg(test)]
mod tests;
mod unrecorded;
mod usage;

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use portolan_ipam::{
    AddressPools, AddressRange, Allocations, Claims, Family, FieldError, Holder, NodePortRange, NodePorts,
    Nodes, Plan, Planner, ServiceKey, ServiceSpec, families::default_on_read, family::Families,
    service_cidr::blocks_deletion,
};
use portolan_schema::{
    Resource,
    json::{self, Object},
};
use portolan_store::{Change, Expired, Scope, Step, Store, StoredObject};

pub(crate) use self::{
    load_balancer::{BALANCER, Request, held, is_being_deleted, is_ours, listed},
    records::{Cidr, FAMILY, MANAGED_BY, MANAGER, address_of, parent_of, ready_condition},
    refusal::refused,
    spec::Reading,
    steps::{exchange, hold},
};
use self::{
    nodes::FollowedNodes,
    records::{Recorded, port_of},
    unrecorded::Unrecorded,
};
pub use self::{
    records::{address_draft, load_balancer_draft, port_draft},
    usage::{AllocatorMetrics, Scope as AllocationScope},
};
use crate::config::ApiConfig;

/// Most changes read from the store at once.
const BATCH: usize = 512;

/// The allocator's state; see the module.
#[derive(Debug)]
pub(crate) struct Ledger {
    families: Families,
    is_lenient: bool,
    allocations: Allocations,
    /// The load-balancer addresses of the configured ranges.
    balancers: AddressPools,
    cidrs: Vec<Cidr>,
    nodes: FollowedNodes,
    /// The revisions up to which ServiceCIDRs, IPAddresses and NodePorts are applied. `None` if all of them must be
    /// read again.
    followed: Option<[u64; FOLLOWED.len()]>,
    /// Addresses and ports of writes whose results are not settled yet.
    in_flight: (HashSet<IpAddr>, HashSet<u16>),
    /// Addresses and ports of writes that have ended or were dropped, and whose objects may still be unpublished.
    landed: Claims,
    /// True if a Service has lost the IPAddress of an address that it still lists.
    lacks_address: bool,
    unrecorded: Unrecorded,
    random: fastrand::Rng,
    metrics: AllocatorMetrics,
}

const FOLLOWED: [Resource; 3] = [Resource::ServiceCidr, Resource::IpAddress, Resource::NodePort];

impl Ledger {
    /// Creates an empty ledger; [`Ledger::follow`] fills it.
    pub(crate) fn new(config: &ApiConfig) -> Self {
        let families: Vec<Family> =
            config.service_ranges.iter().map(|range| Family::of(range.addr())).collect();
        let primary = families.first().copied().unwrap_or(Family::Ipv4);
        Self {
            families: if families.len() > 1 { Families::dual(primary) } else { Families::single(primary) },
            is_lenient: !config.validate,
            allocations: Allocations {
                addresses: AddressPools::new(),
                ports: NodePorts::new(config.node_ports),
            },
            balancers: balancer_pools(&config.load_balancer_ranges, &[]),
            cidrs: Vec::new(),
            nodes: FollowedNodes::default(),
            followed: None,
            in_flight: <_>::default(),
            landed: Claims::default(),
            lacks_address: false,
            unrecorded: Unrecorded::default(),
            random: fastrand::Rng::new(),
            metrics: AllocatorMetrics::default(),
        }
    }

    /// Returns the families of the configured ranges.
    pub(crate) fn families(&self) -> Families {
        self.families
    }

    /// Returns the spec of a stored Service. If the Service predates the fields of dual stack, the families that it
    /// implies are filled in.
    pub(crate) fn stored_spec(&self, object: &Object) -> ServiceSpec {
        let mut spec = json::object(object, "spec").map(|spec| Reading::of(spec).spec).unwrap_or_default();
        default_on_read(&mut spec, self.families.primary());
        spec
    }

    /// Brings the ledger in sync with the published objects.
    pub(crate) fn follow(&mut self, store: &dyn Store) {
        self.settle_landed(store);
        self.nodes.follow(store);
        let followed = self.followed.take();
        if let Some(followed) = followed
            && let Ok(followed) = self.catch_up(store, followed)
        {
            self.followed = Some(followed);
        } else {
            self.followed = self.read(store).ok();
        }
        self.retire_unlisted(store);
    }

    /// Returns the Nodes.
    pub(crate) fn nodes(&self) -> &Arc<Nodes> {
        self.nodes.nodes()
    }

    /// Returns the range of node ports.
    pub(crate) fn node_port_range(&self) -> NodePortRange {
        self.allocations.ports.range()
    }

    /// Returns true if a repair has become necessary since the last call.
    pub(crate) fn take_needs_repair(&mut self) -> bool {
        std::mem::take(&mut self.lacks_address)
    }

    /// Returns the conditions under which a ServiceCIDR can be removed: that the other ServiceCIDRs stay unchanged.
    /// Returns an address as the error if removing the ServiceCIDR would leave this address without a range.
    pub(crate) fn free_service_cidr(&self, store: &dyn Store, name: &str) -> Result<Vec<Step>, IpAddr> {
        let (leaving, others): (Vec<&Cidr>, Vec<&Cidr>) = self
            .cidrs
            .iter()
            .filter(|cidr| &*cidr.name == name || !cidr.is_being_deleted)
            .partition(|cidr| &*cidr.name == name);
        let ranges = |cidrs: &[&Cidr]| cidrs.iter().flat_map(|cidr| cidr.ranges.clone()).collect::<Vec<_>>();
        let snapshot = store.snapshot(Resource::IpAddress, &Scope::default(), None);
        let objects = snapshot.map(|snapshot| snapshot.objects).unwrap_or_default();
        let managed = objects.iter().filter(|object| object.labels().get(MANAGED_BY) == Some(MANAGER));
        let addresses = managed.filter_map(|object| address_of(object));
        if let Some(address) = blocks_deletion(&ranges(&leaving), &ranges(&others), addresses) {
            return Err(address);
        }
        let resource = Resource::ServiceCidr;
        let require =
            |cidr: &&Cidr| Step::Require { resource, key: cidr.name.clone(), expected: Some(cidr.revision) };
        Ok(others.iter().map(require).collect())
    }

    /// Plans the addresses and ports that a new or changed Service takes and releases. `old` is the stored spec. Without
    /// it, the Service is new, and `is_name_taken` says that another one has its name.
    pub(crate) fn plan(
        &mut self,
        store: &dyn Store,
        (owner, is_name_taken): (&ServiceKey, bool),
        new: ServiceSpec,
        old: Option<&ServiceSpec>,
    ) -> Result<Plan, Vec<FieldError>> {
        let Self { families, is_lenient, allocations, random, .. } = self;
        let planner =
            Planner { families: *families, allocations, holders: &Recorded(store), is_lenient: *is_lenient };
        let mut random = || random.u64(..);
        match old {
            Some(old) => planner.update(owner, new, old, &mut random),
            None => planner.create(Some(owner).filter(|_| !is_name_taken), new, &mut random),
        }
    }

    /// Returns the addresses and ports that a deleted Service releases.
    pub(crate) fn plan_removal(&self, store: &dyn Store, owner: &ServiceKey, old: &ServiceSpec) -> Claims {
        let Self { families, is_lenient, allocations, .. } = self;
        let holders = &Recorded(store);
        Planner { families: *families, allocations, holders, is_lenient: *is_lenient }.delete(owner, old)
    }

    /// Marks addresses and ports as taken by a write that is given to the store.
    pub(crate) fn begin_write(&mut self, take: &Claims) {
        for address in take.addresses.iter().chain(&take.load_balancer) {
            self.mark_taken(*address);
            self.in_flight.0.insert(*address);
        }
        for port in &take.ports {
            self.allocations.ports.take(*port);
            self.in_flight.1.insert(*port);
        }
    }

    /// Settles a write that has ended or was dropped before the store returned its result.
    pub(crate) fn end_write(&mut self, store: &dyn Store, take: &Claims) {
        self.landed.addresses.extend(take.addresses.iter().chain(&take.load_balancer));
        self.landed.ports.extend(&take.ports);
        self.settle_landed(store);
    }

    /// Settles the claims of ended writes. An address or port whose object was not recorded is released. If it is
    /// recorded later, [`Ledger::follow`] marks it as taken again. Claims that the store has accepted but not
    /// published are kept, as they may still fail.
    fn settle_landed(&mut self, store: &dyn Store) {
        let is_open =
            |resource, key: &str| store.get(resource, key).is_none() && store.latest(resource, key).is_some();
        for address in std::mem::take(&mut self.landed.addresses) {
            let key = address.to_string();
            if is_open(Resource::IpAddress, &key) {
                self.landed.addresses.push(address);
                continue;
            }
            self.in_flight.0.remove(&address);
            if store.latest(Resource::IpAddress, &key).is_none() {
                self.allocations.addresses.release(address);
                self.balancers.release(address);
            }
        }
        for port in std::mem::take(&mut self.landed.ports) {
            let key = port.to_string();
            if is_open(Resource::NodePort, &key) {
                self.landed.ports.push(port);
                continue;
            }
            self.in_flight.1.remove(&port);
            if store.latest(Resource::NodePort, &key).is_none() {
                self.allocations.ports.release(port);
            }
        }
    }

    /// Retires addresses and ports that a Service has released: they are free, but are reused only after others.
    pub(crate) fn retire(&mut self, store: &dyn Store, released: &Claims) {
        for address in released.addresses.iter().chain(&released.load_balancer) {
            self.retire_address(store, *address);
        }
        for port in &released.ports {
            self.retire_port(store, *port);
        }
    }

    /// Marks an address as taken, as cluster IP and as load-balancer address.
    fn mark_taken(&mut self, address: IpAddr) {
        self.allocations.addresses.take(address);
        self.balancers.take(address);
    }

    fn retire_address(&mut self, store: &dyn Store, address: IpAddr) {
        let is_held = self.in_flight.0.contains(&address)
            || store.latest(Resource::IpAddress, &address.to_string()).is_some();
        if !is_held {
            self.allocations.addresses.retire(address);
            self.balancers.retire(address);
        }
    }

    fn retire_port(&mut self, store: &dyn Store, port: u16) {
        let is_held =
            self.in_flight.1.contains(&port) || store.latest(Resource::NodePort, &port.to_string()).is_some();
        if !is_held {
            self.allocations.ports.retire(port);
        }
    }

    fn catch_up(
        &mut self,
        store: &dyn Store,
        mut followed: [u64; FOLLOWED.len()],
    ) -> Result<[u64; FOLLOWED.len()], Expired> {
        let mut has_new_ranges = false;
        for (resource, through) in FOLLOWED.into_iter().zip(&mut followed) {
            loop {
                let changes = store.changes(resource, *through, BATCH)?;
                *through = changes.through;
                for change in &changes.changes {
                    match resource {
                        Resource::IpAddress => self.address_changed(store, change),
                        Resource::NodePort => self.port_changed(store, change),
                        _ => has_new_ranges = true,
                    }
                }
                if changes.changes.len() < BATCH {
                    break;
                }
            }
        }
        if has_new_ranges {
            self.read_ranges(store)?;
        }
        Ok(followed)
    }

    fn address_changed(&mut self, store: &dyn Store, change: &Change) {
        match (&change.new, &change.old) {
            (Some(new), _) => {
                if let Some(address) = address_of(new) {
                    self.mark_taken(address);
                    self.unrecorded.remove(address);
                }
            }
            (None, Some(old)) => {
                // The Service still lists the address whose IPAddress was deleted by hand. The address stays taken;
                // the repair loop restores the object.
                let Some(address) = address_of(old) else { return };
                let seen = store.revision();
                match self.service_that_lists(store, old, address) {
                    Some(service) => {
                        self.lacks_address = true;
                        self.unrecorded.add(address, service.key(), seen);
                    }
                    None => self.retire_address(store, address),
                }
            }
            (None, None) => {}
        }
    }

    fn port_changed(&mut self, store: &dyn Store, change: &Change) {
        match (&change.new, &change.old) {
            (Some(new), _) => {
                if let Some(port) = port_of(new) {
                    self.allocations.ports.take(port);
                }
            }
            (None, Some(old)) => {
                if let Some(port) = port_of(old) {
                    self.retire_port(store, port);
                }
            }
            (None, None) => {}
        }
    }

    /// Returns the Service that a deleted IPAddress names, if it still lists the address.
    fn service_that_lists(
        &self,
        store: &dyn Store,
        object: &StoredObject,
        address: IpAddr,
    ) -> Option<Arc<StoredObject>> {
        let Holder::Service(key) = parent_of(object) else { return None };
        let service = store.latest(Resource::Service, &key.to_string());
        service.filter(|service| self.lists(service, address))
    }

    fn lists(&self, service: &StoredObject, address: IpAddr) -> bool {
        let service = service.decode();
        self.stored_spec(&service).addresses().contains(&address)
            || self.lists_load_balancer(&service, address)
    }

    /// Reads everything from the store.
    fn read(&mut self, store: &dyn Store) -> Result<[u64; FOLLOWED.len()], Expired> {
        let [_, addresses, ports] =
            FOLLOWED.map(|resource| store.snapshot(resource, &Scope::default(), None));
        let (addresses, ports) = (addresses?, ports?);
        let range = self.allocations.ports.range();
        self.allocations = Allocations { addresses: AddressPools::new(), ports: NodePorts::new(range) };
        let recorded = ports.objects.iter().filter_map(|object| port_of(object));
        for port in recorded.chain(self.in_flight.1.iter().copied()) {
            self.allocations.ports.take(port);
        }
        let ranges = self.read_ranges(store)?;
        let balancers: Vec<AddressRange> = self.balancers.ranges().collect();
        let taken = if balancers.is_empty() { Vec::new() } else { self.recorded_addresses(store)? };
        self.balancers = balancer_pools(&balancers, &taken);
        self.take_listed(store)?;
        Ok([ranges, addresses.revision, ports.revision])
    }

    /// Marks the addresses of all Services as taken, even those whose IPAddress was deleted by hand.
    fn take_listed(&mut self, store: &dyn Store) -> Result<(), Expired> {
        self.unrecorded = Unrecorded::default();
        let snapshot = store.snapshot(Resource::Service, &Scope::default(), None)?;
        for object in snapshot.objects {
            let service = object.decode();
            for address in self.stored_spec(&service).addresses() {
                if self.allocations.addresses.take(address) {
                    self.unrecorded.add(address, object.key(), snapshot.revision);
                }
            }
            for address in if is_ours(&service) { listed(&service) } else { Vec::new() } {
                if self.balancers.take(address) {
                    self.unrecorded.add(address, object.key(), snapshot.revision);
                }
            }
        }
        Ok(())
    }

    /// Reads the ServiceCIDRs. A new range starts with the addresses that are already allocated in it.
    fn read_ranges(&mut self, store: &dyn Store) -> Result<u64, Expired> {
        let snapshot = store.snapshot(Resource::ServiceCidr, &Scope::default(), None)?;
        self.cidrs = snapshot.objects.iter().map(|object| Cidr::of(object)).collect();
        let mut ranges: Vec<(AddressRange, bool)> = Vec::new();
        for (range, is_ready) in
            self.cidrs.iter().flat_map(|cidr| cidr.ranges.iter().map(|range| (*range, cidr.is_ready)))
        {
            match ranges.iter_mut().find(|(known, _)| *known == range) {
                Some((_, any_ready)) => *any_ready |= is_ready,
                None => ranges.push((range, is_ready)),
            }
        }
        let known: Vec<AddressRange> = self.allocations.addresses.ranges().collect();
        for gone in known.iter().filter(|known| !ranges.iter().any(|(range, _)| range == *known)) {
            self.allocations.addresses.remove(*gone);
        }
        for (range, is_ready) in ranges {
            let taken = if known.contains(&range) { Vec::new() } else { self.recorded_addresses(store)? };
            self.allocations.addresses.add(range, is_ready, taken);
        }
        Ok(snapshot.revision)
    }

    fn recorded_addresses(&self, store: &dyn Store) -> Result<Vec<IpAddr>, Expired> {
        let snapshot = store.snapshot(Resource::IpAddress, &Scope::default(), None)?;
        let recorded = snapshot.objects.iter().filter_map(|object| address_of(object));
        Ok(recorded.chain(self.in_flight.0.iter().copied()).collect())
    }
}

/// Returns the pools of load-balancer addresses.
fn balancer_pools(ranges: &[AddressRange], taken: &[IpAddr]) -> AddressPools {
    let mut pools = AddressPools::new();
    for range in ranges {
        pools.add(*range, true, taken.iter().copied());
    }
    pools
}
