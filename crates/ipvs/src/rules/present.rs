//! What the kernel has of this mode's rules, and of the iptables mode's in the chains that both have.

use std::collections::{BTreeMap, BTreeSet};

use super::{JUMPS, Jump, RuleTable, SERVICES, TABLES, known, target};

/// The chain of the nat table that leads to endpoints in the iptables mode.
pub(super) const REPLACED_LAST: (RuleTable, &str) = (RuleTable::Nat, SERVICES);
/// The chain to which that one leads last in the iptables mode.
const NODE_PORTS: &str = "KUBE-NODEPORTS";
/// How the names of the chains of Services begin to which that one leads in the iptables mode.
const OF_SERVICES: [&str; 4] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-"];

/// The rule by which packets enter `KUBE-PROXY-FIREWALL` in the iptables mode. Here they must not: IPVS sends packets through `OUTPUT`
/// with the address of their endpoint, which can be that of a load balancer, too, and connection tracking does not count them as
/// translated.
pub(super) const FIREWALL_JUMP: &str = "-m conntrack --ctstate NEW -m comment --comment \"kubernetes load balancer firewall\" -j KUBE-PROXY-FIREWALL";
/// The chains of the filter table that have it in the iptables mode.
pub(super) const FIREWALL_JUMPS: [&str; 3] = ["INPUT", "OUTPUT", "FORWARD"];

/// The chains of this mode in the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Present {
    pub(super) chains: BTreeMap<(RuleTable, &'static str), Vec<String>>,
    /// The jumps of [`JUMPS`] that exist, by index. One that exists twice is here twice.
    pub(super) jumps: Vec<usize>,
    /// The chains that have [`FIREWALL_JUMP`], once for each time.
    pub(super) firewall_jumps: Vec<&'static str>,
    /// The chains that rules of other programs lead to.
    pub(super) held: BTreeSet<(RuleTable, &'static str)>,
    table: Option<RuleTable>,
}

impl Present {
    /// Adds one line of a save.
    pub(in super::super) fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix('*') {
            self.table = TABLES.into_iter().find(|table| table.name() == name.trim_end());
        } else if let Some(table) = self.table {
            if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                if let Some(chain) = known(table, name) {
                    self.chains.entry(chain).or_default();
                }
            } else if let Some((from, rule)) =
                line.strip_prefix("-A ").and_then(|rule| rule.trim_end().split_once(' '))
            {
                self.rule(table, from, rule);
            }
        }
    }

    fn rule(&mut self, table: RuleTable, from: &str, rule: &str) {
        let same = |jump: &Jump| jump.table == table && jump.from == from && jump.rule() == rule;
        let of_iptables = FIREWALL_JUMPS.into_iter().find(|chain| *chain == from);
        if let Some(chain) = known(table, from) {
            self.chains.entry(chain).or_default().push(rule.to_owned());
        } else if let Some(place) = JUMPS.iter().position(same) {
            self.jumps.push(place);
        } else if let Some(from) = of_iptables.filter(|_| table == RuleTable::Filter && rule == FIREWALL_JUMP)
        {
            self.firewall_jumps.push(from);
        } else {
            self.hold(table, rule);
        }
    }

    pub(super) fn missing(&self) -> impl Iterator<Item = &'static Jump> {
        JUMPS.iter().enumerate().filter(|(place, _)| !self.jumps.contains(place)).map(|(_, jump)| jump)
    }

    /// Returns true if the iptables mode, or kube-proxy in it, has filled the chain that it shares with this one. Its rule
    /// for node ports alone does not show that: it is missing if no address of this node accepts node ports.
    pub(super) fn is_of_another_mode(&self) -> bool {
        let leads_on =
            |to: &str| to == NODE_PORTS || OF_SERVICES.into_iter().any(|prefix| to.starts_with(prefix));
        let rules = self.chains.get(&REPLACED_LAST).into_iter().flatten();
        rules.filter_map(|rule| target(rule)).any(leads_on)
    }
}
