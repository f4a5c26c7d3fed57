//! The bodies of requests, including the part that is left when the request has been answered.
//!
//! If an HTTP/1 connection is closed while the client is still sending, the client gets a TCP reset and may never see
//! the answer. So the rest of the body is read, up to a limit.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Version, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// Maximum number of bytes that are read and dropped after an answer.
const MOST_LEFT: usize = 8 << 20;
/// Deadline for reading them.
const PATIENCE: Duration = Duration::from_secs(5);

/// The body of a request while it arrives.
#[derive(Debug)]
pub struct Arriving(Arc<Source>);

/// The same body, after the answer.
#[derive(Debug)]
pub struct Leftover {
    body: Arriving,
    /// True if the client sends nothing before the server asks for it (`Expect`). Reading the body asks for it.
    waits: bool,
}

#[derive(Debug)]
struct Source {
    body: Mutex<Incoming>,
    was_read: AtomicBool,
    count: Count,
}

/// Number of bytes of a body that have been read.
#[derive(Debug, Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// Returns the current number.
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// Wraps the body of a request. Also returns its rest for later and its byte count. There is no rest in HTTP/2, where
/// a single request can be cancelled without closing the connection.
pub fn arriving(request: Request<Incoming>) -> (Request<Arriving>, Option<Leftover>, Count) {
    let waits = request.headers().contains_key(header::EXPECT);
    let is_alone = request.version() >= Version::HTTP_2;
    let (head, body) = request.into_parts();
    let count = Count::default();
    let source =
        Arc::new(Source { body: Mutex::new(body), was_read: AtomicBool::new(false), count: count.clone() });
    let leftover = Leftover { body: Arriving(Arc::clone(&source)), waits };
    (Request::from_parts(head, Arriving(source)), (!is_alone).then_some(leftover), count)
}

impl Leftover {
    /// Reads the rest in the background, unless there is none or the client waits to be asked for it.
    pub fn drain(self) {
        let is_unasked = self.waits && !self.body.0.was_read.load(Relaxed);
        if !is_unasked && !self.body.is_end_stream() {
            tokio::spawn(tokio::time::timeout(PATIENCE, drop_all(self.body)));
        }
    }
}

async fn drop_all(mut body: Arriving) {
    let mut left = MOST_LEFT;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(length) else { return };
        left = rest;
    }
}

impl Source {
    fn lock(&self) -> MutexGuard<'_, Incoming> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.was_read.store(true, Relaxed);
        let frame = Pin::new(&mut *self.0.lock()).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            // A body is too short for the count to wrap.
            self.0.count.0.fetch_add(frame.data_ref().map_or(0, Bytes::len), Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.lock().size_hint()
    }
}
