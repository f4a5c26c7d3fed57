//! When drift may be repaired. The first drift is repaired at once, but a program that writes to our rules all the time
//! must not keep the thread busy. Pure.

use std::time::{Duration, Instant};

/// Minimum time between the end of a repair and the next one.
const INTERVAL: Duration = Duration::from_millis(200);
/// Number of repairs in a row that have only this time between them. A restart of a firewall often flushes the ruleset twice.
const PROMPT: u32 = 3;
/// After these, the time is at least the duration of the last repair times this number: repairs of a large table take no more
/// than a fifth of the thread's time.
const PAUSE: u32 = 4;
/// Time without a repair after which the next one is the first of a row.
const QUIET: Duration = Duration::from_secs(30);

/// The repairs of one family.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// When to repair drift that came too soon after the last repair.
    at: Option<Instant>,
    /// Earliest start of the next repair.
    not_before: Option<Instant>,
    /// True from the start of a repair until a comparison succeeds.
    is_under_way: bool,
    /// Number of repairs in a row, and when the last one ended.
    row: Option<(u32, Instant)>,
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

    /// Notes that the next comparison repairs drift. Returns false if that was noted before.
    pub(super) const fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_under_way, true)
    }

    /// A comparison begins. It mends the drift that was noted before.
    pub(super) const fn compares(&mut self) {
        self.at = None;
    }

    /// A comparison has succeeded after this time. Returns true if it was a repair, also if an attempt before it failed.
    pub(super) fn succeeded(&mut self, now: Instant, duration: Duration) -> bool {
        if !std::mem::take(&mut self.is_under_way) {
            return false;
        }
        let last = self.row.filter(|&(_, ended)| now.saturating_duration_since(ended) < QUIET + duration);
        let count = last.map_or(1, |(count, _)| count.saturating_add(1));
        self.row = Some((count, now));
        let pause = if count < PROMPT { Duration::ZERO } else { duration.saturating_mul(PAUSE) };
        self.not_before = now.checked_add(INTERVAL.max(pause));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Repairs drift that is noticed at a time. Returns the time from the end of the repair to the next one.
    fn repaired(repairs: &mut Repairs, at: Instant, duration: Duration) -> Duration {
        assert!(repairs.notice(at) && repairs.due().is_none());
        repairs.begin();
        repairs.compares();
        let end = at + duration;
        assert!(repairs.succeeded(end, duration));
        assert!(!repairs.notice(end));
        repairs.due().expect("a pause").saturating_duration_since(end)
    }

    #[test]
    fn a_row_of_repairs_is_slowed_down() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut repairs = Repairs::default();
        assert_eq!(repaired(&mut repairs, start, second), INTERVAL);
        assert_eq!(repaired(&mut repairs, start + 2 * second, second), INTERVAL, "a second flush");
        assert_eq!(repaired(&mut repairs, start + 4 * second, second), 4 * second);
        assert_eq!(repaired(&mut repairs, start + 9 * second, second), 4 * second);
        assert_eq!(repaired(&mut repairs, start + 50 * second, second), INTERVAL, "a new row");
        let short = Duration::from_millis(1);
        let mut repairs = Repairs::default();
        assert!((0..5).all(|at| repaired(&mut repairs, start + at * second, short) == INTERVAL));
    }

    #[test]
    fn drift_during_a_pause_is_repaired_after_it() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut repairs = Repairs::default();
        repaired(&mut repairs, start, Duration::from_millis(10));
        assert!(!repairs.notice(after(20)) && !repairs.notice(after(30)));
        assert_eq!(repairs.due(), Some(after(210)));
        repairs.compares();
        assert_eq!(repairs.due(), None);
    }

    #[test]
    fn only_what_began_as_a_repair_ends_as_one() {
        let now = Instant::now();
        let mut repairs = Repairs::default();
        assert!(!repairs.succeeded(now, INTERVAL) && repairs.notice(now));
        repairs.begin();
        assert!(repairs.succeeded(now, INTERVAL) && !repairs.succeeded(now, INTERVAL));
    }
}
