//! The agent: applies watch events to the Catalog and hands the Catalog's changes over to the engine.
//!
//! It runs on the thread of the watches. The engine commits on its own thread and reports each commit back
//! ([`Agent::synced`]). The agent checks its deadlines once a second ([`Agent::check_deadlines`]).

pub(crate) mod api_server;
mod backlog;
mod changes;
mod ending;
pub(crate) mod facts;
mod flows;
pub(crate) mod health_checks;
mod history;
mod leftovers;
mod memory;
mod node;
mod objects;
pub(crate) mod passive;
mod periods;
mod programs;
mod refusals;
mod relays;
mod running;
mod start;
mod verification;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use portolan_engine::drift::Own;
use portolan_model::catalog::{GuardedAddresses, PerFamily};
use portolan_model::object::Kind;
use portolan_model::{Capture, Catalog, Family};
use portolan_node::config::{Configuration, Mode};
use portolan_node::health::{Health, Now};
use portolan_node::metrics::{ProxyMetrics, Resource, TrafficPolicy};
use portolan_recorder::Recorder;
use portolan_watch::{Counts, Peers, WatchEvent};
use tokio::sync::{oneshot, watch};

use super::events::Notes;
use super::finding::Finding;
use super::modes::{self, Meters, Relays, SharedParts};
use super::node_settings::KernelSettings;
use super::readiness::Progress;
use super::recording::{self, Lists};
use super::reports::{self, Synced};
use backlog::Backlog;
use memory::Need;
use node::OwnNode;
use passive::Passive;
use periods::{health_timeout, timing};
pub(super) use programs::Found;
use programs::Search;
use refusals::Reported;
pub(super) use relays::SHUTDOWN_LIMIT;
use running::{Next, Plane, Running};

/// How long the start waits for the Node object to have addresses. The same as in kube-proxy.
const NODE_WAIT: Duration = Duration::from_secs(30);
/// How long the start then waits for pod CIDRs if `detectLocalMode` is `NodeCIDR`. The same as in kube-proxy.
const POD_CIDR_WAIT: Duration = Duration::from_secs(5 * 60);
/// How long the start waits for every family's first commit before it watches for drift anyway.
const DRIFT_WAIT: Duration = Duration::from_secs(60);

/// The state between the watch and the engine.
pub(super) struct Agent {
    configuration: Configuration,
    catalog: Catalog,
    backlog: Backlog,
    node: OwnNode,
    families: Vec<Family>,
    /// When Services and EndpointSlices were first listed. The deadlines for everything else count from then.
    listed_at: Option<Instant>,
    started_at: Instant,
    /// What the start waits for, as it was logged last, and when.
    reported_wait: Option<(Vec<String>, Instant)>,
    health: Arc<Health>,
    metrics: Arc<ProxyMetrics>,
    /// The counters of the current watcher.
    counts: Arc<Counts>,
    /// Whether the feature gate `AllowServiceExternalIPs` is on.
    allows_external_ips: bool,
    notes: Notes,
    /// The addresses to which this process's clients of the API server connect.
    peers: Peers,
    /// What is shown on the Node object.
    progress: Progress,
    /// The counts of the address guard that the metrics show.
    guarded: (GuardedAddresses, usize),
    /// The API servers behind the cluster IP, if `peers` has that cluster IP.
    api_servers: BTreeSet<IpAddr>,
    /// The findings about this node that have been reported.
    findings: Vec<Finding>,
    done: Arc<reports::Waiting>,
    running: Option<Running>,
    /// The rules that this process owns, for drift detection. Empty until detection starts.
    own: watch::Sender<Vec<Own>>,
    /// Callbacks for the moment when every family has its first commit.
    on_in_sync: Vec<oneshot::Sender<()>>,
    /// The error that ends the process at the next check of the deadlines.
    error: Option<anyhow::Error>,
    lacks: Lacks,
    shared: SharedParts,
    /// The search for programs that new data planes call.
    search: Search,
    /// Callback for the end of the last relay. `Some` while the process waits for that before it stops.
    on_relays_drained: Option<oneshot::Sender<()>>,
    /// Service ports that could not be programmed and have been reported.
    refused: PerFamily<Reported>,
    /// Estimate of the memory for the rules of the iptables mode.
    need: Need,
    passive: Passive,
    /// The history of the last syncs.
    recorder: Recorder,
    /// The lists under way, for the history.
    lists: Lists,
}

/// What could not be made. It is tried again every second.
#[derive(Debug, Default)]
struct Lacks {
    /// Settings, because the node's addresses could not be listed.
    settings: bool,
    /// The places of the API server, because the node's addresses could not be listed.
    api_server: bool,
    /// A data plane.
    dataplane: bool,
}

/// Arguments of [`Agent::new`].
pub(super) struct Surroundings {
    pub(super) node_name: String,
    pub(super) families: Vec<Family>,
    pub(super) findings: Vec<Finding>,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) health: Arc<Health>,
    pub(super) notes: Notes,
    pub(super) peers: Peers,
    pub(super) progress: Progress,
    pub(super) done: Arc<reports::Waiting>,
    pub(super) relays: Relays,
    pub(super) meters: Meters,
    pub(super) kernel_settings: Arc<KernelSettings>,
    pub(super) recorder: Recorder,
}

impl Agent {
    pub(super) fn new(configuration: Configuration, surroundings: Surroundings) -> Self {
        let Surroundings {
            node_name,
            families,
            findings,
            metrics,
            health,
            notes,
            peers,
            progress,
            done,
            relays,
            meters,
            kernel_settings,
            recorder,
        } = surroundings;
        health.set_timeout(health_timeout(&configuration));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let reading = modes::begin_reading(&configuration, &families);
        let mut agent = Self {
            catalog: Catalog::new(node_name).with_triggers_since(i64::try_from(now).unwrap_or(i64::MAX)),
            backlog: Backlog::default(),
            node: OwnNode::default(),
            health,
            metrics,
            counts: Arc::default(),
            allows_external_ips: configuration.gates().enabled("AllowServiceExternalIPs"),
            configuration,
            families,
            listed_at: None,
            started_at: Instant::now(),
            reported_wait: None,
            notes,
            peers,
            progress,
            guarded: <(GuardedAddresses, usize)>::default(),
            api_servers: BTreeSet::new(),
            findings,
            done,
            running: None,
            own: watch::Sender::default(),
            on_in_sync: Vec::new(),
            error: None,
            lacks: Lacks::default(),
            shared: SharedParts { meters, relays, kernel_settings, reading },
            search: Search::default(),
            on_relays_drained: None,
            refused: PerFamily::default(),
            need: Need::default(),
            passive: Passive::default(),
            recorder,
            lists: Lists::default(),
        };
        agent.review_address_guard();
        agent.update_readiness();
        agent
    }

    fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    pub(super) fn metrics(&self) -> Arc<ProxyMetrics> {
        Arc::clone(&self.metrics)
    }

    pub(super) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    pub(super) fn families(&self) -> &[Family] {
        &self.families
    }

    /// Returns a receiver of the rules that this process owns and of the writers whose changes are not drift. The
    /// list is empty until drift detection starts: before, the process's own commits would flood the listener. It has
    /// no entry for modes for which the kernel sends no notifications.
    pub(super) fn own(&self) -> watch::Receiver<Vec<Own>> {
        self.own.subscribe()
    }

    /// Resolves when every family has its first commit. The receiver of the value then removes what kube-proxy left, by
    /// [`Agent::start_removal`].
    pub(super) fn in_sync(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.on_in_sync.push(sender);
        receiver
    }

    /// Applies another configuration. Rules are only removed once the rules that replace them are in the kernel.
    pub(super) fn configure(&mut self, configuration: Configuration) {
        self.configuration = configuration;
        self.recorder.set_limit(recording::limit(&self.configuration));
        self.record(|| recording::note("configuration", "another configuration is applied"));
        self.health.set_timeout(health_timeout(&self.configuration));
        if let Some(running) = &self.running {
            running.engine.set_timing(timing(&self.configuration));
        }
        self.progress.configure(&self.configuration.readiness);
        self.verify();
        self.review_families();
        self.review_api_server();
        self.review_address_guard();
        self.reconfigure();
        self.hand_over();
    }

    /// Handles one event of the watch.
    pub(super) fn take(&mut self, event: WatchEvent) {
        self.record_watch(&event);
        match event {
            WatchEvent::Objects(events) => {
                for event in events {
                    self.apply(event);
                }
                self.count_bad_objects();
                self.count_guarded_addresses();
                self.follow_api_servers();
                self.hand_over();
                self.show_backlog();
            }
            WatchEvent::Heard(kind) => self.health.watch_updated(resource(kind), Now::read()),
            WatchEvent::EmptyListHeld { kind, known } => {
                self.metrics.empty_list_held(resource(kind));
                self.notes.empty_list_held(kind, known);
            }
            // The watcher has logged it.
            WatchEvent::Restarted { kind, reason, failures, relist, .. } => {
                if relist && kind == Kind::Node {
                    self.progress.node_may_be_new();
                }
                self.metrics.watch_restarted(resource(kind));
                self.health.watch_failed(resource(kind), failures, reason.to_string(), Now::read());
            }
            WatchEvent::Fault { kind, error } => {
                tracing::error!(kind = kind.name(), %error, "an object was skipped");
                self.count_bad_objects();
            }
        }
    }

    /// Checks the deadlines and does the retries that are due. Returns the error that ends the process, if any.
    pub(super) fn check_deadlines(&mut self) -> anyhow::Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        self.report_waiting();
        if let Some(running) = &self.running {
            running.check_threads(self.shared.relays.ended_thread())?;
            if self.lacks.api_server {
                self.review_api_server();
                self.hand_over();
            }
            if self.lacks.settings || self.lacks.dataplane {
                self.reconfigure();
            }
            self.retry_health_checks();
            self.review_passive_checks();
            self.check_relays();
            if self.started_at.elapsed() > DRIFT_WAIT {
                self.look_for_drift();
            }
            return Ok(());
        }
        if self.lacks_pod_cidrs() && self.has_waited(NODE_WAIT + POD_CIDR_WAIT) {
            let node = self.catalog.node_name();
            if self.catalog.node().is_none() {
                bail!("timeout waiting for node {node:?} to exist");
            }
            bail!("timeout waiting for PodCIDR allocation on node {node:?}");
        }
        self.hand_over();
        Ok(())
    }

    /// Handles the engine's report that a family's commit is in the kernel.
    pub(super) fn synced(&mut self, step: &Synced) {
        let family = step.family;
        self.backlog.synced(family, step.objects);
        self.show_backlog();
        let counts = self.catalog.no_local_endpoints(family);
        self.metrics.no_local_endpoints(TrafficPolicy::Internal, family, counts.internal);
        self.metrics.no_local_endpoints(TrafficPolicy::External, family, counts.external);
        self.health_checks_committed(family, step.health_checks.values());
        self.report_refusals(step);
        if let Some(mode) = step.replaced_by {
            self.replaced(family, mode);
        }
        if step.mended || step.replaced_by.is_some() {
            self.check_flows(family);
        }
        self.note_verification(step);
        let Some(running) = &mut self.running else { return };
        running.unsynced.retain(|waiting| *waiting != family);
        let is_ready = running.unsynced.is_empty();
        if is_ready {
            self.health.ready();
            for sender in self.on_in_sync.drain(..) {
                // The send fails if the receiver is gone.
                running.removes_leftovers |= sender.send(()).is_ok();
            }
            self.look_for_drift();
        } else {
            self.update_readiness();
        }
    }

    /// Handles the switch of a family to a data plane of a mode.
    fn replaced(&mut self, family: Family, mode: &str) {
        let Some(running) = &mut self.running else { return };
        running.replaced(family, mode);
        match self.interface_addresses() {
            Some(addresses) => self.configure_flows(&addresses),
            None => self.lacks.settings = true,
        }
        self.drain_relays();
        // Addresses may be free to be captured, or have to be kept, in the new mode.
        self.review_api_server();
        self.hand_over();
    }

    fn look_for_drift(&self) {
        let Some(running) = &self.running else { return };
        let own: Vec<Own> = running.planes.iter().filter_map(|plane| plane.own.clone()).collect();
        let changed = self.own.send_if_modified(|known| {
            let changed = *known != own;
            *known = own;
            changed
        });
        if changed {
            portolan_sock::memory::trim();
        }
    }

    /// Tells the engine that changes by other programs are reported from now on, where the kernel notifies of them. While a
    /// family waits for another data plane, there will be another subscription.
    pub(super) fn watched(&self) {
        if let Some(running) =
            self.running.as_ref().filter(|running| running.planes.iter().all(|plane| plane.next.is_empty()))
        {
            running.engine.watched();
        }
    }

    /// Handles a change of this process's rules by another program: everything is compared with the kernel.
    pub(super) fn drifted(&mut self, family: Family) {
        self.record_drift(family);
        if let Some(running) = &self.running {
            running.engine.compare(family);
        }
    }

    /// Handles the deletion of the rule by which captured packets reach the relay, if the mode that runs needs it.
    pub(super) fn routing_deleted(&mut self, family: Family) {
        let mode = self.running.as_ref().and_then(|running| running.mode_of(family));
        let captures = mode == Some(Mode::Userspace) && self.configuration.capture == Capture::Tproxy;
        // With another mark, the agent itself has replaced it.
        let is_missing =
            || portolan_userspace::find_routing(family).is_ok_and(|found| found.rules.is_empty());
        if captures && is_missing() {
            self.drifted(family);
        }
    }

    /// Handles the addition or removal of addresses of this node.
    pub(super) fn addresses_changed(&mut self) {
        self.record(|| recording::note("node", "addresses of interfaces changed"));
        self.review_api_server();
        self.reconfigure();
        self.hand_over();
    }

    fn show_backlog(&self) {
        let waiting = self.backlog.waiting();
        self.metrics.changes_pending(waiting.services, waiting.endpoint_slices);
    }

    /// Uses the counters of another watcher.
    pub(super) fn watched_by(&mut self, counts: Arc<Counts>) {
        self.counts = counts;
    }
}

fn resource(kind: Kind) -> Resource {
    match kind {
        Kind::Service => Resource::Services,
        Kind::EndpointSlice => Resource::EndpointSlices,
        Kind::Node => Resource::Nodes,
        Kind::ServiceCidr => Resource::ServiceCidrs,
    }
}
