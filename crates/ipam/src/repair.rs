//! The audit: Services, `IPAddress` objects, ranges and node ports as they are, compared with what they should be.
//!
//! It writes nothing. Each [`Finding`] says what is wrong and what may be done about it without asking; the caller does
//! that, or only reports it for a cluster that is not its own. Rules and times are those of
//! `pkg/registry/core/service/ipallocator/controller/repairip.go` and `.../portallocator/controller/repair.go`.
//! Deviations: addresses are compared as addresses and not as texts; an `IPAddress` that another controller manages is
//! reported and left alone; a port that was leaked once and is in flight later starts anew.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use thiserror::Error;

use crate::{
    family::Families,
    node_port::NodePortRange,
    range::AddressRange,
    service::{ServiceKey, ServiceSpec},
};

mod addresses;
mod ports;
#[cfg(test)]
mod tests;

/// How often the audit runs: once at start, then after each such time, in seconds.
pub const PERIOD: u64 = 180;
/// The sighting of a leaked node port at which it is freed. Between two lies one [`PERIOD`].
pub const SIGHTINGS_TO_RELEASE: u8 = 3;
/// How old an `IPAddress` without Service is before it goes, in seconds: its Service may not be visible yet.
pub const ORPHAN_GRACE: u64 = 60;
/// How old an `IPAddress` of a Service that does not list it is before it goes, in seconds, if it came after the Service:
/// a failed write may be in the course of being undone.
pub const UNLISTED_GRACE: u64 = 5;

/// A cluster at one moment. Times are seconds since any fixed moment, the same for all.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// All Services, in the order in which they have a right to what several of them claim: the oldest first.
    pub services: &'a [ServiceObject],
    /// All `IPAddress` objects.
    pub addresses: &'a [AddressObject],
    /// The ranges of all ServiceCIDRs.
    pub ranges: &'a [AddressRange],
    /// The families that are configured.
    pub families: Families,
    /// The range of node ports.
    pub port_range: NodePortRange,
    /// The node ports that are recorded as given out.
    pub recorded_ports: &'a [u16],
    /// The present.
    pub now: u64,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceObject {
    /// Namespace and name.
    pub key: ServiceKey,
    /// Spec.
    pub spec: ServiceSpec,
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
    /// Whether the label `ipaddress.kubernetes.io/managed-by` is `ipallocator.k8s.io`.
    pub is_managed: bool,
    /// Whether the label `ipaddress.kubernetes.io/ip-family` is that of the address.
    pub has_family_label: bool,
    /// `metadata.creationTimestamp`.
    pub created: u64,
}

/// What a `parentRef` points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// Resource `services` of the core group.
    Service(ServiceKey),
    /// Anything else.
    Other,
}

/// How often each leaked node port has been seen, to be given to the next audit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sightings {
    ports: BTreeMap<u16, u8>,
}

/// What an audit found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// All that is wrong.
    pub findings: Vec<Finding>,
    /// To be kept for the next audit if what this one proposes was written, else the former ones are kept. A write that
    /// is tried again must not count as another sighting.
    pub sightings: Sightings,
    /// Seconds until something that may still be in the course of being written has to be looked at again.
    pub recheck_after: Option<u64>,
}

/// Something wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// With which object.
    pub subject: Subject,
    /// What.
    pub problem: Problem,
    /// What may be done about it without asking.
    pub mend: Mend,
}

/// The object of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// A Service.
    Service(ServiceKey),
    /// An `IPAddress`.
    Address(IpAddr),
    /// A node port that is recorded as given out.
    Port(u16),
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// A cluster IP that is none.
    #[error("cluster IP \"{0}\" is not an IP address; recreate the Service")]
    NotAnAddress(String),
    /// A cluster IP of a family without range.
    #[error("cluster IP {0} is of a family that is no longer configured; recreate the Service")]
    FamilyNotConfigured(IpAddr),
    /// A cluster IP in no range.
    #[error("cluster IP {0} is in no configured range; recreate the Service")]
    AddressOutOfRange(IpAddr),
    /// A cluster IP without `IPAddress`.
    #[error("cluster IP {0} is not allocated")]
    AddressNotAllocated(IpAddr),
    /// A cluster IP whose `IPAddress` points to a Service that does not exist, or to no Service.
    #[error("cluster IP {0} is allocated to something that is no Service")]
    AddressWronglyHeld(IpAddr),
    /// A cluster IP that something else has by right.
    #[error("cluster IP {address} is already allocated to {holder}; recreate the Service")]
    AddressDuplicate {
        /// The address.
        address: IpAddr,
        /// `namespace/name` of the Service, or what else it is.
        holder: String,
    },
    /// An `IPAddress` without the labels of an allocated cluster IP.
    #[error("the IPAddress of cluster IP {0} has wrong labels")]
    WrongLabels(IpAddr),
    /// An `IPAddress` of this allocator that points to no Service.
    #[error("IPAddress {0} does not belong to a Service")]
    NoService(IpAddr),
    /// An `IPAddress` whose Service is gone.
    #[error("IPAddress {address} belongs to Service {service}, which does not exist")]
    Orphan {
        /// The address.
        address: IpAddr,
        /// The Service that it names.
        service: ServiceKey,
    },
    /// An `IPAddress` whose Service has other cluster IPs.
    #[error("IPAddress {address} belongs to Service {service}, which does not have it")]
    Unlisted {
        /// The address.
        address: IpAddr,
        /// The Service that it names.
        service: ServiceKey,
    },
    /// A node port that is not recorded.
    #[error("node port {0} is not allocated")]
    PortNotAllocated(u16),
    /// A node port that another Service has, too.
    #[error("node port {port} is already allocated to Service {holder}; recreate the Service")]
    PortDuplicate {
        /// The node port.
        port: u16,
        /// The Service that has it by right.
        holder: ServiceKey,
    },
    /// A node port outside of the range.
    #[error("node port {0} is outside of the configured range; recreate the Service")]
    PortOutOfRange(u16),
    /// A node port that is recorded, but no Service has it.
    #[error("node port {port} is allocated, but no Service has it (seen {sightings} times)")]
    PortLeaked {
        /// The node port.
        port: u16,
        /// In how many audits, this one included.
        sightings: u8,
    },
}

/// What may be done without asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mend {
    /// Nothing: a human has to decide, or it is too early.
    Nothing,
    /// Create an `IPAddress` for this Service.
    CreateAddress(IpAddr, ServiceKey),
    /// Delete the `IPAddress` and create one for this Service.
    ReplaceAddress(IpAddr, ServiceKey),
    /// Delete the `IPAddress`.
    DeleteAddress(IpAddr),
    /// Record the node port as given out.
    RecordPort(u16),
    /// Free the node port.
    ReleasePort(u16),
}

impl Problem {
    /// `reason` of the Event, as upstream's audit has it. Wrong labels are mended without Event there; leaked ports
    /// are only counted.
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
            Self::WrongLabels(_) | Self::PortLeaked { .. } => None,
        }
    }

    /// `action` of the Event.
    pub fn event_action(&self) -> &'static str {
        match self {
            Self::NotAnAddress(_) | Self::FamilyNotConfigured(_) => "ClusterIPValidation",
            Self::AddressOutOfRange(_)
            | Self::AddressNotAllocated(_)
            | Self::AddressWronglyHeld(_)
            | Self::AddressDuplicate { .. }
            | Self::WrongLabels(_) => "ClusterIPAllocation",
            Self::NoService(_) | Self::Orphan { .. } | Self::Unlisted { .. } => "IPAddressAllocation",
            Self::PortNotAllocated(_)
            | Self::PortDuplicate { .. }
            | Self::PortOutOfRange(_)
            | Self::PortLeaked { .. } => "PortAllocation",
        }
    }

    /// Label `type` of `apiserver_clusterip_repair_ip_errors_total` and `apiserver_nodeport_repair_port_errors_total`.
    pub fn metric_type(&self) -> &'static str {
        match self {
            Self::NotAnAddress(_) | Self::FamilyNotConfigured(_) => "invalid",
            Self::AddressOutOfRange(_) | Self::PortOutOfRange(_) => "outOfRange",
            Self::AddressDuplicate { .. } | Self::PortDuplicate { .. } => "duplicate",
            Self::NoService(_) | Self::Orphan { .. } | Self::Unlisted { .. } | Self::PortLeaked { .. } => {
                "leak"
            }
            Self::AddressNotAllocated(_)
            | Self::AddressWronglyHeld(_)
            | Self::WrongLabels(_)
            | Self::PortNotAllocated(_) => "repair",
        }
    }
}

/// Compares everything once. Costs time and memory in proportion to the number of objects.
pub fn audit(observed: &Observed<'_>, before: &Sightings) -> Audit {
    let mut audit = Audit::default();
    let services: HashMap<&ServiceKey, &ServiceObject> =
        observed.services.iter().map(|service| (&service.key, service)).collect();
    addresses::audit(observed, &services, &mut audit);
    ports::audit(observed, before, &mut audit);
    audit
}

impl Audit {
    fn report(&mut self, subject: Subject, problem: Problem, mend: Mend) {
        self.findings.push(Finding { subject, problem, mend });
    }

    fn recheck_in(&mut self, seconds: u64) {
        self.recheck_after = Some(self.recheck_after.unwrap_or(seconds).min(seconds));
    }
}
