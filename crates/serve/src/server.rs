//! The listening side of the API server: accepts connections, serves them, and stops gracefully. [`Server`] runs it
//! on a thread of its own inside another process; [`Config`] has its settings.
//!
//! A connection takes memory step by step, so that a client which sends nothing costs little more than its socket:
//!
//! 1. Until the first TLS record has arrived, only the socket ([`greeting`]).
//! 2. During the handshake, what TLS needs.
//! 3. Until the first request's head is complete, the bytes of that head ([`begun`]; [`head`] finds its end).
//! 4. After that, what HTTP needs ([`connection`]).
//!
//! An HTTP/2 client gets the server's SETTINGS in step 3. hyper's own copy of that frame is dropped ([`http2`]). Until the
//! client is accepted, hyper gets only the first head, and after a refusal only the frames by which the connection ends
//! ([`frames`]).
//!
//! Until a credential is accepted, [`ration`] limits what is read, and the connection ends with its first answer. TLS
//! then gets whole records only: [`records`] peeks at the received bytes and leaves partial records in the kernel's
//! buffer. A long handshake or head needs one of a few [`places`], with which partial records are read, too. A client
//! holds at most two places, each for a few seconds, so that no client blocks the others. A read that waits for a
//! place continues when a credential is accepted. [`layered`] puts these layers under and over TLS.

mod accept;
mod allocation;
mod begun;
mod config;
mod connection;
mod frames;
mod gate;
mod greeting;
mod guarded;
mod head;
mod health;
mod http2;
mod layered;
mod limits;
mod places;
mod ration;
mod records;
mod refusal;
mod release;
mod requests;
mod runtime;
mod stall;

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use portolan_addons::{AddonError, Addons};
use portolan_api::{Api, ApiError};
use portolan_controllers::{
    ControllersConfig, RepairCounters,
    manifests::{self, Follower, GivenError, Keeper, Reserved},
};
use portolan_http::Handler;
use portolan_store::Store;
use portolan_web::metrics::Sources;
use thiserror::Error;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    task::JoinSet,
};

pub use self::release::ReleaseMemory;
use self::{
    accept::Clients,
    allocation::Allocation,
    connection::ConnectionContext,
    gate::{Gate, Loading, Parts},
    places::Places,
    release::{CONNECTION, Freed},
};
pub use self::{
    config::{Config, Transport},
    health::{Check, Checks},
    limits::Limits,
    runtime::runtime,
};
use crate::security::{Security, SecurityError};

/// How often the files of certificates and tokens are checked for changes, and the server's own certificate for its
/// age.
const REFRESH: Duration = Duration::from_secs(2);

/// Why the server cannot start or ended.
#[derive(Debug, Error)]
pub enum Error {
    /// Plain HTTP would be served to other hosts.
    #[error(
        "refusing to serve plain HTTP on {0}, which other hosts can reach; serve TLS there, or listen on 127.0.0.1 or [::1]"
    )]
    NonLoopback(SocketAddr),
    /// Listening on the address failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The manifests folder cannot be read, and the store has no object of it.
    #[error("cannot follow the manifests folder {}: {source}", .folder.display())]
    Manifests {
        /// The folder.
        folder: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Objects that the program gives cannot be stored.
    #[error(transparent)]
    Given(#[from] GivenError),
    /// The certificates or tokens cannot be loaded.
    #[error("TLS: {0}")]
    Security(#[from] SecurityError),
    /// The objects that must exist before the first request cannot be written.
    #[error("cannot make the objects that must exist first: {0}")]
    Begin(#[from] ApiError),
    /// An optional part cannot start.
    #[error("{0}")]
    Addon(#[from] AddonError),
    /// A thread or its runtime cannot be created, or the thread panicked.
    #[error("cannot start the server's thread: {0}")]
    Thread(io::Error),
}

/// Serves until `shutdown` completes. If there is a manifests folder, requests other than health checks wait until it
/// has been read once, unless the store still holds the folder's objects from an earlier run.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let api = Arc::new(Api::new(&config.api));
    serve_with(api, config, listener, shutdown).await
}

/// Like [`serve`], with an API whose store the caller has chosen.
pub async fn serve_with(
    api: Arc<Api>,
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let security = load_security(&config)?;
    serve_api(api, &config, security, listener, shutdown).await
}

/// Starts servers on threads of their own.
#[derive(Debug)]
pub struct Server;

/// A server on its own thread. It stops when this is dropped.
#[derive(Debug)]
pub struct RunningServer {
    address: SocketAddr,
    has_tls: bool,
    api: Arc<Api>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Server {
    /// Starts a server on `config.listen`. The socket is listening when this returns.
    pub fn start(config: Config) -> Result<RunningServer, Error> {
        let address = config.listen;
        let listener = StdListener::bind(address).map_err(|source| Error::Listen { address, source })?;
        Self::start_on(config, listener)
    }

    /// Starts a server on a listener from the caller, for example one in another network namespace.
    pub fn start_on(config: Config, listener: StdListener) -> Result<RunningServer, Error> {
        let api = Arc::new(Api::new(&config.api));
        Self::start_with(api, config, listener)
    }

    /// Starts a server with an API that already holds objects, for example that of a stopped server.
    pub fn start_with(api: Arc<Api>, config: Config, listener: StdListener) -> Result<RunningServer, Error> {
        let failed = |source| Error::Listen { address: config.listen, source };
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        check_address(&config, address)?;
        let security = load_security(&config)?;
        let has_tls = security.is_some();
        let (stop, stopped) = oneshot::channel();
        let thread_api = Arc::clone(&api);
        let thread = std::thread::Builder::new().name("portolan-server".to_owned()).spawn(move || {
            runtime().map_err(Error::Thread)?.block_on(async {
                let listener = TcpListener::from_std(listener);
                let listener = listener.map_err(|source| Error::Listen { address, source })?;
                let shutdown = async {
                    let _ = stopped.await;
                };
                serve_api(thread_api, &config, security, listener, shutdown).await
            })
        });
        let thread = thread.map_err(Error::Thread)?;
        Ok(RunningServer { address, has_tls, api, stop: Some(stop), thread: Some(thread) })
    }
}

impl RunningServer {
    /// Returns the address of the listener.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL: `http://address:port` or `https://address:port`.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.has_tls { "https" } else { "http" }, self.address)
    }

    /// Returns the API, for direct reads and writes.
    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// Returns the API's store.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.api.store()
    }

    /// Stops the server and waits until it has ended. Returns its API.
    pub fn stop(mut self) -> Result<Arc<Api>, Error> {
        self.stop_and_join()?;
        Ok(Arc::clone(&self.api))
    }

    fn stop_and_join(&mut self) -> Result<(), Error> {
        drop(self.stop.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(Error::Thread(io::Error::other("the server's thread panicked"))),
            None => Ok(()),
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if let Err(error) = self.stop_and_join() {
            tracing::warn!(%error, "server ended with an error");
        }
    }
}

async fn serve_api(
    api: Arc<Api>,
    config: &Config,
    security: Option<Arc<Security>>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let address = listener.local_addr().map_err(|source| Error::Listen { address: config.listen, source })?;
    check_address(config, address)?;
    // The server stops in two steps. First `/readyz` fails, so that clients move to other servers. Then the server
    // accepts no connections and ends its watches.
    let (leave, leaving) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tokio::pin!(shutdown);
    let repairs = RepairCounters::default();
    let addons = Addons::prepare(&config.addons)?;
    let controllers = ControllersConfig {
        dns_endpoints: addons.dns_endpoints(),
        dns_answering: addons.dns_answering(),
        ..config.controllers.clone()
    };
    portolan_controllers::start(&api, &controllers, address, &repairs, &stopping, &mut tasks).await?;
    let mut reserved = Reserved::default();
    if let Some(given) = &config.given {
        let keeper = Keeper::start(Arc::clone(&api), given).await?;
        reserved = keeper.reserved();
        tasks.spawn(keeper.run(stopping.clone()));
    }
    let (folder, failed) = follow(&api, config, reserved, &stopping, &mut tasks);
    if let Some(security) = &security {
        tasks.spawn(refresh(Arc::clone(security), stopping.clone()));
    }
    let limits = config.limits.clone();
    let freed = Freed::default();
    let releasing = config.release_memory.map(|release| tokio::spawn(freed.clone().release(release)));
    let metrics = Sources::default();
    metrics.register(Arc::new(Allocation { api: Arc::clone(&api), repairs }));
    metrics.register(Arc::new(config.metrics.clone()));
    let mut checks = config.checks.clone();
    if let Some(dns) = addons.start(&api, loaded(&folder), &stopping, &mut tasks, &metrics)? {
        checks = checks.with("dns", Arc::new(move || dns.check()));
    }
    let gate = Gate::new(Parts {
        handler: Handler::new(api, stopping.clone(), limits.body_bytes),
        freed: freed.clone(),
        security: security.clone(),
        limits: limits.clone(),
        checks,
        metrics,
        stopping: leaving,
        folder,
        address,
    });
    let mut listening = Listening {
        clients: Clients::new(&limits, Arc::clone(&gate.requests)),
        shared: Arc::new(ConnectionContext {
            gate,
            security,
            limits: limits.clone(),
            places: Places::new(limits.place_time),
        }),
        listener,
        stopping,
        tasks,
        freed,
    };
    tracing::info!(%address, tls = listening.shared.security.is_some(), "serving");
    let mut failure = None;
    let end = async {
        tokio::select! {
            Ok(error) = failed => failure = Some(error),
            () = &mut shutdown => {}
        }
    };
    listening.until(end).await;
    if let Some(error) = failure {
        return Err(error);
    }
    leave.send_replace(true);
    if !limits.shutdown_delay.is_zero() {
        listening.until(tokio::time::sleep(limits.shutdown_delay)).await;
    }
    let Listening { listener, mut tasks, .. } = listening;
    drop(listener);
    if let Some(releasing) = releasing {
        releasing.abort();
    }
    stop.send_replace(true);
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.shutdown_grace, all).await.is_err() {
        tracing::warn!(connections = tasks.len(), "cut off: their answers take too long");
    }
    tracing::info!(%address, "stopped");
    Ok(())
}

/// Starts to follow the manifests folder, if there is one. This does not block health checks, because the file system
/// may hang. Returns the state of the folder, and a receiver of the error if the folder cannot be followed.
fn follow(
    api: &Arc<Api>,
    config: &Config,
    reserved: Reserved,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> (Loading, oneshot::Receiver<Error>) {
    let (fail, failed) = oneshot::channel();
    let applied = config.applied.clone().unwrap_or_default();
    let Some(folder) = config.manifests.clone() else {
        applied.send_replace(true);
        return (Loading { is_read: None, is_known: true }, failed);
    };
    let (read, is_read) = watch::channel(false);
    let is_known = manifests::has_made(api, &folder);
    let start = Follower::start_beside(Arc::clone(api), folder.clone(), reserved);
    let mut stopping = stopping.clone();
    tasks.spawn(async move {
        let started = tokio::select! {
            started = start => started,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        match started {
            Ok(follower) => {
                read.send_replace(true);
                applied.send_replace(true);
                follower.run(stopping).await;
            }
            Err(source) => {
                // If the receiver is gone, the server has ended.
                let _ = fail.send(Error::Manifests { folder, source });
                // Keeps `read` open, so that requests wait for the folder until the server ends.
                let _ = stopping.wait_for(|stopping| *stopping).await;
            }
        }
    });
    (Loading { is_read: Some(is_read), is_known }, failed)
}

/// Returns whether the objects of the manifests folder are stored. Without a folder they are.
fn loaded(folder: &Loading) -> watch::Receiver<bool> {
    let is_read = folder.is_read.clone().filter(|_| !folder.is_known);
    is_read.unwrap_or_else(|| watch::channel(true).1)
}

/// Counts a connection's memory as freed when it is dropped.
struct FreedAtEnd(Freed);

impl Drop for FreedAtEnd {
    fn drop(&mut self) {
        self.0.add(CONNECTION);
    }
}

/// A listener with its connections and the server's tasks.
struct Listening {
    listener: TcpListener,
    clients: Clients,
    shared: Arc<ConnectionContext>,
    stopping: watch::Receiver<bool>,
    tasks: JoinSet<()>,
    freed: Freed,
}

impl Listening {
    /// Accepts connections until `end` completes.
    async fn until(&mut self, end: impl Future<Output = ()>) {
        tokio::pin!(end);
        loop {
            tokio::select! {
                (stream, place) = self.clients.accept(&self.listener) => {
                    let held = (place, FreedAtEnd(self.freed.clone()));
                    let stopping = self.stopping.clone();
                    self.tasks.spawn(connection::serve(stream, Arc::clone(&self.shared), stopping, held));
                }
                Some(_) = self.tasks.join_next() => {}
                () = &mut end => return,
            }
        }
    }
}

/// Checks the files of certificates and tokens periodically.
async fn refresh(security: Arc<Security>, mut stopping: watch::Receiver<bool>) {
    let stopped = stopping.wait_for(|stopping| *stopping);
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            _ = &mut stopped => return,
            () = tokio::time::sleep(REFRESH) => security.refresh(SystemTime::now()),
        }
    }
}

fn load_security(config: &Config) -> Result<Option<Arc<Security>>, Error> {
    match &config.transport {
        Transport::PlainHttp => Ok(None),
        Transport::Tls(settings) => Ok(Some(Arc::new(Security::load((**settings).clone())?))),
    }
}

/// Checks that plain HTTP is served on loopback only, because clients do not authenticate without TLS.
pub fn check_address(config: &Config, address: SocketAddr) -> Result<(), Error> {
    let has_tls = matches!(config.transport, Transport::Tls(_));
    if has_tls || address.ip().is_loopback() || config.insecure_allow_non_loopback {
        Ok(())
    } else {
        Err(Error::NonLoopback(address))
    }
}
