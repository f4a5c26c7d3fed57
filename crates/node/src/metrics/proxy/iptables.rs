//! The work of the iptables mode, under kube-proxy's names and help texts.

use std::sync::Arc;
use std::time::Duration;

use portolan_web::metrics::{MetricKind, Page};

use super::{PerFamily, alpha};
use crate::address::Family;
use crate::metrics::labels::TableLabel;
use crate::metrics::{Counter, Gauge, Metric, Registry, Seconds, Vector};

/// What the data plane of a family has done since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IptablesMeasures {
    /// Present rules in the filter and the nat table.
    pub rules: [usize; 2],
    /// Rules that the last restore wrote, in the filter and the nat table.
    pub written: [usize; 2],
    /// Restores that failed.
    pub restore_failures: u64,
    /// Those that would have written changes only.
    pub partial_restore_failures: u64,
    /// How long restores waited for the lock of iptables-legacy.
    pub lock_wait: Duration,
    /// Restores that failed because another program held that lock.
    pub lock_timeouts: u64,
}

/// The kernel's counters. `None` for a counter that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounters {
    /// Dropped packets that conntrack considers invalid.
    pub invalid: Option<u64>,
    /// Accepted packets to node ports on loopback addresses.
    pub localhost: Option<u64>,
}

pub(super) struct IptablesMetrics {
    rules: Arc<Vector<(Family, TableLabel), Gauge>>,
    written: Arc<Vector<(Family, TableLabel), Gauge>>,
    restore_failures: PerFamily<Counter>,
    partial_restore_failures: PerFamily<Counter>,
    lock_wait: PerFamily<Seconds>,
    lock_timeouts: PerFamily<Counter>,
}

impl IptablesMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            rules: registry.add(
                "kubeproxy_sync_proxy_rules_iptables_total",
                alpha("Total number of iptables rules owned by kube-proxy"),
                Vector::new(Gauge::default),
            ),
            written: registry.add(
                "kubeproxy_sync_proxy_rules_iptables_last",
                alpha("Number of iptables rules written by kube-proxy in last sync"),
                Vector::new(Gauge::default),
            ),
            restore_failures: registry.add(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                alpha("Cumulative proxy iptables restore failures"),
                Vector::new(Counter::default),
            ),
            partial_restore_failures: registry.add(
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                alpha("Cumulative proxy iptables partial restore failures"),
                Vector::new(Counter::default),
            ),
            lock_wait: registry.add(
                "portolan_iptables_lock_wait_seconds_total",
                "Time that restores waited for /run/xtables.lock since the start",
                Vector::new(Seconds::default),
            ),
            lock_timeouts: registry.add(
                "portolan_iptables_lock_timeouts_total",
                "Restores given up because another program held /run/xtables.lock",
                Vector::new(Counter::default),
            ),
        }
    }

    pub(super) fn show(&self, family: Family, measures: &IptablesMeasures) {
        let tables = [TableLabel::Filter, TableLabel::Nat];
        for ((table, rules), written) in tables.into_iter().zip(measures.rules).zip(measures.written) {
            self.rules.with((family, table), |gauge| gauge.set(rules as f64));
            self.written.with((family, table), |gauge| gauge.set(written as f64));
        }
        self.restore_failures.with(family, |counter| counter.set(measures.restore_failures));
        self.partial_restore_failures.with(family, |counter| counter.set(measures.partial_restore_failures));
        self.lock_wait.with(family, |seconds| seconds.set(measures.lock_wait));
        self.lock_timeouts.with(family, |counter| counter.set(measures.lock_timeouts));
    }
}

type Read = Arc<dyn Fn() -> PacketCounters + Send + Sync>;

pub(super) fn add_packet_counters(registry: &Registry, read: Read) {
    registry.add(
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        alpha("packets dropped by iptables to work around conntrack problems"),
        Live { read: Arc::clone(&read), which: |counters| counters.invalid },
    );
    registry.add(
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        alpha("Number of packets accepted on nodeports of loopback interface"),
        Live { read, which: |counters| counters.localhost },
    );
}

/// A counter that is kept elsewhere.
struct Live {
    read: Read,
    which: fn(PacketCounters) -> Option<u64>,
}

impl Metric for Live {
    fn kind(&self) -> MetricKind {
        MetricKind::Counter
    }

    fn collect(&self, name: &str, labels: &str, page: &mut Page) {
        if let Some(count) = (self.which)((self.read)()) {
            page.sample(name, labels, count as f64);
        }
    }
}
