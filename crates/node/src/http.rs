//! The small HTTP/1.1 servers of the node: fixed answers, bounded connections, patient binding.
//!
//! In flow an address and a function from request to answer; out flows a bound address, or the error that
//! ends a server whose bind failure is fatal. What is answered is not known here.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

#[cfg(test)]
pub(crate) mod tests;

/// From a request to its answer. It must not block.
pub(crate) type Handler = Arc<dyn Fn(&Request<Incoming>) -> Answer + Send + Sync>;
/// A whole answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// kube-proxy's pause after a failed bind.
const BIND_RETRY: Duration = Duration::from_secs(5);
/// A connection on which no request head arrives for this long is closed. Longer than usual scrape intervals.
const IDLE: Duration = Duration::from_secs(75);
/// Pause after the process or the system ran out of descriptors or memory.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Connections served at the same time by one listener; others wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 256;
const BACKLOG: i32 = 1024;

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

/// What an unspecified address means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wildcard {
    /// Every address of both families.
    BothFamilies,
    /// Every address of its own family.
    OneFamily,
}

/// Opens a listening socket, close-on-exec and non-blocking.
pub(crate) fn listen(address: SocketAddr, wildcard: Wildcard) -> io::Result<std::net::TcpListener> {
    if wildcard == Wildcard::OneFamily || !address.ip().is_unspecified() {
        return open(address, true);
    }
    let any = |ip: IpAddr| SocketAddr::new(ip, address.port());
    match open(any(Ipv6Addr::UNSPECIFIED.into()), false) {
        // A host without IPv6, or one that keeps IPv4 out of IPv6 sockets.
        Err(error) if without_dual_stack(&error) => open(any(Ipv4Addr::UNSPECIFIED.into()), true),
        opened => opened,
    }
}

/// Answers requests until the listener itself fails. Dropping this closes every connection.
pub(crate) async fn serve(listener: &TcpListener, handler: &Handler) -> io::Error {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, Arc::clone(handler)))),
                Err(error) if out_of_resources(&error) => tokio::time::sleep(EXHAUSTED).await,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return error,
            },
            Some(_) = connections.join_next() => {}
        }
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

async fn connection(stream: TcpStream, handler: Handler) {
    let service = service_fn(move |request| {
        let answer = handler(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn open(address: SocketAddr, v6_only: bool) -> io::Result<std::net::TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, v6_only)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn without_dual_stack(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| {
        [Errno::AFNOSUPPORT, Errno::PROTONOSUPPORT, Errno::NOPROTOOPT, Errno::ADDRNOTAVAIL].contains(&errno)
    })
}

fn out_of_resources(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno))
}
