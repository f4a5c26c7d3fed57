//! The listening side: connections, graceful stop, and a handle for servers inside another process.

mod stall;

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpListener as StdListener},
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::JoinSet,
};

use self::stall::StallGuard;
use crate::{api::Api, config::Config, controllers, http::Handler, manifests::Follower, store::Store};

/// A client that takes no bytes for this long, while there are some for it, is disconnected.
const WRITE_STALL: Duration = Duration::from_secs(60);
/// After a stop, answers under way may take this long.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// Why the server does not run.
#[derive(Debug, Error)]
pub enum Error {
    /// Plain HTTP would be offered to other hosts.
    #[error(
        "refusing to serve plain HTTP on {0}, which other hosts can reach; listen on 127.0.0.1 or [::1], or allow it explicitly"
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
    /// No thread or event loop could be made.
    #[error("cannot start the server's thread: {0}")]
    Thread(io::Error),
}

/// Serves until `shutdown` is ready: loads the manifests, if any, before the first request is answered.
pub async fn serve(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let api = Arc::new(Api::new(&config));
    serve_api(api, &config, listener, shutdown).await
}

/// Starts servers on threads of their own.
#[derive(Debug)]
pub struct Server;

/// A server on its own thread; stops when dropped.
#[derive(Debug)]
pub struct RunningServer {
    address: SocketAddr,
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
                serve_api(thread_api, &config, listener, shutdown).await
            })
        });
        let thread = thread.map_err(Error::Thread)?;
        Ok(RunningServer { address, api, stop: Some(stop), thread: Some(thread) })
    }
}

impl RunningServer {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// `http://address:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
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
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let address = listener.local_addr().map_err(|source| Error::Listen { address: config.listen, source })?;
    check_address(config, address)?;
    let (stop, stopping) = watch::channel(false);
    let mut tasks = JoinSet::new();
    if let Some(folder) = &config.manifests {
        let follower = Follower::start(Arc::clone(&api), folder.clone()).await;
        let follower = follower.map_err(|source| Error::Manifests { folder: folder.clone(), source })?;
        tasks.spawn(follower.run(stopping.clone()));
    }
    controllers::spawn(&api, config, &stopping, &mut tasks);
    tracing::info!(%address, "serving");
    let handler = Handler::new(api, stopping.clone());
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    tasks.spawn(connection(stream, handler.clone(), stopping.clone()));
                }
                Err(error) => {
                    // Mostly too many open files: a pause lets some close.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = tasks.join_next() => {}
            () = &mut shutdown => break,
        }
    }
    drop(listener);
    stop.send_replace(true);
    let _ = tokio::time::timeout(STOP_GRACE, async { while tasks.join_next().await.is_some() {} }).await;
    tracing::info!(%address, "stopped");
    Ok(())
}

fn check_address(config: &Config, address: SocketAddr) -> Result<(), Error> {
    if address.ip().is_loopback() || config.insecure_allow_non_loopback {
        Ok(())
    } else {
        Err(Error::NonLoopback(address))
    }
}

/// Serves one connection until either side ends it. There is no idle time-out: watches are quiet for hours.
async fn connection(stream: TcpStream, handler: Handler, mut stopping: watch::Receiver<bool>) {
    // Without this, an event that follows another waits for the client's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY not set");
    }
    let io = TokioIo::new(StallGuard::new(stream, WRITE_STALL));
    let service = service_fn(move |request| {
        let handler = handler.clone();
        async move { Ok::<_, std::convert::Infallible>(handler.answer(request).await) }
    });
    let connection = http1::Builder::new().serve_connection(io, service);
    tokio::pin!(connection);
    let finished = tokio::select! {
        result = connection.as_mut() => Some(result),
        () = stopped(&mut stopping) => None,
    };
    let result = if let Some(result) = finished {
        result
    } else {
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Ready once the server stops.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender outlives every task; were it gone, the server would be stopping too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}
