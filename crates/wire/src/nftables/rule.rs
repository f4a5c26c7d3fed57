//! Rules.

use super::{Expr, LIST_ELEMENT, UserData};
use crate::netlink::{Attribute, Message};
use crate::nfnetlink::{self, Family, Header};
use crate::{DecodeError, Frame};

const OBJECT: &str = "nf_tables rule";
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_HANDLE: u16 = 3;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_RULE_POSITION: u16 = 6;
const NFTA_RULE_USERDATA: u16 = 7;
const ATTRIBUTES: usize = 8;

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// The rule's expressions, in order.
    pub expressions: Vec<Expr>,
    /// User data, with the rule's comment.
    pub userdata: UserData,
    /// The kernel's handle. It names the rule to replace or delete.
    pub handle: Option<u64>,
    /// In lists the handle of the rule before this one. When written, the handle of the rule to add after (or
    /// insert before).
    pub position: Option<u64>,
}

/// A rule as named in a deletion or its notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleName {
    /// Family of the table.
    pub family: Family,
    /// Name of the table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// The kernel's handle.
    pub handle: Option<u64>,
}

impl Rule {
    /// Creates a rule without a comment.
    pub fn new(
        family: Family,
        table: impl Into<String>,
        chain: impl Into<String>,
        expressions: Vec<Expr>,
    ) -> Self {
        let (table, chain, userdata) = (table.into(), chain.into(), UserData::empty());
        Self { family, table, chain, expressions, userdata, handle: None, position: None }
    }

    /// Removes handles and counts, and fills in the kernel's defaults, so that a rule read back equals its written
    /// form.
    #[must_use]
    pub fn normalized(self) -> Self {
        let expressions = self.expressions.into_iter().map(Expr::normalized).collect();
        Self { handle: None, position: None, expressions, ..self }
    }

    pub(super) fn encode(&self, message: &mut Message<'_>) {
        encode_name(message, &self.table, Some(&self.chain), self.handle);
        if let Some(position) = self.position {
            message.attr_u64_be(NFTA_RULE_POSITION, position);
        }
        encode_expressions(message, NFTA_RULE_EXPRESSIONS, &self.expressions);
        if !self.userdata.is_empty() {
            message.attr_bytes(NFTA_RULE_USERDATA, self.userdata.as_bytes());
        }
    }

    /// Reads a new rule.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        let expressions = map.get(NFTA_RULE_EXPRESSIONS).map(|list| decode_expressions(&list)).transpose()?;
        Ok(Self {
            family,
            table: map.required(NFTA_RULE_TABLE)?.string(),
            chain: map.required(NFTA_RULE_CHAIN)?.string(),
            expressions: expressions.unwrap_or_default(),
            userdata: map
                .get(NFTA_RULE_USERDATA)
                .map(|data| UserData::from_bytes(data.payload))
                .unwrap_or_default(),
            handle: map.u64_be(NFTA_RULE_HANDLE)?,
            position: map.u64_be(NFTA_RULE_POSITION)?,
        })
    }
}

impl RuleName {
    /// Reads the name of a deleted rule.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        Ok(Self {
            family,
            table: map.required(NFTA_RULE_TABLE)?.string(),
            chain: map.required(NFTA_RULE_CHAIN)?.string(),
            handle: map.u64_be(NFTA_RULE_HANDLE)?,
        })
    }
}

/// Names a rule, all rules of a chain (without `handle`), or all rules of a table (without `chain`).
pub(super) fn encode_name(message: &mut Message<'_>, table: &str, chain: Option<&str>, handle: Option<u64>) {
    message.attr_str(NFTA_RULE_TABLE, table);
    if let Some(chain) = chain {
        message.attr_str(NFTA_RULE_CHAIN, chain);
    }
    if let Some(handle) = handle {
        message.attr_u64_be(NFTA_RULE_HANDLE, handle);
    }
}

pub(super) fn encode_expressions(message: &mut Message<'_>, kind: u16, expressions: &[Expr]) {
    message.nest(kind, |message| {
        for expression in expressions {
            message.nest(LIST_ELEMENT, |message| expression.encode(message));
        }
    });
}

pub(super) fn decode_expressions(list: &Attribute<'_>) -> Result<Vec<Expr>, DecodeError> {
    list.nested("nf_tables expressions").map(|member| Expr::decode(&member?)).collect()
}
