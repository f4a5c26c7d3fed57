//! A table, its chains and its rules as they should be, and the chains to which the rules of both layouts lead.

use portolan_model::Family;
use portolan_wire::nftables::{
    self as wire, BaseChain, Chain, ChainType, Expr, Hook, Policy, Rule, UserData,
};

use super::expression::{goto, wire_family};

/// The chain with the first lookup of a packet.
pub(super) const SERVICES: &str = "services";

/// The chain that rejects packets. The name is kube-proxy's.
pub(super) const REFUSAL: &str = "reject-chain";

/// A table in a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FamilyTable {
    pub(crate) family: Family,
    pub(crate) table: &'static str,
}

impl FamilyTable {
    /// Returns the family in netlink's representation.
    pub(crate) const fn wire(self) -> wire::Family {
        wire_family(self.family)
    }
}

/// One rule: its expressions and its comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleBody {
    pub(crate) expressions: Vec<Expr>,
    pub(crate) comment: &'static str,
}

/// A chain as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainBody {
    pub(crate) name: String,
    pub(crate) base: Option<BaseChain>,
    pub(crate) rules: Vec<RuleBody>,
}

impl ChainBody {
    pub(crate) fn chain(&self, place: FamilyTable) -> Chain {
        Chain { base: self.base.clone(), ..Chain::regular(place.wire(), place.table, self.name.as_str()) }
    }

    pub(crate) fn rules(&self, place: FamilyTable) -> impl Iterator<Item = Rule> + '_ {
        self.rules.iter().map(move |body| {
            let rule = Rule::new(place.wire(), place.table, self.name.as_str(), body.expressions.clone());
            if body.comment.is_empty() {
                rule
            } else {
                Rule { userdata: UserData::comment(body.comment), ..rule }
            }
        })
    }

    pub(super) fn regular(name: impl Into<String>, rules: Vec<RuleBody>) -> Self {
        Self { name: name.into(), base: None, rules }
    }
}

/// Returns a base chain.
pub(super) fn base(
    name: &str,
    kind: ChainType,
    hook: Hook,
    priority: i32,
    rules: Vec<RuleBody>,
) -> ChainBody {
    let base = BaseChain { kind, hook, priority, policy: Policy::Accept, devices: Vec::new() };
    ChainBody { name: name.into(), base: Some(base), rules }
}

pub(super) fn rule(expressions: Vec<Expr>) -> RuleBody {
    commented(expressions, "")
}

pub(super) fn commented(expressions: Vec<Expr>, comment: &'static str) -> RuleBody {
    RuleBody { expressions, comment }
}

/// Returns the verdict that leads to the chain that rejects. That chain tests for TCP, so the checks cost packets
/// that are not rejected nothing more.
pub(super) fn refuse() -> Expr {
    goto(REFUSAL)
}
