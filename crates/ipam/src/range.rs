//! A range of cluster IPs or load-balancer addresses: which of its addresses can be allocated, and the number of each.
//!
//! The network address is never allocated, nor is the IPv4 broadcast address. IPv6 has no broadcast, so its last
//! address is allocated like any other. Its first is the subnet-router anycast address (RFC 4291, 2.6.1). These
//! addresses are not marked as taken but have no number, so they can never be released.
//!
//! A range of load-balancer addresses may be one address (`192.0.2.5/32`) or two. No network begins or ends there, so all of
//! them are allocated, as on a point-to-point link (RFC 3021, RFC 6164).

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use thiserror::Error;

use crate::family::Family;

#[cfg(test)]
mod tests;

/// A range of addresses. They are numbered by *offsets*. Offset 0 is the first one that can be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    net: IpNet,
    /// Whether the network and broadcast addresses are allocated, too.
    is_whole: bool,
}

/// The reason why a CIDR cannot be a range of cluster IPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The CIDR has host bits, such as `10.0.0.5/24`. ServiceCIDRs reject them, flags accept them.
    #[error("{0} has bits set behind its prefix; write it as {network}", network = .0.trunc())]
    HostBits(IpNet),
    /// The range has more addresses than an offset of 64 bits can number.
    #[error("{0} is too large; the prefix of an IPv6 range has 64 bits or more")]
    TooLarge(IpNet),
}

/// Largest number of host bits of an IPv6 range. `pkg/registry/core/service/ipallocator/ipallocator.go` refuses more.
const MOST_IPV6_HOST_BITS: u8 = 64;

impl AddressRange {
    /// Creates a range of cluster IPs from a CIDR without host bits. The prefix of an IPv6 range must have 64 bits or more.
    pub fn new(net: IpNet) -> Result<Self, RangeError> {
        if net.trunc() != net {
            return Err(RangeError::HostBits(net));
        }
        let range = Self { net, is_whole: false };
        if range.family() == Family::Ipv6 && range.host_bits() > MOST_IPV6_HOST_BITS {
            return Err(RangeError::TooLarge(net));
        }
        Ok(range)
    }

    /// Creates a range of load-balancer addresses. Of a range of one or two addresses, all can be allocated.
    pub fn of_load_balancers(net: IpNet) -> Result<Self, RangeError> {
        let range = Self::new(net)?;
        Ok(Self { is_whole: range.host_bits() <= 1, ..range })
    }

    /// Returns the CIDR.
    pub fn net(self) -> IpNet {
        self.net
    }

    /// Returns the family of the addresses.
    pub fn family(self) -> Family {
        match self.net {
            IpNet::V4(_) => Family::Ipv4,
            IpNet::V6(_) => Family::Ipv6,
        }
    }

    /// Returns the number of addresses that can be allocated: all except the network address and, for IPv4, the
    /// broadcast address. Saturates at 2^64 - 1, which is exact for every range that [`new`](Self::new) accepts.
    pub fn usable(self) -> u64 {
        let never = match self.family() {
            _ if self.is_whole => 0,
            Family::Ipv4 => 2,
            Family::Ipv6 => 1,
        };
        u64::try_from(self.size().saturating_sub(never)).unwrap_or(u64::MAX)
    }

    /// Returns the number of lowest addresses that are reserved for explicit requests, see [`static_band`].
    pub fn static_band(self) -> u64 {
        static_band(self.size_for_band(), 16, 256)
    }

    /// Returns the first address that can be allocated.
    pub fn first(self) -> Option<IpAddr> {
        self.address_at(0)
    }

    /// Returns the last address that can be allocated.
    pub fn last(self) -> Option<IpAddr> {
        self.address_at(self.usable().checked_sub(1)?)
    }

    /// Returns the offset of an address, or `None` if the range cannot allocate it.
    pub fn offset_of(self, address: IpAddr) -> Option<u64> {
        let address = address.to_canonical();
        if !self.net.contains(&address) {
            return None;
        }
        let offset = to_number(address).checked_sub(self.base())?;
        u64::try_from(offset).ok().filter(|offset| *offset < self.usable())
    }

    /// Returns the address with this offset.
    pub fn address_at(self, offset: u64) -> Option<IpAddr> {
        if offset >= self.usable() {
            return None;
        }
        let number = self.base().checked_add(u128::from(offset))?;
        match self.family() {
            Family::Ipv4 => u32::try_from(number).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
            Family::Ipv6 => Some(Ipv6Addr::from_bits(number).into()),
        }
    }

    /// Returns true if the range can allocate the address. Routing, repair and the deletion of ServiceCIDRs use this
    /// containment test, too.
    pub fn accepts(self, address: IpAddr) -> bool {
        self.offset_of(address).is_some()
    }

    /// Returns true if every address of the other range is in this one.
    pub fn covers(self, other: Self) -> bool {
        self.net.contains(&other.net)
    }

    /// Returns the number of the first address that can be allocated.
    fn base(self) -> u128 {
        to_number(self.net.network()).saturating_add(u128::from(!self.is_whole))
    }

    fn host_bits(self) -> u8 {
        self.family().bits().saturating_sub(self.net.prefix_len())
    }

    /// Returns the number of addresses, the first and last included.
    fn size(self) -> u128 {
        1_u128.checked_shl(u32::from(self.host_bits())).unwrap_or(u128::MAX)
    }

    /// Returns the size by which the static band is computed, as `RangeSize` of `k8s.io/utils/net` does: 0 for the
    /// two largest IPv4 ranges, and at most the largest signed 64-bit integer.
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

/// Returns how many of the lowest numbers dynamic allocation uses only after all others are taken. It is the
/// `share`-th part of the whole range, at least 16 and at most `most`, and 0 for a range of 16 or fewer. KEP-3070
/// sets a 16th and 256 for cluster IPs, KEP-3668 a 32nd and 128 for node ports.
pub fn static_band(size: u64, share: u64, most: u64) -> u64 {
    if size <= 16 { 0 } else { size.checked_div(share).unwrap_or(0).clamp(16, most.max(16)) }
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}
