//! Registers, values and verdicts.

use crate::netlink::{Attribute, Message};
use crate::{Batch, DecodeError};

pub(super) const NFTA_DATA_VALUE: u16 = 1;
pub(super) const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFTA_VERDICT_CHAIN: u16 = 2;

const NFT_REG_4: u32 = 4;
const NFT_REG32_00: u32 = 8;
const WORDS: u8 = 16;
/// Number of 32-bit words in one of the four 128-bit registers.
const WORDS_OF_A_REGISTER: u8 = 4;

/// A register for the expressions of a rule: the verdict register, or one of sixteen 32-bit words.
///
/// Every fourth word has two names in the kernel: `NFT_REG_1` to `NFT_REG_4` (128 bits), and `NFT_REG32_00`, `_04`,
/// `_08` and `_12`. The kernel reports the former in both cases. A `Register` is a word, encoded as the kernel
/// reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(Option<u8>);

/// The verdict on a packet. `S` is the type of the chain's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict<S = String> {
    /// Ends the evaluation of this base chain. Later base chains still see the packet.
    Accept,
    /// Drops the packet.
    Drop,
    /// Continues with the next rule.
    Continue,
    /// Skips the rest of this rule and continues with the next one.
    Break,
    /// Returns to the calling chain.
    Return,
    /// Continues in a chain, and returns at its end.
    Jump(S),
    /// Continues in a chain, without return.
    Goto(S),
}

/// A value, or a verdict.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Data {
    /// Bytes: numbers from a packet in network byte order, others (marks) in the machine's.
    Value(Vec<u8>),
    /// A verdict.
    Verdict(Verdict),
}

/// A borrowed [`Data`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataRef<'a> {
    /// Bytes.
    Value(&'a [u8]),
    /// A verdict.
    Verdict(Verdict<&'a str>),
}

impl Register {
    /// The verdict register.
    pub const VERDICT: Self = Self(None);
    /// The first 128-bit register: words 0 to 3.
    pub const R1: Self = Self(Some(0));
    /// The second 128-bit register: words 4 to 7.
    pub const R2: Self = Self(Some(4));
    /// The third 128-bit register: words 8 to 11.
    pub const R3: Self = Self(Some(8));
    /// The fourth 128-bit register: words 12 to 15.
    pub const R4: Self = Self(Some(12));

    /// Returns the 32-bit word of this index, 0 to 15 (`NFT_REG32_00` and so on).
    pub const fn word(index: u8) -> Option<Self> {
        if index < WORDS { Some(Self(Some(index))) } else { None }
    }

    /// Returns the register after `bytes` of data loaded into this one; `None` after the last word.
    pub const fn after(self, bytes: u8) -> Option<Self> {
        match self.0 {
            Some(index) => Self::word(index.saturating_add(bytes.div_ceil(4))),
            None => None,
        }
    }

    pub(crate) fn number(self) -> u32 {
        match self.0 {
            None => 0,
            Some(word) if word % WORDS_OF_A_REGISTER == 0 => u32::from(word / WORDS_OF_A_REGISTER + 1),
            Some(word) => u32::from(word).saturating_add(NFT_REG32_00),
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        let word = match number {
            0 => return Some(Self::VERDICT),
            1..=NFT_REG_4 => number.saturating_sub(1).saturating_mul(u32::from(WORDS_OF_A_REGISTER)),
            _ => number.checked_sub(NFT_REG32_00)?,
        };
        u8::try_from(word).ok().and_then(Self::word)
    }

    pub(crate) fn decode(attribute: &Attribute<'_>) -> Result<Self, DecodeError> {
        let number = attribute.u32_be()?;
        Self::from_number(number).ok_or(attribute.impossible(number))
    }
}

impl<S: AsRef<str>> Verdict<S> {
    /// Returns the verdict with a borrowed name.
    pub fn as_ref(&self) -> Verdict<&str> {
        match self {
            Self::Accept => Verdict::Accept,
            Self::Drop => Verdict::Drop,
            Self::Continue => Verdict::Continue,
            Self::Break => Verdict::Break,
            Self::Return => Verdict::Return,
            Self::Jump(chain) => Verdict::Jump(chain.as_ref()),
            Self::Goto(chain) => Verdict::Goto(chain.as_ref()),
        }
    }

    /// Returns `NF_DROP`, `NF_ACCEPT`, `NFT_CONTINUE` and so on.
    fn code(&self) -> i32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Continue => -1,
            Self::Break => -2,
            Self::Jump(_) => -3,
            Self::Goto(_) => -4,
            Self::Return => -5,
        }
    }

    fn chain(&self) -> Option<&str> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain.as_ref()),
            _ => None,
        }
    }
}

impl Verdict<&str> {
    /// Returns the verdict with an owned name.
    pub fn to_owned(&self) -> Verdict {
        match *self {
            Self::Accept => Verdict::Accept,
            Self::Drop => Verdict::Drop,
            Self::Continue => Verdict::Continue,
            Self::Break => Verdict::Break,
            Self::Return => Verdict::Return,
            Self::Jump(chain) => Verdict::Jump(chain.to_owned()),
            Self::Goto(chain) => Verdict::Goto(chain.to_owned()),
        }
    }
}

impl Data {
    /// Returns the data borrowed.
    pub fn as_ref(&self) -> DataRef<'_> {
        match self {
            Self::Value(bytes) => DataRef::Value(bytes),
            Self::Verdict(verdict) => DataRef::Verdict(verdict.as_ref()),
        }
    }
}

impl<'a> DataRef<'a> {
    /// Returns the data owned.
    pub fn to_owned(&self) -> Data {
        match self {
            Self::Value(bytes) => Data::Value(bytes.to_vec()),
            Self::Verdict(verdict) => Data::Verdict(verdict.to_owned()),
        }
    }

    /// Writes the data as a nested attribute of type `kind`.
    pub(super) fn encode(&self, batch: &mut Batch, kind: u16) {
        let nest = batch.open_nest(kind);
        match self {
            Self::Value(bytes) => batch.attribute(NFTA_DATA_VALUE, bytes),
            Self::Verdict(verdict) => {
                let verdict_nest = batch.open_nest(NFTA_DATA_VERDICT);
                batch.attribute(NFTA_VERDICT_CODE, &verdict.code().to_be_bytes());
                if let Some(chain) = verdict.chain() {
                    batch.attribute_of(NFTA_VERDICT_CHAIN, chain.as_bytes(), &[0]);
                }
                batch.close_nest(verdict_nest);
            }
        }
        batch.close_nest(nest);
    }

    /// Reads data from its nested attribute.
    pub(super) fn decode(attribute: &Attribute<'a>) -> Result<Self, DecodeError> {
        for member in attribute.nested("nf_tables data") {
            let member = member?;
            match member.kind {
                NFTA_DATA_VALUE => return Ok(Self::Value(member.payload)),
                NFTA_DATA_VERDICT => return decode_verdict(&member).map(Self::Verdict),
                _ => {}
            }
        }
        Err(DecodeError::Missing { object: "nf_tables data", attribute: NFTA_DATA_VALUE })
    }

    /// Reads data that has to be a value.
    pub(super) fn decode_value(attribute: &Attribute<'a>) -> Result<&'a [u8], DecodeError> {
        match Self::decode(attribute)? {
            Self::Value(bytes) => Ok(bytes),
            Self::Verdict(verdict) => Err(attribute.impossible(verdict.code().unsigned_abs())),
        }
    }
}

/// In place of a name that is not UTF-8. No object of ours has it.
pub(super) const NOT_TEXT: &str = "\u{fffd}";

fn decode_verdict<'a>(attribute: &Attribute<'a>) -> Result<Verdict<&'a str>, DecodeError> {
    let map = attribute.nested("nf_tables verdict").by_kind::<3>()?;
    let code = map.required(NFTA_VERDICT_CODE)?;
    let chain = || Ok(map.required(NFTA_VERDICT_CHAIN)?.text().unwrap_or(NOT_TEXT));
    Ok(match code.i32_be()? {
        0 => Verdict::Drop,
        1 => Verdict::Accept,
        -1 => Verdict::Continue,
        -2 => Verdict::Break,
        -3 => Verdict::Jump(chain()?),
        -4 => Verdict::Goto(chain()?),
        -5 => Verdict::Return,
        other => return Err(code.impossible(other.unsigned_abs())),
    })
}

impl Message<'_> {
    /// Writes a register.
    pub(super) fn attr_register(&mut self, kind: u16, register: Register) {
        self.attr_u32_be(kind, register.number());
    }

    /// Writes a register if there is one.
    pub(super) fn attr_register_if(&mut self, kind: u16, register: Option<Register>) {
        if let Some(register) = register {
            self.attr_register(kind, register);
        }
    }

    /// Writes a value or a verdict.
    pub(super) fn attr_data(&mut self, kind: u16, data: DataRef<'_>) {
        data.encode(self.batch_mut(), kind);
    }
}
