//! Network interfaces, and what they connect.

use ipnet::IpNet;

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Index of the interface.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Kind of the interface (`veth`, `bridge`, `vxlan` and so on); empty for hardware.
    pub kind: String,
    /// Index of the bridge that it belongs to.
    pub master: Option<u32>,
    /// True if the interface is up.
    pub up: bool,
    /// True if a default route leaves through it.
    pub has_default_route: bool,
    /// Addresses, each with the prefix of its network.
    pub addresses: Vec<IpNet>,
}

/// What an interface connects this node with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The network outside of the node.
    Uplink,
    /// Pods of this node.
    Pods,
    /// Pods of other nodes, through a tunnel.
    Tunnel,
    /// Nothing that Services use: loopback, and networks of other programs.
    None,
}

/// Prefixes of names of interfaces for virtual machines and containers that are no pods.
const OF_OTHERS: [&str; 7] = ["docker", "virbr", "vnet", "podman", "lxcbr", "lxdbr", "kube-ipvs"];
/// Prefixes of names of interfaces of pods, by network plug-in.
const OF_PODS: [&str; 8] = ["cni", "cbr", "cali", "lxc", "veth", "eni", "azv", "weave"];
/// Kinds of tunnels.
const TUNNELS: [&str; 7] = ["vxlan", "geneve", "ipip", "sit", "ip6tnl", "wireguard", "gre"];

impl Link {
    /// Returns what the interface connects, as far as its name, kind and bridge tell. `links` are all interfaces.
    pub fn role(&self, links: &[Self]) -> Role {
        // A container of Docker has a veth whose bridge is Docker's.
        let bridge = links.iter().find(|link| Some(link.index) == self.master);
        match bridge {
            Some(bridge) if !self.has_default_route => bridge.own_role(),
            _ => self.own_role(),
        }
    }

    fn own_role(&self) -> Role {
        let named = OF_PODS.iter().any(|prefix| self.name.starts_with(prefix));
        if self.has_default_route {
            Role::Uplink
        } else if self.name == "lo" || self.is_of_others() {
            Role::None
        } else if TUNNELS.contains(&self.kind.as_str()) {
            Role::Tunnel
        } else if named || self.kind == "veth" || self.kind == "bridge" {
            Role::Pods
        } else {
            Role::None
        }
    }

    /// Returns true for interfaces of Docker, Podman, LXC and libvirt, and for the device of the IPVS mode.
    pub(crate) fn is_of_others(&self) -> bool {
        let is_network_of_docker = self
            .name
            .strip_prefix("br-")
            .is_some_and(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        is_network_of_docker || OF_OTHERS.iter().any(|prefix| self.name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roles_of_interfaces() {
        let link = |index, name: &str, kind: &str, master| Link {
            index,
            name: name.to_owned(),
            kind: kind.to_owned(),
            master,
            ..Link::default()
        };
        let links = [
            link(1, "lo", "", None),
            Link { has_default_route: true, ..link(2, "eth0", "", None) },
            link(3, "cni0", "bridge", None),
            link(4, "vethpod", "veth", Some(3)),
            link(5, "docker0", "bridge", None),
            link(6, "vethdocker", "veth", Some(5)),
            link(7, "br-0123456789ab", "bridge", None),
            link(8, "br-lan", "bridge", None),
            link(9, "flannel.1", "vxlan", None),
            link(10, "cali12345", "veth", None),
            link(11, "kube-ipvs0", "dummy", None),
            link(12, "eth1", "", None),
        ];
        let roles: Vec<Role> = links.iter().map(|link| link.role(&links)).collect();
        let expected = [
            Role::None,
            Role::Uplink,
            Role::Pods,
            Role::Pods,
            Role::None,
            Role::None,
            Role::None,
            Role::Pods,
            Role::Tunnel,
            Role::Pods,
            Role::None,
            Role::None,
        ];
        assert_eq!(roles, expected);
    }
}
