//! Sends events to the API server.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Collected, Limited};
use kube::client::Body;
use tokio::time;

use super::series::{Count, Recorded, Series, Step};
use super::{Happened, Shared, wire};
use crate::client::deadline::AnswerWithin;
use crate::status::ApiStatus;

/// Attempts per event and the time between them (`maxTriesPerEvent`, `sleepDuration` in `tools/events`). The time
/// varies by a fifth, so that the nodes of a cluster do not send together after an outage.
const TRIES: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);

/// Maximum time for an answer to begin, and again for its body.
const ANSWER: Duration = Duration::from_secs(30);

/// Maximum bytes of an answer's body.
const ERROR_BODY: usize = 64 << 10;

/// Sends the events of a [`super::Recorder`].
#[derive(Debug)]
pub struct Poster {
    instance: String,
    shared: Arc<Shared>,
    series: Series,
}

/// The result of an attempt.
enum PostResult {
    Posted,
    /// The server refused the event; a retry is useless.
    Refused(ApiStatus),
    /// The attempt failed and is to be repeated after this time.
    Later(Duration, Box<dyn Error + Send + Sync>),
}

/// The server asked for a retry.
#[derive(Debug, thiserror::Error)]
#[error("the API server answered {0}")]
struct Busy(ApiStatus);

impl Poster {
    pub(super) fn new(host_name: &str, shared: Arc<Shared>) -> Self {
        let instance = wire::instance(host_name);
        Self { instance, shared, series: Series::default() }
    }

    /// Runs until dropped. May be spawned.
    pub async fn run(mut self) -> Infallible {
        loop {
            tokio::select! {
                happened = self.shared.next() => {
                    self.take(happened).await;
                    self.shared.done();
                }
                () = until(self.series.due()) => {
                    for step in self.series.expire(now()) {
                        self.send(step).await;
                    }
                }
            }
        }
    }

    async fn take(&mut self, Happened { note, at }: Happened) {
        for step in self.series.expire(now()) {
            self.send(step).await;
        }
        if let Some(step) = self.series.observe(note, at, now()) {
            self.send(step).await;
        }
    }

    async fn send(&self, step: Step) {
        let (event, count) = match &step {
            Step::Create(event) => (event, None),
            Step::Patch(event, count) => (event, Some(*count)),
        };
        let outcome = match count {
            Some(count) => self.deliver(event, || wire::patch(event, count)).await,
            None => self.create(event, None).await,
        };
        match outcome {
            // The object was deleted, or was never created.
            Some(PostResult::Refused(status)) if count.is_some() && status.code == 404 => {
                self.report(event, self.create(event, count).await);
            }
            outcome => self.report(event, outcome),
        }
    }

    async fn create(&self, event: &Recorded, count: Option<Count>) -> Option<PostResult> {
        self.deliver(event, || wire::create(event, count, &self.instance)).await
    }

    fn report(&self, event: &Recorded, outcome: Option<PostResult>) {
        let reason = event.note.reason;
        match outcome {
            Some(PostResult::Posted) => return,
            Some(PostResult::Refused(status)) => {
                tracing::warn!(reason, %status, "the API server refused an event");
            }
            Some(PostResult::Later(_, error)) => {
                tracing::warn!(reason, error, tries = TRIES, "an event could not be posted");
            }
            None => tracing::warn!(reason, "an event makes no request"),
        }
        self.shared.lose();
    }

    /// Tries until the API server has answered. Returns `None` if the request cannot be built.
    async fn deliver(
        &self,
        event: &Recorded,
        request: impl Fn() -> Result<Request<Body>, http::Error>,
    ) -> Option<PostResult> {
        let mut tries = 0;
        loop {
            let outcome = self.attempt(request().ok()?).await;
            tries += 1;
            let PostResult::Later(pause, error) = &outcome else { return Some(outcome) };
            if tries == TRIES {
                return Some(outcome);
            }
            tracing::debug!(reason = event.note.reason, error, tries, "an event will be tried again");
            time::sleep(*pause).await;
        }
    }

    async fn attempt(&self, request: Request<Body>) -> PostResult {
        let answer = self.exchange(request).await;
        let pause = PAUSE.mul_f64(0.9 + fastrand::f64() / 5.0);
        match answer {
            Err(error) => PostResult::Later(pause, error.into()),
            Ok(None) => PostResult::Posted,
            Ok(Some(status)) => match status.retry_after {
                Some(wait) => PostResult::Later(wait.max(PAUSE), Busy(status).into()),
                None => PostResult::Refused(status),
            },
        }
    }

    /// Returns the status if the request was refused. A conflict is a success: the object is this process's own,
    /// and the answer to an earlier attempt was lost.
    async fn exchange(&self, mut request: Request<Body>) -> Result<Option<ApiStatus>, kube::Error> {
        request.extensions_mut().insert(AnswerWithin(ANSWER));
        let answer = self.shared.client().send(request).await?;
        let (parts, body) = answer.into_parts();
        let body = time::timeout(ANSWER, Limited::new(body, ERROR_BODY).collect()).await;
        if parts.status.is_success() || parts.status == StatusCode::CONFLICT {
            return Ok(None);
        }
        let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
        Ok(Some(ApiStatus::from_answer(parts.status.as_u16(), &parts.headers, &body)))
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the time of tokio's clock, which tests can pause.
fn now() -> Instant {
    time::Instant::now().into_std()
}
