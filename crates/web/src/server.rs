//! A server with a fixed address: retries of failed binds, and whether such a failure ends it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::{Handler, Listener, Wildcard, listen, serve};

/// kube-proxy's pause after a failed bind.
const BIND_RETRY: Duration = Duration::from_secs(5);

/// A server could not listen, or its listener failed.
#[derive(Debug, thiserror::Error)]
#[error("the {server} server cannot listen on {address}: {source}; free the port, or set {field}")]
pub struct BindError {
    /// `health` or `metrics`.
    pub server: &'static str,
    /// The address to listen on.
    pub address: SocketAddr,
    /// The configuration field of the address.
    pub field: &'static str,
    /// The error of the system.
    pub source: io::Error,
}

/// An open listening socket for a [`Server`]. Clients that connect before the server runs wait.
#[derive(Debug)]
pub struct Opened(pub(crate) std::net::TcpListener);

impl Opened {
    /// Opens an address as [`Server::run`] does.
    ///
    /// # Errors
    /// The error of the system.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        listen(address, Wildcard::BothFamilies).map(Self)
    }
}

/// Whether a bind failure ends a server. It can be changed while the server runs.
#[derive(Clone, Debug)]
pub struct HardFail(Arc<AtomicBool>);

impl HardFail {
    /// Returns true if a bind failure ends the server.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets whether a bind failure ends the server.
    pub fn set(&self, hard_fail: bool) {
        self.0.store(hard_fail, Ordering::Relaxed);
    }
}

/// A server that does not run yet.
pub struct Server {
    name: &'static str,
    field: &'static str,
    address: SocketAddr,
    hard_fail: HardFail,
    /// No failure ends the server before it has listened once.
    patient: bool,
    opened: Option<Opened>,
    handler: Handler,
    bound: watch::Sender<Option<SocketAddr>>,
}

impl Server {
    /// Creates a server. `field` is the configuration field of the address, for messages.
    pub fn new(
        name: &'static str,
        field: &'static str,
        address: SocketAddr,
        hard_fail: bool,
        handler: Handler,
    ) -> Self {
        let (hard_fail, bound) = (HardFail(Arc::new(hard_fail.into())), watch::Sender::new(None));
        Self { name, field, address, hard_fail, patient: false, opened: None, handler, bound }
    }

    /// Uses an open socket, which must be bound to the server's own address.
    #[must_use]
    pub fn on(self, opened: Opened) -> Self {
        Self { opened: Some(opened), ..self }
    }

    /// Makes the server retry until it has listened once, even with hard-fail.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// Returns a handle that changes whether a bind failure ends the server.
    pub fn hard_fail(&self) -> HardFail {
        self.hard_fail.clone()
    }

    /// Returns a watch of the address that the server listens on, with the real port if port 0 was requested. `None`
    /// while the server does not listen.
    pub fn bound(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.bound.subscribe()
    }

    /// Serves until dropped. An unspecified address of either family listens on both families, as in Go. A specific
    /// address listens on itself.
    ///
    /// A bind failure is logged and retried every 5 s. With hard-fail it ends the server, and only then does this
    /// function return; see [`Server::patient`].
    pub async fn run(mut self) -> BindError {
        loop {
            let Err(source) = self.listen_and_serve().await;
            let (server, address, field) = (self.name, self.address, self.field);
            self.bound.send_replace(None);
            let error = BindError { server, address, field, source };
            if self.hard_fail.get() && !self.patient {
                return error;
            }
            tracing::error!(server, %address, error = %error.source, "cannot listen; trying again in 5 s");
            tokio::time::sleep(BIND_RETRY).await;
        }
    }

    async fn listen_and_serve(&mut self) -> io::Result<Infallible> {
        let Opened(listener) = self.opened.take().map_or_else(|| Opened::open(self.address), Ok)?;
        let listener = TcpListener::from_std(listener)?;
        self.patient = false;
        let address = listener.local_addr()?;
        tracing::info!(server = self.name, %address, "listening");
        self.bound.send_replace(Some(address));
        Err(serve(Listener::Tcp(&listener), &self.handler).await)
    }
}
