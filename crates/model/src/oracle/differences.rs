//! What modes do otherwise than nftables mode. The table of modes in the book (`docs/modes.md`) says the same to users.

use ipnet::IpNet;

/// Each field is one difference; none, as [`Default`] has it, is nftables mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a difference of its own")]
pub struct ModeDifferences {
    /// Loopback addresses that take node ports, too.
    pub loopback_node_ports: Vec<IpNet>,
    /// A packet that no Service port takes is left alone, even to a cluster IP or into a service CIDR.
    pub ignores_strays: bool,
    /// Where a Service has no endpoints, all are refused, those outside its source ranges, too.
    pub source_ranges_need_endpoints: bool,
    /// What this node itself sends to an external address of a Service without usable endpoints is neither refused
    /// nor dropped, but leaves, unless the address is this node's.
    pub own_traffic_leaves: bool,
    /// A node port without usable endpoints is refused or dropped at every address of the node, at those, too, that
    /// take no node ports.
    pub stops_node_ports_everywhere: bool,
    /// Every endpoint that reaches itself is masqueraded; not only this node's, for whom alone that can matter.
    pub masquerades_every_hairpin: bool,
    /// Every endpoint sees an address of this node instead of the client's.
    pub hides_clients: bool,
    /// Packets of SCTP are refused where Service ports would take them.
    pub refuses_sctp: bool,
    /// Every address that a Service has is this node's, and at its other ports nothing is forwarded, but all is refused;
    /// at external addresses, too, unless an interface of this node has them otherwise.
    pub refuses_at_virtual_addresses: bool,
    /// Where a Local policy has endpoints on this node, pods and the node itself get only these, too.
    pub local_for_everybody: bool,
    /// A client has an endpoint for each address and port that it uses, not one for the Service port.
    pub affinity_per_frontend: bool,
}

impl ModeDifferences {
    /// Those of iptables mode, with the loopback addresses on which node ports answer (`localhostNodePorts`).
    pub const fn iptables(loopback_node_ports: Vec<IpNet>) -> Self {
        Self {
            loopback_node_ports,
            ignores_strays: true,
            source_ranges_need_endpoints: true,
            own_traffic_leaves: true,
            stops_node_ports_everywhere: true,
            masquerades_every_hairpin: true,
            hides_clients: false,
            refuses_sctp: false,
            refuses_at_virtual_addresses: false,
            local_for_everybody: false,
            affinity_per_frontend: false,
        }
    }

    /// Those of IPVS mode.
    pub fn ipvs() -> Self {
        Self {
            ignores_strays: true,
            refuses_at_virtual_addresses: true,
            local_for_everybody: true,
            affinity_per_frontend: true,
            ..Self::default()
        }
    }

    /// Those of userspace mode.
    pub fn userspace() -> Self {
        Self { hides_clients: true, refuses_sctp: true, ..Self::default() }
    }

    /// Those of userspace mode where it captures by redirect: its rules are those of iptables mode.
    pub fn redirect() -> Self {
        Self { hides_clients: true, refuses_sctp: true, ..Self::iptables(Vec::new()) }
    }
}
