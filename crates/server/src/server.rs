//! The listening side: connections, graceful stop, and a handle for servers inside another process.

mod accept;
mod begun;
mod connection;
mod gate;
mod greeting;
mod guarded;
mod head;
mod health;
mod http2;
mod layered;
mod limits;
mod metrics;
mod places;
mod ration;
mod records;
mod refusal;
mod release;
mod requests;
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

use thiserror::Error;
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    task::JoinSet,
};

pub use self::release::ReleaseMemory;
use self::{
    accept::Clients,
    connection::Shared,
    gate::{Gate, Loading, Parts},
    places::Places,
    release::{CONNECTION, Freed},
};
pub use self::{
    health::{Check, Checks},
    limits::Limits,
    metrics::{Collect, Histogram, MetricKind, Metrics, Page},
};
use crate::{
    api::Api,
    config::{Config, Transport},
    controllers,
    error::ApiError,
    http::Handler,
    manifests::{self, Follower},
    security::{Security, SecurityError},
    store::Store,
};

/// Given files are looked at this often, and the age of the own certificate.
const REFRESH: Duration = Duration::from_secs(2);

/// Why the server does not run.
#[derive(Debug, Error)]
pub enum Error {
    /// Plain HTTP would be offered to other hosts.
    #[error(
        "refusing to serve plain HTTP on {0}, which other hosts can reach; serve TLS there, or listen on 127.0.0.1 or [::1]"
    )]
    NonLoopback(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The manifests folder cannot be followed.
    #[error("cannot follow the manifests folder {}: {source}", .folder.display())]
    Manifests {
        /// The folder.
        folder: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Security(#[from] SecurityError),
    /// What must be there before clients are cannot be written.
    #[error("cannot make the Service default/kubernetes: {0}")]
    Begin(#[from] ApiError),
    /// No thread or event loop could be made.
    #[error("cannot start the server's thread: {0}")]
    Thread(io::Error),
}

/// Serves until `shutdown` is ready. Requests other than for health wait until the manifests, if any, have been read for
/// the first time, unless the store has what the folder made earlier.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let api = Arc::new(Api::new(&config));
    serve_with(api, config, listener, shutdown).await
}

/// The same over an API whose store the caller chose.
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

/// A server on its own thread; stops when dropped.
#[derive(Debug)]
pub struct RunningServer {
    address: SocketAddr,
    has_tls: bool,
    api: Arc<Api>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Server {
    /// Starts a server on `config.listen`; it accepts connections when this returns.
    pub fn start(config: Config) -> Result<RunningServer, Error> {
        let address = config.listen;
        let listener = StdListener::bind(address).map_err(|source| Error::Listen { address, source })?;
        Self::start_on(config, listener)
    }

    /// Starts a server on a listener that the caller made, for example in another network namespace.
    pub fn start_on(config: Config, listener: StdListener) -> Result<RunningServer, Error> {
        let api = Arc::new(Api::new(&config));
        Self::start_with(api, config, listener)
    }

    /// Starts a server over an API that already holds objects, for example one whose server was stopped.
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
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
            runtime.block_on(async {
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
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// `http://address:port` or `https://address:port`.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.has_tls { "https" } else { "http" }, self.address)
    }

    /// The objects, for direct reads and writes.
    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// The store behind.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.api.store()
    }

    /// Stops the server and waits for it; returns its objects.
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
    // Two steps: first clients are told to go elsewhere, then nothing is accepted and watches end.
    let (leave, leaving) = watch::channel(false);
    let (stop, stopping) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tokio::pin!(shutdown);
    controllers::start(&api, config, address, &stopping, &mut tasks).await?;
    let (folder, failed) = follow(&api, config.manifests.as_ref(), &stopping, &mut tasks);
    if let Some(security) = &security {
        tasks.spawn(refresh(Arc::clone(security), stopping.clone()));
    }
    let limits = config.limits.clone();
    let freed = Freed::default();
    let releasing = config.release_memory.map(|release| tokio::spawn(freed.clone().release(release)));
    let metrics = Metrics::default();
    metrics.register(Arc::clone(&api) as Arc<_>);
    metrics.register(Arc::new(config.metrics.clone()));
    let gate = Gate::new(Parts {
        handler: Handler::new(api, stopping.clone(), limits.body_bytes),
        freed: freed.clone(),
        security: security.clone(),
        limits: limits.clone(),
        checks: config.checks.clone(),
        metrics,
        stopping: leaving,
        folder,
        address,
    });
    let mut listening = Listening {
        clients: Clients::new(&limits, Arc::clone(&gate.requests)),
        shared: Arc::new(Shared {
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

/// Follows the manifests folder, if there is one. Health is answered meanwhile: the file system may hang. Returns what is
/// known of it, and what tells that it cannot be followed at all.
fn follow(
    api: &Arc<Api>,
    folder: Option<&PathBuf>,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> (Loading, oneshot::Receiver<Error>) {
    let (fail, failed) = oneshot::channel();
    let Some(folder) = folder.cloned() else {
        return (Loading { is_read: None, is_known: true }, failed);
    };
    let (read, is_read) = watch::channel(false);
    let is_known = manifests::has_made(api, &folder);
    let start = Follower::start(Arc::clone(api), folder.clone());
    let mut stopping = stopping.clone();
    tasks.spawn(async move {
        let started = tokio::select! {
            started = start => started,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        match started {
            Ok(follower) => {
                read.send_replace(true);
                follower.run(stopping).await;
            }
            Err(source) => {
                // Without a receiver the server has ended.
                let _ = fail.send(Error::Manifests { folder, source });
                // Requests wait for the folder until the server ends.
                let _ = stopping.wait_for(|stopping| *stopping).await;
            }
        }
    });
    (Loading { is_read: Some(is_read), is_known }, failed)
}

/// A connection whose memory is free when it ends.
struct FreedAtEnd(Freed);

impl Drop for FreedAtEnd {
    fn drop(&mut self) {
        self.0.add(CONNECTION);
    }
}

/// A server that takes connections.
struct Listening {
    listener: TcpListener,
    clients: Clients,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
    tasks: JoinSet<()>,
    freed: Freed,
}

impl Listening {
    /// Takes connections until `end` is ready.
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

/// Follows the files of certificates and tokens.
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

/// Without TLS nobody has to say who he is: then only this host may reach the server.
pub fn check_address(config: &Config, address: SocketAddr) -> Result<(), Error> {
    let has_tls = matches!(config.transport, Transport::Tls(_));
    if has_tls || address.ip().is_loopback() || config.insecure_allow_non_loopback {
        Ok(())
    } else {
        Err(Error::NonLoopback(address))
    }
}
