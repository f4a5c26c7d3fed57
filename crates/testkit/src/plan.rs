//! The addresses of the participants in a [`World`](crate::World).
//!
//! | participant | IPv4 | IPv6 |
//! |---|---|---|
//! | node, remote node | 192.168.100.1, .2 (/24) | fd00:192:168:100::1, ::2 (/64) |
//! | pods of the node: gateway, pod 1, pod 2, … | 10.244.1.1, .11, .12, … | fd00:10:244:1::1, ::b, ::c, … |
//! | remote pods: gateway, pod 1, … | 10.244.2.1, .11, … | fd00:10:244:2::1, ::b, … |
//! | node towards the outside | 203.0.113.1 (/24) | 2001:db8:113::1 (/64) |
//! | client | 203.0.113.10 | 2001:db8:113::a |

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portolan_model::Family;

/// Maximum pods of one node: the host numbers from the first pod's up to 254.
pub(crate) const PODS_PER_NODE: usize = (254 - FIRST_POD) as usize;
const FIRST_POD: u8 = 10;

/// The IPv4 and the IPv6 address of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The IPv4 address.
    pub ipv4: Ipv4Addr,
    /// The IPv6 address.
    pub ipv6: Ipv6Addr,
}

impl Addresses {
    /// The outside client.
    pub const CLIENT: Self = Self::new(Ipv4Addr::new(203, 0, 113, 10), [0x2001, 0xdb8, 0x113, 0]);
    /// The node, on the link to the outside client.
    pub const OUTSIDE: Self = Self::new(Ipv4Addr::new(203, 0, 113, 1), [0x2001, 0xdb8, 0x113, 0]);

    /// Returns the address of one family.
    pub const fn of(self, family: Family) -> IpAddr {
        match family {
            Family::Ipv4 => IpAddr::V4(self.ipv4),
            Family::Ipv6 => IpAddr::V6(self.ipv6),
        }
    }

    /// Returns both addresses, IPv4 first.
    pub const fn both(self) -> [IpAddr; 2] {
        [IpAddr::V4(self.ipv4), IpAddr::V6(self.ipv6)]
    }

    /// Creates the addresses. The IPv6 host number is the last octet of the IPv4 address.
    const fn new(ipv4: Ipv4Addr, prefix: [u16; 4]) -> Self {
        let [first, second, third, fourth] = prefix;
        let [.., host] = ipv4.octets();
        Self { ipv4, ipv6: Ipv6Addr::new(first, second, third, fourth, 0, 0, 0, host as u16) }
    }
}

/// One of the two nodes and the pods on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// The node that Portolan runs on.
    Local,
    /// The other node.
    Remote,
}

impl Site {
    /// Returns the node's own addresses, which a Node object would have as `InternalIP`.
    pub const fn node(self) -> Addresses {
        Addresses::new(Ipv4Addr::new(192, 168, 100, self.number()), [0xfd00, 0x192, 0x168, 0x100])
    }

    /// Returns the pods' default gateway, an address of their node on each pod's interface.
    pub const fn gateway(self) -> Addresses {
        self.pod_network(1)
    }

    /// Returns the addresses of the pod with this number, counted from 1.
    pub const fn pod(self, number: u8) -> Addresses {
        self.pod_network(FIRST_POD.saturating_add(number))
    }

    const fn pod_network(self, host: u8) -> Addresses {
        let number = self.number();
        Addresses::new(Ipv4Addr::new(10, 244, number, host), [0xfd00, 0x10, 0x244, number as u16])
    }

    const fn number(self) -> u8 {
        match self {
            Self::Local => 1,
            Self::Remote => 2,
        }
    }
}
