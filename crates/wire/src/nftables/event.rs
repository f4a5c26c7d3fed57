//! What a message of the `nf_tables` subsystem says, be it part of a list or a notification.

use super::{
    Chain, ChainName, ElementList, Generation, Rule, RuleName, Set, SetName, Table, TableName, operation,
};
use crate::nfnetlink::{SUBSYSTEM_NFTABLES, subsystem_and_operation};
use crate::{DecodeError, Frame};

/// A message of the `nf_tables` subsystem.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// A table is there.
    NewTable(Table),
    /// A table is gone.
    DeleteTable(TableName),
    /// A chain is there.
    NewChain(Chain),
    /// A chain is gone.
    DeleteChain(ChainName),
    /// A rule is there.
    NewRule(Rule),
    /// A rule is gone.
    DeleteRule(RuleName),
    /// A set is there.
    NewSet(Set),
    /// A set is gone.
    DeleteSet(SetName),
    /// Elements are there.
    NewElements(ElementList<'a>),
    /// Elements are gone.
    DeleteElements(ElementList<'a>),
    /// A commit is complete.
    Generation(Generation),
    /// Something else: a control message, a stateful object, a flow table.
    Other {
        /// The message type.
        kind: u16,
    },
}

impl<'a> Event<'a> {
    /// Reads a message.
    pub fn decode(frame: &Frame<'a>) -> Result<Self, DecodeError> {
        let (subsystem, operation) = subsystem_and_operation(frame.header.kind);
        if subsystem != SUBSYSTEM_NFTABLES {
            return Ok(Self::Other { kind: frame.header.kind });
        }
        Ok(match operation {
            operation::NEW_TABLE => Self::NewTable(Table::decode(frame)?),
            operation::DELETE_TABLE | operation::DESTROY_TABLE => {
                Self::DeleteTable(TableName::decode(frame)?)
            }
            operation::NEW_CHAIN => Self::NewChain(Chain::decode(frame)?),
            operation::DELETE_CHAIN | operation::DESTROY_CHAIN => {
                Self::DeleteChain(ChainName::decode(frame)?)
            }
            operation::NEW_RULE => Self::NewRule(Rule::decode(frame)?),
            operation::DELETE_RULE | operation::DESTROY_RULE => Self::DeleteRule(RuleName::decode(frame)?),
            operation::NEW_SET => Self::NewSet(Set::decode(frame)?),
            operation::DELETE_SET | operation::DESTROY_SET => Self::DeleteSet(SetName::decode(frame)?),
            operation::NEW_ELEMENT => Self::NewElements(ElementList::decode(frame)?),
            operation::DELETE_ELEMENT | operation::DESTROY_ELEMENT => {
                Self::DeleteElements(ElementList::decode(frame)?)
            }
            operation::NEW_GENERATION => Self::Generation(Generation::decode(frame)?),
            _ => Self::Other { kind: frame.header.kind },
        })
    }
}
