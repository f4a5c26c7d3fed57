//! The metrics of this program: those of kube-proxy, with its names, help texts and buckets (v1.36,
//! `pkg/proxy/metrics/metrics.go`), and its own, with the prefix `portolan_`.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::client::ClientMetrics;
use self::dataplane::DataplaneMetrics;
use self::iptables::IptablesMetrics;
pub use self::iptables::{IptablesMeasures, PacketCounters};
use self::mode::ModeMetrics;
pub use self::relay::RelayMeasures;
use self::sync::{ChangeMetrics, SyncMetrics};
use super::labels::{Code, NodeWrite, ObjectKind, Reload, Resource, TrafficPolicy};
use super::{BuildInfo, Counter, DynamicVector, Gauge, ProcessMetrics, Registry, Vector, stability};
use crate::address::Family;

mod client;
mod dataplane;
mod iptables;
mod ipvs;
mod mode;
mod relay;
mod sync;
mod watches;

/// From 0.001 s, doubled up to 16.384 s.
const LATENCY: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// All metrics of the program. Share it in an [`Arc`]. Every method is cheap and takes `&self`.
pub struct ProxyMetrics {
    registry: Registry,
    sync: SyncMetrics,
    changes: ChangeMetrics,
    dataplane: DataplaneMetrics,
    iptables: IptablesMetrics,
    mode: ModeMetrics,
    healthz_total: Arc<Vector<Code, Counter>>,
    livez_total: Arc<Vector<Code, Counter>>,
    watch_restarts: Arc<Vector<Resource, Counter>>,
    empty_lists: Arc<Vector<Resource, Counter>>,
    bad_objects: Arc<Vector<ObjectKind, Gauge>>,
    client: ClientMetrics,
    features: Arc<DynamicVector<2, Gauge>>,
    guarded: Arc<DynamicVector<2, Gauge>>,
    aside: Arc<Gauge>,
    set_aside: Arc<Counter>,
    node_writes: Arc<Vector<NodeWrite, Counter>>,
    verified: Arc<Gauge>,
    reloads: Arc<Vector<Reload, Counter>>,
    last_reload: Arc<Gauge>,
    version: String,
}

type PerFamily<M> = Arc<Vector<Family, M>>;

impl ProxyMetrics {
    /// Creates all metrics at zero. `build` is exposed as `kubernetes_build_info`, and `portolan_build_info` is added.
    pub fn new(build: BuildInfo) -> Self {
        let registry = Registry::default();
        let version = build.git_version.clone();
        build.add_to(&registry);
        let metrics = Self::with_registry(registry, version);
        metrics.begin_with_zero();
        // The configuration at the start of the program is valid, or the program would not start.
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
            mode: ModeMetrics::new(&registry),
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
            guarded: registry.add(
                "portolan_guarded_addresses",
                "External IPs and load-balancer IPs of Services that belong to something else, served or refused",
                DynamicVector::new(["action", "owner"], Gauge::default),
            ),
            aside: registry.add(
                "portolan_passive_endpoints_aside",
                "Endpoints that are set aside at present because connections to them failed",
                Gauge::default(),
            ),
            set_aside: registry.add(
                "portolan_passive_set_aside_total",
                "How often endpoints were set aside because connections to them failed",
                Counter::default(),
            ),
            node_writes: registry.add(
                "portolan_node_writes_total",
                "Attempts to remove the taint or to set the condition of the Node (readiness)",
                Vector::new(Counter::default),
            ),
            verified: registry.add(
                "portolan_programmed_and_verified",
                "1 once everything was programmed and read back without a difference; only with readiness",
                Gauge::default(),
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

    /// Exposes the counters that the alerts and the dashboard use `increase` and `rate` on.
    fn begin_with_zero(&self) {
        self.healthz_total.show_all();
        self.livez_total.show_all();
        self.watch_restarts.show_all();
        self.empty_lists.show_all();
        self.dataplane.conntrack_deleted.show_all();
    }

    /// Adds `process_*`, read for every page.
    #[must_use]
    pub fn with_process(self) -> Self {
        ProcessMetrics::add_to(&self.registry);
        self
    }

    /// Records that a sync was requested. Also called once when syncing starts.
    pub fn sync_queued(&self, family: Family, at: SystemTime) {
        self.sync.last_queued.with(family, |gauge| gauge.set(unix_seconds(at)));
    }

    /// Records a sync that ended at `at` after `duration`. `full` means that everything was compared, `ok` that it was
    /// applied.
    pub fn sync_finished(&self, family: Family, full: bool, duration: Duration, ok: bool, at: SystemTime) {
        let seconds = duration.as_secs_f64();
        let kind = if full { &self.sync.full_duration } else { &self.sync.partial_duration };
        kind.with(family, |histogram| histogram.observe(seconds));
        self.sync.duration.with(family, |histogram| histogram.observe(seconds));
        if ok {
            self.sync.last_synced.with(family, |gauge| gauge.set(unix_seconds(at)));
        }
    }

    /// Records how long a change of endpoints took from its trigger to the kernel.
    pub fn network_programmed(&self, family: Family, latency: Duration) {
        self.sync.network_programming.with(family, |histogram| histogram.observe(latency.as_secs_f64()));
    }

    /// Counts an accepted EndpointSlice event.
    pub fn endpoint_change(&self) {
        self.changes.endpoints_total.increment();
    }

    /// Counts an accepted Service event.
    pub fn service_change(&self) {
        self.changes.services_total.increment();
    }

    /// Sets how many changes of Services and EndpointSlices are not in the kernel.
    pub fn changes_pending(&self, services: usize, endpoint_slices: usize) {
        self.changes.services_pending.set(services as f64);
        self.changes.endpoints_pending.set(endpoint_slices as f64);
    }

    /// Sets the number of Service ports whose policy is `Local` and that have endpoints, but none on this node.
    pub fn no_local_endpoints(&self, policy: TrafficPolicy, family: Family, services: usize) {
        self.sync.no_local_endpoints.with((policy, family), |gauge| gauge.set(services as f64));
    }

    /// Counts a response of `/healthz` with 200 or 503.
    pub fn healthz_answered(&self, status: u16) {
        self.healthz_total.with(Code::of(status), Counter::increment);
    }

    /// Counts a response of `/livez` with 200 or 503.
    pub fn livez_answered(&self, status: u16) {
        self.livez_total.with(Code::of(status), Counter::increment);
    }

    /// Counts a failed transaction of the nftables mode.
    pub fn nftables_sync_failed(&self, family: Family) {
        self.dataplane.nftables_sync_failures.with(family, Counter::increment);
    }

    /// Counts a failed removal of stale objects in the nftables mode.
    pub fn nftables_cleanup_failed(&self, family: Family) {
        self.dataplane.nftables_cleanup_failures.with(family, Counter::increment);
    }

    /// Sets what the data plane of the iptables mode has done.
    pub fn iptables(&self, family: Family, measures: &IptablesMeasures) {
        self.iptables.show(family, measures);
    }

    /// Exposes the kernel's counters of certain packets in iptables mode, read for every page.
    #[must_use]
    pub fn with_packet_counters(self, read: impl Fn() -> PacketCounters + Send + Sync + 'static) -> Self {
        iptables::add_packet_counters(&self.registry, Arc::new(read));
        self
    }

    /// Exposes the relays' counters, read for every page. Nothing is exposed if no relay was ever started.
    #[must_use]
    pub fn with_relays(self, read: impl Fn() -> Option<RelayMeasures> + Send + Sync + 'static) -> Self {
        let read: Arc<dyn Fn() -> Option<RelayMeasures> + Send + Sync> = Arc::new(read);
        relay::add(&self.registry, &read);
        self
    }

    /// Exposes how many real servers of a family are draining in IPVS mode, read for every page. Nothing is exposed if
    /// that mode never ran.
    #[must_use]
    pub fn with_ipvs(self, read: impl Fn(Family) -> Option<u64> + Send + Sync + 'static) -> Self {
        ipvs::add(&self.registry, Arc::new(read));
        self
    }

    /// Exposes the time since each watch last received something, read for every page. Nothing is exposed before its
    /// first list.
    #[must_use]
    pub fn with_watch_ages(
        self,
        read: impl Fn(Resource) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        watches::add(&self.registry, Arc::new(read));
        self
    }

    /// Sets the mode to which the configuration leads, and the reason. `wanted` is the configured mode, or empty. It is shown as
    /// the mode that runs unless another one still runs in a family.
    pub fn mode(&self, mode: &str, reason: &str, wanted: &str) {
        if mode == "nftables" {
            self.dataplane.nftables_sync_failures.show_all();
            self.dataplane.nftables_cleanup_failures.show_all();
        }
        self.mode.choose(mode, reason, wanted);
    }

    /// Records that the rules of a mode are those that packets of a family meet.
    pub fn mode_runs(&self, family: Family, mode: &str) {
        self.mode.runs(family, mode);
    }

    /// Returns the name of the mode that is shown as the one that runs.
    pub(super) fn running_mode(&self) -> String {
        self.mode.shown()
    }

    /// Sets how many removals failed when what kube-proxy left was last to be removed.
    pub fn leftovers(&self, failures: usize) {
        self.dataplane.leftovers.set(failures as f64);
    }

    /// Records a search for stale flows, of which `deleted` were deleted.
    pub fn conntrack_reconciled(&self, family: Family, duration: Duration, deleted: u64) {
        self.dataplane.conntrack_duration.with(family, |histogram| histogram.observe(duration.as_secs_f64()));
        self.dataplane.conntrack_deleted.with(family, |counter| counter.add(deleted));
    }

    /// Records a transaction that the kernel accepted.
    pub fn committed(&self, family: Family, duration: Duration) {
        self.dataplane.commit_duration.with(family, |histogram| histogram.observe(duration.as_secs_f64()));
    }

    /// Counts a repair of changes by another program.
    pub fn drift_repaired(&self) {
        self.dataplane.drift_repairs.increment();
    }

    /// Counts a list or a watch that was interrupted and started again.
    pub fn watch_restarted(&self, resource: Resource) {
        self.watch_restarts.with(resource, Counter::increment);
    }

    /// Counts an empty list of a resource with known objects. The list is requested again.
    pub fn empty_list_held(&self, resource: Resource) {
        self.empty_lists.with(resource, Counter::increment);
    }

    /// Sets how many objects of a kind have parts that cannot be used.
    pub fn bad_objects(&self, resource: Resource, objects: usize) {
        self.bad_objects.with(ObjectKind(resource), |gauge| gauge.set(objects as f64));
    }

    /// Sets how many external addresses of Services belong to something else, by action and owner.
    pub fn guarded_addresses(&self, counts: &[([&str; 2], usize)]) {
        self.guarded.clear();
        for (labels, count) in counts {
            self.guarded.with(*labels, |gauge| gauge.set(*count as f64));
        }
    }

    /// Sets how many endpoints are set aside at present.
    pub fn endpoints_aside(&self, endpoints: usize) {
        self.aside.set(endpoints as f64);
    }

    /// Counts an endpoint that is set aside.
    pub fn endpoint_set_aside(&self) {
        self.set_aside.increment();
    }

    /// Counts an attempt to write to the Node.
    pub fn node_written(&self, result: NodeWrite) {
        self.node_writes.with(result, Counter::increment);
    }

    /// Records that everything was programmed and read back without a difference.
    pub fn verified(&self) {
        self.verified.set(1.0);
    }

    /// Records a request of HTTP method `verb`, with the status `code` of the API server's response; `None` without a
    /// response. `duration` is the time until the head of the response.
    pub fn request_finished(&self, verb: &str, host: &str, code: Option<u16>, duration: Duration) {
        self.client.request_finished(verb, host, code, duration);
    }

    /// Records how long a request waited because of `qps` and `burst`.
    pub fn request_delayed(&self, verb: &str, host: &str, waited: Duration) {
        self.client.request_delayed(verb, host, waited);
    }

    /// Records that a changed configuration was applied or rejected.
    pub fn config_reload(&self, result: Reload) {
        self.reloads.with(result, Counter::increment);
        self.last_reload.set(if result == Reload::Ok { 1.0 } else { 0.0 });
    }

    /// Exposes a feature gate. `stage` is `ALPHA`, `BETA`, `DEPRECATED`, or empty for GA.
    pub fn feature(&self, name: &str, stage: &str, enabled: bool) {
        self.features.with([name, stage], |gauge| gauge.set(if enabled { 1.0 } else { 0.0 }));
    }

    /// Returns the version in `kubernetes_build_info`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Returns how many metrics there are, with those that the page leaves out because they have no samples.
    #[cfg(test)]
    pub(super) fn registered(&self) -> usize {
        self.registry.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len()
    }

    /// Returns the whole page.
    pub fn page(&self) -> String {
        self.registry.page()
    }
}

/// Adds upstream's mark of metrics without a stability guarantee.
fn alpha(help: &str) -> String {
    format!("[ALPHA] {help}")
}

fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
