//! Answers that keep values alive until they are sent or abandoned, and that detect clients which do not read them.

use std::any::Any;
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Instant, sleep_until};

/// The body of an answer and the values that it keeps alive.
pub(super) struct Guarded {
    body: UnsyncBoxBody<Bytes, Infallible>,
    held: Vec<Box<dyn Any + Send>>,
    time: Option<Duration>,
    offer: Option<Offer>,
}

/// The answers of one connection that the client has yet to read. HTTP/2 has a window for each stream: a client that
/// keeps one window closed reads nothing of that answer, although the connection is active.
#[derive(Debug, Clone, Default)]
pub(super) struct UnreadAnswers(Arc<Mutex<Offers>>);

#[derive(Debug, Default)]
struct Offers {
    last: u64,
    times: HashMap<u64, Times>,
}

#[derive(Debug, Clone, Copy)]
struct Times {
    /// Since when data has been ready for the client; `None` while the answer waits for data.
    since: Option<Instant>,
    /// The deadline for the whole answer; `None` without one.
    end: Option<Instant>,
}

/// The entry of one answer in [`UnreadAnswers`].
struct Offer {
    id: u64,
    untaken: UnreadAnswers,
}

impl UnreadAnswers {
    /// Completes when the client has left data unread for `limit`, or has not read an answer by its deadline.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            let now = Instant::now();
            let first = self.with(|offers| {
                let stalls = offers.times.values().filter_map(|times| Some(times.since? + limit));
                let ends = offers.times.values().filter_map(|times| times.end);
                stalls.chain(ends).min()
            });
            if first.is_some_and(|first| first <= now) {
                return;
            }
            // An answer that starts in the meantime may be due earlier.
            let next = now + limit / 4;
            sleep_until(first.map_or(next, |first| first.min(next))).await;
        }
    }

    fn offer(&self, time: Option<Duration>) -> Offer {
        let now = Instant::now();
        let id = self.with(|offers| {
            offers.last = offers.last.wrapping_add(1);
            offers.times.insert(offers.last, Times { since: Some(now), end: time.map(|time| now + time) });
            offers.last
        });
        Offer { id, untaken: self.clone() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Offers) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Offer {
    /// Notes that HTTP has asked for a frame. If it got one, the client has to read that frame. Only the next request
    /// for a frame shows that it has.
    fn taken(&self, waits_for_client: bool) {
        self.untaken.with(|offers| {
            if let Some(times) = offers.times.get_mut(&self.id) {
                times.since = waits_for_client.then(Instant::now);
            }
        });
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.untaken.with(|offers| offers.times.remove(&self.id));
    }
}

impl Guarded {
    pub(super) fn new(body: UnsyncBoxBody<Bytes, Infallible>, held: Vec<Box<dyn Any + Send>>) -> Self {
        Self { body, held, time: None, offer: None }
    }

    /// Sets a deadline: the client must have read the whole answer within this time.
    pub(super) fn within(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }

    /// Registers the answer in `untaken`, which detects that the client does not read it.
    pub(super) fn seen_by(mut self, untaken: &UnreadAnswers) -> Self {
        self.offer = Some(untaken.offer(self.time));
        self
    }

    /// Keeps one more value alive.
    pub(super) fn holding(mut self, thing: impl Any + Send) -> Self {
        self.held.push(Box::new(thing));
        self
    }
}

impl Body for Guarded {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Some(offer) = &self.offer {
            offer.taken(matches!(frame, Poll::Ready(Some(_))));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_that_the_client_does_not_read_is_detected() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let untaken = UnreadAnswers::default();
            let is_stalled =
                || async { tokio::time::timeout(LIMIT * 3, untaken.stalled(LIMIT)).await.is_ok() };
            let (events, rest) = futures::channel::mpsc::unbounded();
            let body = StreamBody::new(stream::StreamExt::map(rest, |text: &'static str| {
                Ok(Frame::data(Bytes::from(text)))
            }));
            let mut answer = Guarded::new(body.boxed_unsync(), Vec::new()).seen_by(&untaken);
            assert!(is_stalled().await, "never asked for");
            // A watch waits for events, and so does its client. That is no stall.
            assert!(futures::FutureExt::now_or_never(answer.frame()).is_none());
            assert!(!is_stalled().await, "nothing is there");
            events.unbounded_send("one").unwrap();
            answer.frame().await.unwrap().unwrap();
            tokio::time::advance(LIMIT / 2).await;
            assert!(futures::FutureExt::now_or_never(answer.frame()).is_none());
            assert!(!is_stalled().await, "taken in time");
            events.unbounded_send("two").unwrap();
            answer.frame().await.unwrap().unwrap();
            assert!(is_stalled().await, "the next is not asked for");
            drop(answer);
            assert!(!is_stalled().await, "it is gone");
            let body = StreamBody::new(stream::repeat_with(|| Ok(Frame::data(Bytes::from("x")))));
            let mut slow = Guarded::new(body.boxed_unsync(), Vec::new()).within(LIMIT * 2).seen_by(&untaken);
            for _ in 0..3 {
                assert!(tokio::time::timeout(LIMIT / 2, untaken.stalled(LIMIT)).await.is_err());
                slow.frame().await.unwrap().unwrap();
            }
            assert!(tokio::time::timeout(LIMIT, untaken.stalled(LIMIT)).await.is_ok(), "too slow");
        });
    }
}
