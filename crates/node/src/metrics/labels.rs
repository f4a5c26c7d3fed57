//! The label values of this program's metrics.

use super::Labels;
use crate::address::Family;

/// The traffic policy of a Service that is `Local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// `internalTrafficPolicy`.
    Internal,
    /// `externalTrafficPolicy`.
    External,
}

/// A watched resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Services.
    Services,
    /// EndpointSlices.
    EndpointSlices,
    /// Nodes.
    Nodes,
    /// ServiceCIDRs.
    ServiceCidrs,
}

impl Resource {
    /// All resources, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Services, Self::EndpointSlices, Self::Nodes, Self::ServiceCidrs];

    /// Returns the name in the paths of the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::EndpointSlices => "endpointslices",
            Self::Nodes => "nodes",
            Self::ServiceCidrs => "servicecidrs",
        }
    }
}

/// The label `kind`: the kind of the objects of a [`Resource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectKind(pub Resource);

/// The result of a changed configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The new configuration is active.
    Ok,
    /// The new configuration has errors, or cannot be activated while the program runs. The former one stays active.
    Refused,
}

impl Labels for Reload {
    fn all() -> Vec<Self> {
        vec![Self::Ok, Self::Refused]
    }

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> String {
        format!("result=\"{}\"", if self == Self::Ok { "ok" } else { "refused" })
    }
}

/// The result of a write to the Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeWrite {
    /// The Node has what was wanted.
    Ok,
    /// It will be tried again.
    Failed,
}

impl Labels for NodeWrite {
    fn all() -> Vec<Self> {
        vec![Self::Ok, Self::Failed]
    }

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> String {
        format!("result=\"{}\"", if self == Self::Ok { "ok" } else { "failed" })
    }
}

impl Labels for Family {
    fn all() -> Vec<Self> {
        Self::BOTH.to_vec()
    }

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> String {
        format!("ip_family=\"{self}\"")
    }
}

/// A table of iptables that has rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableLabel {
    Filter,
    Nat,
}

impl Labels for (Family, TableLabel) {
    fn all() -> Vec<Self> {
        let of_family = |family| [(family, TableLabel::Filter), (family, TableLabel::Nat)];
        Family::BOTH.into_iter().flat_map(of_family).collect()
    }

    fn index(self) -> usize {
        self.0.index() * 2 + usize::from(self.1 == TableLabel::Nat)
    }

    fn text(self) -> String {
        let table = if self.1 == TableLabel::Nat { "nat" } else { "filter" };
        format!("ip_family=\"{}\",table=\"{table}\"", self.0)
    }
}

impl Labels for (TrafficPolicy, Family) {
    fn all() -> Vec<Self> {
        let policies = [TrafficPolicy::External, TrafficPolicy::Internal];
        policies.into_iter().flat_map(|policy| Family::BOTH.map(|family| (policy, family))).collect()
    }

    fn index(self) -> usize {
        let policy = usize::from(self.0 == TrafficPolicy::Internal);
        policy * Family::BOTH.len() + self.1.index()
    }

    fn text(self) -> String {
        let policy = match self.0 {
            TrafficPolicy::Internal => "internal",
            TrafficPolicy::External => "external",
        };
        format!("ip_family=\"{}\",traffic_policy=\"{policy}\"", self.1)
    }
}

/// The status codes of health responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Ok,
    Unavailable,
}

impl Code {
    pub(super) fn of(status: u16) -> Self {
        if status == 200 { Self::Ok } else { Self::Unavailable }
    }
}

impl Labels for Code {
    fn all() -> Vec<Self> {
        vec![Self::Ok, Self::Unavailable]
    }

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> String {
        format!("code=\"{}\"", if self == Self::Ok { 200 } else { 503 })
    }
}

impl Labels for Resource {
    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> String {
        format!("resource=\"{}\"", self.name())
    }
}

impl Labels for ObjectKind {
    fn all() -> Vec<Self> {
        Resource::all().into_iter().map(Self).collect()
    }

    fn index(self) -> usize {
        self.0.index()
    }

    fn text(self) -> String {
        let name = match self.0 {
            Resource::Services => "Service",
            Resource::EndpointSlices => "EndpointSlice",
            Resource::Nodes => "Node",
            Resource::ServiceCidrs => "ServiceCIDR",
        };
        format!("kind=\"{name}\"")
    }
}
