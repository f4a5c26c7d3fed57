//! What the removal of this mode's chains takes from a table, where the kernel has listed its chains and rules instead of a
//! program of iptables. As in `removal`, a chain that rules of other programs lead to is only emptied.

use std::collections::BTreeSet;

use portolan_iptables::netlink::Jump as Listed;

use super::present::FIREWALL_JUMPS;
use super::{JUMPS, PROXY_FIREWALL, RuleTable, TABLES, uses};

/// What goes from a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Going {
    /// The rules of the kernel's own chains by which packets enter: chain, and the rule's handle.
    pub(crate) entries: Vec<(String, u64)>,
    /// The chains whose rules go.
    pub(crate) chains: BTreeSet<String>,
    /// Those of them that stay without rules, because rules of other programs lead to them.
    pub(crate) held: BTreeSet<String>,
}

impl Going {
    /// Chooses from the chains of a table and its rules that lead to chains.
    pub(crate) fn of(table: &str, chains: BTreeSet<String>, jumps: Vec<Listed<u64>>) -> Self {
        let chains: BTreeSet<String> = chains.into_iter().filter(|chain| uses(table, chain)).collect();
        let from_outside = |jump: &Listed<u64>| chains.contains(&jump.to) && !chains.contains(&jump.from);
        let (entries, others): (Vec<_>, Vec<_>) =
            jumps.into_iter().filter(from_outside).partition(|jump| is_entry(table, &jump.from, &jump.to));
        Self {
            entries: entries.into_iter().map(|jump| (jump.from, jump.rule)).collect(),
            held: others.into_iter().map(|jump| jump.to).collect(),
            chains,
        }
    }
}

/// Returns the names of the tables with rules of this mode.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|table| table.name())
}

/// Returns true if this mode, or the iptables mode before it, enters its chains by a rule that leads so.
fn is_entry(table: &str, from: &str, to: &str) -> bool {
    let is_jump = JUMPS.iter().any(|jump| (jump.table.name(), jump.from, jump.to) == (table, from, to));
    let of_iptables = table == RuleTable::Filter.name() && to == PROXY_FIREWALL;
    is_jump || (of_iptables && FIREWALL_JUMPS.contains(&from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_this_mode_go_and_those_that_others_lead_to_stay_empty() {
        let chains = ["KUBE-SERVICES", "KUBE-MARK-MASQ", "KUBE-NODE-PORT", "KUBE-SVC-X", "OTHERS", "OUTPUT"];
        let jumps = [
            ("OUTPUT", "KUBE-SERVICES"),
            ("KUBE-SERVICES", "KUBE-MARK-MASQ"),
            ("OTHERS", "KUBE-MARK-MASQ"),
            // This mode enters that chain from another one.
            ("PREROUTING", "KUBE-NODE-PORT"),
            ("OUTPUT", "OTHERS"),
        ];
        let listed = |(place, (from, to)): (usize, (&str, &str))| Listed {
            from: from.to_owned(),
            to: to.to_owned(),
            rule: u64::try_from(place).expect("a small number"),
        };
        let jumps = jumps.into_iter().enumerate().map(listed).collect();
        let going = Going::of("nat", chains.map(str::to_owned).into(), jumps);
        let all = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert_eq!(going.entries, [("OUTPUT".to_owned(), 0)]);
        assert_eq!(going.chains, all(&["KUBE-MARK-MASQ", "KUBE-NODE-PORT", "KUBE-SERVICES"]));
        assert_eq!(going.held, all(&["KUBE-MARK-MASQ", "KUBE-NODE-PORT"]));
    }

    #[test]
    fn the_guards_and_the_firewall_of_the_iptables_mode_are_entered() {
        let enters = |table, from, to| is_entry(table, from, to);
        assert!(enters("mangle", "OUTPUT", "KUBE-IPVS-OUT-FILTER"));
        assert!(enters("filter", "INPUT", "KUBE-IPVS-FILTER"));
        assert!(enters("filter", "OUTPUT", "KUBE-PROXY-FIREWALL"));
        assert!(
            !enters("mangle", "INPUT", "KUBE-IPVS-FILTER") && !enters("filter", "INPUT", "KUBE-SERVICES")
        );
    }
}
