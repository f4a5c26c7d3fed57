//! The removal of this mode's chains where iptables is a front end of nftables: over netlink, and in parts.
//!
//! `iptables-restore` would list the rules of every chain before it removes the chain, and remove all chains in one
//! transaction.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use portolan_model::Family;
use portolan_sock::{Protocol, Socket, SocketError};
use portolan_wire::nftables::{Family as WireFamily, NftablesEvent, request};

use super::fixed::MARK_MASQUERADE;
use super::name::is_of_service;
use super::netlink::{commit, jumps, retry_on_change, wire_family};
use super::present::is_own;
use super::rule::IptablesTable;
use portolan_engine::Error;

/// Chains in one transaction. Each takes a few milliseconds at this size.
const CHAINS: usize = 1024;
/// The kernel's own chains.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// Prefixes in the order of removal. A chain is removed only after the chains that lead to it.
const ORDER: [&str; 5] = ["KUBE-FW-", "KUBE-EXT-", "KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-"];

/// A removal in progress: the parts that remain.
#[derive(Debug)]
pub(super) struct Removal {
    socket: Socket,
    family: WireFamily,
    parts: VecDeque<Part>,
}

/// One transaction, or a wait between two transactions.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// Rules of the kernel's own chains that lead to chains of this mode.
    Entries(Vec<Entry>),
    /// Chains of a table, with their rules.
    Chains(IptablesTable, Vec<String>),
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    table: IptablesTable,
    from: String,
    to: String,
    handle: u64,
}

impl Removal {
    /// Lists the chains in the kernel and plans their removal. Chains that are `kept` stay. So do chains that rules
    /// of other programs lead to, together with the chains that these lead to.
    pub(super) fn plan(family: Family, kept: &impl Fn(&str, &str) -> bool) -> Result<Self, Error> {
        let family = wire_family(family);
        let mut socket = Socket::open(Protocol::Netfilter)?;
        let all = retry_on_change(|| chains(&mut socket, family))?;
        let mut entries = Vec::new();
        let mut parts = VecDeque::new();
        for (table, chains) in all {
            let name = table.to_string();
            let (ours, others): (BTreeSet<_>, BTreeSet<_>) =
                chains.into_iter().partition(|chain| is_own(&name, chain) && !kept(&name, chain));
            if ours.is_empty() {
                continue;
            }
            let rules = |chain: &str| retry_on_change(|| jumps(&mut socket, family, &name, chain));
            let stay = staying(&ours, others, rules, |from, to, handle| {
                entries.push(Entry { table, from: from.to_owned(), to: to.to_owned(), handle });
            })?;
            let mut leaving: Vec<String> = ours.difference(&stay).cloned().collect();
            leaving.sort_by_key(|chain| rank(chain));
            let mut leaving = leaving.into_iter().peekable();
            while leaving.peek().is_some() {
                parts.push_back(Part::Chains(table, leaving.by_ref().take(CHAINS).collect()));
            }
        }
        if !entries.is_empty() {
            parts.push_front(Part::Entries(entries));
        }
        Ok(Self { socket, family, parts })
    }

    /// Carries out the next part, except for chains that are `kept` now. Returns true if parts remain.
    pub(super) fn step(&mut self, kept: &impl Fn(&str, &str) -> bool) -> Result<bool, Error> {
        let family = self.family;
        match self.parts.pop_front() {
            None => {}
            Some(Part::Entries(mut entries)) => {
                entries.retain(|entry| !kept(&entry.table.to_string(), &entry.to));
                commit(&mut self.socket, |transaction| {
                    for Entry { table, from, handle, .. } in &entries {
                        transaction.delete_rule(family, &table.to_string(), from, *handle);
                    }
                })?;
            }
            Some(Part::Chains(table, mut chains)) => {
                let table = table.to_string();
                chains.retain(|chain| !kept(&table, chain));
                commit(&mut self.socket, |transaction| {
                    for chain in &chains {
                        transaction.flush_chain(family, &table, chain);
                    }
                    for chain in &chains {
                        transaction.delete_chain(family, &table, chain);
                    }
                })?;
            }
        }
        Ok(!self.parts.is_empty())
    }
}

/// Lists the chains, by table.
fn chains(
    socket: &mut Socket,
    family: WireFamily,
) -> Result<BTreeMap<IptablesTable, Vec<String>>, SocketError> {
    let mut found: BTreeMap<IptablesTable, Vec<String>> = BTreeMap::new();
    let tables = [IptablesTable::Mangle, IptablesTable::Filter, IptablesTable::Nat]
        .map(|table| (table.to_string(), table));
    socket.dump(&mut request::chains(family), |frame| {
        if let NftablesEvent::NewChain(chain) = NftablesEvent::decode(frame)?
            && chain.family == family
            && let Some((_, table)) = tables.iter().find(|(name, _)| *name == chain.table)
        {
            found.entry(*table).or_default().push(chain.name);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Returns the chains of `ours` that `others` reach, directly or through other chains. Passes the rules by which the
/// kernel's own chains enter `ours` to `entry`.
fn staying<E>(
    ours: &BTreeSet<String>,
    others: BTreeSet<String>,
    mut jumps: impl FnMut(&str) -> Result<Vec<(String, u64)>, E>,
    mut entry: impl FnMut(&str, &str, u64),
) -> Result<BTreeSet<String>, E> {
    let mut stay = BTreeSet::new();
    let mut queue: Vec<String> = others.into_iter().collect();
    while let Some(from) = queue.pop() {
        for (to, handle) in jumps(&from)? {
            if !ours.contains(&to) {
                continue;
            }
            if BUILT_IN.contains(&from.as_str()) && is_entered(&to) {
                entry(&from, &to, handle);
            } else if stay.insert(to.clone()) {
                queue.push(to);
            }
        }
    }
    Ok(stay)
}

/// Returns true if rules of the kernel's own chains lead to this chain of this mode.
fn is_entered(chain: &str) -> bool {
    !is_of_service(chain) && chain != MARK_MASQUERADE
}

fn rank(chain: &str) -> usize {
    match ORDER.iter().position(|prefix| chain.starts_with(prefix)) {
        Some(place) => place.saturating_add(1),
        None if chain == MARK_MASQUERADE => usize::MAX,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_that_rules_of_other_programs_reach_stay() {
        let ours = ["KUBE-MARK-MASQ", "KUBE-SERVICES", "KUBE-SVC-A", "KUBE-SEP-A", "KUBE-SVC-B"];
        let ours: BTreeSet<String> = ours.map(str::to_owned).into();
        let others: BTreeSet<String> = ["PREROUTING", "MINE"].map(str::to_owned).into();
        let jumps = |chain: &str| -> Result<Vec<(String, u64)>, ()> {
            let to: &[(&str, u64)] = match chain {
                "PREROUTING" => &[("KUBE-SERVICES", 1), ("MINE", 2), ("KUBE-MARK-MASQ", 3)],
                "MINE" => &[("KUBE-SVC-A", 4)],
                "KUBE-SVC-A" => &[("KUBE-SEP-A", 5), ("KUBE-MARK-MASQ", 6)],
                _ => &[],
            };
            Ok(to.iter().map(|(to, handle)| ((*to).to_owned(), *handle)).collect())
        };
        let mut entries = Vec::new();
        let stay = staying(&ours, others, jumps, |from, to, handle| {
            entries.push((from.to_owned(), to.to_owned(), handle));
        });
        let expected = ["KUBE-MARK-MASQ", "KUBE-SEP-A", "KUBE-SVC-A"].map(str::to_owned);
        assert_eq!(stay, Ok(expected.into()));
        assert_eq!(entries, [("PREROUTING".to_owned(), "KUBE-SERVICES".to_owned(), 1)]);
    }

    #[test]
    fn chains_go_before_those_that_they_lead_to() {
        let mut chains =
            ["KUBE-MARK-MASQ", "KUBE-SEP-A", "KUBE-SVC-A", "KUBE-EXT-A", "KUBE-FW-A", "KUBE-SERVICES"];
        chains.sort_by_key(|chain| rank(chain));
        assert_eq!(
            chains,
            ["KUBE-SERVICES", "KUBE-FW-A", "KUBE-EXT-A", "KUBE-SVC-A", "KUBE-SEP-A", "KUBE-MARK-MASQ"]
        );
    }
}
