//! The connections of one listener, and the limits for slow or hostile clients.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::task::{AbortHandle, JoinSet};

use crate::stream::Stream;
use crate::{Answer, Handler, Listener, PLAIN, answer};

/// A connection without a request head for this long is closed. Longer than usual scrape intervals.
const IDLE: Duration = Duration::from_secs(75);
/// The time within which a body must arrive.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Bytes of the largest accepted body: a number, or a question about one packet.
const MAX_BODY: usize = 16 * 1024;
/// Bytes of the largest accepted request head.
const MAX_HEAD: usize = 16 * 1024;
/// The pause after the process or the system ran out of descriptors or memory.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Connections that one listener serves at the same time. For one more, the oldest is closed.
pub(crate) const MAX_CONNECTIONS: usize = 256;

/// Serves requests until the listener itself fails. Dropping the future closes every connection.
pub async fn serve(listener: Listener<'_>, handler: &Handler) -> io::Error {
    let mut connections = Connections::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(stream) => connections.add(stream, Arc::clone(handler)),
                Err(error) if out_of_resources(&error) => {
                    connections.close_oldest();
                    tokio::time::sleep(EXHAUSTED).await;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return error,
            },
            Some(_) = connections.tasks.join_next() => {}
        }
    }
}

#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    /// The connections' tasks, oldest first. Some may have ended.
    by_age: VecDeque<AbortHandle>,
}

impl Connections {
    fn add(&mut self, stream: Stream, handler: Handler) {
        while self.tasks.try_join_next().is_some() {}
        // Probes last for milliseconds, so the oldest connection is the most likely to be idle.
        if self.tasks.len() >= MAX_CONNECTIONS {
            self.close_oldest();
        }
        if self.by_age.len() >= 2 * MAX_CONNECTIONS {
            self.by_age.retain(|task| !task.is_finished());
        }
        self.by_age.push_back(self.tasks.spawn(connection(stream, handler)));
    }

    fn close_oldest(&mut self) {
        while let Some(task) = self.by_age.pop_front() {
            if !task.is_finished() {
                return task.abort();
            }
        }
    }
}

async fn connection(stream: Stream, handler: Handler) {
    stream.limit_unread();
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, Infallible>(respond(request, &handler).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(MAX_HEAD)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::trace!(%error, "a connection ended early");
    }
}

async fn respond(request: Request<Incoming>, handler: &Handler) -> Answer {
    let (head, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => {
            let reply = handler(&Request::from_parts(head, body.to_bytes()));
            reply.answer().await
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            answer(StatusCode::PAYLOAD_TOO_LARGE, PLAIN, "the body is too large\n")
        }
        Ok(Err(_)) => answer(StatusCode::BAD_REQUEST, PLAIN, "the body cannot be read\n"),
        Err(_) => answer(StatusCode::REQUEST_TIMEOUT, PLAIN, "the body did not arrive in time\n"),
    }
}

fn out_of_resources(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].contains(&errno))
}
