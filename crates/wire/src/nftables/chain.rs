//! Chains.

use super::UserData;
use crate::netlink::{Attribute, AttributeMap, Message};
use crate::nfnetlink::{self, Family, Header};
use crate::{DecodeError, Frame};

const OBJECT: &str = "nf_tables chain";
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_HANDLE: u16 = 2;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_USE: u16 = 6;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_CHAIN_USERDATA: u16 = 12;
const ATTRIBUTES: usize = 13;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;

numbers! {
    /// Where in the packet's path a base chain sits (`enum nf_inet_hooks`).
    Hook(u32) {
        /// Everything that arrives, before routing.
        PREROUTING = 0,
        /// What is for this host.
        INPUT = 1,
        /// What is passed on.
        FORWARD = 2,
        /// What this host sends.
        OUTPUT = 3,
        /// Everything that leaves, after routing.
        POSTROUTING = 4,
    }
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Where packets come in, for a base chain.
    pub base: Option<BaseChain>,
    /// Its comment.
    pub userdata: UserData,
    /// The kernel's number for it; never written.
    pub handle: Option<u64>,
    /// Rules in it and jumps to it; never written.
    pub use_count: Option<u32>,
}

/// What makes a chain a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// What its rules may do.
    pub kind: ChainType,
    /// Where it sits.
    pub hook: Hook,
    /// Order among the chains of one hook, lowest first.
    pub priority: i32,
    /// Fate of packets that no rule decided.
    pub policy: Policy,
}

/// What the rules of a base chain may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainType {
    /// Let through or not.
    Filter,
    /// Translate addresses; sees the first packet of a connection only.
    Nat,
    /// As filter; routes the packet again when its mark or address changed.
    Route,
    /// A type that is not known here.
    Other(String),
}

/// Fate of packets that no rule of a base chain decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// `NF_DROP`.
    Drop,
    /// `NF_ACCEPT`.
    Accept,
}

/// What a delete or a notification says of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainName {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its name.
    pub chain: String,
}

impl Chain {
    /// A chain that packets reach by jumps only.
    pub fn regular(family: Family, table: impl Into<String>, name: impl Into<String>) -> Self {
        let (table, name, userdata) = (table.into(), name.into(), UserData::empty());
        Self { family, table, name, base: None, userdata, handle: None, use_count: None }
    }

    /// The chain as written: without what the kernel adds.
    #[must_use]
    pub fn normalized(self) -> Self {
        Self { handle: None, use_count: None, ..self }
    }

    pub(super) fn encode(&self, message: &mut Message<'_>) {
        encode_name(message, &self.table, &self.name);
        if let Some(base) = &self.base {
            message.nest(NFTA_CHAIN_HOOK, |message| {
                message.attr_u32_be(NFTA_HOOK_HOOKNUM, base.hook.0);
                message.attr_i32_be(NFTA_HOOK_PRIORITY, base.priority);
            });
            message.attr_u32_be(NFTA_CHAIN_POLICY, base.policy.number());
            message.attr_str(NFTA_CHAIN_TYPE, base.kind.name());
        }
        if !self.userdata.is_empty() {
            message.attr_bytes(NFTA_CHAIN_USERDATA, self.userdata.as_bytes());
        }
    }

    /// Reads a new chain.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        Ok(Self {
            family,
            table: map.required(NFTA_CHAIN_TABLE)?.string()?,
            name: map.required(NFTA_CHAIN_NAME)?.string()?,
            base: map.get(NFTA_CHAIN_HOOK).map(|hook| BaseChain::decode(&hook, &map)).transpose()?,
            userdata: map
                .get(NFTA_CHAIN_USERDATA)
                .map(|data| UserData::from_bytes(data.payload))
                .unwrap_or_default(),
            handle: map.u64_be(NFTA_CHAIN_HANDLE)?,
            use_count: map.u32_be(NFTA_CHAIN_USE)?,
        })
    }
}

impl BaseChain {
    fn decode(hook: &Attribute<'_>, chain: &AttributeMap<'_, ATTRIBUTES>) -> Result<Self, DecodeError> {
        let map = hook.nested("nf_tables hook").by_kind::<3>()?;
        let policy = chain.get(NFTA_CHAIN_POLICY).map(|policy| Policy::decode(&policy)).transpose()?;
        Ok(Self {
            kind: ChainType::from_name(chain.required(NFTA_CHAIN_TYPE)?.text()?),
            hook: Hook(map.required(NFTA_HOOK_HOOKNUM)?.u32_be()?),
            priority: map.required(NFTA_HOOK_PRIORITY)?.i32_be()?,
            policy: policy.unwrap_or(Policy::Accept),
        })
    }
}

impl ChainType {
    fn name(&self) -> &str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
            Self::Route => "route",
            Self::Other(name) => name,
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "filter" => Self::Filter,
            "nat" => Self::Nat,
            "route" => Self::Route,
            other => Self::Other(other.to_owned()),
        }
    }
}

impl Policy {
    fn number(self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
        }
    }

    fn decode(attribute: &Attribute<'_>) -> Result<Self, DecodeError> {
        match attribute.u32_be()? {
            0 => Ok(Self::Drop),
            1 => Ok(Self::Accept),
            other => Err(attribute.impossible(other)),
        }
    }
}

impl ChainName {
    /// Reads the name of a deleted chain.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        let table = map.required(NFTA_CHAIN_TABLE)?.string()?;
        Ok(Self { family, table, chain: map.required(NFTA_CHAIN_NAME)?.string()? })
    }
}

pub(super) fn encode_name(message: &mut Message<'_>, table: &str, chain: &str) {
    message.attr_str(NFTA_CHAIN_TABLE, table);
    message.attr_str(NFTA_CHAIN_NAME, chain);
}
