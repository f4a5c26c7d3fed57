//! Checks whether the families of the configuration are those of the node (kube-proxy's `checkBadConfig` and
//! `checkBadIPConfig`). Pure functions.

use ipnet::IpNet;
use portolan_model::Family;
use portolan_node::address::NodePortAddresses;
use portolan_node::config::{Configuration, DetectLocalMode};

use super::Finding;

/// Facts from the Node object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    /// Family of its first address.
    pub(crate) primary: Family,
    /// Its `spec.podCIDRs`.
    pub(crate) pod_cidrs: &'a [IpNet],
    /// `nodePortAddresses`, with `primary` replaced by the node's own addresses. `None` if these are unknown.
    pub(crate) port_cidrs: Option<&'a [IpNet]>,
}

/// Returns all findings about families. `families` are those that the host supports.
pub(crate) fn of_families(
    configuration: &Configuration,
    families: &[Family],
    node: &Node<'_>,
) -> Vec<Finding> {
    if !families.contains(&node.primary) {
        return vec![Finding::PrimaryFamily { family: node.primary }];
    }
    let mut findings = Vec::new();
    if let Some(cidrs) = node.port_cidrs {
        findings.extend(node_port_finding(configuration, cidrs, node));
    }
    let single = families.len() == 1;
    let mode = configuration.detect_local_mode;
    let by_cluster = single && mode == DetectLocalMode::ClusterCidr;
    let by_node = mode == DetectLocalMode::NodeCidr;
    findings.extend(other_family("clusterCIDR", &configuration.cluster_cidrs, node.primary, by_cluster));
    findings.extend(other_family("the Node's spec.podCIDRs", node.pod_cidrs, node.primary, by_node));
    if single {
        let excluded = &configuration.ipvs.exclude_cidrs;
        findings.extend(other_family("ipvs.excludeCIDRs", excluded, node.primary, false));
        findings.extend(bind_addresses(configuration, node.primary));
    }
    findings
}

fn node_port_finding(configuration: &Configuration, cidrs: &[IpNet], node: &Node<'_>) -> Option<Finding> {
    let primary = node.primary;
    let has = |family| cidrs.iter().any(|cidr| Family::of(cidr.addr()) == family);
    let other = if primary == Family::Ipv4 { Family::Ipv6 } else { Family::Ipv4 };
    let written = match &configuration.node_port_addresses {
        NodePortAddresses::Cidrs(cidrs) => cidrs.as_slice(),
        _ => &[],
    };
    let dual_stack =
        [&configuration.cluster_cidrs, written, configuration.ipvs.exclude_cidrs.as_slice(), node.pod_cidrs]
            .into_iter()
            .any(is_dual_stack);
    if cidrs.is_empty() {
        Some(Finding::NodePortsEverywhere)
    } else if !has(primary) {
        Some(Finding::NodePortsWithoutPrimary { primary })
    } else if dual_stack && !has(other) {
        Some(Finding::NodePortsOfPrimaryOnly { primary, other })
    } else {
        None
    }
}

fn is_dual_stack(cidrs: &[IpNet]) -> bool {
    Family::BOTH.iter().all(|family| cidrs.iter().any(|cidr| Family::of(cidr.addr()) == *family))
}

/// Returns a finding if there are values and none is of the primary family.
fn other_family(field: &'static str, cidrs: &[IpNet], primary: Family, fatal: bool) -> Option<Finding> {
    if cidrs.is_empty() || cidrs.iter().any(|cidr| Family::of(cidr.addr()) == primary) {
        return None;
    }
    let values: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
    Some(Finding::OtherFamily { field, values: values.join(","), primary, fatal })
}

fn bind_addresses(configuration: &Configuration, primary: Family) -> impl Iterator<Item = Finding> {
    let addresses = [
        ("healthzBindAddress", configuration.healthz_bind_address),
        ("metricsBindAddress", configuration.metrics_bind_address),
    ];
    addresses.into_iter().filter_map(move |(field, address)| {
        let address = address?;
        let elsewhere = !address.ip().is_unspecified() && Family::of(address.ip()) != primary;
        elsewhere.then_some(Finding::BindFamily { field, address, primary })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &[Family] = &[Family::Ipv4];

    fn cidrs(text: &str) -> Vec<IpNet> {
        text.split(',').filter(|cidr| !cidr.is_empty()).map(|cidr| cidr.parse().expect("a CIDR")).collect()
    }

    fn configuration(cluster: &str, mode: DetectLocalMode) -> Configuration {
        Configuration { cluster_cidrs: cidrs(cluster), detect_local_mode: mode, ..Configuration::default() }
    }

    /// Returns the number of findings, and whether one is fatal.
    fn judged(
        configuration: &Configuration,
        families: &[Family],
        primary: Family,
        pods: &str,
    ) -> (usize, bool) {
        let pod_cidrs = cidrs(pods);
        let node = Node { primary, pod_cidrs: &pod_cidrs, port_cidrs: None };
        let findings = of_families(configuration, families, &node);
        (findings.len(), findings.iter().any(Finding::is_fatal))
    }

    #[test]
    fn a_primary_family_that_the_host_lacks_is_fatal() {
        let plain = Configuration::default();
        assert_eq!(judged(&plain, V4, Family::Ipv6, ""), (1, true));
        assert_eq!(judged(&plain, &Family::BOTH, Family::Ipv6, ""), (0, false));
        assert_eq!(judged(&plain, V4, Family::Ipv4, ""), (0, false));
    }

    #[test]
    fn cidrs_of_the_other_family_only() {
        use DetectLocalMode::{BridgeInterface, ClusterCidr, NodeCidr};
        let (v4, v6, both) = ("10.0.0.0/8", "fd00::/64", "fd00::/64,10.0.0.0/8");
        let table = [
            // Mode, cluster CIDRs, pod CIDRs of the node; expected findings single-stack, and dual-stack with IPv4 as
            // primary.
            (ClusterCidr, v4, "", (0, false), (0, false)),
            (ClusterCidr, v6, "", (1, true), (1, false)),
            (ClusterCidr, both, "", (0, false), (0, false)),
            (BridgeInterface, v6, "", (1, false), (1, false)),
            (NodeCidr, "", v6, (1, true), (1, true)),
            (NodeCidr, "", both, (0, false), (0, false)),
            (ClusterCidr, "", v6, (1, false), (1, false)),
            (NodeCidr, v6, v6, (2, true), (2, true)),
        ];
        for (mode, cluster, pods, single, dual) in table {
            let configuration = configuration(cluster, mode);
            assert_eq!(judged(&configuration, V4, Family::Ipv4, pods), single, "{mode:?} {cluster} {pods}");
            let judged = judged(&configuration, &Family::BOTH, Family::Ipv4, pods);
            assert_eq!(judged, dual, "{mode:?} {cluster} {pods}");
        }
    }

    #[test]
    fn servers_of_the_other_family_matter_on_single_stack_nodes() {
        let at = |address: &str| Some(address.parse().expect("an address"));
        let configuration = Configuration {
            healthz_bind_address: at("[::]:10256"),
            metrics_bind_address: at("[::1]:10249"),
            ..Configuration::default()
        };
        assert_eq!(judged(&configuration, V4, Family::Ipv4, ""), (1, false));
        assert_eq!(judged(&configuration, &Family::BOTH, Family::Ipv4, ""), (0, false));
    }

    #[test]
    fn node_ports_on_every_address_are_reported() {
        let dual = configuration("10.0.0.0/8,fd00::/64", DetectLocalMode::ClusterCidr);
        let single = configuration("10.0.0.0/8", DetectLocalMode::ClusterCidr);
        let finding = |configuration: &Configuration, primary, addresses: &str| {
            let addresses = cidrs(addresses);
            let node = Node { primary, pod_cidrs: &[], port_cidrs: Some(&addresses) };
            node_port_finding(configuration, &addresses, &node)
        };
        let (primary, other) = (Family::Ipv4, Family::Ipv6);
        assert_eq!(finding(&single, primary, ""), Some(Finding::NodePortsEverywhere));
        assert_eq!(finding(&single, primary, "192.0.2.1/32"), None);
        let restricted = Some(Finding::NodePortsOfPrimaryOnly { primary, other });
        assert_eq!(finding(&dual, primary, "192.0.2.1/32"), restricted);
        assert_eq!(finding(&dual, primary, "192.0.2.1/32,2001:db8::1/128"), None);
        let without = Some(Finding::NodePortsWithoutPrimary { primary: other });
        assert_eq!(finding(&dual, other, "192.0.2.1/32"), without);
    }
}
