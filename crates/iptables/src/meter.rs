//! The metrics of this mode: numbers of rules, failed restores, and waits for the lock.
//!
//! The data plane writes them and the exporter of metrics reads them, each in a thread of its own.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::rule::IptablesTable;

/// Numbers of rules in the filter and the nat table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// In the filter table.
    pub filter: usize,
    /// In the nat table.
    pub nat: usize,
}

impl Rules {
    pub(super) fn add(&mut self, table: IptablesTable, count: usize) {
        self.change(table, |rules| rules.saturating_add(count));
    }

    pub(super) fn subtract(&mut self, table: IptablesTable, count: usize) {
        self.change(table, |rules| rules.saturating_sub(count));
    }

    fn change(&mut self, table: IptablesTable, change: impl FnOnce(usize) -> usize) {
        let rules = match table {
            IptablesTable::Filter => &mut self.filter,
            IptablesTable::Nat => &mut self.nat,
            IptablesTable::Mangle => return,
        };
        *rules = change(*rules);
    }
}

/// A snapshot of a [`Meter`]. Totals count from the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measures {
    /// Rules in chains of this mode, without the jumps to them from the kernel's own chains
    /// (`sync_proxy_rules_iptables_total`).
    pub rules: Rules,
    /// Rules that the last restore wrote (`sync_proxy_rules_iptables_last`).
    pub written: Rules,
    /// Restores that failed (`sync_proxy_rules_iptables_restore_failures_total`).
    pub restore_failures: u64,
    /// Failed restores that were to write a change only (`sync_proxy_rules_iptables_partial_restore_failures_total`).
    pub partial_restore_failures: u64,
    /// Total time for which restores waited for the lock of the older iptables.
    pub lock_wait: Duration,
    /// Restores that were given up because another program held the lock for too long. They count in
    /// `restore_failures`, too.
    pub lock_timeouts: u64,
}

/// The metrics of one family, shared by the data plane and the exporter of metrics.
#[derive(Debug, Default)]
pub struct Meter {
    filter_rules: AtomicUsize,
    nat_rules: AtomicUsize,
    filter_written: AtomicUsize,
    nat_written: AtomicUsize,
    restore_failures: AtomicU64,
    partial_restore_failures: AtomicU64,
    lock_wait_nanos: AtomicU64,
    lock_timeouts: AtomicU64,
}

/// Each number is independent of the others, so their order does not matter.
const ORDER: Ordering = Ordering::Relaxed;

impl Meter {
    /// Returns a snapshot.
    pub fn read(&self) -> Measures {
        let rules = |filter: &AtomicUsize, nat: &AtomicUsize| Rules {
            filter: filter.load(ORDER),
            nat: nat.load(ORDER),
        };
        Measures {
            rules: rules(&self.filter_rules, &self.nat_rules),
            written: rules(&self.filter_written, &self.nat_written),
            restore_failures: self.restore_failures.load(ORDER),
            partial_restore_failures: self.partial_restore_failures.load(ORDER),
            lock_wait: Duration::from_nanos(self.lock_wait_nanos.load(ORDER)),
            lock_timeouts: self.lock_timeouts.load(ORDER),
        }
    }

    pub(super) fn has(&self, rules: Rules) {
        self.filter_rules.store(rules.filter, ORDER);
        self.nat_rules.store(rules.nat, ORDER);
    }

    pub(super) fn wrote(&self, rules: Rules) {
        self.filter_written.store(rules.filter, ORDER);
        self.nat_written.store(rules.nat, ORDER);
    }

    pub(super) fn failed(&self, partial: bool) {
        self.restore_failures.fetch_add(1, ORDER);
        self.partial_restore_failures.fetch_add(u64::from(partial), ORDER);
    }

    pub(super) fn waited(&self, duration: Duration, in_vain: bool) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.lock_wait_nanos.fetch_add(nanos, ORDER);
        self.lock_timeouts.fetch_add(u64::from(in_vain), ORDER);
    }
}
