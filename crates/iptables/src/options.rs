//! The options of this mode, and the features of the node that its rules depend on.

use std::net::IpAddr;

use portolan_model::Family;

/// Options that stay the same between two full loads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a feature of its own of the node or its configuration"
)]
pub struct IptablesOptions {
    /// Node ports accept connections on loopback addresses, too (`iptables.localhostNodePorts`). Applies to IPv4
    /// only, and needs the kernel setting `route_localnet`. Has no effect where `nodePortAddresses` is a list without
    /// loopback addresses.
    pub localhost_node_ports: bool,
    /// Loopback addresses of this node that accept node ports, where `nodePortAddresses` is a list that covers some.
    /// Used with `localhost_node_ports` only.
    pub loopback_addresses: Vec<IpAddr>,
    /// Packets in conntrack's state INVALID are dropped. False where the node is configured to be liberal
    /// (`nf_conntrack_tcp_be_liberal`).
    pub drop_invalid: bool,
    /// The nfacct object that counts those packets exists. [`Iptables`](super::Iptables) sets this itself.
    pub count_invalid: bool,
    /// The nfacct object that counts connections to node ports on loopback addresses exists.
    /// [`Iptables`](super::Iptables) sets this itself.
    pub count_localhost: bool,
    /// Rules can remember clients (`xt_recent`). Without this, Services have no session affinity.
    /// [`Iptables`](super::Iptables) sets this itself.
    pub affinity: bool,
    /// Rules can match ports of SCTP (`xt_sctp`). Without this, Service ports of SCTP have no rules.
    /// [`Iptables`](super::Iptables) sets this itself.
    pub sctp: bool,
    /// The listeners on this node that take the place of endpoints, in the userspace mode; `None` in the iptables
    /// mode.
    pub redirect: Option<Redirect>,
}

/// What the rules need to know of listeners that take the place of endpoints. For a listener without an address
/// (`0.0.0.0`, `::`) the kernel chooses an address of this node (`REDIRECT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    /// The mark of packets of the listeners' owner. These are not translated, because an endpoint may have the
    /// address of a Service.
    pub own_mark: u32,
    /// The listeners' ports, first and last. They can be reached through a Service only.
    pub ports: (u16, u16),
}

impl Default for IptablesOptions {
    fn default() -> Self {
        Self {
            localhost_node_ports: true,
            loopback_addresses: Vec::new(),
            drop_invalid: true,
            count_invalid: false,
            count_localhost: false,
            affinity: true,
            sctp: true,
            redirect: None,
        }
    }
}

impl IptablesOptions {
    /// Returns true if node ports accept connections on loopback addresses of this family.
    pub(super) fn on_loopback(&self, family: Family) -> bool {
        self.localhost_node_ports && family == Family::Ipv4
    }
}

/// The nfacct object of [`IptablesOptions::count_invalid`], as kube-proxy calls it.
pub(super) const COUNTER_INVALID: &str = "ct_state_invalid_dropped_pkts";
/// The nfacct object of [`IptablesOptions::count_localhost`], as kube-proxy calls it.
pub(super) const COUNTER_LOCALHOST: &str = "localhost_nps_accepted_pkts";
