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
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
const NFTA_DEVICE_NAME: u16 = 1;
const NFTA_DEVICE_PREFIX: u16 = 2;

numbers! {
    /// The point in a packet's path at which a base chain is called (`enum nf_inet_hooks`).
    Hook(u32) {
        /// All arriving packets, before routing.
        PREROUTING = 0,
        /// Packets for this host.
        INPUT = 1,
        /// Packets that are forwarded.
        FORWARD = 2,
        /// Packets that this host sends.
        OUTPUT = 3,
        /// All leaving packets, after routing.
        POSTROUTING = 4,
        /// Packets that arrive at a device, before all others (tables of the family `inet`).
        INGRESS = 5,
    }
}

impl Hook {
    /// Packets that arrive at a device, in tables of the family `netdev` (`enum nf_dev_hooks`).
    pub const DEVICE_INGRESS: Self = Self(0);
    /// Packets that leave through a device, in tables of the family `netdev`.
    pub const DEVICE_EGRESS: Self = Self(1);
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub name: String,
    /// Hook, type and policy of a base chain; `None` for a regular chain.
    pub base: Option<BaseChain>,
    /// User data, with the chain's comment.
    pub userdata: UserData,
    /// The kernel's handle. Never written.
    pub handle: Option<u64>,
    /// Number of its rules and of jumps to it. Never written.
    pub use_count: Option<u32>,
}

/// The properties of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseChain {
    /// Type of the chain.
    pub kind: ChainType,
    /// Hook that calls the chain.
    pub hook: Hook,
    /// Order among the chains of a hook, lowest first.
    pub priority: i32,
    /// Verdict for packets that no rule decides.
    pub policy: Policy,
    /// Names of the devices whose packets the chain sees, at the hooks of devices. Names that end in `*` are prefixes. Never
    /// written.
    pub devices: Vec<String>,
}

/// The type of a base chain: what its rules may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChainType {
    /// Accepts or drops packets.
    Filter,
    /// Translates addresses. Sees only the first packet of a connection.
    Nat,
    /// Like filter, and the packet is routed again if its mark or address changes.
    Route,
    /// Another type.
    Other(String),
}

/// The verdict for packets that no rule of a base chain decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// `NF_DROP`.
    Drop,
    /// `NF_ACCEPT`.
    Accept,
}

/// A chain as named in a deletion or its notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainName {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
}

impl Chain {
    /// Creates a chain that packets reach only by jumps.
    pub fn regular(family: Family, table: impl Into<String>, name: impl Into<String>) -> Self {
        let (table, name, userdata) = (table.into(), name.into(), UserData::empty());
        Self { family, table, name, base: None, userdata, handle: None, use_count: None }
    }

    /// Removes what the kernel adds, so that a chain equals its written form.
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
            table: map.required(NFTA_CHAIN_TABLE)?.string(),
            name: map.required(NFTA_CHAIN_NAME)?.string(),
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
        let map = hook.nested("nf_tables hook").by_kind::<5>()?;
        let policy = chain.get(NFTA_CHAIN_POLICY).map(|policy| Policy::decode(&policy)).transpose()?;
        Ok(Self {
            kind: ChainType::from_name(chain.required(NFTA_CHAIN_TYPE)?.text()?),
            hook: Hook(map.required(NFTA_HOOK_HOOKNUM)?.u32_be()?),
            priority: map.required(NFTA_HOOK_PRIORITY)?.i32_be()?,
            policy: policy.unwrap_or(Policy::Accept),
            devices: devices(map.get(NFTA_HOOK_DEV), map.get(NFTA_HOOK_DEVS))?,
        })
    }
}

/// Reads the devices: the list has the one that is also named alone.
fn devices(one: Option<Attribute<'_>>, list: Option<Attribute<'_>>) -> Result<Vec<String>, DecodeError> {
    let Some(list) = list else { return Ok(one.iter().map(Attribute::string).collect()) };
    let mut devices = Vec::new();
    for attribute in list.nested("nf_tables devices") {
        let attribute = attribute?;
        match attribute.kind {
            NFTA_DEVICE_NAME => devices.push(attribute.string()),
            NFTA_DEVICE_PREFIX => devices.push(format!("{}*", attribute.string())),
            _ => {}
        }
    }
    Ok(devices)
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
        let table = map.required(NFTA_CHAIN_TABLE)?.string();
        Ok(Self { family, table, chain: map.required(NFTA_CHAIN_NAME)?.string() })
    }
}

pub(super) fn encode_name(message: &mut Message<'_>, table: &str, chain: &str) {
    message.attr_str(NFTA_CHAIN_TABLE, table);
    message.attr_str(NFTA_CHAIN_NAME, chain);
}
