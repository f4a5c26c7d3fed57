//! Active health checks: the prober with the objects of the store, writing through the API.

mod client;
mod feed;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use portolan_api::Api;
use portolan_prober::probe::{Client, Probes};
use portolan_prober::{EndpointSlice, Metrics, Prober, ProberOptions, Report, Service};
use portolan_schema::Object;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::client::{EventSender, Leases, Slices};
use crate::{AddonError, thread};

/// Name of the thread.
const THREAD: &str = "portolan-probes";
/// Observations that wait for the prober.
const WAITING: usize = 1024;

/// Settings of the health checks.
#[derive(Debug, Clone)]
pub struct HealthChecks {
    /// True if other servers may use the same store. The one that holds the Lease then probes.
    pub is_shared: bool,
    /// Maximum number of probes under way at once. Each needs an open file.
    pub most_probes: usize,
}

impl Default for HealthChecks {
    fn default() -> Self {
        Self { is_shared: false, most_probes: ProberOptions::default().most_probes }
    }
}

/// Returns which endpoints of a slice await their first result, for
/// [`ApiConfig::health_checked`](portolan_api::ApiConfig::health_checked).
pub fn health_checked(service: &[u8], slice: &Object) -> Option<Vec<bool>> {
    let service = serde_json::from_slice::<Service>(service).ok().filter(Service::asks_for_checks)?;
    let slice = serde_json::to_vec(slice).ok()?;
    portolan_prober::awaiting(&service, &serde_json::from_slice::<EndpointSlice>(&slice).ok()?)
}

/// Starts the prober. Returns its metrics.
pub(crate) fn start(
    api: &Arc<Api>,
    config: &HealthChecks,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> Result<Arc<Metrics>, AddonError> {
    let client = Client::new()?;
    let options = ProberOptions { most_probes: config.most_probes, ..ProberOptions::default() };
    let (events, reports) = EventSender::new();
    let lease = config.is_shared.then(|| (Leases(Arc::clone(api)), client::identity()));
    let writer = Slices(Arc::clone(api));
    let prober = Prober::new(options, client, writer, events, lease);
    let metrics = prober.metrics();
    let api = Arc::clone(api);
    thread::spawn(THREAD, stopping, tasks, async move |stopping| {
        run(&api, prober, reports, thread::stopped(stopping)).await;
    })?;
    Ok(metrics)
}

/// Runs the prober with the objects of the store, until `stop` completes.
async fn run<P: Probes>(
    api: &Arc<Api>,
    prober: Prober<P, Slices, EventSender, Leases>,
    reports: mpsc::Receiver<Report>,
    stop: impl Future<Output = ()>,
) {
    let (send, inputs) = mpsc::channel(WAITING);
    tokio::select! {
        () = prober.run(inputs, stop) => {}
        // Neither ends before the prober.
        ((), ()) = async { tokio::join!(client::record(api, reports), feed::follow(api, send)) } => {}
    }
}
