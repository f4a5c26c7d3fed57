//! The input and output of the [`Catalog`](super::Catalog).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::object::{EndpointSlice, Fault, Kind, Node, Object, ObjectKey, Service, ServiceCidr};
use crate::{Change, Family, Frontend, ServicePortName};

/// An event of a watch or list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A Service was added or changed.
    Service(Object<Service>),
    /// A Service was deleted.
    ServiceDeleted(ObjectKey),
    /// An EndpointSlice was added or changed.
    EndpointSlice(Object<EndpointSlice>),
    /// An EndpointSlice was deleted.
    EndpointSliceDeleted(ObjectKey),
    /// A Node was added or changed. Nodes other than this one are ignored.
    Node(Object<Node>),
    /// A Node was deleted. The last known state of this node is kept, as in kube-proxy.
    NodeDeleted(ObjectKey),
    /// A ServiceCIDR was added or changed.
    ServiceCidr(Object<ServiceCidr>),
    /// A ServiceCIDR was deleted.
    ServiceCidrDeleted(ObjectKey),
    /// A list of this kind starts. No object is removed before its end. A second start restarts the list.
    ListStart(Kind),
    /// The list is complete: objects of this kind that were not seen since its start are removed.
    ListEnd(Kind),
    /// ServiceCIDRs are not waited for: the API server does not serve them (older than 1.33, or no permission), or its list
    /// has failed for too long.
    ServiceCidrsUnavailable,
}

/// A fault of an object, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFault {
    /// The object's kind.
    pub kind: Kind,
    /// The object's key.
    pub key: ObjectKey,
    /// The field, what is wrong with it, and how to fix it.
    pub fault: Fault,
}

/// The result of applying an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// True if the cached state changed. [`take_changes`](super::Catalog::take_changes) may then return changes, but
    /// may also find none.
    pub changed: bool,
    /// Faults that are new with this event, including conflicts between Services.
    pub faults: Vec<ObjectFault>,
}

/// A pair of values, one for each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PerFamily<T> {
    /// For IPv4.
    pub ipv4: T,
    /// For IPv6.
    pub ipv6: T,
}

impl<T> PerFamily<T> {
    /// Returns the value of a family.
    pub const fn get(&self, family: Family) -> &T {
        match family {
            Family::Ipv4 => &self.ipv4,
            Family::Ipv6 => &self.ipv6,
        }
    }

    /// Returns a mutable reference to the value of a family.
    pub const fn get_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::Ipv4 => &mut self.ipv4,
            Family::Ipv6 => &mut self.ipv6,
        }
    }
}

/// The differences since the last take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Changed forwardings of Service ports, by family.
    pub changes: Vec<Change>,
    /// Trigger times (nanoseconds since the Unix epoch) of the EndpointSlice changes included here.
    pub triggers: PerFamily<Vec<i64>>,
    /// True if serving endpoints or frontends of a UDP Service port may have changed. Stale conntrack entries should
    /// then be searched for.
    pub conntrack_check: PerFamily<bool>,
    /// The UDP Service ports behind `conntrack_check` that still exist, without duplicates.
    pub udp: Vec<(Family, Arc<ServicePortName>)>,
    /// Health check servers whose port or count changed.
    pub health_checks: Vec<HealthCheckChange>,
    /// True if the set of service CIDRs changed.
    pub service_cidrs: bool,
}

impl Changes {
    /// Returns true if there are no changes to act on.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
            && self.conntrack_check == PerFamily::default()
            && self.health_checks.is_empty()
            && !self.service_cidrs
    }
}

/// A Service's health check server (`healthCheckNodePort`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// Port to listen on.
    pub port: u16,
    /// Number of distinct local ready endpoint addresses. `None` if the Service has no cluster IP of the family.
    pub local_ready: PerFamily<Option<u32>>,
}

/// A health check server before and after a change. At least one of them is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckChange {
    /// The Service.
    pub key: ObjectKey,
    /// The former state.
    pub old: Option<HealthCheck>,
    /// The new state.
    pub new: Option<HealthCheck>,
}

/// The data of a UDP Service port in one family that conntrack clean-up needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpService {
    /// The name of the Service port.
    pub name: Arc<ServicePortName>,
    /// The frontends.
    pub frontends: Vec<Frontend>,
    /// All serving endpoints, sorted. Readiness, locality and policies are not considered.
    pub serving: Vec<SocketAddr>,
    /// Those of the frontends other than cluster IPs, if they have others than `serving`.
    pub external: Option<Vec<SocketAddr>>,
    /// True if packets are captured without a translation. A flow that is not translated is valid then.
    pub is_captured: bool,
}

impl UdpService {
    /// Returns a Service port whose packets are translated to the same endpoints at every frontend.
    pub const fn new(name: Arc<ServicePortName>, frontends: Vec<Frontend>, serving: Vec<SocketAddr>) -> Self {
        Self { name, frontends, serving, external: None, is_captured: false }
    }
}

/// The number of Service ports that a Local policy leaves without an endpoint on this node although other nodes have
/// endpoints (metric `sync_proxy_rules_no_local_endpoints_total`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoLocalEndpoints {
    /// Because of `internalTrafficPolicy`.
    pub internal: usize,
    /// Because of `externalTrafficPolicy`.
    pub external: usize,
}
