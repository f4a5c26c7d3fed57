//! The health and the metrics server. They can move to another address while they run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_node::config::Configuration;
use portolan_node::health::Health;
use portolan_node::metrics::{Pages, ProxyMetrics};
use portolan_node::{health, metrics};
use portolan_web::{BindError, HardFail, Opened, Server};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long the former listener stays open until the new one serves.
const OVERLAP: Duration = Duration::from_secs(2);

/// The state that the servers show.
pub(super) struct Shown {
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<ProxyMetrics>,
    pub(super) pages: Arc<Pages>,
}

/// Both servers. They stop when this is dropped.
pub(super) struct Servers {
    shown: Shown,
    health: Slot,
    metrics: Slot,
    failed: UnboundedSender<BindError>,
}

/// The moves of the servers to a new configuration, with the addresses that could be opened in advance.
pub(super) struct Prepared {
    health: Move,
    metrics: Move,
}

/// The next state of one server.
enum Move {
    /// The server stays where it is.
    Done,
    /// The server moves to an address that is already open.
    Open(Opened),
    /// The server stops, or moves to an address that overlaps one of the current servers, which is closed first.
    Reopen,
}

/// One server and its configured address. Both are `None` if none is configured.
#[derive(Default)]
struct Slot {
    address: Option<SocketAddr>,
    running: Option<Running>,
}

/// A running server. It stops when this is dropped.
struct Running {
    task: JoinHandle<()>,
    hard_fail: HardFail,
    /// The address on which it listens. `None` before it does.
    bound: watch::Receiver<Option<SocketAddr>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Servers {
    /// Creates the set without servers. The receiver gets the error of a server with `bindAddressHardFail` that
    /// cannot listen.
    pub(super) fn new(shown: Shown) -> (Self, UnboundedReceiver<BindError>) {
        let (failed, failures) = unbounded_channel();
        (Self { shown, health: Slot::default(), metrics: Slot::default(), failed }, failures)
    }

    /// Starts the servers on their configured addresses.
    pub(super) fn listen(&mut self, configuration: &Configuration) {
        let [health, metrics] = self.configured(configuration);
        self.health.start(configuration.healthz_bind_address, health, &self.failed);
        self.metrics.start(configuration.metrics_bind_address, metrics, &self.failed);
    }

    /// Opens the addresses of a new configuration. Changes no running server.
    ///
    /// # Errors
    /// Reasons why the servers cannot listen there.
    pub(super) fn prepare(&self, configuration: &Configuration) -> Result<Prepared, Vec<String>> {
        let hard_fail = configuration.bind_address_hard_fail;
        let servers = [
            ("healthzBindAddress", &self.health, configuration.healthz_bind_address),
            ("metricsBindAddress", &self.metrics, configuration.metrics_bind_address),
        ];
        let leaves = servers.iter().filter(|(_, slot, new)| slot.address != *new);
        let free: Vec<SocketAddr> = leaves.filter_map(|(_, slot, _)| slot.address).collect();
        let prepare = |(field, slot, new): (&str, &Slot, Option<SocketAddr>)| {
            let prepared = slot.prepare(new, hard_fail, &free);
            prepared.map_err(|(address, error)| format!("{field}: cannot listen on {address}: {error}"))
        };
        match servers.map(prepare) {
            [Ok(health), Ok(metrics)] => Ok(Prepared { health, metrics }),
            results => Err(results.into_iter().filter_map(Result::err).collect()),
        }
    }

    /// Moves the servers to a prepared configuration. A server whose new address is open already serves there before
    /// it leaves the former one. A server whose address is not open retries, even with `bindAddressHardFail`: a
    /// changed file never ends a running proxy.
    pub(super) async fn follow(&mut self, configuration: &Configuration, prepared: Prepared) {
        let hard_fail = configuration.bind_address_hard_fail;
        let [health, metrics] = self.configured(configuration).map(|server| server.map(Server::patient));
        let mut steps = [
            (&mut self.health, prepared.health, configuration.healthz_bind_address, health),
            (&mut self.metrics, prepared.metrics, configuration.metrics_bind_address, metrics),
        ];
        for (slot, to, address, server) in &mut steps {
            match std::mem::replace(to, Move::Done) {
                Move::Done => slot.set_hard_fail(hard_fail),
                Move::Open(opened) => {
                    slot.hand_over(*address, server.take().map(|server| server.on(opened)), &self.failed)
                        .await;
                }
                Move::Reopen => {
                    slot.close().await;
                    *to = Move::Reopen;
                }
            }
        }
        for (slot, to, address, server) in steps {
            if matches!(to, Move::Reopen) {
                slot.start(address, server, &self.failed);
            }
        }
    }

    /// Creates the servers of a configuration. They do not run yet.
    fn configured(&self, configuration: &Configuration) -> [Option<Server>; 2] {
        let hard_fail = configuration.bind_address_hard_fail;
        let Shown { health, metrics, pages } = &self.shown;
        let at = configuration.healthz_bind_address;
        let health = at.map(|at| health::server(at, hard_fail, Arc::clone(health), Arc::clone(metrics)));
        let at = configuration.metrics_bind_address;
        [health, at.map(|at| metrics::server(at, hard_fail, Arc::clone(pages)))]
    }
}

impl Slot {
    /// Opens address `new` if possible, and returns the server's move. `free` are the addresses that servers leave.
    fn prepare(
        &self,
        new: Option<SocketAddr>,
        hard_fail: bool,
        free: &[SocketAddr],
    ) -> Result<Move, (SocketAddr, io::Error)> {
        // A server that still retries, and for which `hard_fail` becomes true, must prove that it can listen, like
        // one that moves.
        let stays = self.address == new && !(hard_fail && self.still_tries());
        let Some(new) = new.filter(|_| !stays) else {
            return Ok(if stays { Move::Done } else { Move::Reopen });
        };
        match Opened::open(new) {
            Ok(opened) => Ok(Move::Open(opened)),
            // The listener in the way is at least partly one of the current servers, and is closed.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && free.iter().any(|own| overlap(*own, new)) =>
            {
                Ok(Move::Reopen)
            }
            Err(error) => Err((new, error)),
        }
    }

    /// Returns true if the server does not listen yet and may go on retrying.
    fn still_tries(&self) -> bool {
        self.running
            .as_ref()
            .is_some_and(|running| running.bound.borrow().is_none() && !running.hard_fail.get())
    }

    fn set_hard_fail(&self, hard_fail: bool) {
        if let Some(running) = &self.running {
            running.hard_fail.set(hard_fail);
        }
    }

    fn start(
        &mut self,
        address: Option<SocketAddr>,
        server: Option<Server>,
        failed: &UnboundedSender<BindError>,
    ) {
        let run = |server: Server| {
            let (bound, hard_fail, failed) = (server.bound(), server.hard_fail(), failed.clone());
            let task = tokio::spawn(async move { drop(failed.send(server.run().await)) });
            Running { task, hard_fail, bound }
        };
        (self.address, self.running) = (address, server.map(run));
    }

    /// Starts a server whose address is already open, then stops the former one.
    async fn hand_over(
        &mut self,
        address: Option<SocketAddr>,
        server: Option<Server>,
        failed: &UnboundedSender<BindError>,
    ) {
        let mut old = Self { address: self.address, running: self.running.take() };
        self.start(address, server, failed);
        if let Some(new) = &mut self.running {
            // The address is open: no client is refused even if this wait times out.
            let _ = tokio::time::timeout(OVERLAP, new.bound.wait_for(Option::is_some)).await;
        }
        old.close().await;
    }

    /// Stops the server. Its address is free afterwards.
    async fn close(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.task.abort();
        // The result is the cancellation that was requested.
        let _ = (&mut running.task).await;
        if let Some(address) = *running.bound.borrow() {
            tracing::info!(%address, "stopped listening");
        }
    }
}

/// Returns true if two listeners cannot be open at once. A wildcard address covers every address of both families.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}
