//! Passes the engine's reports to health, metrics, the log and the flow clean-up. Runs on the engine's thread.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_backend::Refusal;
use portolan_backend::conntrack::{Cleaned, Requests};
use portolan_backend::engine::{ObjectChanges, Report, Step};
use portolan_model::{Family, ServicePortName};
use portolan_node::health::{Health, Now};
use portolan_node::metrics::ProxyMetrics;
use tokio::sync::mpsc::UnboundedSender;

use super::modes::{self, MODES, Meters};

/// A report that a family's commit is in the kernel.
#[derive(Debug, Clone)]
pub(super) struct Synced {
    pub(super) family: Family,
    /// The object changes of the commit.
    pub(super) objects: ObjectChanges,
    /// Whether another data plane has become the active one.
    pub(super) replaced: bool,
    /// Service ports that could not be programmed.
    pub(super) refused: Vec<Refusal>,
    /// Whether everything was compared with the kernel.
    pub(super) full: bool,
    /// The Service ports of the commit, if not everything was compared.
    pub(super) changed: Vec<Arc<ServicePortName>>,
}

/// Receives the engine's reports.
pub(super) struct Reporter {
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) done: UnboundedSender<Synced>,
    /// Receives the UDP Service ports whose stale flows are to be removed.
    pub(super) flows: Requests,
    pub(super) meters: Meters,
}

impl Reporter {
    pub(super) fn take(&self, mut report: Report) {
        let (family, mode) = (report.family, report.mode);
        let now = Now::read();
        if report.step != Step::Collection {
            let is_ok = report.outcome.is_ok();
            self.metrics.sync_finished(family, report.full, report.duration, is_ok, now.wall);
        }
        for driver in MODES {
            driver.update_metrics(&self.metrics, &self.meters, family, driver.mode().name() == mode);
        }
        if report.outcome.is_err()
            && let Some(driver) = modes::named(mode)
        {
            driver.count_failure(&self.metrics, family, report.step);
        }
        match &report.outcome {
            Ok(commit) => {
                if commit.full {
                    tracing::info!(
                        %family, mode, elements = commit.elements, objects = commit.objects, bytes = commit.bytes,
                        duration = ?report.duration, kernel = ?commit.kernel, "compared with the kernel and in step"
                    );
                }
                if report.step == Step::Replacement {
                    tracing::info!(%family, mode, "this mode's rules are complete and do the work from now on");
                }
                if report.repaired {
                    self.metrics.drift_repaired();
                    tracing::warn!(%family, mode, elements = commit.elements, objects = commit.objects,
                        "another program had changed our table; mended");
                }
                if commit.bytes > 0 {
                    self.metrics.committed(family, commit.kernel);
                }
                self.health.updated(family, now);
                let udp = std::mem::take(&mut report.udp);
                if !udp.is_empty() {
                    self.flows.request(family, udp);
                }
                report.triggers.iter().for_each(|&trigger| self.programmed(family, trigger, now.wall));
                // The receiver is gone only when the process ends.
                let _ = self.done.send(Synced {
                    family,
                    objects: report.objects,
                    replaced: report.step == Step::Replacement,
                    refused: commit.refused.clone(),
                    full: commit.full,
                    changed: report.changed,
                });
            }
            Err(error) if report.step == Step::Collection => {
                tracing::warn!(%family, mode, %error, "unused chains could not be removed; comparing everything");
            }
            Err(error) => {
                if report.step == Step::Replacement {
                    tracing::error!(%family, mode, %error, "the rules before stay in force and are kept up; trying again");
                    return;
                }
                self.health.queued(family, now);
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
