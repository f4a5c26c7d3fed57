//! What a full load needs to know of the rules in the kernel: chains that may be stale, chains that need not be
//! written, and jumps that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::fixed::{FILTER_DISPATCH, FIREWALL, IPVS_JUMPS, JUMPS, Jump, MARK_MASQUERADE, OWN};
use super::name::{declared, is_of_service};
use super::rule::{self, Candidate, IptablesTable, unprinted};
use super::saved::Content;

/// The state of the kernel's tables, read from the output of `iptables-save`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// Chains of Service ports in the nat table, with their content.
    pub(super) service_chains: BTreeMap<String, Content>,
    /// The content of the chains that exist independently of Services.
    contents: BTreeMap<(IptablesTable, &'static str), Content>,
    /// The chains in the tables that exist independently of Services.
    pub(super) fixed: BTreeSet<(IptablesTable, &'static str)>,
    /// The jumps of [`JUMPS`] that exist, by index. One that exists twice is here twice.
    jumps: Vec<usize>,
    /// The jumps of [`IPVS_JUMPS`] that exist, by index. One that exists twice is here twice.
    ipvs_jumps: Vec<usize>,
    /// Chains of this mode that rules of other programs lead to.
    held: BTreeSet<(IptablesTable, String)>,
    /// Digests of the rules in the chains of the filter table that Services share.
    filter_rules: BTreeMap<&'static str, BTreeSet<u64>>,
    /// Those of these chains in which a rule occurs twice.
    repeating: BTreeSet<&'static str>,
    /// Those of these chains that have rules of the IPVS mode, which match sets.
    with_sets: BTreeSet<&'static str>,
    /// Tables of which a save does not tell the rules of chains.
    unprinted: BTreeSet<IptablesTable>,
    table: Option<IptablesTable>,
}

impl Present {
    /// Returns the rules that are looked for in a table that a save does not print.
    pub(super) fn candidates() -> Vec<Candidate<'static>> {
        JUMPS.iter().chain(&IPVS_JUMPS).map(|jump| (jump.table.name(), jump.from, jump.rule)).collect()
    }

    /// Adds one line of a save.
    pub fn line(&mut self, line: &str) {
        if let Some(table) = unprinted(line) {
            self.unprinted.extend(IptablesTable::named(table));
        } else if let Some(name) = line.strip_prefix('*') {
            self.table = IptablesTable::named(name.trim_end());
        } else if let Some(table) = self.table {
            if let Some(chain) = line.strip_prefix(':') {
                if let Some(name) = declared(chain) {
                    self.chain(table, name);
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                self.rule(table, rule.trim_end());
            }
        }
    }

    fn chain(&mut self, table: IptablesTable, name: &str) {
        if table == IptablesTable::Nat && is_of_service(name) {
            self.service_chains.insert(name.to_owned(), Content::default());
            return;
        }
        self.fixed.extend(known().find(|known| *known == (table, name)));
    }

    fn rule(&mut self, table: IptablesTable, rule: &str) {
        let Some((from, rule)) = rule.split_once(' ') else { return };
        if table == IptablesTable::Nat
            && let Some(content) = self.service_chains.get_mut(from)
        {
            content.add(rule);
            return;
        }
        if let Some((_, chain)) = known().find(|known| *known == (table, from)) {
            // `iptables-save` prints two spaces before the name of a counter.
            let rule = rule.replace("  ", " ");
            self.contents.entry((table, chain)).or_default().add(&rule);
            if table == IptablesTable::Filter && FILTER_DISPATCH.contains(&chain) {
                self.filter_rule(chain, &rule);
            }
            return;
        }
        let same = |jump: &Jump| jump.table == table && jump.from == from && jump.rule == rule;
        let jump = JUMPS.iter().position(same);
        if jump.is_none()
            && let Some(to) = target(rule).filter(|to| is_own(&table.to_string(), to))
        {
            self.held.insert((table, to.to_owned()));
        }
        self.jumps.extend(jump);
        self.ipvs_jumps.extend(IPVS_JUMPS.iter().position(same));
    }

    fn filter_rule(&mut self, chain: &'static str, rule: &str) {
        if !self.filter_rules.entry(chain).or_default().insert(Content::of_rule(rule)) {
            self.repeating.insert(chain);
        }
        if rule.split(' ').any(|word| word == "--match-set") {
            self.with_sets.insert(chain);
        }
    }

    /// Returns true if a chain of the filter table that Services share has this rule, as a save prints it.
    pub(super) fn has_filter_rule(&self, chain: &str, rule: &str) -> bool {
        self.filter_rules.get(chain).is_some_and(|rules| rules.contains(&Content::of_rule(rule)))
    }

    /// Returns true if a rule occurs twice in a chain of the filter table that Services share.
    pub(super) fn repeats(&self, chain: &str) -> bool {
        self.repeating.contains(chain)
    }

    /// Returns true if the rules of the table's chains are not known.
    pub(super) fn is_unprinted(&self, table: IptablesTable) -> bool {
        self.unprinted.contains(&table)
    }

    /// Returns true if rules of such a chain match sets, as those of the IPVS mode do.
    pub(super) fn matches_sets(&self, chain: &str) -> bool {
        self.with_sets.contains(chain)
    }

    /// Returns the content of a chain that exists independently of Services; `None` if the chain is missing.
    pub(super) fn content(&self, table: IptablesTable, chain: &'static str) -> Option<Content> {
        let is_there = self.fixed.contains(&(table, chain));
        is_there.then(|| self.contents.get(&(table, chain)).copied().unwrap_or_default())
    }

    /// Returns the jumps that are missing, in the order to create them.
    pub(super) fn missing_jumps(&self) -> impl Iterator<Item = &'static Jump> {
        JUMPS.iter().enumerate().filter(|(index, _)| !self.jumps.contains(index)).map(|(_, jump)| jump)
    }

    /// Returns the jumps of the IPVS mode that exist, once for each time.
    pub(super) fn ipvs_jumps(&self) -> impl Iterator<Item = &'static Jump> {
        self.ipvs_jumps.iter().filter_map(|index| IPVS_JUMPS.get(*index))
    }

    /// Returns the restore that removes this mode's chains and the jumps to them, except for chains that are `kept`.
    /// What kubelet shares stays. A chain that rules of other programs lead to stays, too, without its rules. `KUBE-MARK-MASQ` stays
    /// with its rules then, and if it is a chain of a Service, all chains of Services do. Empty if there is nothing to remove.
    pub(super) fn removal(&self, kept: impl Fn(&str, &str) -> bool) -> String {
        let mut text = String::new();
        for table in [IptablesTable::Filter, IptablesTable::Nat, IptablesTable::Mangle] {
            // Writing to a String cannot fail.
            let name = table.to_string();
            let of_services = self.held.iter().any(|(held, chain)| *held == table && is_of_service(chain));
            let stays = |chain: &str| {
                let inner = is_of_service(chain) || chain == MARK_MASQUERADE;
                inner && (of_services || self.is_held(table, chain))
            };
            let _ = self.remove_from(table, |chain| kept(&name, chain) || stays(chain), &mut text);
        }
        text
    }

    fn remove_from(
        &self,
        table: IptablesTable,
        kept: impl Fn(&str) -> bool,
        out: &mut impl fmt::Write,
    ) -> fmt::Result {
        let own = OWN.into_iter().filter(|chain| chain.0 == table && self.fixed.contains(chain));
        let services = self.service_chains.keys().filter(|_| table == IptablesTable::Nat).map(String::as_str);
        let chains: Vec<&str> =
            own.map(|(_, name)| name).chain(services).filter(|chain| !kept(chain)).collect();
        if chains.is_empty() {
            return Ok(());
        }
        rule::begin(out, table)?;
        let jumps = self.jumps.iter().filter_map(|index| JUMPS.get(*index));
        for jump in jumps.filter(|jump| jump.table == table && !jump.shared && chains.contains(&jump.to())) {
            rule::remove(out, jump.from, jump.rule)?;
        }
        // This removes its rules.
        chains.iter().try_for_each(|chain| rule::declare(out, chain))?;
        let unheld = chains.iter().filter(|chain| !self.is_held(table, chain));
        unheld.into_iter().try_for_each(|chain| rule::remove_chain(out, chain))?;
        rule::commit(out)
    }

    /// Returns true if rules of other programs lead to a chain of this mode. The kernel refuses to remove such a chain.
    pub(super) fn is_held(&self, table: IptablesTable, chain: &str) -> bool {
        self.held.iter().any(|(of, held)| *of == table && held == chain)
    }

    /// Returns true if one of these chains has rules.
    pub(super) fn has_rules(&self, table: IptablesTable, chains: &[&'static str]) -> bool {
        chains.iter().any(|chain| self.contents.contains_key(&(table, *chain)))
    }

    /// Returns true if a chain is missing.
    pub(super) fn lacks(&self, table: IptablesTable, chain: &'static str) -> bool {
        !self.fixed.contains(&(table, chain))
    }
}

/// Returns the target of a rule of a save: a chain or a built-in target.
fn target(rule: &str) -> Option<&str> {
    let way = ["-j ", "-g "].into_iter().filter_map(|flag| Some(rule.rfind(flag)? + flag.len())).max()?;
    rule.get(way..)?.split(' ').next()
}

/// Returns true if this mode makes the chain and does not share it with kubelet.
pub fn is_own(table: &str, chain: &str) -> bool {
    let of_service = table == "nat" && is_of_service(chain);
    of_service || OWN.iter().any(|(own, name)| *name == chain && own.to_string() == table)
}

/// Returns true for the chains of [`is_own`] and for the one that kubelet shares. Other programs must not change
/// their rules.
pub(super) fn is_watched(table: &str, chain: &str) -> bool {
    is_own(table, chain) || (table == "filter" && chain == FIREWALL)
}

/// Returns the chains that exist independently of Services.
fn known() -> impl Iterator<Item = (IptablesTable, &'static str)> {
    OWN.into_iter().chain([(IptablesTable::Filter, FIREWALL)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed::CANARY;

    fn read(saved: &str) -> Present {
        let mut present = Present::default();
        saved.lines().for_each(|line| present.line(line));
        present
    }

    #[test]
    fn a_removal_takes_each_copy_of_a_jump_and_empties_what_others_lead_to() {
        let jump =
            JUMPS.iter().find(|jump| jump.from == "PREROUTING" && jump.to() == "KUBE-SERVICES").unwrap();
        let saved = |rules: &str| {
            format!(
                "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n:MINE - [0:0]\n\
                 -A PREROUTING {rule}\n{rules}-A KUBE-SERVICES -j KUBE-SVC-A\nCOMMIT\n",
                rule = jump.rule
            )
        };
        let removal = |rules: &str| read(&saved(rules)).removal(|_, _| false);
        let plain = removal("");
        assert_eq!(plain.matches(jump.rule).count(), 1, "{plain}");
        assert!(plain.contains("-X KUBE-SERVICES\n") && plain.contains("-X KUBE-SVC-A\n"), "{plain}");
        let twice = removal(&format!("-A PREROUTING {}\n", jump.rule));
        assert_eq!(twice.matches(jump.rule).count(), 2, "{twice}");
        let held = removal("-A MINE -j KUBE-SERVICES\n");
        assert!(held.contains(":KUBE-SERVICES ") && !held.contains("-X KUBE-SERVICES\n"), "{held}");
        assert!(held.contains(jump.rule) && held.contains("-X KUBE-SVC-A\n"), "{held}");
        let of_service = removal("-A MINE -j KUBE-SVC-A\n");
        assert!(
            of_service.contains("-X KUBE-SERVICES\n") && !of_service.contains("KUBE-SVC-A"),
            "{of_service}"
        );
    }

    #[test]
    fn finds_chains_and_jumps_of_a_save() {
        let saved = "\
# Generated by iptables-save
*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*raw
:KUBE-SVC-OTHER - [0:0]
COMMIT
*filter
:INPUT ACCEPT [12:345]
:KUBE-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD
-A FORWARD -j KUBE-FIREWALL
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SEP-A - [0:0]
-A KUBE-SERVICES -j KUBE-SEP-A
COMMIT
";
        let present = read(saved);
        assert_eq!(present.service_chains.keys().collect::<Vec<_>>(), ["KUBE-SEP-A"]);
        assert!(!present.lacks(IptablesTable::Mangle, CANARY));
        assert!(present.lacks(IptablesTable::Nat, CANARY));
        assert!(!present.lacks(IptablesTable::Filter, FIREWALL));
        let missing: Vec<_> = present.missing_jumps().map(|jump| (jump.from, jump.rule)).collect();
        assert_eq!(missing.len(), 12);
        assert!(!missing.contains(&("INPUT", "-j KUBE-FIREWALL")));
        assert!(missing.contains(&("OUTPUT", "-j KUBE-FIREWALL")));
        assert!(!missing.iter().any(|(_, rule)| rule.ends_with("KUBE-FORWARD")));
    }
}
