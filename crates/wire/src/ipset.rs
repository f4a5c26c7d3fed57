//! ipset: sets of addresses and ports that iptables rules refer to.
//!
//! Numbers come from `linux/netfilter/ipset/ip_set.h`.

use std::net::IpAddr;

use crate::netlink::{AttributeMap, Message, NLA_F_NET_BYTEORDER, NLM_F_ACK, NLM_F_DUMP};
use crate::nfnetlink::{self, Family, Header, SUBSYSTEM_IPSET, message_type, subsystem_and_operation};
use crate::{Attribute, Batch, DecodeError, Frame, Request};

/// Maximum length of a set's name in bytes (`IPSET_MAXNAMELEN` includes the NUL byte).
pub const NAME_MAX: usize = 31;
/// Error number: the set is in use by a rule or another set (`IPSET_ERR_BUSY`).
pub const ERR_BUSY: i32 = 4100;
/// Error number: the kernel has no such set type (`IPSET_ERR_FIND_TYPE`).
pub const ERR_FIND_TYPE: i32 = 4098;
/// Error number: the set has its maximum number of members (`IPSET_ERR_HASH_FULL`).
pub const ERR_FULL: i32 = 4352;

/// The protocol version that all kernels accept. Kernels before 4.20 know only this one, later ones also the next.
const PROTOCOL: u8 = 6;
const IPSET_CMD_CREATE: u8 = 2;
const IPSET_CMD_DESTROY: u8 = 3;
const IPSET_CMD_RENAME: u8 = 5;
const IPSET_CMD_SWAP: u8 = 6;
const IPSET_CMD_LIST: u8 = 7;
const IPSET_CMD_ADD: u8 = 9;
const IPSET_CMD_DEL: u8 = 10;
const IPSET_CMD_TYPE: u8 = 13;
const IPSET_ATTR_PROTOCOL: u16 = 1;
const IPSET_ATTR_SETNAME: u16 = 2;
const IPSET_ATTR_TYPENAME: u16 = 3;
/// The new name in a request to rename a set, or the other name in one to swap two. It has the number of the type in other requests.
const IPSET_ATTR_SETNAME2: u16 = 3;
const IPSET_ATTR_REVISION: u16 = 4;
const IPSET_ATTR_FAMILY: u16 = 5;
const IPSET_ATTR_FLAGS: u16 = 6;
const IPSET_ATTR_DATA: u16 = 7;
const IPSET_ATTR_ADT: u16 = 8;
const IPSET_ATTR_IP: u16 = 1;
const IPSET_ATTR_PORT: u16 = 4;
const IPSET_ATTR_PORT_TO: u16 = 5;
const IPSET_ATTR_PROTO: u16 = 7;
const IPSET_ATTR_CADT_FLAGS: u16 = 8;
const IPSET_ATTR_HASHSIZE: u16 = 18;
const IPSET_ATTR_MAXELEM: u16 = 19;
const IPSET_ATTR_IP2: u16 = 20;
const IPSET_ATTR_CIDR2: u16 = 21;
const IPSET_ATTR_REFERENCES: u16 = 25;
/// Bytes that a member has counted. Members and sets use the same numbers for different attributes.
const IPSET_ATTR_BYTES: u16 = 24;
/// Packets that a member has counted.
const IPSET_ATTR_PACKETS: u16 = 25;
const IPSET_ATTR_IPADDR_IPV4: u16 = 1;
const IPSET_ATTR_IPADDR_IPV6: u16 = 2;
/// Flag: list only names, without types and members.
const IPSET_FLAG_LIST_SETNAME: u32 = 1 << 1;
/// Flag: list no members.
const IPSET_FLAG_LIST_HEADER: u32 = 1 << 2;
/// Flag of a set: its members count packets (`IPSET_FLAG_WITH_COUNTERS`).
const WITH_COUNTERS: u32 = 1 << 3;
/// The size that the `ipset` program uses. The kernel makes it larger when members come.
const HASH_SIZE: u32 = 1024;
/// The largest number of members that the `ipset` program gives a set, if it is not told another.
pub const MEMBERS_MAX: u32 = 65_536;
const SET: &str = "ipset";
const MEMBER: &str = "ipset member";

/// The type of a set: the form of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// Addresses.
    HashIp,
    /// Addresses with protocol and port.
    HashIpPort,
    /// Addresses with protocol and port, and a second address.
    HashIpPortIp,
    /// Addresses with protocol and port, and a network.
    HashIpPortNet,
    /// Ports.
    BitmapPort,
}

/// A member of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Member {
    /// A member of [`Type::HashIp`].
    Ip(IpAddr),
    /// A member of [`Type::HashIpPort`]: address, protocol number, port.
    IpPort(IpAddr, u8, u16),
    /// A member of [`Type::HashIpPortIp`]: address, protocol number, port, second address.
    IpPortIp(IpAddr, u8, u16, IpAddr),
    /// A member of [`Type::HashIpPortNet`]: address, protocol number, port, network address, prefix length.
    IpPortNet(IpAddr, u8, u16, IpAddr, u8),
    /// A member of [`Type::BitmapPort`].
    Port(u16),
}

/// A member of a set that is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The member.
    pub member: Member,
    /// Number of packets for which a rule found the member in the set. `None` if the set does not count.
    pub packets: Option<u64>,
}

/// What a new set is like, besides its name and type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetOptions {
    /// Each member counts the packets for which a rule finds it in the set.
    pub counts: bool,
    /// Number of members that the set can have. A [`Type::BitmapPort`] has room for every port.
    pub members_max: u32,
}

impl Default for SetOptions {
    fn default() -> Self {
        Self { counts: false, members_max: MEMBERS_MAX }
    }
}

/// A message of ipset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IpsetEvent {
    /// A set, or a part of its members.
    Set {
        /// The set's name.
        name: String,
        /// The set's type; only in the first of several messages about a set.
        kind: Option<String>,
        /// Number of rules and sets that refer to the set; only in the first of several messages about a set.
        references: Option<u32>,
        /// True if the set counts packets; only in the first of several messages about a set.
        counts: bool,
        /// Number of members that the set can have; only in the first of several messages about a set, and not of
        /// [`Type::BitmapPort`].
        members_max: Option<u32>,
        /// Some of the set's members. Members of unknown types are left out.
        members: Vec<Listed>,
    },
    /// The kernel supports a set type.
    Type {
        /// The latest revision of the type that the kernel supports.
        revision: u8,
    },
    /// Another message.
    Other {
        /// The message type.
        kind: u16,
    },
}

/// Requests the names of all sets. EINVAL means that the kernel does not support ipset.
pub fn names() -> Request {
    request(IPSET_CMD_LIST, NLM_F_DUMP, |message| {
        message.attr_u32_be(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_SETNAME);
    })
}

/// Requests a set with its members. ENOENT means that there is none of this name.
pub fn list(name: &str) -> Request {
    request(IPSET_CMD_LIST, NLM_F_DUMP, |message| message.attr_str(IPSET_ATTR_SETNAME, name))
}

/// Requests a set without its members. ENOENT means that there is none of this name.
pub fn header(name: &str) -> Request {
    request(IPSET_CMD_LIST, NLM_F_DUMP, |message| {
        message.attr_str(IPSET_ATTR_SETNAME, name);
        message.attr_u32_be(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_HEADER);
    })
}

/// Asks if the kernel supports a set type, which makes it load the module (not a list: send it with the socket's
/// `query`). EINVAL means that the kernel does not support ipset at all.
pub fn find_type(kind: Type, family: Family) -> Request {
    request(IPSET_CMD_TYPE, 0, |message| {
        message.attr_str(IPSET_ATTR_TYPENAME, kind.name());
        message.attr_u8(IPSET_ATTR_FAMILY, kind.family(family).0);
    })
}

/// Creates a set, unless one of that name and type with these options exists.
pub fn create(name: &str, kind: Type, family: Family, revision: u8, options: SetOptions) -> Request {
    request(IPSET_CMD_CREATE, NLM_F_ACK, |message| {
        message.attr_str(IPSET_ATTR_SETNAME, name);
        message.attr_str(IPSET_ATTR_TYPENAME, kind.name());
        message.attr_u8(IPSET_ATTR_REVISION, revision);
        message.attr_u8(IPSET_ATTR_FAMILY, kind.family(family).0);
        message.nest(IPSET_ATTR_DATA, |message| {
            if kind == Type::BitmapPort {
                message.attr_u16_be(IPSET_ATTR_PORT | NLA_F_NET_BYTEORDER, 0);
                message.attr_u16_be(IPSET_ATTR_PORT_TO | NLA_F_NET_BYTEORDER, u16::MAX);
            } else {
                message.attr_u32_be(IPSET_ATTR_HASHSIZE | NLA_F_NET_BYTEORDER, HASH_SIZE);
                message.attr_u32_be(IPSET_ATTR_MAXELEM | NLA_F_NET_BYTEORDER, options.members_max);
            }
            if options.counts {
                message.attr_u32_be(IPSET_ATTR_CADT_FLAGS | NLA_F_NET_BYTEORDER, WITH_COUNTERS);
            }
        });
    })
}

/// Removes a set with its members. [`ERR_BUSY`] means that it is in use.
pub fn destroy(name: &str) -> Request {
    request(IPSET_CMD_DESTROY, NLM_F_ACK, |message| message.attr_str(IPSET_ATTR_SETNAME, name))
}

/// Renames a set to which nothing refers. It is an error if a set has the new name.
pub fn rename(name: &str, new_name: &str) -> Request {
    request(IPSET_CMD_RENAME, NLM_F_ACK, |message| {
        message.attr_str(IPSET_ATTR_SETNAME, name);
        message.attr_str(IPSET_ATTR_SETNAME2, new_name);
    })
}

/// Swaps the names of two sets of one type. A rule that refers to one of them refers to the other one from then on.
pub fn swap(name: &str, other: &str) -> Request {
    request(IPSET_CMD_SWAP, NLM_F_ACK, |message| {
        message.attr_str(IPSET_ATTR_SETNAME, name);
        message.attr_str(IPSET_ATTR_SETNAME2, other);
    })
}

/// Adds a member to a set. An existing member is not an error.
pub fn add(batch: &mut Batch, set: &str, member: &Member) {
    change(batch, IPSET_CMD_ADD, set, |message| member.encode(message));
}

/// Adds a member to a set that counts. An existing member is not an error, and counts from 0 again. Without the numbers, the
/// kernel could leave it those of a member that it had in the same place before (`ip_set_init_counter`).
pub fn add_counting(batch: &mut Batch, set: &str, member: &Member) {
    change(batch, IPSET_CMD_ADD, set, |message| {
        member.encode(message);
        message.attr_u64_be(IPSET_ATTR_BYTES | NLA_F_NET_BYTEORDER, 0);
        message.attr_u64_be(IPSET_ATTR_PACKETS | NLA_F_NET_BYTEORDER, 0);
    });
}

/// Removes a member from a set. A missing member is not an error.
pub fn remove(batch: &mut Batch, set: &str, member: &Member) {
    change(batch, IPSET_CMD_DEL, set, |message| member.encode(message));
}

fn change(batch: &mut Batch, operation: u8, set: &str, content: impl FnOnce(&mut Message<'_>)) {
    // Without `NLM_F_EXCL` an existing member, or a missing one, is not an error.
    let kind = message_type(SUBSYSTEM_IPSET, operation);
    let mut message = batch.message(kind, 0, &Header::of(Family::UNSPECIFIED));
    message.attr_u8(IPSET_ATTR_PROTOCOL, PROTOCOL);
    message.attr_str(IPSET_ATTR_SETNAME, set);
    message.nest(IPSET_ATTR_DATA, content);
}

fn request(operation: u8, flags: u16, content: impl FnOnce(&mut Message<'_>)) -> Request {
    let kind = message_type(SUBSYSTEM_IPSET, operation);
    Request::new(kind, flags, &Header::of(Family::UNSPECIFIED), |message| {
        message.attr_u8(IPSET_ATTR_PROTOCOL, PROTOCOL);
        content(message);
    })
}

impl Member {
    /// Returns the first address, if the member has one.
    pub const fn address(&self) -> Option<IpAddr> {
        match *self {
            Self::Ip(address)
            | Self::IpPort(address, ..)
            | Self::IpPortIp(address, ..)
            | Self::IpPortNet(address, ..) => Some(address),
            Self::Port(_) => None,
        }
    }
}

impl Type {
    /// Returns the name that users know.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HashIp => "hash:ip",
            Self::HashIpPort => "hash:ip,port",
            Self::HashIpPortIp => "hash:ip,port,ip",
            Self::HashIpPortNet => "hash:ip,port,net",
            Self::BitmapPort => "bitmap:port",
        }
    }

    /// Returns the revision of Linux 3.19 and ipset 6.24. Programs do not list sets of revisions that they do not
    /// know.
    pub const fn known_revision(self) -> u8 {
        match self {
            Self::HashIp => 4,
            Self::HashIpPort | Self::HashIpPortIp => 5,
            Self::HashIpPortNet => 7,
            Self::BitmapPort => 3,
        }
    }

    /// Returns the family for the kernel. Port sets have none.
    const fn family(self, family: Family) -> Family {
        match self {
            Self::BitmapPort => Family::UNSPECIFIED,
            _ => family,
        }
    }
}

impl IpsetEvent {
    /// Reads a message.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let kind = frame.header.kind;
        match subsystem_and_operation(kind) {
            (SUBSYSTEM_IPSET, IPSET_CMD_LIST) => {
                let map = frame.attributes(SET, nfnetlink::HEADER_LENGTH)?.by_kind::<9>()?;
                let mut members = Vec::new();
                for member in map.get(IPSET_ATTR_ADT).iter().flat_map(|list| list.nested(MEMBER)) {
                    let map = member?.nested(MEMBER).by_kind()?;
                    let packets = map.u64_be(IPSET_ATTR_PACKETS)?;
                    members.extend(Member::decode(&map)?.map(|member| Listed { member, packets }));
                }
                let sizes =
                    map.get(IPSET_ATTR_DATA).map(|data| data.nested(SET).by_kind::<26>()).transpose()?;
                let number =
                    |kind| sizes.as_ref().map(|sizes| sizes.u32_be(kind)).transpose().map(Option::flatten);
                let (references, flags) = (number(IPSET_ATTR_REFERENCES)?, number(IPSET_ATTR_CADT_FLAGS)?);
                let name = map.required(IPSET_ATTR_SETNAME)?.string();
                let kind = map.string(IPSET_ATTR_TYPENAME);
                let counts = flags.is_some_and(|flags| flags & WITH_COUNTERS != 0);
                let members_max = number(IPSET_ATTR_MAXELEM)?;
                Ok(Self::Set { name, kind, references, counts, members_max, members })
            }
            (SUBSYSTEM_IPSET, IPSET_CMD_TYPE) => {
                let map = frame.attributes(SET, nfnetlink::HEADER_LENGTH)?.by_kind::<5>()?;
                Ok(Self::Type { revision: map.required(IPSET_ATTR_REVISION)?.u8()? })
            }
            _ => Ok(Self::Other { kind }),
        }
    }
}

impl Member {
    fn encode(&self, message: &mut Message<'_>) {
        match *self {
            Self::Ip(address) => encode_address(message, IPSET_ATTR_IP, address),
            Self::IpPort(address, protocol, port) => encode_port(message, address, protocol, port),
            Self::IpPortIp(address, protocol, port, second) => {
                encode_port(message, address, protocol, port);
                encode_address(message, IPSET_ATTR_IP2, second);
            }
            Self::IpPortNet(address, protocol, port, second, prefix) => {
                encode_port(message, address, protocol, port);
                encode_address(message, IPSET_ATTR_IP2, second);
                message.attr_u8(IPSET_ATTR_CIDR2, prefix);
            }
            Self::Port(port) => message.attr_u16_be(IPSET_ATTR_PORT | NLA_F_NET_BYTEORDER, port),
        }
    }

    fn decode(map: &AttributeMap<'_, 26>) -> Result<Option<Self>, DecodeError> {
        let address = |kind| map.get(kind).map(|attribute| decode_address(&attribute)).transpose();
        let byte = |kind| map.get(kind).map(|attribute| attribute.u8()).transpose();
        let port = map.get(IPSET_ATTR_PORT).map(|attribute| attribute.u16_be()).transpose()?;
        let (first, second) = (address(IPSET_ATTR_IP)?, address(IPSET_ATTR_IP2)?);
        let (protocol, prefix) = (byte(IPSET_ATTR_PROTO)?, byte(IPSET_ATTR_CIDR2)?);
        Ok(match (first, protocol, port, second, prefix) {
            (Some(address), None, None, None, None) => Some(Self::Ip(address)),
            (Some(address), Some(protocol), Some(port), None, None) => {
                Some(Self::IpPort(address, protocol, port))
            }
            (Some(address), Some(protocol), Some(port), Some(second), None) => {
                Some(Self::IpPortIp(address, protocol, port, second))
            }
            (Some(address), Some(protocol), Some(port), Some(second), Some(prefix)) => {
                Some(Self::IpPortNet(address, protocol, port, second, prefix))
            }
            (None, None, Some(port), None, None) => Some(Self::Port(port)),
            _ => None,
        })
    }
}

fn encode_port(message: &mut Message<'_>, address: IpAddr, protocol: u8, port: u16) {
    encode_address(message, IPSET_ATTR_IP, address);
    message.attr_u16_be(IPSET_ATTR_PORT | NLA_F_NET_BYTEORDER, port);
    message.attr_u8(IPSET_ATTR_PROTO, protocol);
}

fn encode_address(message: &mut Message<'_>, kind: u16, address: IpAddr) {
    message.nest(kind, |message| match address {
        IpAddr::V4(address) => {
            message.attr_bytes(IPSET_ATTR_IPADDR_IPV4 | NLA_F_NET_BYTEORDER, &address.octets());
        }
        IpAddr::V6(address) => {
            message.attr_bytes(IPSET_ATTR_IPADDR_IPV6 | NLA_F_NET_BYTEORDER, &address.octets());
        }
    });
}

fn decode_address(attribute: &Attribute<'_>) -> Result<IpAddr, DecodeError> {
    let map = attribute.nested(MEMBER).by_kind::<3>()?;
    match map.get(IPSET_ATTR_IPADDR_IPV6) {
        Some(address) => Ok(address.array::<16>()?.into()),
        None => Ok(map.required(IPSET_ATTR_IPADDR_IPV4)?.array::<4>()?.into()),
    }
}
