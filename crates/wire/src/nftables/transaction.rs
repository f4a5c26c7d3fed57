//! Changes: the messages between the marks of a batch. The kernel applies all of them or none.

use super::{
    Chain, ElementsOperation, ElementsWriter, NftTable, Rule, Set, chain, element, kind, operation, rule,
    set, table,
};
use crate::netlink::{Message, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use crate::nfnetlink::{self, Family, Header, SUBSYSTEM_NFTABLES};
use crate::{Batch, EncodeError};

/// What to do if an object that is to be created exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// Succeed if it is the same; fail (EEXIST, EBUSY, EOPNOTSUPP) if it cannot be changed to the new one.
    Keep,
    /// Fail (EEXIST).
    Fail,
}

/// A transaction that is being written. Each method returns the sequence number of its message, which errors refer
/// to.
#[derive(Debug)]
pub struct Transaction {
    batch: Batch,
    begin_length: usize,
}

impl Transaction {
    /// Begins a transaction whose first message gets the sequence number `first_sequence`. With a `generation`, the
    /// kernel refuses the transaction (ERESTART, on the first number) if another program has committed since.
    pub fn begin(first_sequence: u32, generation: Option<u32>) -> Self {
        Self::begin_in(Batch::new(first_sequence), generation)
    }

    /// Like [`Transaction::begin`], in the memory of a cleared batch.
    pub fn begin_in(mut batch: Batch, generation: Option<u32>) -> Self {
        nfnetlink::batch_begin(&mut batch, SUBSYSTEM_NFTABLES, generation);
        Self { begin_length: batch.len(), batch }
    }

    /// Returns true if the transaction contains no changes.
    pub fn is_empty(&self) -> bool {
        self.batch.len() <= self.begin_length
    }

    /// Returns the number of bytes written.
    pub fn len(&self) -> usize {
        self.batch.len()
    }

    /// Returns the sequence number of the next message.
    pub fn next_sequence(&self) -> u32 {
        self.batch.next_sequence()
    }

    /// Reserves memory for `bytes` more bytes.
    pub fn reserve(&mut self, bytes: usize) {
        self.batch.reserve(bytes);
    }

    /// Ends the transaction. Requests an acknowledgement of the last change, because kernels before 6.10 do not
    /// acknowledge the end mark.
    pub fn finish(mut self) -> Result<Batch, EncodeError> {
        self.batch.acknowledge_last();
        nfnetlink::batch_end(&mut self.batch, SUBSYSTEM_NFTABLES);
        self.batch.bytes()?;
        Ok(self.batch)
    }

    /// Creates a table, or changes its flags.
    pub fn new_table(&mut self, table: &NftTable, if_exists: IfExists) -> u32 {
        self.add(operation::NEW_TABLE, if_exists.flags(), table.family, |message| table.encode(message))
    }

    /// Deletes a table with its content.
    pub fn delete_table(&mut self, family: Family, table: &str) -> u32 {
        self.add(operation::DELETE_TABLE, 0, family, |message| table::encode_name(message, table))
    }

    /// Creates a chain, or changes its policy.
    pub fn new_chain(&mut self, chain: &Chain, if_exists: IfExists) -> u32 {
        self.add(operation::NEW_CHAIN, if_exists.flags(), chain.family, |message| chain.encode(message))
    }

    /// Deletes a chain with its rules. Fails if a rule jumps to it (EBUSY).
    pub fn delete_chain(&mut self, family: Family, table: &str, chain: &str) -> u32 {
        self.add(operation::DELETE_CHAIN, 0, family, |message| chain::encode_name(message, table, chain))
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, family: Family, table: &str, chain: &str) -> u32 {
        self.add(operation::DELETE_RULE, 0, family, |message| {
            rule::encode_name(message, table, Some(chain), None);
        })
    }

    /// Adds a rule at the end of its chain, or after [`Rule::position`].
    pub fn append_rule(&mut self, rule: &Rule) -> u32 {
        self.add(operation::NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, rule.family, |message| {
            rule.encode(message);
        })
    }

    /// Adds a rule at the start of its chain, or before [`Rule::position`].
    pub fn insert_rule(&mut self, rule: &Rule) -> u32 {
        self.add(operation::NEW_RULE, NLM_F_CREATE, rule.family, |message| rule.encode(message))
    }

    /// Replaces the rule with the handle [`Rule::handle`].
    pub fn replace_rule(&mut self, rule: &Rule) -> u32 {
        self.add(operation::NEW_RULE, NLM_F_REPLACE, rule.family, |message| rule.encode(message))
    }

    /// Deletes a rule.
    pub fn delete_rule(&mut self, family: Family, table: &str, chain: &str, handle: u64) -> u32 {
        self.add(operation::DELETE_RULE, 0, family, |message| {
            rule::encode_name(message, table, Some(chain), Some(handle));
        })
    }

    /// Creates a set or map.
    pub fn new_set(&mut self, set: &Set, if_exists: IfExists) -> u32 {
        self.add(operation::NEW_SET, if_exists.flags(), set.family, |message| set.encode(message))
    }

    /// Deletes a set or map with its elements. Fails if a rule uses it (EBUSY).
    pub fn delete_set(&mut self, family: Family, table: &str, set: &str) -> u32 {
        self.add(operation::DELETE_SET, 0, family, |message| set::encode_name(message, table, Some(set)))
    }

    /// Deletes all elements of a set or map.
    pub fn flush_set(&mut self, family: Family, table: &str, set: &str) -> u32 {
        self.add(operation::DELETE_ELEMENT, 0, family, |message| {
            element::encode_list_name(message, table, set);
        })
    }

    /// Returns a writer for any number of elements, which splits them into messages.
    pub fn elements<'a>(
        &'a mut self,
        operation: ElementsOperation,
        family: Family,
        table: &'a str,
        set: &'a str,
    ) -> ElementsWriter<'a> {
        ElementsWriter::new(&mut self.batch, operation, family, table, set)
    }

    fn add(
        &mut self,
        operation: u8,
        flags: u16,
        family: Family,
        content: impl FnOnce(&mut Message<'_>),
    ) -> u32 {
        let mut message = self.batch.message(kind(operation), flags, &Header::of(family));
        content(&mut message);
        message.sequence()
    }
}

impl IfExists {
    fn flags(self) -> u16 {
        match self {
            Self::Keep => NLM_F_CREATE,
            Self::Fail => NLM_F_CREATE | NLM_F_EXCL,
        }
    }
}
