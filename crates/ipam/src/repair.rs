//! The audit of a cluster: compares Services, `IPAddress` objects, ranges, node ports and Nodes with each other. Rules for
//! load-balancer addresses are ours: upstream allocates none.
//!
//! The audit writes nothing. Each [`Finding`] names a problem and the repair that needs no approval. The caller makes
//! the repair, or only reports it if the cluster belongs to another controller. Rules and times are those of
//! `pkg/registry/core/service/ipallocator/controller/repairip.go` and `.../portallocator/controller/repair.go`.
//! Deviations: addresses are compared as addresses, not as texts. An `IPAddress` that another controller manages is
//! reported and left alone. The count of a leaked port restarts after its release, so a port in flight later is not
//! freed at first sight.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use ipnet::IpNet;
use thiserror::Error;

use crate::{
    check::{NodeOverlap, RangeUse},
    family::Families,
    node_port::NodePortRange,
    nodes::Nodes,
    range::AddressRange,
    service::{ServiceKey, ServiceSpec},
};

mod addresses;
mod load_balancers;
mod ports;
#[cfg(test)]
mod tests;

/// Interval between two audits, in seconds. The first audit runs at start.
pub const PERIOD: u64 = 180;
/// Number of audits that must see a leaked node port before it is freed. They are one [`PERIOD`] apart.
pub const SIGHTINGS_TO_RELEASE: u8 = 3;
/// Age in seconds up to which an `IPAddress` without Service is kept: its Service may not be visible yet.
pub const ORPHAN_GRACE: u64 = 60;
/// Age in seconds at which an `IPAddress` that its Service does not list is deleted, if it was created after the
/// Service: the rollback of a failed write may be in progress.
pub const UNLISTED_GRACE: u64 = 5;

/// A snapshot of a cluster. Times are in seconds since an arbitrary moment, the same for all.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// All Services, the oldest first. If several claim the same address or port, the first of them owns it.
    pub services: &'a [ServiceObject],
    /// All `IPAddress` objects.
    pub addresses: &'a [AddressObject],
    /// The ranges of all ServiceCIDRs.
    pub ranges: &'a [AddressRange],
    /// The ranges of load-balancer addresses. `None` if they are not known.
    pub load_balancers: Option<&'a [AddressRange]>,
    /// All Nodes.
    pub nodes: &'a Nodes,
    /// The configured families.
    pub families: Families,
    /// The range of node ports.
    pub port_range: NodePortRange,
    /// The node ports that are recorded as allocated.
    pub recorded_ports: &'a [u16],
    /// The current time.
    pub now: u64,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceObject {
    /// Its namespace and name.
    pub key: ServiceKey,
    /// Its spec.
    pub spec: ServiceSpec,
    /// The load-balancer addresses that its status lists, if the server is its load balancer.
    pub load_balancer: Vec<IpAddr>,
    /// `metadata.creationTimestamp`.
    pub created: u64,
}

/// An `IPAddress` (networking.k8s.io/v1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressObject {
    /// Its name.
    pub address: IpAddr,
    /// `spec.parentRef`.
    pub parent: Parent,
    /// True if the label `ipaddress.kubernetes.io/managed-by` is `ipallocator.k8s.io`.
    pub is_managed: bool,
    /// True if this label says that the address is a load-balancer address.
    pub is_load_balancer: bool,
    /// True if the label `ipaddress.kubernetes.io/ip-family` matches the address.
    pub has_family_label: bool,
    /// `metadata.creationTimestamp`.
    pub created: u64,
}

/// The object that a `parentRef` refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// A Service (resource `services` of the core group).
    Service(ServiceKey),
    /// Anything else.
    Other,
}

/// How often each leaked node port has been seen. Passed to the next audit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sightings {
    ports: BTreeMap<u16, u8>,
}

/// The result of an audit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// All problems found.
    pub findings: Vec<Finding>,
    /// Passed to the next audit if the proposed repairs were written; otherwise the former sightings are passed
    /// again. A retried write must not count as another sighting.
    pub sightings: Sightings,
    /// Seconds until the next audit is due because of a write that may still be in progress. `None` if there is none.
    pub recheck_after: Option<u64>,
}

/// A problem and its repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The object that has the problem.
    pub subject: Subject,
    /// The problem.
    pub problem: Problem,
    /// The repair that needs no approval.
    pub mend: Mend,
}

/// The object of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A Service.
    Service(ServiceKey),
    /// An `IPAddress`.
    Address(IpAddr),
    /// A node port that is recorded as allocated.
    Port(u16),
    /// A Node.
    Node(String),
}

/// A problem of a Service, an `IPAddress`, a recorded node port or a Node.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// A cluster IP is not an IP address.
    #[error("cluster IP \"{0}\" is not an IP address; recreate the Service")]
    NotAnAddress(String),
    /// A cluster IP is of a family without range.
    #[error("cluster IP {0} is of a family that is no longer configured; recreate the Service")]
    FamilyNotConfigured(IpAddr),
    /// A cluster IP is in no range.
    #[error("cluster IP {0} is in no configured range; recreate the Service")]
    AddressOutOfRange(IpAddr),
    /// A cluster IP has no `IPAddress`.
    #[error("cluster IP {0} is not allocated")]
    AddressNotAllocated(IpAddr),
    /// The `IPAddress` of a cluster IP refers to a Service that does not exist, or to another object.
    #[error("cluster IP {0} is allocated to something that is no Service")]
    AddressWronglyHeld(IpAddr),
    /// A cluster IP belongs to another object.
    #[error("cluster IP {address} is already allocated to {holder}; recreate the Service")]
    AddressDuplicate {
        /// The address.
        address: IpAddr,
        /// `namespace/name` of the Service, or a description of the object.
        holder: String,
    },
    /// The `IPAddress` of a cluster IP lacks the labels of an allocated cluster IP.
    #[error("the IPAddress of cluster IP {0} has wrong labels")]
    WrongLabels(IpAddr),
    /// A load-balancer address is not recorded for its Service.
    #[error("load-balancer address {0} is not allocated")]
    BalancerNotAllocated(IpAddr),
    /// A load-balancer address belongs to another object.
    #[error(
        "load-balancer address {address} is already allocated to {holder}; edit the Service, and it gets another"
    )]
    BalancerDuplicate {
        /// The address.
        address: IpAddr,
        /// `namespace/name` of the Service, or a description of the object.
        holder: String,
    },
    /// A load-balancer address is in no range. The Service keeps it.
    #[error(
        "load-balancer address {0} is in no configured range; the Service keeps it until it requests another"
    )]
    BalancerOutOfRange(IpAddr),
    /// An `IPAddress` of this allocator does not refer to a Service.
    #[error("IPAddress {0} does not belong to a Service")]
    NoService(IpAddr),
    /// An `IPAddress` refers to a Service that does not exist.
    #[error("IPAddress {address} belongs to Service {service}, which does not exist")]
    Orphan {
        /// The address.
        address: IpAddr,
        /// The Service that it refers to.
        service: ServiceKey,
    },
    /// An `IPAddress` refers to a Service with other cluster IPs.
    #[error("IPAddress {address} belongs to Service {service}, which does not have it")]
    Unlisted {
        /// The address.
        address: IpAddr,
        /// The Service that it refers to.
        service: ServiceKey,
    },
    /// A node port of a Service is not recorded.
    #[error("node port {0} is not allocated")]
    PortNotAllocated(u16),
    /// A node port belongs to another Service.
    #[error("node port {port} is already allocated to Service {holder}; recreate the Service")]
    PortDuplicate {
        /// The node port.
        port: u16,
        /// The Service that owns the port.
        holder: ServiceKey,
    },
    /// A node port is outside of the range.
    #[error("node port {0} is outside of the configured range; recreate the Service")]
    PortOutOfRange(u16),
    /// A node port is recorded, but no Service has it.
    #[error("node port {port} is allocated, but no Service has it (seen {sightings} times)")]
    PortLeaked {
        /// The node port.
        port: u16,
        /// Number of audits that have seen it, this one included.
        sightings: u8,
    },
    /// A Node uses addresses of a range of Services.
    #[error(transparent)]
    NodeOverlap(NodeOverlap),
}

/// A repair that needs no approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mend {
    /// No repair: a human has to decide, or it is too early.
    Nothing,
    /// Create an `IPAddress` for this Service.
    CreateAddress(IpAddr, ServiceKey),
    /// Delete the `IPAddress` and create one for this Service.
    ReplaceAddress(IpAddr, ServiceKey),
    /// Create or replace the `IPAddress` of a load-balancer address of this Service.
    RecordLoadBalancer(IpAddr, ServiceKey),
    /// Delete the `IPAddress`.
    DeleteAddress(IpAddr),
    /// Record the node port as allocated.
    RecordPort(u16),
    /// Free the node port.
    ReleasePort(u16),
}

impl Problem {
    /// Returns the `reason` of the Event that upstream's repair loop emits, or `None` if it emits none. It repairs
    /// wrong labels without an Event and only counts leaked ports. It does not look at Nodes.
    pub fn event_reason(&self) -> Option<&'static str> {
        match self {
            Self::NotAnAddress(_) | Self::FamilyNotConfigured(_) => Some("ClusterIPNotValid"),
            Self::AddressOutOfRange(_) => Some("ClusterIPOutOfRange"),
            Self::AddressNotAllocated(_) | Self::AddressWronglyHeld(_) => Some("ClusterIPNotAllocated"),
            Self::AddressDuplicate { .. } => Some("ClusterIPAlreadyAllocated"),
            Self::NoService(_) | Self::Orphan { .. } => Some("IPAddressNotAllocated"),
            Self::Unlisted { .. } => Some("IPAddressWrongReference"),
            Self::PortNotAllocated(_) => Some("PortNotAllocated"),
            Self::PortDuplicate { .. } => Some("PortAlreadyAllocated"),
            Self::PortOutOfRange(_) => Some("PortOutOfRange"),
            Self::BalancerNotAllocated(_) => Some("LoadBalancerIPNotAllocated"),
            Self::BalancerDuplicate { .. } => Some("LoadBalancerIPAlreadyAllocated"),
            Self::BalancerOutOfRange(_) => Some("LoadBalancerIPOutOfRange"),
            Self::NodeOverlap(overlap) => Some(match overlap.of {
                RangeUse::ClusterIps => "NodeOverlapsServiceCIDR",
                RangeUse::LoadBalancers => "NodeOverlapsLoadBalancerRange",
            }),
            Self::WrongLabels(_) | Self::PortLeaked { .. } => None,
        }
    }

    /// Returns the `action` of the Event.
    pub fn event_action(&self) -> &'static str {
        match self {
            Self::NotAnAddress(_) | Self::FamilyNotConfigured(_) | Self::NodeOverlap(_) => {
                "ClusterIPValidation"
            }
            Self::AddressOutOfRange(_)
            | Self::AddressNotAllocated(_)
            | Self::AddressWronglyHeld(_)
            | Self::AddressDuplicate { .. }
            | Self::WrongLabels(_) => "ClusterIPAllocation",
            Self::BalancerNotAllocated(_) | Self::BalancerDuplicate { .. } | Self::BalancerOutOfRange(_) => {
                "LoadBalancerIPAllocation"
            }
            Self::NoService(_) | Self::Orphan { .. } | Self::Unlisted { .. } => "IPAddressAllocation",
            Self::PortNotAllocated(_)
            | Self::PortDuplicate { .. }
            | Self::PortOutOfRange(_)
            | Self::PortLeaked { .. } => "PortAllocation",
        }
    }

    /// Returns the label `type` of `apiserver_clusterip_repair_ip_errors_total` and
    /// `apiserver_nodeport_repair_port_errors_total`.
    pub fn metric_type(&self) -> &'static str {
        match self {
            Self::NotAnAddress(_) | Self::FamilyNotConfigured(_) => "invalid",
            Self::AddressOutOfRange(_) | Self::BalancerOutOfRange(_) | Self::PortOutOfRange(_) => {
                "outOfRange"
            }
            Self::AddressDuplicate { .. } | Self::BalancerDuplicate { .. } | Self::PortDuplicate { .. } => {
                "duplicate"
            }
            Self::NodeOverlap(_) => "overlap",
            Self::NoService(_) | Self::Orphan { .. } | Self::Unlisted { .. } | Self::PortLeaked { .. } => {
                "leak"
            }
            Self::AddressNotAllocated(_)
            | Self::AddressWronglyHeld(_)
            | Self::BalancerNotAllocated(_)
            | Self::WrongLabels(_)
            | Self::PortNotAllocated(_) => "repair",
        }
    }
}

/// Audits a cluster once. Time and memory are proportional to the number of objects.
pub fn audit(observed: &Observed<'_>, before: &Sightings) -> Audit {
    let mut audit = Audit::default();
    let services: HashMap<&ServiceKey, &ServiceObject> =
        observed.services.iter().map(|service| (&service.key, service)).collect();
    addresses::audit(observed, &services, &mut audit);
    load_balancers::audit(observed, &services, &mut audit);
    ports::audit(observed, before, &mut audit);
    audit.nodes(observed);
    audit
}

impl Audit {
    fn nodes(&mut self, observed: &Observed<'_>) {
        let nets = |ranges: &[AddressRange]| ranges.iter().map(|range| range.net()).collect::<Vec<IpNet>>();
        let ranges = nets(observed.ranges);
        let balancers = nets(observed.load_balancers.unwrap_or_default());
        for (name, networks) in observed.nodes.iter() {
            let of_cluster_ips = networks.overlaps(&ranges, RangeUse::ClusterIps);
            let of_balancers = networks.overlaps(&balancers, RangeUse::LoadBalancers);
            for overlap in of_cluster_ips.into_iter().chain(of_balancers) {
                self.report(Subject::Node(name.to_owned()), Problem::NodeOverlap(overlap), Mend::Nothing);
            }
        }
    }

    fn report(&mut self, subject: Subject, problem: Problem, mend: Mend) {
        self.findings.push(Finding { subject, problem, mend });
    }

    fn recheck_in(&mut self, seconds: u64) {
        self.recheck_after = Some(self.recheck_after.unwrap_or(seconds).min(seconds));
    }
}
