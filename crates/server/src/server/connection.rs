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
use tokio_rustls::TlsAcceptor;

use super::gate::Gate;
use super::guarded::Untaken;
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

/// What is left of the last answer has this time to be sent, after the end of a connection was begun.
const LINGER: Duration = Duration::from_millis(200);

/// Serves one connection until either side ends it.
pub(super) async fn serve(stream: TcpStream, shared: Arc<Shared>, stopping: watch::Receiver<bool>) {
    // Without this, an event that follows another waits for the client's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY not set");
    }
    let stream = StallGuard::new(stream, shared.limits.stall_time);
    let Some(security) = &shared.security else {
        return http(stream, Peer::default(), false, shared, stopping).await;
    };
    let accepting = TlsAcceptor::from(security.server_config()).accept(stream);
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(shared.limits.handshake_time, accepting) => accepted,
        () = stopped(stopping.clone()) => return,
    };
    match accepted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(stream) => {
            let tls = stream.get_ref().1;
            let peer = Peer::new(tls.peer_certificates().map(<[_]>::to_vec).unwrap_or_default());
            let is_http2 = tls.alpn_protocol() == Some(b"h2");
            http(stream, peer, is_http2, shared, stopping).await;
        }
        Err(error) => {
            shared.gate.requests.handshakes_failed.fetch_add(1, Relaxed);
            tracing::debug!(%error, "TLS handshake failed");
        }
    }
}

async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Peer,
    is_http2: bool,
    shared: Arc<Shared>,
    stopping: watch::Receiver<bool>,
) {
    let limits = shared.limits.clone();
    let (peer, (active, changes)) = (Arc::new(peer), watch::channel(0_usize));
    let (active, untaken) = (Arc::new(active), Untaken::default());
    let seen = untaken.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, peer, active) = (Arc::clone(&shared), Arc::clone(&peer), Active::new(&active));
        let seen = seen.clone();
        async move {
            let answer = shared.gate.answer(request, &peer).await;
            Ok::<_, Infallible>(answer.map(|body| body.holding(active).seen_by(&seen)))
        }
    });
    let io = TokioIo::new(stream);
    let end = end(stopping, changes.clone(), limits.idle_time);
    let result = if is_http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS).max_header_list_size(HEAD);
        builder.max_send_buf_size(SEND_BUFFER);
        builder.keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        tokio::select! {
            result = connection.as_mut() => result,
            () = untaken.stalled(limits.stall_time) => return tracing::debug!("disconnected: the client does not read"),
            () = end => {
                connection.as_mut().graceful_shutdown();
                finish(connection, changes, &limits).await
            }
        }
    } else {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(limits.header_time);
        builder.max_header_size(HEAD as usize);
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        tokio::select! {
            result = connection.as_mut() => result,
            () = untaken.stalled(limits.stall_time) => return tracing::debug!("disconnected: the client does not read"),
            () = end => {
                connection.as_mut().graceful_shutdown();
                finish(connection, changes, &limits).await
            }
        }
    };
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
