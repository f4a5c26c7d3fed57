//! Sends events to the API server.

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Collected, Limited};
use kube::client::Body;
use tokio::time;

use super::note::Regarding;
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

/// Maximum bytes of an answer's body: a list with one object, of which etcd takes 1.5 MiB at most.
const BODY: usize = 2 << 20;

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
            Some(count) => self.set_count(event, count).await,
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
        let mut tries = Tries::default();
        loop {
            let outcome = match self.uid(&event.note.regarding).await {
                Ok(uid) => {
                    self.attempt(wire::create(event, uid.as_deref(), count, &self.instance).ok()?).await
                }
                Err(outcome) => outcome,
            };
            if let Some(outcome) = tries.after(event, outcome).await {
                return Some(outcome);
            }
        }
    }

    async fn set_count(&self, event: &Recorded, count: Count) -> Option<PostResult> {
        let mut tries = Tries::default();
        loop {
            let outcome = self.attempt(wire::patch(event, count).ok()?).await;
            if let Some(outcome) = tries.after(event, outcome).await {
                return Some(outcome);
            }
        }
    }

    /// Returns the UID under which `kubectl describe` looks for events about an object. That of a Node is its name, as in
    /// kube-proxy. That of a Service is asked for, because the Catalog does not keep it: 50,000 Services would need
    /// a MiB for the few that have events. An object that is gone or may not be listed has none.
    async fn uid(&self, regarding: &Regarding) -> Result<Option<String>, PostResult> {
        let Some(request) = wire::find(regarding) else { return Ok(Some(regarding.name.to_string())) };
        let Ok(request) = request else { return Ok(None) };
        match self.exchange(request).await {
            Err(error) => Err(PostResult::Later(pause(), error.into())),
            Ok(Ok(body)) => Ok(wire::uid_in(&body)),
            Ok(Err(status)) => match status.retry_after {
                Some(wait) => Err(PostResult::Later(wait.max(PAUSE), Busy(status).into())),
                None => Ok(None),
            },
        }
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

    /// Sends a request once. A conflict is a success: the object is this process's own, and the answer to an earlier
    /// attempt was lost.
    async fn attempt(&self, request: Request<Body>) -> PostResult {
        match self.exchange(request).await {
            Err(error) => PostResult::Later(pause(), error.into()),
            Ok(Ok(_)) => PostResult::Posted,
            Ok(Err(status)) if status.code == StatusCode::CONFLICT.as_u16() => PostResult::Posted,
            Ok(Err(status)) => match status.retry_after {
                Some(wait) => PostResult::Later(wait.max(PAUSE), Busy(status).into()),
                None => PostResult::Refused(status),
            },
        }
    }

    /// Returns the body of the answer, or the status if the request was refused.
    async fn exchange(&self, mut request: Request<Body>) -> Result<Result<Bytes, ApiStatus>, kube::Error> {
        request.extensions_mut().insert(AnswerWithin(ANSWER));
        let answer = self.shared.client().send(request).await?;
        let (parts, body) = answer.into_parts();
        let body = time::timeout(ANSWER, Limited::new(body, BODY).collect()).await;
        let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
        if parts.status.is_success() {
            return Ok(Ok(body));
        }
        Ok(Err(ApiStatus::from_answer(parts.status.as_u16(), &parts.headers, &body)))
    }
}

/// Counts the attempts for one event.
#[derive(Debug, Default)]
struct Tries(u32);

impl Tries {
    /// Returns the final result, or `None` after the time until the next attempt.
    async fn after(&mut self, event: &Recorded, outcome: PostResult) -> Option<PostResult> {
        self.0 = self.0.saturating_add(1);
        let PostResult::Later(pause, error) = &outcome else { return Some(outcome) };
        if self.0 >= TRIES {
            return Some(outcome);
        }
        tracing::debug!(reason = event.note.reason, error, tries = self.0, "an event will be tried again");
        time::sleep(*pause).await;
        None
    }
}

/// Returns the time until the next attempt.
fn pause() -> Duration {
    PAUSE.mul_f64(0.9 + fastrand::f64() / 5.0)
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
