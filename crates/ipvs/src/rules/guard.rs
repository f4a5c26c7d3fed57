//! The rules of a replaced mode that stay as long as addresses of Services are on the device. Connections through virtual servers
//! need these addresses until they end.
//!
//! A process of this node that opens a connection to such an address has the same address as source. The new mode sends the packets
//! to an endpoint, from which no answer would come back. So they are marked to be masqueraded, with the mark of the new mode. And a
//! port of this host that no Service has must not answer at these addresses.

use std::collections::BTreeMap;

use portolan_model::{Family, Settings};

use super::{FILTER, FIRST_PACKETS, NEW, OUT_FILTER, RuleTable, Rules, SOURCE_RANGES};
use crate::set::Set;

/// The chains with these rules. kube-proxy has the second one, too.
const GUARDS: [(RuleTable, &str); 2] = [(RuleTable::Mangle, OUT_FILTER), (RuleTable::Filter, FILTER)];

/// A packet that has no entry in conntrack yet. A flow without answers stays `NEW` after its first packet.
const FIRST: &str = "! --ctstatus CONFIRMED";

/// Returns true if the chain is one of those that the data plane of a replaced mode removes itself: the guards, and the one that their
/// former rules lead to.
pub fn is_kept_while_draining(table: &str, chain: &str) -> bool {
    is_guard(table, chain) || (table, chain) == (RuleTable::Mangle.name(), SOURCE_RANGES)
}

/// Returns true if the chain is one of those that a replaced mode keeps as long as it has addresses.
pub(super) fn is_guard(table: &str, chain: &str) -> bool {
    GUARDS.iter().any(|(of, name)| of.name() == table && *name == chain)
}

impl Rules {
    /// Returns the rules of a replaced mode with addresses on the device. `active` are the settings of the new mode.
    pub(crate) fn of_guards(active: &Settings) -> Self {
        let addresses = Set::IpvsIps.name(active.family);
        let is_in = |field| format!("{NEW} {FIRST} -m set --match-set {addresses} {field}");
        let mark = format!("{:#x}", active.masquerade_mark());
        let captured = format!("{:#x}", active.capture_mark());
        let refusal = match active.family {
            Family::Ipv4 => "icmp-port-unreachable",
            Family::Ipv6 => "icmp6-port-unreachable",
        };
        let chains = BTreeMap::from([
            (
                (RuleTable::Mangle, OUT_FILTER),
                vec![format!("{} -j MARK --set-xmark {mark}/{mark}", is_in("src"))],
            ),
            (
                (RuleTable::Filter, FILTER),
                vec![
                    // The userspace mode leaves the address of the packets that it captures as it is.
                    format!("-m mark --mark {captured}/{captured} -j RETURN"),
                    format!("{FIRST_PACKETS} {} -j REJECT --reject-with tcp-reset", is_in("dst")),
                    format!("! -p tcp {} -j REJECT --reject-with {refusal}", is_in("dst")),
                ],
            ),
        ]);
        Self { chains }
    }
}
