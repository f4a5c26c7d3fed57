//! Expressions that compare and compute, and those that use sets.

use super::{Body, Map, number, register, register_if};
use crate::DecodeError;
use crate::netlink::{Attribute, Message};
use crate::nftables::{DataRef, Register};

const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;

const NFTA_RANGE_SREG: u16 = 1;
const NFTA_RANGE_OP: u16 = 2;
const NFTA_RANGE_FROM_DATA: u16 = 3;
const NFTA_RANGE_TO_DATA: u16 = 4;

const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_LEN: u16 = 3;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;
const NFTA_BITWISE_OP: u16 = 6;
const NFTA_BITWISE_DATA: u16 = 7;
const NFT_BITWISE_MASK_XOR: u32 = 0;
const NFT_BITWISE_LSHIFT: u32 = 1;
const NFT_BITWISE_RSHIFT: u32 = 2;

const NFTA_LOOKUP_SET: u16 = 1;
const NFTA_LOOKUP_SREG: u16 = 2;
const NFTA_LOOKUP_DREG: u16 = 3;
const NFTA_LOOKUP_SET_ID: u16 = 4;
const NFTA_LOOKUP_FLAGS: u16 = 5;
const NFT_LOOKUP_F_INV: u32 = 1;

const NFTA_DYNSET_SET_NAME: u16 = 1;
const NFTA_DYNSET_SET_ID: u16 = 2;
const NFTA_DYNSET_OP: u16 = 3;
const NFTA_DYNSET_SREG_KEY: u16 = 4;
const NFTA_DYNSET_SREG_DATA: u16 = 5;
const NFTA_DYNSET_TIMEOUT: u16 = 6;

numbers! {
    /// How to compare (`enum nft_cmp_ops`). The order is that of numbers in network byte order.
    CmpOperation(u32) {
        /// Equal.
        EQ = 0,
        /// Not equal.
        NEQ = 1,
        /// Less.
        LT = 2,
        /// Less or equal.
        LTE = 3,
        /// Greater.
        GT = 4,
        /// Greater or equal.
        GTE = 5,
    }
}

numbers! {
    /// The operation on a set (`enum nft_dynset_ops`).
    DynsetOperation(u32) {
        /// Add an element. An existing one is not changed.
        ADD = 0,
        /// Add an element, or restart the timeout of an existing one.
        UPDATE = 1,
        /// Remove an element.
        DELETE = 2,
    }
}

/// Ends the rule unless a comparison is true (`cmp`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cmp {
    /// The register to compare.
    pub source: Register,
    /// The operation.
    pub operation: CmpOperation,
    /// The value to compare with. Its length is the compared length.
    pub data: Vec<u8>,
}

/// Ends the rule unless a value is inside a range, which includes both ends (`range`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Range {
    /// The register to compare.
    pub source: Register,
    /// True if the value has to be outside instead.
    pub inverted: bool,
    /// First value.
    pub from: Vec<u8>,
    /// Last value.
    pub to: Vec<u8>,
}

/// Computes with bits (`bitwise`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bitwise {
    /// The register with the value.
    pub source: Register,
    /// The register for the result.
    pub destination: Register,
    /// Length in bytes.
    pub length: u32,
    /// The operation.
    pub operation: BitwiseOperation,
}

/// An operation on bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BitwiseOperation {
    /// `(value & mask) ^ xor`. Mask and xor are as long as the value.
    MaskXor {
        /// Bits to keep.
        mask: Vec<u8>,
        /// Bits to invert.
        xor: Vec<u8>,
    },
    /// `value << bits`, of a value in the machine's byte order.
    ShiftLeft(u32),
    /// `value >> bits`, of a value in the machine's byte order.
    ShiftRight(u32),
}

/// Looks up a key in a set or map (`lookup`). Ends the rule if it is not found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// Name of the set.
    pub set: String,
    /// The set's id in the transaction that creates it. Needed only for anonymous sets.
    pub set_id: Option<u32>,
    /// The register with the key.
    pub source: Register,
    /// The register for the map's data; [`Register::VERDICT`] for a verdict map.
    pub destination: Option<Register>,
    /// True to end the rule if the key is found instead.
    pub inverted: bool,
}

/// Changes a set from the packet path (`dynset`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Dynset {
    /// Name of the set; it must have [`SetFlags::EVAL`](crate::nftables::SetFlags::EVAL).
    pub set: String,
    /// The set's id in the transaction that creates it. Needed only for anonymous sets.
    pub set_id: Option<u32>,
    /// The operation.
    pub operation: DynsetOperation,
    /// The register with the key.
    pub key: Register,
    /// The register with the data, for a map.
    pub data: Option<Register>,
    /// Lifetime of the element in milliseconds; 0 for the set's default.
    pub timeout: u64,
}

impl Bitwise {
    /// Creates `(value & mask) ^ xor` on one register.
    pub fn mask_xor(register: Register, mask: impl Into<Vec<u8>>, xor: impl Into<Vec<u8>>) -> Self {
        let (mask, xor) = (mask.into(), xor.into());
        let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
        let operation = BitwiseOperation::MaskXor { mask, xor };
        Self { source: register, destination: register, length, operation }
    }

    /// Returns true for the operations modelled here, false for those with a second register (Linux 6.13).
    pub(super) fn is_known(data: Option<Attribute<'_>>) -> Result<bool, DecodeError> {
        let operation = super::attributes(data, Self::NAME)?.u32_be(NFTA_BITWISE_OP)?;
        Ok(operation.unwrap_or(NFT_BITWISE_MASK_XOR) <= NFT_BITWISE_RSHIFT)
    }
}

impl Lookup {
    pub(super) fn normalized(self) -> Self {
        Self { set_id: None, ..self }
    }
}

impl Dynset {
    pub(super) fn normalized(self) -> Self {
        Self { set_id: None, ..self }
    }
}

impl Body for Cmp {
    const NAME: &'static str = "cmp";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register(NFTA_CMP_SREG, self.source);
        message.attr_u32_be(NFTA_CMP_OP, self.operation.0);
        message.attr_data(NFTA_CMP_DATA, DataRef::Value(&self.data));
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            source: register(map, NFTA_CMP_SREG)?,
            operation: CmpOperation(number(map, NFTA_CMP_OP)?),
            data: value(map, NFTA_CMP_DATA)?,
        })
    }
}

impl Body for Range {
    const NAME: &'static str = "range";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register(NFTA_RANGE_SREG, self.source);
        message.attr_u32_be(NFTA_RANGE_OP, u32::from(self.inverted));
        message.attr_data(NFTA_RANGE_FROM_DATA, DataRef::Value(&self.from));
        message.attr_data(NFTA_RANGE_TO_DATA, DataRef::Value(&self.to));
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            source: register(map, NFTA_RANGE_SREG)?,
            inverted: number(map, NFTA_RANGE_OP)? != 0,
            from: value(map, NFTA_RANGE_FROM_DATA)?,
            to: value(map, NFTA_RANGE_TO_DATA)?,
        })
    }
}

impl Body for Bitwise {
    const NAME: &'static str = "bitwise";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_register(NFTA_BITWISE_SREG, self.source);
        message.attr_register(NFTA_BITWISE_DREG, self.destination);
        message.attr_u32_be(NFTA_BITWISE_LEN, self.length);
        match &self.operation {
            BitwiseOperation::MaskXor { mask, xor } => {
                message.attr_data(NFTA_BITWISE_MASK, DataRef::Value(mask));
                message.attr_data(NFTA_BITWISE_XOR, DataRef::Value(xor));
            }
            BitwiseOperation::ShiftLeft(bits) => encode_shift(message, NFT_BITWISE_LSHIFT, *bits),
            BitwiseOperation::ShiftRight(bits) => encode_shift(message, NFT_BITWISE_RSHIFT, *bits),
        }
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        let operation = match map.u32_be(NFTA_BITWISE_OP)?.unwrap_or(NFT_BITWISE_MASK_XOR) {
            NFT_BITWISE_LSHIFT => BitwiseOperation::ShiftLeft(decode_shift(map)?),
            NFT_BITWISE_RSHIFT => BitwiseOperation::ShiftRight(decode_shift(map)?),
            _ => BitwiseOperation::MaskXor {
                mask: value(map, NFTA_BITWISE_MASK)?,
                xor: value(map, NFTA_BITWISE_XOR)?,
            },
        };
        Ok(Self {
            source: register(map, NFTA_BITWISE_SREG)?,
            destination: register(map, NFTA_BITWISE_DREG)?,
            length: number(map, NFTA_BITWISE_LEN)?,
            operation,
        })
    }
}

impl Body for Lookup {
    const NAME: &'static str = "lookup";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_str(NFTA_LOOKUP_SET, &self.set);
        message.attr_register(NFTA_LOOKUP_SREG, self.source);
        message.attr_register_if(NFTA_LOOKUP_DREG, self.destination);
        if let Some(id) = self.set_id {
            message.attr_u32_be(NFTA_LOOKUP_SET_ID, id);
        }
        if self.inverted {
            message.attr_u32_be(NFTA_LOOKUP_FLAGS, NFT_LOOKUP_F_INV);
        }
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            set: map.required(NFTA_LOOKUP_SET)?.string(),
            set_id: map.u32_be(NFTA_LOOKUP_SET_ID)?,
            source: register(map, NFTA_LOOKUP_SREG)?,
            destination: register_if(map, NFTA_LOOKUP_DREG)?,
            inverted: map.u32_be(NFTA_LOOKUP_FLAGS)?.unwrap_or(0) & NFT_LOOKUP_F_INV != 0,
        })
    }
}

impl Body for Dynset {
    const NAME: &'static str = "dynset";

    fn encode(&self, message: &mut Message<'_>) {
        message.attr_str(NFTA_DYNSET_SET_NAME, &self.set);
        if let Some(id) = self.set_id {
            message.attr_u32_be(NFTA_DYNSET_SET_ID, id);
        }
        message.attr_u32_be(NFTA_DYNSET_OP, self.operation.0);
        message.attr_register(NFTA_DYNSET_SREG_KEY, self.key);
        message.attr_register_if(NFTA_DYNSET_SREG_DATA, self.data);
        // A set without timeouts refuses even a timeout of 0.
        if self.timeout != 0 {
            message.attr_u64_be(NFTA_DYNSET_TIMEOUT, self.timeout);
        }
    }

    fn decode(map: &Map<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            set: map.required(NFTA_DYNSET_SET_NAME)?.string(),
            set_id: map.u32_be(NFTA_DYNSET_SET_ID)?,
            operation: DynsetOperation(number(map, NFTA_DYNSET_OP)?),
            key: register(map, NFTA_DYNSET_SREG_KEY)?,
            data: register_if(map, NFTA_DYNSET_SREG_DATA)?,
            timeout: map.u64_be(NFTA_DYNSET_TIMEOUT)?.unwrap_or(0),
        })
    }
}

fn value(map: &Map<'_>, kind: u16) -> Result<Vec<u8>, DecodeError> {
    DataRef::decode_value(&map.required(kind)?).map(<[u8]>::to_vec)
}

/// Writes a shift. The number of bits is a 32-bit value in the machine's byte order.
fn encode_shift(message: &mut Message<'_>, operation: u32, bits: u32) {
    message.attr_u32_be(NFTA_BITWISE_OP, operation);
    message.attr_data(NFTA_BITWISE_DATA, DataRef::Value(&bits.to_ne_bytes()));
}

fn decode_shift(map: &Map<'_>) -> Result<u32, DecodeError> {
    let attribute = map.required(NFTA_BITWISE_DATA)?;
    let bytes = DataRef::decode_value(&attribute)?;
    let wrong = attribute.impossible(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    bytes.try_into().map(u32::from_ne_bytes).map_err(|_| wrong)
}
