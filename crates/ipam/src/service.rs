//! The parts of a Service that determine its addresses and node ports. Address texts are kept as the client wrote
//! them.

use std::{collections::HashSet, fmt, net::IpAddr};

pub use portolan_net::Protocol;

use crate::family::{Family, parse_address};

/// The cluster IP of a headless Service.
pub const NONE: &str = "None";

/// `spec.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names are those of the API")]
pub enum ServiceType {
    #[default]
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// `spec.ipFamilyPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpFamilyPolicy {
    /// One family.
    SingleStack,
    /// Both families if the cluster has both.
    PreferDualStack,
    /// Both families, or an error.
    RequireDualStack,
}

/// The relevant fields of a Service's `spec`, with the API's defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceSpec {
    /// `type`.
    pub service_type: ServiceType,
    /// `clusterIP`; empty if unset.
    pub cluster_ip: String,
    /// `clusterIPs`.
    pub cluster_ips: Vec<String>,
    /// `ipFamilies`.
    pub ip_families: Vec<Family>,
    /// `ipFamilyPolicy`.
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// True if `selector` has an entry.
    pub has_selector: bool,
    /// `ports`.
    pub ports: Vec<ServicePort>,
    /// True if `allocateLoadBalancerNodePorts` is false.
    pub no_load_balancer_node_ports: bool,
    /// True if `externalTrafficPolicy` is `Local`.
    pub is_external_local: bool,
    /// `healthCheckNodePort`; 0 if unset.
    pub health_check_node_port: u16,
}

/// An entry of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePort {
    /// `name`; empty if unset.
    pub name: String,
    /// `protocol`.
    pub protocol: Protocol,
    /// `port`.
    pub port: u16,
    /// `nodePort`; 0 if unset.
    pub node_port: u16,
}

/// The namespace and name of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl ServiceKey {
    /// Creates a key from its parts.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl IpFamilyPolicy {
    /// Returns the name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

impl ServiceSpec {
    /// Returns true if the Service is headless.
    pub fn is_headless(&self) -> bool {
        self.cluster_ips.first().unwrap_or(&self.cluster_ip) == NONE
    }

    /// Returns true if the Service is headless and its endpoints are managed by hand. The cluster's families do not
    /// restrict it.
    pub fn is_headless_without_selector(&self) -> bool {
        self.is_headless() && !self.has_selector
    }

    /// Returns true if the type can have cluster IPs, as every type except ExternalName can.
    pub fn may_have_address(&self) -> bool {
        self.service_type != ServiceType::ExternalName
    }

    /// Returns true if the Service gets a cluster IP.
    pub fn needs_address(&self) -> bool {
        self.may_have_address() && !self.is_headless()
    }

    /// Returns true if the type can have node ports.
    pub fn may_have_node_ports(&self) -> bool {
        matches!(self.service_type, ServiceType::NodePort | ServiceType::LoadBalancer)
    }

    /// Returns true if each port gets a node port.
    pub fn needs_node_ports(&self) -> bool {
        self.may_have_node_ports()
            && !(self.service_type == ServiceType::LoadBalancer && self.no_load_balancer_node_ports)
    }

    /// Returns true if the Service gets a health-check node port, at which load balancers check its nodes.
    pub fn needs_health_check_port(&self) -> bool {
        self.service_type == ServiceType::LoadBalancer && self.is_external_local
    }

    /// Returns the addresses that a Service with this spec holds.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let texts = if self.needs_address() { self.cluster_ips.as_slice() } else { &[] };
        texts.iter().filter_map(|text| parse_address(text)).collect()
    }

    /// Returns the node ports that a Service with this spec holds, each once, the health-check node port last.
    pub fn held_ports(&self) -> Vec<u16> {
        let (mut held, mut seen) = (Vec::new(), HashSet::new());
        let ports = if self.may_have_node_ports() { self.ports.as_slice() } else { &[] };
        let health_check = self.needs_health_check_port().then_some(self.health_check_node_port);
        for port in ports.iter().map(|port| port.node_port).chain(health_check) {
            if port != 0 && seen.insert(port) {
                held.push(port);
            }
        }
        held
    }

    /// Returns the cluster IPs and node ports that a Service with this spec holds.
    pub fn claims(&self) -> Claims {
        Claims { addresses: self.addresses(), ports: self.held_ports(), ..Claims::default() }
    }
}

/// A set of addresses and node ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claims {
    /// Cluster IPs.
    pub addresses: Vec<IpAddr>,
    /// Node ports, including health-check node ports.
    pub ports: Vec<u16>,
    /// Load-balancer addresses, which [`load_balancer::plan`](crate::load_balancer::plan) decides. A spec has none.
    pub load_balancer: Vec<IpAddr>,
}

impl Claims {
    /// Returns true if there are no addresses and no node ports.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.ports.is_empty() && self.load_balancer.is_empty()
    }
}
