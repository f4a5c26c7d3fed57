//! What this program measures: kube-proxy's names, help texts and buckets (v1.36,
//! `pkg/proxy/metrics/metrics.go`), and its own under `portolan_`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::labels::{Code, Kind, Resource, TrafficPolicy};
use super::{Collect, Counter, Gauge, Histogram, ProcessMetrics, Registry, Vector};
use crate::address::Family;

/// 0.001 s doubled up to 16.384 s.
const LATENCY: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// 0.25 s and 0.5 s, every second to a minute, every 5 s to two, every 30 s to five. The 0 in front comes
/// from the way in which kube-proxy merges its lists, and is part of what dashboards see.
const NETWORK_PROGRAMMING: &[f64] = &[
    0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0,
    17.0, 18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 31.0, 32.0, 33.0,
    34.0, 35.0, 36.0, 37.0, 38.0, 39.0, 40.0, 41.0, 42.0, 43.0, 44.0, 45.0, 46.0, 47.0, 48.0, 49.0, 50.0,
    51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0, 58.0, 59.0, 60.0, 65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0,
    100.0, 105.0, 110.0, 115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0,
];

/// From 10 µs, doubled up to 5.24 s: a commit of one change takes a small part of a millisecond.
const COMMIT: &[f64] = &[
    0.000_01, 0.000_02, 0.000_04, 0.000_08, 0.000_16, 0.000_32, 0.000_64, 0.001_28, 0.002_56, 0.005_12,
    0.010_24, 0.020_48, 0.040_96, 0.081_92, 0.163_84, 0.327_68, 0.655_36, 1.310_72, 2.621_44, 5.242_88,
];

/// Every metric of the program. Share it in an [`Arc`]; every method is cheap and takes `&self`.
pub struct ProxyMetrics {
    registry: Registry,
    sync: SyncMetrics,
    changes: ChangeMetrics,
    dataplane: DataplaneMetrics,
    healthz_total: Arc<Vector<Code, Counter>>,
    livez_total: Arc<Vector<Code, Counter>>,
    watch_restarts: Arc<Vector<Resource, Counter>>,
    bad_objects: Arc<Vector<Kind, Gauge>>,
}

type PerFamily<M> = Arc<Vector<Family, M>>;

struct SyncMetrics {
    duration: PerFamily<Histogram>,
    full_duration: PerFamily<Histogram>,
    partial_duration: PerFamily<Histogram>,
    last_synced: PerFamily<Gauge>,
    last_queued: PerFamily<Gauge>,
    network_programming: PerFamily<Histogram>,
    no_local_endpoints: Arc<Vector<(TrafficPolicy, Family), Gauge>>,
}

struct ChangeMetrics {
    endpoints_pending: Arc<Gauge>,
    endpoints_total: Arc<Counter>,
    services_pending: Arc<Gauge>,
    services_total: Arc<Counter>,
}

struct DataplaneMetrics {
    nftables_sync_failures: PerFamily<Counter>,
    nftables_cleanup_failures: PerFamily<Counter>,
    conntrack_duration: PerFamily<Histogram>,
    conntrack_deleted: PerFamily<Counter>,
    commit_duration: PerFamily<Histogram>,
    drift_repairs: Arc<Counter>,
}

impl ProxyMetrics {
    /// Every metric at zero. `build` is shown as `kubernetes_build_info`.
    pub fn new(build: BuildInfo) -> Self {
        let registry = Registry::default();
        build.add_to(&registry);
        Self {
            sync: SyncMetrics::new(&registry),
            changes: ChangeMetrics::new(&registry),
            dataplane: DataplaneMetrics::new(&registry),
            healthz_total: registry.add(
                "kubeproxy_proxy_healthz_total",
                alpha("Cumulative proxy healthz HTTP status"),
                Vector::new(Counter::default),
            ),
            livez_total: registry.add(
                "kubeproxy_proxy_livez_total",
                alpha("Cumulative proxy livez HTTP status"),
                Vector::new(Counter::default),
            ),
            watch_restarts: registry.add(
                "portolan_watch_restarts_total",
                "Watches that had to list again",
                Vector::new(Counter::default),
            ),
            bad_objects: registry.add(
                "portolan_bad_objects",
                "Objects with parts that cannot be used",
                Vector::new(Gauge::default),
            ),
            registry,
        }
    }

    /// Adds `process_*`, read anew for every page.
    #[must_use]
    pub fn with_process(self) -> Self {
        ProcessMetrics::add_to(&self.registry);
        self
    }

    /// Where further metrics can be added.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// A sync was asked for. Also called once when syncing starts.
    pub fn sync_queued(&self, family: Family, at: SystemTime) {
        self.sync.last_queued.with(family, |gauge| gauge.set(unix_seconds(at)));
    }

    /// A sync ended at `at` after `duration`; `full` if everything was compared, `ok` if it was applied.
    pub fn sync_finished(&self, family: Family, full: bool, duration: Duration, ok: bool, at: SystemTime) {
        let seconds = duration.as_secs_f64();
        let kind = if full { &self.sync.full_duration } else { &self.sync.partial_duration };
        kind.with(family, |histogram| histogram.observe(seconds));
        self.sync.duration.with(family, |histogram| histogram.observe(seconds));
        if ok {
            self.sync.last_synced.with(family, |gauge| gauge.set(unix_seconds(at)));
        }
    }

    /// A change of endpoints took this long from its trigger to the kernel.
    pub fn network_programmed(&self, family: Family, latency: Duration) {
        self.sync.network_programming.with(family, |histogram| histogram.observe(latency.as_secs_f64()));
    }

    /// An EndpointSlice event was accepted; `changed` if it changes endpoints.
    pub fn endpoint_change(&self, changed: bool) {
        self.changes.endpoints_total.increment();
        if changed {
            self.changes.endpoints_pending.add(1.0);
        }
    }

    /// A Service event was accepted; `pending` Services now wait to be synced.
    pub fn service_change(&self, pending: usize) {
        self.changes.services_total.increment();
        self.changes.services_pending.set(pending as f64);
    }

    /// Every change that waited is being synced.
    pub fn changes_taken(&self) {
        self.changes.endpoints_pending.set(0.0);
        self.changes.services_pending.set(0.0);
    }

    /// How many Service ports with this policy `Local` have endpoints elsewhere but none here.
    pub fn no_local_endpoints(&self, policy: TrafficPolicy, family: Family, services: usize) {
        self.sync.no_local_endpoints.with((policy, family), |gauge| gauge.set(services as f64));
    }

    /// `/healthz` was answered with 200 or 503.
    pub fn healthz_answered(&self, status: u16) {
        self.healthz_total.with(Code::of(status), Counter::increment);
    }

    /// `/livez` was answered with 200 or 503.
    pub fn livez_answered(&self, status: u16) {
        self.livez_total.with(Code::of(status), Counter::increment);
    }

    /// A transaction of the nftables mode failed.
    pub fn nftables_sync_failed(&self, family: Family) {
        self.dataplane.nftables_sync_failures.with(family, Counter::increment);
    }

    /// Removing what is stale failed in the nftables mode.
    pub fn nftables_cleanup_failed(&self, family: Family) {
        self.dataplane.nftables_cleanup_failures.with(family, Counter::increment);
    }

    /// Stale flows were looked for; `deleted` of them were removed.
    pub fn conntrack_reconciled(&self, family: Family, duration: Duration, deleted: u64) {
        self.dataplane.conntrack_duration.with(family, |histogram| histogram.observe(duration.as_secs_f64()));
        self.dataplane.conntrack_deleted.with(family, |counter| counter.add(deleted));
    }

    /// The kernel took a transaction.
    pub fn committed(&self, family: Family, duration: Duration) {
        self.dataplane.commit_duration.with(family, |histogram| histogram.observe(duration.as_secs_f64()));
    }

    /// What another program changed was put right.
    pub fn drift_repaired(&self) {
        self.dataplane.drift_repairs.increment();
    }

    /// A watch had to list again.
    pub fn watch_restarted(&self, resource: Resource) {
        self.watch_restarts.with(resource, Counter::increment);
    }

    /// So many objects of a kind have parts that cannot be used.
    pub fn bad_objects(&self, resource: Resource, objects: usize) {
        self.bad_objects.with(Kind(resource), |gauge| gauge.set(objects as f64));
    }

    /// The whole page.
    pub fn page(&self) -> String {
        self.registry.page()
    }
}

impl SyncMetrics {
    fn new(registry: &Registry) -> Self {
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
    fn new(registry: &Registry) -> Self {
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

impl DataplaneMetrics {
    fn new(registry: &Registry) -> Self {
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
        }
    }
}

/// The labels of `kubernetes_build_info`, which dashboards use to tell versions apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// Full version with a leading `v`.
    pub git_version: String,
    /// Commit, or nothing if unknown.
    pub git_commit: String,
    /// `clean`, `dirty`, or nothing if unknown.
    pub git_tree_state: String,
    /// RFC 3339, or nothing if unknown.
    pub build_date: String,
}

impl BuildInfo {
    /// This crate's version and nothing else.
    pub fn of_crate() -> Self {
        Self {
            git_version: concat!("v", env!("CARGO_PKG_VERSION")).into(),
            git_commit: String::new(),
            git_tree_state: String::new(),
            build_date: String::new(),
        }
    }

    fn add_to(self, registry: &Registry) {
        registry.add(
            "kubernetes_build_info",
            "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git \
             tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on \
             which it is running.",
            self,
        );
    }
}

impl Collect for BuildInfo {
    fn kind(&self) -> &'static str {
        "gauge"
    }

    fn collect(&self, name: &str, _: &str, page: &mut String) {
        let mut numbers = self.git_version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        // Go's names of platforms are what dashboards know.
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let platform = format!("{}/{architecture}", std::env::consts::OS);
        let labels = [
            ("build_date", self.build_date.as_str()),
            ("compiler", "rustc"),
            ("git_commit", &self.git_commit),
            ("git_tree_state", &self.git_tree_state),
            ("git_version", &self.git_version),
            ("go_version", ""),
            ("major", major),
            ("minor", minor),
            ("platform", &platform),
        ];
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
        super::sample(page, name, &labels.join(","), 1.0);
    }
}

/// Upstream's mark of metrics without a promise.
fn alpha(help: &str) -> String {
    format!("[ALPHA] {help}")
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
