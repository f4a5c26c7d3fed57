//! How long a watch is without an event or a bookmark: a server that has lost its history may wait for a version that
//! will not come.
//!
//! The time runs while a watch is open, over all answers that it takes: a middlebox that cuts each before a bookmark
//! is due does not make it start anew. It does not run while the server is away, so that an outage does not make all
//! nodes list when it is over.

use std::time::{Duration, Instant};

/// A list that shows that nothing was lost doubles the patience, to so many times the first. With the first of 90 s
/// every collection is heard of every 12 minutes, even where no bookmark ever comes: less than the 15 minutes after
/// which an alert says that a watch is stale (`deploy/monitoring/alerts.yaml`).
const MOST: u32 = 8;

/// A watch's silence.
#[derive(Debug)]
pub(super) struct Quiet {
    first: Duration,
    patience: Duration,
    /// How long earlier answers were silent, since the last event, bookmark or list.
    before: Duration,
    /// Since when the answer that is open is silent.
    since: Option<Instant>,
    /// Whether something came after `since`.
    news: bool,
}

impl Quiet {
    pub(super) fn new(first: Duration) -> Self {
        Self { first, patience: first, before: Duration::ZERO, since: None, news: false }
    }

    /// A watch is open from now on.
    pub(super) fn opened(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// An event or a bookmark came. Its time is that of the next question, so that reading many asks no clock.
    pub(super) fn heard(&mut self) {
        self.news = true;
    }

    /// A list is complete.
    pub(super) fn listed(&mut self, now: Instant) {
        (self.before, self.since, self.news) = (Duration::ZERO, Some(now), false);
    }

    /// The answer is over.
    pub(super) fn closed(&mut self, now: Instant) {
        self.before = self.lasted(now);
        self.since = None;
    }

    /// The patience, and how much of it is left.
    pub(super) fn left(&mut self, now: Instant) -> (Duration, Duration) {
        (self.patience, self.patience.saturating_sub(self.lasted(now)))
    }

    /// The patience is over, and a list follows. In vain, as long as that does not show the opposite.
    pub(super) fn lost_patience(&mut self) {
        let most = self.first.saturating_mul(MOST);
        self.patience = self.patience.saturating_mul(2).min(most);
    }

    /// This server's silence means something.
    pub(super) fn means_something(&mut self) {
        self.patience = self.first;
    }

    fn lasted(&mut self, now: Instant) -> Duration {
        if std::mem::take(&mut self.news) {
            self.before = Duration::ZERO;
            self.since = self.since.map(|_| now);
        }
        let open = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.before.saturating_add(open)
    }
}
