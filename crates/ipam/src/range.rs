//! One range of cluster IPs: which of its addresses may be given out, and by which number each is known.
//!
//! The network address is never given, nor is the IPv4 broadcast address. IPv6 has no broadcast, so its last address
//! is as good as any; its first is the subnet-router anycast address (RFC 4291, 2.6.1). They are not marked as taken
//! but have no number at all, so nothing can give them back.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use thiserror::Error;

use crate::family::Family;

#[cfg(test)]
mod tests;

/// A range of cluster IPs. Numbers of addresses (*offsets*) start at 0, the address after the network address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    net: IpNet,
}

/// A CIDR that cannot be a range of cluster IPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RangeError {
    /// `10.0.0.5/24` and the like: ServiceCIDRs are strict where flags are lenient.
    #[error("{0} has bits set behind its prefix; write it as {network}", network = .0.trunc())]
    HostBits(IpNet),
    /// More addresses than an offset of 64 bits can number.
    #[error("{0} is too large; the prefix of an IPv6 range of cluster IPs has 64 bits or more")]
    TooLarge(IpNet),
}

/// Longest IPv6 part behind the prefix: `pkg/registry/core/service/ipallocator/ipallocator.go` refuses more.
const MOST_IPV6_HOST_BITS: u8 = 64;

impl AddressRange {
    /// Takes a CIDR without host bits; IPv6 with a prefix of 64 bits or more.
    pub fn new(net: IpNet) -> Result<Self, RangeError> {
        if net.trunc() != net {
            return Err(RangeError::HostBits(net));
        }
        let range = Self { net };
        if range.family() == Family::Ipv6 && range.host_bits() > MOST_IPV6_HOST_BITS {
            return Err(RangeError::TooLarge(net));
        }
        Ok(range)
    }

    /// The CIDR.
    pub fn net(self) -> IpNet {
        self.net
    }

    /// The family of its addresses.
    pub fn family(self) -> Family {
        match self.net {
            IpNet::V4(_) => Family::Ipv4,
            IpNet::V6(_) => Family::Ipv6,
        }
    }

    /// How many addresses can be given: all but the network address and, for IPv4, the broadcast address. Saturates
    /// at 2^64 - 1, which is exact for every range that there can be.
    pub fn usable(self) -> u64 {
        let never = match self.family() {
            Family::Ipv4 => 2,
            Family::Ipv6 => 1,
        };
        u64::try_from(self.size().saturating_sub(never)).unwrap_or(u64::MAX)
    }

    /// How many of the first addresses are kept for explicit requests, see [`static_band`].
    pub fn static_band(self) -> u64 {
        static_band(self.size_for_band(), 16, 256)
    }

    /// The first address that can be given.
    pub fn first(self) -> Option<IpAddr> {
        self.address_at(0)
    }

    /// The last address that can be given.
    pub fn last(self) -> Option<IpAddr> {
        self.address_at(self.usable().checked_sub(1)?)
    }

    /// The number of an address; none if the range cannot give it.
    pub fn offset_of(self, address: IpAddr) -> Option<u64> {
        let address = address.to_canonical();
        if !self.net.contains(&address) {
            return None;
        }
        let offset = to_number(address).checked_sub(to_number(self.net.network()))?.checked_sub(1)?;
        u64::try_from(offset).ok().filter(|offset| *offset < self.usable())
    }

    /// The address with this number.
    pub fn address_at(self, offset: u64) -> Option<IpAddr> {
        if offset >= self.usable() {
            return None;
        }
        let number = to_number(self.net.network()).checked_add(u128::from(offset))?.checked_add(1)?;
        match self.family() {
            Family::Ipv4 => u32::try_from(number).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
            Family::Ipv6 => Some(Ipv6Addr::from_bits(number).into()),
        }
    }

    /// Whether the range can give the address. This is the containment test of routing, of repair and of the deletion
    /// of ServiceCIDRs, too.
    pub fn accepts(self, address: IpAddr) -> bool {
        self.offset_of(address).is_some()
    }

    /// Whether every address of the other range is in this one.
    pub fn covers(self, other: Self) -> bool {
        self.net.contains(&other.net)
    }

    fn host_bits(self) -> u8 {
        self.family().bits().saturating_sub(self.net.prefix_len())
    }

    /// All addresses, the first and last included.
    fn size(self) -> u128 {
        1_u128.checked_shl(u32::from(self.host_bits())).unwrap_or(u128::MAX)
    }

    /// The size as `RangeSize` of `k8s.io/utils/net` has it, which the band is reckoned from: 0 for the two largest
    /// IPv4 ranges, and at most what a signed number of 64 bits holds.
    fn size_for_band(self) -> u64 {
        if self.family() == Family::Ipv4 && self.host_bits() >= 31 {
            return 0;
        }
        u64::try_from(self.size()).unwrap_or(u64::MAX).min(i64::MAX as u64)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.net.fmt(f)
    }
}

/// How many of the lowest numbers dynamic allocation leaves alone until the others are gone: a share of the whole
/// range, at least 16 and at most `most`; none of a range of 16 or fewer (KEP-3070 for cluster IPs with a 16th and
/// 256, KEP-3668 for node ports with a 32nd and 128).
pub fn static_band(size: u64, share: u64, most: u64) -> u64 {
    if size <= 16 { 0 } else { size.checked_div(share).unwrap_or(0).clamp(16, most.max(16)) }
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}
