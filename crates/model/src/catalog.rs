//! A compact cache of the watched API objects, which tracks the Service ports that each event affects.
//!
//! Events go in one at a time through [`Catalog::apply`]. [`Catalog::take_changes`] returns the differences since the
//! last call, computed only from the Services that were touched. Forwardings are not stored: they are compiled from
//! the objects on request, and once before the first event that could change them, so that old and new can be
//! compared.
//!
//! The result depends on the objects alone, not on the order of the events.

mod api_server;
mod aside;
mod claim;
mod compile;
mod event;
mod explain;
mod faults;
mod guard;
mod index;
mod ingest;
mod kept;
mod left_out;
mod record;
mod review;
mod store;
mod take;

pub use api_server::ApiServer;
pub use event::{
    Applied, Changes, Event, HealthCheck, HealthCheckChange, NoLocalEndpoints, ObjectFault, PerFamily,
    UdpService,
};
pub use explain::{ExplainedPort, SliceOf};
pub use guard::{AddressGuard, AddressOwner, GuardAction};
pub use kept::{KeptEndpoint, KeptService, KeptSlice};
pub use left_out::{LeftOut, WhyLeftOut};
pub use review::GuardedAddresses;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::object::{Kind, Node, ObjectKey, ServicePort, SlicePort};
use crate::{Family, Forwarding, Protocol, ServicePortName};
use api_server::HiddenAddresses;
use aside::Aside;
use claim::{Claim, Claims, claims_of, strength};
use compile::{Compiled, Compiler};
use faults::FaultyObjects;
use record::{Interner, ServiceRecord, SliceRecord};
use review::Review;
use store::{Id, Store};

/// The cached objects and the pending changes.
#[derive(Debug, Clone)]
pub struct Catalog {
    node_name: Box<str>,
    node: Option<Node>,
    services: Store<ServiceRecord>,
    slices: Store<SliceRecord>,
    claims: Claims,
    api_server: ApiServer,
    hidden: HiddenAddresses,
    review: Review,
    aside: Aside,
    cidrs: HashMap<ObjectKey, CidrRecord>,
    /// Names of namespaces and of Service ports.
    names: Interner<str>,
    service_ports: Interner<[ServicePort]>,
    slice_ports: Interner<[SlicePort]>,
    zones: Interner<[Box<str>]>,
    lists: Lists,
    pending: Pending,
    faulty: FaultyObjects,
    health_checks: HashMap<Id, HealthCheck>,
    no_local: PerFamily<NoLocalEndpoints>,
    taken_cidrs: Vec<IpNet>,
    triggers_since: i64,
}

#[derive(Debug, Clone)]
struct CidrRecord {
    cidrs: Vec<IpNet>,
    generation: u32,
}

/// The progress of the list of each kind.
#[derive(Debug, Clone, Default)]
struct Lists {
    services: List,
    slices: List,
    cidrs: List,
}

#[derive(Debug, Clone, Copy, Default)]
struct List {
    generation: u32,
    complete: bool,
}

/// State for the next call of `take_changes` or `drain_changes`.
#[derive(Debug, Clone, Default)]
struct Pending {
    /// Touched Services, each once.
    dirty: Vec<Id>,
    /// The former forwardings of touched Services, if they were taken before.
    old: HashMap<Id, Vec<Compiled>>,
    triggers: HashMap<Id, Vec<(Family, i64)>>,
}

impl Catalog {
    /// Creates an empty Catalog for the node of this name. With an empty name no endpoint is local.
    pub fn new(node_name: impl Into<Box<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            node: None,
            services: Store::default(),
            slices: Store::default(),
            claims: Claims::default(),
            api_server: ApiServer::default(),
            hidden: HiddenAddresses::default(),
            review: Review::default(),
            aside: Aside::default(),
            cidrs: HashMap::new(),
            names: Interner::default(),
            service_ports: Interner::default(),
            slice_ports: Interner::default(),
            zones: Interner::default(),
            lists: Lists::default(),
            pending: Pending::default(),
            faulty: FaultyObjects::default(),
            health_checks: HashMap::new(),
            no_local: PerFamily::default(),
            taken_cidrs: Vec::new(),
            triggers_since: i64::MIN,
        }
    }

    /// Drops trigger times that are not later than this (nanoseconds since the Unix epoch): changes before the start
    /// of the program do not measure its latency.
    #[must_use]
    pub const fn with_triggers_since(mut self, nanoseconds: i64) -> Self {
        self.triggers_since = nanoseconds;
        self
    }

    /// Applies an event.
    pub fn apply(&mut self, event: Event) -> Applied {
        let mut applied = Applied::default();
        match event {
            Event::Service(object) => self.upsert_service(object, &mut applied),
            Event::ServiceDeleted(key) => {
                self.faulty.forget(Kind::Service, &key);
                self.delete_service(&key, &mut applied);
            }
            Event::EndpointSlice(object) => self.upsert_slice(object, &mut applied),
            Event::EndpointSliceDeleted(key) => {
                self.faulty.forget(Kind::EndpointSlice, &key);
                self.delete_slice(&key, &mut applied);
            }
            Event::Node(object) => self.upsert_node(object, &mut applied),
            Event::NodeDeleted(_) => {}
            Event::ServiceCidr(object) => self.upsert_cidr(object, &mut applied),
            Event::ServiceCidrDeleted(key) => {
                self.faulty.forget(Kind::ServiceCidr, &key);
                applied.changed = self.cidrs.remove(&key).is_some();
                self.review_cidrs(&mut applied);
            }
            Event::ListStart(kind) => self.start_list(kind),
            Event::ListEnd(kind) => self.end_list(kind, &mut applied),
            Event::ServiceCidrsUnavailable => {
                self.lists.cidrs.complete = true;
                self.review_complete(&mut applied);
            }
        }
        applied
    }

    /// Returns true if the initial state is complete: Services, EndpointSlices and ServiceCIDRs have each been listed
    /// to the end, or ServiceCIDRs are unavailable.
    pub const fn synced(&self) -> bool {
        let Lists { services, slices, cidrs } = &self.lists;
        services.complete && slices.complete && cidrs.complete
    }

    /// Returns the kinds whose first list is not complete, for which [`synced`](Self::synced) waits.
    pub fn unsynced_kinds(&self) -> impl Iterator<Item = Kind> {
        let Lists { services, slices, cidrs } = &self.lists;
        let lists = [(services, Kind::Service), (slices, Kind::EndpointSlice), (cidrs, Kind::ServiceCidr)];
        lists.into_iter().filter(|(list, _)| !list.complete).map(|(_, kind)| kind)
    }

    /// Returns the name of this node.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// Returns the last state of this node, or `None` before its first event.
    pub const fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// Iterates over the whole table of a family, in no particular order. Forwardings are compiled during the
    /// iteration.
    ///
    /// Before the whole table is programmed, [`take_changes`](Self::take_changes) or
    /// [`drain_changes`](Self::drain_changes) must be called, so that later changes build on this state.
    pub fn forwardings(
        &self,
        family: Family,
    ) -> impl Iterator<Item = (Arc<ServicePortName>, Arc<Forwarding>)> {
        let compiler = self.compiler();
        self.services.iter().flat_map(move |(id, _)| compiler.named(id, family))
    }

    /// Returns the forwarding of a Service port in a family.
    pub fn forwarding(&self, name: &ServicePortName, family: Family) -> Option<Arc<Forwarding>> {
        let id = self.services.find(&name.namespace, &name.service)?;
        let ports = self.compiler().named(id, family);
        ports.into_iter().find(|(known, _)| **known == *name).map(|(_, forwarding)| forwarding)
    }

    /// Returns the number of Services that are proxied.
    pub fn service_count(&self) -> usize {
        self.services.iter().filter(|(_, record)| record.service.is_some()).count()
    }

    /// Returns the number of EndpointSlices that are cached.
    pub fn slice_count(&self) -> usize {
        self.slices.len()
    }

    /// Returns the CIDRs of a family from which cluster IPs are allocated, sorted and without duplicates.
    pub fn service_cidrs(&self, family: Family) -> Vec<IpNet> {
        let mut cidrs = self.all_cidrs();
        cidrs.retain(|cidr| Family::of(cidr.addr()) == family);
        cidrs
    }

    /// Returns the health check servers and their counts as of the last take, sorted by Service.
    pub fn health_checks(&self) -> Vec<(ObjectKey, HealthCheck)> {
        let with_key = |(id, check): (&Id, &HealthCheck)| Some((self.services.get(*id)?.key(), *check));
        let mut checks: Vec<_> = self.health_checks.iter().filter_map(with_key).collect();
        checks.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        checks
    }

    /// Returns the health-check node ports of the Services of a family, in any order.
    pub fn health_check_ports(&self, family: Family) -> Vec<u16> {
        let compiler = self.compiler();
        let checks = self.services.iter().filter_map(|(id, _)| compiler.health_check(id));
        checks.filter(|check| check.local_ready.get(family).is_some()).map(|check| check.port).collect()
    }

    /// Returns the number of Service ports without an endpoint on this node as of the last take.
    pub const fn no_local_endpoints(&self, family: Family) -> NoLocalEndpoints {
        *self.no_local.get(family)
    }

    /// Iterates over the UDP Service ports of a family with their frontends and serving endpoints, for conntrack
    /// clean-up. Ports without a serving endpoint are included; their flows are not cleaned up.
    pub fn udp_services(&self, family: Family) -> impl Iterator<Item = UdpService> {
        let compiler = self.compiler();
        self.services.iter().flat_map(move |(id, _)| compiler.udp(id, family))
    }

    /// Returns a UDP Service port, as [`udp_services`](Self::udp_services) does.
    pub fn udp_service(&self, name: &ServicePortName, family: Family) -> Option<UdpService> {
        let id = self.services.find(&name.namespace, &name.service)?;
        self.compiler().udp(id, family).into_iter().find(|udp| *udp.name == *name)
    }

    /// Returns the UDP Service ports that have a frontend at one of these addresses with this port. Node ports do not count.
    pub fn udp_services_at(&self, addresses: &[IpAddr], port: u16) -> Vec<UdpService> {
        let at = |&address: &IpAddr| {
            let (socket, family) = (SocketAddr::new(address, port), Family::of(address));
            let claim = Claim::of_socket(socket, family, Protocol::Udp);
            let owners: Vec<Id> =
                self.claims.claimants(&claim, &self.services).map(|(_, id, _)| id).collect();
            let udp = owners.into_iter().flat_map(move |id| self.compiler().udp(id, family));
            udp.filter(move |udp| udp.frontends.iter().any(|frontend| frontend.socket() == Some(socket)))
        };
        addresses.iter().flat_map(at).collect()
    }

    /// Returns the number of objects of a kind that have faults of their own, including objects that are ignored as a
    /// whole. Conflicts between Services do not count.
    pub fn faulty_objects(&self, kind: Kind) -> usize {
        self.faulty.count(kind)
    }

    /// Iterates over the conflicts of Services, with a fault for each frontend that another Service owns.
    pub fn conflicts(&self) -> impl Iterator<Item = ObjectFault> {
        self.conflicts_where(|_| true)
    }

    /// Returns the conflicts of the Services with a name, in one namespace or in all. The cost is that of comparing all
    /// names, and of the claims of these Services.
    pub fn conflicts_of(&self, namespace: Option<&str>, service: &str) -> Vec<ObjectFault> {
        let is_it = |record: &ServiceRecord| {
            *record.name == *service && namespace.is_none_or(|namespace| *record.namespace == *namespace)
        };
        self.conflicts_where(is_it).collect()
    }

    fn conflicts_where(
        &self,
        is_asked: impl Fn(&ServiceRecord) -> bool,
    ) -> impl Iterator<Item = ObjectFault> {
        let asked = self.services.iter().filter(move |(_, record)| is_asked(record));
        asked.flat_map(move |(id, record)| {
            let claims = claims_of(record.service.as_ref()).into_iter();
            claims.filter_map(move |(claim, rank)| {
                let (rival_rank, _, rival) = self.claims.strongest_rival(&claim, id, &self.services)?;
                let lost = strength(rival_rank, rival) < strength(rank, record);
                let fault = || claim.conflict(rank, rival);
                lost.then(|| ObjectFault { kind: Kind::Service, key: record.key(), fault: fault() })
            })
        })
    }

    fn compiler(&self) -> Compiler<'_> {
        let zone = self.node.as_ref().and_then(|node| node.zone.as_deref());
        Compiler {
            services: &self.services,
            slices: &self.slices,
            claims: &self.claims,
            api_server: &self.api_server,
            review: &self.review,
            aside: &self.aside,
            zone,
        }
    }

    fn all_cidrs(&self) -> Vec<IpNet> {
        let mut cidrs: Vec<IpNet> =
            self.cidrs.values().flat_map(|record| record.cidrs.iter().copied()).collect();
        cidrs.sort_unstable();
        cidrs.dedup();
        cidrs
    }

    /// Marks a Service for the next take and keeps its forwardings. Must be called before an event changes them.
    fn touch(&mut self, id: Id) {
        let Some(record) = self.services.get_mut(id) else { return };
        if record.dirty {
            return;
        }
        record.dirty = true;
        let settled = record.settled;
        self.pending.dirty.push(id);
        if settled {
            let old = self.compiler().service(id);
            if !old.is_empty() {
                self.pending.old.insert(id, old);
            }
        }
    }
}

#[cfg(test)]
mod tests;
