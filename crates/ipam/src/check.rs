//! Checks that a range may hold addresses of Services and does not overlap other networks.

use ipnet::IpNet;
use thiserror::Error;

use crate::{
    family::Family,
    range::{AddressRange, RangeError},
};

/// The other networks of a cluster.
#[derive(Debug, Clone, Copy, Default)]
pub struct Neighbours<'a> {
    /// Ranges of pod addresses.
    pub pods: &'a [IpNet],
    /// Networks of nodes, or their addresses as /32 and /128.
    pub nodes: &'a [IpNet],
    /// Ranges of cluster IPs.
    pub cluster_ips: &'a [IpNet],
    /// Ranges of load-balancer addresses.
    pub load_balancers: &'a [IpNet],
}

/// The networks that a Node uses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeNetworks {
    /// Its addresses, as /32 and /128.
    pub addresses: Vec<IpNet>,
    /// Its ranges of pod addresses.
    pub pods: Vec<IpNet>,
}

/// A network of a Node that overlaps a range of Services, so that the destination of a packet is ambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{network}, {use_} of the Node, overlaps the range {range} of {of}; change one of them", of = .of.name())]
pub struct NodeOverlap {
    /// The Node's network.
    pub network: IpNet,
    /// `an address` or `a range of pods`.
    pub use_: &'static str,
    /// The range.
    pub range: IpNet,
    /// The addresses in the range.
    pub of: RangeUse,
}

/// The addresses that a range has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeUse {
    /// Cluster IPs.
    ClusterIps,
    /// Addresses of Services of type LoadBalancer.
    LoadBalancers,
}

impl RangeUse {
    /// Returns the name for texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClusterIps => "cluster IPs",
            Self::LoadBalancers => "load-balancer addresses",
        }
    }
}

impl NodeNetworks {
    /// Returns each network that overlaps one of the ranges, with the first such range.
    pub fn overlaps(&self, ranges: &[IpNet], of: RangeUse) -> Vec<NodeOverlap> {
        let addresses = self.addresses.iter().map(|network| (*network, "an address"));
        let pods = self.pods.iter().map(|network| (*network, "a range of pods"));
        let overlap = |(network, use_)| {
            let range = ranges.iter().copied().find(|range| overlap(network, *range))?;
            Some(NodeOverlap { network, use_, range, of })
        };
        addresses.chain(pods).filter_map(overlap).collect()
    }
}

/// The reason why a range may not hold addresses of Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RangeRefusal {
    /// The CIDR is not a valid range.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The range overlaps special-purpose addresses, at which no Service can be reached.
    #[error("{range} overlaps {reserved}, which is {use_}; choose another range")]
    Reserved {
        /// The range.
        range: IpNet,
        /// The special-purpose range.
        reserved: IpNet,
        /// The purpose of the reserved range.
        use_: &'static str,
    },
    /// The range overlaps a network of pods or nodes, so the destination of a packet would be ambiguous.
    #[error("{range} overlaps {other}, which is a range of {user}; choose another range")]
    InUse {
        /// The range.
        range: IpNet,
        /// The overlapping range.
        other: IpNet,
        /// `pods`, `nodes`, `cluster IPs` or `load-balancer addresses`.
        user: &'static str,
    },
    /// The primary range has fewer than 8 addresses.
    #[error("{0} has fewer than 8 addresses; the primary range is at least a /29 (IPv4) or /125 (IPv6)")]
    TooSmall(IpNet),
    /// The range has no address to allocate.
    #[error("{0} has no address that can be given to a Service; use at least a /30 (IPv4) or /127 (IPv6)")]
    Empty(IpNet),
    /// Two configured ranges overlap.
    #[error("{0} and {1} overlap; choose ranges that have no address in common")]
    Overlap(IpNet, IpNet),
    /// Two configured ranges are of the same family.
    #[error("{0} and {1} are of the same family; give one IPv4 and one IPv6 range")]
    SameFamily(IpNet, IpNet),
    /// No range is configured, or more than two are.
    #[error("{0} ranges; give one, or one of each family")]
    Count(usize),
}

/// Special-purpose addresses (RFC 6890 and IANA's registries) that the packet for a Service cannot or must not have.
const RESERVED: [(&str, &str); 8] = [
    ("0.0.0.0/8", "this network (RFC 791)"),
    ("127.0.0.0/8", "loopback (RFC 1122)"),
    ("169.254.0.0/16", "link-local (RFC 3927)"),
    ("224.0.0.0/4", "multicast (RFC 5771)"),
    ("::/127", "unspecified and loopback (RFC 4291)"),
    ("::ffff:0:0/96", "IPv4-mapped (RFC 4291)"),
    ("fe80::/10", "link-local (RFC 4291)"),
    ("ff00::/8", "multicast (RFC 4291)"),
];

/// Checks a range. ServiceCIDRs may overlap each other. 240.0.0.0/4, reserved for future use since 1989, is accepted
/// because some networks use it.
pub fn check_range(net: IpNet, neighbours: Neighbours<'_>) -> Result<AddressRange, RangeRefusal> {
    check_new(AddressRange::new(net)?, neighbours)
}

/// Checks a range of load-balancer addresses. It may be a single address.
pub(crate) fn check_load_balancers(
    net: IpNet,
    neighbours: Neighbours<'_>,
) -> Result<AddressRange, RangeRefusal> {
    check_new(AddressRange::of_load_balancers(net)?, neighbours)
}

fn check_new(range: AddressRange, neighbours: Neighbours<'_>) -> Result<AddressRange, RangeRefusal> {
    let net = range.net();
    if range.usable() == 0 {
        return Err(RangeRefusal::Empty(net));
    }
    for (reserved, use_) in RESERVED {
        if let Some(reserved) = reserved.parse().ok().filter(|reserved| overlap(net, *reserved)) {
            return Err(RangeRefusal::Reserved { range: net, reserved, use_ });
        }
    }
    for (others, user) in [
        (neighbours.pods, "pods"),
        (neighbours.nodes, "nodes"),
        (neighbours.cluster_ips, "cluster IPs"),
        (neighbours.load_balancers, "load-balancer addresses"),
    ] {
        if let Some(other) = others.iter().copied().find(|other| overlap(net, *other)) {
            return Err(RangeRefusal::InUse { range: net, other, user });
        }
    }
    Ok(range)
}

/// Checks the ranges of `--service-cluster-ip-range`: one, or one of each family. The primary needs at least 8
/// addresses, a secondary one. Host bits are cleared, as upstream's flag parser does.
pub fn check_configured(
    nets: &[IpNet],
    neighbours: Neighbours<'_>,
) -> Result<Vec<AddressRange>, RangeRefusal> {
    match *nets {
        [first, second] if overlap(first, second) => return Err(RangeRefusal::Overlap(first, second)),
        [first, second] if first.max_prefix_len() == second.max_prefix_len() => {
            return Err(RangeRefusal::SameFamily(first, second));
        }
        [_] | [_, _] => {}
        _ => return Err(RangeRefusal::Count(nets.len())),
    }
    let ranges: Result<Vec<_>, _> = nets.iter().map(|net| check_range(net.trunc(), neighbours)).collect();
    let ranges = ranges?;
    match ranges.first().map(|range| range.net()) {
        Some(primary) if primary.max_prefix_len().saturating_sub(primary.prefix_len()) < 3 => {
            Err(RangeRefusal::TooSmall(primary))
        }
        _ => Ok(ranges),
    }
}

/// Returns true if the networks overlap.
pub fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// Returns the family of a network.
pub fn family_of(net: IpNet) -> Family {
    Family::of(net.network())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn special_addresses_are_refused_with_their_use() {
        for (text, part) in [
            ("0.0.0.0/0", "this network"),
            ("127.0.0.0/16", "loopback"),
            ("126.0.0.0/7", "loopback"),
            ("169.254.0.0/24", "link-local"),
            ("239.0.0.0/24", "multicast"),
            ("::/64", "unspecified"),
            ("::ffff:10.0.0.0/120", "IPv4-mapped"),
            ("fe80::/64", "link-local"),
            ("ff02::/112", "multicast"),
        ] {
            let refusal = check_range(net(text), Neighbours::default()).unwrap_err();
            assert!(matches!(refusal, RangeRefusal::Reserved { .. }), "{refusal}");
            assert!(refusal.to_string().contains(part), "{refusal}");
        }
        for text in ["10.96.0.0/12", "fd00::/64", "240.0.0.0/24", "172.16.0.0/12", "2001:db8::/64"] {
            assert_eq!(check_range(net(text), Neighbours::default()).unwrap().net(), net(text));
        }
    }

    #[test]
    fn ranges_in_use_are_refused_either_way_round() {
        let (pods, nodes) = ([net("10.0.0.0/16")], [net("192.168.0.7/32")]);
        let neighbours = Neighbours { pods: &pods, nodes: &nodes, ..Neighbours::default() };
        for (text, user) in [("10.0.3.0/24", "pods"), ("10.0.0.0/8", "pods"), ("192.168.0.0/24", "nodes")] {
            let refusal = check_range(net(text), neighbours).unwrap_err();
            assert!(matches!(refusal, RangeRefusal::InUse { user: found, .. } if found == user), "{refusal}");
        }
        assert!(check_range(net("10.1.0.0/16"), neighbours).is_ok());
    }

    #[test]
    fn networks_of_a_node_that_overlap_a_range_are_named() {
        let node = NodeNetworks {
            addresses: vec![net("10.96.0.7/32"), net("192.0.2.1/32"), net("fd00::7/128")],
            pods: vec![net("10.0.0.0/8"), net("10.1.0.0/24")],
        };
        let texts: Vec<String> = node
            .overlaps(&[net("10.96.0.0/16"), net("fd00::/112")], RangeUse::ClusterIps)
            .iter()
            .map(|overlap| format!("{} {} {}", overlap.network, overlap.use_, overlap.range))
            .collect();
        assert_eq!(
            texts,
            [
                "10.96.0.7/32 an address 10.96.0.0/16",
                "fd00::7/128 an address fd00::/112",
                "10.0.0.0/8 a range of pods 10.96.0.0/16"
            ]
        );
        assert_eq!(node.overlaps(&[], RangeUse::ClusterIps), []);
    }

    #[test]
    fn configured_ranges() {
        let check = |texts: &[&str]| {
            let nets: Vec<IpNet> = texts.iter().map(|text| net(text)).collect();
            check_configured(&nets, Neighbours::default())
        };
        assert_eq!(check(&["10.0.0.5/24", "fd00::/112"]).unwrap().len(), 2);
        assert_eq!(check(&["10.0.0.0/29"]).unwrap().len(), 1);
        assert_eq!(check(&["fd00::/125", "10.0.0.0/30"]).unwrap().len(), 2);
        assert!(matches!(check(&["10.0.0.0/30"]), Err(RangeRefusal::TooSmall(_))));
        assert!(matches!(check(&["fd00::/126"]), Err(RangeRefusal::TooSmall(_))));
        assert!(matches!(check(&["10.0.0.0/24", "fd00::/128"]), Err(RangeRefusal::Empty(_))));
        assert!(matches!(check(&["10.0.0.0/24", "10.0.0.0/16"]), Err(RangeRefusal::Overlap(..))));
        assert!(matches!(check(&["10.0.0.0/24", "10.1.0.0/16"]), Err(RangeRefusal::SameFamily(..))));
        assert!(matches!(check(&[]), Err(RangeRefusal::Count(0))));
        assert!(matches!(check(&["10.0.0.0/24", "fd00::/112", "fd01::/112"]), Err(RangeRefusal::Count(3))));
    }
}
