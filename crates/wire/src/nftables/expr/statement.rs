//! Expressions that change, reject, count or log the packet.

use super::{Body, Map, NFTA_EXPR_DATA, NFTA_EXPR_NAME, number, register_if};
use crate::netlink::Message;
use crate::nfnetlink::Family;
use crate::nftables::Register;
use crate::{Batch, DecodeError};

const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFTA_NAT_REG_ADDR_MAX: u16 = 4;
const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
const NFTA_NAT_REG_PROTO_MAX: u16 = 6;
const NFTA_NAT_FLAGS: u16 = 7;

const NFTA_MASQ_FLAGS: u16 = 1;
const NFTA_MASQ_REG_PROTO_MIN: u16 = 2;
const NFTA_MASQ_REG_PROTO_MAX: u16 = 3;

const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
const NFTA_REDIR_REG_PROTO_MAX: u16 = 2;
const NFTA_REDIR_FLAGS: u16 = 3;

const NFTA_REJECT_TYPE: u16 = 1;
const NFTA_REJECT_ICMP_CODE: u16 = 2;

const NFTA_COUNTER_BYTES: u16 = 1;
const NFTA_COUNTER_PACKETS: u16 = 2;

const NFTA_LOG_GROUP: u16 = 1;
const NFTA_LOG_PREFIX: u16 = 2;
const NFTA_LOG_SNAPLEN: u16 = 3;
const NFTA_LOG_QTHRESHOLD: u16 = 4;
const NFTA_LOG_LEVEL: u16 = 5;
const NFTA_LOG_FLAGS: u16 = 6;

numbers! {
    /// The address to translate (`enum nft_nat_types`).
    NatType(u32) {
        /// The source.
        SNAT = 0,
        /// The destination.
        DNAT = 1,
    }
}

/// `NF_NAT_RANGE_*`, combined with [`NatFlags::with`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NatFlags(pub u32);

impl NatFlags {
    /// There is an address. Set by the kernel.
    pub const MAP_IPS: Self = Self(0x1);
    /// There is a port. Set by the kernel.
    pub const PROTO_SPECIFIED: Self = Self(0x2);
    /// Choose source ports at random (nft's `random`).
    pub const PROTO_RANDOM: Self = Self(0x4);
    /// Keep a client's mapping.
    pub const PERSISTENT: Self = Self(0x8);
    /// Choose source ports fully at random (nft's `fully-random`).
    pub const PROTO_RANDOM_FULLY: Self = Self(0x10);

    /// Returns the union of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

numbers! {
    /// How to reject a packet (`enum nft_reject_types`).
    RejectType(u32) {
        /// An ICMP or `ICMPv6` "unreachable" with a code of that protocol.
        ICMP_UNREACH = 0,
        /// A TCP reset.
        TCP_RST = 1,
        /// An ICMP or `ICMPv6` "unreachable" with a code that fits both.
        ICMPX_UNREACH = 2,
    }
}

/// Translates to a given address (`nat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nat {
    /// The address to translate.
    pub kind: NatType,
    /// Family of the address.
    pub family: Family,
    /// First address.
    pub address_min: Option<Register>,
    /// Last address; if absent, the first.
    pub address_max: Option<Register>,
    /// First port, in network byte order.
    pub port_min: Option<Register>,
    /// Last port; if absent, the first.
    pub port_max: Option<Register>,
    /// Options of the translation.
    pub flags: NatFlags,
}

/// Translates the source to the address of the outgoing interface (`masq`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Masq {
    /// Options of the translation.
    pub flags: NatFlags,
    /// First source port.
    pub port_min: Option<Register>,
    /// Last source port; if absent, the first.
    pub port_max: Option<Register>,
}

/// Translates the destination to this host (`redir`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Redir {
    /// First port.
    pub port_min: Option<Register>,
    /// Last port; if absent, the first.
    pub port_max: Option<Register>,
    /// Options of the translation.
    pub flags: NatFlags,
}

/// Rejects the packet with an answer (`reject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reject {
    /// Kind of the answer.
    pub kind: RejectType,
    /// ICMP code of the answer. "Port unreachable" is 3 for ICMP, 4 for `ICMPv6`, 1 for
    /// [`RejectType::ICMPX_UNREACH`]. Must be 0 with [`RejectType::TCP_RST`], which has no code.
    pub code: u8,
}

/// Counts packets and bytes (`counter`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Counter {
    /// Number of bytes, from the network header on.
    pub bytes: u64,
    /// Number of packets.
    pub packets: u64,
}

/// Logs the packet (`log`), to the kernel's log or to a group of listeners.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Log {
    /// Start of each line, at most 127 bytes.
    pub prefix: Option<String>,
    /// Group of listeners; `None` for the kernel's log.
    pub group: Option<u16>,
    /// Number of bytes of each packet for listeners.
    pub snapshot_length: Option<u32>,
    /// Number of packets to collect before listeners are woken.
    pub queue_threshold: Option<u16>,
    /// Level in the kernel's log. The kernel uses 4 (warning) if there is neither level nor group.
    pub level: Option<u32>,
    /// What else to log (`NF_LOG_*`).
    pub flags: Option<u32>,
}

impl Nat {
    /// Fills in the last address and port, and the flags that follow from their presence, as the kernel does.
    pub(super) fn normalized(self) -> Self {
        let mut flags = self.flags;
        if self.address_min.is_some() {
            flags = flags.with(NatFlags::MAP_IPS);
        }
        if self.port_min.is_some() {
            flags = flags.with(NatFlags::PROTO_SPECIFIED);
        }
        let address_max = self.address_max.or(self.address_min);
        Self { address_max, port_max: self.port_max.or(self.port_min), flags, ..self }
    }
}

impl Masq {
    pub(super) fn normalized(self) -> Self {
        let (port_max, flags) = last_port(self.port_min, self.port_max, self.flags);
        Self { flags, port_max, ..self }
    }
}

impl Redir {
    pub(super) fn normalized(self) -> Self {
        let (port_max, flags) = last_port(self.port_min, self.port_max, self.flags);
        Self { port_max, flags, ..self }
    }
}

impl Log {
    /// Fills in the level that the kernel uses, and removes flags of 0.
    pub(super) fn normalized(self) -> Self {
        const WARNING: u32 = 4;
        let level = if self.group.is_none() { self.level.or(Some(WARNING)) } else { self.level };
        Self { level, flags: self.flags.filter(|&flags| flags != 0), ..self }
    }
}

fn last_port(min: Option<Register>, max: Option<Register>, flags: NatFlags) -> (Option<Register>, NatFlags) {
    let flags = if min.is_some() { flags.with(NatFlags::PROTO_SPECIFIED) } else { flags };
    (max.or(min), flags)
}

impl Body for Nat {
    const NAME: &'static str = "nat";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_u32_be(NFTA_NAT_TYPE, self.kind.0);
        message.attr_u32_be(NFTA_NAT_FAMILY, u32::from(self.family.0));
        message.attr_register_if(NFTA_NAT_REG_ADDR_MIN, self.address_min);
        message.attr_register_if(NFTA_NAT_REG_ADDR_MAX, self.address_max);
        message.attr_register_if(NFTA_NAT_REG_PROTO_MIN, self.port_min);
        message.attr_register_if(NFTA_NAT_REG_PROTO_MAX, self.port_max);
        encode_flags(message, NFTA_NAT_FLAGS, self.flags);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        let family = map.required(NFTA_NAT_FAMILY)?;
        let family_number = family.u32_be()?;
        Ok(Self {
            kind: NatType(number(map, NFTA_NAT_TYPE)?),
            family: Family(u8::try_from(family_number).map_err(|_| family.impossible(family_number))?),
            address_min: register_if(map, NFTA_NAT_REG_ADDR_MIN)?,
            address_max: register_if(map, NFTA_NAT_REG_ADDR_MAX)?,
            port_min: register_if(map, NFTA_NAT_REG_PROTO_MIN)?,
            port_max: register_if(map, NFTA_NAT_REG_PROTO_MAX)?,
            flags: NatFlags(map.u32_be(NFTA_NAT_FLAGS)?.unwrap_or(0)),
        })
    }
}

impl Body for Masq {
    const NAME: &'static str = "masq";

    fn encode(&self, message: &mut Message<'_>) {
        encode_flags(message, NFTA_MASQ_FLAGS, self.flags);
        message.attr_register_if(NFTA_MASQ_REG_PROTO_MIN, self.port_min);
        message.attr_register_if(NFTA_MASQ_REG_PROTO_MAX, self.port_max);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            flags: NatFlags(map.u32_be(NFTA_MASQ_FLAGS)?.unwrap_or(0)),
            port_min: register_if(map, NFTA_MASQ_REG_PROTO_MIN)?,
            port_max: register_if(map, NFTA_MASQ_REG_PROTO_MAX)?,
        })
    }
}

impl Body for Redir {
    const NAME: &'static str = "redir";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register_if(NFTA_REDIR_REG_PROTO_MIN, self.port_min);
        message.attr_register_if(NFTA_REDIR_REG_PROTO_MAX, self.port_max);
        encode_flags(message, NFTA_REDIR_FLAGS, self.flags);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            port_min: register_if(map, NFTA_REDIR_REG_PROTO_MIN)?,
            port_max: register_if(map, NFTA_REDIR_REG_PROTO_MAX)?,
            flags: NatFlags(map.u32_be(NFTA_REDIR_FLAGS)?.unwrap_or(0)),
        })
    }
}

impl Body for Reject {
    const NAME: &'static str = "reject";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_u32_be(NFTA_REJECT_TYPE, self.kind.0);
        if self.kind != RejectType::TCP_RST {
            message.attr_u8(NFTA_REJECT_ICMP_CODE, self.code);
        }
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        let code = map.get(NFTA_REJECT_ICMP_CODE).map(|attribute| attribute.u8()).transpose()?;
        Ok(Self { kind: RejectType(number(map, NFTA_REJECT_TYPE)?), code: code.unwrap_or(0) })
    }
}

impl Counter {
    /// Writes the expression without allocating, for elements.
    pub(in crate::nftables) fn encode_expression(self, batch: &mut Batch) {
        batch.attribute_of(NFTA_EXPR_NAME, Self::NAME.as_bytes(), &[0]);
        let data = batch.open_nest(NFTA_EXPR_DATA);
        batch.attribute(NFTA_COUNTER_BYTES, &self.bytes.to_be_bytes());
        batch.attribute(NFTA_COUNTER_PACKETS, &self.packets.to_be_bytes());
        batch.close_nest(data);
    }
}

impl Body for Counter {
    const NAME: &'static str = "counter";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_u64_be(NFTA_COUNTER_BYTES, self.bytes);
        message.attr_u64_be(NFTA_COUNTER_PACKETS, self.packets);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            bytes: map.u64_be(NFTA_COUNTER_BYTES)?.unwrap_or(0),
            packets: map.u64_be(NFTA_COUNTER_PACKETS)?.unwrap_or(0),
        })
    }
}

impl Body for Log {
    const NAME: &'static str = "log";

    fn encode(&self, message: &mut Message<'_>) {
        if let Some(prefix) = &self.prefix {
            message.attr_str(NFTA_LOG_PREFIX, prefix);
        }
        for (kind, value) in [(NFTA_LOG_GROUP, self.group), (NFTA_LOG_QTHRESHOLD, self.queue_threshold)] {
            if let Some(value) = value {
                message.attr_u16_be(kind, value);
            }
        }
        let numbers = [
            (NFTA_LOG_SNAPLEN, self.snapshot_length),
            (NFTA_LOG_LEVEL, self.level),
            (NFTA_LOG_FLAGS, self.flags),
        ];
        for (kind, value) in numbers {
            if let Some(value) = value {
                message.attr_u32_be(kind, value);
            }
        }
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        let short = |kind| map.get(kind).map(|attribute| attribute.u16_be()).transpose();
        Ok(Self {
            prefix: map.string(NFTA_LOG_PREFIX),
            group: short(NFTA_LOG_GROUP)?,
            snapshot_length: map.u32_be(NFTA_LOG_SNAPLEN)?,
            queue_threshold: short(NFTA_LOG_QTHRESHOLD)?,
            level: map.u32_be(NFTA_LOG_LEVEL)?,
            flags: map.u32_be(NFTA_LOG_FLAGS)?,
        })
    }
}

fn encode_flags(message: &mut Message<'_>, kind: u16, flags: NatFlags) {
    if flags != NatFlags::default() {
        message.attr_u32_be(kind, flags.0);
    }
}
