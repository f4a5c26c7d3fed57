//! Addresses as Kubernetes parses them, and the choice of this node's own addresses.
//!
//! Parsing is as lenient as the Kubernetes API has always been. Decimal octets may have leading zeros. A CIDR may have
//! host bits set, which are masked. An IPv4-mapped IPv6 address is the IPv4 address that it maps. Everything in this
//! module is pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

#[cfg(test)]
mod tests;

pub use portolan_model::Family;

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not an IP address. Brackets, zones and ports are not part of one.
    #[error("`{0}` is not an IP address; write one such as 10.0.0.1 or fd00::1, without port or brackets")]
    Ip(String),
    /// Not a CIDR.
    #[error("`{0}` is not a CIDR; write an address and a prefix length, such as 10.0.0.0/16 or fd00::/64")]
    Cidr(String),
    /// Not an address with a port.
    #[error("`{0}` is not IP:port; write 10.0.0.1:10256 or [fd00::1]:10256, with a port from 1 to 65535")]
    SocketAddress(String),
}

/// Parses an IP address leniently.
pub fn parse_ip(text: &str) -> Result<IpAddr, AddressError> {
    sloppy_ip(text).map(|ip| ip.to_canonical()).ok_or_else(|| AddressError::Ip(text.to_owned()))
}

/// Parses a CIDR leniently. The result is masked.
pub fn parse_cidr(text: &str) -> Result<IpNet, AddressError> {
    sloppy_cidr(text).ok_or_else(|| AddressError::Cidr(text.to_owned()))
}

/// Parses `IP:port` (IPv6 in brackets), or an IP alone, which gets `default_port`. Port 0 is an error.
pub fn parse_socket_address(text: &str, default_port: u16) -> Result<SocketAddr, AddressError> {
    let wrong = || AddressError::SocketAddress(text.to_owned());
    if let Some(ip) = sloppy_ip(text) {
        return Ok(SocketAddr::new(ip, default_port));
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let ip = match host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')) {
        Some(inner) => sloppy_ip(inner),
        None => sloppy_ipv4(host).map(IpAddr::V4),
    };
    match (ip, decimal(port, 65_535).and_then(|port| u16::try_from(port).ok())) {
        (Some(ip), Some(port)) if port > 0 => Ok(SocketAddr::new(ip, port)),
        _ => Err(wrong()),
    }
}

/// The node's own addresses, one for each family, and the primary family.
///
/// A loopback address means "unknown".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The primary family.
    pub primary: Family,
    /// The IPv4 address, 127.0.0.1 if unknown.
    pub v4: Ipv4Addr,
    /// The IPv6 address, `::1` if unknown.
    pub v6: Ipv6Addr,
}

impl NodeAddresses {
    /// Chooses from the addresses of the Node object, in its order, and the configured bind address.
    ///
    /// The first node address determines the primary family. A bind address that is not unspecified replaces the address
    /// of its family, and makes that family primary.
    pub fn choose(node_addresses: &[IpAddr], bind_address: IpAddr) -> Self {
        let mut chosen = Self { primary: Family::Ipv4, v4: Ipv4Addr::LOCALHOST, v6: Ipv6Addr::LOCALHOST };
        if let Some(first) = node_addresses.first() {
            chosen.primary = Family::of(*first);
        }
        for address in node_addresses {
            chosen.set(*address);
        }
        if !bind_address.is_unspecified() {
            chosen.primary = Family::of(bind_address);
            chosen.set(bind_address);
        }
        chosen
    }

    /// Returns the address of one family.
    pub fn of(&self, family: Family) -> IpAddr {
        match family {
            Family::Ipv4 => self.v4.into(),
            Family::Ipv6 => self.v6.into(),
        }
    }

    /// Returns the address of one family; `None` if it is unknown.
    pub fn known(&self, family: Family) -> Option<IpAddr> {
        Some(self.of(family)).filter(|address| !address.is_loopback())
    }

    fn set(&mut self, address: IpAddr) {
        match address.to_canonical() {
            IpAddr::V4(v4) => self.v4 = v4,
            IpAddr::V6(v6) => self.v6 = v6,
        }
    }
}

/// The `nodePortAddresses` setting, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Nothing was written. The mode chooses (nftables: the primary addresses; others: every address).
    #[default]
    Default,
    /// The word `primary`: the node's own address of each family.
    Primary,
    /// The addresses inside these CIDRs.
    Cidrs(Vec<IpNet>),
}

/// The addresses of one family that accept node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortMatch {
    /// Every address of the node.
    MatchAll,
    /// The addresses inside these CIDRs, all of one family.
    Cidrs(Vec<IpNet>),
}

impl NodePortMatch {
    /// Resolves the setting for one family.
    ///
    /// A family without a CIDR in the list matches every address, as in kube-proxy: a list of IPv4 CIDRs leaves IPv6 node
    /// ports open. [`NodePortAddresses::Default`] also matches every address. The setting after the mode's default is
    /// returned by [`Configuration::node_port_addresses`](crate::config::Configuration::node_port_addresses).
    pub fn resolve(setting: &NodePortAddresses, node: &NodeAddresses, family: Family) -> Self {
        let cidrs = match setting {
            NodePortAddresses::Default => Vec::new(),
            NodePortAddresses::Primary => node.known(family).map(IpNet::from).into_iter().collect(),
            NodePortAddresses::Cidrs(cidrs) => of_family(cidrs, family),
        };
        if cidrs.is_empty() || cidrs.iter().any(|cidr| cidr.prefix_len() == 0) {
            Self::MatchAll
        } else {
            Self::Cidrs(cidrs)
        }
    }

    /// Returns those of `addresses` that accept node ports and are of `family`, without repeats.
    ///
    /// They include loopback and link-local addresses that a CIDR covers. Each mode decides what to do with them.
    pub fn matching(&self, family: Family, addresses: impl IntoIterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
        let inside = |address: &IpAddr| match self {
            Self::MatchAll => true,
            Self::Cidrs(cidrs) => cidrs.iter().any(|cidr| cidr.contains(address)),
        };
        let canonical = addresses.into_iter().map(|address| address.to_canonical());
        canonical.filter(|address| Family::of(*address) == family && inside(address)).collect()
    }

    /// Returns true if IPv4 loopback addresses are covered: by every address, or by a CIDR that is itself loopback or
    /// contains 127.0.0.0. Always false for IPv6. The iptables mode's localhost node ports depend on it.
    pub fn covers_ipv4_loopback(&self, family: Family) -> bool {
        let network = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));
        family == Family::Ipv4
            && match self {
                Self::MatchAll => true,
                Self::Cidrs(cidrs) => {
                    cidrs.iter().any(|cidr| cidr.network().is_loopback() || cidr.contains(&network))
                }
            }
    }
}

fn of_family(cidrs: &[IpNet], family: Family) -> Vec<IpNet> {
    cidrs.iter().filter(|cidr| Family::of(cidr.network()) == family).map(IpNet::trunc).collect()
}

/// Parses an address. An IPv4-mapped one stays mapped.
fn sloppy_ip(text: &str) -> Option<IpAddr> {
    if !text.contains(':') {
        return sloppy_ipv4(text).map(IpAddr::V4);
    }
    match text.rsplit_once(':') {
        // Rust's parser also rejects leading zeros in an embedded IPv4 part.
        Some((head, tail)) if tail.contains('.') => {
            let embedded = sloppy_ipv4(tail)?;
            format!("{head}:{embedded}").parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        }
        _ => text.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
    }
}

fn sloppy_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut parts = text.split('.');
    let mut octets = [0u8; 4];
    for octet in &mut octets {
        *octet = u8::try_from(decimal(parts.next()?, 255)?).ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn sloppy_cidr(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let net = match sloppy_ip(address)? {
        IpAddr::V4(v4) => IpNet::V4(Ipv4Net::new(v4, u8::try_from(decimal(prefix, 32)?).ok()?).ok()?),
        IpAddr::V6(v6) => {
            let prefix = u8::try_from(decimal(prefix, 128)?).ok()?;
            match (v6.to_ipv4_mapped(), prefix.checked_sub(96)) {
                (Some(v4), Some(prefix)) => IpNet::V4(Ipv4Net::new(v4, prefix).ok()?),
                _ => IpNet::V6(Ipv6Net::new(v6, prefix).ok()?),
            }
        }
    };
    Some(net.trunc())
}

/// Parses digits with any number of leading zeros, up to `maximum`.
fn decimal(text: &str, maximum: u32) -> Option<u32> {
    if text.is_empty() {
        return None;
    }
    text.bytes().try_fold(0u32, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit).filter(|value| *value <= maximum)
    })
}
