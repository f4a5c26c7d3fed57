//! The bodies of requests, and what is left of one when its request has been answered.
//!
//! Who is still sending when an HTTP/1 connection is closed gets a reset, and may never see the answer. So what is left
//! is read, as far as it is not too much.

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

/// Bytes that are read and dropped after an answer.
const MOST_LEFT: usize = 8 << 20;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The body of a request, as it comes.
#[derive(Debug)]
pub(crate) struct Arriving(Arc<Source>);

/// The same body, for the time after the answer.
#[derive(Debug)]
pub(crate) struct Leftover {
    body: Arriving,
    /// The client sends nothing before it is asked to, and being read is what asks it.
    waits: bool,
}

#[derive(Debug)]
struct Source {
    body: Mutex<Incoming>,
    was_read: AtomicBool,
    count: Count,
}

/// Bytes of a body that have been read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    /// How many there are now.
    pub(crate) fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }
}

/// The request with a body of which the rest can be read later; no such rest where a single request can be given up
/// without the connection (HTTP/2).
pub(crate) fn arriving(request: Request<Incoming>) -> (Request<Arriving>, Option<Leftover>, Count) {
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
    /// Reads what is left in the background, if there is anything.
    pub(crate) fn drain(self) {
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
            // No body has as many bytes as would wrap.
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
