//! What this program measures: kube-proxy's names, help texts and buckets (v1.36,
//! `pkg/proxy/metrics/metrics.go`), and its own under `portolan_`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::client::ClientMetrics;
use self::dataplane::DataplaneMetrics;
use self::iptables::IptablesMetrics;
pub use self::iptables::{IptablesMeasures, PacketCounters};
pub use self::relay::RelayMeasures;
use self::sync::{ChangeMetrics, SyncMetrics};
use super::labels::{Code, ObjectKind, Reload, Resource, TrafficPolicy};
use super::{BuildInfo, Counter, DynamicVector, Gauge, ProcessMetrics, Registry, Vector, stability};
use crate::address::Family;

mod client;
mod dataplane;
mod iptables;
mod ipvs;
mod relay;
mod sync;
mod watches;

/// 0.001 s doubled up to 16.384 s.
const LATENCY: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// Every metric of the program. Share it in an [`Arc`]; every method is cheap and takes `&self`.
pub struct ProxyMetrics {
    registry: Registry,
    sync: SyncMetrics,
    changes: ChangeMetrics,
    dataplane: DataplaneMetrics,
    iptables: IptablesMetrics,
    mode: Arc<DynamicVector<3, Gauge>>,
    healthz_total: Arc<Vector<Code, Counter>>,
    livez_total: Arc<Vector<Code, Counter>>,
    watch_restarts: Arc<Vector<Resource, Counter>>,
    empty_lists: Arc<Vector<Resource, Counter>>,
    bad_objects: Arc<Vector<ObjectKind, Gauge>>,
    client: ClientMetrics,
    features: Arc<DynamicVector<2, Gauge>>,
    reloads: Arc<Vector<Reload, Counter>>,
    last_reload: Arc<Gauge>,
    version: String,
}

type PerFamily<M> = Arc<Vector<Family, M>>;

impl ProxyMetrics {
    /// Every metric at zero. `build` is shown as `kubernetes_build_info`; `portolan_build_info` comes with it.
    pub fn new(build: BuildInfo) -> Self {
        let registry = Registry::default();
        let version = build.git_version.clone();
        build.add_to(&registry);
        let metrics = Self::with_registry(registry, version);
        // The configuration that the program starts with is good, or it would not start.
        metrics.last_reload.set(1.0);
        stability::add_to(&metrics.registry);
        metrics
    }

    fn with_registry(registry: Registry, version: String) -> Self {
        Self {
            sync: SyncMetrics::new(&registry),
            changes: ChangeMetrics::new(&registry),
            dataplane: DataplaneMetrics::new(&registry),
            iptables: IptablesMetrics::new(&registry),
            mode: registry.add(
                "portolan_proxy_mode",
                "1 for the mode that runs, why it is that one, and the one that the configuration names",
                DynamicVector::new(["mode", "reason", "wanted"], Gauge::default),
            ),
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
                "Watches that ended early or could not begin, whether or not they had to list again",
                Vector::new(Counter::default),
            ),
            empty_lists: registry.add(
                "portolan_watch_empty_lists_held_total",
                "Empty lists, where objects were known, that were asked for again before they were believed",
                Vector::new(Counter::default),
            ),
            bad_objects: registry.add(
                "portolan_bad_objects",
                "Objects with parts that cannot be used",
                Vector::new(Gauge::default),
            ),
            client: ClientMetrics::new(&registry),
            features: registry.add(
                "kubernetes_feature_enabled",
                "[BETA] Stage of a feature gate, and 1 where it is on",
                DynamicVector::new(["name", "stage"], Gauge::default),
            ),
            reloads: registry.add(
                "portolan_config_reloads_total",
                "Changed configurations that were applied or refused",
                Vector::new(Counter::default),
            ),
            last_reload: registry.add(
                "portolan_config_last_reload_successful",
                "Whether the configuration in use is the one that was written last",
                Gauge::default(),
            ),
            version,
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

    /// An EndpointSlice event was accepted.
    pub fn endpoint_change(&self) {
        self.changes.endpoints_total.increment();
    }

    /// A Service event was accepted.
    pub fn service_change(&self) {
        self.changes.services_total.increment();
    }

    /// So many changes of Services and EndpointSlices are not in the kernel yet.
    pub fn changes_pending(&self, services: usize, endpoint_slices: usize) {
        self.changes.services_pending.set(services as f64);
        self.changes.endpoints_pending.set(endpoint_slices as f64);
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

    /// What the data plane of the iptables mode did so far.
    pub fn iptables(&self, family: Family, measures: &IptablesMeasures) {
        self.iptables.show(family, measures);
    }

    /// Shows the counters that the kernel keeps of some packets in iptables mode, read anew for every page.
    #[must_use]
    pub fn with_packet_counters(self, read: impl Fn() -> PacketCounters + Send + Sync + 'static) -> Self {
        iptables::add_packet_counters(&self.registry, Arc::new(read));
        self
    }

    /// Shows what relays count, read anew for every page; nothing where there never was one.
    #[must_use]
    pub fn with_relays(self, read: impl Fn() -> Option<RelayMeasures> + Send + Sync + 'static) -> Self {
        let read: Arc<dyn Fn() -> Option<RelayMeasures> + Send + Sync> = Arc::new(read);
        relay::add(&self.registry, &read);
        self
    }

    /// Shows how many real servers of a family drain in IPVS mode, read anew for every page; nothing where that mode never
    /// ran.
    #[must_use]
    pub fn with_ipvs(self, read: impl Fn(Family) -> Option<u64> + Send + Sync + 'static) -> Self {
        ipvs::add(&self.registry, Arc::new(read));
        self
    }

    /// Shows how long ago each watch was heard of, read anew for every page; nothing before its first list.
    #[must_use]
    pub fn with_watch_ages(
        self,
        read: impl Fn(Resource) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        watches::add(&self.registry, Arc::new(read));
        self
    }

    /// This mode runs from now on, for this reason, where the configuration names `wanted`, or nothing.
    pub fn mode(&self, mode: &str, reason: &str, wanted: &str) {
        self.mode.clear();
        self.mode.with([mode, reason, wanted], |gauge| gauge.set(1.0));
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

    /// A list or a watch was interrupted and began again.
    pub fn watch_restarted(&self, resource: Resource) {
        self.watch_restarts.with(resource, Counter::increment);
    }

    /// A list was empty where objects were known, and is asked for again.
    pub fn empty_list_held(&self, resource: Resource) {
        self.empty_lists.with(resource, Counter::increment);
    }

    /// So many objects of a kind have parts that cannot be used.
    pub fn bad_objects(&self, resource: Resource, objects: usize) {
        self.bad_objects.with(ObjectKind(resource), |gauge| gauge.set(objects as f64));
    }

    /// The API server answered a request of HTTP method `verb` with status `code`, or did not answer at all.
    /// `duration` lasts until the head of the answer.
    pub fn request_finished(&self, verb: &str, host: &str, code: Option<u16>, duration: Duration) {
        self.client.request_finished(verb, host, code, duration);
    }

    /// A request waited so long for its turn under `qps` and `burst`.
    pub fn request_delayed(&self, verb: &str, host: &str, waited: Duration) {
        self.client.request_delayed(verb, host, waited);
    }

    /// A changed configuration was applied or refused.
    pub fn config_reload(&self, result: Reload) {
        self.reloads.with(result, Counter::increment);
        self.last_reload.set(if result == Reload::Ok { 1.0 } else { 0.0 });
    }

    /// Shows a feature gate; `stage` is `ALPHA`, `BETA`, `DEPRECATED`, or nothing for GA.
    pub fn feature(&self, name: &str, stage: &str, enabled: bool) {
        self.features.with([name, stage], |gauge| gauge.set(if enabled { 1.0 } else { 0.0 }));
    }

    /// The version in `kubernetes_build_info`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The whole page.
    pub fn page(&self) -> String {
        self.registry.page()
    }
}

/// Upstream's mark of metrics without a promise.
fn alpha(help: &str) -> String {
    format!("[ALPHA] {help}")
}

fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
