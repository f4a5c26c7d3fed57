//! When documents that were not applied are tried again. Pure: no clock.

use std::time::Duration;

use tokio::time::Instant;

use super::Synced;

/// First and longest delay of what is likely to succeed soon. Delays double with each failure.
const SOON: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// First and longest delay of what another object prevents, or a mistake in the document.
const LATER: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(600)];

/// The next try. Its time is absolute, so other events do not defer it.
#[derive(Debug, Default)]
pub(super) struct Retry {
    delay: Duration,
    at: Option<Instant>,
}

impl Retry {
    /// Returns when to try again.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Returns true if it is time to try again.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Records a result. `is_retry` if nothing had changed since the last one.
    pub(super) fn after(&mut self, result: Synced, is_retry: bool, now: Instant) {
        let before = if is_retry { self.delay } else { Duration::ZERO };
        let [first, longest] = match result {
            Synced::Done => {
                *self = Self::default();
                return;
            }
            Synced::TryAgain => SOON,
            Synced::Refused => LATER,
        };
        self.delay = before.saturating_mul(2).clamp(first, longest);
        self.at = Some(now + self.delay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_until_something_changes() {
        let (mut retry, now) = (Retry::default(), Instant::now());
        let mut delay = |result, is_retry| {
            retry.after(result, is_retry, now);
            retry.at().map(|at| (at - now).as_secs())
        };
        let delays = [1, 2, 4, 8, 16, 32, 60, 60].map(|_| delay(Synced::TryAgain, true).unwrap());
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(delay(Synced::TryAgain, false), Some(1));
        assert_eq!(delay(Synced::Done, false), None);
        let delays = [30; 6].map(|_| delay(Synced::Refused, true).unwrap());
        assert_eq!(delays, [30, 60, 120, 240, 480, 600]);
    }
}
