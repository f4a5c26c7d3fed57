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

/// One server, not yet running.
pub struct Server {
    name: &'static str,
    field: &'static str,
    address: SocketAddr,
    hard_fail: bool,
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
        Self { name, field, address, hard_fail, handler, bound: watch::Sender::new(None) }
    }

    /// Shows the address that the server listens on, once it does; port 0 has become a real one there.
    pub fn bound(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.bound.subscribe()
    }

    /// Serves until dropped. An unspecified address listens for both families, whichever its spelling, as
    /// Go does; a specific one for itself.
    ///
    /// A bind failure is logged and tried again every 5 s. With hard-fail it ends the server: only then does
    /// this return.
    pub async fn run(self) -> BindError {
        loop {
            let Err(source) = self.listen_and_serve().await;
            let (server, address, field) = (self.name, self.address, self.field);
            self.bound.send_replace(None);
            let error = BindError { server, address, field, source };
            if self.hard_fail {
                return error;
            }
            tracing::error!(server, %address, error = %error.source, "cannot listen; trying again in 5 s");
            tokio::time::sleep(BIND_RETRY).await;
        }
    }

    async fn listen_and_serve(&self) -> io::Result<Infallible> {
        let listener = TcpListener::from_std(listen(self.address, Wildcard::BothFamilies)?)?;
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
