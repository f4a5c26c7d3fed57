//! What besides the settings of every mode decides about rules: this mode's own settings, and what the node can do.

use std::net::IpAddr;

use portolan_model::Family;

/// Fixed between two full loads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a feature of its own of the node or its configuration"
)]
pub struct Options {
    /// Node ports answer on loopback addresses (`iptables.localhostNodePorts`), too. Means something in IPv4 only,
    /// and needs the kernel setting `route_localnet`. Not where `nodePortAddresses` is a list without loopback addresses.
    pub localhost_node_ports: bool,
    /// Loopback addresses of this node that accept node ports, where `nodePortAddresses` is a list that covers some.
    /// Counts with `localhost_node_ports` only.
    pub loopback_addresses: Vec<IpAddr>,
    /// Packets that conntrack takes for invalid are dropped; not where the node is told to be liberal
    /// (`nf_conntrack_tcp_be_liberal`).
    pub drop_invalid: bool,
    /// The nfacct object that counts those exists. [`Iptables`](super::Iptables) finds out by itself.
    pub count_invalid: bool,
    /// The nfacct object that counts connections to node ports on loopback exists. [`Iptables`](super::Iptables)
    /// finds out by itself.
    pub count_localhost: bool,
    /// Endpoints are listeners on this node, in the userspace mode.
    pub redirect: Option<Redirect>,
}

/// What rules have to know of listeners that take the place of endpoints. An endpoint without an address (`0.0.0.0`, `::`) is
/// at whichever address of this node the kernel chooses (`REDIRECT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirect {
    /// Marks packets of the listeners' owner, which stay as they are: its endpoints may be where a Service is.
    pub own_mark: u32,
    /// The listeners' ports, first and last: nobody reaches them but by a Service.
    pub ports: (u16, u16),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            localhost_node_ports: true,
            loopback_addresses: Vec::new(),
            drop_invalid: true,
            count_invalid: false,
            count_localhost: false,
            redirect: None,
        }
    }
}

impl Options {
    /// Whether node ports answer on loopback addresses of this family.
    pub(super) fn on_loopback(&self, family: Family) -> bool {
        self.localhost_node_ports && family == Family::Ipv4
    }
}

/// The nfacct object of [`Options::count_invalid`], as kube-proxy calls it.
pub(super) const COUNTER_INVALID: &str = "ct_state_invalid_dropped_pkts";
/// The nfacct object of [`Options::count_localhost`], as kube-proxy calls it.
pub(super) const COUNTER_LOCALHOST: &str = "localhost_nps_accepted_pkts";
