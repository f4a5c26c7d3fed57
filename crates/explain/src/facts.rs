//! What an answer is made from. The caller reads these values; what it did not read is `None` or empty.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use portolan_firewall::Ruleset;
use portolan_model::catalog::{ExplainedPort, LeftOut, ObjectFault, PerFamily};
use portolan_model::object::{EndpointSlice, ObjectKey};
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::table::Entry;
use portolan_model::{Catalog, Family, Protocol, ServicePortName, Settings};

use crate::report::Source;

/// The Services of a node and their endpoints. A [`Catalog`] knows all of it. A running agent has the table in its engine and
/// the rest in its Catalog, on another thread.
pub trait Services: fmt::Debug {
    /// Returns every Service port of a family, in any order.
    fn table(&self, family: Family) -> Vec<Entry>;

    /// Returns the health-check node ports of the Services of a family, in any order.
    fn health_check_ports(&self, family: Family) -> Vec<u16>;

    /// Returns a Service port with the choice of each endpoint. `None` if it does not exist.
    fn explain(&self, name: &ServicePortName, family: Family) -> Option<ExplainedPort>;

    /// Returns the frontends at an address and port that Service ports claim and do not get.
    fn left_out_at(&self, destination: SocketAddr, protocol: Protocol) -> Vec<LeftOut>;

    /// Returns the conflicts of the Services with a name, in one namespace or in all.
    fn conflicts_of(&self, namespace: Option<&str>, service: &str) -> Vec<ObjectFault>;
}

impl Services for Catalog {
    fn table(&self, family: Family) -> Vec<Entry> {
        self.forwardings(family).collect()
    }

    fn health_check_ports(&self, family: Family) -> Vec<u16> {
        self.health_check_ports(family)
    }

    fn explain(&self, name: &ServicePortName, family: Family) -> Option<ExplainedPort> {
        self.explain(name, family)
    }

    fn left_out_at(&self, destination: SocketAddr, protocol: Protocol) -> Vec<LeftOut> {
        self.left_out_at(destination, protocol)
    }

    fn conflicts_of(&self, namespace: Option<&str>, service: &str) -> Vec<ObjectFault> {
        self.conflicts_of(namespace, service)
    }
}

/// The routes of a node, and its reverse-path filters, which are for IPv4 only. The kernel is asked for single routes while the answer is made,
/// because which ones matter depends on the endpoints.
pub trait Routes: fmt::Debug {
    /// Returns the way of packets of this node to a destination.
    fn way_to(&self, destination: Ipv4Addr) -> Way;

    /// Returns true if the kernel would deliver or forward a packet that arrives at an interface. `None` if that is not known.
    fn accepts(&self, interface: &str, source: Ipv4Addr, destination: Ipv4Addr) -> Option<bool>;

    /// Returns the reverse-path filter of an interface. `None` if it is not known.
    fn filter(&self, interface: &str) -> Option<Filter>;

    /// Returns the name of the interface that has an address.
    fn holder(&self, address: Ipv4Addr) -> Option<String>;

    /// Returns true if an interface has an address.
    fn has_address(&self, interface: &str) -> bool;

    /// Returns true if the node forwards packets of a family that arrive at an interface, or at any if none is named. `None` if
    /// that is not known.
    fn forwards(&self, family: Family, interface: Option<&str>) -> Option<bool>;

    /// Returns what the node's routes do with any packet to a destination.
    fn lead(&self, destination: IpAddr) -> Lead;
}

/// What routes do with a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lead {
    /// That is not known, or depends on more than the destination.
    Unknown,
    /// They lead it to its destination, or to the next host.
    On,
    /// There is no route.
    NoRoute,
    /// The route is of the type `unreachable` or `prohibit`.
    Refuses,
    /// The route is of the type `blackhole`.
    Discards,
    /// The route leads through an interface without a carrier.
    NoCarrier {
        /// Name of the interface.
        interface: String,
    },
}

/// The way of packets to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// It could not be read.
    Unknown,
    /// There is no route.
    None,
    /// There is a route.
    Through {
        /// Name of the interface.
        interface: String,
        /// The source that the kernel chooses.
        source: Option<Ipv4Addr>,
    },
}

/// The reverse-path filter of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// What it drops.
    pub strictness: Strictness,
    /// The setting that decides, with its value, such as `net.ipv4.conf.all.rp_filter=1`.
    pub setting: String,
}

/// What a reverse-path filter drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// Nothing.
    Off,
    /// Packets whose source has a route through another interface, or none.
    Strict,
    /// Packets whose source has no route.
    Loose,
}

/// Everything that an answer is made from.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// This node.
    pub node: &'a NodeView,
    /// Services and their endpoints.
    pub services: &'a dyn Services,
    /// Where these come from.
    pub source: Source,
    /// Pods, for names and to recognise senders; empty if they are not known.
    pub pods: &'a [Pod],
    /// Addresses of all Nodes, which pods in the network of a node share; empty if they are not known.
    pub node_addresses: &'a [IpAddr],
    /// EndpointSlices with the names of nodes, which the Catalog does not keep; empty if they are not known.
    pub slices: &'a [(ObjectKey, EndpointSlice)],
    /// What a mode read from the kernel. `None` if it was not read.
    pub observed: PerFamily<Option<&'a Observed>>,
    /// The address from which a process on this node sends to the destination, by the node's routes. `None` if the routes were
    /// not asked, or there is none.
    pub node_source: Option<IpAddr>,
    /// Connections that conntrack has, at least those of the client to the destination. `None` if they were not read.
    pub connections: Option<Known<'a>>,
    /// Firewall rules. `None` if they were not read.
    pub rules: Option<&'a Ruleset>,
    /// The routes of the node. `None` if they cannot be asked.
    pub routes: Option<&'a dyn Routes>,
}

/// This node as packets meet it.
#[derive(Debug, Clone)]
pub struct NodeView {
    /// Name of the Node object.
    pub name: String,
    /// Name of the configured mode. While families are replaced one by one, a family can have another one.
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
    /// Name of the mode.
    pub mode: String,
    /// The settings of the agent.
    pub settings: Settings,
    /// The differences of the mode from nftables mode.
    pub differences: ModeDifferences,
    /// True if the mode's rules are in kube-proxy's chains of iptables, and translate packets there.
    pub in_kube_proxys_chains: bool,
    /// The ports of the relay, if connection tracking redirects packets of Services to it.
    pub redirected_to: Option<RangeInclusive<u16>>,
}

impl FamilyView {
    /// Returns true if packets of Services must be tracked: connection tracking translates their destination.
    pub(crate) const fn needs_tracking(&self) -> bool {
        let ModeDifferences { hides_clients, refuses_at_virtual_addresses, .. } = &self.differences;
        !*refuses_at_virtual_addresses && (!*hides_clients || self.redirected_to.is_some())
    }
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
    /// Creates the facts of a node and the Services of manifests. Nothing was read from the kernel.
    pub const fn new(node: &'a NodeView, services: &'a dyn Services) -> Self {
        Self {
            node,
            services,
            source: Source::Manifests,
            pods: &[],
            node_addresses: &[],
            slices: &[],
            observed: PerFamily { ipv4: None, ipv6: None },
            node_source: None,
            connections: None,
            rules: None,
            routes: None,
        }
    }
}

impl NodeView {
    /// Returns true for addresses of this node.
    pub fn has(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }
}

impl Pod {
    /// Returns `NAME.NAMESPACE`.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.name, self.namespace)
    }
}
