//! One collection's state: what to ask the API server next. Pure: no I/O, no clock, no randomness of its own.
//!
//! ```text
//!            ┌─────────────── expired, garbage ───────────────┐
//!            v                                                │
//!  start ─> Stream ── end bookmark ─────────────────────────> Watch ─┐ close, break: again
//!            │ refused, no end                                ^   ^──┘ from the last version
//!            v                                                │
//!          Pages ── last page ────────────────────────────────┘
//! ```
//!
//! The rules are those of client-go's reflector (KEP-3157 for streamed lists), with four differences: a
//! list that breaks goes on at its page, a streamed list that ends without its end mark is replaced by
//! pages, pages are always read at the newest revision, and a server that cannot be reached is tried more often.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::time::{Duration, Instant};

use crate::backoff::{Backoff, BackoffLimits};
use crate::frame::Garbage;
use crate::list::ListMeta;
use crate::status::ApiStatus;

/// Items a page, as client-go asks for.
const PAGE_LIMIT: u32 = 500;

/// A watch that ends sooner than this is an ill server's; the next attempt is backed off.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// So many `ERROR` events in a row from one resource version and the collection is read anew.
const STUCK: u8 = 3;

/// Why a request to the API server did not go to its ordinary end.
#[derive(Debug, thiserror::Error)]
pub enum RestartReason {
    /// An answer other than 200.
    #[error("the API server answered {0}")]
    Refused(ApiStatus),
    /// An `ERROR` event in a watch.
    #[error("the API server ended the watch with {0}")]
    ErrorEvent(ApiStatus),
    /// A watch was closed at once, or a streamed list before its end mark.
    #[error("the API server closed the watch early")]
    Closed,
    /// The body ended in the middle of an object.
    #[error("the answer ended in the middle of an object")]
    Truncated,
    /// No connection could be made.
    #[error("no connection: {}", causes(&**.0))]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
    /// There is no token, or an exec plug-in failed: nothing was sent.
    #[error("no credentials: {}", causes(&**.0))]
    Credentials(#[source] Box<dyn Error + Send + Sync>),
    /// The connection broke, or what came over it was no HTTP.
    #[error("the connection failed: {}", causes(&**.0))]
    Broken(#[source] Box<dyn Error + Send + Sync>),
    /// Nothing came for this long.
    #[error("the API server was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// The answer is not what an API server sends.
    #[error("{0}")]
    Garbage(#[from] Garbage),
}

/// What to ask the API server for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Query<'a> {
    /// A watch that begins with the whole collection.
    Stream,
    /// A page of a list, the first if `token` is empty, the whole list without `limit`.
    Page { limit: Option<u32>, token: &'a str },
    /// Changes after a resource version.
    Watch { from: &'a str },
}

/// What follows a failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// How long to wait before the next query.
    pub(crate) delay: Duration,
    /// Whether the collection is read anew.
    pub(crate) relist: bool,
    /// Whether this was a failure, and not the ordinary end of a watch or a refused streamed list.
    pub(crate) report: bool,
    /// The server has no such collection, or lets us not see it, and we can do without.
    pub(crate) unavailable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Stream,
    Pages { token: Box<str>, whole: bool },
    Watch,
}

/// Where a failure leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// The same query again.
    Same,
    /// From the start.
    Relist,
    /// From the start, in pages; for good if the server does not know streamed lists.
    Pages { for_good: bool },
    /// From the start, in one piece: the pages' revision was gone before the last page.
    Whole,
    /// From the start, much later.
    Unavailable,
}

/// The state machine. Call [`Self::query`], tell what came back, repeat.
#[derive(Debug)]
pub(crate) struct Reflector {
    optional: bool,
    streams: bool,
    state: State,
    resource_version: String,
    opened_at: Option<Instant>,
    stuck: u8,
    backoff: Backoff,
    unavailable_retry: Duration,
}

impl Reflector {
    /// `optional`: a server without this collection is no failure, it is asked again after
    /// `unavailable_retry`.
    pub(crate) fn new(optional: bool, limits: BackoffLimits, unavailable_retry: Duration) -> Self {
        Self {
            optional,
            streams: true,
            state: State::Stream,
            resource_version: String::new(),
            opened_at: None,
            stuck: 0,
            backoff: Backoff::new(limits),
            unavailable_retry,
        }
    }

    /// The next request.
    pub(crate) fn query(&self) -> Query<'_> {
        match &self.state {
            State::Stream => Query::Stream,
            State::Pages { token, whole } => Query::Page { limit: (!whole).then_some(PAGE_LIMIT), token },
            State::Watch => Query::Watch { from: &self.resource_version },
        }
    }

    /// The answer is 200. True if a list begins with it.
    pub(crate) fn opened(&mut self, now: Instant) -> bool {
        self.opened_at = Some(now);
        self.backoff.healthy(now);
        match &self.state {
            State::Stream => true,
            State::Pages { token, .. } => token.is_empty(),
            State::Watch => false,
        }
    }

    /// Whether the objects that come now belong to a list that is not complete.
    pub(crate) fn listing(&self) -> bool {
        self.state != State::Watch
    }

    /// An object was added, modified or deleted at this version. The objects of a streamed list come in no
    /// order of versions, so that only its end mark says where to go on.
    pub(crate) fn changed(&mut self, resource_version: &str) {
        if self.state == State::Watch {
            self.advance(resource_version);
        }
    }

    /// A bookmark came. True if it completes a streamed list.
    pub(crate) fn bookmark(&mut self, resource_version: &str, end: bool) -> Result<bool, Garbage> {
        let completes = end && self.state == State::Stream;
        if completes {
            if resource_version.is_empty() {
                return Err(Garbage::Incomplete("metadata.resourceVersion in its end bookmark"));
            }
            self.state = State::Watch;
        }
        self.changed(resource_version);
        Ok(completes)
    }

    /// A page came to its end. True if it was the last.
    pub(crate) fn page(&mut self, page: ListMeta) -> Result<bool, Garbage> {
        if let State::Pages { token, .. } = &self.state
            && !page.next.is_empty()
            && *token == page.next
        {
            return Err(Garbage::Incomplete("progress: its continue token leads to itself"));
        }
        if page.next.is_empty() {
            self.state = State::Watch;
            self.changed(&page.resource_version);
            return Ok(true);
        }
        self.state = State::Pages { token: page.next, whole: false };
        Ok(false)
    }

    /// The request came to another end. `jitter` is a random number in `0.0..1.0`.
    pub(crate) fn failed(&mut self, reason: &RestartReason, now: Instant, jitter: f64) -> Next {
        let opened_at = self.opened_at.take();
        let short = opened_at.is_none_or(|at| now.saturating_duration_since(at) < SHORT_WATCH);
        if matches!(reason, RestartReason::Closed) && self.state == State::Watch && !short {
            return Next { delay: Duration::ZERO, relist: false, report: false, unavailable: false };
        }
        let then = self.then(reason, opened_at.is_some());
        let relist = then != Then::Same;
        let unavailable = then == Then::Unavailable;
        let refused_stream =
            matches!(then, Then::Pages { .. }) && matches!(reason, RestartReason::Refused(s) if s.code < 500);
        let delay = match then {
            Then::Unavailable => self.unavailable_retry.mul_f64(1.0 + jitter.clamp(0.0, 1.0)),
            _ if refused_stream => Duration::ZERO,
            _ if matches!(reason, RestartReason::Unreachable(_)) => self.backoff.unreachable(now, jitter),
            _ => self.backoff.failed(now, jitter).max(retry_after(reason).unwrap_or_default()),
        };
        self.go(then);
        Next { delay, relist, report: !refused_stream && !unavailable, unavailable }
    }

    fn advance(&mut self, resource_version: &str) {
        if !resource_version.is_empty() {
            self.stuck = 0;
            self.resource_version.clear();
            self.resource_version.push_str(resource_version);
        }
    }

    fn go(&mut self, then: Then) {
        let pages = |whole| State::Pages { token: Box::default(), whole };
        match then {
            Then::Same => return,
            Then::Pages { for_good } => {
                self.streams &= !for_good;
                self.state = pages(false);
            }
            Then::Whole => self.state = pages(true),
            Then::Relist | Then::Unavailable => {
                self.state = if self.streams { State::Stream } else { pages(false) };
            }
        }
        self.stuck = 0;
    }

    fn then(&mut self, reason: &RestartReason, opened: bool) -> Then {
        let stream = self.state == State::Stream;
        match reason {
            RestartReason::Refused(status) => self.then_refused(status),
            RestartReason::ErrorEvent(status) => self.then_error_event(status),
            RestartReason::Unreachable(_) | RestartReason::Credentials(_) => Then::Same,
            RestartReason::Truncated | RestartReason::Broken(_) if stream && !opened => Then::Same,
            _ if stream => Then::Pages { for_good: false },
            RestartReason::Garbage(_) => Then::Relist,
            _ => Then::Same,
        }
    }

    fn then_refused(&self, status: &ApiStatus) -> Then {
        let lost = status.expired() || status.too_large;
        let server_fault = status.code >= 500;
        match &self.state {
            _ if matches!(status.code, 401 | 408 | 429 | 503) => Then::Same,
            State::Stream => {
                let for_good = matches!(status.code, 400 | 405 | 406 | 415 | 422 | 501);
                Then::Pages { for_good }
            }
            State::Pages { token, .. } if !token.is_empty() && status.expired() => Then::Whole,
            _ if self.optional && status.code == 404 => Then::Unavailable,
            State::Pages { .. } if self.optional && status.code == 403 => Then::Unavailable,
            // A revoked permission to watch may come back; what is known stays.
            State::Watch if status.code == 403 => Then::Same,
            _ if server_fault && !lost => Then::Same,
            _ => Then::Relist,
        }
    }

    fn then_error_event(&mut self, status: &ApiStatus) -> Then {
        if self.state == State::Stream {
            let busy = matches!(status.code, 429 | 503);
            return if busy { Then::Same } else { Then::Pages { for_good: false } };
        }
        self.stuck = self.stuck.saturating_add(1);
        let relist = status.expired() || status.too_large || self.stuck >= STUCK;
        if relist { Then::Relist } else { Then::Same }
    }
}

/// An error with what lies below it: hyper's say little without. What an error repeats of its cause comes once.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

fn retry_after(reason: &RestartReason) -> Option<Duration> {
    match reason {
        RestartReason::Refused(status) | RestartReason::ErrorEvent(status) => status.retry_after,
        _ => None,
    }
}
