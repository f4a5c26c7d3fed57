//! The small HTTP/1.1 servers of the node: fixed answers, bounded connections, patient binding.
//!
//! In flow an address and a function from request to answer; out flows a bound address, or the error that
//! ends a server whose bind failure is fatal. What is answered is not known here.
//!
//! Clients are not trusted: heads, bodies, connections and the time that each of them may take have limits,
//! and a client that only occupies a connection loses it when another one needs it.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Request, Response, StatusCode};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) use self::connections::serve;
pub(crate) use self::encoding::compressed;
pub(crate) use self::listen::{Wildcard, listen};

mod connections;
mod encoding;
mod listen;
#[cfg(test)]
pub(crate) mod tests;

/// From a request, whose body is there, to its answer. It must not block.
pub(crate) type Handler = Arc<dyn Fn(&Request<Bytes>) -> Answer + Send + Sync>;
/// A whole answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// kube-proxy's pause after a failed bind.
const BIND_RETRY: Duration = Duration::from_secs(5);

pub(crate) const JSON: &str = "application/json";
pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";

/// A server could not listen, or its listener broke.
#[derive(Debug, thiserror::Error)]
#[error("the {server} server cannot listen on {address}: {source}; free the port, or set {field}")]
pub struct BindError {
    /// `health` or `metrics`.
    pub server: &'static str,
    /// Where it should listen.
    pub address: SocketAddr,
    /// The configuration field that moves it.
    pub field: &'static str,
    /// What the system said.
    pub source: io::Error,
}

/// An address that is open already, for a [`Server`] to serve on. Clients that connect before it runs wait.
#[derive(Debug)]
pub struct Opened(std::net::TcpListener);

impl Opened {
    /// Opens an address as [`Server::run`] does.
    ///
    /// # Errors
    /// What the system said.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        listen(address, Wildcard::BothFamilies).map(Self)
    }
}

/// Whether a failure ends a server; can be changed while it runs.
#[derive(Clone, Debug)]
pub struct HardFail(Arc<AtomicBool>);

impl HardFail {
    /// Whether it does now.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// From now on.
    pub fn set(&self, hard_fail: bool) {
        self.0.store(hard_fail, Ordering::Relaxed);
    }
}

/// One server, not yet running.
pub struct Server {
    name: &'static str,
    field: &'static str,
    address: SocketAddr,
    hard_fail: HardFail,
    /// Until it has listened once, no failure ends it.
    patient: bool,
    opened: Option<Opened>,
    handler: Handler,
    bound: watch::Sender<Option<SocketAddr>>,
}

impl Server {
    /// `field` is the configuration field of the address, for messages.
    pub(crate) fn new(
        name: &'static str,
        field: &'static str,
        address: SocketAddr,
        hard_fail: bool,
        handler: Handler,
    ) -> Self {
        let (hard_fail, bound) = (HardFail(Arc::new(hard_fail.into())), watch::Sender::new(None));
        Self { name, field, address, hard_fail, patient: false, opened: None, handler, bound }
    }

    /// Serves on what is open already, which has to be its own address.
    #[must_use]
    pub fn on(self, opened: Opened) -> Self {
        Self { opened: Some(opened), ..self }
    }

    /// Does not end because the address cannot be opened, even with hard-fail, before it was open once.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { patient: true, ..self }
    }

    /// Changes whether a failure ends it.
    pub fn hard_fail(&self) -> HardFail {
        self.hard_fail.clone()
    }

    /// Shows the address that the server listens on, once it does; port 0 has become a real one there.
    pub fn bound(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.bound.subscribe()
    }

    /// Serves until dropped. An unspecified address listens for both families, whichever its spelling, as
    /// Go does; a specific one for itself.
    ///
    /// A bind failure is logged and tried again every 5 s. With hard-fail it ends the server: only then does
    /// this return; see [`Server::patient`].
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
        Err(serve(&listener, &self.handler).await)
    }
}

/// An answer with a body; `X-Content-Type-Options: nosniff` always.
pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// What Go's servers say to a path that they do not have.
pub(crate) fn not_found() -> Answer {
    answer(StatusCode::NOT_FOUND, PLAIN, "404 page not found\n")
}
