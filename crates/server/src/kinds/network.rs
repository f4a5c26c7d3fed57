//! Rules for addresses and CIDRs in texts, shared by the kinds.

use std::net::IpAddr;

use ipnet::IpNet;

/// Names of the families, as `ipFamilies` has them.
pub(super) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// Names of the protocols.
pub(super) const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// What is wrong with a number that is no port.
pub(super) const PORT_RULE: &str = "must be between 1 and 65535, inclusive";

/// Whether this can be the number of a port.
pub(super) fn is_port(number: i64) -> bool {
    (1..=65_535).contains(&number)
}

/// An IP address without leading zeros (`std` refuses them) and not IPv4 inside IPv6.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    match address {
        IpAddr::V6(inner) if inner.to_ipv4_mapped().is_some() => None,
        other => Some(other),
    }
}

/// A CIDR without host bits.
pub(super) fn parse_cidr(text: &str) -> Option<IpNet> {
    let range: IpNet = text.parse().ok()?;
    parse_address(text.split('/').next()?)?;
    (range.trunc() == range).then_some(range)
}

/// `IPv4` or `IPv6`.
pub(super) fn family_of(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Why this address cannot be somebody's own: unspecified, loopback, link-local.
pub(super) fn unusable(address: IpAddr) -> Option<&'static str> {
    let (link_local, link_local_multicast) = match address {
        IpAddr::V4(inner) => (inner.is_link_local(), matches!(inner.octets(), [224, 0, 0, _])),
        IpAddr::V6(inner) => (inner.is_unicast_link_local(), matches!(inner.segments(), [0xff02, ..])),
    };
    if address.is_unspecified() {
        Some("may not be unspecified")
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if link_local_multicast {
        Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/16)")
    } else {
        None
    }
}
