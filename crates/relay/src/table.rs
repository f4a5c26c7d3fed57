//! The Service ports by their frontends, and the relay's state of each.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::table::Entry;
use portolan_model::{Backend, Change, Family, Forwarding, Frontend, Protocol, ServicePortName};

use crate::affinity::Affinity;
use crate::attempts::{Attempts, Failure};
use crate::rotation::{Health, Rotation};
use crate::slots::{Slot, Slots};

/// The set of endpoints that serves a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The cluster's endpoints.
    Cluster,
    /// This node's endpoints.
    Local,
}

/// The id of a Service port of a family. A removed Service port keeps its id while it has connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(Slot);

/// All Service ports of both families.
#[derive(Debug, Default)]
pub struct RelayTable {
    services: Slots<Service>,
    names: HashMap<(Family, Arc<ServicePortName>), ServiceId>,
    addresses: HashMap<(Protocol, SocketAddr), ServiceId>,
    node_ports: HashMap<(Family, Protocol, u16), ServiceId>,
    /// The number of backends that failed at their last attempt, counted for each Service port.
    failing: usize,
}

/// A Service port as the relay has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Relayed {
    /// The Service port.
    pub entry: Entry,
    /// New connections and flows that got a backend since the relay has had the Service port.
    pub connections: u64,
    /// Those of its present backends. A backend without any is missing.
    pub by_backend: HashMap<SocketAddr, u64>,
}

#[derive(Debug)]
struct Service {
    name: Arc<ServicePortName>,
    family: Family,
    /// The current forwarding; `None` once the Service port is removed.
    forwarding: Option<Arc<Forwarding>>,
    /// For both sets of endpoints: a client stays with its backend whichever frontend it uses.
    bindings: Affinity,
    cluster: Rotation,
    local: Rotation,
    health: Health,
    /// The current connections.
    connections: Vec<Slot>,
    /// The number of current UDP flows.
    flows: usize,
    /// See [`Relayed::connections`].
    served: u64,
    /// See [`Relayed::by_backend`].
    served_by: HashMap<SocketAddr, u64>,
}

impl RelayTable {
    /// Applies a change. Returns the Service port if connections may have an endpoint that the change removes.
    pub fn apply(&mut self, change: &Change) -> Option<ServiceId> {
        let key = (change.family, change.name.clone());
        let known = self.names.get(&key).copied();
        match (&change.new, known) {
            (Some(forwarding), None) => {
                let service = Service::new(change.name.clone(), change.family);
                let id = ServiceId(self.services.insert(service));
                self.names.insert(key, id);
                self.update(id, forwarding);
                None
            }
            (Some(forwarding), Some(id)) => {
                self.update(id, forwarding);
                Some(id)
            }
            (None, Some(id)) => {
                self.take_frontends(id);
                self.with_health(id, |health| *health = Health::default());
                if let Some(service) = self.services.get_mut(id.0) {
                    service.clear();
                }
                self.end_if_unused(id);
                Some(id)
            }
            (None, None) => None,
        }
    }

    /// Returns the Service port of a frontend: by address or, if no Service port has the address, by node port.
    pub fn find(&self, protocol: Protocol, destination: SocketAddr) -> Option<ServiceId> {
        let destination = SocketAddr::new(destination.ip(), destination.port());
        let node_port = || (Family::of(destination.ip()), protocol, destination.port());
        self.addresses.get(&(protocol, destination)).or_else(|| self.node_ports.get(&node_port())).copied()
    }

    /// Returns the backend for a client's next attempt and the time limit; `None` if every backend has failed.
    pub fn choose(
        &mut self,
        id: ServiceId,
        scope: Scope,
        client: IpAddr,
        attempts: &mut Attempts,
        limits: &[Duration],
        now: Instant,
    ) -> Option<(SocketAddr, Duration)> {
        let service = self.services.get_mut(id.0)?;
        let Service { forwarding, cluster, local, health, bindings, .. } = service;
        let forwarding = forwarding.as_deref()?;
        let (rotation, backends) = match scope {
            Scope::Cluster => (cluster, &forwarding.cluster),
            Scope::Local => (local, &forwarding.local),
        };
        let Some(timeout) = forwarding.affinity.map(|seconds| Duration::from_secs(u64::from(seconds))) else {
            return attempts.next(rotation, health, limits, now);
        };
        let bound = bindings.get(client, timeout, now).filter(|&backend| {
            find(backends, backend).is_some()
                && !attempts.has_tried(backend)
                && !health.is_aside(backend, now)
        });
        if let Some(backend) = bound {
            // After a pause, only this client tries it. Others that are bound to it and connect meanwhile are bound to
            // another backend.
            health.chosen(backend, now);
            return Some((backend, attempts.limit(limits)));
        }
        let (backend, limit) = attempts.next(rotation, health, limits, now)?;
        bindings.bind(client, backend, timeout, now);
        Some((backend, limit))
    }

    /// Records that an attempt that began at `began` failed: the backend is set aside for a while.
    pub fn failed(
        &mut self,
        id: ServiceId,
        backend: SocketAddr,
        attempts: &mut Attempts,
        failure: Failure,
        began: Instant,
        now: Instant,
    ) {
        attempts.failed(backend, failure);
        // A removed backend needs no back-off.
        if self.has_backend(id, backend) {
            self.with_health(id, |health| health.failed(backend, began, now));
        }
    }

    /// Records that a backend answered.
    pub fn succeeded(&mut self, id: ServiceId, backend: SocketAddr) {
        self.with_health(id, |health| health.succeeded(backend));
    }

    /// Records that a connection that began at `began` has lasted without an answer (see [`Health::lasted`]).
    pub fn lasted(&mut self, id: ServiceId, backend: SocketAddr, began: Instant) -> bool {
        let mut is_sound = true;
        self.with_health(id, |health| is_sound = health.lasted(backend, began));
        is_sound
    }

    /// Records that an attempt has no result (see [`Health::undecided`]).
    pub fn undecided(&mut self, id: ServiceId, backend: SocketAddr, began: Instant, now: Instant) {
        self.with_health(id, |health| health.undecided(backend, began, now));
    }

    /// Counts a new connection or flow that got a backend.
    pub fn count(&mut self, id: ServiceId, backend: SocketAddr) {
        let Some(service) = self.services.get_mut(id.0) else { return };
        service.served = service.served.saturating_add(1);
        if service.has_backend(backend) {
            let served = service.served_by.entry(backend).or_default();
            *served = served.saturating_add(1);
        }
    }

    /// Returns the number of backends that failed at their last attempt.
    pub const fn failing(&self) -> usize {
        self.failing
    }

    /// Returns true if a Service port still has a backend.
    pub fn has_backend(&self, id: ServiceId, backend: SocketAddr) -> bool {
        self.services.get(id.0).is_some_and(|service| service.has_backend(backend))
    }

    /// Returns true if a frontend is a cluster IP of the Service port.
    pub fn is_internal(&self, id: ServiceId, destination: SocketAddr) -> bool {
        let cluster_ip = Frontend::ClusterIp(destination.ip(), destination.port());
        self.forwarding(id).is_some_and(|forwarding| forwarding.frontends.contains(&cluster_ip))
    }

    /// Returns true if the backend is to see the client's address. The Service must ask for it, and the answers must come
    /// by this node, because the backend or the client is on it. Clients of cluster IPs are assumed to be. False if
    /// client and backend have the same address: the backend's answers would stay on its own host.
    pub fn keeps_client_address(
        &self,
        id: ServiceId,
        client: IpAddr,
        backend: SocketAddr,
        is_internal: impl FnOnce() -> bool,
    ) -> bool {
        let Some(forwarding) = self.forwarding(id).filter(|forwarding| forwarding.keep_client_address) else {
            return false;
        };
        let is_here = || find_any(forwarding, backend).is_some_and(|backend| backend.may_hairpin);
        client != backend.ip() && (is_here() || is_internal())
    }

    /// Returns the Service ports of a family with their current forwardings, in any order. The cost is that of two
    /// references for each, and of the counts of backends that were used.
    pub fn entries(&self, family: Family) -> Vec<Relayed> {
        let of_family = self.names.iter().filter(|((of, _), _)| *of == family);
        let relayed = |((_, name), id): (&(Family, Arc<ServicePortName>), &ServiceId)| {
            let Service { forwarding, served, served_by, .. } = self.services.get(id.0)?;
            let entry = (name.clone(), forwarding.clone()?);
            Some(Relayed { entry, connections: *served, by_backend: served_by.clone() })
        };
        of_family.filter_map(relayed).collect()
    }

    /// Returns the number of connections and flows of a Service port.
    pub fn held(&self, id: ServiceId) -> usize {
        self.services.get(id.0).map_or(0, Service::held)
    }

    /// Returns the connections of a Service port.
    pub(crate) fn connections(&self, id: ServiceId) -> &[Slot] {
        self.services.get(id.0).map_or(&[], |service| &service.connections)
    }

    /// Adds a connection to a Service port, and returns its index among the connections.
    pub(crate) fn join(&mut self, id: ServiceId, connection: Slot) -> usize {
        let Some(service) = self.services.get_mut(id.0) else { return 0 };
        service.connections.push(connection);
        service.connections.len().saturating_sub(1)
    }

    /// Removes the connection at an index. Returns the connection that has moved to this index, if any.
    pub(crate) fn leave(&mut self, id: ServiceId, place: usize) -> Option<Slot> {
        let connections = &mut self.services.get_mut(id.0)?.connections;
        if place < connections.len() {
            connections.swap_remove(place);
        }
        if connections.len() < connections.capacity() / 4 {
            connections.shrink_to(connections.len().saturating_mul(2));
        }
        let moved = connections.get(place).copied();
        self.end_if_unused(id);
        moved
    }

    /// Counts a UDP flow.
    pub fn hold(&mut self, id: ServiceId) {
        if let Some(service) = self.services.get_mut(id.0) {
            service.flows = service.flows.saturating_add(1);
        }
    }

    /// Uncounts a UDP flow.
    pub fn let_go(&mut self, id: ServiceId) {
        if let Some(service) = self.services.get_mut(id.0) {
            service.flows = service.flows.saturating_sub(1);
        }
        self.end_if_unused(id);
    }

    /// Returns the name of a Service port, for the log.
    pub fn name(&self, id: ServiceId) -> Option<&ServicePortName> {
        self.services.get(id.0).map(|service| &*service.name)
    }

    fn update(&mut self, id: ServiceId, forwarding: &Arc<Forwarding>) {
        self.take_frontends(id);
        let family = forwarding.family;
        for frontend in &forwarding.frontends {
            match address(*frontend) {
                Ok(address) => drop(self.addresses.insert((forwarding.protocol, address), id)),
                Err(port) => drop(self.node_ports.insert((family, forwarding.protocol, port), id)),
            }
        }
        if let Some(service) = self.services.get_mut(id.0) {
            service.update(forwarding);
        }
        self.with_health(id, |health| health.retain(|backend| find_any(forwarding, backend).is_some()));
    }

    fn with_health(&mut self, id: ServiceId, change: impl FnOnce(&mut Health)) {
        let Some(service) = self.services.get_mut(id.0) else { return };
        let before = service.health.failing();
        change(&mut service.health);
        self.failing = self.failing.saturating_sub(before).saturating_add(service.health.failing());
    }

    /// Removes the frontends of a Service port, except those that another one has taken over.
    fn take_frontends(&mut self, id: ServiceId) {
        let Some(service) = self.services.get(id.0) else { return };
        let Some(forwarding) = &service.forwarding else { return };
        let (family, protocol) = (service.family, service.name.protocol);
        for frontend in &forwarding.frontends {
            match address(*frontend) {
                Ok(address) => remove_own(&mut self.addresses, &(protocol, address), id),
                Err(port) => remove_own(&mut self.node_ports, &(family, protocol, port), id),
            }
        }
    }

    fn forwarding(&self, id: ServiceId) -> Option<&Forwarding> {
        self.services.get(id.0)?.forwarding.as_deref()
    }

    fn end_if_unused(&mut self, id: ServiceId) {
        if let Some(service) = self.services.get(id.0)
            && service.forwarding.is_none()
            && service.held() == 0
        {
            let key = (service.family, service.name.clone());
            self.services.remove(id.0);
            self.names.remove(&key);
        }
    }
}

impl Service {
    fn new(name: Arc<ServicePortName>, family: Family) -> Self {
        Self {
            name,
            family,
            forwarding: None,
            bindings: Affinity::default(),
            cluster: Rotation::default(),
            local: Rotation::default(),
            health: Health::default(),
            connections: Vec::new(),
            flows: 0,
            served: 0,
            served_by: HashMap::new(),
        }
    }

    fn update(&mut self, forwarding: &Arc<Forwarding>) {
        if forwarding.affinity.is_none() {
            self.bindings = Affinity::default();
        }
        self.cluster.update(forwarding.cluster.iter().map(Backend::socket));
        self.local.update(forwarding.local.iter().map(Backend::socket));
        self.forwarding = Some(forwarding.clone());
        self.served_by.retain(|backend, _| find_any(forwarding, *backend).is_some());
    }

    fn clear(&mut self) {
        self.forwarding = None;
        (self.served, self.served_by) = (0, HashMap::new());
        self.bindings = Affinity::default();
        self.cluster = Rotation::default();
        self.local = Rotation::default();
    }

    fn has_backend(&self, backend: SocketAddr) -> bool {
        self.forwarding.as_deref().is_some_and(|forwarding| find_any(forwarding, backend).is_some())
    }

    const fn held(&self) -> usize {
        self.connections.len().saturating_add(self.flows)
    }
}

fn find_any(forwarding: &Forwarding, backend: SocketAddr) -> Option<&Backend> {
    find(&forwarding.cluster, backend).or_else(|| find(&forwarding.local, backend))
}

/// Finds a backend. The backends are sorted by address and port.
fn find(backends: &[Backend], wanted: SocketAddr) -> Option<&Backend> {
    let found = backends
        .binary_search_by_key(&(wanted.ip(), wanted.port()), |backend| (backend.address, backend.port));
    backends.get(found.ok()?)
}

/// Returns the address of a frontend, or its node port as the error.
const fn address(frontend: Frontend) -> Result<SocketAddr, u16> {
    match frontend {
        Frontend::ClusterIp(ip, port)
        | Frontend::ExternalIp(ip, port)
        | Frontend::LoadBalancerIp(ip, port) => Ok(SocketAddr::new(ip, port)),
        Frontend::NodePort(port) => Err(port),
    }
}

fn remove_own<K: std::hash::Hash + Eq>(map: &mut HashMap<K, ServiceId>, key: &K, id: ServiceId) {
    if map.get(key) == Some(&id) {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests;
