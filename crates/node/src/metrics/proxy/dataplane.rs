//! The data plane's work in the kernel: commits, repairs, stale flows.

use std::sync::Arc;

use super::{LATENCY, PerFamily, alpha};
use crate::metrics::{Counter, Gauge, Histogram, Registry, Vector};

/// From 10 µs, doubled up to 5.24 s. A commit of one change takes a fraction of a millisecond.
const COMMIT: &[f64] = &[
    0.000_01, 0.000_02, 0.000_04, 0.000_08, 0.000_16, 0.000_32, 0.000_64, 0.001_28, 0.002_56, 0.005_12,
    0.010_24, 0.020_48, 0.040_96, 0.081_92, 0.163_84, 0.327_68, 0.655_36, 1.310_72, 2.621_44, 5.242_88,
];

pub(super) struct DataplaneMetrics {
    pub(super) nftables_sync_failures: PerFamily<Counter>,
    pub(super) nftables_cleanup_failures: PerFamily<Counter>,
    pub(super) conntrack_duration: PerFamily<Histogram>,
    pub(super) conntrack_deleted: PerFamily<Counter>,
    pub(super) commit_duration: PerFamily<Histogram>,
    pub(super) drift_repairs: Arc<Counter>,
    pub(super) leftovers: Arc<Gauge>,
}

impl DataplaneMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            nftables_sync_failures: registry.add(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                alpha("Cumulative proxy nftables sync failures"),
                Vector::new(Counter::default),
            ),
            nftables_cleanup_failures: registry.add(
                "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                alpha("Cumulative proxy nftables cleanup failures"),
                Vector::new(Counter::default),
            ),
            conntrack_duration: registry.add(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                alpha("ReconcileConntrackFlowsLatency latency in seconds"),
                Vector::new(|| Histogram::new(LATENCY)),
            ),
            conntrack_deleted: registry.add(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                alpha("Cumulative conntrack flows deleted by conntrack reconciler"),
                Vector::new(Counter::default),
            ),
            commit_duration: registry.add(
                "portolan_dataplane_commit_seconds",
                "Time of one commit to the kernel",
                Vector::new(|| Histogram::new(COMMIT)),
            ),
            drift_repairs: registry.add(
                "portolan_dataplane_drift_repairs_total",
                "Repairs of what another program changed in the kernel",
                Counter::default(),
            ),
            leftovers: registry.add(
                "portolan_leftover_removal_failures",
                "Failures of the last removal of what kube-proxy left; it is repeated while there are any",
                Gauge::default(),
            ),
        }
    }
}
