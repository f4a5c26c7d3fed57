//! `nf_tables`: messages for tables, chains, rules, sets and their elements.
//!
//! [`Transaction`] writes changes, [`request`] requests lists, and [`NftablesEvent::decode`] reads lists and notifications.
//! A dump differs from what was written in handles, use counts and some defaults. `normalized()` of each object
//! removes exactly these differences, so that a comparison with `==` shows whether an object is as it was written.
//!
//! Registers have one form only (see [`Register`]): a rule reads back with the registers with which it was written.

mod chain;
mod data;
mod datatype;
mod element;
mod event;
pub mod expr;
mod generation;
pub mod request;
mod rule;
mod set;
mod table;
mod transaction;
mod userdata;

pub use chain::{BaseChain, Chain, ChainName, ChainType, Hook, Policy};
pub use data::{Data, DataRef, Register, Verdict};
pub use datatype::{DataType, concatenated};
pub use element::{
    CATCH_ALL, Element, ElementList, ElementRef, Elements, ElementsOperation, ElementsWriter, INTERVAL_END,
    element_at,
};
pub use event::NftablesEvent;
pub use expr::Expr;
pub use generation::Generation;
pub use rule::{Rule, RuleName};
pub use set::{Set, SetData, SetFlags, SetName};
pub use table::{NftTable, TableName};
pub use transaction::{IfExists, Transaction};
pub use userdata::{ByteOrder, UserData};

pub use crate::nfnetlink::Family;

use crate::nfnetlink::{SUBSYSTEM_NFTABLES, message_type};

/// Maximum length of the name of a table, chain or set in bytes: `NFT_NAME_MAXLEN` without the terminating NUL.
pub const NAME_LENGTH_MAX: usize = 255;

/// Operations of the `nf_tables` subsystem (`NFT_MSG_*`).
pub(crate) mod operation {
    pub(crate) const NEW_TABLE: u8 = 0;
    pub(crate) const GET_TABLE: u8 = 1;
    pub(crate) const DELETE_TABLE: u8 = 2;
    pub(crate) const NEW_CHAIN: u8 = 3;
    pub(crate) const GET_CHAIN: u8 = 4;
    pub(crate) const DELETE_CHAIN: u8 = 5;
    pub(crate) const NEW_RULE: u8 = 6;
    pub(crate) const GET_RULE: u8 = 7;
    pub(crate) const DELETE_RULE: u8 = 8;
    pub(crate) const NEW_SET: u8 = 9;
    pub(crate) const GET_SET: u8 = 10;
    pub(crate) const DELETE_SET: u8 = 11;
    pub(crate) const NEW_ELEMENT: u8 = 12;
    pub(crate) const GET_ELEMENT: u8 = 13;
    pub(crate) const DELETE_ELEMENT: u8 = 14;
    pub(crate) const NEW_GENERATION: u8 = 15;
    pub(crate) const GET_GENERATION: u8 = 16;
    pub(crate) const DESTROY_TABLE: u8 = 26;
    pub(crate) const DESTROY_CHAIN: u8 = 27;
    pub(crate) const DESTROY_RULE: u8 = 28;
    pub(crate) const DESTROY_SET: u8 = 29;
    pub(crate) const DESTROY_ELEMENT: u8 = 30;
}

/// Type of the members of a list (`NFTA_LIST_ELEM`).
pub(crate) const LIST_ELEMENT: u16 = 1;

/// Returns the netlink message type of an `nf_tables` operation.
pub(crate) const fn kind(operation: u8) -> u16 {
    message_type(SUBSYSTEM_NFTABLES, operation)
}
