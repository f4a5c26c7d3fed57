//! IP families and transport protocols, as Services have them.
//!
//! Owns the two types and their names in the API. The proxy and the allocator share them. Must not know anything else.

use std::fmt;
use std::net::IpAddr;

/// An IP family, spelled `IPv4` or `IPv6` in metrics, health responses and API objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Internet protocol version 4.
    Ipv4,
    /// Internet protocol version 6.
    Ipv6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const BOTH: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// Returns `IPv4` or `IPv6`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }

    /// Returns the family with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|family| family.name() == name)
    }

    /// Returns the family of an address. An IPv4-mapped IPv6 address counts as IPv4.
    pub const fn of(address: IpAddr) -> Self {
        if address.to_canonical().is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }

    /// Returns the other family.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Ipv4 => Self::Ipv6,
            Self::Ipv6 => Self::Ipv4,
        }
    }

    /// Returns the length of an address in bits.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A transport protocol that a Service port can have. The default is that of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Protocol {
    /// RFC 9293.
    #[default]
    Tcp,
    /// RFC 768.
    Udp,
    /// RFC 9260.
    Sctp,
}

impl Protocol {
    /// Returns the name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// Returns the protocol number in the IP header (IANA protocol numbers).
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
