//! Expressions that load a register, and the forms of `meta` and `ct` that set a property.

use super::{Body, Map, number, register, register_if};
use crate::DecodeError;
use crate::netlink::{Attribute, Message};
use crate::nftables::{Data, DataRef, Register};

const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFTA_PAYLOAD_SREG: u16 = 5;

const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_META_SREG: u16 = 3;

const NFTA_CT_DREG: u16 = 1;
const NFTA_CT_KEY: u16 = 2;
const NFTA_CT_DIRECTION: u16 = 3;
const NFTA_CT_SREG: u16 = 4;

const NFTA_FIB_DREG: u16 = 1;
const NFTA_FIB_RESULT: u16 = 2;
const NFTA_FIB_FLAGS: u16 = 3;

const NFTA_NG_DREG: u16 = 1;
const NFTA_NG_MODULUS: u16 = 2;
const NFTA_NG_TYPE: u16 = 3;
const NFTA_NG_OFFSET: u16 = 4;

const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;

numbers! {
    /// The start of an offset into the packet (`enum nft_payload_bases`).
    PayloadBase(u32) {
        /// The link-layer header.
        LINK = 0,
        /// The IP header.
        NETWORK = 1,
        /// The TCP, UDP or SCTP header.
        TRANSPORT = 2,
        /// The data after the transport header.
        INNER = 3,
    }
}

numbers! {
    /// A property of the packet (`enum nft_meta_keys`).
    MetaKey(u32) {
        /// Protocol of the link layer's payload, two bytes.
        PROTOCOL = 1,
        /// The queueing priority, in the machine's byte order.
        PRIORITY = 2,
        /// The packet's mark, in the machine's byte order.
        MARK = 3,
        /// Index of the incoming interface.
        IIF = 4,
        /// Index of the outgoing interface.
        OIF = 5,
        /// Name of the incoming interface, 16 bytes.
        IIFNAME = 6,
        /// Name of the outgoing interface, 16 bytes.
        OIFNAME = 7,
        /// User id of the sending socket.
        SKUID = 10,
        /// Family of the hook, one byte.
        NFPROTO = 15,
        /// Transport protocol, one byte.
        L4PROTO = 16,
        /// Kind of the destination: this host, broadcast and so on.
        PKTTYPE = 19,
        /// A random number.
        PRANDOM = 24,
    }
}

numbers! {
    /// A property of the connection (`enum nft_ct_keys`).
    CtKey(u32) {
        /// Bits of the state: 2 established, 4 related, 8 new, 1 invalid, 64 untracked.
        STATE = 0,
        /// Direction of the packet, one byte: 0 original, 1 reply.
        DIRECTION = 1,
        /// `IPS_*` bits, such as 0x10 for a translated source, 0x20 for a translated destination.
        STATUS = 2,
        /// The connection mark, in the machine's byte order.
        MARK = 3,
        /// Source address of a direction.
        SRC = 8,
        /// Destination address of a direction.
        DST = 9,
        /// Transport protocol.
        PROTOCOL = 10,
        /// Source port of a direction.
        PROTO_SRC = 11,
        /// Destination port of a direction.
        PROTO_DST = 12,
        /// The conntrack zone.
        ZONE = 17,
        /// IPv4 source address of a direction.
        SRC_IP = 19,
        /// IPv4 destination address of a direction.
        DST_IP = 20,
        /// IPv6 source address of a direction.
        SRC_IP6 = 21,
        /// IPv6 destination address of a direction.
        DST_IP6 = 22,
    }
}

numbers! {
    /// The result of a route lookup (`enum nft_fib_result`).
    FibResult(u32) {
        /// Index of the interface.
        OIF = 1,
        /// Name of the interface.
        OIFNAME = 2,
        /// Kind of address (`RTN_*`): 1 unicast, 2 local, 3 broadcast.
        ADDRTYPE = 3,
    }
}

/// Options of a route lookup (`enum nft_fib_flags`), combined with `|` on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FibFlags(pub u32);

numbers! {
    /// How numbers are generated (`enum nft_ng_types`).
    NumgenType(u32) {
        /// Incremental, across all processors.
        INCREMENTAL = 0,
        /// Random.
        RANDOM = 1,
    }
}

/// Loads bytes of the packet (`payload`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Payload {
    /// The register to load into.
    pub destination: Register,
    /// The start of the offset.
    pub base: PayloadBase,
    /// Offset in bytes.
    pub offset: u32,
    /// Length in bytes. The last word is padded with zeros.
    pub length: u32,
}

/// Loads or sets a property of the packet (`meta`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Meta {
    /// Loads the property.
    Load {
        /// The property.
        key: MetaKey,
        /// The register to load into.
        destination: Register,
    },
    /// Sets the property.
    Set {
        /// The property.
        key: MetaKey,
        /// The register with the value.
        source: Register,
    },
}

/// Loads or sets a property of the packet's connection (`ct`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ct {
    /// Loads the property.
    Load {
        /// The property.
        key: CtKey,
        /// The register to load into.
        destination: Register,
        /// The direction, for keys that have two: 0 original, 1 reply.
        direction: Option<u8>,
    },
    /// Sets the property.
    Set {
        /// The property.
        key: CtKey,
        /// The register with the value.
        source: Register,
        /// The direction, for keys that have two.
        direction: Option<u8>,
    },
}

/// Looks up a route (`fib`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fib {
    /// The register for the result.
    pub destination: Register,
    /// The requested result.
    pub result: FibResult,
    /// The inputs of the lookup.
    pub flags: FibFlags,
}

/// Generates a number (`numgen`) from `offset` to `offset + modulus - 1`, in the machine's byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Numgen {
    /// The register for the number.
    pub destination: Register,
    /// Number of different values.
    pub modulus: u32,
    /// How the numbers are generated.
    pub kind: NumgenType,
    /// The first number.
    pub offset: u32,
}

/// Loads a constant (`immediate`), or sets the verdict if the destination is [`Register::VERDICT`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Immediate {
    /// The register to load into.
    pub destination: Register,
    /// The constant or verdict.
    pub data: Data,
}

impl FibFlags {
    /// Look up the source address.
    pub const SADDR: Self = Self(1);
    /// Look up the destination address.
    pub const DADDR: Self = Self(2);
    /// Use the packet's mark.
    pub const MARK: Self = Self(4);
    /// Use only routes through the incoming interface.
    pub const IIF: Self = Self(8);
    /// Use only routes through the outgoing interface.
    pub const OIF: Self = Self(16);
    /// Return only whether there is a route.
    pub const PRESENT: Self = Self(32);
}

impl Payload {
    /// Returns true for the expression that writes into the packet, which is not modelled.
    pub(super) fn is_write(data: Option<Attribute<'_>>) -> Result<bool, DecodeError> {
        Ok(super::attributes(data, Self::NAME)?.get(NFTA_PAYLOAD_SREG).is_some())
    }
}

impl Body for Payload {
    const NAME: &'static str = "payload";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register(NFTA_PAYLOAD_DREG, self.destination);
        message.attr_u32_be(NFTA_PAYLOAD_BASE, self.base.0);
        message.attr_u32_be(NFTA_PAYLOAD_OFFSET, self.offset);
        message.attr_u32_be(NFTA_PAYLOAD_LEN, self.length);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            destination: register(map, NFTA_PAYLOAD_DREG)?,
            base: PayloadBase(number(map, NFTA_PAYLOAD_BASE)?),
            offset: number(map, NFTA_PAYLOAD_OFFSET)?,
            length: number(map, NFTA_PAYLOAD_LEN)?,
        })
    }
}

impl Body for Meta {
    const NAME: &'static str = "meta";

    fn encode(&self, message: &mut Message<'_>) {
        match *self {
            Self::Load { key, destination } => {
                message.attr_register(NFTA_META_DREG, destination);
                message.attr_u32_be(NFTA_META_KEY, key.0);
            }
            Self::Set { key, source } => {
                message.attr_register(NFTA_META_SREG, source);
                message.attr_u32_be(NFTA_META_KEY, key.0);
            }
        }
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        let key = MetaKey(number(map, NFTA_META_KEY)?);
        match register_if(map, NFTA_META_SREG)? {
            Some(source) => Ok(Self::Set { key, source }),
            None => Ok(Self::Load { key, destination: register(map, NFTA_META_DREG)? }),
        }
    }
}

impl Body for Ct {
    const NAME: &'static str = "ct";

    fn encode(&self, message: &mut Message<'_>) {
        let (key, direction) = match *self {
            Self::Load { key, destination, direction } => {
                message.attr_register(NFTA_CT_DREG, destination);
                (key, direction)
            }
            Self::Set { key, source, direction } => {
                message.attr_register(NFTA_CT_SREG, source);
                (key, direction)
            }
        };
        message.attr_u32_be(NFTA_CT_KEY, key.0);
        if let Some(direction) = direction {
            message.attr_u8(NFTA_CT_DIRECTION, direction);
        }
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        let key = CtKey(number(map, NFTA_CT_KEY)?);
        let direction = map.get(NFTA_CT_DIRECTION).map(|attribute| attribute.u8()).transpose()?;
        match register_if(map, NFTA_CT_SREG)? {
            Some(source) => Ok(Self::Set { key, source, direction }),
            None => Ok(Self::Load { key, destination: register(map, NFTA_CT_DREG)?, direction }),
        }
    }
}

impl Body for Fib {
    const NAME: &'static str = "fib";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register(NFTA_FIB_DREG, self.destination);
        message.attr_u32_be(NFTA_FIB_RESULT, self.result.0);
        message.attr_u32_be(NFTA_FIB_FLAGS, self.flags.0);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            destination: register(map, NFTA_FIB_DREG)?,
            result: FibResult(number(map, NFTA_FIB_RESULT)?),
            flags: FibFlags(number(map, NFTA_FIB_FLAGS)?),
        })
    }
}

impl Body for Numgen {
    const NAME: &'static str = "numgen";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register(NFTA_NG_DREG, self.destination);
        message.attr_u32_be(NFTA_NG_MODULUS, self.modulus);
        message.attr_u32_be(NFTA_NG_TYPE, self.kind.0);
        message.attr_u32_be(NFTA_NG_OFFSET, self.offset);
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            destination: register(map, NFTA_NG_DREG)?,
            modulus: number(map, NFTA_NG_MODULUS)?,
            kind: NumgenType(number(map, NFTA_NG_TYPE)?),
            offset: map.u32_be(NFTA_NG_OFFSET)?.unwrap_or(0),
        })
    }
}

impl Body for Immediate {
    const NAME: &'static str = "immediate";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register(NFTA_IMMEDIATE_DREG, self.destination);
        message.attr_data(NFTA_IMMEDIATE_DATA, self.data.as_ref());
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            destination: register(map, NFTA_IMMEDIATE_DREG)?,
            data: DataRef::decode(&map.required(NFTA_IMMEDIATE_DATA)?)?.to_owned(),
        })
    }
}
