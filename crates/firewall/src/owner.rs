//! Which program tables and chains belong to, by their names.

use std::fmt;

use super::{Program, TableId};

/// A program that writes firewall rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Portolan, by names of its own.
    Portolan,
    /// kube-proxy, or Portolan in a mode with kube-proxy's names; also kubelet, which shares a chain with them.
    KubeProxy,
    /// Calico.
    Calico,
    /// Cilium.
    Cilium,
    /// kube-router.
    KubeRouter,
    /// Flannel.
    Flannel,
    /// The reference plug-ins of CNI, such as `portmap`.
    Cni,
    /// ufw.
    Ufw,
    /// firewalld.
    Firewalld,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// libvirt.
    Libvirt,
    /// Any other program, or an operator.
    Unknown,
}

/// The beginnings of names of chains. The first that fits decides.
const CHAINS: [(&str, Owner); 14] = [
    ("KUBE-ROUTER", Owner::KubeRouter),
    ("KUBE-POD-FW-", Owner::KubeRouter),
    ("KUBE-NWPLCY-", Owner::KubeRouter),
    ("KUBE-", Owner::KubeProxy),
    ("cali-", Owner::Calico),
    ("CILIUM_", Owner::Cilium),
    ("OLD_CILIUM_", Owner::Cilium),
    ("FLANNEL-", Owner::Flannel),
    ("CNI-", Owner::Cni),
    ("ufw-", Owner::Ufw),
    ("ufw6-", Owner::Ufw),
    ("DOCKER", Owner::Docker),
    ("NETAVARK", Owner::Podman),
    ("LIBVIRT_", Owner::Libvirt),
];

/// The beginnings of names of tables of nft.
const TABLES: [(&str, Owner); 9] = [
    ("portolan", Owner::Portolan),
    ("kube-proxy", Owner::KubeProxy),
    ("calico", Owner::Calico),
    ("cilium", Owner::Cilium),
    ("flannel", Owner::Flannel),
    ("firewalld", Owner::Firewalld),
    ("docker-bridges", Owner::Docker),
    ("netavark", Owner::Podman),
    ("libvirt", Owner::Libvirt),
];

/// Chains of firewalld where it writes rules of iptables.
const OF_FIREWALLD: [&str; 4] = ["FORWARD_direct", "INPUT_ZONES", "FORWARD_IN_ZONES", "FORWARD_POLICIES_PRE"];

impl Owner {
    /// Returns the owner of a chain.
    pub fn of(place: &TableId, chain: &str) -> Self {
        let table = Self::of_table(place);
        if table != Self::Unknown {
            return table;
        }
        if OF_FIREWALLD.contains(&chain) {
            return Self::Firewalld;
        }
        first(&CHAINS, chain)
    }

    /// Returns the owner of a table.
    pub fn of_table(place: &TableId) -> Self {
        match place.program {
            Program::Nft => first(&TABLES, &place.table),
            // The names of the tables of iptables are the kernel's.
            Program::IptablesNft | Program::IptablesLegacy => Self::Unknown,
        }
    }

    /// Returns true if the program's rules belong to Services or network policies.
    pub const fn knows_services(self) -> bool {
        matches!(self, Self::Portolan | Self::KubeProxy) || self.has_policies()
    }

    /// Returns true if the program's rules are those of network policies.
    pub const fn has_policies(self) -> bool {
        matches!(self, Self::Calico | Self::Cilium | Self::KubeRouter)
    }
}

fn first(known: &[(&str, Owner)], name: &str) -> Owner {
    let found = known.iter().find(|(start, _)| name.starts_with(start));
    found.map_or(Owner::Unknown, |(_, owner)| *owner)
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portolan => "Portolan",
            Self::KubeProxy => "kube-proxy",
            Self::Calico => "Calico",
            Self::Cilium => "Cilium",
            Self::KubeRouter => "kube-router",
            Self::Flannel => "Flannel",
            Self::Cni => "a CNI plug-in",
            Self::Ufw => "ufw",
            Self::Firewalld => "firewalld",
            Self::Docker => "Docker",
            Self::Podman => "Podman",
            Self::Libvirt => "libvirt",
            Self::Unknown => "another program",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::TableFamily;
    use super::*;

    #[test]
    fn owners_by_name() {
        let place =
            |program, table: &str| TableId { program, family: TableFamily::Ip, table: table.to_owned() };
        let iptables = place(Program::IptablesNft, "filter");
        let of = |chain| Owner::of(&iptables, chain);
        assert_eq!(of("FORWARD"), Owner::Unknown);
        assert_eq!(of("KUBE-FORWARD"), Owner::KubeProxy);
        assert_eq!(of("KUBE-ROUTER-FORWARD"), Owner::KubeRouter);
        assert_eq!(of("DOCKER-ISOLATION-STAGE-1"), Owner::Docker);
        assert_eq!(of("ufw-before-forward"), Owner::Ufw);
        assert_eq!(of("cali-FORWARD"), Owner::Calico);
        assert_eq!(Owner::of(&place(Program::Nft, "portolan"), "services"), Owner::Portolan);
        assert_eq!(Owner::of(&place(Program::Nft, "firewalld"), "filter_FORWARD"), Owner::Firewalld);
        assert_eq!(Owner::of(&place(Program::IptablesNft, "portolan"), "x"), Owner::Unknown);
    }
}
