//! Why a Service gets no address or node port: the field, its value, and what to do about it.

use std::fmt;

use thiserror::Error;

use crate::{
    family::Family,
    node_port::NodePortRange,
    pools::AddressError,
    service::{IpFamilyPolicy, ServiceKey},
};

/// One field and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct FieldError {
    /// Path of the field, as upstream names it, such as `spec.ports[0].nodePort`.
    pub field: String,
    /// The value that the client gave; empty if it gave none.
    pub value: String,
    /// What is wrong.
    pub reason: Refusal,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Two addresses or families with `SingleStack`.
    #[error("must be RequireDualStack or PreferDualStack when two families or cluster IPs are given")]
    SecondNeedsDualStack,
    /// The second address or family is left out, but the policy is not `SingleStack`.
    #[error("must be SingleStack to release the secondary cluster IP")]
    ReleaseNeedsSingleStack,
    /// `RequireDualStack` in a cluster of one family.
    #[error("this cluster is configured with ranges of one family only")]
    ClusterIsSingleStack,
    /// A family that the cluster has no range of.
    #[error("no range of {0} cluster IPs is configured")]
    FamilyNotConfigured(Family),
    /// Not an address.
    #[error("must be a valid IP address, or None for a headless Service")]
    NotAnAddress,
    /// `None` next to an address.
    #[error("None stands alone")]
    NoneNotAlone,
    /// `None` on a NodePort or LoadBalancer Service.
    #[error("may not be None for Services of type NodePort or LoadBalancer")]
    NoneNeedsClusterIp,
    /// `clusterIP` and `clusterIPs[0]` differ.
    #[error("must be the same as the first of clusterIPs")]
    FirstDiffers,
    /// `clusterIP` is empty while `clusterIPs` is not.
    #[error("must be set when clusterIPs is set")]
    FirstMissing,
    /// More than two entries.
    #[error("may have two entries at most, one for each family")]
    TooMany,
    /// Twice the same family.
    #[error("may hold one entry of each family")]
    FamilyTwice,
    /// An address of another family than the entry of `ipFamilies` beside it.
    #[error("must be an {0} address, as ipFamilies says")]
    FamilyDiffers(Family),
    /// Addresses or families for ExternalName.
    #[error("may not be set for Services of type ExternalName")]
    ForbiddenForExternalName,
    /// The first address or family of a Service never changes, nor whether it is headless.
    #[error("may not change once set")]
    Immutable,
    /// The address can not be had.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Another Service has the address or the port.
    #[error("provided value is already allocated to Service {0}")]
    HeldBy(ServiceKey),
    /// The port is taken.
    #[error("provided port is already allocated")]
    PortAllocated,
    /// The port is in no range.
    #[error("provided port is not in the valid range, {0}")]
    PortNotInRange(NodePortRange),
    /// No port is left.
    #[error("range is full: every node port of {0} is allocated")]
    PortsFull(NodePortRange),
    /// The same protocol and node port twice in one Service.
    #[error("each pair of protocol and node port may be used once")]
    PortTwice,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, value: &dyn fmt::Display, reason: Refusal) -> Self {
        Self { field: field.into(), value: value.to_string(), reason }
    }

    pub(crate) fn policy(policy: IpFamilyPolicy, reason: Refusal) -> Self {
        Self::new("spec.ipFamilyPolicy", &policy.name(), reason)
    }

    /// Whether the client could have known better: 422 Invalid. Else it is 500 `InternalError` upstream: nothing is
    /// left of what any would have done, and any trouble with a health-check node port.
    pub fn is_invalid(&self) -> bool {
        let is_exhausted = matches!(
            self.reason,
            Refusal::PortsFull(_)
                | Refusal::Address(AddressError::Full { .. } | AddressError::NotReady { .. })
        );
        let is_health_check = self.field == HEALTH_CHECK && self.reason != Refusal::Immutable;
        !is_exhausted && !is_health_check
    }
}

/// Path of the health-check node port.
pub(crate) const HEALTH_CHECK: &str = "spec.healthCheckNodePort";
/// Path of the list that refused addresses are reported on, as a whole.
pub(crate) const CLUSTER_IPS: &str = "spec.clusterIPs";
