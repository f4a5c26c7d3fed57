//! What the engine holds and has done, at one moment.

use std::time::Instant;

use portolan_model::Family;

use super::attempt::Attempt;
use super::history::{HistoryEvent, Totals};
use super::state::State;
use crate::table::Table;

/// What one family's lane holds. It is cheap: the table is shared with the engine until either changes. If it is kept, the
/// engine's next change copies the whole table.
#[derive(Debug, Clone)]
pub struct FamilySnapshot {
    /// The family.
    pub family: Family,
    /// The mode of the active data plane.
    pub mode: &'static str,
    /// The place of the active data plane.
    pub place: &'static str,
    /// The place of its chains of iptables, see [`Claims::place`](crate::Claims::place). `None` if it has none.
    pub iptables: Option<&'static str>,
    /// The wanted state.
    pub table: Table,
    /// Whether the kernel has it.
    pub state: State,
    /// Number of Service ports with a change that waits for the next commit.
    pub pending: usize,
    /// The last commits, the oldest first.
    pub commits: Vec<Attempt>,
    /// The last failures, the oldest first.
    pub failures: Vec<Attempt>,
    /// What an operator may want to know later, the oldest first.
    pub events: Vec<HistoryEvent>,
    /// What was done since the start of the engine.
    pub totals: Totals,
    /// Changes of the rules by other programs since the start of the engine.
    pub drift: Drift,
    /// The mode of the data plane that is to replace the active one.
    pub successor: Option<&'static str>,
    /// The places of replaced data planes whose rules are being removed.
    pub retired: Vec<&'static str>,
}

/// Changes of the rules by other programs since the start of the engine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drift {
    /// How often a comparison was due because another program may have changed the rules.
    pub noticed: u64,
    /// How often such a comparison had to write something.
    pub repaired: u64,
    /// When that was last noticed.
    pub last: Option<Instant>,
    /// When such a comparison last had to write something.
    pub last_repaired: Option<Instant>,
}
