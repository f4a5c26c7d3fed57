//! The back-off after failures.

use std::time::Duration;

/// Wait before the first retry.
const FIRST: Duration = Duration::from_millis(100);

/// The number of consecutive failures.
#[derive(Debug, Default)]
pub(super) struct Retry {
    failures: u32,
}

impl Retry {
    pub(super) const fn failed(&self) -> bool {
        self.failures > 0
    }

    pub(super) const fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and returns the wait before the next attempt: twice the previous wait, at most `longest`.
    pub(super) fn next(&mut self, longest: Duration) -> Duration {
        let wait = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = (self.failures + 1).min(16);
        wait.min(longest)
    }
}
