//! The repair loop: runs the audit of `portolan-ipam` over a consistent view of the store, and repairs what it finds.
//!
//! The server's own writes need no repair, since an address and its Service are written in one transaction. The loop
//! serves imported data, edits by users, and ranges that were removed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use portolan_api::{
    Api, ApiError, address_draft,
    audit::{Cluster, Report},
    events::Notice,
    load_balancer_draft, port_draft,
};
use portolan_ipam::{
    ServiceKey,
    repair::{Audit, Finding, Mend, PERIOD, Problem, Sightings, Subject},
};
use portolan_schema::Resource;
use portolan_store::{CommitError, Expired, Scope, Step, Store, Transaction};
use tokio::{task::yield_now, time::Instant};

use super::BATCH;

/// Tries of a pass while other clients write the objects that it repairs.
const TRIES: usize = 4;
/// Minimum pause before a pass other than the regular ones.
const PAUSE: Duration = Duration::from_secs(1);

/// Counters of the repair loop. The names are those of kube-apiserver, which counts only its port repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairMetrics {
    /// `apiserver_clusterip_repair_ip_errors_total`, by `type`.
    pub address_errors: BTreeMap<&'static str, u64>,
    /// `apiserver_nodeport_repair_port_errors_total`, by `type`.
    pub port_errors: BTreeMap<&'static str, u64>,
    /// `apiserver_clusterip_repair_reconcile_errors_total` and `apiserver_nodeport_repair_reconcile_errors_total`:
    /// number of failed passes.
    pub failed_passes: u64,
    /// Number of completed passes.
    pub passes: u64,
}

/// The counters of one repair loop. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct RepairCounters(Arc<Mutex<RepairMetrics>>);

impl RepairCounters {
    /// Returns the present counts.
    pub fn read(&self) -> RepairMetrics {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, RepairMetrics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that is kept between passes.
#[derive(Debug, Default)]
pub(crate) struct Repair {
    sightings: Sightings,
    counters: RepairCounters,
}

/// The result of a pass.
#[derive(Debug)]
pub(crate) struct Pass {
    /// All findings.
    pub(crate) report: Report,
    /// Seconds until a finding that may be a write in progress must be checked again. `None` if there is none.
    pub(crate) recheck_after: Option<u64>,
}

impl Repair {
    /// Creates a loop that has seen nothing.
    pub(crate) fn new(counters: RepairCounters) -> Self {
        Self { sightings: Sightings::default(), counters }
    }

    /// Returns the counters.
    #[cfg(test)]
    pub(super) fn counters(&self) -> &RepairCounters {
        &self.counters
    }

    /// Runs a pass every three minutes, and one in between when an IPAddress was deleted that a Service still lists.
    pub(super) async fn keep(mut self, api: &Api) {
        let period = Duration::from_secs(PERIOD);
        let mut addresses = api.store().subscribe(Resource::IpAddress);
        let mut regular = Instant::now() + period;
        let mut next = regular;
        loop {
            let missing = async {
                loop {
                    if addresses.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                    if api.lacks_address() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            };
            tokio::select! {
                () = missing => tokio::time::sleep(PAUSE).await,
                () = tokio::time::sleep_until(next) => {}
            }
            let now = Instant::now();
            let pass = if now < regular {
                self.pass_between(api).await
            } else {
                regular = now + period;
                self.pass(api).await
            };
            let recheck = pass.and_then(|pass| pass.recheck_after);
            let recheck = recheck.map(|seconds| Instant::now() + Duration::from_secs(seconds).max(PAUSE));
            next = recheck.map_or(regular, |recheck| recheck.min(regular));
        }
    }

    /// Runs a pass whose sightings are not counted: a whole period must lie between two sightings.
    pub(super) async fn pass_between(&mut self, api: &Api) -> Option<Pass> {
        let sightings = std::mem::take(&mut self.sightings);
        let pass = self.pass(api).await;
        self.sightings = sightings;
        pass
    }

    /// Runs one pass: finds, repairs and reports problems. The sightings count only if everything could be written.
    pub(crate) async fn pass(&mut self, api: &Api) -> Option<Pass> {
        for _ in 0..TRIES {
            let pass = self.try_pass(api).await;
            match pass {
                Ok((audit, counts)) => {
                    count(&mut self.counters.lock(), &audit.findings);
                    self.sightings = audit.sightings.clone();
                    let recheck_after = audit.recheck_after;
                    return Some(Pass { report: Report::new(audit, counts, Vec::new()), recheck_after });
                }
                Err(Interrupted::Raced) => {
                    if api.store().refresh().await.is_err() {
                        break;
                    }
                }
                Err(Interrupted::Failed(error)) => {
                    tracing::warn!(%error, "repair could not be finished");
                    break;
                }
            }
        }
        let mut counters = self.counters.lock();
        counters.failed_passes = counters.failed_passes.saturating_add(1);
        None
    }

    async fn try_pass(&self, api: &Api) -> Result<(Audit, (usize, usize)), Interrupted> {
        let at = api.store().revision();
        let cluster = observe(api, at).await.map_err(|_| Interrupted::Raced)?;
        let counts = cluster.counts();
        let audit = cluster.audit(now(), &self.sightings);
        for finding in &audit.findings {
            tracing::warn!(subject = ?finding.subject, problem = %finding.problem, "repair");
            mend(api.store().as_ref(), at, finding).await?;
        }
        for finding in &audit.findings {
            report(api, finding).await;
        }
        Ok((audit, counts))
    }
}

/// The reason why a pass was interrupted.
enum Interrupted {
    /// Another client wrote an object that the pass was about to write.
    Raced,
    Failed(CommitError),
}

impl From<CommitError> for Interrupted {
    fn from(error: CommitError) -> Self {
        if matches!(error, CommitError::Conflict { .. }) { Self::Raced } else { Self::Failed(error) }
    }
}

/// Reads all objects but Nodes at one revision. Yields to other tasks in between.
async fn observe(api: &Api, at: u64) -> Result<Cluster, Expired> {
    let snapshot =
        |resource| api.store().snapshot(resource, &Scope::default(), Some(at)).map(|it| it.objects);
    let (ports, cidrs) = (snapshot(Resource::NodePort)?, snapshot(Resource::ServiceCidr)?);
    let (addresses, services) = (snapshot(Resource::IpAddress)?, snapshot(Resource::Service)?);
    let ports = ports.iter().filter_map(|object| object.key().parse().ok()).collect();
    let mut cluster =
        Cluster::new(api.node_port_range()).with_families(api.families()).with_recorded_ports(ports);
    // Findings about Nodes lead to no write, so the Nodes may be newer than the revision.
    cluster = cluster.with_load_balancers(api.load_balancer_ranges().clone()).with_nodes(api.nodes());
    cluster.knows_addresses();
    for object in cidrs {
        cluster.add_service_cidr(&object.decode());
    }
    for batch in addresses.chunks(BATCH) {
        for object in batch {
            cluster.add_address(&object.decode());
        }
        yield_now().await;
    }
    for batch in services.chunks(BATCH) {
        for object in batch {
            cluster.add_service(&object.decode());
        }
        yield_now().await;
    }
    Ok(cluster)
}

/// Carries out a repair that needs no user, if none of its objects has changed since revision `at`. An IPAddress with
/// a wrong parent is replaced in place, so that its address is never free in between.
async fn mend(store: &dyn Store, at: u64, finding: &Finding) -> Result<(), Interrupted> {
    let steps = match (&finding.mend, &finding.subject) {
        (
            Mend::CreateAddress(address, owner)
            | Mend::ReplaceAddress(address, owner)
            | Mend::RecordLoadBalancer(address, owner),
            _,
        ) => {
            let expected = revision(store, at, Resource::IpAddress, &address.to_string())?;
            let is_balancer = matches!(finding.mend, Mend::RecordLoadBalancer(..));
            let draft = if is_balancer { load_balancer_draft } else { address_draft }(*address, owner);
            vec![
                present(service(store, at, owner)?)?,
                Step::Put { resource: Resource::IpAddress, draft, expected },
            ]
        }
        (Mend::DeleteAddress(address), _) => {
            let mut steps = Vec::new();
            if let Problem::Orphan { service: owner, .. } | Problem::Unlisted { service: owner, .. } =
                &finding.problem
            {
                steps.push(service(store, at, owner)?);
            }
            steps.extend(removal(store, at, Resource::IpAddress, &address.to_string())?);
            steps
        }
        (Mend::RecordPort(port), Subject::Service(owner)) => {
            let draft = port_draft(*port, owner);
            vec![
                present(service(store, at, owner)?)?,
                Step::Put { resource: Resource::NodePort, draft, expected: None },
            ]
        }
        (Mend::ReleasePort(port), _) => {
            removal(store, at, Resource::NodePort, &port.to_string())?.into_iter().collect()
        }
        (Mend::RecordPort(_) | Mend::Nothing, _) => Vec::new(),
    };
    if !steps.is_empty() {
        store.commit(Transaction { steps }).await?;
    }
    Ok(())
}

/// Returns the current revision of an object; an error if it has changed since `at`.
fn revision(store: &dyn Store, at: u64, resource: Resource, key: &str) -> Result<Option<u64>, Interrupted> {
    let revision = store.latest(resource, key).map(|object| object.revision());
    if revision.is_some_and(|revision| revision > at) { Err(Interrupted::Raced) } else { Ok(revision) }
}

fn service(store: &dyn Store, at: u64, key: &ServiceKey) -> Result<Step, Interrupted> {
    let key = key.to_string();
    let expected = revision(store, at, Resource::Service, &key)?;
    Ok(Step::Require { resource: Resource::Service, key: key.into(), expected })
}

/// Returns the step, or an error if the Service does not exist: it needs no repair.
fn present(step: Step) -> Result<Step, Interrupted> {
    if step.expected().is_some() { Ok(step) } else { Err(Interrupted::Raced) }
}

fn removal(store: &dyn Store, at: u64, resource: Resource, key: &str) -> Result<Option<Step>, Interrupted> {
    let expected = revision(store, at, resource, key)?;
    Ok(expected.map(|expected| Step::Remove { resource, key: key.into(), expected }))
}

async fn report(api: &Api, finding: &Finding) {
    let Some(reason) = finding.problem.event_reason() else { return };
    let (resource, namespace, name) = match &finding.subject {
        Subject::Service(key) => (Resource::Service, key.namespace.as_str(), key.name.clone()),
        Subject::Address(address) => (Resource::IpAddress, "", address.to_string()),
        Subject::Node(name) => (Resource::Node, "", name.clone()),
        Subject::Port(_) => return,
    };
    let action = finding.problem.event_action();
    let is_port = action == "PortAllocation";
    let controller =
        if is_port { "portallocator-repair-controller" } else { "ipallocator-repair-controller" };
    let note = finding.problem.to_string();
    let regarding = (resource, namespace, name.as_str());
    let notice = Notice { regarding, uid: None, is_warning: true, controller, reason, action, note };
    notice.send(api).await;
}

fn count(metrics: &mut RepairMetrics, findings: &[Finding]) {
    metrics.passes = metrics.passes.saturating_add(1);
    for finding in findings {
        let is_port = finding.problem.event_action() == "PortAllocation";
        let counters = if is_port { &mut metrics.port_errors } else { &mut metrics.address_errors };
        let counter = counters.entry(finding.problem.metric_type()).or_insert(0);
        *counter = counter.saturating_add(1);
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Runs one pass of repair (`portolan serve --repair-once`). Returns its findings, and those of an audit after it.
pub async fn repair_once(api: &Api) -> Result<(Report, Report), ApiError> {
    let mut repair = Repair::default();
    let unfinished = || ApiError::Unavailable("repair could not be finished".to_owned());
    let found = repair.pass(api).await.ok_or_else(unfinished)?;
    let cluster = observe(api, api.store().revision()).await.map_err(|_| unfinished())?;
    let counts = cluster.counts();
    let audit = cluster.audit(now(), &Sightings::default());
    Ok((found.report, Report::new(audit, counts, Vec::new())))
}
