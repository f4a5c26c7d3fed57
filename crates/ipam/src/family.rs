//! IP families, and the textual form of addresses in the API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use portolan_net::Family;

/// The families for which a cluster has ranges, in the order of `--service-cluster-ip-range`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    primary: Family,
    dual: bool,
}

impl Families {
    /// Creates a single-stack configuration.
    pub const fn single(primary: Family) -> Self {
        Self { primary, dual: false }
    }

    /// Creates a dual-stack configuration with this family first.
    pub const fn dual(primary: Family) -> Self {
        Self { primary, dual: true }
    }

    /// Returns the family of Services that do not request one.
    pub const fn primary(self) -> Family {
        self.primary
    }

    /// Returns true if there are ranges of both families.
    pub const fn is_dual(self) -> bool {
        self.dual
    }

    /// Returns true if there is a range of this family.
    pub fn contains(self, family: Family) -> bool {
        self.dual || self.primary == family
    }
}

/// Parses an address as upstream parses those of stored objects. Leading zeros in IPv4 are allowed, and the numbers
/// are decimal. An IPv4-mapped IPv6 address becomes its IPv4 address.
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(|address| IpAddr::V6(address).to_canonical());
    }
    let mut parts = text.split('.').map(octet);
    let octets = [parts.next()??, parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

fn octet(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_and_mapped_addresses_are_read() {
        let read = |text: &str| parse_address(text).map(|address| address.to_string());
        assert_eq!(read("010.096.000.001").as_deref(), Some("10.96.0.1"));
        assert_eq!(read("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(read("FD00:0::1").as_deref(), Some("fd00::1"));
        for text in ["", "None", "10.0.0", "10.0.0.1.2", "10.0.0.+1", "10.0.0.256", "fd00::/64", "10.0..1"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
