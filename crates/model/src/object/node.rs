//! This node, and the CIDRs from which cluster IPs are allocated.

use std::net::IpAddr;

use ipnet::IpNet;

use super::lenient::{Faults, Loose, Text, record};
use super::{Kind, Metadata, ObjectBody, RawMetadata, WithMetadata, parse};

/// Key of the taint that the cluster autoscaler sets on a node before it removes the node (KEP-3836).
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A Node with the fields that its own proxy needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// Label `topology.kubernetes.io/zone`; `None` if it is missing or empty.
    pub zone: Option<Box<str>>,
    /// Addresses of type `InternalIP`, in the order of the status.
    pub internal_addresses: Vec<IpAddr>,
    /// Addresses of type `ExternalIP`, in the order of the status.
    pub external_addresses: Vec<IpAddr>,
    /// `spec.podCIDRs`, in the given order.
    pub pod_cidrs: Vec<IpNet>,
    /// True if the node has a deletion timestamp.
    pub deleting: bool,
    /// True if the node has the taint `ToBeDeletedByClusterAutoscaler`.
    pub to_be_deleted: bool,
    /// `spec.taints`, in the given order. Taints without a key are left out.
    pub taints: Vec<Taint>,
}

/// A taint of a node, by key and effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taint {
    /// The key.
    pub key: Box<str>,
    /// The effect; empty if it is missing.
    pub effect: Box<str>,
}

impl Node {
    /// Returns true if load balancers may send new connections to this node (KEP-3836).
    pub const fn eligible(&self) -> bool {
        !self.deleting && !self.to_be_deleted
    }
}

/// A `ServiceCIDR`: ranges from which cluster IPs are allocated.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServiceCidr {
    /// `spec.cidrs`.
    pub cidrs: Vec<IpNet>,
}

record!(
    RawNode {
        kind: "kind" => Text<'de>,
        metadata: "metadata" = 1 => RawMetadata<'de>,
        spec: "spec" = 2 => RawNodeSpec<'de>,
        status: "status" = 3 => RawNodeStatus<'de>,
    }
);
record!(
    RawNodeSpec {
        pod_cidrs: "podCIDRs" = 7 => Vec<Loose<Text<'de>>>,
        taints: "taints" = 5 => Vec<Loose<RawTaint<'de>>>,
    }
);
record!(
    RawTaint {
        key: "key" = 1 kept => Text<'de>,
        effect: "effect" = 3 kept => Text<'de>,
    }
);
record!(
    RawNodeStatus {
        addresses: "addresses" = 5 => Vec<Loose<RawAddress<'de>>>,
    }
);
record!(
    RawAddress {
        kind: "type" = 1 kept => Text<'de>,
        address: "address" = 2 kept => Text<'de>,
    }
);
record!(
    RawServiceCidr {
        kind: "kind" => Text<'de>,
        metadata: "metadata" = 1 => RawMetadata<'de>,
        spec: "spec" = 2 => RawServiceCidrSpec<'de>,
    }
);
record!(
    RawServiceCidrSpec {
        cidrs: "cidrs" = 1 => Vec<Loose<Text<'de>>>,
    }
);

impl<'de> WithMetadata<'de> for RawNode<'de> {
    fn kind(&self) -> &Loose<Text<'de>> {
        &self.kind
    }

    fn metadata(&mut self) -> Loose<RawMetadata<'de>> {
        std::mem::take(&mut self.metadata)
    }
}

impl ObjectBody for Node {
    type Raw<'de> = RawNode<'de>;
    const KIND: Kind = Kind::Node;

    fn build(raw: RawNode<'_>, metadata: &Metadata<'_>, faults: &mut Faults) -> Self {
        let spec = raw.spec.or_empty(faults, "spec", "an object");
        let taints = spec.taints.or_empty(faults, "spec.taints", "a list of taints");
        let status = raw.status.or_empty(faults, "status", "an object");
        let mut node = Self {
            zone: metadata.labels.zone.text().filter(|zone| !zone.is_empty()).map(Into::into),
            pod_cidrs: parse::cidrs(spec.pod_cidrs, faults, "spec.podCIDRs").0,
            deleting: metadata.deleting,
            taints: taints.iter().filter_map(taint).collect(),
            ..Self::default()
        };
        node.to_be_deleted = node.taints.iter().any(|taint| &*taint.key == TO_BE_DELETED);
        let list = status.addresses.or_empty(faults, "status.addresses", "a list of addresses");
        for (index, raw) in list.into_iter().enumerate() {
            let path = || format!("status.addresses[{index}]");
            let Some(raw) = raw.take(faults, path, "an object") else { continue };
            let list = match raw.kind.text() {
                Some("InternalIP") => &mut node.internal_addresses,
                Some("ExternalIP") => &mut node.external_addresses,
                _ => continue,
            };
            list.extend(parse::address(raw.address, faults, || path() + ".address"));
        }
        node
    }
}

fn taint(raw: &Loose<RawTaint<'_>>) -> Option<Taint> {
    let Loose::Value(raw) = raw else { return None };
    let effect = raw.effect.text().unwrap_or_default();
    Some(Taint { key: raw.key.text()?.into(), effect: effect.into() })
}

impl<'de> WithMetadata<'de> for RawServiceCidr<'de> {
    fn kind(&self) -> &Loose<Text<'de>> {
        &self.kind
    }

    fn metadata(&mut self) -> Loose<RawMetadata<'de>> {
        std::mem::take(&mut self.metadata)
    }
}

impl ObjectBody for ServiceCidr {
    type Raw<'de> = RawServiceCidr<'de>;
    const KIND: Kind = Kind::ServiceCidr;

    fn build(raw: RawServiceCidr<'_>, _: &Metadata<'_>, faults: &mut Faults) -> Self {
        let spec = raw.spec.or_empty(faults, "spec", "an object");
        Self { cidrs: parse::cidrs(spec.cidrs, faults, "spec.cidrs").0 }
    }
}

#[cfg(test)]
mod tests;
