//! Limits the Events of one object, as client-go's spam filter does. Pure.

use std::collections::HashMap;
use std::time::Duration;

use crate::object::Key;

/// Events of one object that are recorded at once (`defaultSpamBurst` of client-go's `tools/record`).
const BURST: u32 = 25;
/// Time after which one more is. Shorter than client-go's five minutes: an endpoint that fails must show up.
const REFILL: Duration = Duration::from_secs(10);
/// Objects that are remembered before those with a full budget are dropped.
const MOST: usize = 1024;

/// The budgets of all objects.
#[derive(Debug, Default)]
pub(super) struct Budget(HashMap<Key, Spent>);

#[derive(Debug, Clone, Copy)]
struct Spent {
    left: u32,
    /// Time up to which refills are counted.
    since: Duration,
}

impl Spent {
    fn refill(&mut self, now: Duration) {
        let refills = now.saturating_sub(self.since).as_nanos() / REFILL.as_nanos().max(1);
        let refills = u32::try_from(refills).unwrap_or(u32::MAX);
        self.left = self.left.saturating_add(refills).min(BURST);
        self.since =
            if self.left == BURST { now } else { self.since.saturating_add(REFILL.saturating_mul(refills)) };
    }
}

impl Budget {
    /// Returns true if one more Event of the object may be recorded, and counts it.
    pub(super) fn allows(&mut self, key: &Key, now: Duration) -> bool {
        if self.0.len() >= MOST && !self.0.contains_key(key) {
            self.0.values_mut().for_each(|spent| spent.refill(now));
            self.0.retain(|_, spent| spent.left < BURST);
        }
        let spent = self.0.entry(key.clone()).or_insert(Spent { left: BURST, since: now });
        spent.refill(now);
        let allowed = spent.left > 0;
        spent.left = spent.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_in_ten_seconds() {
        let mut budget = Budget::default();
        let (one, other) = ("n/a".into(), "n/b".into());
        let mut count = |key, second, tries| {
            (0..tries).filter(|_: &u32| budget.allows(key, Duration::from_secs(second))).count()
        };
        assert_eq!(count(&one, 0, 100), 25);
        assert_eq!(count(&other, 0, 1), 1, "each object has its own");
        assert_eq!(count(&one, 9, 5), 0);
        assert_eq!(count(&one, 35, 5), 3);
        assert_eq!(count(&one, 40, 5), 1, "the rest of an interval counts");
        assert_eq!(count(&one, 10_000, 100), 25);
    }

    #[test]
    fn objects_with_a_full_budget_are_dropped() {
        let mut budget = Budget::default();
        for number in 0..5000_u64 {
            budget.allows(&format!("n/{number}").into(), Duration::from_secs(number));
        }
        assert!(budget.0.len() <= MOST);
    }
}
