//! What tests of answers begin with.

use portolan_engine::{Drift, FamilySnapshot, State, Table, Totals};

/// Returns a family in the nftables mode that waits for its first commit.
pub(super) fn waiting(table: Table) -> FamilySnapshot {
    FamilySnapshot {
        family: table.family(),
        mode: "nftables",
        place: "nftables",
        iptables: None,
        table,
        state: State::Waiting,
        pending: 0,
        commits: Vec::new(),
        failures: Vec::new(),
        events: Vec::new(),
        totals: Totals::default(),
        drift: Drift::default(),
        successor: None,
        retired: Vec::new(),
    }
}
