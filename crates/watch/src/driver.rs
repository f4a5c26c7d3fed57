//! The I/O of one reflector: sends its requests, reports the answers to it, and passes objects to the sink.

#[cfg(test)]
mod fake;
mod identity;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::poll_immediate;
use http::StatusCode;
use http_body_util::{BodyExt as _, Collected, Limited};
use kube::client::Body;
use portolan_model::Event;
use portolan_model::object::{
    DecodeError, Encoded, EndpointSlice, Kind, Node, Object, ObjectKey, Service, ServiceCidr,
};
use tokio::time;

use crate::client::CredentialError;
use crate::client::deadline::{AnswerWithin, Silent};
use crate::client::limiter::Continued;
use crate::content_type::is_protobuf;
use crate::counts::{KindCounts, count};
use crate::frame::{Frame, InvalidBody, LineSplitter, check_kind, json};
use crate::list::ListSplitter;
use crate::message::{self, MessageSplitter};
use crate::reflector::{Next, Query, Reflector, RestartReason, is_refused};
use crate::request::Collection;
use crate::status::ApiStatus;
use crate::timing::Timing;
use crate::watch_event::{ObjectError, WatchEvent};
use identity::Identity;

/// From this many events on a batch is passed to the consumer without waiting for the rest of the burst.
const BATCH: usize = 256;

/// Maximum number of pages of a list that take no token of the rate limit: half a million objects. A faulty server could
/// otherwise be asked for pages without a pause, for ever.
const CONTINUED: u32 = 1_000;

/// Limits for reading the body of an error answer: bytes and time.
const ERROR_BODY: usize = 64 << 10;
const ERROR_BODY_WAIT: Duration = Duration::from_secs(5);

/// One reflector with its connection.
pub(crate) struct Driver<'a, S> {
    client: &'a kube::Client,
    collection: Collection,
    timing: Timing,
    sink: &'a RefCell<S>,
    counts: &'a KindCounts,
    reflector: Reflector,
    /// Events that have not been passed to the consumer.
    batch: Vec<Event>,
    /// True if a list was completed, or an event after it or a bookmark came, since the last `WatchEvent::Heard`.
    heard: bool,
    /// Failures since the last answer with status 200.
    failures: u32,
    /// Pages of the current list after its first one.
    continued: u32,
}

/// Why a line of a watch was not applied.
enum LineError {
    Object(ObjectError),
    Restart(RestartReason),
}

impl From<ObjectError> for LineError {
    fn from(error: ObjectError) -> Self {
        Self::Object(error)
    }
}

impl From<DecodeError> for LineError {
    /// Skips a bad object. An object of another kind shows that the server sent a wrong answer: the request is
    /// restarted.
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Kind { kind, found } => {
                let garbage = InvalidBody::Kind { wanted: kind.name(), found };
                Self::Restart(garbage.into())
            }
            error => Self::Object(error.into()),
        }
    }
}

impl From<RestartReason> for LineError {
    fn from(reason: RestartReason) -> Self {
        Self::Restart(reason)
    }
}

impl<'a, S: FnMut(WatchEvent)> Driver<'a, S> {
    pub(crate) fn new(
        client: &'a kube::Client,
        collection: Collection,
        timing: Timing,
        sink: &'a RefCell<S>,
        counts: &'a KindCounts,
    ) -> Self {
        let reflector = Reflector::new(collection.kind, collection.optional(), counts.known(), timing);
        Self {
            client,
            collection,
            timing,
            sink,
            counts,
            reflector,
            batch: Vec::new(),
            heard: false,
            failures: 0,
            continued: 0,
        }
    }

    /// Makes the first request a watch from a resource version, if one is given.
    pub(crate) fn resuming(mut self, resource_version: Option<&str>) -> Self {
        if let Some(resource_version) = resource_version.filter(|version| !version.is_empty()) {
            self.reflector.resume(resource_version);
        }
        self
    }

    pub(crate) async fn run(mut self) -> Infallible {
        loop {
            let outcome = self.exchange().await;
            self.flush();
            let Err(reason) = outcome else { continue };
            let next = self.reflector.failed(&reason, now(), fastrand::f64());
            let delay = next.delay;
            self.report(reason, &next);
            if !delay.is_zero() {
                time::sleep(delay).await;
            }
        }
    }

    /// Sends one request and reads its whole answer. A watch always ends with an error, [`RestartReason::Closed`]
    /// at best.
    async fn exchange(&mut self) -> Result<(), RestartReason> {
        let watch_seconds =
            self.timing.watch_seconds.saturating_add(fastrand::u64(..self.timing.watch_seconds.max(1)));
        let query = self.reflector.query();
        let is_page = matches!(query, Query::Page { .. });
        let is_continued = matches!(query, Query::Page { token, .. } if !token.is_empty());
        self.continued = if is_continued { self.continued.saturating_add(1) } else { 0 };
        let mut request = self.collection.request(&query, watch_seconds).map_err(broken)?;
        request.extensions_mut().insert(AnswerWithin(self.timing.answer));
        if is_continued && self.continued <= CONTINUED {
            request.extensions_mut().insert(Continued);
        }
        let answer = self.client.send(request).await.map_err(unanswered)?;
        if answer.status() != StatusCode::OK {
            return Err(refused(answer).await);
        }
        self.failures = 0;
        if self.reflector.opened(now()) {
            count(&self.counts.lists);
            self.counts.unreadable.store(0, Ordering::Relaxed);
            self.batch.push(Event::ListStart(self.collection.kind));
        }
        let length = Duration::from_secs(watch_seconds);
        if is_page {
            self.page(answer.into_body()).await
        } else if is_protobuf(answer.headers()) {
            let mut messages = MessageSplitter::default();
            let each =
                |driver: &mut Self, chunk: &[u8]| messages.push(chunk, |message| driver.message(message));
            self.follow(answer.into_body(), length, each).await?;
            Err(if messages.is_complete() { RestartReason::Closed } else { RestartReason::Truncated })
        } else {
            let mut lines = LineSplitter::default();
            let each = |driver: &mut Self, chunk: &[u8]| lines.push(chunk, |line| driver.line(line));
            self.follow(answer.into_body(), length, each).await?;
            self.last_line(&lines)
        }
    }

    async fn page(&mut self, mut body: Body) -> Result<(), RestartReason> {
        let mut items = ListSplitter::new(self.collection.list_kind());
        while let Some(chunk) = self.chunk(&mut body, self.timing.answer).await? {
            items.push(&chunk, |item| self.item(item))?;
        }
        let page = items.finish()?.ok_or(RestartReason::Truncated)?;
        if self.reflector.page(page, now())? {
            self.complete();
        }
        Ok(())
    }

    /// Passes the chunks of a watch to `take` until the body ends.
    async fn follow(
        &mut self,
        mut body: Body,
        length: Duration,
        mut take: impl FnMut(&mut Self, &[u8]) -> Result<(), RestartReason>,
    ) -> Result<(), RestartReason> {
        loop {
            let (silence, meaning) = self.reflector.silence(length, now());
            // Data that has arrived would be read even after this time.
            if silence.is_zero() && matches!(meaning, RestartReason::NoEnd(_)) {
                return Err(meaning);
            }
            let chunk = self.chunk(&mut body, silence).await.map_err(|reason| match reason {
                RestartReason::Silent(_) => meaning,
                reason => reason,
            })?;
            let Some(chunk) = chunk else { return Ok(()) };
            take(self, &chunk)?;
        }
    }

    /// Reads what is left at the end of a watch. The last line may lack its line break. Half an object means that the answer was cut
    /// off.
    fn last_line(&mut self, lines: &LineSplitter) -> Result<(), RestartReason> {
        match json(lines.rest()) {
            Ok(()) => self.line(lines.rest())?,
            Err(_) if lines.rest().is_empty() => {}
            Err(_) => return Err(RestartReason::Truncated),
        }
        Err(RestartReason::Closed)
    }

    /// Returns the next chunk of a body. Pending events are passed to the consumer before any wait.
    async fn chunk(&mut self, body: &mut Body, silence: Duration) -> Result<Option<Bytes>, RestartReason> {
        if !self.batch.is_empty() || self.heard {
            if self.batch.len() < BATCH
                && let Some(chunk) = soon(body).await
            {
                return chunk;
            }
            self.flush();
        }
        time::timeout(silence, next_chunk(body)).await.map_err(|_| RestartReason::Silent(silence))?
    }

    fn flush(&mut self) {
        self.counts.set_known(self.reflector.known());
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.emit(WatchEvent::Objects(batch));
        }
        if std::mem::take(&mut self.heard) {
            self.emit(WatchEvent::Heard(self.collection.kind));
        }
    }

    fn complete(&mut self) {
        self.heard = true;
        self.batch.push(Event::ListEnd(self.collection.kind));
    }

    fn emit(&self, event: WatchEvent) {
        (self.sink.borrow_mut())(event);
    }

    fn item(&mut self, item: &[u8]) -> Result<(), InvalidBody> {
        self.reflector.counted();
        match self.decode(Encoded::Json(item)) {
            Ok(event) => self.batch.push(event),
            Err(DecodeError::Kind { kind, found }) => {
                return Err(InvalidBody::Kind { wanted: kind.name(), found });
            }
            Err(error) => {
                json(item)?;
                self.fault(error.into());
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8]) -> Result<(), RestartReason> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        // Try the fast path first. A line that it cannot read is parsed as JSON.
        match Frame::peel(line).map(|frame| self.frame(&frame)) {
            Some(Ok(())) => return Ok(()),
            Some(Err(LineError::Restart(reason))) => return Err(reason),
            Some(Err(LineError::Object(_))) | None => {}
        }
        let Some(frame) = Frame::parse(line)? else {
            self.fault(ObjectError::NotAnEvent);
            return Ok(());
        };
        self.whole(&frame)
    }

    fn message(&mut self, message: &[u8]) -> Result<(), RestartReason> {
        self.whole(&message::event(message)?)
    }

    /// Takes an event. An object that cannot be used is reported.
    fn whole(&mut self, frame: &Frame<'_>) -> Result<(), RestartReason> {
        match self.frame(frame) {
            Ok(()) => {}
            Err(LineError::Restart(reason)) => return Err(reason),
            Err(LineError::Object(error)) => {
                if self.reflector.listing() {
                    self.reflector.counted();
                }
                self.fault(error);
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), LineError> {
        match &*frame.event {
            "ADDED" | "MODIFIED" => {
                let event = self.decode(frame.object)?;
                self.reflector.changed(version(&event))?;
                if frame.event == "ADDED" {
                    self.reflector.counted();
                } else {
                    self.reflector.changing(now());
                }
                self.heard |= !self.reflector.listing();
                self.batch.push(event);
            }
            "DELETED" => self.deleted(frame.object)?,
            "BOOKMARK" => self.bookmark(frame.object)?,
            "ERROR" => {
                let status = ApiStatus::from_event(frame.object);
                return Err(LineError::Restart(RestartReason::ErrorEvent(status)));
            }
            other => return Err(ObjectError::UnknownType(other.into()).into()),
        }
        Ok(())
    }

    fn decode(&self, object: Encoded<'_>) -> Result<Event, DecodeError> {
        Ok(match self.collection.kind {
            Kind::Service => Event::Service(Object::<Service>::decode(object)?),
            Kind::EndpointSlice => Event::EndpointSlice(Object::<EndpointSlice>::decode(object)?),
            Kind::Node => Event::Node(Object::<Node>::decode(object)?),
            Kind::ServiceCidr => Event::ServiceCidr(Object::<ServiceCidr>::decode(object)?),
        })
    }

    fn deleted(&mut self, object: Encoded<'_>) -> Result<(), DecodeError> {
        let kind = self.collection.kind;
        let Identity { kind: said, metadata } = Identity::read(kind, object)?;
        if !said.is_empty() && said != kind.name() {
            return Err(DecodeError::Kind { kind, found: said.chars().take(64).collect() });
        }
        if metadata.name.is_empty() {
            return Err(DecodeError::Identity { kind, field: "metadata.name" });
        }
        let key = ObjectKey::new(metadata.namespace, metadata.name);
        self.reflector.deleted(&metadata.resource_version);
        self.reflector.changing(now());
        self.heard |= !self.reflector.listing();
        self.batch.push(match kind {
            Kind::Service => Event::ServiceDeleted(key),
            Kind::EndpointSlice => Event::EndpointSliceDeleted(key),
            Kind::Node => Event::NodeDeleted(key),
            Kind::ServiceCidr => Event::ServiceCidrDeleted(key),
        });
        Ok(())
    }

    fn bookmark(&mut self, object: Encoded<'_>) -> Result<(), LineError> {
        let identity = Identity::read(self.collection.kind, object).map_err(ObjectError::Bookmark)?;
        let end = identity.is_end();
        let Identity { kind, metadata } = identity;
        // A bookmark of another kind must not change the version to watch from.
        if end || !kind.is_empty() {
            check_kind(self.collection.object_kind(), &kind).map_err(RestartReason::from)?;
        }
        if self.reflector.bookmark(&metadata.resource_version, end, now())? {
            self.complete();
        }
        self.heard |= !self.reflector.listing();
        Ok(())
    }

    fn fault(&mut self, error: ObjectError) {
        count(&self.counts.faults);
        if matches!(error, ObjectError::Decode(_)) {
            count(&self.counts.unreadable);
        }
        // Keep the order: events from before the faulty object are passed on before the fault.
        self.flush();
        self.emit(WatchEvent::Fault { kind: self.collection.kind, error });
    }

    fn report(&mut self, reason: RestartReason, next: &Next) {
        let (kind, delay, relist) = (self.collection.kind, next.delay, next.relist);
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        if next.unavailable {
            tracing::info!(%kind, delay_ms, %reason, "the API server does not offer this collection; asking again later");
            self.emit(WatchEvent::Objects(vec![Event::ServiceCidrsUnavailable]));
        } else if next.report {
            count(&self.counts.restarts);
            self.failures = self.failures.saturating_add(1);
            if let RestartReason::Emptied { known, first: true } = reason {
                self.emit(WatchEvent::EmptyListHeld { kind, known });
            }
            // An absent server is asked every second. Only the first, second, fourth, eighth... failure is logged
            // as a warning.
            if self.failures.is_power_of_two() {
                tracing::warn!(%kind, delay_ms, relist, failures = self.failures, %reason, "watch interrupted");
            } else {
                tracing::debug!(%kind, delay_ms, relist, failures = self.failures, %reason, "watch interrupted");
            }
            let failures = self.failures;
            self.emit(WatchEvent::Restarted { kind, reason, relist, delay, failures });
        } else {
            tracing::debug!(%kind, relist, %reason, "watch ended");
        }
    }
}

/// Returns the resource version of an event's object, or an empty string if the event has none.
fn version(event: &Event) -> &str {
    match event {
        Event::Service(object) => &object.resource_version,
        Event::EndpointSlice(object) => &object.resource_version,
        Event::Node(object) => &object.resource_version,
        Event::ServiceCidr(object) => &object.resource_version,
        _ => "",
    }
}

async fn next_chunk(body: &mut Body) -> Result<Option<Bytes>, RestartReason> {
    loop {
        match body.frame().await.transpose().map_err(broken)? {
            None => return Ok(None),
            Some(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Returns a chunk that is available already or after the connection's task has run once.
async fn soon(body: &mut Body) -> Option<Result<Option<Bytes>, RestartReason>> {
    if let Some(chunk) = poll_immediate(next_chunk(body)).await {
        return Some(chunk);
    }
    tokio::task::yield_now().await;
    poll_immediate(next_chunk(body)).await
}

async fn refused(answer: http::Response<Body>) -> RestartReason {
    let (parts, body) = answer.into_parts();
    let body = time::timeout(ERROR_BODY_WAIT, Limited::new(body, ERROR_BODY).collect()).await;
    let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
    RestartReason::Refused(ApiStatus::from_answer(parts.status.as_u16(), &parts.headers, &body))
}

/// Classifies the error of a request that got no answer.
fn unanswered(error: kube::Error) -> RestartReason {
    let error = match error {
        kube::Error::Service(cause) => cause,
        error => error.into(),
    };
    if let Some(Silent(wait)) = error.downcast_ref() {
        RestartReason::Silent(*wait)
    } else if is_connect(&*error) || is_refused(&*error) {
        RestartReason::Unreachable(error)
    } else if is_credential(&*error) {
        RestartReason::Credentials(error)
    } else {
        broken(error)
    }
}

/// Returns true if no connection could be made. hyper reports this in one of the sources of kube's error.
fn is_connect(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(hyper_util::client::legacy::Error::is_connect)
        || error.source().is_some_and(is_connect)
}

fn is_credential(error: &(dyn Error + 'static)) -> bool {
    error.is::<CredentialError>() || error.source().is_some_and(is_credential)
}

fn broken(error: impl Into<Box<dyn Error + Send + Sync>>) -> RestartReason {
    RestartReason::Broken(error.into())
}

/// Returns the time of tokio's clock, which tests can pause.
fn now() -> Instant {
    time::Instant::now().into_std()
}
