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
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// What it does, in order.
    pub expressions: Vec<Expr>,
    /// Its comment.
    pub userdata: UserData,
    /// The kernel's number for it; names the rule to replace or delete.
    pub handle: Option<u64>,
    /// Handle of the rule before it in lists; of the rule to add after (or insert before) when written.
    pub position: Option<u64>,
}

/// What a delete or a notification says of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleName {
    /// Family of its table.
    pub family: Family,
    /// Its table.
    pub table: String,
    /// Its chain.
    pub chain: String,
    /// The kernel's number for it.
    pub handle: Option<u64>,
}

impl Rule {
    /// A rule without a comment.
    pub fn new(
        family: Family,
        table: impl Into<String>,
        chain: impl Into<String>,
        expressions: Vec<Expr>,
    ) -> Self {
        let (table, chain, userdata) = (table.into(), chain.into(), UserData::empty());
        Self { family, table, chain, expressions, userdata, handle: None, position: None }
    }

    /// The rule as a dump shows it, less handles and counts: equal for a rule as written and as read back.
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
            table: map.required(NFTA_RULE_TABLE)?.string()?,
            chain: map.required(NFTA_RULE_CHAIN)?.string()?,
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
    /// Reads what identifies a deleted rule.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let family = Header::decode(frame)?.family;
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<ATTRIBUTES>()?;
        Ok(Self {
            family,
            table: map.required(NFTA_RULE_TABLE)?.string()?,
            chain: map.required(NFTA_RULE_CHAIN)?.string()?,
            handle: map.u64_be(NFTA_RULE_HANDLE)?,
        })
    }
}

/// Names a rule, or all rules of a chain (no handle), or all of a table (no chain).
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
