//! Limits how often the log repeats a message.

use std::time::{Duration, Instant};

/// The least time between two messages.
pub(crate) const INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<Instant>,
}

impl LogLimit {
    /// Returns true if the message is to be logged now.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|at| now.saturating_duration_since(at) >= INTERVAL);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}
