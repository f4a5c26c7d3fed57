//! The two layouts of a table: packets of Services are translated to endpoints, or captured for the relay.
//!
//! Sets, ids, classes and checks are the same in both ([`skeleton`](super::skeleton)), so that both modes interpret a
//! Service port in the same way. A layout owns the rest: the names, the base chains, how a packet is recognized that a
//! Service has taken, and the rules of classes and of endpoints. It must not know Service ports.

mod capture;
mod translate;

use portolan_model::{Family, Settings};
use portolan_wire::nftables::Expr;

use super::chain::{ChainBody, FamilyTable, RuleBody, commented, rule};
use super::class::{Balance, Class};
use super::element::Set;
use super::expression::{goto, is_marked, local_pod, reset_priority, status_dnat};
pub(super) use capture::CONNECTIONS_PRIORITY;
pub use capture::{Listeners, MODE as CAPTURE_MODE, TABLE as CAPTURE_TABLE, capture_mark};
pub use translate::TABLE;

/// `NF_IP_PRI_NAT_DST` (`netfilter_ipv4.h`).
pub(super) const NAT_PRIORITY: i32 = -100;

/// The layout that translates packets.
pub(crate) const TRANSLATE: &Kind = &translate::KIND;
/// The layout that captures packets.
pub(crate) const CAPTURE: &Kind = &capture::KIND;

/// What of a layout is the same for all settings.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The mode, as in configuration files.
    pub(crate) mode: &'static str,
    /// The name of the table, in either family.
    pub(crate) table: &'static str,
    /// The base chain that leads packets that this node receives to the first lookup.
    pub(crate) first_chain: &'static str,
    /// True if the table has the endpoints. Otherwise the relay has them.
    pub(crate) holds_endpoints: bool,
    /// The kernel modules that the rules need besides `nf_tables`.
    pub(crate) modules: &'static str,
    /// Returns true for a base chain that is emptied first when the table is removed.
    pub(crate) leads_in: fn(&str) -> bool,
}

impl Kind {
    /// Returns the table in a family.
    pub(crate) const fn place(&self, family: Family) -> FamilyTable {
        FamilyTable { family, table: self.table }
    }
}

/// Where packets of Services are led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// To endpoints.
    Endpoints,
    /// To the relay.
    Relay(Listeners),
}

impl Target {
    /// Returns the kind of the layout.
    pub(crate) const fn kind(self) -> &'static Kind {
        match self {
            Self::Endpoints => TRANSLATE,
            Self::Relay(_) => CAPTURE,
        }
    }
}

/// The inputs that determine the fixed part of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) target: Target,
    /// True if a Service port has source ranges. Without one, no packet meets the check for them.
    pub(crate) has_source_ranges: bool,
}

impl Layout<'_> {
    pub(crate) const fn place(&self) -> FamilyTable {
        self.target.kind().place(self.settings.family)
    }

    /// Returns true if packets find their endpoint by a slot, also without session affinity. An index leads to another
    /// endpoint when one is removed; a slot does not, so its element can count.
    pub(crate) const fn has_slots(&self) -> bool {
        self.settings.counters && self.target.kind().holds_endpoints
    }

    /// Returns true if a set is created with the table.
    pub(crate) const fn has_at_start(&self, set: Set) -> bool {
        !set.is_optional() || (set.is_for_counters() && self.settings.counters)
    }

    /// Returns the chain that only this layout has and that its base chains jump to.
    pub(super) fn own_chain(&self) -> ChainBody {
        match self.target {
            Target::Endpoints => translate::own_chain(self.settings),
            Target::Relay(_) => capture::own_chain(),
        }
    }

    /// Returns what matches packets that a Service has translated or captured.
    pub(super) fn is_taken(&self) -> Vec<Expr> {
        match self.target {
            Target::Endpoints => status_dnat(),
            Target::Relay(_) => is_marked(capture_mark(self.settings)).to_vec(),
        }
    }

    /// Returns the rule that lets packets to endpoints pass. An endpoint can have the address and port of a Service, if it is an
    /// address of a node.
    pub(super) fn passes_to_endpoints(&self) -> RuleBody {
        match self.target {
            Target::Endpoints => translate::translated(),
            Target::Relay(_) => capture::relayed(),
        }
    }

    /// Returns the rule that lets packets of the relay pass, in the layout with a relay.
    pub(super) fn relayed(&self) -> Option<RuleBody> {
        matches!(self.target, Target::Relay(_)).then(capture::relayed)
    }

    /// Returns true if packets of this node to its own node ports without endpoints are refused in the hook output.
    ///
    /// Such a packet passes output and postrouting first, where connection tracking keeps an entry for it. If only the hook input
    /// refused it, later packets from the same port would find this entry and not be translated, even if endpoints have come.
    /// Captured packets need no translation, and those to node ports are captured only when they come back by loopback.
    pub(super) const fn refuses_own_node_ports(&self) -> bool {
        matches!(self.target, Target::Endpoints)
    }

    /// Returns the base chains that lead to the first lookup, and those that belong to them.
    pub(super) fn base_chains(&self) -> [ChainBody; 3] {
        match self.target {
            Target::Endpoints => translate::base_chains(),
            Target::Relay(_) => capture::base_chains(self.settings),
        }
    }

    /// Returns the rules of the chain of a class.
    pub(super) fn class_rules(&self, class: Class) -> Vec<RuleBody> {
        match self.target {
            Target::Endpoints => translate::class_rules(self.settings, class),
            Target::Relay(_) => capture::class_rules(self.settings, class),
        }
    }

    /// Returns the rules of the chain of a set of endpoints.
    pub(super) fn balance_rules(&self, balance: Balance) -> Vec<RuleBody> {
        match self.target {
            Target::Endpoints => translate::balance_rules(self.settings, balance),
            Target::Relay(listeners) => listeners.rules(self.settings, balance.local),
        }
    }
}

/// Returns the rules for external traffic with policy Local: pods and this node use the cluster's endpoints, all other
/// clients those of this node. `from_node` matches packets of this node, and does what has to be done to them.
fn external_local_rules(
    settings: &Settings,
    from_node: Vec<Expr>,
    cluster: Balance,
    local: u16,
) -> Vec<RuleBody> {
    let short_cut = |expressions: Vec<Expr>| [expressions, vec![goto(cluster.to_string())]].concat();
    let mut rules = Vec::new();
    if let Some(is_local) = local_pod(settings, true) {
        rules.push(commented(short_cut(is_local), "short-circuit pod traffic"));
    }
    rules.push(commented(short_cut(from_node), "short-circuit and masquerade local traffic"));
    rules.push(match local {
        0 => commented(reset_priority(0).to_vec(), "no local endpoint: dropped later"),
        backends => rule(vec![goto(Balance { local: true, backends, ..cluster }.to_string())]),
    });
    rules
}
