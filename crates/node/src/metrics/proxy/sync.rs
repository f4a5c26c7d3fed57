//! The way of a change to the kernel: syncs, and the changes that wait for them.

use std::sync::Arc;

use super::{LATENCY, PerFamily, alpha};
use crate::metrics::labels::TrafficPolicy;
use crate::metrics::{Counter, Family, Gauge, Histogram, Registry, Vector};

/// 0.25 s and 0.5 s, every second to a minute, every 5 s to two minutes, every 30 s to five. The 0 at the start results
/// from kube-proxy's merge of its lists, and dashboards see it.
const NETWORK_PROGRAMMING: &[f64] = &[
    0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
    17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 31.0, 32.0, 33.0,
    34.0, 35.0, 36.0, 37.0, 38.0, 39.0, 40.0, 41.0, 42.0, 43.0, 44.0, 45.0, 46.0, 47.0, 48.0, 49.0, 50.0,
    51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0, 58.0, 59.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0,
    100.0, 105.0, 110.0, 115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0,
];

pub(super) struct SyncMetrics {
    pub(super) duration: PerFamily<Histogram>,
    pub(super) full_duration: PerFamily<Histogram>,
    pub(super) partial_duration: PerFamily<Histogram>,
    pub(super) last_synced: PerFamily<Gauge>,
    pub(super) last_queued: PerFamily<Gauge>,
    pub(super) network_programming: PerFamily<Histogram>,
    pub(super) no_local_endpoints: Arc<Vector<(TrafficPolicy, Family), Gauge>>,
}

pub(super) struct ChangeMetrics {
    pub(super) endpoints_pending: Arc<Gauge>,
    pub(super) endpoints_total: Arc<Counter>,
    pub(super) services_pending: Arc<Gauge>,
    pub(super) services_total: Arc<Counter>,
}

impl SyncMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let latency = || Vector::new(|| Histogram::new(LATENCY));
        Self {
            duration: registry.add(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                alpha("SyncProxyRules latency in seconds"),
                latency(),
            ),
            full_duration: registry.add(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                alpha("SyncProxyRules latency in seconds for full resyncs"),
                latency(),
            ),
            partial_duration: registry.add(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                alpha("SyncProxyRules latency in seconds for partial resyncs"),
                latency(),
            ),
            last_synced: registry.add(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                alpha("The last time proxy rules were successfully synced"),
                Vector::new(Gauge::default),
            ),
            last_queued: registry.add(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                alpha("The last time a sync of proxy rules was queued"),
                Vector::new(Gauge::default),
            ),
            network_programming: registry.add(
                "kubeproxy_network_programming_duration_seconds",
                alpha("In Cluster Network Programming Latency in seconds"),
                Vector::new(|| Histogram::new(NETWORK_PROGRAMMING)),
            ),
            no_local_endpoints: registry.add(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                alpha("Number of services with a Local traffic policy and no endpoints"),
                Vector::new(Gauge::default),
            ),
        }
    }
}

impl ChangeMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            endpoints_pending: registry.add(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                alpha("Pending proxy rules Endpoint changes"),
                Gauge::default(),
            ),
            endpoints_total: registry.add(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                alpha("Cumulative proxy rules Endpoint changes"),
                Counter::default(),
            ),
            services_pending: registry.add(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                alpha("Pending proxy rules Service changes"),
                Gauge::default(),
            ),
            services_total: registry.add(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                alpha("Cumulative proxy rules Service changes"),
                Counter::default(),
            ),
        }
    }
}
