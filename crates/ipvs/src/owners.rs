//! Decides whose the virtual servers of this host are, from what the kernel has besides them. The head of the crate has
//! the rules.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_wire::ipset::Member;

use super::device::Addresses;
use super::frontend::Key;
use super::set::{Set, Sets};

/// The owners of virtual servers.
#[derive(Debug, Default)]
pub struct Owners {
    /// Virtual servers of ours, or of kube-proxy.
    pub own: BTreeSet<Key>,
    /// Those of them that only the sets of node ports show to be kube-proxy's. The set `Set::Own` is missing.
    pub(super) adopted: BTreeSet<Key>,
    /// Virtual servers in `excludeCIDRs` that certainly belong to other programs.
    pub(super) foreign: BTreeSet<Key>,
    /// The addresses of the virtual servers that are noted as ours.
    pub noted: BTreeSet<IpAddr>,
}

/// What decides the owner of a virtual server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Evidence<'a> {
    pub(super) addresses: &'a Addresses,
    /// `Set::Own` if it exists; otherwise the sets of node ports.
    pub(super) sets: &'a Sets,
    /// See [`IpvsOptions::exclude`](super::IpvsOptions::exclude).
    pub(super) exclude: &'a [IpNet],
}

impl Evidence<'_> {
    /// Returns the owners of these virtual servers. Ours are those that the set `Set::Own` names and, outside
    /// `exclude`, those at an address of our device. If that set is missing, kube-proxy may have made them: its node
    /// ports are at an address of this node, and their port is in one of its sets. In `exclude`, virtual servers that
    /// look like ours but whose address is not noted belong to no owner in the result: those of kube-proxy, and ours
    /// that were written when `exclude` had another value.
    pub(super) fn owners(&self, servers: &BTreeSet<Key>) -> Owners {
        let noted = self.sets.get(&Set::Own);
        let mut owners = Owners {
            noted: noted.into_iter().flatten().filter_map(Member::address).collect(),
            ..Owners::default()
        };
        for &key in servers {
            let is_node_port = noted.is_none() && self.is_node_port(&key);
            let is_excluded = self.exclude.iter().any(|cidr| cidr.contains(&key.address));
            let looks_ours = is_node_port || self.addresses.device.contains(&key.address);
            let is_noted = noted.is_some_and(|noted| noted.contains(&key.member()));
            if is_noted || (!is_excluded && looks_ours) {
                owners.own.insert(key);
                if is_node_port {
                    owners.adopted.insert(key);
                }
            } else if is_excluded && (!looks_ours || owners.noted.contains(&key.address)) {
                owners.foreign.insert(key);
            }
        }
        owners
    }

    /// Returns true if this is a node port at an address of this node.
    fn is_node_port(&self, key: &Key) -> bool {
        self.addresses.node.contains(&key.address) && has_node_port(self.sets, key)
    }
}

/// Returns true if the sets of node ports have a port, or have it for this address: those of SCTP have addresses.
pub(super) fn has_node_port(sets: &Sets, key: &Key) -> bool {
    sets.get(&Set::NodePort(key.protocol))
        .is_some_and(|members| members.contains(&Member::Port(key.port)) || members.contains(&key.member()))
}
