//! What configuration, Node object and interfaces say together: the settings of each family.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Context as _;
use portolan_backend::nft::Nftables;
use portolan_model::object::Node;
use portolan_model::{Family, LocalDetector, NodePortAddresses, Settings};
use portolan_node::address::{NodeAddresses, NodePortMatch};
use portolan_node::config::{Configuration, DetectLocalMode};

/// The families that this host can have: IPv6 only where the kernel has it and it is not switched off.
pub(super) fn supported_families() -> Vec<Family> {
    let disabled = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    let ipv6 = Path::new("/proc/net/if_inet6").exists() && disabled.is_ok_and(|text| text.trim() != "1");
    if ipv6 { Family::BOTH.to_vec() } else { vec![Family::Ipv4] }
}

/// Finds out whether the kernel has what the nftables mode needs, before anything else is done.
pub(super) fn probe(families: &[Family]) -> anyhow::Result<()> {
    for &family in families {
        let neutral = Settings {
            family,
            local_detector: LocalDetector::None,
            masquerade_all: true,
            masquerade_bit: 0,
            node_port_addresses: NodePortAddresses::MatchAll,
            node_ip: None,
            service_cidrs: Vec::new(),
        };
        Nftables::open(neutral)
            .and_then(|mut dataplane| dataplane.probe())
            .with_context(|| format!("checking for nftables, {family}"))?;
    }
    Ok(())
}

/// The addresses of a Node object in upstream's order.
pub(super) fn node_addresses(node: Option<&Node>, configuration: &Configuration) -> NodeAddresses {
    let listed: Vec<IpAddr> = node
        .map(|node| node.internal_addresses.iter().chain(&node.external_addresses).copied().collect())
        .unwrap_or_default();
    // The first address, and the first later one of the other family.
    let first = listed.first().copied();
    let other = listed.iter().copied().find(|ip| Some(Family::of(*ip)) != first.map(Family::of));
    let chosen: Vec<IpAddr> = first.into_iter().chain(other).collect();
    NodeAddresses::choose(&chosen, configuration.bind_address)
}

/// Where node ports of a family answer.
pub(super) fn node_ports(
    configuration: &Configuration,
    node: &NodeAddresses,
    family: Family,
) -> NodePortMatch {
    NodePortMatch::resolve(&configuration.node_port_addresses(), node, family)
}

/// The settings of a family.
pub(super) fn settings(
    configuration: &Configuration,
    family: Family,
    node: Option<&Node>,
    node_ips: &NodeAddresses,
    interface_addresses: &[IpAddr],
    service_cidrs: Vec<ipnet::IpNet>,
) -> Settings {
    let node_port_addresses = match node_ports(configuration, node_ips, family) {
        NodePortMatch::MatchAll => NodePortAddresses::MatchAll,
        cidrs @ NodePortMatch::Cidrs(_) => {
            let matching = cidrs.matching(family, interface_addresses.iter().copied());
            NodePortAddresses::Addresses(matching.into_iter().filter(|ip| !ip.is_loopback()).collect())
        }
    };
    Settings {
        family,
        local_detector: local_detector(configuration, family, node),
        masquerade_all: configuration.nftables.masquerade_all,
        masquerade_bit: configuration.nftables.masquerade_bit,
        node_port_addresses,
        node_ip: node_ips.known(family),
        service_cidrs,
    }
}

fn local_detector(configuration: &Configuration, family: Family, node: Option<&Node>) -> LocalDetector {
    let first_of = |cidrs: &[ipnet::IpNet]| {
        let found = cidrs.iter().find(|cidr| Family::of(cidr.addr()) == family);
        found.map_or(LocalDetector::None, |cidr| LocalDetector::Cidr(cidr.trunc()))
    };
    match configuration.detect_local_mode {
        DetectLocalMode::ClusterCidr => first_of(&configuration.cluster_cidrs),
        DetectLocalMode::NodeCidr => node.map_or(LocalDetector::None, |node| first_of(&node.pod_cidrs)),
        DetectLocalMode::BridgeInterface => {
            LocalDetector::Interface(configuration.detect_local.bridge_interface.as_str().into())
        }
        DetectLocalMode::InterfaceNamePrefix => {
            LocalDetector::InterfacePrefix(configuration.detect_local.interface_name_prefix.as_str().into())
        }
    }
}
