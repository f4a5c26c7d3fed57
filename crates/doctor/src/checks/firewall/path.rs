//! What brings packets of Services to endpoints. It decides which hooks they pass, and what a rule can see there.

use crate::checks::proxies::{Rules, next_mode};
use crate::facts::{Facts, Mode};
use crate::finding::Code;
use crate::rules::{Base, Hook};

/// What brings packets of Services to endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::checks) enum Path {
    /// Destination NAT, in the modes nftables and iptables.
    Nat,
    /// IPVS: packets pass input, and connection tracking does not count them as translated.
    Ipvs,
    /// The agent in userspace mode. The kernel delivers packets to it with their destination and a mark.
    Tproxy,
    /// The agent in userspace mode. The kernel translates packets to its ports.
    Redirect,
}

impl Path {
    /// Returns the path in the mode that a start would choose, or else in the one that runs. If no mode is known, it is that
    /// of the nftables and iptables modes.
    pub(in crate::checks) fn of(facts: &Facts) -> Self {
        let planned = facts.next_mode.is_some();
        match next_mode(facts) {
            Some(Mode::Ipvs) => Self::Ipvs,
            Some(Mode::Userspace) => {
                let rules = Rules::of(facts);
                let redirects = if planned { facts.next_redirects } else { rules.chains && !rules.userspace };
                if redirects { Self::Redirect } else { Self::Tproxy }
            }
            Some(Mode::Nftables | Mode::Iptables) | None => Self::Nat,
        }
    }

    /// Returns true if connection tracking says of all packets of Services at a base chain that they are translated.
    pub(super) fn is_translated_at(self, base: Base) -> bool {
        base.sees_translated()
            && match self {
                Self::Nat => true,
                Self::Ipvs | Self::Tproxy => false,
                // The agent's own packets to endpoints are not translated.
                Self::Redirect => matches!(base.hook, Hook::Prerouting | Hook::Input),
            }
    }

    /// Returns true if packets of every Service pass the hook of a code. Input is passed by packets to processes of this
    /// node only, if nothing but NAT translates. Packets that are forwarded in userspace mode come from other nodes.
    pub(super) fn concerns_all(self, code: Code) -> bool {
        match code {
            Code::InputDropped => self != Self::Nat,
            Code::ForwardDropped => !self.is_agent(),
            _ => true,
        }
    }

    /// Returns what a rule at the hook of a code breaks, if it is not what the code says.
    pub(super) fn breaks(self, code: Code) -> Option<&'static str> {
        match code {
            Code::ForwardDropped if self.is_agent() => {
                Some("Connections that other nodes bring to endpoints on this node get no answer.")
            }
            Code::OutputDropped | Code::PostroutingDropped if self.is_agent() => Some(
                "No Service gets an answer from endpoints in pods: the agent's own packets to them are dropped.",
            ),
            _ => None,
        }
    }

    const fn is_agent(self) -> bool {
        matches!(self, Self::Tproxy | Self::Redirect)
    }
}
