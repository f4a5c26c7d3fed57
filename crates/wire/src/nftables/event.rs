//! The messages of the `nf_tables` subsystem, in lists and in notifications.

use super::{
    Chain, ChainName, ElementList, Generation, NftTable, Rule, RuleName, Set, SetName, TableName, operation,
};
use crate::nfnetlink::{SUBSYSTEM_NFTABLES, subsystem_and_operation};
use crate::{DecodeError, Frame};

/// A message of the `nf_tables` subsystem.
#[derive(Debug, Clone)]
pub enum NftablesEvent<'a> {
    /// A table exists or was added.
    NewTable(NftTable),
    /// A table was deleted.
    DeleteTable(TableName),
    /// A chain exists or was added.
    NewChain(Chain),
    /// A chain was deleted.
    DeleteChain(ChainName),
    /// A rule exists or was added.
    NewRule(Rule),
    /// A rule was deleted.
    DeleteRule(RuleName),
    /// A set exists or was added.
    NewSet(Set),
    /// A set was deleted.
    DeleteSet(SetName),
    /// Elements exist or were added.
    NewElements(ElementList<'a>),
    /// Elements were deleted.
    DeleteElements(ElementList<'a>),
    /// A commit is complete, or the answer to a request for the generation.
    Generation(Generation),
    /// Another message: a control message, a stateful object, a flow table.
    Other {
        /// The message type.
        kind: u16,
    },
}

impl<'a> NftablesEvent<'a> {
    /// Returns the generation that a message is about, or `None` if it is about something else, which is not read.
    pub fn generation_of(frame: &Frame<'a>) -> Result<Option<u32>, DecodeError> {
        let is_generation =
            subsystem_and_operation(frame.header.kind) == (SUBSYSTEM_NFTABLES, operation::NEW_GENERATION);
        is_generation.then(|| Generation::decode(frame).map(|generation| generation.id)).transpose()
    }

    /// Reads a message.
    pub fn decode(frame: &Frame<'a>) -> Result<Self, DecodeError> {
        let (subsystem, operation) = subsystem_and_operation(frame.header.kind);
        if subsystem != SUBSYSTEM_NFTABLES {
            return Ok(Self::Other { kind: frame.header.kind });
        }
        Ok(match operation {
            operation::NEW_TABLE => Self::NewTable(NftTable::decode(frame)?),
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
