//! The part of rtnetlink that reads and adds addresses of this node and delivers marked packets to it: addresses,
//! links, rules by mark ([`policy`]), and the routes of single packets ([`path`]).

pub mod path;
pub mod policy;

use std::net::IpAddr;

use crate::netlink::{Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL};
use crate::{Batch, DecodeError, Frame, Request};

/// Multicast group of changes to links.
pub const GROUP_LINK: u32 = 1;
/// Multicast group of changes to IPv4 addresses.
pub const GROUP_IPV4_ADDRESS: u32 = 5;
/// Multicast group of changes to IPv6 addresses.
pub const GROUP_IPV6_ADDRESS: u32 = 9;
/// Multicast group of changes to rules of policy routing, IPv4.
pub const GROUP_IPV4_RULE: u32 = 8;
/// Multicast group of changes to rules of policy routing, IPv6.
pub const GROUP_IPV6_RULE: u32 = 19;

/// `AF_UNSPEC`: any family.
pub const AF_UNSPEC: u8 = 0;
/// `AF_INET`.
pub const AF_INET: u8 = 2;
/// `AF_INET6`.
pub const AF_INET6: u8 = 10;

/// The interface is up.
pub const IFF_UP: u32 = 1;
/// The interface has a carrier: a cable, or whatever its other end is (`IFF_LOWER_UP`).
pub const IFF_LOWER_UP: u32 = 1 << 16;
/// The interface is a loopback one.
pub const IFF_LOOPBACK: u32 = 8;

/// The address is a secondary one of its subnet.
pub const IFA_F_SECONDARY: u32 = 0x01;
/// Another host has the address, so the kernel does not use it (duplicate address detection failed).
pub const IFA_F_DADFAILED: u32 = 0x08;
/// The address is valid but not used for new connections.
pub const IFA_F_DEPRECATED: u32 = 0x20;
/// Duplicate address detection has not finished.
pub const IFA_F_TENTATIVE: u32 = 0x40;
/// The address does not expire.
pub const IFA_F_PERMANENT: u32 = 0x80;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

const ADDRESS: &str = "rtnetlink address";
const ADDRESS_HEADER: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;

const LINK: &str = "rtnetlink link";
const LINK_HEADER: usize = 16;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// The kind of interface that sends and receives nothing.
const DUMMY: &str = "dummy";
const IFLA_EXT_MASK: u16 = 29;
/// Leaves the statistics out of the answer, which they would double in size.
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;

numbers! {
    /// The scope of an address (`enum rt_scope_t`).
    Scope(u8) {
        /// Everywhere.
        UNIVERSE = 0,
        /// This site.
        SITE = 200,
        /// This link.
        LINK = 253,
        /// This host.
        HOST = 254,
        /// Nowhere.
        NOWHERE = 255,
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Address {
    /// Index of the interface.
    pub index: u32,
    /// Address of this host.
    pub local: IpAddr,
    /// Address of the other end on a point-to-point interface, else the same address.
    pub peer: IpAddr,
    /// Length of the subnet's prefix in bits.
    pub prefix: u8,
    /// `IFA_F_*`.
    pub flags: u32,
    /// Scope of the address.
    pub scope: Scope,
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Link {
    /// Index of the interface.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// `IFF_*`.
    pub flags: u32,
}

/// A message of rtnetlink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteEvent {
    /// An address exists, was added or was changed.
    NewAddress(Address),
    /// An address was removed.
    DeleteAddress(Address),
    /// An interface exists, was added or was changed.
    NewLink(Link),
    /// An interface was removed.
    DeleteLink(Link),
    /// Another message.
    Other {
        /// The message type.
        kind: u16,
    },
}

/// Requests all addresses of a family; with [`AF_UNSPEC`], of both families.
pub fn addresses(family: u8) -> Request {
    Request::new(RTM_GETADDR, NLM_F_DUMP, &[family, 0, 0, 0, 0, 0, 0, 0], |_| {})
}

/// Requests all interfaces.
pub fn links() -> Request {
    Request::new(RTM_GETLINK, NLM_F_DUMP, &link_header(0, 0, 0), |message| {
        message.attr_u32_ne(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
    })
}

/// Adds an address to an interface.
pub fn add_address(address: &Address) -> Request {
    let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
    Request::new(RTM_NEWADDR, flags, &address.header(), |message| address.encode(message))
}

/// Removes an address from an interface.
pub fn delete_address(address: &Address) -> Request {
    Request::new(RTM_DELADDR, NLM_F_ACK, &address.header(), |message| address.encode(message))
}

/// Adds an address to an interface, as a message of a batch.
pub fn put_address(batch: &mut Batch, address: &Address) {
    address.encode(&mut batch.message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &address.header()));
}

/// Removes an address from an interface, as a message of a batch.
pub fn take_address(batch: &mut Batch, address: &Address) {
    address.encode(&mut batch.message(RTM_DELADDR, 0, &address.header()));
}

/// Creates an interface that only holds addresses. It is down. EEXIST means that the name is taken, EOPNOTSUPP that
/// the kernel does not support such interfaces.
pub fn create_dummy(name: &str) -> Request {
    let flags = NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK;
    Request::new(RTM_NEWLINK, flags, &link_header(0, 0, 0), |message| {
        message.attr_str(IFLA_IFNAME, name);
        message.nest(IFLA_LINKINFO, |message| message.attr_str(IFLA_INFO_KIND, DUMMY));
    })
}

/// Sets those flags of an interface that are in `mask` (such as [`IFF_UP`]).
pub fn set_link_flags(index: u32, flags: u32, mask: u32) -> Request {
    Request::new(RTM_NEWLINK, NLM_F_ACK, &link_header(index, flags, mask), |_| {})
}

/// Removes an interface.
pub fn delete_link(index: u32) -> Request {
    Request::new(RTM_DELLINK, NLM_F_ACK, &link_header(index, 0, 0), |_| {})
}

impl RouteEvent {
    /// Reads a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        match frame.header.kind {
            RTM_NEWADDR => Address::decode(frame).map(Self::NewAddress),
            RTM_DELADDR => Address::decode(frame).map(Self::DeleteAddress),
            RTM_NEWLINK => Link::decode(frame).map(Self::NewLink),
            RTM_DELLINK => Link::decode(frame).map(Self::DeleteLink),
            kind => Ok(Self::Other { kind }),
        }
    }
}

impl Address {
    /// Reads `struct ifaddrmsg` and its attributes.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let map = frame.attributes(ADDRESS, ADDRESS_HEADER)?.by_kind::<9>()?;
        let (&[_, prefix, flags, scope, i0, i1, i2, i3], _) =
            frame.payload.split_first_chunk().ok_or(short(ADDRESS, ADDRESS_HEADER, frame))?;
        let address = |kind| map.get(kind).map(|attribute| ip(&attribute)).transpose();
        // IPv6 has the local attribute only on point-to-point interfaces.
        let (local, peer) = (address(IFA_LOCAL)?, address(IFA_ADDRESS)?);
        let missing = DecodeError::Missing { object: ADDRESS, attribute: IFA_LOCAL };
        let local = local.or(peer).ok_or(missing)?;
        // The attribute holds more bits than the byte in the header.
        let long_flags = map.get(IFA_FLAGS).map(|attribute| attribute.u32_ne()).transpose()?;
        Ok(Self {
            index: u32::from_ne_bytes([i0, i1, i2, i3]),
            local,
            peer: peer.unwrap_or(local),
            prefix,
            flags: long_flags.unwrap_or(u32::from(flags)),
            scope: Scope(scope),
        })
    }

    fn header(&self) -> [u8; ADDRESS_HEADER] {
        let family = if self.local.is_ipv4() { AF_INET } else { AF_INET6 };
        let [low_flags, ..] = self.flags.to_le_bytes();
        let [i0, i1, i2, i3] = self.index.to_ne_bytes();
        [family, self.prefix, low_flags, self.scope.0, i0, i1, i2, i3]
    }

    fn encode(&self, message: &mut Message<'_>) {
        for (kind, address) in [(IFA_LOCAL, self.local), (IFA_ADDRESS, self.peer)] {
            match address {
                IpAddr::V4(address) => message.attr_bytes(kind, &address.octets()),
                IpAddr::V6(address) => message.attr_bytes(kind, &address.octets()),
            }
        }
        message.attr_u32_ne(IFA_FLAGS, self.flags);
    }
}

impl Link {
    /// Reads `struct ifinfomsg` and its attributes.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let map = frame.attributes(LINK, LINK_HEADER)?.by_kind::<4>()?;
        let (&[_, _, _, _, i0, i1, i2, i3, f0, f1, f2, f3], _) =
            frame.payload.split_first_chunk().ok_or(short(LINK, LINK_HEADER, frame))?;
        Ok(Self {
            index: u32::from_ne_bytes([i0, i1, i2, i3]),
            name: map.required(IFLA_IFNAME)?.string(),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        })
    }
}

fn ip(attribute: &crate::Attribute<'_>) -> Result<IpAddr, DecodeError> {
    match attribute.payload.len() {
        4 => Ok(attribute.array::<4>()?.into()),
        _ => Ok(attribute.array::<16>()?.into()),
    }
}

/// Returns a `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, mask: u32) -> [u8; LINK_HEADER] {
    let ([i0, i1, i2, i3], [f0, f1, f2, f3]) = (index.to_ne_bytes(), flags.to_ne_bytes());
    let [m0, m1, m2, m3] = mask.to_ne_bytes();
    [AF_UNSPEC, 0, 0, 0, i0, i1, i2, i3, f0, f1, f2, f3, m0, m1, m2, m3]
}

fn short(object: &'static str, needed: usize, frame: &Frame<'_>) -> DecodeError {
    DecodeError::Truncated { object, offset: 0, needed, have: frame.payload.len() }
}
