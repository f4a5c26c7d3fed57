//! What flows into the [`Catalog`](super::Catalog) and what flows out.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::object::{EndpointSlice, Fault, Kind, Node, Object, ObjectKey, Service, ServiceCidr};
use crate::{Change, Family, Frontend, ServicePortName};

/// One thing that the API server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A Service is there, in this state.
    Service(Object<Service>),
    /// A Service is gone.
    ServiceDeleted(ObjectKey),
    /// An EndpointSlice is there, in this state.
    EndpointSlice(Object<EndpointSlice>),
    /// An EndpointSlice is gone.
    EndpointSliceDeleted(ObjectKey),
    /// A Node is there, in this state; others than this node are passed over.
    Node(Object<Node>),
    /// A Node is gone; the last known state of this node is kept, as in kube-proxy.
    NodeDeleted(ObjectKey),
    /// A ServiceCIDR is there, in this state.
    ServiceCidr(Object<ServiceCidr>),
    /// A ServiceCIDR is gone.
    ServiceCidrDeleted(ObjectKey),
    /// A complete list of this kind begins. Nothing is removed before its end; a second start begins anew.
    ListStart(Kind),
    /// The list is complete: whatever of this kind has not been seen since its start is gone.
    ListEnd(Kind),
    /// The API server has no ServiceCIDRs (older than 1.33, or no permission): do not wait for them.
    ServiceCidrsUnavailable,
}

/// A fault of an object, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFault {
    /// Kind of the object.
    pub kind: Kind,
    /// Which object.
    pub key: ObjectKey,
    /// The field, what is wrong with it, and the mend.
    pub fault: Fault,
}

/// What an event did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Whether anything that is kept became different. A change is then worth a look at
    /// [`take_changes`](super::Catalog::take_changes), which may still find nothing to do.
    pub changed: bool,
    /// Faults that are new with this event, conflicts between Services included.
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
    /// The value of a family.
    pub const fn get(&self, family: Family) -> &T {
        match family {
            Family::Ipv4 => &self.ipv4,
            Family::Ipv6 => &self.ipv6,
        }
    }

    /// The value of a family, to change.
    pub const fn get_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::Ipv4 => &mut self.ipv4,
            Family::Ipv6 => &mut self.ipv6,
        }
    }
}

/// Everything that became different since the last take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// Service ports whose meaning changed, by family.
    pub changes: Vec<Change>,
    /// Trigger times (nanoseconds since the Unix epoch) of the EndpointSlice changes in here.
    pub triggers: PerFamily<Vec<i64>>,
    /// Whether serving endpoints or frontends of some UDP Service port may have changed: stale conntrack
    /// entries should be looked for.
    pub conntrack_check: PerFamily<bool>,
    /// The UDP Service ports behind `conntrack_check` that still exist, without duplicates.
    pub udp: Vec<(Family, Arc<ServicePortName>)>,
    /// Health check servers whose port or count changed.
    pub health_checks: Vec<HealthCheckChange>,
    /// Whether the set of service CIDRs changed.
    pub service_cidrs: bool,
}

impl Changes {
    /// Whether there is nothing to do.
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
    /// Number of distinct local ready endpoint addresses; absent where the Service has no cluster IP of the
    /// family.
    pub local_ready: PerFamily<Option<u32>>,
}

/// A health check server before and after. At least one side is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheckChange {
    /// The Service.
    pub key: ObjectKey,
    /// Before.
    pub old: Option<HealthCheck>,
    /// After.
    pub new: Option<HealthCheck>,
}

/// What conntrack clean-up needs to know of a UDP Service port in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpService {
    /// Which Service port.
    pub name: Arc<ServicePortName>,
    /// Where clients reach it.
    pub frontends: Vec<Frontend>,
    /// All serving endpoints, sorted: readiness, locality and policies do not matter here.
    pub serving: Vec<SocketAddr>,
}

/// Service ports that a Local policy leaves without an endpoint on this node although there are some
/// elsewhere (metric `sync_proxy_rules_no_local_endpoints_total`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoLocalEndpoints {
    /// By `internalTrafficPolicy`.
    pub internal: usize,
    /// By `externalTrafficPolicy`.
    pub external: usize,
}
