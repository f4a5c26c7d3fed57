//! One connection: the TLS handshake, HTTP/1 or HTTP/2, and its end.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::begun::Begun;
use super::gate::Gate;
use super::guarded::{Guarded, Untaken};
use super::limits::Limits;
use super::stall::StallGuard;
use crate::security::{Peer, Security};

/// Bytes of a request's head; tokens and certificates' names are far from it.
const HEAD: u32 = 64 << 10;
/// Requests at a time on one HTTP/2 connection (upstream: `--http2-max-streams-per-connection`).
const STREAMS: u32 = 250;
/// Bytes of an answer that wait for the client, for each stream.
const SEND_BUFFER: usize = 64 << 10;
/// An HTTP/2 connection on which nothing comes is tried this often, and given up without an answer (Go's clients do
/// the same from their side).
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// What all connections share.
pub(super) struct Shared {
    pub(super) gate: Gate,
    pub(super) security: Option<Arc<Security>>,
    pub(super) limits: Limits,
}

/// What is logged of a client that takes nothing of an answer.
const NOT_READ: &str = "disconnected: the client does not read";
/// What is left of the last answer has this time to be sent, after the end of a connection was begun.
const LINGER: Duration = Duration::from_millis(200);

/// Serves one connection until either side ends it.
///
/// Each step has memory of its own, which is taken when the peer has said something and given back with the step: a peer
/// that says nothing costs little more than its socket.
///
/// `_held` is dropped with the connection.
pub(super) async fn serve(
    stream: TcpStream,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
    _held: impl Send,
) {
    // Without this, an event that follows another waits for the client's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY not set");
    }
    let has_tls = shared.security.is_some();
    let time = if has_tls { shared.limits.handshake_time } else { shared.limits.header_time };
    let deadline = Instant::now() + time;
    let spoken = tokio::select! {
        spoken = timeout_at(deadline, stream.readable()) => spoken.is_ok_and(|ready| ready.is_ok()),
        () = stopped(stopping.clone()) => return,
    };
    if !spoken {
        if has_tls {
            shared.gate.requests.handshakes_failed.fetch_add(1, Relaxed);
        }
        return tracing::debug!("disconnected: the client says nothing");
    }
    Box::pin(spoken_on(stream, shared, stopping, deadline)).await;
}

/// Serves a connection on which the peer has said something.
async fn spoken_on(
    stream: TcpStream,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
    deadline: Instant,
) {
    let stream = StallGuard::new(stream, shared.limits.stall_time);
    let Some(security) = shared.security.clone() else {
        return Box::pin(http1(stream, Peer::default(), shared, stopping)).await;
    };
    let Some(stream) = Box::pin(handshake(stream, &security, deadline, &shared, &stopping)).await else {
        return;
    };
    let tls = stream.get_ref().1;
    let peer = Peer::new(tls.peer_certificates().map(<[_]>::to_vec).unwrap_or_default());
    let is_http2 = tls.alpn_protocol() == Some(b"h2");
    let begun = tokio::select! {
        begun = Box::pin(timeout(shared.limits.header_time, Begun::wait(stream))) => begun,
        () = stopped(stopping.clone()) => return,
    };
    let Ok(Ok(Some(stream))) = begun else {
        return tracing::debug!("disconnected: no request came");
    };
    if is_http2 {
        Box::pin(http2(stream, peer, shared, stopping)).await;
    } else {
        Box::pin(http1(stream, peer, shared, stopping)).await;
    }
}

type Secured = TlsStream<StallGuard<TcpStream>>;

async fn handshake(
    stream: StallGuard<TcpStream>,
    security: &Security,
    deadline: Instant,
    shared: &Shared,
    stopping: &watch::Receiver<bool>,
) -> Option<Secured> {
    let accepting = TlsAcceptor::from(security.server_config()).accept(stream);
    let accepted = tokio::select! {
        accepted = timeout_at(deadline, accepting) => accepted,
        () = stopped(stopping.clone()) => return None,
    };
    let accepted = accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    accepted
        .inspect_err(|error| {
            shared.gate.requests.handshakes_failed.fetch_add(1, Relaxed);
            tracing::debug!(%error, "TLS handshake failed");
        })
        .ok()
}

/// The requests of one connection.
struct Requests {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    active: Arc<watch::Sender<usize>>,
    changes: watch::Receiver<usize>,
    untaken: Untaken,
}

impl Requests {
    fn new(shared: Arc<Shared>, peer: Peer) -> Self {
        let (active, changes) = watch::channel(0_usize);
        Self { shared, peer: Arc::new(peer), active: Arc::new(active), changes, untaken: Untaken::default() }
    }

    /// The answer to one request. What is large about it is not kept when it has been given.
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<http::Response<Guarded>, Infallible>> + Send + use<> {
        let (shared, peer, active) =
            (Arc::clone(&self.shared), Arc::clone(&self.peer), Active::new(&self.active));
        let seen = self.untaken.clone();
        Box::pin(async move {
            let answer = shared.gate.answer(request, &peer).await;
            Ok(answer.map(|body| body.holding(active).seen_by(&seen)))
        })
    }
}

async fn http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
) {
    let limits = shared.limits.clone();
    let requests = Requests::new(shared, peer);
    let (changes, untaken) = (requests.changes.clone(), requests.untaken.clone());
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.header_time);
    builder.max_header_size(HEAD as usize);
    let service = service_fn(move |request| requests.answer(request));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = untaken.stalled(limits.stall_time) => return tracing::debug!("{NOT_READ}"),
        () = end(stopping, changes.clone(), limits.idle_time) => {
            connection.as_mut().graceful_shutdown();
            finish(connection, changes, &limits).await
        }
    };
    ended(result);
}

async fn http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
) {
    let limits = shared.limits.clone();
    let requests = Requests::new(shared, peer);
    let (changes, untaken) = (requests.changes.clone(), requests.untaken.clone());
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS).max_header_list_size(HEAD);
    builder.max_send_buf_size(SEND_BUFFER);
    builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    let service = service_fn(move |request| requests.answer(request));
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = untaken.stalled(limits.stall_time) => return tracing::debug!("{NOT_READ}"),
        () = end(stopping, changes.clone(), limits.idle_time) => {
            connection.as_mut().graceful_shutdown();
            finish(connection, changes, &limits).await
        }
    };
    ended(result);
}

fn ended(result: hyper::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Waits for the requests under way. A connection on which none ever came does not end by itself: it is cut off.
async fn finish(
    connection: impl Future<Output = hyper::Result<()>>,
    active: watch::Receiver<usize>,
    limits: &Limits,
) -> hyper::Result<()> {
    tokio::select! {
        result = connection => result,
        () = unused(active, LINGER) => Ok(()),
        () = tokio::time::sleep(limits.request_time) => Ok(()),
    }
}

/// Ready when the server stops or the connection has been without a request for `idle`.
async fn end(stopping: watch::Receiver<bool>, active: watch::Receiver<usize>, idle: Duration) {
    tokio::select! {
        () = stopped(stopping) => {}
        () = unused(active, idle) => {}
    }
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // The sender outlives every task; were it gone, the server would be stopping too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn unused(mut active: watch::Receiver<usize>, idle: Duration) {
    loop {
        let is_idle = *active.borrow_and_update() == 0;
        let limit = if is_idle { idle } else { Duration::MAX };
        match tokio::time::timeout(limit, active.changed()).await {
            Err(_) => return,
            Ok(Ok(())) => {}
            // The connection's service is gone, and the connection with it.
            Ok(Err(_)) => std::future::pending().await,
        }
    }
}

/// A request of this connection that is not answered to the end.
struct Active(Arc<watch::Sender<usize>>);

impl Active {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count = count.saturating_add(1));
        Self(Arc::clone(count))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
