//! The senders of packets.

use std::net::IpAddr;

use portolan_model::Family;
use portolan_model::oracle::Origin;
use portolan_testkit::{Addresses, Namespace, Pod, World};

/// The place of a sender, as the node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SenderLocation {
    /// A pod of the node, behind this interface.
    Pod(String),
    /// The node itself.
    Node,
    /// Outside of the node, behind this interface.
    Remote(&'static str),
}

/// A sender of packets.
#[derive(Debug, Clone)]
pub struct Sender {
    /// The name in rows of decision tables.
    pub name: String,
    /// The network namespace of its sockets.
    pub namespace: Namespace,
    /// The source addresses, by family.
    pub addresses: [IpAddr; 2],
    /// The place of the sender.
    pub place: SenderLocation,
}

impl Sender {
    /// Returns all senders of a world: `l1`, `l2`, … and, as the last one, `pod` on the node; `r1`, `r2`, … and
    /// `remote` on the other node; the two nodes; the `client`. `gateway` is the node as well, but sends from an
    /// address inside the cluster CIDR.
    pub(crate) fn all(world: &World) -> Vec<Self> {
        let mut senders = Vec::new();
        for (number, pod) in world.pods().iter().enumerate() {
            let name = numbered("l", number, world.pods().len(), "pod");
            senders.push(Self::pod(name, pod, SenderLocation::Pod(pod.interface().to_owned())));
        }
        for (number, pod) in world.remote_pods().iter().enumerate() {
            let name = numbered("r", number, world.remote_pods().len(), "remote");
            senders.push(Self::pod(name, pod, SenderLocation::Remote("eth0")));
        }
        senders.push(Self::pod("client".to_owned(), world.client(), SenderLocation::Remote("eth1")));
        let (node, remote_node) = (world.node(), world.remote_node());
        let node_as = |name: &str, addresses: Addresses| Self {
            name: name.to_owned(),
            namespace: node.namespace().clone(),
            addresses: addresses.both(),
            place: SenderLocation::Node,
        };
        senders.push(node_as("node", node.addresses()));
        senders.push(node_as("gateway", portolan_testkit::Site::Local.gateway()));
        senders.push(Self {
            name: "remote-node".to_owned(),
            namespace: remote_node.namespace().clone(),
            addresses: remote_node.addresses().both(),
            place: SenderLocation::Remote("eth0"),
        });
        senders
    }

    /// Returns the address of a family.
    pub fn address(&self, family: Family) -> IpAddr {
        self.addresses[usize::from(family == Family::Ipv6)]
    }

    /// Returns the sender's place for the oracle.
    pub fn origin(&self) -> Origin<'_> {
        match &self.place {
            SenderLocation::Pod(interface) => Origin::Pod { input_interface: interface },
            SenderLocation::Node => Origin::Node,
            SenderLocation::Remote(interface) => Origin::Remote { input_interface: interface },
        }
    }

    fn pod(name: String, pod: &Pod, place: SenderLocation) -> Self {
        Self { name, namespace: pod.namespace().clone(), addresses: pod.addresses().both(), place }
    }
}

fn numbered(prefix: &str, number: usize, count: usize, last: &str) -> String {
    if number + 1 == count { last.to_owned() } else { format!("{prefix}{}", number + 1) }
}
