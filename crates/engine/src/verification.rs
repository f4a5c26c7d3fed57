//! When to compare everything because the owner wants to know that the kernel has everything.
//!
//! A comparison that writes does not show that. Another one follows after a pause, which grows: another program that
//! changes the rules all the time must not keep the thread busy.

use std::time::{Duration, Instant};

use super::retry::Retry;

/// Minimum time from a comparison that wrote to the one that verifies.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest such time, unless commits are further apart (`Timing::min_interval`).
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether a comparison without a difference is wanted, and when to compare.
#[derive(Debug, Default)]
pub(super) struct Verification {
    /// `None` if none is wanted.
    at: Option<Instant>,
    retry: Retry,
}

impl Verification {
    /// Wants a comparison without a difference. One that is wanted already keeps its time.
    pub(super) fn want(&mut self, now: Instant) {
        self.at.get_or_insert(now);
    }

    /// Ends the verification, because it succeeded or is not wanted.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    pub(super) const fn is_wanted(&self) -> bool {
        self.at.is_some()
    }

    /// Returns when to compare, or `None` if no comparison is wanted.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.at
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Sets the time of the next comparison after one that wrote. The pause grows only if that one was made to verify:
    /// others, such as repairs of drift, have their own pauses.
    pub(super) fn found_difference(&mut self, now: Instant, was_to_verify: bool, min_interval: Duration) {
        let grown = if was_to_verify { self.retry.next(LONGEST_PAUSE) } else { Duration::ZERO };
        self.at = Some(now + grown.max(SHORTEST_PAUSE).max(min_interval));
    }

    /// Ends a pause no later than a shorter `min_interval` allows.
    pub(super) fn shorten(&mut self, now: Instant, min_interval: Duration) {
        self.at = self.at.map(|at| at.min(now + LONGEST_PAUSE.max(min_interval)));
    }
}
