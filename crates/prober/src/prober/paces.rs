//! How often a slice gets the same conditions again that another client has changed back. Without a limit two clients
//! that disagree would write as fast as they can. Pure.

use std::collections::HashMap;
use std::time::Duration;

use crate::object::Key;

/// Time between two such writes of a slice. It doubles with each write that follows within twice that time.
const FIRST: Duration = Duration::from_secs(1);
/// Longest time between them. Meanwhile endpoints that fail may be ready.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// Such writes after which the other client is reported.
const REPORTED: u32 = 5;
/// Time after which such a write does not belong to those before it.
const CALM: Duration = Duration::from_secs(600);
/// Slices that are remembered before those that are calm are dropped.
const MOST: usize = 1024;

/// The slices whose conditions another client has changed back.
#[derive(Debug, Default)]
pub(super) struct Paces(HashMap<Key, Pace>);

#[derive(Debug, Clone, Copy)]
struct Pace {
    /// Time of the last write that repeated another one.
    last: Duration,
    /// Time that must pass after it.
    interval: Duration,
    /// Such writes so far.
    repeats: u32,
}

impl Paces {
    /// Returns the time from which conditions may be repeated, or `None` if that is now.
    pub(super) fn held_until(&self, key: &Key, now: Duration) -> Option<Duration> {
        let pace = self.0.get(key)?;
        Some(pace.last.saturating_add(pace.interval)).filter(|at| *at > now)
    }

    /// Records that a write begins which repeats conditions. Returns true if the other client should be reported.
    pub(super) fn repeats(&mut self, key: &Key, now: Duration) -> bool {
        let is_calm = |pace: &Pace| now.saturating_sub(pace.last) >= CALM;
        if self.0.len() >= MOST && !self.0.contains_key(key) {
            self.0.retain(|_, pace| !is_calm(pace));
        }
        let new = Pace { last: now, interval: Duration::ZERO, repeats: 0 };
        let pace = self.0.entry(key.clone()).or_insert(new);
        if is_calm(pace) {
            *pace = new;
        }
        let doubled = pace.interval.saturating_mul(2);
        let is_fast = now.saturating_sub(pace.last) < doubled;
        pace.interval = if is_fast { doubled.min(LONGEST) } else { FIRST };
        pace.last = now;
        pace.repeats = pace.repeats.saturating_add(1);
        pace.repeats == REPORTED
    }

    /// Records that a write begins which has other conditions: those may be repeated at once.
    pub(super) fn changes(&mut self, key: &Key) {
        if let Some(pace) = self.0.get_mut(key) {
            pace.interval = Duration::ZERO;
        }
    }

    /// Forgets all slices.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Repeats conditions as soon as they may be. Returns the times in seconds.
    fn fight(paces: &mut Paces, key: &Key, begin: u64, writes: usize) -> Vec<u64> {
        let mut now = seconds(begin);
        let mut times = Vec::new();
        for _ in 0..writes {
            now = paces.held_until(key, now).unwrap_or(now);
            paces.repeats(key, now);
            times.push(now.as_secs());
        }
        times
    }

    #[test]
    fn intervals_double_until_a_limit_and_other_conditions_end_them() {
        let mut paces = Paces::default();
        let key: Key = "n/a".into();
        assert_eq!(fight(&mut paces, &key, 0, 9), [0, 1, 3, 7, 15, 31, 61, 91, 121]);
        paces.changes(&key);
        assert_eq!(fight(&mut paces, &key, 121, 3), [121, 122, 124]);
        assert_eq!(fight(&mut paces, &"n/b".into(), 121, 2), [121, 122], "each slice has its own");
    }

    #[test]
    fn rare_repeats_are_not_held_back_and_reported_once() {
        let mut paces = Paces::default();
        let key: Key = "n/a".into();
        let mut reports = Vec::new();
        for time in (0..100).map(|number| seconds(number * 5)) {
            assert_eq!(paces.held_until(&key, time), None);
            if paces.repeats(&key, time) {
                reports.push(time.as_secs());
            }
        }
        assert_eq!(reports, [20]);
        let later: Vec<bool> = (0..5).map(|number| paces.repeats(&key, seconds(2000 + number))).collect();
        assert_eq!(later, [false, false, false, false, true], "a new one is reported");
    }

    #[test]
    fn calm_slices_are_dropped() {
        let mut paces = Paces::default();
        for number in 0..5000_u64 {
            paces.repeats(&format!("n/{number}").into(), seconds(number));
        }
        assert!(paces.0.len() <= MOST);
    }
}
