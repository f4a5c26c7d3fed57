//! What the engine reports, on its own thread: into health, metrics, logs and the flow clean-up.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_backend::conntrack::{Cleaned, Requests};
use portolan_backend::engine::{ObjectChanges, Report};
use portolan_model::Family;
use portolan_node::health::{Health, Now};
use portolan_node::metrics::ProxyMetrics;
use tokio::sync::mpsc::UnboundedSender;

/// A family's commit is in the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Synced {
    pub(super) family: Family,
    /// The changes of objects that were in it.
    pub(super) objects: ObjectChanges,
}

/// Takes reports in.
pub(super) struct Reporter {
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) done: UnboundedSender<Synced>,
    /// Takes the UDP Service ports whose stale flows are to go.
    pub(super) flows: Requests,
}

impl Reporter {
    pub(super) fn take(&self, mut report: Report) {
        let (family, mode) = (report.family, "nftables");
        let now = Now::read();
        self.metrics.sync_finished(family, report.full, report.duration, report.outcome.is_ok(), now.wall);
        match &report.outcome {
            Ok(commit) => {
                for refusal in &commit.refused {
                    let name = &refusal.name;
                    tracing::error!(
                        namespace = &*name.namespace, service = &*name.service, port = &*name.port, %family, mode,
                        reason = refusal.reason, "this Service port cannot be programmed"
                    );
                }
                if commit.full {
                    tracing::info!(
                        %family, mode, elements = commit.elements, objects = commit.objects, bytes = commit.bytes,
                        duration = ?report.duration, kernel = ?commit.kernel, "compared with the kernel and in step"
                    );
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
                let _ = self.done.send(Synced { family, objects: report.objects });
            }
            Err(error) => {
                self.metrics.nftables_sync_failed(family);
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

/// Takes in what the clean-up of stale UDP flows did, on its own thread.
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
