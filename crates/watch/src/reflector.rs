//! The state of one collection: decides what to request next. Pure: no I/O; time and random numbers are arguments.
//!
//! ```text
//!            ┌── expired, garbage, gone back, no bookmarks ───┐
//!            v                                                │
//!  start ─> Stream ── end bookmark ─────────────────────────> Watch ─┐ close, break: again
//!            │ refused, no end                                ^   ^──┘ from the last version
//!            v                                                │
//!          Pages ── last page ────────────────────────────────┘
//! ```
//!
//! The rules are those of client-go's reflector (KEP-3157 for streamed lists), with these differences:
//!
//! - A paged list that breaks goes on at its current page.
//! - A streamed list without its end bookmark, at its end or soon after the first change, is replaced by pages.
//! - Pages are always read at the newest revision.
//! - A watch that worked is reopened at once, however it ended.
//! - Only for a server in trouble the delay grows beyond a few seconds (`backoff`).
//! - A watch with neither events nor bookmarks, or with decreasing versions, is replaced by a list.
//! - So is a watch that has been refused or cut for a while. If that list is, too, the watch is tried again.
//! - An empty list where objects were known needs a second one.

mod empty;
mod quiet;
mod reason;
mod refusals;
#[cfg(test)]
mod tests;
mod then;

use std::time::{Duration, Instant};

use portolan_model::object::Kind;

use self::empty::Guard;
use self::quiet::Quiet;
pub use self::reason::RestartReason;
pub(crate) use self::reason::is_refused;
use self::refusals::Refusals;
use self::then::Then;
use crate::backoff::{Backoff, Wait};
use crate::frame::InvalidBody;
use crate::list::ListMeta;
use crate::timing::Timing;

/// Items per page, as in client-go.
const PAGE_LIMIT: u32 = 500;

/// A watch that was open for less than this has not worked. If something came in it, it may still be reopened at
/// once, once per watch that worked (`Reflector::spare`).
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// How many times `Timing::unavailable_retry` a collection that the server does not have is left alone at most.
const MISSING: u32 = 10;

/// The next request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Query<'a> {
    /// A watch that begins with the whole collection (streamed list).
    Stream,
    /// A page of a list. `token` is its continue token, empty for the first page. A `limit` of `None` asks for the
    /// whole list.
    Page { limit: Option<u32>, token: &'a str },
    /// The changes after a resource version.
    Watch { from: &'a str },
}

/// What to do after a failure.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Next {
    /// Time to wait before the next request.
    pub(crate) delay: Duration,
    /// True if the collection is listed again from the start.
    pub(crate) relist: bool,
    /// True for a failure; false for the ordinary end of a watch, a refused streamed list or an unavailable
    /// collection.
    pub(crate) report: bool,
    /// True if an optional collection does not exist on the server or may not be read.
    pub(crate) unavailable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Stream,
    Pages { token: Box<str>, whole: bool },
    Watch,
}

/// The answer that is being read.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    /// When the answer became a watch; `None` while it is a list.
    watching_since: Option<Instant>,
    /// True if a complete list, an event or a bookmark came in this answer.
    gave: bool,
    /// Bookmarks after the list.
    bookmarks: u32,
    /// When a streamed list had its first event that is no object of the list.
    changing_since: Option<Instant>,
}

/// The state machine. The caller requests [`Self::query`], reports what came back, and repeats.
#[derive(Debug)]
pub(crate) struct Reflector {
    optional: bool,
    streams: bool,
    state: State,
    resource_version: String,
    open: Option<Open>,
    stuck: u8,
    backoff: Backoff,
    /// True if one more request may follow at once: a list after a lost version or missing bookmarks, or a watch after
    /// a short one. Each watch that worked sets it and the first use clears it, so that a server that cuts or refuses
    /// everything is not asked in a tight loop.
    spare: bool,
    /// Delay after the next answer that the server does not have the collection.
    missing: Duration,
    quiet: Quiet,
    refusals: Refusals,
    guard: Guard,
    timing: Timing,
}

impl Reflector {
    /// Creates a reflector. `optional`: a server without this collection is not a failure; it is asked again after
    /// `timing.unavailable_retry`. `known`: number of objects that are known already.
    pub(crate) fn new(kind: Kind, optional: bool, known: usize, timing: Timing) -> Self {
        Self {
            optional,
            streams: true,
            state: State::Stream,
            resource_version: String::new(),
            open: None,
            stuck: 0,
            backoff: Backoff::new(timing.backoff),
            spare: true,
            missing: timing.unavailable_retry,
            quiet: Quiet::new(timing.bookmark_silence),
            refusals: Refusals::new(timing.bookmark_silence),
            guard: Guard::new(kind, known, timing.empty_list_hold),
            timing,
        }
    }

    /// Makes the first request a watch from this resource version, for a caller that has the objects of this version.
    pub(crate) fn resume(&mut self, resource_version: &str) {
        self.state = State::Watch;
        self.advance(resource_version);
    }

    /// Returns the next request.
    pub(crate) fn query(&self) -> Query<'_> {
        match &self.state {
            State::Stream => Query::Stream,
            State::Pages { token, whole } => Query::Page { limit: (!whole).then_some(PAGE_LIMIT), token },
            State::Watch => Query::Watch { from: &self.resource_version },
        }
    }

    /// Records that the answer has status 200. Returns true if a list begins with it.
    pub(crate) fn opened(&mut self, now: Instant) -> bool {
        self.missing = self.timing.unavailable_retry;
        let watching_since = (self.state == State::Watch).then_some(now);
        self.open = Some(Open { watching_since, ..Open::default() });
        let begins = match &self.state {
            State::Stream => true,
            State::Pages { token, .. } => token.is_empty(),
            State::Watch => false,
        };
        if begins {
            self.guard.list_begins(now);
        }
        if watching_since.is_some() {
            self.quiet.opened(now);
            self.refusals.ended();
        }
        begins
    }

    /// Returns true while objects belong to a list that is not complete.
    pub(crate) fn listing(&self) -> bool {
        self.state != State::Watch
    }

    /// Returns how long the server may be silent from now on, and the reason to report if it is silent for longer.
    /// `length` is the time after which the server was asked to close the watch.
    pub(crate) fn silence(&mut self, length: Duration, now: Instant) -> (Duration, RestartReason) {
        if self.listing() {
            let (pause, end) = (self.timing.stream_pause, self.timing.stream_end);
            let since = self.open.and_then(|open| open.changing_since);
            let left = since.map(|since| end.saturating_sub(now.saturating_duration_since(since)));
            return match left {
                Some(left) if left < pause => (left, RestartReason::NoEnd(end)),
                _ => (pause, RestartReason::Silent(pause)),
            };
        }
        let dead = length.saturating_add(self.timing.watch_grace);
        let (patience, left) = self.quiet.left(now);
        if left < dead {
            (left, RestartReason::NoBookmarks(patience))
        } else {
            (dead, RestartReason::Silent(dead))
        }
    }

    /// Returns the number of objects in the last accepted list, with the additions and deletions since.
    pub(crate) fn known(&self) -> usize {
        self.guard.known()
    }

    /// Counts an object of a list, or one that was added in a watch.
    pub(crate) fn counted(&mut self) {
        self.guard.object(self.listing());
    }

    /// Records an event that is no object of a list: a change, a deletion or an ordinary bookmark. In a streamed list
    /// the end bookmark is due soon after it.
    pub(crate) fn changing(&mut self, now: Instant) {
        if self.listing()
            && let Some(open) = &mut self.open
        {
            open.changing_since.get_or_insert(now);
        }
    }

    /// Records that an object was added or modified at this resource version. The objects of a streamed list come
    /// in no order of versions; only its end bookmark gives the version to watch from.
    ///
    /// # Errors
    /// Fails if the version is older than the newest known one.
    pub(crate) fn changed(&mut self, resource_version: &str) -> Result<(), RestartReason> {
        if self.state == State::Watch {
            self.gave();
            if older(resource_version, &self.resource_version) {
                let known = self.resource_version.as_str().into();
                return Err(RestartReason::WentBack { known, seen: resource_version.into() });
            }
            self.advance(resource_version);
        }
        Ok(())
    }

    /// Records that an object was deleted at this resource version. Some servers send the last version of the
    /// object instead, so an older version is not an error.
    pub(crate) fn deleted(&mut self, resource_version: &str) {
        self.guard.deleted(self.listing());
        if self.state == State::Watch {
            self.gave();
            if !older(resource_version, &self.resource_version) {
                self.advance(resource_version);
            }
        }
    }

    /// Records a bookmark. Returns true if it completes a streamed list.
    ///
    /// # Errors
    /// Fails if its version is older than the newest known one, if it ends a list without naming a version, or if it
    /// completes an empty list that is not accepted yet.
    pub(crate) fn bookmark(
        &mut self,
        resource_version: &str,
        end: bool,
        now: Instant,
    ) -> Result<bool, RestartReason> {
        if !end || self.state != State::Stream {
            self.changing(now);
            if let Some(open) = &mut self.open {
                open.bookmarks = open.bookmarks.saturating_add(1);
            }
            return self.changed(resource_version).map(|()| false);
        }
        if resource_version.is_empty() {
            return Err(InvalidBody::Incomplete("metadata.resourceVersion in its end bookmark").into());
        }
        self.complete(resource_version, now)?;
        Ok(true)
    }

    /// Records the end of a page. Returns true if it was the last page.
    ///
    /// # Errors
    /// Fails if its continue token leads to the same page, or if it completes an empty list that is not accepted
    /// yet.
    pub(crate) fn page(&mut self, page: ListMeta, now: Instant) -> Result<bool, RestartReason> {
        if let State::Pages { token, .. } = &self.state
            && !page.next.is_empty()
            && *token == page.next
        {
            return Err(InvalidBody::Incomplete("progress: its continue token leads to itself").into());
        }
        if !page.next.is_empty() {
            self.state = State::Pages { token: page.next, whole: false };
            return Ok(false);
        }
        self.complete(&page.resource_version, now)?;
        // This answer is complete. The watch that follows has its own answer.
        self.open = None;
        Ok(true)
    }

    /// Records that the request ended and decides what follows. `jitter` is a random number in `0.0..1.0`.
    pub(crate) fn failed(&mut self, reason: &RestartReason, now: Instant, jitter: f64) -> Next {
        let open = self.open.take();
        self.quiet.closed(now);
        let worked = self.worked(open.as_ref(), reason, now);
        let ordinary = worked && matches!(reason, RestartReason::Closed);
        let then = self.then(reason, open.is_some(), now);
        let refused_stream =
            matches!(then, Then::Pages { .. }) && matches!(reason, RestartReason::Refused(s) if s.code < 500);
        let (wait, jitter) = match then {
            Then::Unavailable if is_not_found(reason) => (Wait::Own(self.missing()), jitter / 2.0),
            Then::Unavailable => (Wait::Own(self.timing.unavailable_retry), jitter),
            _ if refused_stream => (Wait::None, jitter),
            _ => (self.wait(reason, open.as_ref(), worked), jitter),
        };
        if matches!(reason, RestartReason::NoBookmarks(_)) {
            self.quiet.lost_patience();
        }
        let delay = self.backoff.delay(wait, jitter);
        self.go(then);
        let unavailable = then == Then::Unavailable;
        Next {
            delay,
            relist: !matches!(then, Then::Same | Then::Resume),
            report: !ordinary && !refused_stream && !unavailable,
            unavailable,
        }
    }

    /// Accepts the list at this resource version, or returns an error if it is an empty list that is not accepted
    /// yet.
    fn complete(&mut self, resource_version: &str, now: Instant) -> Result<(), RestartReason> {
        if let Some(known) = self.guard.list_ends(now) {
            return Err(RestartReason::Emptied { known, first: self.guard.is_first(now) });
        }
        if older(resource_version, &self.resource_version) {
            self.quiet.means_something();
        }
        self.quiet.listed(now);
        self.refusals.ended();
        self.state = State::Watch;
        if let Some(open) = &mut self.open {
            (open.watching_since, open.gave) = (Some(now), true);
        }
        self.advance(resource_version);
        Ok(())
    }

    /// Returns true if a watch worked: it was open for at least [`SHORT_WATCH`]. A watch that an `ERROR` event
    /// ended before anything came was refused, however long that took. A watch that worked allows one request at
    /// once and, if it was open long enough, resets the back-off.
    fn worked(&mut self, open: Option<&Open>, reason: &RestartReason, now: Instant) -> bool {
        let Some(open) = open else { return false };
        let Some(since) = open.watching_since else { return false };
        let lasted = now.saturating_duration_since(since);
        if !open.gave && matches!(reason, RestartReason::ErrorEvent(_)) || lasted < SHORT_WATCH {
            return false;
        }
        if self.backoff.worked(lasted) && matches!(reason, RestartReason::Closed) {
            let due = lasted.as_secs() / self.timing.bookmark_silence.as_secs().max(1);
            if due > 0 && u64::from(open.bookmarks) >= due {
                self.quiet.means_something();
            }
        }
        self.spare = true;
        true
    }

    /// Returns the delay after an answer that the server does not have the collection. Only another version of the server has it.
    fn missing(&mut self) -> Duration {
        let delay = self.missing;
        let longest = self.timing.unavailable_retry.saturating_mul(MISSING);
        self.missing = delay.saturating_mul(2).min(longest);
        delay
    }

    /// Returns what the next request waits for.
    fn wait(&mut self, reason: &RestartReason, open: Option<&Open>, worked: bool) -> Wait {
        let gave = open.is_some_and(|open| open.gave);
        let streaming = self.state == State::Stream;
        match reason {
            RestartReason::Emptied { .. } => Wait::Own(self.guard.recheck()),
            RestartReason::Refused(status) | RestartReason::ErrorEvent(status)
                if streaming && status.lacks_streamed_lists() =>
            {
                // Streamed lists are not tried again, so this happens once.
                Wait::None
            }
            RestartReason::Silent(_) | RestartReason::NoEnd(_) if streaming && open.is_some() => Wait::Reopen,
            RestartReason::Refused(status) | RestartReason::ErrorEvent(status) if status.is_trouble() => {
                Wait::Server(status.retry_after)
            }
            RestartReason::Refused(status) if status.is_of_gateway() => Wait::Absent,
            RestartReason::Refused(status) | RestartReason::ErrorEvent(status)
                if status.expired() || status.too_large =>
            {
                self.at_once(Wait::Server(None))
            }
            RestartReason::WentBack { .. } | RestartReason::NoBookmarks(_) => {
                self.at_once(Wait::Server(None))
            }
            RestartReason::Unreachable(_) if reason.is_absent_host() => Wait::Refused,
            RestartReason::Broken(_) if open.is_none() => Wait::Absent,
            RestartReason::Closed
            | RestartReason::Truncated
            | RestartReason::Silent(_)
            | RestartReason::Broken(_)
                if worked =>
            {
                Wait::Reopen
            }
            RestartReason::Closed | RestartReason::Truncated | RestartReason::Broken(_) if gave => {
                self.at_once(Wait::Other)
            }
            _ => Wait::Other,
        }
    }

    /// Returns [`Wait::Reopen`] the first time after a watch that worked, and `otherwise` after that.
    fn at_once(&mut self, otherwise: Wait) -> Wait {
        if std::mem::take(&mut self.spare) { Wait::Reopen } else { otherwise }
    }

    fn gave(&mut self) {
        self.quiet.heard();
        if let Some(open) = &mut self.open {
            open.gave = true;
        }
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
            Then::Resume => self.state = State::Watch,
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
}

fn is_not_found(reason: &RestartReason) -> bool {
    matches!(reason, RestartReason::Refused(status) if status.code == 404)
}

/// Returns true if one resource version is older than the other. Versions are decimal numbers (KEP-5504); any other
/// form cannot be compared.
fn older(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().ok();
    number(one).zip(number(other)).is_some_and(|(one, other)| one < other)
}
