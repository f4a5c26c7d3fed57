//! Passes the engine's reports to health, metrics, the log and the flow clean-up. Runs on the engine's thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_conntrack::{Cleaned, Requests};
use portolan_engine::Refusal;
use portolan_engine::{HealthCheckPort, ObjectChanges, Report, Step};
use portolan_model::catalog::PerFamily;
use portolan_model::{Family, ServicePortName};
use portolan_node::health::{Health, Now};
use portolan_node::metrics::ProxyMetrics;
use portolan_recorder::Recorder;
use tokio::sync::Notify;

use super::modes::{self, MODES, Meters};
use super::recording;

/// Namespace and name of a Service.
type ServiceName = (Arc<str>, Arc<str>);

/// A report that a family's commits are in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Synced {
    pub(super) family: Family,
    /// The object changes of the commits.
    pub(super) objects: ObjectChanges,
    /// The health-check node ports of the commits, the latest state of each.
    pub(super) health_checks: BTreeMap<ServiceName, HealthCheckPort>,
    /// The mode of the data plane that has become the active one, if it is another one. Of several, the last one.
    pub(super) replaced_by: Option<&'static str>,
    /// Service ports that could not be programmed.
    pub(super) refused: Vec<Refusal>,
    /// Whether everything was compared with the kernel.
    pub(super) full: bool,
    /// Whether a comparison has written anything.
    pub(super) mended: bool,
    /// Whether a comparison has shown that the kernel has everything.
    pub(super) verified: bool,
    /// The Service ports of the commits, if not everything was compared.
    pub(super) changed: BTreeSet<Arc<ServicePortName>>,
}

impl Synced {
    /// Adds a later commit of the family.
    fn add(&mut self, later: Self) {
        self.objects += later.objects;
        self.health_checks.extend(later.health_checks);
        self.replaced_by = later.replaced_by.or(self.replaced_by);
        self.verified |= later.verified;
        self.mended |= later.mended;
        if later.full {
            (self.full, self.refused, self.changed) = (true, later.refused, BTreeSet::new());
            return;
        }
        // A Service port that the later commit covers and does not refuse is programmed.
        self.refused.retain(|Refusal { name, .. }| {
            !later.changed.contains(name) && !later.refused.iter().any(|new| new.name == *name)
        });
        self.refused.extend(later.refused);
        if !self.full {
            self.changed.extend(later.changed);
        }
    }
}

/// The reports that wait for the agent, merged by family: they take memory for each Service port, however long the agent
/// is busy.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    of_family: Mutex<PerFamily<Option<Synced>>>,
    arrived: Notify,
}

impl Waiting {
    fn add(&self, step: Synced) {
        let mut all = self.of_family.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(step.family) {
            Some(waiting) => waiting.add(step),
            none @ None => *none = Some(step),
        }
        drop(all);
        self.arrived.notify_one();
    }

    /// Waits for reports, and takes them.
    pub(super) async fn take(&self) -> impl Iterator<Item = Synced> {
        loop {
            let PerFamily { ipv4, ipv6 } =
                std::mem::take(&mut *self.of_family.lock().unwrap_or_else(PoisonError::into_inner));
            if ipv4.is_some() || ipv6.is_some() {
                return ipv4.into_iter().chain(ipv6);
            }
            // A report that came after the look has left its notification.
            self.arrived.notified().await;
        }
    }
}

/// Receives the engine's reports.
pub(super) struct Reporter {
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) done: Arc<Waiting>,
    /// Receives the UDP Service ports whose stale flows are to be removed.
    pub(super) flows: Requests,
    pub(super) meters: Meters,
    /// The history of the last syncs.
    pub(super) recorder: Recorder,
}

impl Reporter {
    pub(super) fn take(&self, mut report: Report) {
        let (family, mode) = (report.family, report.mode);
        let now = Now::read();
        self.recorder.record(recording::moment(now.wall), || recording::of_report(&report));
        if !matches!(report.step, Step::Collection | Step::PutOff) {
            let is_ok = report.outcome.is_ok();
            self.metrics.sync_finished(family, report.full, report.duration, is_ok, now.wall);
        }
        if report.outcome.is_ok() && report.step != Step::Collection {
            self.metrics.mode_runs(family, mode);
        }
        for driver in MODES {
            driver.update_metrics(&self.metrics, &self.meters, family, driver.mode().name() == mode);
        }
        if report.outcome.is_err()
            && report.step != Step::PutOff
            && let Some(driver) = modes::named(mode)
        {
            driver.count_failure(&self.metrics, family, report.step);
        }
        match &report.outcome {
            Ok(commit) => {
                if commit.full {
                    tracing::info!(
                        %family, mode, elements = commit.elements, objects = commit.objects, bytes = commit.bytes,
                        duration = ?report.duration, kernel = ?commit.kernel, "compared with the kernel and in sync"
                    );
                }
                if commit.full
                    && let Some(driver) = modes::named(mode)
                {
                    driver.look_at_use(&self.meters);
                }
                if report.step == Step::Replacement {
                    tracing::info!(%family, mode, "the rules of this mode are complete and have taken over");
                }
                if report.repaired {
                    self.metrics.drift_repaired();
                    tracing::warn!(%family, mode, elements = commit.elements, objects = commit.objects,
                        "another program had changed our table; mended");
                }
                if commit.bytes > 0 {
                    self.metrics.committed(family, commit.kernel);
                }
                let udp = std::mem::take(&mut report.udp);
                if !udp.is_empty() {
                    self.flows.request(family, udp);
                }
                report.triggers.iter().for_each(|&trigger| self.programmed(family, trigger, now.wall));
                if report.step == Step::DuringComparison {
                    // The kernel may lack other changes until the comparison is complete.
                    return;
                }
                let began = now.monotonic.checked_sub(report.taken_before).unwrap_or(now.monotonic);
                self.health.updated(family, began, now);
                self.done.add(Synced {
                    family,
                    objects: report.objects,
                    health_checks: by_service(report.health_checks),
                    replaced_by: (report.step == Step::Replacement).then_some(mode),
                    refused: commit.refused.clone(),
                    full: commit.full,
                    mended: commit.full && commit.elements.saturating_add(commit.objects) > 0,
                    verified: report.verified,
                    changed: report.changed.into_iter().collect(),
                });
            }
            Err(error) if report.step == Step::Collection => {
                tracing::warn!(%family, mode, %error, "unused chains could not be removed; comparing everything");
            }
            Err(error) if report.step == Step::PutOff => {
                tracing::warn!(%family, mode, %error, "the periodic comparison is put off; changes are written");
            }
            Err(error) => {
                if report.step == Step::Replacement {
                    tracing::error!(%family, mode, %error, "the former rules stay and are updated; trying again");
                    return;
                }
                // What was programmed may lack something, although no object changes: the repeated commit waits.
                self.health.queued(family, now);
                self.metrics.sync_queued(family, now.wall);
                tracing::error!(%family, mode, %error, "the commit failed; what was programmed stays, trying again");
            }
        }
    }

    fn programmed(&self, family: Family, trigger: i64, now: SystemTime) {
        let Ok(trigger) = u64::try_from(trigger) else { return };
        let latency = now.duration_since(UNIX_EPOCH + Duration::from_nanos(trigger));
        self.metrics.network_programmed(family, latency.unwrap_or_default());
    }
}

fn by_service(checks: Vec<HealthCheckPort>) -> BTreeMap<ServiceName, HealthCheckPort> {
    let named = |check: HealthCheckPort| ((check.namespace.clone(), check.service.clone()), check);
    checks.into_iter().map(named).collect()
}

/// Records a clean-up of stale UDP flows. Runs on the clean-up's thread.
pub(super) fn flows_cleaned(metrics: &ProxyMetrics, cleaned: &Cleaned) {
    let (family, duration) = (cleaned.family, cleaned.duration);
    match &cleaned.outcome {
        Ok(report) => {
            metrics.conntrack_reconciled(family, duration, report.deleted as u64);
            tracing::debug!(%family, listed = report.listed, deleted = report.deleted, ?duration, "stale UDP flows removed");
        }
        Err(error) => tracing::error!(%family, %error, "stale UDP flows could not be removed; trying again"),
    }
}

#[cfg(test)]
mod tests {
    use portolan_conntrack::CleanerThread;
    use portolan_engine::{Cause, Commit, Error, Extent};
    use portolan_model::Protocol;
    use portolan_node::metrics::BuildInfo;

    use super::*;

    fn name(service: &str) -> Arc<ServicePortName> {
        let (namespace, service, port) = ("n".into(), service.into(), "".into());
        Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Tcp })
    }

    fn step(full: bool, changed: &[&str], refused: &[&str]) -> Synced {
        let refusal = |service: &&str| Refusal { name: name(service), reason: "full", extent: Extent::Whole };
        Synced {
            family: Family::Ipv6,
            objects: ObjectChanges { services: 1, endpoint_slices: 0 },
            health_checks: BTreeMap::new(),
            replaced_by: None,
            refused: refused.iter().map(refusal).collect(),
            full,
            mended: false,
            verified: false,
            changed: changed.iter().map(|service| name(service)).collect(),
        }
    }

    /// Returns what the agent gets of several reports.
    async fn merged(steps: impl IntoIterator<Item = Synced>) -> Synced {
        let waiting = Waiting::default();
        steps.into_iter().for_each(|step| waiting.add(step));
        let taken: Vec<Synced> = waiting.take().await.collect();
        assert!(waiting.of_family.lock().expect("not poisoned").ipv6.is_none());
        let [one] = <[Synced; 1]>::try_from(taken).expect("one for each family");
        one
    }

    #[tokio::test]
    async fn reports_that_wait_are_merged() {
        let two = ObjectChanges { services: 2, endpoint_slices: 0 };
        let first = step(false, &["a", "b", "c"], &["a", "b"]);
        let both = merged([first.clone(), step(false, &["b", "d"], &["d"])]).await;
        assert_eq!(both, Synced { objects: two, ..step(false, &["a", "b", "c", "d"], &["a", "d"]) });
        let full = merged([first.clone(), step(true, &[], &["c"])]).await;
        assert_eq!(full, Synced { objects: two, ..step(true, &[], &["c"]) });
        let then = merged([step(true, &[], &["a", "b"]), step(false, &["b", "c"], &["c"])]).await;
        assert_eq!(then, Synced { objects: two, ..step(true, &[], &["a", "c"]) });
        let by = |mode| Synced { replaced_by: Some(mode), ..first.clone() };
        let replaced = merged([by("ipvs"), by("nftables"), first.clone()]).await;
        assert_eq!(replaced.replaced_by, Some("nftables"));
        let check = |port| {
            by_service(vec![HealthCheckPort {
                namespace: "n".into(),
                service: "a".into(),
                port,
                local_ready: 1,
            }])
        };
        let opens = Synced { health_checks: check(Some(1)), ..first.clone() };
        let closes = Synced { health_checks: check(None), ..first };
        assert_eq!(merged([opens, closes]).await.health_checks, check(None));
        let verified = Synced { verified: true, mended: true, ..step(true, &[], &[]) };
        let verified = merged([verified, step(false, &["a"], &[])]).await;
        assert!(verified.verified && verified.mended && verified.full);
    }

    fn report(step: Step, outcome: Result<Commit, Error>) -> Report {
        Report {
            family: Family::Ipv4,
            mode: "ipvs",
            duration: Duration::from_millis(1),
            taken_before: Duration::ZERO,
            full: true,
            repaired: false,
            verified: false,
            step,
            cause: Cause::default(),
            outcome,
            triggers: Vec::new(),
            udp: Vec::new(),
            objects: ObjectChanges::default(),
            health_checks: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// The alert about changes that wait compares this time with that of the last sync.
    #[test]
    fn a_failed_repair_counts_as_a_requested_sync() {
        const QUEUED: &str = r#"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} "#;
        let cleaner = CleanerThread::spawn(PerFamily::default(), "none", |_| {}).expect("a thread");
        let reporter = Reporter {
            health: Arc::new(Health::new(Duration::from_secs(60))),
            metrics: Arc::new(ProxyMetrics::new(BuildInfo::of_version("v1"))),
            done: Arc::default(),
            flows: cleaner.requests(),
            meters: Meters::default(),
            recorder: Recorder::new(0),
        };
        let is_queued = || reporter.metrics.page().lines().any(|line| line.starts_with(QUEUED));
        let failed = || Err(Error::Contended { mode: "ipvs", attempts: 1, is_unchanged: false });
        reporter.take(report(Step::Commit, Ok(Commit::default())));
        // After the first of these the former rules stay, and after the second everything is compared.
        reporter.take(report(Step::Replacement, failed()));
        reporter.take(report(Step::Collection, failed()));
        // Nothing of ours has changed, and changes are written.
        reporter.take(report(Step::PutOff, failed()));
        assert!(!is_queued());
        reporter.take(report(Step::Commit, failed()));
        assert!(is_queued());
    }
}
