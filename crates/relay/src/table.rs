//! The Service ports by their frontends, and what the relay knows of each.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{Backend, Change, Family, Forwarding, Frontend, Protocol, ServicePortName};

use crate::affinity::Affinity;
use crate::attempts::{Attempts, Failure};
use crate::rotation::{Health, Rotation};
use crate::slots::{Slot, Slots};

/// Whose endpoints serve a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The cluster's.
    Cluster,
    /// This node's.
    Local,
}

/// Names a Service port of a family. One that is gone keeps its number while it has connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServiceId(Slot);

/// All Service ports of both families.
#[derive(Debug, Default)]
pub struct Table {
    services: Slots<Service>,
    names: HashMap<(Family, Arc<ServicePortName>), ServiceId>,
    addresses: HashMap<(Protocol, SocketAddr), ServiceId>,
    node_ports: HashMap<(Family, Protocol, u16), ServiceId>,
}

#[derive(Debug)]
struct Service {
    name: Arc<ServicePortName>,
    family: Family,
    frontends: Box<[Frontend]>,
    affinity: Option<Duration>,
    /// Of both sets: a client stays with its backend whichever frontend it uses.
    bindings: Affinity,
    cluster: Rotation,
    local: Rotation,
    health: Health,
    /// Connections and flows that it has now.
    held: usize,
    gone: bool,
}

impl Table {
    /// Takes a change in. Says whether an endpoint went away that connections may still have.
    pub fn apply(&mut self, change: &Change) -> bool {
        let key = (change.family, change.name.clone());
        let known = self.names.get(&key).copied();
        match (&change.new, known) {
            (Some(forwarding), None) => {
                let service = Service::new(change.name.clone(), change.family);
                let id = ServiceId(self.services.insert(service));
                self.names.insert(key, id);
                self.update(id, forwarding)
            }
            (Some(forwarding), Some(id)) => self.update(id, forwarding),
            (None, Some(id)) => {
                self.take_frontends(id);
                if let Some(service) = self.services.get_mut(id.0) {
                    service.clear();
                }
                self.end_if_unused(id);
                true
            }
            (None, None) => false,
        }
    }

    /// The Service port that has a frontend: by address, or by node port where the address has none.
    pub fn find(&self, protocol: Protocol, destination: SocketAddr) -> Option<ServiceId> {
        let destination = SocketAddr::new(destination.ip(), destination.port());
        let node_port = || (Family::of(destination.ip()), protocol, destination.port());
        self.addresses.get(&(protocol, destination)).or_else(|| self.node_ports.get(&node_port())).copied()
    }

    /// The backend for a client's next attempt and how long that may take; `None` when every backend failed.
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
        let Service { cluster, local, health, bindings, .. } = service;
        let rotation = match scope {
            Scope::Cluster => cluster,
            Scope::Local => local,
        };
        let Some(timeout) = service.affinity else {
            return attempts.next(rotation, health, limits, now);
        };
        let bound = bindings.get(client, timeout, now).filter(|&backend| {
            rotation.contains(backend) && !attempts.has_tried(backend) && !health.is_aside(backend, now)
        });
        if let Some(backend) = bound {
            return Some((backend, attempts.limit(limits)));
        }
        let (backend, limit) = attempts.next(rotation, health, limits, now)?;
        bindings.bind(client, backend, timeout, now);
        Some((backend, limit))
    }

    /// An attempt failed: the backend is set aside for a while.
    pub fn failed(
        &mut self,
        id: ServiceId,
        backend: SocketAddr,
        attempts: &mut Attempts,
        failure: Failure,
        now: Instant,
    ) {
        attempts.failed(backend, failure);
        if let Some(service) = self.services.get_mut(id.0) {
            service.health.failed(backend, now);
        }
    }

    /// A backend answered.
    pub fn succeeded(&mut self, id: ServiceId, backend: SocketAddr) {
        if let Some(service) = self.services.get_mut(id.0) {
            service.health.succeeded(backend);
        }
    }

    /// Whether a Service port still has a backend.
    pub fn has_backend(&self, id: ServiceId, backend: SocketAddr) -> bool {
        self.services.get(id.0).is_some_and(|service| service.has_backend(backend))
    }

    /// Connections and flows that a Service port has.
    pub fn held(&self, id: ServiceId) -> usize {
        self.services.get(id.0).map_or(0, |service| service.held)
    }

    /// Counts a connection.
    pub fn hold(&mut self, id: ServiceId) {
        if let Some(service) = self.services.get_mut(id.0) {
            service.held = service.held.saturating_add(1);
        }
    }

    /// A connection ended.
    pub fn let_go(&mut self, id: ServiceId) {
        if let Some(service) = self.services.get_mut(id.0) {
            service.held = service.held.saturating_sub(1);
        }
        self.end_if_unused(id);
    }

    /// Whose it is, for the log.
    pub fn name(&self, id: ServiceId) -> Option<&ServicePortName> {
        self.services.get(id.0).map(|service| &*service.name)
    }

    fn update(&mut self, id: ServiceId, forwarding: &Forwarding) -> bool {
        self.take_frontends(id);
        let family = forwarding.family;
        for frontend in &forwarding.frontends {
            match address(*frontend) {
                Ok(address) => drop(self.addresses.insert((forwarding.protocol, address), id)),
                Err(port) => drop(self.node_ports.insert((family, forwarding.protocol, port), id)),
            }
        }
        self.services.get_mut(id.0).is_some_and(|service| service.update(forwarding))
    }

    /// Takes away the frontends of a Service port that no other one has by now.
    fn take_frontends(&mut self, id: ServiceId) {
        let Some(service) = self.services.get_mut(id.0) else { return };
        let (family, protocol) = (service.family, service.name.protocol);
        for frontend in std::mem::take(&mut service.frontends) {
            match address(frontend) {
                Ok(address) => remove_own(&mut self.addresses, &(protocol, address), id),
                Err(port) => remove_own(&mut self.node_ports, &(family, protocol, port), id),
            }
        }
    }

    fn end_if_unused(&mut self, id: ServiceId) {
        if let Some(service) = self.services.get(id.0)
            && service.gone
            && service.held == 0
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
            frontends: Box::default(),
            affinity: None,
            bindings: Affinity::default(),
            cluster: Rotation::default(),
            local: Rotation::default(),
            health: Health::default(),
            held: 0,
            gone: false,
        }
    }

    /// Says whether a backend went away.
    fn update(&mut self, forwarding: &Forwarding) -> bool {
        let before = self.cluster.len() + self.local.len();
        self.gone = false;
        self.frontends.clone_from(&forwarding.frontends);
        let affinity = forwarding.affinity.map(|seconds| Duration::from_secs(u64::from(seconds)));
        if affinity.is_none() {
            self.bindings = Affinity::default();
        }
        self.affinity = affinity;
        self.cluster.update(forwarding.cluster.iter().map(Backend::socket));
        self.local.update(forwarding.local.iter().map(Backend::socket));
        self.forget_health();
        // Some that had a place may have one no more, even where there are as many as before.
        before > 0
    }

    fn clear(&mut self) {
        self.gone = true;
        self.affinity = None;
        self.bindings = Affinity::default();
        self.cluster = Rotation::default();
        self.local = Rotation::default();
        self.forget_health();
    }

    fn has_backend(&self, backend: SocketAddr) -> bool {
        self.cluster.contains(backend) || self.local.contains(backend)
    }

    fn forget_health(&mut self) {
        let (cluster, local) = (&self.cluster, &self.local);
        self.health.retain(|backend| cluster.contains(backend) || local.contains(backend));
    }
}

/// The address of a frontend, or its node port.
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
