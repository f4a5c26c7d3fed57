//! A node with pods, a second node with remote pods, and an outside client.
//!
//! Pods are connected by routed veth pairs: a host route per address and no bridge, so that every packet between
//! pods passes the node's forwarding path and its rules. The node's default route leads to the client, which
//! forwards nothing: it discards a packet for a virtual address that no rule matches. The node is the default
//! gateway of the client and the remote node, and of packets from remote pods. So packets for virtual addresses
//! reach the node from everywhere, and the answers pass it again.

mod build;

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use portolan_model::{Family, Protocol};

pub use build::WorldBuilder;
use build::{CLOSED_PORT, LINKS_WITHIN};

use crate::{Addresses, EchoServer, Namespace, Probe, ProbeResult, Site, TestkitError, eventually};

/// Two nodes, their pods and a client. All of them end when dropped.
#[derive(Debug)]
pub struct World {
    echo: EchoServer,
    node: Node,
    remote_node: Node,
    client: Pod,
    pods: Vec<Pod>,
    remote_pods: Vec<Pod>,
}

/// A node: a router between its pods, the other node and the outside.
#[derive(Clone, Debug)]
pub struct Node {
    namespace: Namespace,
    site: Site,
}

/// A pod, or the outside client, which differs from a pod only in its network connection.
#[derive(Clone, Debug)]
pub struct Pod {
    namespace: Namespace,
    addresses: Addresses,
    interface: String,
    node: Node,
}

impl World {
    /// Builds a world with four pods on the node and two on the remote node.
    pub fn new() -> Result<Self, TestkitError> {
        Self::builder().build()
    }

    /// Returns a builder for a world of another size.
    pub const fn builder() -> WorldBuilder {
        WorldBuilder::new()
    }

    /// Returns the node that Portolan runs on.
    pub const fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the other node, which has no rules of Portolan.
    pub const fn remote_node(&self) -> &Node {
        &self.remote_node
    }

    /// Returns the client outside of the cluster.
    pub const fn client(&self) -> &Pod {
        &self.client
    }

    /// Returns the pods of the node, behind its interfaces `pod1`, `pod2` and so on.
    pub fn pods(&self) -> &[Pod] {
        &self.pods
    }

    /// Returns the pods of the remote node.
    pub fn remote_pods(&self) -> &[Pod] {
        &self.remote_pods
    }

    /// Returns the responders of this world.
    pub const fn echo(&self) -> &EchoServer {
        &self.echo
    }

    /// Starts a responder at a port of a pod, on its first address of each family.
    pub fn serve(&self, pod: &Pod, protocol: Protocol, port: u16) -> Result<(), TestkitError> {
        let places = pod.addresses.both().map(|address| (protocol, SocketAddr::new(address, port)));
        self.echo.listen_many(&pod.namespace, &places)
    }

    /// Starts a responder at a port of a node, on its own address of each family, as a pod with `hostNetwork` has one.
    pub fn serve_on(&self, node: &Node, protocol: Protocol, port: u16) -> Result<(), TestkitError> {
        let places = node.addresses().both().map(|address| (protocol, SocketAddr::new(address, port)));
        self.echo.listen_many(&node.namespace, &places)
    }

    /// Makes answers of the remote node's responders take the same path back if they go to pods of the remote node. Its own
    /// connections to its pods fail from then on: the kernel takes no packet whose source is an address of its own.
    pub fn answer_remote_pods_through_node(&self) -> Result<(), TestkitError> {
        build::remote_node_answers(self)
    }
}

impl Node {
    /// Returns the namespace of the node, which holds its kernel rules.
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the node's own addresses (its `InternalIP`s).
    pub const fn addresses(&self) -> Addresses {
        self.site.node()
    }

    /// Returns every address of the node: its own, the one towards the client, and its pods' gateway. One of them is the
    /// source of masqueraded packets.
    pub fn all_addresses(&self) -> Vec<IpAddr> {
        let outside = (self.site == Site::Local).then_some(Addresses::OUTSIDE);
        let addresses = [self.site.node(), self.site.gateway()].into_iter().chain(outside);
        addresses.flat_map(Addresses::both).collect()
    }

    /// Returns the node's own address of a family.
    pub const fn address(&self, family: Family) -> IpAddr {
        self.site.node().of(family)
    }
}

impl Pod {
    /// Returns the namespace of the pod.
    pub const fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the first address of each family.
    pub const fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Returns the first address of a family.
    pub const fn address(&self, family: Family) -> IpAddr {
        self.addresses.of(family)
    }

    /// Returns the name of the interface that leads to this pod, in the namespace of its node.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Adds addresses to the pod, with routes on its node. None of them becomes the source of a packet unless the sender
    /// selects it.
    pub fn add_addresses(&self, addresses: &[IpAddr]) -> Result<(), TestkitError> {
        let (mut inside, mut routes) = (String::new(), String::new());
        for address in addresses {
            let first = self.address(Family::of(*address));
            let (length, options) =
                if address.is_ipv4() { (32, "") } else { (128, " nodad preferred_lft 0") };
            // Writing to a String cannot fail.
            let _ = writeln!(inside, "addr add {address}/{length} dev eth0{options}");
            let _ = writeln!(routes, "route add {address}/{length} via {first} dev {}", self.interface);
        }
        self.namespace.ip(&inside)?;
        self.node.namespace.ip(&routes)?;
        self.wait_for_routes(addresses)
    }

    /// Waits until new IPv6 addresses take packets: the kernel adds their local routes a moment later (`addrconf_dad_work`
    /// in `net/ipv6/addrconf.c`).
    fn wait_for_routes(&self, addresses: &[IpAddr]) -> Result<(), TestkitError> {
        let probe = |address: &IpAddr| {
            Probe::new(Protocol::Tcp, SocketAddr::new(*address, CLOSED_PORT)).expecting_silence()
        };
        let probes: Vec<Probe> = addresses.iter().filter(|address| address.is_ipv6()).map(probe).collect();
        eventually(LINKS_WITHIN, "new addresses take packets", || {
            let results = self.namespace.probe_many(&probes);
            results.is_ok_and(|results| results.iter().all(|result| *result == ProbeResult::Refused))
        })
    }
}
