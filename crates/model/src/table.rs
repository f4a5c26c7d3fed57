//! The forwarding table: how one Service port is handled in one family, independent of the mode.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::{Family, IpvsScheduler, Protocol};

/// The identity of a Service port. Printed as `namespace/service:port`, or `namespace/service` if the port has no
/// name. The protocol is part of the identity but not of the text, as in kube-proxy. The texts are shared with the
/// Catalog that created the name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub service: Arc<str>,
    /// Name of the port; empty if it has none.
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

/// An address or port at which clients reach a Service port.
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

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ClusterIp(address, port) => write!(f, "cluster IP {}", SocketAddr::new(address, port)),
            Self::ExternalIp(address, port) => write!(f, "external IP {}", SocketAddr::new(address, port)),
            Self::LoadBalancerIp(address, port) => {
                write!(f, "load-balancer IP {}", SocketAddr::new(address, port))
            }
            Self::NodePort(port) => write!(f, "node port {port}"),
        }
    }
}

impl Frontend {
    /// Returns the address and port, or `None` for a node port.
    pub const fn socket(self) -> Option<SocketAddr> {
        match self {
            Self::ClusterIp(address, port)
            | Self::ExternalIp(address, port)
            | Self::LoadBalancerIp(address, port) => Some(SocketAddr::new(address, port)),
            Self::NodePort(_) => None,
        }
    }
}

/// An endpoint of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Backend {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Target port.
    pub port: u16,
    /// True if the endpoint is on this node or its node is unknown. A connection that returns to its own source is
    /// then masqueraded (hairpin).
    pub may_hairpin: bool,
}

impl Backend {
    /// Returns the address and port.
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

/// `externalTrafficPolicy`, if it applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExternalPolicy {
    /// All endpoints, masqueraded.
    Cluster,
    /// This node's endpoints, with the source kept. Traffic from the node and from local pods uses all endpoints.
    Local,
}

/// The forwarding of one Service port in one family: its frontends and the sets of backends behind them.
///
/// It is the result of all of upstream's selection rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarding {
    /// The family of all addresses.
    pub family: Family,
    /// The protocol of the port, as in its name.
    pub protocol: Protocol,
    /// Frontends in a stable order, without duplicates: cluster IP, external IPs, load-balancer IPs, node port.
    pub frontends: Box<[Frontend]>,
    /// Cluster endpoints (`C` of the selection rules), sorted by address and port.
    pub cluster: Box<[Backend]>,
    /// Local endpoints (`L`), sorted; empty if no policy uses them.
    pub local: Box<[Backend]>,
    /// True if the Service port has a usable endpoint on any node (`A`). It determines whether packets are rejected
    /// or dropped.
    pub has_endpoints: bool,
    /// The policy of the cluster IP.
    pub internal_policy: InternalPolicy,
    /// The policy of all other frontends.
    pub external_policy: ExternalPolicy,
    /// Timeout in seconds of session affinity by client IP. `None` if there is no affinity.
    pub affinity: Option<u32>,
    /// The IPVS scheduler that the Service requests. `None` for the node's default.
    pub ipvs_scheduler: Option<IpvsScheduler>,
    /// True if endpoints should see the client's address in userspace mode, provided that their replies pass this
    /// node.
    pub keep_client_address: bool,
    /// Sources that may reach the load-balancer IPs; empty means all. Of this family, sorted, and aggregated so that
    /// no range contains another.
    pub source_ranges: Box<[IpNet]>,
}

/// A Service port in one family before and after a change. At least one of them is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The name of the Service port.
    pub name: Arc<ServicePortName>,
    /// The family.
    pub family: Family,
    /// The former forwarding.
    pub old: Option<Arc<Forwarding>>,
    /// The new forwarding.
    pub new: Option<Arc<Forwarding>>,
}

/// A Service port of the table with its forwarding.
pub type Entry = (Arc<ServicePortName>, Arc<Forwarding>);

/// The handling of a packet at a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition<'a> {
    /// The packet goes to one of these backends. The list is never empty.
    Backends(&'a [Backend]),
    /// The packet is rejected because there is no endpoint on any node: with a TCP reset, or an ICMP port unreachable
    /// for other protocols.
    Reject,
    /// The packet is dropped without reply: endpoints exist, but the Local policy allows none of them here.
    Drop,
}

impl Forwarding {
    /// Creates the forwarding of a Service port with a cluster IP and these backends, sorted, and no other features.
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

    /// Returns the handling of internal traffic (cluster IP).
    pub fn internal(&self) -> Disposition<'_> {
        match self.internal_policy {
            InternalPolicy::Cluster => self.outcome(&self.cluster),
            InternalPolicy::Local => self.outcome(&self.local),
        }
    }

    /// Returns the handling of external traffic that comes neither from this node nor from a local pod.
    pub fn external(&self) -> Disposition<'_> {
        match self.external_policy {
            ExternalPolicy::Cluster => self.outcome(&self.cluster),
            ExternalPolicy::Local => self.outcome(&self.local),
        }
    }

    /// Returns the handling of external traffic from this node or its pods, to which a Local policy does not apply.
    pub fn external_short_cut(&self) -> Disposition<'_> {
        self.outcome(&self.cluster)
    }

    /// Returns the backends of a frontend in a mode where all clients of the frontend share one list, whatever their
    /// source: with external policy Local, the local ones, or all if there are none.
    pub fn shared_backends(&self, frontend: Frontend) -> &[Backend] {
        let local = match frontend {
            Frontend::ClusterIp(..) => self.internal_policy == InternalPolicy::Local,
            _ => self.external_policy == ExternalPolicy::Local && !self.local.is_empty(),
        };
        if local { &self.local } else { &self.cluster }
    }

    /// Returns true if a frontend accepts external traffic.
    pub fn externally_accessible(&self) -> bool {
        self.frontends.iter().any(|f| !matches!(f, Frontend::ClusterIp(..)))
    }

    fn outcome<'a>(&self, backends: &'a [Backend]) -> Disposition<'a> {
        if !backends.is_empty() {
            Disposition::Backends(backends)
        } else if self.has_endpoints {
            Disposition::Drop
        } else {
            Disposition::Reject
        }
    }
}
