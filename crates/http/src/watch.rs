//! Watches: the requested initial state, then every change until the watch ends.
//!
//! A watch is a cursor into the store's history. A write only wakes the watch, which then reads on from its cursor.
//! So a slow client takes no memory and never delays a writer. It falls behind until the history does not reach back
//! to its cursor. Then it gets 410 Expired, and the watch ends.

mod frames;
mod shared;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration, vec};

use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use portolan_api::{Api, ApiError, FieldError, Selector};
use portolan_store::{Change, Scope, Store, StoredObject};
use tokio::{sync::watch, time::Instant};

use self::frames::{EventKind, Frames, Framing};
pub(super) use self::shared::SharedFrames;
use super::{
    Answer,
    accept::Encoding,
    list::{Freshness, expired, fresh_enough},
    present::Presenter,
    query::Query,
    route::Collection,
    selector,
};

/// Maximum number of changes that are read from the store at once.
const BATCH: usize = 64;
/// Most seconds that a watch lasts. A client that may no longer watch gets events until then.
const MOST_SECONDS: u64 = 3600;
/// Interval of bookmarks (upstream: about a minute).
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// How long a watch waits while the store has not reached its revision. Upstream waits until the end of the watch. A
/// client whose revision is from another history, such as one from before a backup was restored, would then miss
/// changes without notice.
const FUTURE_WAIT: Duration = Duration::from_secs(30);
/// The last bookmark is sent this long before the end.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// Answers a watch request. `name` restricts it to one object.
pub(super) fn answer(
    api: &Arc<Api>,
    stopping: watch::Receiver<bool>,
    presenter: Presenter,
    shared: Arc<SharedFrames>,
    query: &Query,
    collection: &Collection,
    name: Option<&str>,
) -> Result<Answer, ApiError> {
    let selector = selector(query, collection)?;
    let selector = if let Some(name) = name { selector.with_name(name) } else { selector };
    let start = Start::parse(query)?;
    let watch = Watch {
        store: Arc::clone(api.store()),
        signal: api.store().subscribe(collection.resource.stored()),
        collection: collection.clone(),
        selector,
        framing: Framing::new(presenter, shared),
        stopping,
        start: Some(start),
        initial: Vec::new().into_iter(),
        end_bookmark: false,
        cursor: 0,
        ahead: None,
        bookmarks: query.flag("allowWatchBookmarks")?,
        timing: Timing::new(query.number("timeoutSeconds")?),
        ended: false,
    };
    let media_type = match watch.framing.encoding() {
        Encoding::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        Encoding::Json | Encoding::Yaml => "application/json",
    };
    let frames = stream::unfold(watch, |mut watch| async {
        let frame = watch.next().await?;
        Some((Ok(Frame::data(frame)), watch))
    });
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    Ok(answer)
}

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// With the state as ADDED events, at least as new as required, followed by changes.
    State(Freshness),
    /// With the changes after a revision.
    After(u64),
    /// With the changes after the request.
    Now,
}

#[derive(Debug, Clone, Copy)]
struct Timing {
    end: Instant,
    next_bookmark: Instant,
}

struct Watch {
    store: Arc<dyn Store>,
    signal: watch::Receiver<u64>,
    collection: Collection,
    selector: Selector,
    framing: Framing,
    stopping: watch::Receiver<bool>,
    start: Option<Start>,
    initial: vec::IntoIter<Arc<StoredObject>>,
    /// True until the bookmark after the initial events is sent, if there is to be one.
    end_bookmark: bool,
    /// Every change up to this revision has been processed.
    cursor: u64,
    /// Set if the cursor was beyond the store's revision: until when the watch waits before it ends. The store did not
    /// assign this revision, even if it reaches it later.
    ahead: Option<Instant>,
    bookmarks: bool,
    timing: Timing,
    ended: bool,
}

enum Wake {
    Changed,
    Timer,
    End,
}

impl Start {
    fn parse(query: &Query) -> Result<Self, ApiError> {
        let given = query.number("resourceVersion")?;
        let revision = given.unwrap_or(0);
        let matching = query.get("resourceVersionMatch").filter(|text| !text.is_empty());
        match (query.optional_flag("sendInitialEvents")?, matching) {
            (None, Some(_)) => {
                Err(refused("resourceVersionMatch", "is forbidden for a watch without sendInitialEvents"))
            }
            (Some(_), matching) if matching != Some("NotOlderThan") => Err(refused(
                "resourceVersionMatch",
                "sendInitialEvents requires resourceVersionMatch NotOlderThan",
            )),
            (Some(true), _) => Ok(Self::State(Freshness::of(given))),
            (None, None) if revision == 0 => Ok(Self::State(Freshness::Any)),
            (Some(false), _) if revision == 0 => Ok(Self::Now),
            _ => Ok(Self::After(revision)),
        }
    }
}

impl Watch {
    /// Returns the next bytes for the client; `None` at the end of the watch.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(start) = self.start.take()
            && let Err(error) = self.begin(start).await
        {
            return Some(self.end_with(&error));
        }
        loop {
            if self.ended {
                return None;
            }
            match self.due_frames() {
                Ok(Some(frames)) => return Some(frames),
                Ok(None) => {}
                Err(error) => return Some(self.end_with(&error)),
            }
            match self.wake().await {
                Wake::Changed => {}
                Wake::Timer if self.timing.end <= Instant::now() && !self.owes_bookmark() => return None,
                // The loop ends the watch.
                Wake::Timer if self.ahead.is_some() => {}
                Wake::Timer => {
                    self.timing.schedule_bookmark();
                    let mut frames = Frames::default();
                    let made = self.framing.push_bookmark(&mut frames, self.cursor, false);
                    return made.map_or_else(|error| Some(self.end_with(&error)), |()| frames.finish());
                }
                Wake::End => return None,
            }
        }
    }

    async fn begin(&mut self, start: Start) -> Result<(), ApiError> {
        let resource = self.collection.resource.stored();
        match start {
            Start::Now => {
                fresh_enough(&*self.store, resource, Freshness::Latest).await?;
                self.cursor = self.store.revision();
            }
            Start::After(revision) => {
                fresh_enough(&*self.store, resource, Freshness::Given(revision)).await?;
                self.cursor = revision;
                self.ahead = (self.store.revision() < revision).then(|| Instant::now() + FUTURE_WAIT);
            }
            Start::State(freshness) => {
                fresh_enough(&*self.store, resource, freshness).await?;
                let key = self.selector.key(self.collection.resource, self.collection.namespace.as_deref());
                let scope = Scope { key: key.as_deref(), ..self.collection.scope() };
                let snapshot = self.store.snapshot(resource, &scope, None).map_err(expired)?;
                self.cursor = snapshot.revision;
                self.initial = snapshot.objects.into_iter();
                self.end_bookmark = self.bookmarks;
            }
        }
        Ok(())
    }

    /// Returns the frames that are ready to be sent.
    fn due_frames(&mut self) -> Result<Option<Bytes>, ApiError> {
        match self.initial_frames()? {
            Some(frames) => Ok(Some(frames)),
            None => self.changed_frames(),
        }
    }

    fn initial_frames(&mut self) -> Result<Option<Bytes>, ApiError> {
        let mut frames = Frames::default();
        while !frames.is_full()
            && let Some(object) = self.initial.next()
        {
            if self.selector.matches(&object) {
                self.framing.push_stored(&mut frames, EventKind::Added, &object)?;
            }
        }
        let all_sent = self.initial.as_slice().is_empty();
        if all_sent && std::mem::take(&mut self.end_bookmark) {
            self.framing.push_bookmark(&mut frames, self.cursor, true)?;
        }
        Ok(frames.finish())
    }

    /// Returns the frames of the changes after the cursor. A cursor that was ahead of the store has none: when the store
    /// reaches it, the changes up to it are others than those that the client has seen.
    fn changed_frames(&mut self) -> Result<Option<Bytes>, ApiError> {
        if let Some(end) = self.ahead {
            let reached = self.store.revision();
            if reached < self.cursor && Instant::now() < end {
                return Ok(None);
            }
            return Err(ApiError::Expired { requested: self.cursor, oldest: reached, continue_token: None });
        }
        let mut frames = Frames::default();
        while !frames.is_full() {
            let changes =
                self.store.changes(self.collection.resource.stored(), self.cursor, BATCH).map_err(expired)?;
            for change in &changes.changes {
                if frames.is_full() {
                    return Ok(frames.finish());
                }
                self.push_change(&mut frames, change)?;
                self.cursor = change.revision;
            }
            self.cursor = changes.through;
            if changes.changes.len() < BATCH {
                break;
            }
        }
        Ok(frames.finish())
    }

    /// Adds the event of a change as this client sees it: its selector and namespace decide which objects exist for
    /// it.
    fn push_change(&mut self, frames: &mut Frames, change: &Change) -> Result<(), ApiError> {
        let (namespace, selector) = (self.collection.namespace.as_deref(), &self.selector);
        let seen = |object: &&Arc<StoredObject>| {
            namespace.is_none_or(|namespace| namespace == object.namespace()) && selector.matches(object)
        };
        let (kind, body) = match (change.old.as_ref().filter(seen), change.new.as_ref().filter(seen)) {
            (None, Some(new)) => (EventKind::Added, new.body().clone()),
            (Some(_), Some(new)) => (EventKind::Modified, new.body().clone()),
            (Some(old), None) => (EventKind::Deleted, old.body_at(change.revision)),
            (None, None) => return Ok(()),
        };
        self.framing.push_change(frames, kind, change.revision, &body)
    }

    /// Returns true if a bookmark comes before the end. A task that runs late still sends it: a client that gets none
    /// resumes at an older revision.
    fn owes_bookmark(&self) -> bool {
        self.bookmarks && self.ahead.is_none() && self.timing.next_bookmark < self.timing.end
    }

    async fn wake(&mut self) -> Wake {
        let next_bookmark = self.bookmarks.then_some(self.timing.next_bookmark);
        let timer = self.ahead.or(next_bookmark).map_or(self.timing.end, |next| next.min(self.timing.end));
        tokio::select! {
            changed = self.signal.changed() => if changed.is_ok() { Wake::Changed } else { Wake::End },
            () = tokio::time::sleep_until(timer) => Wake::Timer,
            _ = self.stopping.wait_for(|stopping| *stopping) => Wake::End,
        }
    }

    fn end_with(&mut self, error: &ApiError) -> Bytes {
        self.ended = true;
        tracing::debug!(resource = self.collection.resource.info().plural, %error, "watch ended");
        self.framing.error(error)
    }
}

impl Timing {
    fn new(timeout_seconds: Option<u64>) -> Self {
        // Random, so that clients do not all reconnect at once.
        let seconds = timeout_seconds
            .filter(|seconds| *seconds > 0)
            .unwrap_or_else(|| fastrand::u64(MOST_SECONDS / 2..MOST_SECONDS));
        let now = Instant::now();
        let end = now + Duration::from_secs(seconds.min(MOST_SECONDS));
        let mut timing = Self { end, next_bookmark: now };
        timing.schedule_bookmark();
        timing
    }

    /// Schedules the next bookmark in a minute, or just before the end if that is sooner and not yet past.
    fn schedule_bookmark(&mut self) {
        let now = Instant::now();
        let regular = now + BOOKMARK_INTERVAL;
        let last = self.end.checked_sub(LAST_BOOKMARK).filter(|last| *last > now);
        self.next_bookmark = last.map_or(self.end, |last| last.min(regular));
    }
}

fn refused(field: &str, why: &str) -> ApiError {
    ApiError::InvalidOptions { what: "ListOptions", error: FieldError::forbidden(field, why) }
}
