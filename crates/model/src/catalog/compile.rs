//! Compiles a Service and its EndpointSlices into forwardings.

use std::net::SocketAddr;
use std::sync::Arc;

use super::api_server::ApiServer;
use super::aside::Aside;
use super::claim::{Claim, Claims, Rank, RankedClaim, WithinService, frontends, strength};
use super::explain::SliceOf;
use super::guard::AddressOwner;
use super::record::{ServiceRecord, SliceRecord};
use super::review::Review;
use super::store::{Id, Store};
use super::{HealthCheck, PerFamily, UdpService};
use crate::object::{Service, ServicePort};
use crate::selection::{self, Demand, Endpoint, Explanation};
use crate::{ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, Protocol, ServicePortName};

/// All inputs of the compilation.
#[derive(Clone, Copy)]
pub(super) struct Compiler<'a> {
    pub(super) services: &'a Store<ServiceRecord>,
    pub(super) slices: &'a Store<SliceRecord>,
    pub(super) claims: &'a Claims,
    pub(super) api_server: &'a ApiServer,
    pub(super) review: &'a Review,
    pub(super) aside: &'a Aside,
    pub(super) zone: Option<&'a str>,
}

/// A Service port in both families.
#[derive(Debug, Clone)]
pub(super) struct Compiled {
    pub(super) name: Arc<ServicePortName>,
    pub(super) forwarding: PerFamily<Option<Arc<Forwarding>>>,
}

impl<'a> Compiler<'a> {
    /// Returns the ports of a Service in both families, sorted by name.
    pub(super) fn service(self, id: Id) -> Vec<Compiled> {
        let Some((record, service)) = self.proxied(id) else { return Vec::new() };
        let mut ports: Vec<Compiled> = service
            .ports
            .iter()
            .map(|port| Compiled {
                name: Arc::new(port_name(record, port)),
                forwarding: PerFamily::default(),
            })
            .collect();
        for family in Family::BOTH {
            for (index, forwarding) in self.family(id, family) {
                if let Some(port) = ports.get_mut(index) {
                    *port.forwarding.get_mut(family) = Some(Arc::new(forwarding));
                }
            }
        }
        ports.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        ports
    }

    /// Returns the ports of a Service in one family with their names.
    pub(super) fn named(self, id: Id, family: Family) -> Vec<(Arc<ServicePortName>, Arc<Forwarding>)> {
        let Some((record, service)) = self.proxied(id) else { return Vec::new() };
        let name = |index: usize| Some(Arc::new(port_name(record, service.ports.get(index)?)));
        let ports = self.family(id, family).into_iter();
        ports.filter_map(|(index, forwarding)| Some((name(index)?, Arc::new(forwarding)))).collect()
    }

    /// Returns the UDP ports of a Service in one family with all their serving endpoints.
    pub(super) fn udp(self, id: Id, family: Family) -> Vec<UdpService> {
        let Some((record, service)) = self.proxied(id) else { return Vec::new() };
        if service.cluster_ip(family).is_none() {
            return Vec::new();
        }
        let targets = Targets::new(self, record, family);
        let mut within = WithinService::default();
        let mut found = Vec::new();
        for port in service.ports.iter().filter(|port| port.protocol == Protocol::Udp) {
            let endpoints = targets.endpoints(&port.name, Protocol::Udp);
            let serving: Vec<SocketAddr> =
                endpoints.iter().filter(|e| e.serving).map(|e| e.backend.socket()).collect();
            let frontends = self.owned_frontends(id, service, port, family, &mut within);
            found.push(UdpService::new(Arc::new(port_name(record, port)), frontends, serving));
        }
        found
    }

    /// Returns the selection of endpoints of a Service port, with the slice and the zone hints of each. `None` if the
    /// Service has no cluster IP of the family or no such port.
    pub(super) fn explanation(
        self,
        id: Id,
        name: &ServicePortName,
        family: Family,
    ) -> Option<Explanation<SliceOf>> {
        let (record, service) = self.proxied(id)?;
        service.cluster_ip(family)?;
        let mut ports = service.ports.iter();
        let port = ports.find(|port| port.name == name.port && port.protocol == name.protocol)?;
        let endpoints = Targets::new(self, record, family).with_slices(&port.name, port.protocol);
        let is_failing = |endpoint: &Endpoint| self.aside.has(port.protocol, endpoint);
        Some(selection::explain(endpoints, demand(service, port, family), is_failing))
    }

    /// Returns the health check server of a Service, if it has one.
    pub(super) fn health_check(self, id: Id) -> Option<HealthCheck> {
        let (record, service) = self.proxied(id)?;
        let port = service.health_check_port().filter(|_| !service.ports.is_empty())?;
        let mut local_ready = PerFamily::default();
        for family in Family::BOTH {
            if service.cluster_ip(family).is_some() {
                *local_ready.get_mut(family) = Some(Targets::new(self, record, family).local_ready());
            }
        }
        Some(HealthCheck { port, local_ready })
    }

    fn proxied(self, id: Id) -> Option<(&'a ServiceRecord, &'a Service)> {
        let record = self.services.get(id)?;
        Some((record, record.service.as_ref()?))
    }

    fn family(self, id: Id, family: Family) -> Vec<(usize, Forwarding)> {
        let Some((record, service)) = self.proxied(id) else { return Vec::new() };
        if service.cluster_ip(family).is_none() {
            return Vec::new();
        }
        let targets = Targets::new(self, record, family);
        let source_ranges = service.source_ranges().iter().filter(|net| Family::of(net.addr()) == family);
        let mut within = WithinService::default();
        let mut forwardings = Vec::with_capacity(service.ports.len());
        for (index, port) in service.ports.iter().enumerate() {
            let mut endpoints = targets.endpoints(&port.name, port.protocol);
            let demand = demand(service, port, family);
            if !self.aside.is_empty() {
                selection::settle_aside(&mut endpoints, demand, |e| self.aside.has(port.protocol, e));
            }
            let selection = selection::select(&endpoints, demand);
            let forwarding = Forwarding {
                family,
                protocol: port.protocol,
                frontends: self.owned_frontends(id, service, port, family, &mut within).into(),
                cluster: selection.cluster.into(),
                local: selection.local.into(),
                has_endpoints: selection.has_endpoints,
                internal_policy: service.internal_policy,
                external_policy: service.external_policy,
                affinity: service.affinity,
                ipvs_scheduler: service.ipvs_scheduler,
                keep_client_address: service.keep_client_address,
                source_ranges: source_ranges.clone().copied().collect(),
            };
            forwardings.push((index, forwarding));
        }
        forwardings
    }

    /// Returns the frontends of a port without those that are left out, or that an earlier port of this Service has.
    fn owned_frontends(
        self,
        id: Id,
        service: &Service,
        port: &ServicePort,
        family: Family,
        within: &mut WithinService,
    ) -> Vec<Frontend> {
        let mut frontends = frontends(service, port, family);
        frontends.retain(|frontend| {
            let claim = Claim::of(*frontend, family, port.protocol);
            self.obstacle(id, claim).is_none() && (service.ports.len() == 1 || within.first(claim.0))
        });
        frontends
    }

    /// Returns why a Service does not get a frontend that it claims. `None` if it gets it.
    pub(super) fn obstacle(self, id: Id, (claim, rank): RankedClaim) -> Option<Obstacle> {
        let own = self.services.get(id)?;
        if !ApiServer::is_led_to_by(own) && claim.hides(rank, self.api_server) {
            return Some(Obstacle::ApiServer);
        }
        let external = claim.address().filter(|_| matches!(rank, Rank::LoadBalancerIp | Rank::ExternalIp));
        if let Some(owner) = external.and_then(|address| self.review.refuses(id, address)) {
            return Some(Obstacle::Guard(owner));
        }
        let (rival_rank, winner, rival) = self.claims.strongest_rival(&claim, id, self.services)?;
        (strength(rival_rank, rival) < strength(rank, own)).then_some(Obstacle::Rival(winner))
    }
}

/// Why a Service does not get a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// This node reaches the API server there.
    ApiServer,
    /// The address belongs to something else.
    Guard(AddressOwner),
    /// This Service has it.
    Rival(Id),
}

pub(super) fn port_name(record: &ServiceRecord, port: &ServicePort) -> ServicePortName {
    ServicePortName {
        namespace: record.namespace.clone(),
        service: record.name.clone(),
        port: port.name.clone(),
        protocol: port.protocol,
    }
}

fn demand(service: &Service, port: &ServicePort, family: Family) -> Demand {
    let external = service.externally_accessible(port, family);
    let internal_local = service.internal_policy == InternalPolicy::Local;
    let external_local = service.external_policy == ExternalPolicy::Local;
    Demand { cluster: !internal_local || external, local: internal_local || (external_local && external) }
}

/// The slice ports of a Service in one family, sorted by the name and protocol by which Service ports are matched.
struct Targets<'a> {
    ports: Vec<(&'a str, Protocol, u16, &'a SliceRecord)>,
    zone: Option<&'a str>,
}

impl<'a> Targets<'a> {
    fn new(compiler: Compiler<'a>, record: &'a ServiceRecord, family: Family) -> Self {
        let slices = record.slices.as_slice().iter().filter_map(|id| compiler.slices.get(*id));
        let mut ports: Vec<_> = slices
            .filter(|slice| slice.content.family() == family)
            .flat_map(|slice| {
                slice.content.ports.iter().map(move |port| (&*port.name, port.protocol, port.port, slice))
            })
            .collect();
        ports.sort_unstable_by_key(|(name, protocol, ..)| (*name, *protocol));
        Self { ports, zone: compiler.zone }
    }

    /// Returns the endpoints of a Service port, sorted and without duplicates.
    fn endpoints(&self, name: &str, protocol: Protocol) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for (port, slice) in self.matching(name, protocol) {
            slice.content.expand(port, self.zone, &mut endpoints);
        }
        selection::settle_duplicates(&mut endpoints);
        endpoints
    }

    /// Returns the endpoints of a Service port, with duplicates, each with its slice and zone hints.
    fn with_slices(&self, name: &str, protocol: Protocol) -> Vec<(Endpoint, SliceOf)> {
        let mut endpoints = Vec::new();
        for (port, slice) in self.matching(name, protocol) {
            let of = |zones| SliceOf { slice: slice.name.clone(), zone_hints: zones, node: None };
            let explained = slice.content.explained(port, self.zone).into_iter();
            endpoints.extend(explained.map(|(endpoint, zones)| (endpoint, of(zones))));
        }
        endpoints
    }

    /// Returns the target ports of a Service port, each with its slice.
    fn matching(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = (u16, &'a SliceRecord)> {
        let wanted = (name, protocol);
        let is_wanted =
            move |(name, protocol, ..): &&(&str, Protocol, u16, &SliceRecord)| (*name, *protocol) == wanted;
        let from = self.ports.partition_point(|(name, protocol, ..)| (*name, *protocol) < wanted);
        let rest = self.ports.get(from..).unwrap_or_default();
        rest.iter().take_while(is_wanted).map(|(_, _, port, slice)| (*port, *slice))
    }

    /// Returns the number of distinct addresses that are local and ready behind any port.
    fn local_ready(&self) -> u32 {
        let mut keys: Vec<_> = self.ports.iter().map(|(name, protocol, ..)| (*name, *protocol)).collect();
        keys.dedup();
        let endpoints = keys.into_iter().flat_map(|(name, protocol)| self.endpoints(name, protocol));
        let mut addresses: Vec<_> =
            endpoints.filter(|e| e.local && e.ready).map(|e| e.backend.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        u32::try_from(addresses.len()).unwrap_or(u32::MAX)
    }
}
