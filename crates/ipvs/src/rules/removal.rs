//! The removal of this mode's chains and of the jumps to them.
//!
//! The kernel refuses to remove a chain that a rule still leads to, and then changes nothing in the whole table. So a
//! chain that rules of other programs lead to is only emptied. It stays without rules, and packets that enter it
//! return. A clean-up removes it once no such rule is left.

use std::fmt::Write as _;

use super::present::FIREWALL_JUMP;
use super::{CHAINS, JUMPS, Jump, PROXY_FIREWALL, Present, RuleTable, TABLES, is_guard, known, target};

/// A chain of this mode, with its table.
type Chain = (RuleTable, &'static str);

impl Present {
    /// Notes where a rule leads that is in no chain of this mode, and is no jump of it.
    pub(super) fn hold(&mut self, table: RuleTable, rule: &str) {
        self.held.extend(target(rule).and_then(|to| known(table, to)));
    }

    /// Returns the restore that removes the chains of this mode and the jumps to them; empty if there is nothing to
    /// remove. Chains that are `kept` for the iptables mode stay, and so do the jumps to them that both modes have.
    /// Chains that other rules lead to are emptied and stay.
    pub(crate) fn removal(&self, kept: impl Fn(&str, &str) -> bool) -> String {
        self.removal_but_for(|_, _| false, kept)
    }

    /// Returns the same without the removal of the guards and of the jumps to them.
    pub(crate) fn removal_beside_guards(&self, kept: impl Fn(&str, &str) -> bool) -> String {
        self.removal_but_for(is_guard, kept)
    }

    fn removal_but_for(
        &self,
        is_in_use: impl Fn(&str, &str) -> bool,
        kept: impl Fn(&str, &str) -> bool,
    ) -> String {
        let mut text = String::new();
        for table in TABLES {
            let stays = |chain: &str| is_in_use(table.name(), chain);
            let going = self.going(&kept).filter(|chain| chain.0 == table && !stays(chain.1));
            let (held, removed): (Vec<Chain>, Vec<Chain>) =
                going.partition(|chain| self.is_held(*chain, &kept));
            let jumps = self.jumps.iter().filter_map(|place| JUMPS.get(*place));
            let leads_to_going = |jump: &&Jump| {
                jump.table == table && held.iter().chain(&removed).any(|chain| chain.1 == jump.to)
            };
            let is_own = |jump: &&Jump| jump.table == table && !jump.is_shared && !stays(jump.to);
            let jumps: Vec<&Jump> = jumps.filter(|jump| is_own(jump) || leads_to_going(jump)).collect();
            let has_rules = |chain: &&Chain| self.chains.get(chain).is_some_and(|rules| !rules.is_empty());
            let emptied: Vec<&Chain> = held.iter().filter(has_rules).chain(&removed).collect();
            let goes = |chain: &Chain| *chain == (RuleTable::Filter, PROXY_FIREWALL);
            let of_iptables = self.firewall_jumps.iter().filter(|_| held.iter().chain(&removed).any(goes));
            if emptied.is_empty() && jumps.is_empty() && of_iptables.clone().next().is_none() {
                continue;
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, "*{}", table.name());
            for jump in jumps {
                let _ = writeln!(text, "-D {} {}", jump.from, jump.rule());
            }
            for from in of_iptables {
                let _ = writeln!(text, "-D {from} {FIREWALL_JUMP}");
            }
            for (_, chain) in emptied {
                let _ = writeln!(text, ":{chain} - [0:0]");
            }
            for (_, chain) in &removed {
                let _ = writeln!(text, "-X {chain}");
            }
            text.push_str("COMMIT\n");
        }
        text
    }

    /// Returns the chains that stay after the removal because other rules lead to them.
    pub(crate) fn staying(&self, kept: impl Fn(&str, &str) -> bool) -> Vec<&'static str> {
        let held = self.going(&kept).filter(|chain| self.is_held(*chain, &kept));
        held.map(|(_, name)| name).collect()
    }

    /// Returns the chains that exist and are not kept.
    fn going(&self, kept: &impl Fn(&str, &str) -> bool) -> impl Iterator<Item = Chain> {
        self.chains.keys().copied().filter(|(table, chain)| !kept(table.name(), chain))
    }

    /// Returns true if a rule that the removal leaves leads to a chain. It is a rule of another program, or in a chain
    /// that is kept.
    fn is_held(&self, chain: Chain, kept: &impl Fn(&str, &str) -> bool) -> bool {
        let leads_there = |rule: &String| target(rule) == Some(chain.1);
        let of_kept = CHAINS.iter().filter(|(table, from)| *table == chain.0 && kept(table.name(), from));
        let mut rules = of_kept.filter_map(|from| self.chains.get(from)).flatten();
        self.held.contains(&chain) || rules.any(leads_there)
    }
}
