//! Parsing and validation of addresses and CIDRs, for the kinds and for `metadata`, where names are addresses.

use std::{collections::HashSet, net::IpAddr};

use ipnet::IpNet;
use portolan_schema::json::Value;

/// Names of the families, as in `ipFamilies`.
pub(crate) const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
pub(crate) const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// The message for a number that is not a port.
pub(crate) const PORT_RULE: &str = "must be between 1 and 65535, inclusive";

/// Returns the appProtocols of ports.
pub(crate) fn app_protocols(ports: &[Value]) -> HashSet<&str> {
    ports.iter().filter_map(|port| port.get("appProtocol").and_then(Value::as_str)).collect()
}

/// Returns true if this is a port number.
pub(crate) fn is_port(number: i64) -> bool {
    (1..=65_535).contains(&number)
}

/// Parses an IP address. Refuses leading zeros (as `std` does) and IPv4-mapped IPv6 addresses.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    match address {
        IpAddr::V6(inner) if inner.to_ipv4_mapped().is_some() => None,
        other => Some(other),
    }
}

/// Parses a CIDR. Refuses host bits.
pub(crate) fn parse_cidr(text: &str) -> Option<IpNet> {
    let range: IpNet = text.parse().ok()?;
    parse_address(text.split('/').next()?)?;
    (range.trunc() == range).then_some(range)
}

/// Returns the family as `IPv4` or `IPv6`.
pub(crate) fn family_of(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Returns why an endpoint or Service cannot have this address: it is unspecified, loopback or link-local. `None` if
/// it can.
pub(crate) fn unusable(address: IpAddr) -> Option<&'static str> {
    let (link_local, link_local_multicast) = match address {
        IpAddr::V4(inner) => (inner.is_link_local(), matches!(inner.octets(), [224, 0, 0, _])),
        // Of any flags, as Go's `IsLinkLocalMulticast`.
        IpAddr::V6(inner) => {
            (inner.is_unicast_link_local(), matches!(inner.octets(), [0xff, scope, ..] if scope & 0xf == 2))
        }
    };
    if address.is_unspecified() {
        Some("may not be unspecified")
    } else if address.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)")
    } else if link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)")
    } else if link_local_multicast {
        Some("may not be in the link-local multicast range (224.0.0.0/24, or ff02::/16 with any flags)")
    } else {
        None
    }
}
