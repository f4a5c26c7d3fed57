//! Keeps Services from hiding the API server from this node.
//!
//! The agent's own packets are subject to the same rules as all others. A Service whose external IP and port are
//! those of the API server would divert the agent. It could then not even learn that the Service was fixed or
//! deleted.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use super::claim::{RankedClaim, claims_of};
use super::record::ServiceRecord;
use super::store::Id;
use super::{Applied, Catalog, ObjectFault};
use crate::Family;
use crate::object::Kind;

/// Namespace and name of the Service whose endpoints are the API servers.
const KUBERNETES: (&str, &str) = ("default", "kubernetes");

/// The addresses and ports of the API server that external IPs, load-balancer IPs and node ports must not use on this
/// node. Cluster IPs are exempt, because agents in pods reach the API server by the cluster IP of
/// `default/kubernetes`. All frontends of that Service are exempt, too.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiServer {
    /// Addresses and TCP ports to which the agent connects: those of the API server, or of a proxy in front of it.
    pub sockets: BTreeSet<SocketAddr>,
    /// Addresses that a Service must not use on any port. In IPVS mode a Service's address becomes local to the node,
    /// so packets to its other ports do not leave the node. If the agent connects to a cluster IP, these are the
    /// addresses behind it ([`Catalog::api_servers_behind`]), to which IPVS forwards the connection.
    pub addresses: BTreeSet<IpAddr>,
    /// TCP node ports that would capture the agent's connections to an address of this node.
    pub node_ports: BTreeSet<(Family, u16)>,
}

/// How many external IPs and load-balancer IPs of each Service are left out because this node reaches the API server there.
/// Services without one have no entry.
#[derive(Debug, Clone, Default)]
pub(super) struct HiddenAddresses {
    of_services: HashMap<Id, usize>,
    total: usize,
}

impl HiddenAddresses {
    fn set(&mut self, id: Id, addresses: usize) {
        let before = if addresses == 0 {
            self.of_services.remove(&id)
        } else {
            self.of_services.insert(id, addresses)
        };
        self.total = self.total.saturating_add(addresses).saturating_sub(before.unwrap_or_default());
    }
}

impl ApiServer {
    /// Returns true for `default/kubernetes`, whose frontends all lead to the API server.
    pub(super) fn is_led_to_by(record: &ServiceRecord) -> bool {
        (&*record.namespace, &*record.name) == KUBERNETES
    }

    /// Returns the claims of a Service that are refused on this node.
    fn hidden_by(&self, record: &ServiceRecord) -> Vec<RankedClaim> {
        let Some(service) = record.service.as_ref().filter(|_| !Self::is_led_to_by(record)) else {
            return Vec::new();
        };
        let has_more =
            service.external.is_some() || service.ports.iter().any(|port| port.node_port.is_some());
        if !has_more {
            return Vec::new();
        }
        let mut claims = claims_of(Some(service));
        claims.retain(|(claim, rank)| claim.hides(*rank, self));
        claims
    }
}

impl Catalog {
    /// Returns the addresses of the API servers behind the cluster IP of `default/kubernetes`, ready or not, if one
    /// of the agent's sockets is at that cluster IP. Returns none if the agent connects to them directly. The cost is
    /// proportional to their number.
    pub fn api_servers_behind(&self, sockets: &BTreeSet<SocketAddr>) -> BTreeSet<IpAddr> {
        let (namespace, name) = KUBERNETES;
        let record = self.services.find(namespace, name).and_then(|id| self.services.get(id));
        let Some((record, service)) = record.and_then(|record| Some((record, record.service.as_ref()?)))
        else {
            return BTreeSet::new();
        };
        let cluster_ips = [service.cluster_ipv4.map(IpAddr::from), service.cluster_ipv6.map(IpAddr::from)];
        if !sockets.iter().any(|socket| cluster_ips.contains(&Some(socket.ip()))) {
            return BTreeSet::new();
        }
        let slices = record.slices.as_slice().iter().filter_map(|id| self.slices.get(*id));
        slices.flat_map(|slice| slice.content.addresses()).collect()
    }

    /// Returns how many external IPs and load-balancer IPs are left out because this node reaches the API server there, on
    /// one port or more. An address that several Services name counts for each.
    pub const fn api_server_addresses(&self) -> usize {
        self.hidden.total
    }

    /// Counts again the addresses of a Service that are left out.
    pub(super) fn count_hidden(&mut self, id: Id) {
        let claims =
            self.services.get(id).map(|record| self.api_server.hidden_by(record)).unwrap_or_default();
        let addresses: BTreeSet<IpAddr> = claims.iter().filter_map(|(claim, _)| claim.address()).collect();
        self.hidden.set(id, addresses.len());
    }

    /// Sets where this node reaches the API server. If it changed, which is rare, every Service is checked.
    pub fn set_api_server(&mut self, api_server: ApiServer) -> Applied {
        let mut applied = Applied::default();
        if self.api_server == api_server {
            return applied;
        }
        let mut touched: Vec<Id> = Vec::new();
        for (id, record) in self.services.iter() {
            let (before, after) = (self.api_server.hidden_by(record), api_server.hidden_by(record));
            if before == after {
                continue;
            }
            touched.push(id);
            let new = after.iter().filter(|claim| !before.contains(claim));
            applied.faults.extend(new.map(|(claim, rank)| ObjectFault {
                kind: Kind::Service,
                key: record.key(),
                fault: claim.of_api_server(*rank),
            }));
        }
        // The current forwardings are kept before they change.
        for id in &touched {
            self.touch(*id);
        }
        self.api_server = api_server;
        for id in &touched {
            self.count_hidden(*id);
        }
        applied.changed = !touched.is_empty();
        applied
    }
}
