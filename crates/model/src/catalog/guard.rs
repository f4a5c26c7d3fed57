//! The guard: what to do with an external address of a Service that belongs to something else.
//!
//! Everyone who may write a Service may name any address in `spec.externalIPs`, and this node then sends the traffic
//! to that address to the Service's endpoints (CVE-2020-8554). Load-balancer IPs do the same, but only a controller may
//! write them. The guard compares both with the addresses that this node knows. It decides by address, not by port.
//! Cluster IPs, node ports and the addresses of a Service itself are never judged.
//!
//! This module is the rule alone: policy and known addresses in, a finding out. `review` applies it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::claim::Rank;
use crate::object::{Fault, Node, Notice};

/// How many addresses a report names. It counts the others.
const ADDRESSES_SHOWN: usize = 5;

/// What an address belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressOwner {
    /// It is the cluster IP of another Service.
    ClusterIp,
    /// It is in this node's `spec.podCIDRs`.
    PodCidr,
    /// It is an address of this node's Node object.
    Node,
    /// It is in a CIDR from which cluster IPs are allocated, and no Service has it.
    ServiceCidr,
    /// It is in `clusterCIDR` of the configuration, which holds pods of all nodes.
    ClusterCidr,
}

/// What happens to an external address that belongs to something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuardAction {
    /// It is served, as in kube-proxy.
    Allow,
    /// It is served and reported.
    Warn,
    /// The Service's frontends at this address are left out, and this is reported.
    Refuse,
}

impl AddressOwner {
    /// All of them. Of two that apply with the same action, the first is reported.
    pub const ALL: [Self; 5] =
        [Self::ClusterIp, Self::PodCidr, Self::Node, Self::ServiceCidr, Self::ClusterCidr];

    /// Returns the name of its field in the section `addressGuard` of the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "clusterIPs",
            Self::PodCidr => "podCIDRs",
            Self::Node => "nodeAddresses",
            Self::ServiceCidr => "serviceCIDRs",
            Self::ClusterCidr => "clusterCIDR",
        }
    }

    /// Returns the action without a setting. An address that certainly belongs to something else is refused. The two
    /// CIDRs may hold addresses that nothing else uses.
    pub const fn default_action(self) -> GuardAction {
        match self {
            Self::ClusterIp | Self::PodCidr | Self::Node => GuardAction::Refuse,
            Self::ServiceCidr | Self::ClusterCidr => GuardAction::Warn,
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::ClusterIp => 0,
            Self::PodCidr => 1,
            Self::Node => 2,
            Self::ServiceCidr => 3,
            Self::ClusterCidr => 4,
        }
    }
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "it is the cluster IP of another Service",
            Self::PodCidr => "it is in spec.podCIDRs of this node",
            Self::Node => "it is an address of this node",
            Self::ServiceCidr => "it is in a service CIDR",
            Self::ClusterCidr => "it is in clusterCIDR, where pods have their addresses",
        })
    }
}

impl AddressOwner {
    /// Returns why several addresses are reported.
    const fn of_several(self) -> &'static str {
        match self {
            Self::ClusterIp => "they are cluster IPs of other Services",
            Self::PodCidr => "they are in spec.podCIDRs of this node",
            Self::Node => "they are addresses of this node",
            Self::ServiceCidr => "they are in a service CIDR",
            Self::ClusterCidr => "they are in clusterCIDR, where pods have their addresses",
        }
    }
}

impl GuardAction {
    /// All of them, from the weakest to the strictest.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Warn, Self::Refuse];

    /// Returns the action as configurations spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "Allow",
            Self::Warn => "Warn",
            Self::Refuse => "Refuse",
        }
    }
}

/// The action for each owner, and the addresses that are never judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressGuard {
    actions: [GuardAction; 5],
    /// External addresses in these CIDRs are served without a report.
    pub allowed: Vec<IpNet>,
}

impl Default for AddressGuard {
    fn default() -> Self {
        Self { actions: AddressOwner::ALL.map(AddressOwner::default_action), allowed: Vec::new() }
    }
}

impl AddressGuard {
    /// Returns the action for addresses with this owner.
    pub fn action(&self, owner: AddressOwner) -> GuardAction {
        self.actions.get(owner.index()).copied().unwrap_or(owner.default_action())
    }

    /// Sets the action for addresses with this owner.
    pub fn set(&mut self, owner: AddressOwner, action: GuardAction) {
        if let Some(slot) = self.actions.get_mut(owner.index()) {
            *slot = action;
        }
    }
}

/// An external address of a Service that belongs to something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Finding {
    /// The address.
    pub(super) address: IpAddr,
    /// What it belongs to.
    pub(super) owner: AddressOwner,
    /// What is done about it. Never [`GuardAction::Allow`].
    pub(super) action: GuardAction,
    /// True for a load-balancer IP, false for an external IP.
    pub(super) is_load_balancer_ip: bool,
}

impl Finding {
    /// Returns true if the Service's owner is notified. A load-balancer IP that is an address of a node is only
    /// counted unless it is refused: load balancers of clusters without a cloud assign such addresses to every
    /// Service.
    pub(super) const fn is_reported(&self) -> bool {
        !matches!((self.owner, self.action), (AddressOwner::Node, GuardAction::Warn))
            || !self.is_load_balancer_ip
    }

    /// Returns what the findings of one report have in common.
    const fn kind(&self) -> (bool, AddressOwner, GuardAction) {
        (self.is_load_balancer_ip, self.owner, self.action)
    }
}

/// Returns the reports of a Service's findings, for the log and Events: one for each field, owner and action, because a
/// Service may have thousands of addresses.
pub(super) fn reports(findings: &[Finding]) -> impl Iterator<Item = Fault> {
    let mut kinds: BTreeMap<_, Vec<IpAddr>> = BTreeMap::new();
    for finding in findings {
        kinds.entry(finding.kind()).or_default().push(finding.address);
    }
    kinds.into_iter().filter_map(|(kind, addresses)| report(kind, &addresses))
}

/// Returns the report about addresses of one kind, or `None` if there are none.
fn report(
    (is_load_balancer_ip, owner, action): (bool, AddressOwner, GuardAction),
    addresses: &[IpAddr],
) -> Option<Fault> {
    let (first, others) = addresses.split_first()?;
    let rank = if is_load_balancer_ip { Rank::LoadBalancerIp } else { Rank::ExternalIp };
    let (notice, text, link) = match action {
        GuardAction::Refuse => (Notice::AddressRefused, "left out on this node", "because"),
        GuardAction::Allow | GuardAction::Warn => (Notice::AddressShared, "served", "although"),
    };
    let what = if others.is_empty() {
        format!("{first} is {text}, {link} {owner}; choose another address, or permit this one")
    } else {
        let (count, shown) = (addresses.len(), addresses.len().min(ADDRESSES_SHOWN));
        let named: Vec<String> = addresses.iter().take(shown).map(ToString::to_string).collect();
        let (named, reason) = (named.join(", "), owner.of_several());
        let first =
            if shown < count { format!("{named} and {} more", count.saturating_sub(shown)) } else { named };
        format!("{count} addresses ({first}) are {text}, {link} {reason}; choose others, or permit these")
    };
    let setting = owner.name();
    let reason = format!("{what} in the configuration (addressGuard.{setting}, addressGuard.allowed)");
    Some(Fault::new(rank.field(), reason).noticed(notice))
}

/// The addresses that the guard knows, except cluster IPs.
#[derive(Debug, Clone, Default)]
pub(super) struct Guard {
    pub(super) policy: AddressGuard,
    /// `clusterCIDR` of the configuration.
    pub(super) cluster_cidrs: Vec<IpNet>,
    /// The addresses and pod CIDRs of this node.
    node_addresses: Vec<IpAddr>,
    pod_cidrs: Vec<IpNet>,
    pub(super) service_cidrs: Vec<IpNet>,
}

impl Guard {
    /// Uses the addresses and pod CIDRs of a Node object. Returns true if they changed.
    pub(super) fn set_node(&mut self, node: &Node) -> bool {
        let addresses: Vec<IpAddr> =
            node.internal_addresses.iter().chain(&node.external_addresses).copied().collect();
        let changed = self.node_addresses != addresses || self.pod_cidrs != node.pod_cidrs;
        self.node_addresses = addresses;
        self.pod_cidrs.clone_from(&node.pod_cidrs);
        changed
    }

    /// Judges an external address. `is_cluster_ip` tells whether another Service has it as its cluster IP; it is
    /// called only if that matters. Returns `None` if the address is served without a report.
    pub(super) fn judge(
        &self,
        address: IpAddr,
        is_load_balancer_ip: bool,
        is_cluster_ip: impl Fn() -> bool,
    ) -> Option<Finding> {
        let contains = |cidrs: &[IpNet]| cidrs.iter().any(|cidr| cidr.contains(&address));
        if contains(&self.policy.allowed) {
            return None;
        }
        let mut found: Option<Finding> = None;
        for owner in AddressOwner::ALL {
            let action = self.policy.action(owner);
            if action <= found.map_or(GuardAction::Allow, |finding| finding.action) {
                continue;
            }
            let applies = match owner {
                AddressOwner::ClusterIp => is_cluster_ip(),
                AddressOwner::PodCidr => self.in_pod_range(&self.pod_cidrs, address),
                AddressOwner::Node => self.node_addresses.contains(&address),
                AddressOwner::ServiceCidr => contains(&self.service_cidrs),
                AddressOwner::ClusterCidr => self.in_pod_range(&self.cluster_cidrs, address),
            };
            if applies {
                found = Some(Finding { address, owner, action, is_load_balancer_ip });
            }
        }
        found
    }

    /// Returns true if one of these CIDRs holds the address and no address of this node. In a flat network, pods,
    /// nodes and load balancers have addresses of one CIDR, which therefore does not show what an address belongs to.
    /// Before this node's addresses are known, this cannot be told.
    fn in_pod_range(&self, cidrs: &[IpNet], address: IpAddr) -> bool {
        if self.node_addresses.is_empty() {
            return false;
        }
        let is_flat = |cidr: &IpNet| self.node_addresses.iter().any(|node| cidr.contains(node));
        cidrs.iter().any(|cidr| cidr.contains(&address) && !is_flat(cidr))
    }
}
