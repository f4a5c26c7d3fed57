//! The differences of the modes from nftables mode. The table of modes in `docs/modes.md` describes them for users.

use ipnet::IpNet;

/// Each field is one difference. The [`Default`] has none and is nftables mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a difference of its own")]
pub struct ModeDifferences {
    /// Loopback addresses that accept node ports, too.
    pub loopback_node_ports: Vec<IpNet>,
    /// True if a packet that matches no Service port is not affected, even one to a cluster IP or a service CIDR.
    pub ignores_strays: bool,
    /// True if all packets to a Service without endpoints are rejected, including those outside of its source ranges.
    pub source_ranges_need_endpoints: bool,
    /// True if a packet that this node sends to an external address of a Service without usable endpoints is neither
    /// rejected nor dropped but leaves the node. Exceptions are local addresses, and load-balancer IPs with source
    /// ranges of a Service that has endpoints.
    pub own_traffic_leaves: bool,
    /// True if a node port without usable endpoints is rejected or dropped at every address of the node, including
    /// those that do not accept node ports.
    pub stops_node_ports_everywhere: bool,
    /// True if every endpoint that connects to itself is masqueraded, not only one that may be on this node. Only for
    /// such an endpoint does it have an effect.
    pub masquerades_every_hairpin: bool,
    /// True if every endpoint sees an address of this node instead of the client's.
    pub hides_clients: bool,
    /// True if a Service may ask for endpoints to see the client's address all the same.
    pub keeps_clients_on_request: bool,
    /// True if SCTP packets to Service ports are rejected.
    pub refuses_sctp: bool,
    /// True if every address of a Service is local to this node. Packets to its other ports are then rejected instead
    /// of forwarded. This includes external addresses, unless an interface of this node has them for another reason.
    pub refuses_at_virtual_addresses: bool,
    /// True if a Local policy with endpoints on this node applies to pods and the node itself, too.
    pub local_for_everybody: bool,
    /// True if session affinity is kept for each address and port that a client uses, not for the whole Service port.
    pub affinity_per_frontend: bool,
}

impl ModeDifferences {
    /// Returns the differences of iptables mode, with the loopback addresses that accept node ports
    /// (`localhostNodePorts`).
    pub const fn iptables(loopback_node_ports: Vec<IpNet>) -> Self {
        Self {
            loopback_node_ports,
            ignores_strays: true,
            source_ranges_need_endpoints: true,
            own_traffic_leaves: true,
            stops_node_ports_everywhere: true,
            masquerades_every_hairpin: true,
            hides_clients: false,
            keeps_clients_on_request: false,
            refuses_sctp: false,
            refuses_at_virtual_addresses: false,
            local_for_everybody: false,
            affinity_per_frontend: false,
        }
    }

    /// Returns the differences of IPVS mode.
    pub fn ipvs() -> Self {
        Self {
            ignores_strays: true,
            refuses_at_virtual_addresses: true,
            local_for_everybody: true,
            affinity_per_frontend: true,
            ..Self::default()
        }
    }

    /// Returns the differences of userspace mode.
    pub fn userspace() -> Self {
        Self {
            masquerades_every_hairpin: true,
            hides_clients: true,
            keeps_clients_on_request: true,
            refuses_sctp: true,
            ..Self::default()
        }
    }

    /// Returns the differences of userspace mode that captures by redirect: its rules are those of iptables mode.
    pub fn redirect() -> Self {
        Self { hides_clients: true, refuses_sctp: true, ..Self::iptables(Vec::new()) }
    }
}
