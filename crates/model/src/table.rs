//! The forwarding table: what one Service port means in one family, free of any mode.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::{Family, IpvsScheduler, Protocol};

/// The identity of a Service port. Prints as `namespace/service:port`, or `namespace/service` where the
/// port has no name; the protocol is part of the identity but not of the text, as in kube-proxy. The texts are shared with the
/// Catalog that made the name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub service: Arc<str>,
    /// Name of the port, empty where it has none.
    pub port: Arc<str>,
    /// Protocol of the port.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)?;
        if self.port.is_empty() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

/// Where a client can reach a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frontend {
    /// Cluster IP and port: internal traffic.
    ClusterIp(IpAddr, u16),
    /// External IP and port: external traffic.
    ExternalIp(IpAddr, u16),
    /// Load-balancer ingress IP (ipMode VIP) and port: external traffic, subject to source ranges.
    LoadBalancerIp(IpAddr, u16),
    /// This port on every address that accepts node ports: external traffic.
    NodePort(u16),
}

/// One backend of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Target port.
    pub port: u16,
    /// On this node, or on no stated node: a connection that comes back to its own source is masqueraded
    /// (hairpin).
    pub may_hairpin: bool,
}

impl Backend {
    /// Address and port together.
    pub const fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// `internalTrafficPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InternalPolicy {
    /// All endpoints.
    Cluster,
    /// This node's endpoints only.
    Local,
}

/// `externalTrafficPolicy`, where it applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExternalPolicy {
    /// All endpoints, masqueraded.
    Cluster,
    /// This node's endpoints, source kept; traffic from the node and from local pods takes all endpoints.
    Local,
}

/// What one Service port means in one family: its frontends and the backend sets behind them.
///
/// All of upstream's selection rules are already decided in here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarding {
    /// Family of every address in here.
    pub family: Family,
    /// Protocol of the port (the same as in the name).
    pub protocol: Protocol,
    /// Frontends in a stable order, without duplicates: cluster IP, external IPs, load-balancer IPs, node port.
    pub frontends: Box<[Frontend]>,
    /// Cluster endpoints (`C` of the selection rules), sorted by address and port.
    pub cluster: Box<[Backend]>,
    /// Local endpoints (`L`), sorted; empty where no policy uses them.
    pub local: Box<[Backend]>,
    /// Whether the Service port has any usable endpoint anywhere (`A`): decides between reject and drop.
    pub has_endpoints: bool,
    /// Policy of the cluster IP.
    pub internal_policy: InternalPolicy,
    /// Policy of all other frontends.
    pub external_policy: ExternalPolicy,
    /// Session affinity by client IP with this timeout in seconds.
    pub affinity: Option<u32>,
    /// How IPVS shall choose an endpoint, where the Service asks for something else than the node's configuration.
    pub ipvs_scheduler: Option<IpvsScheduler>,
    /// Whether endpoints shall see the client's address in userspace mode, where their answers come by this node.
    pub keep_client_address: bool,
    /// Sources allowed to reach the load-balancer IPs; empty means all. Of this family, sorted, aggregated
    /// so that no range contains another.
    pub source_ranges: Box<[IpNet]>,
}

/// One Service port before and after, in one family. At least one side is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which Service port.
    pub name: Arc<ServicePortName>,
    /// Which family.
    pub family: Family,
    /// What it meant before, if anything.
    pub old: Option<Arc<Forwarding>>,
    /// What it means now, if anything.
    pub new: Option<Arc<Forwarding>>,
}

/// What a packet meets at a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// One of these backends, never empty.
    Backends(&'a [Backend]),
    /// Refused: no endpoint anywhere. TCP gets a reset, others an ICMP port unreachable.
    Reject,
    /// Dropped in silence: endpoints exist, but none that the Local policy allows here.
    Drop,
}

impl Forwarding {
    /// Of a Service port that has a cluster IP and these backends, sorted, and asks for nothing else.
    pub fn plain(frontend: SocketAddr, protocol: Protocol, cluster: Box<[Backend]>) -> Self {
        Self {
            family: Family::of(frontend.ip()),
            protocol,
            frontends: Box::new([Frontend::ClusterIp(frontend.ip(), frontend.port())]),
            cluster,
            local: Box::default(),
            has_endpoints: true,
            internal_policy: InternalPolicy::Cluster,
            external_policy: ExternalPolicy::Cluster,
            affinity: None,
            source_ranges: Box::default(),
            ipvs_scheduler: None,
            keep_client_address: false,
        }
    }

    /// Internal traffic (cluster IP).
    pub fn internal(&self) -> Outcome<'_> {
        match self.internal_policy {
            InternalPolicy::Cluster => self.outcome(&self.cluster),
            InternalPolicy::Local => self.outcome(&self.local),
        }
    }

    /// External traffic from elsewhere: neither from this node nor from a local pod.
    pub fn external(&self) -> Outcome<'_> {
        match self.external_policy {
            ExternalPolicy::Cluster => self.outcome(&self.cluster),
            ExternalPolicy::Local => self.outcome(&self.local),
        }
    }

    /// External traffic from this node or its pods: the short cut past a Local policy.
    pub fn external_short_cut(&self) -> Outcome<'_> {
        self.outcome(&self.cluster)
    }

    /// Whether any frontend takes external traffic.
    pub fn externally_accessible(&self) -> bool {
        self.frontends.iter().any(|f| !matches!(f, Frontend::ClusterIp(..)))
    }

    fn outcome<'a>(&self, backends: &'a [Backend]) -> Outcome<'a> {
        if !backends.is_empty() {
            Outcome::Backends(backends)
        } else if self.has_endpoints {
            Outcome::Drop
        } else {
            Outcome::Reject
        }
    }
}
