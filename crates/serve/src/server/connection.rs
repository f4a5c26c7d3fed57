//! One connection: the TLS handshake, HTTP/1 or HTTP/2, and the end of the connection.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2::Connection};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::accept::client;
use super::begun::Beginning;
use super::gate::Gate;
use super::greeting;
use super::guarded::{Guarded, UnreadAnswers};
use super::http2;
use super::layered::Layered;
use super::limits::Limits;
use super::places::Places;
use super::ration::{Shown, UnauthenticatedLimit};
use super::stall::StallGuard;
use crate::security::{Peer, Security};

/// Maximum size of a request's head in bytes. Heads with tokens or certificate names are much smaller.
pub(super) const HEAD: u32 = 64 << 10;

/// State shared by all connections.
pub(super) struct ConnectionContext {
    pub(super) gate: Gate,
    pub(super) security: Option<Arc<Security>>,
    pub(super) limits: Limits,
    pub(super) places: Places,
}

/// Log message for a client that reads nothing of an answer.
const NOT_READ: &str = "disconnected: the client does not read";
/// Time for the client to take the rest of the last answer and to end the connection, after its end has begun. Shorter
/// than the default of `shutdown_grace`, so that a client that is gone delays the server's stop less.
const LINGER: Duration = Duration::from_secs(2);
/// The same time for a connection that has had no request, and for a client that is not authenticated: its only answer is
/// short, and it holds a place for which others wait.
const SHORT_LINGER: Duration = Duration::from_millis(200);

/// Serves one connection until either side ends it.
///
/// Each step has its own memory. It is allocated when the peer has sent something, and freed at the end of the step.
/// A peer that sends nothing costs little more than its socket.
///
/// `_held` is dropped with the connection.
pub(super) async fn serve(
    stream: TcpStream,
    shared: Arc<ConnectionContext>,
    stopping: watch::Receiver<bool>,
    _held: impl Send,
) {
    // Without TCP_NODELAY, an event that follows another waits for the client's delayed acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY not set");
    }
    let has_tls = shared.security.is_some();
    let time = if has_tls { shared.limits.handshake_time } else { shared.limits.header_time };
    let deadline = Instant::now() + time;
    // In a box, like the state of each step, so that it is freed when the step ends.
    let greeting = Box::pin(timeout_at(deadline, greeting::come(&stream, has_tls)));
    let spoken = tokio::select! {
        spoken = greeting => spoken.is_ok_and(|come| come.is_ok()),
        () = Box::pin(stopped(stopping.clone())) => return,
    };
    if !spoken {
        if has_tls {
            shared.gate.requests.handshakes_failed.fetch_add(1, Relaxed);
        }
        return tracing::debug!("disconnected: the client says nothing");
    }
    Box::pin(spoken_on(stream, shared, stopping, deadline)).await;
}

/// Serves a connection on which the peer has sent something.
async fn spoken_on(
    stream: TcpStream,
    shared: Arc<ConnectionContext>,
    stopping: watch::Receiver<bool>,
    deadline: Instant,
) {
    let (shown, stall) = (Shown::default(), StallGuard::new(shared.limits.stall_time));
    let Some(security) = shared.security.clone() else {
        shown.accept();
        let requests = Requests::new(shared, Peer::default(), shown);
        return Box::pin(serve_http1(Layered::new(stream, stall), requests, stopping)).await;
    };
    let Ok(address) = stream.peer_addr() else {
        return tracing::debug!("disconnected: the client is gone");
    };
    let ration = UnauthenticatedLimit::new(shared.places.clone(), client(address.ip()), shown.clone());
    let stream = Layered::new(Layered::new(stream, ration), stall);
    let Some(mut stream) = Box::pin(handshake(stream, &security, deadline, &shared, &stopping)).await else {
        return;
    };
    let (below, tls) = stream.get_mut();
    below.stream_mut().layer_mut().begin_first_request();
    let peer = security.peer(tls.peer_certificates().map(<[_]>::to_vec).unwrap_or_default());
    let is_http2 = tls.alpn_protocol() == Some(b"h2");
    let mut beginning = Box::new(Beginning::new(stream, is_http2));
    let begun = tokio::select! {
        begun = Box::pin(timeout(shared.limits.header_time, beginning.wait(HEAD as usize))) => begun,
        () = stopped(stopping.clone()) => Ok(Ok(false)),
    };
    if !matches!(begun, Ok(Ok(true))) {
        tracing::debug!("disconnected: no request came");
        return Box::pin(beginning.close()).await;
    }
    let (stream, requests) = (beginning.into_stream(shown.clone()), Requests::new(shared, peer, shown));
    if is_http2 {
        Box::pin(serve_http2(stream, requests, stopping)).await;
    } else {
        Box::pin(serve_http1(stream, requests, stopping)).await;
    }
}

type Rationed = Layered<Layered<TcpStream, UnauthenticatedLimit>, StallGuard>;

async fn handshake(
    stream: Rationed,
    security: &Security,
    deadline: Instant,
    shared: &ConnectionContext,
    stopping: &watch::Receiver<bool>,
) -> Option<Box<TlsStream<Rationed>>> {
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
        .map(Box::new)
        .ok()
}

/// Handles the requests of one connection.
struct Requests {
    shared: Arc<ConnectionContext>,
    peer: Arc<Peer>,
    shown: Shown,
    /// Notified when the connection must end after the answers in progress.
    refused: Arc<Notify>,
    active: Arc<watch::Sender<usize>>,
    changes: watch::Receiver<usize>,
    untaken: UnreadAnswers,
}

impl Requests {
    fn new(shared: Arc<ConnectionContext>, peer: Peer, shown: Shown) -> Self {
        let (active, changes) = watch::channel(0_usize);
        let (peer, active) = (Arc::new(peer), Arc::new(active));
        Self {
            shared,
            peer,
            shown,
            refused: Arc::default(),
            active,
            changes,
            untaken: UnreadAnswers::default(),
        }
    }

    /// Answers one request. The large state of the request is freed when the answer has started.
    ///
    /// If the client has not authenticated, this is the last answer of the connection: for another request HTTP would
    /// keep more memory than such a connection may take. A client with a new token opens a new connection.
    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<http::Response<Guarded>, Infallible>> + Send + use<> {
        let (shared, peer, active) =
            (Arc::clone(&self.shared), Arc::clone(&self.peer), Active::new(&self.active));
        let (seen, shown, refused) = (self.untaken.clone(), self.shown.clone(), Arc::clone(&self.refused));
        Box::pin(async move {
            let is_http2 = request.version() >= Version::HTTP_2;
            let mut answer = shared.gate.answer(request, &peer, &shown).await;
            if !shown.is_accepted() {
                if is_http2 {
                    refused.notify_one();
                } else {
                    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
            }
            Ok(answer.map(|body| body.holding(active).seen_by(&seen)))
        })
    }

    /// Returns the conditions that end the connection.
    fn ends(&self, stopping: watch::Receiver<bool>) -> Ends {
        Ends {
            limits: self.shared.limits.clone(),
            stopping,
            shown: self.shown.clone(),
            refused: Arc::clone(&self.refused),
            active: self.changes.clone(),
            untaken: self.untaken.clone(),
        }
    }
}

async fn serve_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    requests: Requests,
    stopping: watch::Receiver<bool>,
) {
    let ends = requests.ends(stopping);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(ends.limits.header_time);
    builder.max_header_size(HEAD as usize);
    let service = service_fn(move |request| requests.answer(request));
    ends.run(builder.serve_connection(TokioIo::new(stream), service), |connection| {
        connection.graceful_shutdown();
    })
    .await;
}

async fn serve_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    requests: Requests,
    stopping: watch::Receiver<bool>,
) {
    let ends = requests.ends(stopping);
    let service = service_fn(move |request| requests.answer(request));
    let connection = http2::builder().serve_connection(TokioIo::new(stream), service);
    ends.run(connection, Connection::graceful_shutdown).await;
}

/// The conditions that end a connection before its client does.
struct Ends {
    limits: Limits,
    stopping: watch::Receiver<bool>,
    shown: Shown,
    refused: Arc<Notify>,
    active: watch::Receiver<usize>,
    untaken: UnreadAnswers,
}

impl Ends {
    /// Serves a connection. `begin_end` makes it refuse further requests.
    async fn run<C: Future<Output = hyper::Result<()>>>(
        self,
        connection: C,
        begin_end: impl FnOnce(Pin<&mut C>),
    ) {
        let mut connection = std::pin::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = self.untaken.stalled(self.limits.stall_time) => return tracing::debug!("{NOT_READ}"),
            times = self.begun() => {
                begin_end(connection.as_mut());
                finish(connection, self.active.clone(), times).await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// Completes when the server stops, when a client without an accepted credential has been answered, when HTTP/2 has
    /// refused its first head, or when the connection has been idle for `idle_time`.
    async fn begun(&self) -> EndTimes {
        // The only answer is short. Its client may not take longer for it than for a long head.
        let refused = EndTimes { linger: SHORT_LINGER, answers: self.limits.place_time };
        tokio::select! {
            () = stopped(self.stopping.clone()) => {}
            () = self.refused.notified() => return refused,
            () = self.refused_by_http() => return refused,
            () = unused(self.active.clone(), self.limits.idle_time) => {}
        }
        EndTimes { linger: linger_after(&self.active), answers: self.limits.request_time }
    }

    /// Completes when HTTP/2 has read its first head and no request has come of it: HTTP/2 has reset the stream, because
    /// the head is malformed, or has answered that it is too long.
    async fn refused_by_http(&self) {
        self.shown.waits_for_more().await;
        // HTTP/2 waits for more only after it has passed on what has come. Each request changes the count at once.
        if self.active.has_changed().unwrap_or(true) {
            std::future::pending::<()>().await;
        }
        self.shown.refuse();
    }
}

/// How long a connection may take to end.
#[derive(Debug, Clone, Copy)]
struct EndTimes {
    /// Time without a request in progress.
    linger: Duration,
    /// Time for the answers in progress.
    answers: Duration,
}

/// Returns [`LINGER`] if the connection has had a request.
fn linger_after(active: &watch::Receiver<usize>) -> Duration {
    // Each request changes the count.
    if active.has_changed().unwrap_or(true) { LINGER } else { SHORT_LINGER }
}

/// Waits for the requests in progress, at most for `times.answers`. hyper does not end a connection on which no
/// request ever came, nor one over HTTP/2 whose client does not reply to a ping. So the connection is closed when it
/// has had no active request for `times.linger`.
async fn finish(
    connection: impl Future<Output = hyper::Result<()>>,
    active: watch::Receiver<usize>,
    times: EndTimes,
) -> hyper::Result<()> {
    tokio::select! {
        // If this task runs late, the client's last words have come, and the time is over. To close the connection with
        // words unread would reset it.
        biased;
        result = connection => result,
        () = unused(active, times.linger) => Ok(()),
        () = tokio::time::sleep(times.answers) => Ok(()),
    }
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // The sender outlives every task. If it were gone, the server would be stopping, too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn unused(mut active: watch::Receiver<usize>, idle: Duration) {
    loop {
        let is_idle = *active.borrow_and_update() == 0;
        let limit = if is_idle { idle } else { Duration::MAX };
        match tokio::time::timeout(limit, active.changed()).await {
            Err(_) => return,
            Ok(Ok(())) => {}
            // The connection's service is gone, so the connection is ending.
            Ok(Err(_)) => std::future::pending().await,
        }
    }
}

/// Counts a request of this connection as active until its answer has been sent.
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_came_in_time_counts_if_it_is_read_late() {
        let times = EndTimes { linger: LINGER, answers: Limits::default().request_time };
        // In a random order, one of many connections would be closed first.
        for _ in 0..64 {
            let (_count, active) = watch::channel(0);
            let (pong, ponged) = oneshot::channel();
            let mut is_ended = false;
            let connection = async {
                ponged.await.unwrap();
                is_ended = true;
                Ok(())
            };
            let mut finishing = Box::pin(finish(connection, active, times));
            assert!(finishing.as_mut().now_or_never().is_none());
            pong.send(()).unwrap();
            tokio::time::advance(LINGER).await;
            finishing.await.unwrap();
            assert!(is_ended);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_had_a_request_gets_more_time() {
        for (requests, least, most) in [(0, SHORT_LINGER, LINGER), (1, LINGER, LINGER * 2)] {
            let (count, active) = watch::channel(0);
            let count = Arc::new(count);
            for _ in 0..requests {
                drop(Active::new(&count));
            }
            let begin = Instant::now();
            let times = EndTimes { linger: linger_after(&active), answers: Limits::default().request_time };
            finish(std::future::pending(), active, times).await.unwrap();
            // The time is paused, and goes on only when everything waits.
            assert!((least..most).contains(&begin.elapsed()), "{requests}");
        }
    }
}
