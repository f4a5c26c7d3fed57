//! Cluster IPs and node ports: who holds which, and which is next.
//!
//! [`Allocator`] is the seam for a better one (durable, with repair). The server calls it under its write lock and
//! undoes what it took if the write fails.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use thiserror::Error;

use crate::config::{PortRange, ServiceRanges};

#[cfg(test)]
mod tests;

/// Gives out cluster IPs and node ports. An owner is the key of a Service, `namespace/name`.
pub trait Allocator: Send + fmt::Debug {
    /// Takes this address for `owner`; taking again what one holds is fine.
    fn claim_address(&mut self, address: IpAddr, owner: &str) -> Result<(), AllocationError>;

    /// Takes a free address of the family.
    fn next_address(&mut self, ipv6: bool, owner: &str) -> Result<IpAddr, AllocationError>;

    /// Gives the address back, if `owner` holds it.
    fn release_address(&mut self, address: IpAddr, owner: &str);

    /// Takes this port for `owner`; taking again what one holds is fine.
    fn claim_port(&mut self, protocol: Protocol, port: u16, owner: &str) -> Result<(), AllocationError>;

    /// Takes a port that is free for every protocol.
    fn next_port(&mut self, protocol: Protocol, owner: &str) -> Result<u16, AllocationError>;

    /// Gives the port back, if `owner` holds it.
    fn release_port(&mut self, protocol: Protocol, port: u16, owner: &str);
}

/// Transport protocol of a node port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// Why an address or port was not given.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AllocationError {
    /// Another Service has the address.
    #[error("provided IP is already allocated to Service {owner}")]
    AddressTaken {
        /// `namespace/name` of the holder.
        owner: String,
    },
    /// The address is in none of the ranges, or is a network or broadcast address.
    #[error("the provided IP is not in a valid range; the range of cluster IPs is {ranges}")]
    AddressOutOfRange {
        /// The configured ranges.
        ranges: String,
    },
    /// No range of this family is configured.
    #[error("no cluster IP range of family {family} is configured")]
    NoSuchFamily {
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// Every address is taken.
    #[error("range is full: every address of {range} is allocated")]
    RangeFull {
        /// The range.
        range: IpNet,
    },
    /// Another Service has the port.
    #[error("provided port is already allocated to Service {owner}")]
    PortTaken {
        /// `namespace/name` of the holder.
        owner: String,
    },
    /// The port is not in the range.
    #[error("provided port is not in the valid range. The range of valid ports is {range}")]
    PortOutOfRange {
        /// The configured range.
        range: PortRange,
    },
    /// Every port is taken.
    #[error("range is full: every port of {range} is allocated")]
    PortsFull {
        /// The range.
        range: PortRange,
    },
}

/// In memory; the next address is the one after the last given, which keeps a released address unused for long.
#[derive(Debug)]
pub struct NextFree {
    pools: Vec<Pool>,
    addresses: HashMap<IpAddr, Box<str>>,
    node_ports: PortRange,
    next_port: u16,
    ports: HashMap<(Protocol, u16), Box<str>>,
}

/// The usable addresses of one range, as numbers, both ends in it.
#[derive(Debug)]
struct Pool {
    range: IpNet,
    first: u128,
    last: u128,
    next: u128,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// From the API's text; an absent protocol is TCP.
    pub fn from_api(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }
}

impl NextFree {
    /// Nothing is allocated yet.
    pub fn new(ranges: &ServiceRanges, node_ports: PortRange) -> Self {
        Self {
            pools: ranges.iter().map(Pool::new).collect(),
            addresses: HashMap::new(),
            node_ports,
            next_port: node_ports.first(),
            ports: HashMap::new(),
        }
    }

    fn is_usable(&self, address: IpAddr) -> bool {
        let number = to_number(address);
        self.pools.iter().any(|pool| {
            is_ipv6(pool.range) == address.is_ipv6() && (pool.first..=pool.last).contains(&number)
        })
    }

    fn is_port_free(&self, port: u16) -> bool {
        Protocol::ALL.iter().all(|protocol| !self.ports.contains_key(&(*protocol, port)))
    }
}

impl Allocator for NextFree {
    fn claim_address(&mut self, address: IpAddr, owner: &str) -> Result<(), AllocationError> {
        if !self.is_usable(address) {
            let ranges: Vec<String> = self.pools.iter().map(|pool| pool.range.to_string()).collect();
            return Err(AllocationError::AddressOutOfRange { ranges: ranges.join(",") });
        }
        match self.addresses.get(&address) {
            Some(holder) if **holder != *owner => {
                Err(AllocationError::AddressTaken { owner: holder.to_string() })
            }
            _ => {
                self.addresses.insert(address, owner.into());
                Ok(())
            }
        }
    }

    fn next_address(&mut self, ipv6: bool, owner: &str) -> Result<IpAddr, AllocationError> {
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        let pool = self.pools.iter_mut().find(|pool| is_ipv6(pool.range) == ipv6);
        let pool = pool.ok_or(AllocationError::NoSuchFamily { family })?;
        // One candidate more than there are holders must be free, unless the range itself ends first.
        for _ in 0..=self.addresses.len() {
            let address = from_number(pool.take(), ipv6);
            if let std::collections::hash_map::Entry::Vacant(e) = self.addresses.entry(address) {
                e.insert(owner.into());
                return Ok(address);
            }
        }
        Err(AllocationError::RangeFull { range: pool.range })
    }

    fn release_address(&mut self, address: IpAddr, owner: &str) {
        if self.addresses.get(&address).is_some_and(|holder| **holder == *owner) {
            self.addresses.remove(&address);
        }
    }

    fn claim_port(&mut self, protocol: Protocol, port: u16, owner: &str) -> Result<(), AllocationError> {
        if !self.node_ports.contains(port) {
            return Err(AllocationError::PortOutOfRange { range: self.node_ports });
        }
        match self.ports.get(&(protocol, port)) {
            Some(holder) if **holder != *owner => {
                Err(AllocationError::PortTaken { owner: holder.to_string() })
            }
            _ => {
                self.ports.insert((protocol, port), owner.into());
                Ok(())
            }
        }
    }

    fn next_port(&mut self, protocol: Protocol, owner: &str) -> Result<u16, AllocationError> {
        for _ in self.node_ports.first()..=self.node_ports.last() {
            let port = self.next_port;
            self.next_port = if port >= self.node_ports.last() { self.node_ports.first() } else { port + 1 };
            if self.is_port_free(port) {
                self.ports.insert((protocol, port), owner.into());
                return Ok(port);
            }
        }
        Err(AllocationError::PortsFull { range: self.node_ports })
    }

    fn release_port(&mut self, protocol: Protocol, port: u16, owner: &str) {
        if self.ports.get(&(protocol, port)).is_some_and(|holder| **holder == *owner) {
            self.ports.remove(&(protocol, port));
        }
    }
}

impl Pool {
    fn new(range: IpNet) -> Self {
        // The network address is never given, nor is the IPv4 broadcast address.
        let first = to_number(range.network()).saturating_add(1);
        let last = to_number(range.broadcast()).saturating_sub(u128::from(!is_ipv6(range)));
        // KEP-3070: addresses below this are mostly asked for by number, so counting starts above them.
        let size = last.saturating_sub(first).saturating_add(1);
        let static_band = (size / 16).clamp(16, 256);
        let next = if static_band < size { first.saturating_add(static_band) } else { first };
        Self { range, first, last, next }
    }

    fn take(&mut self) -> u128 {
        let number = self.next;
        self.next = if number >= self.last { self.first } else { number.saturating_add(1) };
        number
    }
}

fn is_ipv6(range: IpNet) -> bool {
    matches!(range, IpNet::V6(_))
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn from_number(number: u128, ipv6: bool) -> IpAddr {
    if ipv6 {
        Ipv6Addr::from_bits(number).into()
    } else {
        // Numbers of an IPv4 pool have 32 bits.
        Ipv4Addr::from_bits(number as u32).into()
    }
}
