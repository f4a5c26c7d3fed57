//! The errors of address and node port allocation: the field, its value, and the reason.

use std::fmt;

use thiserror::Error;

use crate::{
    family::Family,
    node_port::NodePortRange,
    pools::AddressError,
    service::{IpFamilyPolicy, ServiceKey},
};

/// An error of one field.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {reason}")]
pub struct FieldError {
    /// The field's path, as upstream writes it, such as `spec.ports[0].nodePort`.
    pub field: String,
    /// The value that the client wrote; empty if the field was unset.
    pub value: String,
    /// The reason.
    pub reason: Refusal,
}

/// The reason why a field is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The policy is `SingleStack` with two addresses or families.
    #[error("must be RequireDualStack or PreferDualStack when two families or cluster IPs are given")]
    SecondNeedsDualStack,
    /// The second address or family is missing, but the policy is not `SingleStack`.
    #[error("must be SingleStack to release the secondary cluster IP")]
    ReleaseNeedsSingleStack,
    /// The policy is `RequireDualStack` in a cluster of one family.
    #[error("this cluster is configured with ranges of one family only")]
    ClusterIsSingleStack,
    /// The cluster has no range of the family.
    #[error("no range of {0} cluster IPs is configured")]
    FamilyNotConfigured(Family),
    /// The text is not an IP address.
    #[error("must be a valid IP address, or None for a headless Service")]
    NotAnAddress,
    /// `None` is listed together with an address.
    #[error("None stands alone")]
    NoneNotAlone,
    /// The cluster IP of a NodePort or LoadBalancer Service is `None`.
    #[error("may not be None for Services of type NodePort or LoadBalancer")]
    NoneNeedsClusterIp,
    /// `clusterIP` and `clusterIPs[0]` differ.
    #[error("must be the same as the first of clusterIPs")]
    FirstDiffers,
    /// `clusterIP` is empty while `clusterIPs` is not.
    #[error("must be set when clusterIPs is set")]
    FirstMissing,
    /// The list has more than two entries.
    #[error("may have two entries at most, one for each family")]
    TooMany,
    /// The list has the same family twice.
    #[error("may hold one entry of each family")]
    FamilyTwice,
    /// The address is not of the family at the same position of `ipFamilies`.
    #[error("must be an {0} address, as ipFamilies says")]
    FamilyDiffers(Family),
    /// An ExternalName Service has addresses or families.
    #[error("may not be set for Services of type ExternalName")]
    ForbiddenForExternalName,
    /// The first address or family of a Service never changes, nor does being headless.
    #[error("may not change once set")]
    Immutable,
    /// The address cannot be allocated.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Another Service holds the address or the port.
    #[error("provided value is already allocated to Service {0}")]
    HeldBy(ServiceKey),
    /// The port is taken.
    #[error("provided port is already allocated")]
    PortAllocated,
    /// The port is outside of the range.
    #[error("provided port is not in the valid range, {0}")]
    PortNotInRange(NodePortRange),
    /// No port is left.
    #[error("range is full: every node port of {0} is allocated")]
    PortsFull(NodePortRange),
    /// A Service uses the same protocol and node port twice.
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

    /// Returns true if the error is a 422 Invalid. All other errors are a 500 `InternalError` upstream: the range is
    /// exhausted or not ready, or a health-check node port cannot be allocated.
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

/// The path of the health-check node port.
pub(crate) const HEALTH_CHECK: &str = "spec.healthCheckNodePort";
/// The path of the list of cluster IPs. Refused addresses are reported on the list as a whole.
pub(crate) const CLUSTER_IPS: &str = "spec.clusterIPs";
