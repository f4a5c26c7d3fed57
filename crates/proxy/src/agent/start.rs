//! The start: from the first complete state to a running engine.
//!
//! The first complete state has the lists of Services and EndpointSlices. It has the list of ServiceCIDRs, and the Node
//! with its addresses, or, after a deadline, lacks them. Every family's data plane then compares everything with the
//! kernel. Rules that an earlier run left in another mode are retired after that.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_conntrack::CleanerThread;
use portolan_engine::Dataplane as _;
use portolan_engine::{Handle, Table, Work};
use portolan_model::catalog::PerFamily;
use portolan_model::object::Kind;
use portolan_model::{Change, Event, Settings};
use portolan_node::config::{Configuration, DetectLocalMode};
use portolan_node::health::Now;

use super::{Agent, Found, NODE_WAIT, Plane, Running, health_checks, timing};
use crate::checks;
use crate::finding::{self, Finding};
use crate::modes::{self, Blueprint};
use crate::reports::{self, Reporter};
use crate::settings;

/// How long the start waits for the list of ServiceCIDRs once Services and EndpointSlices are listed. An API server that
/// cannot list them must not keep every Service from being programmed.
const SERVICE_CIDR_WAIT: Duration = Duration::from_secs(30);
/// How often the log repeats what the start waits for.
const WAIT_REPEAT: Duration = Duration::from_secs(60);

impl Agent {
    /// Returns true if everything that the first commit needs is known.
    pub(super) fn may_start(&mut self) -> bool {
        if self.catalog.unsynced_kinds().any(|kind| kind != Kind::ServiceCidr) {
            return false;
        }
        self.listed_at.get_or_insert_with(Instant::now);
        if !self.catalog.synced() {
            if !self.has_waited(SERVICE_CIDR_WAIT) {
                return false;
            }
            self.give_up_service_cidrs();
        }
        if self.lacks_pod_cidrs() {
            return false;
        }
        self.node.has_addresses()
            || !self.configuration.bind_address.is_unspecified()
            || self.has_waited(NODE_WAIT)
    }

    /// Goes on as if the API server had no ServiceCIDRs. The watch keeps asking for them.
    fn give_up_service_cidrs(&mut self) {
        tracing::warn!(
            waited = ?SERVICE_CIDR_WAIT,
            "starting without ServiceCIDRs, because the API server does not list them: until it does, packets to \
             cluster IPs that no Service has are not dropped, and addressGuard.serviceCIDRs has no effect"
        );
        self.apply(Event::ServiceCidrsUnavailable);
    }

    /// Returns true if ServiceCIDRs or the Node object have been awaited for longer than `time`. The wait starts when
    /// Services and EndpointSlices are known, so the time during which the API server is unreachable does not count.
    pub(super) fn has_waited(&self, time: Duration) -> bool {
        self.listed_at.is_some_and(|since| since.elapsed() > time)
    }

    pub(super) fn lacks_pod_cidrs(&self) -> bool {
        self.configuration.detect_local_mode == DetectLocalMode::NodeCidr && self.node.pod_cidrs().is_empty()
    }

    /// Shows on `/readyz` what the first complete commit waits for.
    pub(super) fn update_readiness(&self) {
        self.health.awaits(self.awaited());
    }

    /// Logs what the first complete commit waits for, when that changes and every [`WAIT_REPEAT`].
    pub(super) fn report_waiting(&mut self) {
        let awaited = self.awaited();
        let is_reported =
            |(reported, at): &(Vec<String>, Instant)| *reported == awaited && at.elapsed() < WAIT_REPEAT;
        if awaited.is_empty() || self.reported_wait.as_ref().is_some_and(is_reported) {
            return;
        }
        tracing::info!(awaited = awaited.join(", "), "waiting before the rules are complete");
        self.reported_wait = Some((awaited, Instant::now()));
    }

    fn awaited(&self) -> Vec<String> {
        let mut awaited: Vec<String> =
            self.catalog.unsynced_kinds().map(|kind| format!("the list of {}s", kind.name())).collect();
        match &self.running {
            Some(running) => {
                awaited.extend(running.unsynced.iter().map(|family| format!("the first commit of {family}")));
            }
            None if awaited.is_empty() && self.search.is_running() => {
                awaited.push("the programs of iptables".to_owned());
            }
            None if awaited.is_empty() => {
                let what = if self.lacks_pod_cidrs() { "pod CIDRs" } else { "addresses" };
                awaited.push(format!("{what} of Node {}", self.catalog.node_name()));
            }
            None => {}
        }
        awaited
    }

    /// Starts the engine. Does nothing yet if this node's addresses or programs are not known; it is called again then.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        // An empty list in place of the addresses would close every node port.
        let Some(addresses) = self.interface_addresses() else {
            self.lacks.settings = true;
            return Ok(());
        };
        let blueprints = self.blueprints(&addresses);
        let calls_programs = blueprints.iter().any(Blueprint::calls_programs)
            || modes::former_calls_programs(&self.configuration, &self.families);
        let mut programs = match calls_programs.then(|| self.search.take()) {
            Some(Some(found)) => found,
            Some(None) => return Ok(()),
            None => Found::default(),
        };
        if self.catalog.node().is_none() {
            let node = self.catalog.node_name();
            tracing::error!(node, "there is no such Node object: node ports answer on every address");
        }
        finding::log(&self.new_family_findings());
        finding::judge(&self.findings)?;
        self.warn_of_unknown_address();
        let settings: Vec<Settings> = self.settings(&addresses);
        let (mut dataplanes, mut planes) = (Vec::new(), Vec::new());
        for (settings, blueprint) in settings.iter().zip(blueprints) {
            let family = settings.family;
            let found = programs.get_mut(family).take_if(|_| blueprint.calls_programs());
            // A former data plane of this family may call them, too.
            *programs.get_mut(family) = match &found {
                Some(Ok(found)) => Some(Ok(found.for_another())),
                _ => programs.get_mut(family).take(),
            };
            let modes::Made { dataplane, own } = blueprint.make(settings.clone(), found, &mut self.shared)?;
            let (mode, claims) = (blueprint.mode(), dataplane.about().claims);
            planes.push(Plane {
                family,
                blueprint,
                claims,
                own,
                mode,
                settings: settings.clone(),
                flow_ports: self.flow_ports(mode, settings, &addresses),
                next: Vec::new(),
            });
            dataplanes.push((settings.clone(), dataplane));
        }
        // None is left, unless the configuration has changed since.
        self.shared.reading = None;
        let flows = self.flow_cleaner(&planes)?;
        let reporter = Reporter {
            health: self.health(),
            metrics: self.metrics(),
            done: Arc::clone(&self.done),
            flows: flows.requests(),
            meters: self.shared.meters.clone(),
            recorder: self.recorder.clone(),
        };
        let report = move |report| reporter.take(report);
        let (engine, engine_thread) =
            portolan_engine::spawn(dataplanes, timing(&self.configuration), report)?;
        self.send_everything(&engine);
        self.report_memory(&planes);
        for &family in &self.families {
            for former in modes::former(&self.configuration, family, programs.get_mut(family).take()) {
                engine.retire(family, former);
            }
        }
        engine.start();
        let health_checks = self.new_health_checks(&addresses);
        let (unsynced, unverified) = (self.families.clone(), self.families.clone());
        let removes_leftovers = false;
        self.running = Some(Running {
            engine,
            engine_thread,
            flows,
            settings,
            health_checks,
            unsynced,
            unverified,
            planes,
            addresses,
            former_claims: Vec::new(),
            removes_leftovers,
            reported_until: None,
            is_ending: false,
        });
        self.record_start();
        self.verify();
        Ok(())
    }

    /// Returns the reasons why another configuration cannot be used on this node.
    pub(crate) fn objections(&self, configuration: &Configuration) -> Vec<String> {
        let mut findings = self.family_findings(configuration);
        // At the start, the proxy waits for pod CIDRs. A running proxy would go on without them.
        let by_pod_cidrs = configuration.detect_local_mode == DetectLocalMode::NodeCidr;
        if self.running.is_some() && by_pod_cidrs && self.node.pod_cidrs().is_empty() {
            findings.push(Finding::NoPodCidrs);
        }
        findings.iter().filter(|finding| finding.is_fatal()).map(ToString::to_string).collect()
    }

    /// Returns the findings about families that have not been reported, and stores all of them.
    pub(super) fn new_family_findings(&mut self) -> Vec<Finding> {
        let all = self.family_findings(&self.configuration);
        let new = all.iter().filter(|finding| !self.findings.contains(finding)).cloned().collect();
        self.findings = all;
        new
    }

    fn warn_of_unknown_address(&self) {
        let node_ips = self.node_ips();
        if node_ips.known(node_ips.primary).is_none() {
            tracing::warn!(
                family = %node_ips.primary,
                "this node's own address is not known: let the Node object have an InternalIP, or set bindAddress"
            );
        }
    }

    fn family_findings(&self, configuration: &Configuration) -> Vec<Finding> {
        let node_ips = self.node.ips(configuration);
        let cidrs = settings::expanded_node_ports(configuration, &node_ips);
        let node = checks::Node {
            primary: node_ips.primary,
            pod_cidrs: self.node.pod_cidrs(),
            port_cidrs: Some(&cidrs),
        };
        checks::of_families(configuration, &self.families, &node)
    }

    fn flow_cleaner(&self, planes: &[Plane]) -> std::io::Result<CleanerThread> {
        let mut node_ports = PerFamily::default();
        for plane in planes {
            *node_ports.get_mut(plane.family) = plane.flow_ports.clone();
        }
        let metrics = self.metrics();
        let report = move |cleaned| reports::flows_cleaned(&metrics, &cleaned);
        CleanerThread::spawn(node_ports, portolan_ipvs::DEVICE, report)
    }

    /// Sends every Service port to the engine, in a table, which takes less memory than changes.
    fn send_everything(&mut self, engine: &Handle) {
        self.review_api_server();
        self.catalog.drain_changes(|_| {});
        self.need.forget_services();
        let checks = self.catalog.health_checks();
        let now = Now::read();
        for &family in &self.families {
            self.metrics.sync_queued(family, now.wall);
            self.health.updated(family, now.monotonic, now);
            self.health.queued(family, now);
            let need = &mut self.need;
            let entries = self.catalog.forwardings(family).inspect(|(name, forwarding)| {
                let (name, new) = (name.clone(), Some(forwarding.clone()));
                need.take(&Change { name, family, old: None, new });
            });
            engine.begin_with(Table::with(Settings::plain(family), entries));
            let udp = self.udp_services(family);
            let objects = self.backlog.hand_over(family);
            let health_checks = health_checks::all_of_family(&checks, family);
            let work = Work { udp, objects, health_checks, ..Work::default() };
            engine.work(family, work);
        }
        self.backlog.handed_over();
    }
}
