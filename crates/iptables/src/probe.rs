//! Checks whether the rules of this mode can be written on a node.

use std::fmt;

use super::features::OF_AFFINITY;
use super::fixed::CANARY;
use super::program::Error;
use super::rule::{self, IptablesTable};
use super::{Meter, Programs};

/// The chain of the trial rules. No rule leads to it.
const TRIAL: &str = "KUBE-PROXY-TRIAL";

/// A rule that every kernel accepts.
const PLAIN: &str = "-j RETURN";

/// One rule of each kind, by table.
const RULES: [(IptablesTable, &[&str]); 3] = [
    (IptablesTable::Mangle, &[]),
    (
        IptablesTable::Filter,
        &[
            "-m conntrack --ctstate NEW -m comment --comment \"trial\" -j REJECT",
            "-m tcp -p tcp --dport 1 -j REJECT --reject-with tcp-reset",
            "-m addrtype --dst-type LOCAL -m tcp -p tcp --dport 1 -j DROP",
            "-m mark --mark 0x1/0x1 -j ACCEPT",
        ],
    ),
    (
        IptablesTable::Nat,
        &[
            "-m statistic --mode random --probability 0.5000000000 -j RETURN",
            "-m udp -p udp --dport 1 -j MARK --or-mark 0x1",
            // Without an address, a rule is one of either family.
            "-m tcp -p tcp -j DNAT --to-destination :1",
            "-j MASQUERADE --random-fully",
        ],
    ),
];

impl Programs {
    /// Writes one rule of each kind, and removes them again. This checks that the programs run, have permission to write,
    /// and find the kernel features that they need. If only session affinity is missing, logs a warning. Does nothing if
    /// rules of this mode exist, and fails at once if another program holds the lock.
    pub fn probe(&self) -> Result<(), Error> {
        self.lock_is_free()?;
        if self.has_chain(IptablesTable::Nat, CANARY)? {
            return Ok(());
        }
        let all = |out: &mut dyn fmt::Write| {
            RULES.into_iter().try_for_each(|(table, rules)| try_rules(out, table, rules))
        };
        self.restore(all)?;
        match self.restore(|out| try_rules(out, IptablesTable::Nat, [OF_AFFINITY])) {
            Err(error @ Error::Failed { .. }) => {
                tracing::warn!(%error, "rules for session affinity are refused: is the kernel module xt_recent missing?");
            }
            other => drop(other?),
        }
        Ok(())
    }
}

impl Programs {
    /// Writes rules into a chain that no rule leads to, and removes them again. Each is the text of a restore without operation and
    /// chain, behind the name of its table. Rules of tables without a chain of ours are left out. Fails at once if another program
    /// holds the lock.
    pub fn try_rules(&self, rules: &[(&str, Vec<String>)]) -> Result<(), Error> {
        self.lock_is_free()?;
        let known = |(table, rules)| Some((IptablesTable::named(table)?, rules));
        let known: Vec<(IptablesTable, &Vec<String>)> =
            rules.iter().map(|(table, rules)| (*table, rules)).filter_map(known).collect();
        self.restore(|out| known.iter().try_for_each(|(table, rules)| try_rules(out, *table, *rules)))?;
        Ok(())
    }
}

impl Programs {
    /// Writes one rule and removes it. Returns why iptables or the kernel refuses it, or `None` if both accept it. An error says
    /// nothing about the rule: a rule that needs nothing is refused, too, or the program does not end by itself.
    pub(super) fn try_rule(
        &self,
        table: IptablesTable,
        rule: &str,
        meter: &Meter,
    ) -> Result<Option<Error>, Error> {
        self.await_lock(meter)?;
        match self.restore(|out| try_rules(out, table, [rule])) {
            Ok(_) => Ok(None),
            // If a signal ended the program, the result says nothing about the rule.
            Err(error @ Error::Failed { status, .. }) if status.code().is_some() => {
                self.restore(|out| try_rules(out, table, [PLAIN]))?;
                // Another process may have removed the chain of its own trial meanwhile.
                match self.restore(|out| try_rules(out, table, [rule])) {
                    Ok(_) => Ok(None),
                    Err(Error::Failed { status, .. }) if status.code().is_some() => Ok(Some(error)),
                    Err(again) => Err(again),
                }
            }
            Err(error) => Err(error),
        }
    }
}

/// Writes rules into a chain that no rule leads to, and removes the chain in another transaction. In a single one,
/// iptables-nft would send none of them to the kernel: it leaves out rules that the same transaction removes.
pub(super) fn try_rules(
    mut out: &mut dyn fmt::Write,
    table: IptablesTable,
    rules: impl IntoIterator<Item = impl fmt::Display>,
) -> fmt::Result {
    rule::begin(&mut out, table)?;
    rule::declare(&mut out, TRIAL)?;
    for text in rules {
        rule::append(&mut out, TRIAL, text)?;
    }
    rule::commit(&mut out)?;
    rule::begin(&mut out, table)?;
    rule::flush(&mut out, TRIAL)?;
    rule::remove_chain(&mut out, TRIAL)?;
    rule::commit(&mut out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use portolan_model::Family;
    use portolan_sock::namespace::in_new_network_namespace;

    use super::super::Variant;
    use super::*;
    use crate::planner::tests::{example, load, planner};

    /// Tried apart: a node may lack them.
    const OF_SOME_SERVICES: [&str; 3] = ["-m recent", "-m sctp", "-m nfacct"];

    /// Returns the matches and targets in each table of a restore, without jumps to chains of this mode.
    fn matches_and_targets(restore: &str) -> BTreeSet<(String, String)> {
        let mut table = "";
        let mut found = BTreeSet::new();
        for line in restore.lines() {
            table = line.strip_prefix('*').unwrap_or(table);
            let words = rule::words(line);
            let pairs = words.iter().zip(words.iter().skip(1));
            let named =
                pairs.filter(|(flag, name)| matches!(**flag, "-m" | "-j") && !name.starts_with("KUBE-"));
            found.extend(named.map(|(flag, name)| (table.to_owned(), format!("{flag} {name}"))));
        }
        found
    }

    #[test]
    fn the_trial_has_the_matches_and_targets_of_all_services() {
        let mut trial = String::new();
        RULES.into_iter().try_for_each(|(table, rules)| try_rules(&mut trial, table, rules)).unwrap();
        let tried = matches_and_targets(&trial);
        let by_any = |name: &str| tried.iter().any(|(_, tried)| tried == name);
        for (family, services) in [(Family::Ipv4, example::ipv4()), (Family::Ipv6, example::ipv6())] {
            let needed = matches_and_targets(&load(&mut planner(family, &services)));
            assert!(needed.len() > 10, "{needed:?}");
            for (table, name) in needed {
                let is_target = name.starts_with("-j ");
                // A match is the same in each table. A target may be of one table only.
                let is_tried = if is_target { tried.contains(&(table, name.clone())) } else { by_any(&name) };
                assert!(is_tried || OF_SOME_SERVICES.contains(&&*name), "{family}: {name}");
            }
        }
    }

    /// The kernel refuses a match for one protocol in a rule for all, which the programs accept.
    #[test]
    fn the_kernel_sees_trial_rules() {
        for family in Family::BOTH {
            let outcomes = in_new_network_namespace(|| {
                let programs = Programs::of(family, Variant::Nft).expect("iptables is installed");
                let works =
                    |rule| programs.restore(|out| try_rules(out, IptablesTable::Filter, [rule])).is_ok();
                let outcomes = ["-m dccp --sport 1 -j RETURN", "-j RETURN"].map(works);
                let is_left = programs.has_chain(IptablesTable::Filter, TRIAL).unwrap();
                programs.probe().unwrap();
                (outcomes, is_left)
            });
            assert_eq!(outcomes.expect("this test needs root"), ([false, true], false), "{family}");
        }
    }
}
