//! Measures how long a watch goes without an event or a bookmark. A server that has lost its history may wait for a
//! version that never comes.
//!
//! The time runs while a watch is open and is summed over all its answers: a middlebox that cuts each watch before
//! a bookmark is due does not reset it. It stops while the server is away, so that an outage does not make all
//! nodes list when it ends.

use std::time::{Duration, Instant};

/// Each list that shows that nothing was lost doubles the patience, up to this multiple of its first value. With a
/// first value of at most 105 s, something is received of every collection at least every 14 minutes even if no bookmark ever comes.
/// This is below the 15 minutes after which an alert reports a stale watch (`deploy/monitoring/alerts.yaml`).
const MOST: u32 = 8;

/// The silence of a watch and the limit for it.
#[derive(Debug)]
pub(super) struct Quiet {
    first: Duration,
    patience: Duration,
    /// Silence in earlier answers since the last event, bookmark or list.
    before: Duration,
    /// Start of the silence in the open answer; `None` while no watch is open.
    since: Option<Instant>,
    /// True if an event or a bookmark came after `since`.
    received: bool,
}

impl Quiet {
    pub(super) fn new(first: Duration) -> Self {
        Self { first, patience: first, before: Duration::ZERO, since: None, received: false }
    }

    /// Records that a watch is open.
    pub(super) fn opened(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Records an event or a bookmark. The clock is read at the next measurement, not here, so that many events are
    /// cheap.
    pub(super) fn heard(&mut self) {
        self.received = true;
    }

    /// Records that a list is complete.
    pub(super) fn listed(&mut self, now: Instant) {
        (self.before, self.since, self.received) = (Duration::ZERO, Some(now), false);
    }

    /// Records that the answer ended.
    pub(super) fn closed(&mut self, now: Instant) {
        self.before = self.lasted(now);
        self.since = None;
    }

    /// Returns the patience, and how much of it is left.
    pub(super) fn left(&mut self, now: Instant) -> (Duration, Duration) {
        (self.patience, self.patience.saturating_sub(self.lasted(now)))
    }

    /// Doubles the patience because it ran out and a list follows. [`Self::means_something`] resets it if that list
    /// shows that the server had lost its history.
    pub(super) fn lost_patience(&mut self) {
        let most = self.first.saturating_mul(MOST);
        self.patience = self.patience.saturating_mul(2).min(most);
    }

    /// Resets the patience: this server's silence is a sign that it has lost its history.
    pub(super) fn means_something(&mut self) {
        self.patience = self.first;
    }

    fn lasted(&mut self, now: Instant) -> Duration {
        if std::mem::take(&mut self.received) {
            self.before = Duration::ZERO;
            self.since = self.since.map(|_| now);
        }
        let open = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.before.saturating_add(open)
    }
}
