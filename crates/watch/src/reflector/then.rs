//! Decides what to request after a failure.

use std::time::Instant;

use super::{Reflector, RestartReason, State};
use crate::status::ApiStatus;

/// After this many `ERROR` events in a row at one resource version the collection is listed again.
const STUCK: u8 = 3;

/// What to request after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// The same query.
    Same,
    /// A new list.
    Relist,
    /// A new list in pages. `for_good`: the server does not support streamed lists, so they are not tried again.
    Pages { for_good: bool },
    /// A new list in one piece, because the revision of the pages expired before the last page.
    Whole,
    /// The watch that the refused list was to replace.
    Resume,
    /// A new list after `Timing::unavailable_retry` or later.
    Unavailable,
}

impl Reflector {
    /// Returns what to request after a failure. `opened`: the answer had begun.
    pub(super) fn then(&mut self, reason: &RestartReason, opened: bool, now: Instant) -> Then {
        let stream = self.state == State::Stream;
        match reason {
            RestartReason::Refused(status) => self.then_refused(status, now),
            RestartReason::ErrorEvent(status) => self.then_error_event(status),
            RestartReason::Unreachable(_) | RestartReason::Credentials(_) => Then::Same,
            RestartReason::Truncated | RestartReason::Broken(_) if !opened => self.then_absent(now),
            RestartReason::Emptied { .. } => Then::Pages { for_good: false },
            RestartReason::Silent(_) | RestartReason::NoEnd(_) if stream && opened => {
                Then::Pages { for_good: true }
            }
            _ if stream => Then::Pages { for_good: false },
            RestartReason::InvalidBody(_)
            | RestartReason::WentBack { .. }
            | RestartReason::NoBookmarks(_) => Then::Relist,
            _ => Then::Same,
        }
    }

    /// The server, or the way to it, is away.
    fn then_absent(&mut self, now: Instant) -> Then {
        match &self.state {
            State::Watch if self.refusals.watch(now) => Then::Relist,
            State::Stream if self.refusals.has_refused_watch() => Then::Pages { for_good: false },
            // While an empty list is held, lists go on until one is accepted.
            State::Pages { token, .. }
                if token.is_empty() && !self.guard.holds() && self.refusals.list(now) =>
            {
                Then::Resume
            }
            _ => Then::Same,
        }
    }

    fn then_refused(&mut self, status: &ApiStatus, now: Instant) -> Then {
        let lost = status.expired() || status.too_large;
        let is_absent = status.code == 503 || status.is_of_gateway();
        let is_passing = matches!(status.code, 401 | 408 | 429) || is_absent;
        match &self.state {
            State::Watch if status.code == 429 => Then::Same,
            // The permission to watch may be granted again. The known objects stay.
            State::Watch if is_passing || status.code == 403 || (status.code >= 500 && !lost) => {
                if self.refusals.watch(now) { Then::Relist } else { Then::Same }
            }
            State::Stream if is_absent && self.refusals.stream() => Then::Pages { for_good: false },
            _ if is_absent && self.refusals.has_refused_watch() => self.then_absent(now),
            State::Pages { token, .. } if is_absent && token.is_empty() && self.streams => Then::Relist,
            _ if is_passing => Then::Same,
            // A server without the collection has it in no form.
            _ if self.optional && status.code == 404 => Then::Unavailable,
            State::Stream => {
                let for_good =
                    matches!(status.code, 400 | 405 | 406 | 415 | 422 | 501) || status.lacks_streamed_lists();
                Then::Pages { for_good }
            }
            State::Pages { token, .. } if !token.is_empty() && status.expired() => Then::Whole,
            State::Pages { .. } if self.optional && status.code == 403 => Then::Unavailable,
            State::Pages { .. } if status.code >= 500 && !lost => Then::Same,
            _ => Then::Relist,
        }
    }

    fn then_error_event(&mut self, status: &ApiStatus) -> Then {
        if self.state == State::Stream {
            let busy = matches!(status.code, 429 | 503);
            let for_good = status.lacks_streamed_lists();
            return if busy { Then::Same } else { Then::Pages { for_good } };
        }
        self.stuck = self.stuck.saturating_add(1);
        let relist = status.expired() || status.too_large || self.stuck >= STUCK;
        if relist { Then::Relist } else { Then::Same }
    }
}
