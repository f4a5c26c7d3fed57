//! The health and the metrics server: running, and moved to another address while they run.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_node::config::Configuration;
use portolan_node::health::Health;
use portolan_node::http::{BindError, HardFail, Opened, Server};
use portolan_node::metrics::{Pages, ProxyMetrics};
use portolan_node::{health, metrics};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long the old listener stays open for the new one to be served.
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

/// What a configuration asks of the servers, with the addresses that could be opened in advance.
pub(super) struct Prepared {
    health: Move,
    metrics: Move,
}

/// What becomes of one server.
enum Move {
    /// Nothing more: it is where it should be.
    Done,
    /// It goes to an address that is open already.
    Open(Opened),
    /// It ends, or goes to an address that is in the way of one of ours, which goes before.
    Reopen,
}

/// One server, where one is configured.
#[derive(Default)]
struct Slot {
    address: Option<SocketAddr>,
    running: Option<Running>,
}

/// Ends when it is dropped.
struct Running {
    task: JoinHandle<()>,
    hard_fail: HardFail,
    /// Where it listens, once it does.
    bound: watch::Receiver<Option<SocketAddr>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Servers {
    /// No server yet. The receiver tells of a server that had to listen (`bindAddressHardFail`) and cannot.
    pub(super) fn new(shown: Shown) -> (Self, UnboundedReceiver<BindError>) {
        let (failed, failures) = unbounded_channel();
        (Self { shown, health: Slot::default(), metrics: Slot::default(), failed }, failures)
    }

    /// Starts the servers where a configuration says.
    pub(super) fn listen(&mut self, configuration: &Configuration) {
        let [health, metrics] = self.configured(configuration);
        self.health.start(configuration.healthz_bind_address, health, &self.failed);
        self.metrics.start(configuration.metrics_bind_address, metrics, &self.failed);
    }

    /// Opens the addresses where a configuration wants the servers; changes nothing that runs.
    ///
    /// # Errors
    /// What keeps them from listening there.
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

    /// Listens where a configuration says that was prepared. A server whose new address could be opened in advance
    /// serves there before it leaves the old one; one that could not goes on trying, also where it has to listen:
    /// nothing in a file ends a proxy that runs.
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

    /// The servers of a configuration, not yet running.
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
    /// `free` are the addresses that our servers leave.
    fn prepare(
        &self,
        new: Option<SocketAddr>,
        hard_fail: bool,
        free: &[SocketAddr],
    ) -> Result<Move, (SocketAddr, io::Error)> {
        // One that still tries to listen, and would have to from now on, is as good as one that moves.
        let stays = self.address == new && !(hard_fail && self.still_tries());
        let Some(new) = new.filter(|_| !stays) else {
            return Ok(if stays { Move::Done } else { Move::Reopen });
        };
        match Opened::open(new) {
            Ok(opened) => Ok(Move::Open(opened)),
            // What is in the way is ours, at least in part, and goes.
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && free.iter().any(|own| overlap(*own, new)) =>
            {
                Ok(Move::Reopen)
            }
            Err(error) => Err((new, error)),
        }
    }

    /// Whether it does not listen and need not.
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

    /// Starts a server whose address is open already, then ends the one before.
    async fn hand_over(
        &mut self,
        address: Option<SocketAddr>,
        server: Option<Server>,
        failed: &UnboundedSender<BindError>,
    ) {
        let mut old = Self { address: self.address, running: self.running.take() };
        self.start(address, server, failed);
        if let Some(new) = &mut self.running {
            // It is open, so that nobody is turned away even where this takes longer.
            let _ = tokio::time::timeout(OVERLAP, new.bound.wait_for(Option::is_some)).await;
        }
        old.close().await;
    }

    /// Ends the server; its address is free afterwards.
    async fn close(&mut self) {
        let Some(mut running) = self.running.take() else { return };
        running.task.abort();
        // Cancelled, which is what was asked for.
        let _ = (&mut running.task).await;
        if let Some(address) = *running.bound.borrow() {
            tracing::info!(%address, "not listening any more");
        }
    }
}

/// Whether two listeners cannot be open at once. A wildcard is every address of both families.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port()
        && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
}
