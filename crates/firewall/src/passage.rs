//! Which chains of a hook a packet to a Service passes, and whether they see its destination before or after the translation.
//!
//! Connection tracking translates a packet while it is in a hook, and the packet goes on in that hook. IPVS takes the packet
//! out of a hook and sends it anew if the endpoint is on another host or in a pod (`ip_vs_ops4` and
//! `ip_vs_nat_send_or_cont` of Linux, `net/netfilter/ipvs`).

use super::{Base, Hook, TRANSLATION_PRIORITY};

/// Priority at which connection tracking translates sources (`NF_IP_PRI_NAT_SRC`).
const SOURCE_PRIORITY: i32 = 100;
/// Priority at which IPVS takes arriving packets (`NF_IP_PRI_NAT_SRC - 1`).
const IPVS_INPUT_PRIORITY: i32 = SOURCE_PRIORITY - 1;
/// Priority at which IPVS takes packets of this node (`NF_IP_PRI_NAT_DST + 2`).
const IPVS_OUTPUT_PRIORITY: i32 = TRANSLATION_PRIORITY + 2;

/// A hook that a packet passes, in whole or in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// All chains. Connection tracking has translated the packet, or does so at its priority.
    Tracked(Hook),
    /// All chains. The packet is translated later.
    Untranslated(Hook),
    /// The chains that are called before IPVS takes the packet.
    BeforeIpvs(Hook),
    /// The chains that are called after IPVS has translated a packet that stays on this node.
    AfterIpvs(Hook),
    /// The chains that are called for a packet that IPVS sends anew. Those of type nat are not: the connection has been at one
    /// before.
    SentByIpvs(Hook),
}

impl Passage {
    pub(crate) const fn hook(self) -> Hook {
        match self {
            Self::Tracked(hook)
            | Self::Untranslated(hook)
            | Self::BeforeIpvs(hook)
            | Self::AfterIpvs(hook)
            | Self::SentByIpvs(hook) => hook,
        }
    }

    /// Returns true if a base chain of the hook is called.
    pub fn is_of(self, base: Base) -> bool {
        self.sees_translated(base).is_some()
    }

    /// Returns whether a base chain of the hook sees the translated packet. `None` if it is not called.
    pub(crate) fn sees_translated(self, base: Base) -> Option<bool> {
        match self {
            Self::Tracked(_) => Some(base.sees_translated()),
            Self::Untranslated(_) => Some(false),
            Self::BeforeIpvs(_) => is_before_ipvs(base).then_some(false),
            Self::AfterIpvs(_) => (!is_before_ipvs(base)).then_some(true),
            Self::SentByIpvs(_) => (!base.nat).then_some(true),
        }
    }
}

/// Returns true if the kernel calls a chain before IPVS. Chains of type nat are called together, whatever their priorities.
const fn is_before_ipvs(base: Base) -> bool {
    match base.hook {
        Hook::Input if base.nat => false,
        Hook::Output if base.nat => true,
        Hook::Input => base.priority < IPVS_INPUT_PRIORITY,
        Hook::Output => base.priority < IPVS_OUTPUT_PRIORITY,
        Hook::Ingress | Hook::Prerouting => true,
        Hook::Forward | Hook::Postrouting | Hook::Egress => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_on_both_sides_of_ipvs() {
        let base = |hook, priority, nat| Base { hook, priority, nat, drops: false };
        let (input, output) = (Hook::Input, Hook::Output);
        for (base, is_before) in [
            (base(input, 0, false), true),
            (base(input, 98, false), true),
            (base(input, 99, false), false),
            (base(input, 100, true), false),
            (base(input, 50, true), false),
            (base(output, -150, false), true),
            (base(output, -100, true), true),
            (base(output, 50, true), true),
            (base(output, -98, false), false),
            (base(output, 0, false), false),
        ] {
            let (before, after) = (Passage::BeforeIpvs(base.hook), Passage::AfterIpvs(base.hook));
            assert_eq!(before.sees_translated(base), is_before.then_some(false), "{base:?}");
            assert_eq!(after.sees_translated(base), (!is_before).then_some(true), "{base:?}");
            let sent = Passage::SentByIpvs(base.hook).sees_translated(base);
            assert_eq!(sent, (!base.nat).then_some(true), "{base:?}");
        }
    }

    #[test]
    fn connection_tracking_translates_within_a_hook() {
        let base = |hook, priority| Base { hook, priority, nat: false, drops: false };
        let tracked = |base: Base| Passage::Tracked(base.hook).sees_translated(base);
        assert_eq!(tracked(base(Hook::Prerouting, -300)), Some(false));
        assert_eq!(tracked(base(Hook::Prerouting, 0)), Some(true));
        assert_eq!(tracked(base(Hook::Input, -300)), Some(true));
        let late = base(Hook::Prerouting, 0);
        assert_eq!(Passage::Untranslated(Hook::Prerouting).sees_translated(late), Some(false));
    }
}
