//! The health and the metrics server: running, and moved to another address while they run.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use portolan_node::config::Configuration;
use portolan_node::health::Health;
use portolan_node::http::{BindError, Server};
use portolan_node::metrics::{Pages, ProxyMetrics};
use portolan_node::{health, metrics};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// How long the old listener stays open for the new one to open.
const OVERLAP: Duration = Duration::from_secs(2);

/// What the servers show.
pub(super) struct Shown {
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) pages: Arc<Pages>,
}

/// Both servers. They end when this is dropped.
pub(super) struct Servers {
    shown: Shown,
    health: Slot,
    metrics: Slot,
    failed: UnboundedSender<BindError>,
}

/// One server, where one is configured.
#[derive(Default)]
struct Slot {
    address: Option<SocketAddr>,
    task: Option<Task>,
}

/// Ends when it is dropped.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Servers {
    /// No server yet. The receiver tells of a server that had to listen (`bindAddressHardFail`) and cannot.
    pub(super) fn new(shown: Shown) -> (Self, UnboundedReceiver<BindError>) {
        let (failed, failures) = unbounded_channel();
        (Self { shown, health: Slot::default(), metrics: Slot::default(), failed }, failures)
    }

    /// Listens where a configuration says. A server that has to move opens its new address before it closes the
    /// old one, where both can be open at once.
    pub(super) async fn listen(&mut self, configuration: &Configuration) {
        let hard_fail = configuration.bind_address_hard_fail;
        let Shown { health, metrics, pages } = &self.shown;
        let at = configuration.healthz_bind_address;
        let server = at.map(|at| health::server(at, hard_fail, Arc::clone(health), Arc::clone(metrics)));
        self.health.replace(at, server, &self.failed).await;
        let at = configuration.metrics_bind_address;
        let server = at.map(|at| metrics::server(at, hard_fail, Arc::clone(pages)));
        self.metrics.replace(at, server, &self.failed).await;
    }

    /// What keeps the servers from listening where a configuration says; changes nothing.
    pub(super) fn obstacles(&self, configuration: &Configuration) -> Vec<String> {
        let moves = [
            ("healthzBindAddress", self.health.address, configuration.healthz_bind_address),
            ("metricsBindAddress", self.metrics.address, configuration.metrics_bind_address),
        ];
        let ours = [self.health.address, self.metrics.address];
        let obstacle = |(field, old, new): (&str, _, Option<SocketAddr>)| {
            let new = new.filter(|new| Some(*new) != old)?;
            let error = TcpListener::bind(new).err()?;
            // What is in the way may be ours, and goes.
            let in_use = error.kind() == io::ErrorKind::AddrInUse;
            let own = ours.iter().flatten().any(|own| overlap(*own, new));
            (!(in_use && own)).then(|| format!("{field}: cannot listen on {new}: {error}"))
        };
        moves.into_iter().filter_map(obstacle).collect()
    }
}

impl Slot {
    async fn replace(
        &mut self,
        address: Option<SocketAddr>,
        server: Option<Server>,
        failed: &UnboundedSender<BindError>,
    ) {
        if address == self.address {
            return;
        }
        let both = self.address.zip(address);
        if both.is_some_and(|(old, new)| overlap(old, new)) {
            self.close().await;
        }
        let task = match server {
            Some(server) => {
                let mut bound = server.bound();
                let failed = failed.clone();
                let task = Task(tokio::spawn(async move { drop(failed.send(server.run().await)) }));
                let open = bound.wait_for(Option::is_some);
                if self.task.is_some() && tokio::time::timeout(OVERLAP, open).await.is_err() {
                    tracing::warn!(?address, "not listening there yet; closing the old address all the same");
                }
                Some(task)
            }
            None => None,
        };
        self.close().await;
        (self.address, self.task) = (address, task);
    }

    /// Ends the server; its address is free afterwards.
    async fn close(&mut self) {
        if let Some(mut task) = self.task.take() {
            task.0.abort();
            // Cancelled, which is what was asked for.
            let _ = (&mut task.0).await;
        }
    }
}

/// Whether two listeners cannot be open at once. A wildcard is every address of both families.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}
