//! Derives each family's settings from the configuration, the Node object and the interface addresses.

use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use portolan_model::{Family, LocalDetector, NodePortAddresses, Settings};
use portolan_node::address::{NodeAddresses, NodePortAddresses as Written, NodePortMatch};
use portolan_node::config::{Configuration, DetectLocalMode};

/// Returns the families that this host supports. IPv6 is among them if the kernel has it and it is not disabled.
pub(super) fn supported_families() -> Vec<Family> {
    let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let ipv6 = Path::new("/proc/net/if_inet6").exists() && disabled.is_ok_and(|text| text.trim() != "1");
    if ipv6 { Family::BOTH.to_vec() } else { vec![Family::Ipv4] }
}

/// Returns placeholder settings, for a data plane that is only tried or removed.
pub(super) fn neutral(family: Family) -> Settings {
    Settings {
        family,
        local_detector: LocalDetector::None,
        masquerade_all: true,
        masquerade_bit: 0,
        node_port_addresses: NodePortAddresses::MatchAll,
        node_ip: None,
        service_cidrs: Vec::new(),
        counters: false,
    }
}

/// Returns this node's own addresses from those of its Node object, in kube-proxy's order.
pub(super) fn node_addresses(listed: &[IpAddr], bind_address: IpAddr) -> NodeAddresses {
    // The first address, and the first later one of the other family.
    let first = listed.first().copied();
    let other = listed.iter().copied().find(|ip| Some(Family::of(*ip)) != first.map(Family::of));
    let chosen: Vec<IpAddr> = first.into_iter().chain(other).collect();
    NodeAddresses::choose(&chosen, bind_address)
}

/// Returns `nodePortAddresses`, with `primary` replaced by the node's own addresses.
pub(super) fn expanded_node_ports(configuration: &Configuration, node: &NodeAddresses) -> Vec<IpNet> {
    match configuration.node_port_addresses() {
        Written::Default => Vec::new(),
        Written::Primary => {
            let known = Family::BOTH.into_iter().filter_map(|family| node.known(family));
            known.map(IpNet::from).collect()
        }
        Written::Cidrs(cidrs) => cidrs,
    }
}

/// Returns the addresses on which node ports of a family are served.
pub(super) fn node_ports(
    configuration: &Configuration,
    node: &NodeAddresses,
    family: Family,
) -> NodePortMatch {
    NodePortMatch::resolve(&configuration.node_port_addresses(), node, family)
}

/// Facts about this node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'a> {
    /// Its own addresses, one of each family.
    pub(super) ips: &'a NodeAddresses,
    /// Its `spec.podCIDRs`.
    pub(super) pod_cidrs: &'a [IpNet],
    /// The addresses of its interfaces.
    pub(super) addresses: &'a [IpAddr],
}

/// Returns the settings of a family, with `masqueradeAll` and `masqueradeBit` of the mode.
pub(super) fn settings(
    configuration: &Configuration,
    (masquerade_all, masquerade_bit): (bool, u8),
    family: Family,
    node: &Node<'_>,
    service_cidrs: Vec<IpNet>,
) -> Settings {
    let node_port_addresses = match node_ports(configuration, node.ips, family) {
        NodePortMatch::MatchAll => NodePortAddresses::MatchAll,
        cidrs @ NodePortMatch::Cidrs(_) => {
            let matching = cidrs.matching(family, node.addresses.iter().copied());
            NodePortAddresses::Addresses(matching.into_iter().filter(|ip| !ip.is_loopback()).collect())
        }
    };
    Settings {
        family,
        local_detector: local_detector(configuration, family, node.pod_cidrs),
        masquerade_all,
        masquerade_bit,
        node_port_addresses,
        node_ip: node.ips.known(family),
        service_cidrs,
        counters: configuration.portolan.service_counters,
    }
}

fn local_detector(configuration: &Configuration, family: Family, pod_cidrs: &[IpNet]) -> LocalDetector {
    let first_of = |cidrs: &[IpNet]| {
        let found = cidrs.iter().find(|cidr| Family::of(cidr.addr()) == family);
        found.map_or(LocalDetector::None, |cidr| LocalDetector::Cidr(cidr.trunc()))
    };
    match configuration.detect_local_mode {
        DetectLocalMode::ClusterCidr => first_of(&configuration.cluster_cidrs),
        DetectLocalMode::NodeCidr => first_of(pod_cidrs),
        DetectLocalMode::BridgeInterface => {
            LocalDetector::Interface(configuration.detect_local.bridge_interface.as_str().into())
        }
        DetectLocalMode::InterfaceNamePrefix => {
            LocalDetector::InterfacePrefix(configuration.detect_local.interface_name_prefix.as_str().into())
        }
    }
}
