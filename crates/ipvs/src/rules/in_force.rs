//! What the rules in a kernel do to packets, as far as it decides which clients reach a Service. The rules of kube-proxy
//! do the same with the same texts.

use portolan_model::Family;

use super::{FILTER, JUMPS, PROXY_FIREWALL, Present, RuleTable, SOURCE_RANGES};
use crate::set::Set;

/// What the rules do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InForce {
    /// Packets to members of `Set::LoadBalancerFirewall` are dropped, unless a source range allows them.
    pub(crate) restrict_sources: bool,
    /// Connections to members of `Set::IpvsIps` are refused, unless a set of Services has the address and port.
    pub(crate) refuse_what_is_in_no_set: bool,
}

impl InForce {
    /// Returns what the rules of two variants of iptables do together.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self {
            restrict_sources: self.restrict_sources || other.restrict_sources,
            refuse_what_is_in_no_set: self.refuse_what_is_in_no_set || other.refuse_what_is_in_no_set,
        }
    }
}

impl Present {
    /// Returns what the rules of a family do.
    pub(crate) fn in_force(&self, family: Family) -> InForce {
        let guarded =
            format!("--match-set {} dst,dst -j {SOURCE_RANGES}", Set::LoadBalancerFirewall.name(family));
        let of_device = format!("--match-set {} dst -j REJECT", Set::IpvsIps.name(family));
        InForce {
            restrict_sources: self.is_entered(PROXY_FIREWALL)
                && self.has(PROXY_FIREWALL, |rule| rule.ends_with(&guarded))
                && self.has(SOURCE_RANGES, |rule| rule == "-j DROP"),
            refuse_what_is_in_no_set: self.is_entered(FILTER)
                && self.has(FILTER, |rule| rule.contains(&of_device)),
        }
    }

    /// Returns true if packets to this host, as those to virtual servers are, enter a chain of the filter table.
    fn is_entered(&self, chain: &str) -> bool {
        self.jumps
            .iter()
            .filter_map(|place| JUMPS.get(*place))
            .any(|jump| jump.table == RuleTable::Filter && jump.from == "INPUT" && jump.to == chain)
    }

    /// Returns true if a chain of the filter table has such a rule.
    fn has(&self, chain: &'static str, is_it: impl Fn(&str) -> bool) -> bool {
        self.chains.get(&(RuleTable::Filter, chain)).into_iter().flatten().any(|rule| is_it(rule))
    }
}
