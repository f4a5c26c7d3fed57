//! The agent: events into the Catalog, changes to the engine, on the one thread that watches.

mod backlog;
mod health_checks;
mod node;
mod start;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use portolan_backend::conntrack::CleanerThread;
use portolan_backend::engine::{Handle, Timing, Work};
use portolan_model::catalog::{Changes, ObjectFault};
use portolan_model::object::Kind;
use portolan_model::{Catalog, Change, Event, Family, Settings};
use portolan_node::config::Configuration;
use portolan_node::health::{Health, Now};
use portolan_node::metrics::{ProxyMetrics, Resource, TrafficPolicy};
use portolan_watch::{Counts, WatchEvent};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::checks::Finding;
use super::events::Notes;
use super::reports::Synced;
use backlog::Backlog;
use health_checks::HealthChecks;
use node::OwnNode;

/// How long the start waits for the Node object to have addresses, as upstream does.
const NODE_WAIT: Duration = Duration::from_secs(30);
/// How long the start then waits for pod CIDRs in `NodeCIDR` mode, as upstream does.
const POD_CIDR_WAIT: Duration = Duration::from_secs(5 * 60);
/// How long the start waits for every family before it listens for drift all the same.
const DRIFT_WAIT: Duration = Duration::from_secs(60);

/// Everything between the watch and the engine.
pub(super) struct Agent {
    configuration: Configuration,
    catalog: Catalog,
    backlog: Backlog,
    node: OwnNode,
    families: Vec<Family>,
    /// When everything but the Node object was known: from then on it is waited for with an end.
    listed_at: Option<Instant>,
    started_at: Instant,
    health: Arc<Health>,
    metrics: Arc<ProxyMetrics>,
    /// What the watcher counts.
    counts: Arc<Counts>,
    /// The feature gate `AllowServiceExternalIPs`.
    allows_external_ips: bool,
    notes: Notes,
    /// What has been told about this node.
    findings: Vec<Finding>,
    done: UnboundedSender<Synced>,
    running: Option<Running>,
    /// Told when it is time to look for drift, with the ports of the sockets that commit.
    on_drift_watch: Vec<oneshot::Sender<Vec<u32>>>,
    /// Told when every family is in the kernel for the first time.
    on_in_step: Vec<oneshot::Sender<()>>,
    error: Option<anyhow::Error>,
    /// The node's addresses could not be listed: to be tried again.
    addresses_unknown: bool,
}

/// The part that exists once the first complete state is known.
struct Running {
    engine: Handle,
    flows: CleanerThread,
    settings: Vec<Settings>,
    health_checks: Vec<HealthChecks>,
    /// Families whose first commit is not in the kernel yet.
    unsynced: Vec<Family>,
    /// Ports of the sockets that commit.
    ports: Vec<u32>,
}

/// What an agent is made with.
pub(super) struct Surroundings {
    pub(super) node_name: String,
    pub(super) families: Vec<Family>,
    pub(super) findings: Vec<Finding>,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) notes: Notes,
    pub(super) done: UnboundedSender<Synced>,
}

impl Agent {
    pub(super) fn new(configuration: Configuration, surroundings: Surroundings) -> Self {
        let Surroundings { node_name, families, findings, metrics, notes, done } = surroundings;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self {
            catalog: Catalog::new(node_name).with_triggers_since(i64::try_from(now).unwrap_or(i64::MAX)),
            backlog: Backlog::default(),
            node: OwnNode::default(),
            health: Arc::new(Health::new(health_timeout(&configuration))),
            metrics,
            counts: Arc::default(),
            allows_external_ips: configuration.gates().enabled("AllowServiceExternalIPs"),
            configuration,
            families,
            listed_at: None,
            started_at: Instant::now(),
            notes,
            findings,
            done,
            running: None,
            on_drift_watch: Vec::new(),
            on_in_step: Vec::new(),
            error: None,
            addresses_unknown: false,
        }
    }

    pub(super) fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    pub(super) fn metrics(&self) -> Arc<ProxyMetrics> {
        Arc::clone(&self.metrics)
    }

    pub(super) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Resolves when it is time to look for drift. To listen to changes any earlier would only mean to be
    /// flooded by our own.
    pub(super) fn drift_watch(&mut self) -> oneshot::Receiver<Vec<u32>> {
        let (sender, receiver) = oneshot::channel();
        self.on_drift_watch.push(sender);
        receiver
    }

    /// Resolves when every family is in the kernel for the first time.
    pub(super) fn in_step(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.on_in_step.push(sender);
        receiver
    }

    /// Works by another configuration from now on. Nothing that is programmed goes before what replaces it is
    /// there.
    pub(super) fn configure(&mut self, configuration: Configuration) {
        self.configuration = configuration;
        self.health.set_timeout(health_timeout(&self.configuration));
        if let Some(running) = &self.running {
            running.engine.set_timing(timing(&self.configuration));
        }
        self.review_families();
        self.reconfigure();
    }

    /// Takes in what the watch says.
    pub(super) fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Objects(events) => {
                for event in events {
                    self.apply(event);
                }
                self.count_bad_objects();
                self.hand_over();
                self.show_backlog();
            }
            // The watch has logged it.
            WatchEvent::Restarted { kind, .. } => self.metrics.watch_restarted(resource(kind)),
            WatchEvent::Fault { kind, error } => {
                tracing::error!(kind = kind.name(), %error, "an object was skipped");
                self.count_bad_objects();
            }
        }
    }

    /// Does what waits for time to pass.
    pub(super) fn check_deadlines(&mut self) -> anyhow::Result<()> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.running.is_some() {
            if self.addresses_unknown {
                self.reconfigure();
            }
            self.retry_health_checks();
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

    /// A commit of a family is in the kernel.
    pub(super) fn synced(&mut self, step: Synced) {
        let family = step.family;
        self.backlog.synced(family, step.objects);
        self.show_backlog();
        let counts = self.catalog.no_local_endpoints(family);
        self.metrics.no_local_endpoints(TrafficPolicy::Internal, family, counts.internal);
        self.metrics.no_local_endpoints(TrafficPolicy::External, family, counts.external);
        self.sync_health_checks(family);
        let Some(running) = &mut self.running else { return };
        running.unsynced.retain(|waiting| *waiting != family);
        if running.unsynced.is_empty() {
            for sender in self.on_in_step.drain(..) {
                // Nobody waits any more where it fails.
                let _ = sender.send(());
            }
            self.look_for_drift();
        }
    }

    fn look_for_drift(&mut self) {
        let Some(running) = &self.running else { return };
        if !self.on_drift_watch.is_empty() {
            portolan_sock::memory::trim();
            let ports = running.ports.clone();
            self.on_drift_watch.drain(..).for_each(|sender| drop(sender.send(ports.clone())));
        }
    }

    /// Somebody else changed our table.
    pub(super) fn drifted(&mut self, family: Family) {
        if let Some(running) = &self.running {
            running.engine.compare(family);
        }
    }

    /// Addresses of this node came or went.
    pub(super) fn addresses_changed(&mut self) {
        self.reconfigure();
    }

    fn apply(&mut self, mut event: Event) {
        let kind = kind_of(&event);
        if let Event::Service(service) = &mut event
            && !self.allows_external_ips
        {
            service.payload.ignore_external_ips();
        }
        let applied = self.catalog.apply(event);
        match kind {
            Some(Kind::Service) => self.metrics.service_change(),
            Some(Kind::EndpointSlice) => self.metrics.endpoint_change(),
            Some(Kind::Node) => self.node_changed(),
            Some(Kind::ServiceCidr) | None => {}
        }
        match kind.filter(|_| applied.changed) {
            Some(Kind::Service) => self.backlog.service_changed(),
            Some(Kind::EndpointSlice) => self.backlog.endpoint_slice_changed(),
            _ => {}
        }
        applied.faults.iter().for_each(log_fault);
    }

    fn show_backlog(&self) {
        let waiting = self.backlog.waiting();
        self.metrics.changes_pending(waiting.services, waiting.endpoint_slices);
    }

    /// Another watcher counts from now on.
    pub(super) fn watched_by(&mut self, counts: Arc<Counts>) {
        self.counts = counts;
    }

    fn count_bad_objects(&self) {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
            let unreadable = self.counts.of(kind).unreadable.load(Ordering::Relaxed) as usize;
            let bad = self.catalog.faulty_objects(kind).saturating_add(unreadable);
            self.metrics.bad_objects(resource(kind), bad);
        }
    }

    /// Gives the engine what changed; starts it when the first complete state is known.
    fn hand_over(&mut self) {
        if self.running.is_none() {
            // What keeps it from starting ends the program at the next deadline, whatever comes until then.
            if self.error.is_none() && self.may_start() {
                self.error = self.start().err();
            }
            return;
        }
        let changes = self.catalog.take_changes();
        if changes.service_cidrs {
            self.reconfigure();
        }
        if !changes.is_empty() {
            self.send(changes);
        }
        self.backlog.handed_over();
    }

    fn send(&mut self, mut changes: Changes) {
        let Some(running) = &mut self.running else { return };
        if !changes.health_checks.is_empty() {
            running.health_checks.iter_mut().for_each(HealthChecks::touch);
        }
        let mut idle = Vec::new();
        let now = Now::read();
        for &family in &self.families {
            let (of_family, others) =
                changes.changes.into_iter().partition(|change: &Change| change.family == family);
            changes.changes = others;
            let triggers = std::mem::take(changes.triggers.get_mut(family));
            let udp = changes.udp.iter().filter(|(of, _)| *of == family);
            let udp = udp.filter_map(|(_, name)| self.catalog.udp_service(name, family)).collect();
            let mut work = Work { changes: of_family, triggers, udp, ..Work::default() };
            // Trigger times of what changed nothing here are nobody's latency.
            if work.changes.is_empty() && work.udp.is_empty() {
                idle.push(family);
                continue;
            }
            self.metrics.sync_queued(family, now.wall);
            self.health.queued(family, now);
            work.objects = self.backlog.hand_over(family);
            running.engine.work(family, work);
        }
        // The others follow their commits.
        for family in idle {
            self.sync_health_checks(family);
        }
    }
}

/// A change that waits for longer makes the proxy unhealthy.
fn health_timeout(configuration: &Configuration) -> Duration {
    let (sync_period, _) = configuration.sync_periods();
    sync_period.saturating_mul(2)
}

fn timing(configuration: &Configuration) -> Timing {
    let (max_retry, min_interval) = configuration.sync_periods();
    Timing { min_interval, max_retry, ..Timing::default() }
}

fn kind_of(event: &Event) -> Option<Kind> {
    match event {
        Event::Service(_) | Event::ServiceDeleted(_) => Some(Kind::Service),
        Event::EndpointSlice(_) | Event::EndpointSliceDeleted(_) => Some(Kind::EndpointSlice),
        Event::Node(_) | Event::NodeDeleted(_) => Some(Kind::Node),
        _ => None,
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

fn log_fault(fault: &ObjectFault) {
    let (kind, key) = (fault.kind.name(), &fault.key);
    tracing::warn!(kind, namespace = &*key.namespace, name = &*key.name, fault = %fault.fault, "left out");
}
