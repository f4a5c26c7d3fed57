//! What the server is told at start. Plain fields; the command line fills them.

use std::{fmt, net::IpAddr, net::SocketAddr, path::PathBuf, str::FromStr};

use ipnet::IpNet;
use portolan_store::History;
use thiserror::Error;

use crate::{
    security::TlsSettings,
    server::{Checks, Limits, Metrics},
};

/// Settings of one server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where [`Server::start`](crate::Server::start) listens; port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// How clients connect, and whether they have to say who they are.
    pub transport: Transport,
    /// Allows plain HTTP on an address that other hosts can reach, for networks that end at this host, as those of
    /// tests do. The command line does not offer it.
    pub insecure_allow_non_loopback: bool,
    /// Ranges that cluster IPs are given from (`--service-cluster-ip-range`).
    pub service_ranges: ServiceRanges,
    /// Range that node ports are given from (`--service-node-port-range`).
    pub node_ports: PortRange,
    /// Whether objects are checked (`--validation`). Off, only well-formed JSON and metadata are asked for, so that
    /// clients can be tested with objects that no API server would store.
    pub validate: bool,
    /// Folder of manifests to keep the objects in step with (`--manifests`).
    pub manifests: Option<PathBuf>,
    /// How much of the past is kept for watches that resume and lists that page.
    pub history: History,
    /// How much clients may ask for at a time.
    pub limits: Limits,
    /// What `/readyz` asks; other rooms add theirs.
    pub checks: Checks,
    /// What `/metrics` shows besides the server's own; other rooms add theirs.
    pub metrics: Metrics,
}

/// How clients connect.
#[derive(Debug, Clone, Default)]
pub enum Transport {
    /// Plain HTTP, in which everybody who can connect may do everything.
    #[default]
    PlainHttp,
    /// TLS, with client certificates or tokens.
    Tls(Box<TlsSettings>),
}

/// One or two CIDRs, the first being the primary family's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRanges {
    primary: IpNet,
    secondary: Option<IpNet>,
}

/// An inclusive range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Not a CIDR.
    #[error("service-cluster-ip-range: \"{0}\" is not a CIDR; write it like 10.96.0.0/12 or fd00:96::/112")]
    NotACidr(String),
    /// None or more than two CIDRs.
    #[error(
        "service-cluster-ip-range: {0} CIDRs; give one, or one for each of IPv4 and IPv6, joined by a comma"
    )]
    CidrCount(usize),
    /// Two CIDRs of one family.
    #[error("service-cluster-ip-range: {0} and {1} are of the same family; give one IPv4 and one IPv6 CIDR")]
    SameFamily(IpNet, IpNet),
    /// A CIDR with no usable address.
    #[error(
        "service-cluster-ip-range: {0} has no room for cluster IPs; use at least a /30 (IPv4) or /126 (IPv6)"
    )]
    TooSmall(IpNet),
    /// A CIDR where no cluster IP may be.
    #[error(
        "service-cluster-ip-range: {0} is loopback, link-local, multicast or unspecified; choose another range"
    )]
    Unroutable(IpNet),
    /// Not a port range.
    #[error(
        "service-node-port-range: \"{0}\" is not a range of ports from 1 to 65535; write it like 30000-32767"
    )]
    NotAPortRange(String),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            insecure_allow_non_loopback: false,
            service_ranges: ServiceRanges::default(),
            node_ports: PortRange::default(),
            validate: true,
            manifests: None,
            history: History::default(),
            transport: Transport::default(),
            limits: Limits::default(),
            checks: Checks::default(),
            metrics: Metrics::default(),
        }
    }
}

impl ServiceRanges {
    /// The primary range, and the other family's if there is one.
    pub fn iter(&self) -> impl Iterator<Item = IpNet> {
        std::iter::once(self.primary).chain(self.secondary)
    }

    /// The primary range.
    pub fn primary(&self) -> IpNet {
        self.primary
    }
}

impl Default for ServiceRanges {
    /// 10.96.0.0/12, as kubeadm has it.
    fn default() -> Self {
        let primary = ipnet::Ipv4Net::new_assert([10, 96, 0, 0].into(), 12);
        Self { primary: primary.into(), secondary: None }
    }
}

impl FromStr for ServiceRanges {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let ranges = text.split(',').map(|part| service_range(part.trim())).collect::<Result<Vec<_>, _>>()?;
        match *ranges.as_slice() {
            [primary] => Ok(Self { primary, secondary: None }),
            [primary, secondary] if is_ipv4(primary) == is_ipv4(secondary) => {
                Err(ConfigError::SameFamily(primary, secondary))
            }
            [primary, secondary] => Ok(Self { primary, secondary: Some(secondary) }),
            _ => Err(ConfigError::CidrCount(ranges.len())),
        }
    }
}

impl PortRange {
    /// The first port.
    pub fn first(self) -> u16 {
        self.first
    }

    /// The last port, itself in the range.
    pub fn last(self) -> u16 {
        self.last
    }

    /// Whether the port is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Default for PortRange {
    fn default() -> Self {
        Self { first: 30_000, last: 32_767 }
    }
}

impl FromStr for PortRange {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let refused = || ConfigError::NotAPortRange(text.to_owned());
        let (first, last) = text.split_once('-').ok_or_else(refused)?;
        let port = |part: &str| part.trim().parse::<u16>().map_err(|_| refused());
        let (first, last) = (port(first)?, port(last)?);
        if first == 0 || first > last { Err(refused()) } else { Ok(Self { first, last }) }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

fn service_range(text: &str) -> Result<IpNet, ConfigError> {
    let range: IpNet = text.parse().map_err(|_| ConfigError::NotACidr(text.to_owned()))?;
    let range = range.trunc();
    if range.max_prefix_len() - range.prefix_len() < 2 {
        return Err(ConfigError::TooSmall(range));
    }
    if is_unroutable(range.addr()) || is_unroutable(range.broadcast()) {
        return Err(ConfigError::Unroutable(range));
    }
    Ok(range)
}

fn is_ipv4(range: IpNet) -> bool {
    matches!(range, IpNet::V4(_))
}

fn is_unroutable(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    link_local || address.is_loopback() || address.is_multicast() || address.is_unspecified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_truncated() {
        let ranges: ServiceRanges = "10.96.0.9/16, fd00:96::/112".parse().unwrap();
        let texts: Vec<String> = ranges.iter().map(|range| range.to_string()).collect();
        assert_eq!(texts, ["10.96.0.0/16", "fd00:96::/112"]);
    }

    #[test]
    fn each_bad_range_has_its_error() {
        let error = |text: &str| text.parse::<ServiceRanges>().unwrap_err();
        assert!(matches!(error("10.96.0.0"), ConfigError::NotACidr(_)));
        assert!(matches!(error("10.0.0.0/24,10.1.0.0/24"), ConfigError::SameFamily(..)));
        assert!(matches!(error("10.0.0.0/24,fd00::/112,fd01::/112"), ConfigError::CidrCount(3)));
        assert!(matches!(error("10.0.0.0/31"), ConfigError::TooSmall(_)));
        for text in ["127.0.0.0/16", "169.254.0.0/16", "224.0.0.0/8", "0.0.0.0/8", "fe80::/64"] {
            assert!(matches!(error(text), ConfigError::Unroutable(_)), "{text}");
        }
    }

    #[test]
    fn port_ranges() {
        let range: PortRange = "30000-30010".parse().unwrap();
        assert!(range.contains(30_000) && range.contains(30_010) && !range.contains(30_011));
        for text in ["", "80", "0-10", "10-5", "1-70000", "a-b"] {
            assert!(text.parse::<PortRange>().is_err(), "{text}");
        }
    }
}
