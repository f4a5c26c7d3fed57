//! When drift may be repaired. The first drift is repaired at once, but a program that writes to our rules all the time
//! must not keep the thread busy. Pure.

use std::time::{Duration, Instant};

/// Minimum time between the end of a repair and the next one.
const INTERVAL: Duration = Duration::from_millis(200);
/// That time is at least the duration of the last repair times this number: repairs of a large table take no more than a
/// fifth of the thread's time.
const PAUSE: u32 = 4;

/// The repairs of one family.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// When to repair drift that came too soon after the last repair.
    at: Option<Instant>,
    /// Earliest start of the next repair.
    not_before: Option<Instant>,
}

impl Repairs {
    /// Notes drift. Returns true if it may be repaired now; if false, [`Self::due`] says when.
    pub(super) fn notice(&mut self, now: Instant) -> bool {
        self.at = self.not_before.filter(|&at| at > now);
        self.at.is_none()
    }

    /// Returns when to repair drift that was noted before.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.at
    }

    /// A comparison begins. It mends the drift that was noted before.
    pub(super) const fn compares(&mut self) {
        self.at = None;
    }

    /// A repair has ended after this time.
    pub(super) fn ended(&mut self, now: Instant, duration: Duration) {
        self.not_before = now.checked_add(INTERVAL.max(duration.saturating_mul(PAUSE)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_repairs_grows_with_the_last_one() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut repairs = Repairs::default();
        assert!(repairs.notice(start) && repairs.due().is_none());
        repairs.ended(after(10), Duration::from_millis(10));
        assert!(!repairs.notice(after(20)) && !repairs.notice(after(30)));
        assert_eq!(repairs.due(), Some(after(210)));
        assert!(repairs.notice(after(210)) && repairs.due().is_none());
        repairs.ended(after(500), Duration::from_millis(290));
        assert!(!repairs.notice(after(501)));
        assert_eq!(repairs.due(), Some(after(500 + 4 * 290)));
        repairs.compares();
        assert_eq!(repairs.due(), None);
    }
}
