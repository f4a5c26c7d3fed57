//! What an answer is made from. The caller reads these values; what it did not read is `None` or empty.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_firewall::Ruleset;
use portolan_model::catalog::PerFamily;
use portolan_model::object::{EndpointSlice, ObjectKey};
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Catalog, Protocol, Settings};

/// Everything that an answer is made from.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// This node.
    pub node: &'a NodeView,
    /// Services and EndpointSlices.
    pub catalog: &'a Catalog,
    /// Pods, for names and to recognise senders; empty if they are not known.
    pub pods: &'a [Pod],
    /// Addresses of all Nodes, which pods in the network of a node share; empty if they are not known.
    pub node_addresses: &'a [IpAddr],
    /// EndpointSlices with the names of nodes, which the Catalog does not keep; empty if they are not known.
    pub slices: &'a [(ObjectKey, EndpointSlice)],
    /// What a mode read from the kernel. `None` if it was not read.
    pub observed: PerFamily<Option<&'a Observed>>,
    /// Connections that conntrack has, at least those of the client to the destination. `None` if they were not read.
    pub connections: Option<Known<'a>>,
    /// Firewall rules. `None` if they were not read.
    pub rules: Option<&'a Ruleset>,
}

/// This node as packets meet it.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Name of the Node object.
    pub name: String,
    /// Name of the mode.
    pub mode: String,
    /// Addresses of this node's interfaces, as far as they are known. Loopback addresses need not be listed.
    pub addresses: Vec<IpAddr>,
    /// `spec.podCIDRs` of the Node object.
    pub pod_cidrs: Vec<IpNet>,
    /// What decides in each family. `None` if the family is not served.
    pub families: PerFamily<Option<FamilyView>>,
}

/// What decides about packets of one family besides Services.
#[derive(Debug, Clone)]
pub struct FamilyView {
    /// The settings of the agent.
    pub settings: Settings,
    /// The differences of the mode from nftables mode.
    pub differences: ModeDifferences,
}

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its addresses. A pod in the node's network has the node's.
    pub addresses: Vec<IpAddr>,
    /// Name of its node, if known.
    pub node: Option<String>,
}

/// What was read from conntrack.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The connections.
    pub list: &'a [Connection],
    /// True if connections may be missing in the list.
    pub partial: bool,
}

/// A connection or UDP flow in conntrack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// The protocol.
    pub protocol: Protocol,
    /// The client.
    pub source: SocketAddr,
    /// The destination of the client's packets.
    pub destination: SocketAddr,
    /// The sender of the replies: the endpoint, if the destination is translated.
    pub reply_source: SocketAddr,
    /// The destination of the replies: an address of this node, if the source is masqueraded.
    pub reply_destination: SocketAddr,
    /// True if a reply was seen.
    pub replied: bool,
    /// Seconds until the entry expires without packets, if known.
    pub timeout: Option<u32>,
}

impl<'a> Facts<'a> {
    /// Creates the facts of a node and its objects. Nothing was read from the kernel.
    pub const fn new(node: &'a NodeView, catalog: &'a Catalog) -> Self {
        Self {
            node,
            catalog,
            pods: &[],
            node_addresses: &[],
            slices: &[],
            observed: PerFamily { ipv4: None, ipv6: None },
            connections: None,
            rules: None,
        }
    }
}

impl NodeView {
    /// Returns true for addresses of this node.
    pub fn has(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

impl Facts<'_> {
    /// Returns the only pod with an address. Pods in the network of a node share its addresses, and those of an address that
    /// several pods list are not told apart.
    pub(crate) fn pod_at(&self, address: IpAddr) -> Option<&Pod> {
        let mut found = self.pods.iter().filter(|pod| pod.addresses.contains(&address));
        found.next().filter(|_| found.next().is_none())
    }
}

impl Pod {
    /// Returns `NAME.NAMESPACE`.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.name, self.namespace)
    }
}
