//! How long to wait before what failed is tried again.

use std::time::Duration;

/// Wait before the first retry.
const FIRST: Duration = Duration::from_millis(100);

/// Failures in a row.
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

    /// After one more failure: twice as long as after the one before, but no longer than the longest.
    pub(super) fn next(&mut self, longest: Duration) -> Duration {
        let wait = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = (self.failures + 1).min(16);
        wait.min(longest)
    }
}
