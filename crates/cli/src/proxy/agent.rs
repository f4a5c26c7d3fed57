//! The agent: events into the Catalog, changes to the engine, on the one thread that watches.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use portolan_backend::Dataplane;
use portolan_backend::addresses::Addresses;
use portolan_backend::conntrack::CleanerThread;
use portolan_backend::engine::{self, Handle, Timing, Work};
use portolan_backend::nft::Nftables;
use portolan_model::catalog::{Changes, ObjectFault, PerFamily};
use portolan_model::object::Kind;
use portolan_model::{Catalog, Change, Event, Family, NodePortAddresses, Settings};
use portolan_node::address::NodeAddresses;
use portolan_node::config::{Configuration, DetectLocalMode};
use portolan_node::health::{Health, ListenAddresses, NodeState, Now, ServiceHealth, ServiceKey};
use portolan_node::metrics::{BuildInfo, ProxyMetrics, Resource, TrafficPolicy};
use portolan_watch::WatchEvent;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::reports::{self, Reporter, Synced};
use super::settings;

/// How long the start waits for the Node object to have addresses, as upstream does.
const NODE_WAIT: Duration = Duration::from_secs(30);
/// How long the start then waits for pod CIDRs in `NodeCIDR` mode, as upstream does.
const POD_CIDR_WAIT: Duration = Duration::from_secs(5 * 60);
/// How long the start waits for every family before it listens for drift all the same.
const DRIFT_WAIT: Duration = Duration::from_secs(60);
/// Changes handed over at once at the start.
const START_CHUNK: usize = 1_024;

/// Everything between the watch and the engine.
pub(super) struct Agent {
    configuration: Configuration,
    catalog: Catalog,
    families: Vec<Family>,
    since: Instant,
    health: Arc<Health>,
    metrics: Arc<ProxyMetrics>,
    done: UnboundedSender<Synced>,
    running: Option<Running>,
    /// Told when everything is in the kernel for the first time, with the ports of the sockets that commit.
    on_first_sync: Vec<oneshot::Sender<Vec<u32>>>,
    error: Option<anyhow::Error>,
    /// The node's addresses could not be listed: to be tried again.
    addresses_unknown: bool,
}

/// The part that exists once the first complete state is known.
struct Running {
    engine: Handle,
    flows: CleanerThread,
    node_ips: NodeAddresses,
    settings: Vec<Settings>,
    service_health: Vec<(Family, ServiceHealth)>,
    /// Families whose health-check node ports are to be brought in step.
    health_checks: Vec<Family>,
    /// Families whose first commit is not in the kernel yet.
    unsynced: Vec<Family>,
    /// Ports of the sockets that commit.
    ports: Vec<u32>,
}

impl Agent {
    pub(super) fn new(
        configuration: Configuration,
        node_name: String,
        families: Vec<Family>,
        done: UnboundedSender<Synced>,
    ) -> Self {
        let (sync_period, _) = configuration.sync_periods();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self {
            catalog: Catalog::new(node_name).with_triggers_since(i64::try_from(now).unwrap_or(i64::MAX)),
            health: Arc::new(Health::new(sync_period.saturating_mul(2))),
            metrics: Arc::new(ProxyMetrics::new(BuildInfo::of_crate()).with_process()),
            configuration,
            families,
            since: Instant::now(),
            done,
            running: None,
            on_first_sync: Vec::new(),
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

    /// Resolves when everything is in the kernel for the first time. To listen to changes any earlier would only
    /// mean to be flooded by our own.
    pub(super) fn first_sync(&mut self) -> oneshot::Receiver<Vec<u32>> {
        let (sender, receiver) = oneshot::channel();
        self.on_first_sync.push(sender);
        receiver
    }

    /// Takes in what the watch says.
    pub(super) fn take(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Objects(events) => {
                for event in events {
                    self.apply(event);
                }
                self.hand_over();
            }
            // The watch has logged it.
            WatchEvent::Restarted { kind, .. } => self.metrics.watch_restarted(resource(kind)),
            WatchEvent::Fault { kind, error } => {
                tracing::error!(kind = kind.name(), %error, "an object was skipped");
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
            if self.since.elapsed() > DRIFT_WAIT {
                self.listen_for_drift();
            }
            return Ok(());
        }
        if self.lacks_pod_cidrs() && self.since.elapsed() > NODE_WAIT + POD_CIDR_WAIT {
            bail!("timeout waiting for PodCIDR allocation on node {:?}", self.catalog.node_name());
        }
        self.hand_over();
        Ok(())
    }

    /// A commit of a family is in the kernel.
    pub(super) fn synced(&mut self, step: Synced) {
        let family = step.family;
        let counts = self.catalog.no_local_endpoints(family);
        self.metrics.no_local_endpoints(TrafficPolicy::Internal, family, counts.internal);
        self.metrics.no_local_endpoints(TrafficPolicy::External, family, counts.external);
        self.sync_health_checks(family);
        let Some(running) = &mut self.running else { return };
        running.unsynced.retain(|waiting| *waiting != family);
        if running.unsynced.is_empty() {
            self.listen_for_drift();
        }
    }

    fn listen_for_drift(&mut self) {
        let Some(running) = &self.running else { return };
        if !self.on_first_sync.is_empty() {
            portolan_sock::memory::trim();
            let ports = running.ports.clone();
            self.on_first_sync.drain(..).for_each(|sender| drop(sender.send(ports.clone())));
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

    fn apply(&mut self, event: Event) {
        let kind = kind_of(&event);
        let applied = self.catalog.apply(event);
        match kind {
            Some(Kind::Service) => self.metrics.service_change(usize::from(applied.changed)),
            Some(Kind::EndpointSlice) => self.metrics.endpoint_change(applied.changed),
            Some(Kind::Node) => self.node_changed(),
            Some(Kind::ServiceCidr) | None => {}
        }
        applied.faults.iter().for_each(log_fault);
    }

    fn node_changed(&mut self) {
        let state = self
            .catalog
            .node()
            .map(|node| NodeState { deleting: node.deleting, tainted: node.to_be_deleted });
        self.health.node(state);
        if self.configuration.detect_local_mode == DetectLocalMode::NodeCidr {
            self.reconfigure();
        }
    }

    /// Gives the engine what changed; starts it when the first complete state is known.
    fn hand_over(&mut self) {
        if self.running.is_none() {
            if self.catalog.synced() && self.node_is_known() {
                self.error = self.start().err();
            }
            return;
        }
        let changes = self.catalog.take_changes();
        self.metrics.changes_taken();
        if changes.is_empty() {
            return;
        }
        if changes.service_cidrs {
            self.reconfigure();
        }
        self.send(changes);
    }

    fn send(&mut self, mut changes: Changes) {
        let Some(running) = &mut self.running else { return };
        if !changes.health_checks.is_empty() {
            running.health_checks.clone_from(&self.families);
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
            let work = Work { changes: of_family, triggers, udp };
            // Trigger times of what changed nothing here are nobody's latency.
            if work.changes.is_empty() && work.udp.is_empty() {
                idle.push(family);
                continue;
            }
            self.metrics.sync_queued(family, now.wall);
            self.health.queued(family, now);
            running.engine.work(family, work);
        }
        // The others follow their commits.
        for family in idle {
            self.sync_health_checks(family);
        }
    }

    fn node_is_known(&self) -> bool {
        if self.lacks_pod_cidrs() {
            return false;
        }
        let has_addresses = |node: &portolan_model::object::Node| {
            !(node.internal_addresses.is_empty() && node.external_addresses.is_empty())
        };
        self.catalog.node().is_some_and(has_addresses)
            || !self.configuration.bind_address.is_unspecified()
            || self.since.elapsed() > NODE_WAIT
    }

    fn lacks_pod_cidrs(&self) -> bool {
        self.configuration.detect_local_mode == DetectLocalMode::NodeCidr
            && self.catalog.node().is_none_or(|node| node.pod_cidrs.is_empty())
    }

    fn start(&mut self) -> anyhow::Result<()> {
        if self.catalog.node().is_none() {
            let node = self.catalog.node_name();
            tracing::error!(node, "there is no such Node object: node ports answer on every address");
        }
        let node_ips = settings::node_addresses(self.catalog.node(), &self.configuration);
        // Never with an empty list in its place: that would close every node port.
        let Some(addresses) = self.interface_addresses() else { return Ok(()) };
        let settings: Vec<Settings> = self.settings(&node_ips, &addresses);
        let mut dataplanes: Vec<(Family, Box<dyn Dataplane + Send>)> = Vec::new();
        let mut ports = Vec::new();
        for settings in &settings {
            let dataplane = Nftables::open(settings.clone())?;
            ports.push(dataplane.port());
            dataplanes.push((settings.family, Box::new(dataplane)));
        }
        let flows = self.flow_cleaner(&settings)?;
        let reporter = Reporter {
            health: self.health(),
            metrics: self.metrics(),
            done: self.done.clone(),
            flows: flows.requests(),
        };
        let (max_retry, min_interval) = self.configuration.sync_periods();
        let timing = Timing { min_interval, max_retry, ..Timing::default() };
        let (engine, _) = engine::spawn(dataplanes, timing, move |report| reporter.take(report))?;
        self.send_everything(&engine);
        engine.start();
        self.metrics.changes_taken();
        let service_health = self.service_health(&node_ips, &addresses);
        self.running = Some(Running {
            engine,
            flows,
            node_ips,
            settings,
            service_health,
            health_checks: self.families.clone(),
            unsynced: self.families.clone(),
            ports,
        });
        Ok(())
    }

    fn flow_cleaner(&self, settings: &[Settings]) -> std::io::Result<CleanerThread> {
        let none = NodePortAddresses::Addresses(Vec::new());
        let mut node_ports = PerFamily { ipv4: none.clone(), ipv6: none };
        for settings in settings {
            *node_ports.get_mut(settings.family) = settings.node_port_addresses.clone();
        }
        let metrics = self.metrics();
        CleanerThread::spawn(node_ports, move |cleaned| reports::flows_cleaned(&metrics, &cleaned))
    }

    /// The whole table, in pieces.
    fn send_everything(&mut self, engine: &Handle) {
        self.catalog.drain_changes(|_| {});
        let now = Now::read();
        for &family in &self.families {
            self.metrics.sync_queued(family, now.wall);
            self.health.updated(family, now);
            self.health.queued(family, now);
            let mut changes = Vec::with_capacity(START_CHUNK);
            for (name, forwarding) in self.catalog.forwardings(family) {
                changes.push(Change { name, family, old: None, new: Some(forwarding) });
                if changes.len() == START_CHUNK {
                    let full = std::mem::replace(&mut changes, Vec::with_capacity(START_CHUNK));
                    engine.work(family, Work { changes: full, ..Work::default() });
                }
            }
            let udp = self.catalog.udp_services(family).collect();
            engine.work(family, Work { changes, udp, ..Work::default() });
        }
    }

    /// The node's addresses, or nothing where they cannot be listed now: then what runs stays, and it is tried
    /// again.
    fn interface_addresses(&mut self) -> Option<Vec<IpAddr>> {
        let listed = Addresses::open().and_then(|addresses| addresses.list());
        if let Err(error) = &listed
            && !self.addresses_unknown
        {
            tracing::error!(%error, "the node's addresses cannot be listed; trying again every second");
        }
        self.addresses_unknown = listed.is_err();
        listed.ok()
    }

    fn settings(&self, node_ips: &NodeAddresses, addresses: &[IpAddr]) -> Vec<Settings> {
        let of_family = |&family: &Family| {
            let cidrs = self.catalog.service_cidrs(family);
            settings::settings(&self.configuration, family, self.catalog.node(), node_ips, addresses, cidrs)
        };
        self.families.iter().map(of_family).collect()
    }

    fn reconfigure(&mut self) {
        if self.running.is_none() {
            return;
        }
        let Some(addresses) = self.interface_addresses() else { return };
        let Some(running) = &self.running else { return };
        let new = self.settings(&running.node_ips, &addresses);
        let changed: Vec<Settings> =
            new.iter().filter(|settings| !running.settings.contains(settings)).cloned().collect();
        for settings in changed {
            tracing::info!(family = %settings.family, "settings changed: comparing everything");
            running.flows.requests().configure(settings.family, settings.node_port_addresses.clone());
            running.engine.configure(settings);
        }
        if let Some(running) = &mut self.running {
            running.settings = new;
        }
    }

    fn service_health(&self, node_ips: &NodeAddresses, addresses: &[IpAddr]) -> Vec<(Family, ServiceHealth)> {
        let runtime = tokio::runtime::Handle::current();
        let server = |&family: &Family| {
            let node_ports = settings::node_ports(&self.configuration, node_ips, family);
            let listen = ListenAddresses::choose(&node_ports, family, addresses);
            (family, ServiceHealth::new(runtime.clone(), listen, self.health()))
        };
        self.families.iter().map(server).collect()
    }

    /// Brings the health-check node ports of a family in step with the Catalog.
    fn sync_health_checks(&mut self, family: Family) {
        let Some(running) = &mut self.running else { return };
        if !running.health_checks.contains(&family) {
            return;
        }
        let (mut ports, mut counts) = (BTreeMap::new(), BTreeMap::new());
        for (key, check) in self.catalog.health_checks() {
            let Some(count) = *check.local_ready.get(family) else { continue };
            let key = ServiceKey { namespace: key.namespace.into(), name: key.name.into() };
            ports.insert(key.clone(), check.port);
            counts.insert(key, count as usize);
        }
        for (_, servers) in running.service_health.iter_mut().filter(|(of, _)| *of == family) {
            let failures = servers.sync(&ports, &counts);
            if failures.is_empty() {
                running.health_checks.retain(|waiting| *waiting != family);
            }
        }
    }
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
