//! Which endpoints the chain of a class leads to.

use std::collections::HashMap;
use std::net::IpAddr;

use portolan_model::observed::{Fact, NodePortReach};
use portolan_model::{Family, NodePortAddresses, Settings};
use portolan_wire::nftables::expr::{CmpOperation, Immediate};
use portolan_wire::nftables::{Data, Expr, Rule, Verdict};

use super::super::chain::{FamilyTable, SERVICES};
use super::super::class::{Balance, Class};
use super::super::element::{Set, read_address};
use super::super::expression::{Side, address};
use super::super::layout::{Kind, Layout, Target};
use super::super::readback::{View, same_rules};
use super::super::skeleton;

/// Where the packets of a class go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reach {
    /// To no endpoint: the class has no chain, or a chain without rules.
    Nowhere,
    /// Not known: the chain has rules that this mode does not write.
    Unknown,
    /// To endpoints.
    Lists(Lists),
}

/// The lists of endpoints that packets go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lists {
    /// The number of indexes that are drawn from the cluster's endpoints. `None` if no packet goes to them.
    pub(super) cluster: Option<u16>,
    /// The same for this node's endpoints.
    pub(super) local: Option<u16>,
    /// Timeout of session affinity in seconds.
    pub(super) affinity: Option<u32>,
    /// True if indexes lead to slots, and slots to endpoints.
    pub(super) has_slots: bool,
}

impl Lists {
    /// Returns the lists that packets of a class go to. `counts` is true if the rules of its endpoints count.
    pub(super) fn of(class: Class, counts: bool) -> Self {
        let affinity = class.affinity();
        let mut lists =
            Self { cluster: None, local: None, affinity, has_slots: counts || affinity.is_some() };
        match class {
            Class::Internal(Balance { local: true, backends, .. }) => lists.local = Some(backends),
            Class::Internal(balance) | Class::External(balance) => lists.cluster = Some(balance.backends),
            Class::ExternalLocal(balance, local) => {
                lists.cluster = Some(balance.backends);
                lists.local = Some(local);
            }
        }
        lists
    }

    /// Returns the lists of two classes of one Service port. `None` if the classes contradict each other.
    pub(super) fn and(self, other: Self) -> Option<Self> {
        let agree = |one: Option<u16>, two: Option<u16>| one.is_none() || two.is_none() || one == two;
        let is_same = agree(self.cluster, other.cluster)
            && agree(self.local, other.local)
            && self.affinity == other.affinity
            && self.has_slots == other.has_slots;
        is_same.then(|| Self {
            cluster: self.cluster.or(other.cluster),
            local: self.local.or(other.local),
            ..self
        })
    }

    /// Returns true if packets that may not leave this node have no endpoint. Another rule must drop them.
    pub(super) fn drops(self) -> bool {
        self.local == Some(0)
    }
}

/// Returns where the packets of each class number go.
pub(super) fn reaches(view: &View, kind: &Kind, place: FamilyTable) -> HashMap<u16, Reach> {
    let chains = Chains { view, holds_endpoints: kind.holds_endpoints, family: place.family };
    view.classes.iter().map(|(&number, chain)| (number, chains.class(chain))).collect()
}

/// Returns true if packets come to the table's first lookup: the table is awake, and the base chain leads there.
pub(super) fn is_in_effect(view: &View, kind: &Kind) -> bool {
    let first = kind.first_chain;
    let is_awake = view.table.as_ref().is_some_and(|table| table.flags == 0);
    let has_hook = view.chains.get(first).is_some_and(|chain| chain.base.is_some());
    let is_jump = |verdict: &Verdict| matches!(verdict, Verdict::Jump(chain) if chain == SERVICES);
    is_awake
        && has_hook
        && verdicts(view, first).any(is_jump)
        && view.rules.get(SERVICES).is_some_and(|rules| !rules.is_empty())
}

/// Returns the addresses that accept node ports: the one that the rule of node ports compares with, those of the set that it
/// looks up, or all but loopback addresses. Not known if there is no such rule.
pub(super) fn node_ports(view: &View, place: FamilyTable) -> Fact<NodePortReach> {
    let rules = view.rules.get(SERVICES).map(Vec::as_slice).unwrap_or_default();
    let looks_up = |rule: &&Rule, set: Set| {
        rule.expressions
            .iter()
            .any(|expression| matches!(expression, Expr::Lookup(lookup) if lookup.set == set.name()))
    };
    let Some(rule) = rules.iter().find(|rule| looks_up(rule, Set::NodePorts)) else { return Fact::Unknown };
    let addresses = if looks_up(&rule, Set::NodePortIps) {
        let rows = view.rows_of(Set::NodePortIps);
        NodePortAddresses::Addresses(
            rows.filter_map(|row| read_address(place.family, row.key.as_slice())).collect(),
        )
    } else if let Some(address) = compared_address(place.family, rule) {
        NodePortAddresses::Addresses(vec![address])
    } else if rule.expressions.iter().any(|expression| matches!(expression, Expr::Fib(_))) {
        NodePortAddresses::MatchAll
    } else {
        return Fact::Unknown;
    };
    Fact::Known(NodePortReach { addresses, loopback: Vec::new() })
}

/// Returns true if packets that this node receives come to the check of source ranges.
pub(super) fn checks_sources(view: &View) -> bool {
    let is_lead = |chain: &&String| skeleton::is_for_source_ranges(chain);
    let mut leads = view.chains.iter().filter(|(name, chain)| is_lead(name) && chain.base.is_some());
    let is_jump = |verdict: &Verdict| matches!(verdict, Verdict::Jump(to) if to == skeleton::FIREWALL_CHECK);
    leads.any(|(name, _)| verdicts(view, name).any(is_jump))
}

/// Returns the address with which a rule compares the destination.
fn compared_address(family: Family, rule: &Rule) -> Option<IpAddr> {
    let destination = address(family, Side::Destination, 0).normalized();
    rule.expressions.windows(2).find_map(|pair| match pair {
        [load, Expr::Cmp(compare)]
            if load.clone().normalized() == destination && compare.operation == CmpOperation::EQ =>
        {
            read_address(family, &compare.data)
        }
        _ => None,
    })
}

struct Chains<'a> {
    view: &'a View,
    holds_endpoints: bool,
    family: Family,
}

impl Chains<'_> {
    fn class(&self, chain: &str) -> Reach {
        if !self.has_rules(chain) {
            return Reach::Nowhere;
        }
        let Ok(class) = chain.parse::<Class>() else { return Reach::Unknown };
        let leads_to = |balance: Balance| {
            let name = balance.to_string();
            verdicts(self.view, chain)
                .any(|verdict| matches!(verdict, Verdict::Goto(target) if *target == name))
        };
        if !class.balances().all(leads_to) {
            return Reach::Unknown;
        }
        let mut found = class.balances().map(|balance| self.balance(balance)).collect::<Vec<_>>();
        found.sort_unstable();
        if found.first() != found.last() && found.last() == Some(&Rules::Counting) {
            // The two lists have their endpoints in different sets.
            return Reach::Unknown;
        }
        match found.last() {
            Some(Rules::Ours) => Reach::Lists(Lists::of(class, false)),
            Some(Rules::Counting) => Reach::Lists(Lists::of(class, true)),
            Some(Rules::None) => Reach::Nowhere,
            Some(Rules::Foreign) | None => Reach::Unknown,
        }
    }

    fn balance(&self, balance: Balance) -> Rules {
        if !self.has_rules(&balance.to_string()) {
            return Rules::None;
        }
        // The rules that capture name the relay's listeners, which the reader does not know.
        if !self.holds_endpoints {
            return Rules::Ours;
        }
        let is_written = |counters| {
            // The rules that choose an endpoint depend on nothing else.
            let settings = Settings { counters, ..Settings::plain(self.family) };
            let layout = Layout { settings: &settings, target: Target::Endpoints, has_source_ranges: false };
            same_rules(self.view, &skeleton::balance_chain(layout, balance))
        };
        if is_written(false) {
            Rules::Ours
        } else if is_written(true) {
            Rules::Counting
        } else {
            Rules::Foreign
        }
    }

    fn has_rules(&self, chain: &str) -> bool {
        self.view.rules.get(chain).is_some_and(|rules| !rules.is_empty())
    }
}

/// The rules of a chain, from the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rules {
    Ours,
    /// Ours, and they count.
    Counting,
    Foreign,
    None,
}

/// Returns the verdicts of a chain's rules.
fn verdicts<'a>(view: &'a View, chain: &str) -> impl Iterator<Item = &'a Verdict> {
    let rules = view.rules.get(chain).map(Vec::as_slice).unwrap_or_default();
    rules.iter().flat_map(|rule| &rule.expressions).filter_map(|expression| match expression {
        Expr::Immediate(Immediate { data: Data::Verdict(verdict), .. }) => Some(verdict),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(class: &str) -> Lists {
        Lists::of(class.parse().unwrap(), false)
    }

    #[test]
    fn classes_of_one_service_port_agree() {
        let both = Lists { cluster: Some(3), local: Some(1), affinity: None, has_slots: false };
        assert_eq!(lists("internal-3").and(lists("external-local-3-1")), Some(both));
        assert_eq!(lists("internal-local-1").and(lists("external-3")), Some(both));
        assert_eq!(lists("internal-3").and(lists("external-2")), None);
        assert_eq!(lists("internal-3").and(lists("external-3-affinity-60")), None);
        assert!(lists("external-local-3-0").drops() && !lists("internal-3").drops());
    }
}
