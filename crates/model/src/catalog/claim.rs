//! Decides the owner of a frontend that several Services claim.
//!
//! The rule does not depend on the order of events. A cluster IP beats a load-balancer IP, which beats an external
//! IP: every user who can write a Service can write `externalIPs`, and must not be able to take over a cluster IP
//! that way. Among claims of equal rank the older Service wins, so a new Service takes nothing from an existing one.
//! Among Services created in the same second, the one whose namespace and name sort first wins. The loser gets the
//! frontend when the winner is deleted.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::api_server::ApiServer;
use super::index::Index;
use super::record::ServiceRecord;
use super::store::{Id, Store};
use crate::object::{Fault, Notice, Service, ServicePort, UNKNOWN_AGE};
use crate::{Family, Frontend, Protocol};

/// A frontend without its kind. Only one Service port can own it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Claim {
    /// The address. `None` for a node port.
    address: Option<IpAddr>,
    family: Family,
    protocol: Protocol,
    port: u16,
}

/// A claim and its rank. The smaller rank is the stronger one.
pub(super) type RankedClaim = (Claim, Rank);

/// The strength of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    ClusterIp,
    LoadBalancerIp,
    ExternalIp,
    NodePort,
}

impl Claim {
    pub(super) const fn of(frontend: Frontend, family: Family, protocol: Protocol) -> RankedClaim {
        let (address, port, rank) = match frontend {
            Frontend::ClusterIp(ip, port) => (Some(ip), port, Rank::ClusterIp),
            Frontend::LoadBalancerIp(ip, port) => (Some(ip), port, Rank::LoadBalancerIp),
            Frontend::ExternalIp(ip, port) => (Some(ip), port, Rank::ExternalIp),
            Frontend::NodePort(port) => (None, port, Rank::NodePort),
        };
        (Self { address, family, protocol, port }, rank)
    }

    /// Returns the claim of an address and port.
    pub(super) const fn of_socket(socket: SocketAddr, family: Family, protocol: Protocol) -> Self {
        Self { address: Some(socket.ip()), family, protocol, port: socket.port() }
    }

    /// Returns the address, or `None` for a node port.
    pub(super) const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Returns the frontend of a claim with this rank.
    pub(super) const fn frontend(&self, rank: Rank) -> Frontend {
        match (self.address, rank) {
            (None, _) | (_, Rank::NodePort) => Frontend::NodePort(self.port),
            (Some(ip), Rank::ClusterIp) => Frontend::ClusterIp(ip, self.port),
            (Some(ip), Rank::LoadBalancerIp) => Frontend::LoadBalancerIp(ip, self.port),
            (Some(ip), Rank::ExternalIp) => Frontend::ExternalIp(ip, self.port),
        }
    }

    /// Returns the rank with which a Service makes this claim, if it makes it.
    fn rank_in(&self, service: &Service) -> Option<Rank> {
        let cluster_ip = service.cluster_ip(self.family)?;
        let mut ports = service.ports.iter().filter(|port| port.protocol == self.protocol);
        let Some(address) = self.address else {
            return ports.any(|port| port.node_port == Some(self.port)).then_some(Rank::NodePort);
        };
        if !ports.any(|port| port.port == self.port) {
            None
        } else if cluster_ip == address {
            Some(Rank::ClusterIp)
        } else if service.load_balancer_ips().contains(&address) {
            Some(Rank::LoadBalancerIp)
        } else {
            service.external_ips().contains(&address).then_some(Rank::ExternalIp)
        }
    }

    /// Returns the fault of a Service that lost this claim to another.
    pub(super) fn conflict(&self, rank: Rank, winner: &ServiceRecord) -> Fault {
        let reason = format!("{self} already belongs to Service {}; choose another", winner.key());
        Fault::new(rank.field(), reason).noticed(Notice::Conflict)
    }

    /// Returns the fault of a Service that claims an address or port at which this node reaches the API server.
    pub(super) fn of_api_server(&self, rank: Rank) -> Fault {
        let reason =
            format!("{self} is left out on this node, which reaches the API server there; choose another");
        Fault::new(rank.field(), reason).noticed(Notice::ApiServerAddress)
    }

    /// Returns true if a Service with this claim and rank would hide the API server from this node.
    pub(super) fn hides(&self, rank: Rank, api_server: &ApiServer) -> bool {
        let Self { address, family, protocol, port } = *self;
        let tcp = protocol == Protocol::Tcp;
        match (rank, address) {
            // The agent itself may connect to the cluster IP of a Service.
            (Rank::ClusterIp, _) => false,
            (Rank::NodePort, _) | (_, None) => tcp && api_server.node_ports.contains(&(family, port)),
            (Rank::LoadBalancerIp | Rank::ExternalIp, Some(address)) => {
                api_server.addresses.contains(&address)
                    || tcp && api_server.sockets.contains(&SocketAddr::new(address, port))
            }
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{address}")?,
            None => f.write_str("node port")?,
        }
        write!(f, " {}/{} ({})", self.port, self.protocol, self.family)
    }
}

impl Rank {
    /// Returns the field of a Service from which a claim of this rank comes.
    pub(super) const fn field(self) -> &'static str {
        match self {
            Self::ClusterIp => "spec.clusterIPs",
            Self::LoadBalancerIp => "status.loadBalancer.ingress",
            Self::ExternalIp => "spec.externalIPs",
            Self::NodePort => "spec.ports[].nodePort",
        }
    }
}

/// Returns all frontends of a port in a family: cluster IP, external IPs, load-balancer IPs, node port. An address of
/// several kinds is listed once, as the strongest of them.
pub(super) fn frontends(service: &Service, port: &ServicePort, family: Family) -> Vec<Frontend> {
    let Some(cluster_ip) = service.cluster_ip(family) else { return Vec::new() };
    let of_family = |ip: &&IpAddr| Family::of(**ip) == family && **ip != cluster_ip;
    let external = service.external_ips().iter().filter(of_family);
    let external = external.filter(|ip| !service.load_balancer_ips().contains(ip));
    let load_balancer = service.load_balancer_ips().iter().filter(of_family);
    let mut frontends = Vec::with_capacity(
        1 + external.clone().count() + load_balancer.clone().count() + usize::from(port.node_port.is_some()),
    );
    frontends.push(Frontend::ClusterIp(cluster_ip, port.port));
    frontends.extend(external.map(|ip| Frontend::ExternalIp(*ip, port.port)));
    frontends.extend(load_balancer.map(|ip| Frontend::LoadBalancerIp(*ip, port.port)));
    frontends.extend(port.node_port.map(Frontend::NodePort));
    frontends
}

/// Returns all claims of a Service in both families, sorted and without duplicates.
pub(super) fn claims_of(service: Option<&Service>) -> Vec<RankedClaim> {
    let mut claims = Vec::new();
    let Some(service) = service else { return claims };
    for family in Family::BOTH {
        for port in &*service.ports {
            let frontends = frontends(service, port, family);
            claims.extend(frontends.into_iter().map(|frontend| Claim::of(frontend, family, port.protocol)));
        }
    }
    claims.sort_unstable();
    claims.dedup_by_key(|(claim, _)| *claim);
    claims
}

/// The claimants of each frontend. The claims are read from the Services.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims(Index);

impl Claims {
    /// Adds a claim of a Service.
    pub(super) fn insert(&mut self, claim: &Claim, service: Id) {
        self.0.insert(claim, service);
    }

    /// Removes a claim of a Service.
    pub(super) fn remove(&mut self, claim: &Claim, service: Id) {
        self.0.remove(claim, service);
    }

    /// Returns every claimant with its rank.
    pub(super) fn claimants<'a>(
        &self,
        claim: &Claim,
        services: &'a Store<ServiceRecord>,
    ) -> impl Iterator<Item = (Rank, Id, &'a ServiceRecord)> {
        self.0.candidates(claim).filter_map(|id| {
            let record = services.get(id)?;
            Some((claim.rank_in(record.service.as_ref()?)?, id, record))
        })
    }

    /// Returns the strongest claimant other than the given Service, with its rank.
    pub(super) fn strongest_rival<'a>(
        &self,
        claim: &Claim,
        besides: Id,
        services: &'a Store<ServiceRecord>,
    ) -> Option<(Rank, Id, &'a ServiceRecord)> {
        let rivals = self.claimants(claim, services).filter(|(_, id, _)| *id != besides);
        rivals.min_by(|a, b| strength(a.0, a.2).cmp(&strength(b.0, b.2)))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the sort key of a claimant. The smallest wins.
pub(super) fn strength(rank: Rank, record: &ServiceRecord) -> (Rank, u32, &str, &str) {
    let created = record.service.as_ref().map_or(UNKNOWN_AGE, |service| service.created);
    (rank, created, &record.namespace, &record.name)
}

/// The claims of the ports of one Service so far. A later port does not get a claim of an earlier one.
#[derive(Debug, Default)]
pub(super) struct WithinService(HashSet<Claim>);

impl WithinService {
    pub(super) fn first(&mut self, claim: Claim) -> bool {
        self.0.insert(claim)
    }
}
