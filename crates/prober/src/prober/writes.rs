//! Which slice is written next. A slice has one write under way; changes meanwhile become the next one. Pure.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::error::WriteError;
use crate::object::Key;

/// Most writes under way at once, as for the server's controllers.
const AT_ONCE: usize = 16;
/// Delay after the first conflict. It doubles; the newest version of the slice ends it.
const AFTER_CONFLICT: Duration = Duration::from_millis(50);
const LONGEST_AFTER_CONFLICT: Duration = Duration::from_secs(5);
/// Delay after the first failure. It doubles.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
const LONGEST_AFTER_FAILURE: Duration = Duration::from_secs(30);

/// The queue of writes.
#[derive(Debug, Default)]
pub(super) struct Writes {
    queue: BTreeSet<(Duration, Key)>,
    slices: HashMap<Key, Entry>,
    under_way: usize,
}

/// A slice that is queued or being written.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Time in the queue. `None` while it is written.
    at: Option<Duration>,
    /// True if it changed while it was being written.
    again: bool,
    /// Conflicts or failures in a row.
    failures: u32,
    /// True if a change of the slice makes it due: it waits for its newest version, or was postponed.
    waits: bool,
}

impl Writes {
    /// Queues a slice that changed.
    pub(super) fn add(&mut self, key: Key, now: Duration) {
        let entry = self.slices.entry(key.clone()).or_insert(Entry {
            at: Some(Duration::MAX),
            waits: true,
            ..Entry::default()
        });
        let Some(at) = entry.at else {
            entry.again = true;
            return;
        };
        if entry.waits {
            (entry.at, entry.waits) = (Some(now), false);
            self.queue.remove(&(at, key.clone()));
            self.queue.insert((now, key));
        }
    }

    /// Takes a slice that is due. [`finished`](Self::finished) or [`postpone`](Self::postpone) must follow.
    pub(super) fn take(&mut self, now: Duration) -> Option<Key> {
        let (at, _) = self.queue.first().filter(|_| self.under_way < AT_ONCE)?;
        if *at > now {
            return None;
        }
        let (_, key) = self.queue.pop_first()?;
        self.under_way = self.under_way.saturating_add(1);
        let entry = self.slices.get_mut(&key)?;
        (entry.at, entry.again) = (None, false);
        Some(key)
    }

    /// Puts back a slice that was taken. It is due at `at`, or as soon as it changes.
    pub(super) fn postpone(&mut self, key: &Key, at: Duration) {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(entry) = self.slices.get_mut(key).filter(|entry| entry.at.is_none()) else { return };
        (entry.at, entry.waits) = (Some(at), true);
        self.queue.insert((at, key.clone()));
    }

    /// Returns when a slice is due.
    pub(super) fn next(&self) -> Option<Duration> {
        self.queue.first().filter(|_| self.under_way < AT_ONCE).map(|(at, _)| *at)
    }

    /// Records the result of a write.
    pub(super) fn finished(&mut self, key: &Key, now: Duration, result: &Result<(), WriteError>) {
        self.under_way = self.under_way.saturating_sub(1);
        let Some(entry) = self.slices.get_mut(key).filter(|entry| entry.at.is_none()) else { return };
        let delay = |first: Duration, longest: Duration, failures: u32| {
            first.saturating_mul(2_u32.saturating_pow(failures)).min(longest)
        };
        let at = match result {
            Ok(()) | Err(WriteError::Gone) if !entry.again => {
                self.slices.remove(key);
                return;
            }
            Ok(()) | Err(WriteError::Gone) => {
                entry.failures = 0;
                now
            }
            Err(WriteError::Conflict) => {
                let after = delay(AFTER_CONFLICT, LONGEST_AFTER_CONFLICT, entry.failures);
                entry.failures = entry.failures.saturating_add(1);
                entry.waits = !entry.again;
                if entry.again { now } else { now.saturating_add(after) }
            }
            Err(WriteError::Failed(_)) => {
                let after = delay(AFTER_FAILURE, LONGEST_AFTER_FAILURE, entry.failures);
                entry.failures = entry.failures.saturating_add(1);
                entry.waits = false;
                now.saturating_add(after)
            }
        };
        entry.at = Some(at);
        self.queue.insert((at, key.clone()));
    }

    /// Removes all slices. Results of writes that are under way have no effect.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.slices.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn changes_while_a_slice_is_written_become_one_more_write() {
        let mut writes = Writes::default();
        let key: Key = "n/a".into();
        writes.add(key.clone(), at(0));
        writes.add(key.clone(), at(0));
        assert_eq!(writes.take(at(0)), Some(key.clone()));
        assert_eq!(writes.take(at(0)), None);
        writes.add(key.clone(), at(1));
        writes.add(key.clone(), at(1));
        assert_eq!(writes.take(at(1)), None);
        writes.finished(&key, at(2), &Ok(()));
        assert_eq!(writes.take(at(2)), Some(key.clone()));
        writes.finished(&key, at(3), &Ok(()));
        assert!(writes.slices.is_empty() && writes.queue.is_empty());
    }

    #[test]
    fn a_conflict_waits_for_the_newest_version_and_a_failure_waits_longer_each_time() {
        let mut writes = Writes::default();
        let key: Key = "n/a".into();
        writes.add(key.clone(), at(0));
        writes.take(at(0));
        writes.finished(&key, at(0), &Err(WriteError::Conflict));
        assert_eq!(writes.next(), Some(at(50)));
        writes.add(key.clone(), at(10));
        assert_eq!(writes.take(at(10)), Some(key.clone()));
        writes.finished(&key, at(10), &Err(WriteError::Conflict));
        assert_eq!(writes.next(), Some(at(110)), "it doubles");
        assert_eq!(writes.take(at(110)), Some(key.clone()));
        writes.finished(&key, at(110), &Err(WriteError::Failed("503".to_owned())));
        assert_eq!(writes.next(), Some(at(910)));
        writes.add(key.clone(), at(120));
        assert_eq!(writes.next(), Some(at(910)), "a change does not shorten it");
        for _ in 0..100 {
            let now = writes.next().unwrap();
            writes.take(now);
            writes.finished(&key, now, &Err(WriteError::Failed("503".to_owned())));
            assert!(writes.next().unwrap() <= now + LONGEST_AFTER_FAILURE);
        }
        let now = writes.next().unwrap();
        writes.take(now);
        writes.finished(&key, now, &Err(WriteError::Gone));
        assert_eq!(writes.next(), None);
    }

    #[test]
    fn a_slice_that_is_postponed_is_due_at_its_time_or_when_it_changes() {
        let mut writes = Writes::default();
        let key: Key = "n/a".into();
        writes.add(key.clone(), at(0));
        writes.take(at(0));
        writes.postpone(&key, at(1000));
        assert_eq!((writes.take(at(999)), writes.next()), (None, Some(at(1000))));
        writes.add(key.clone(), at(500));
        assert_eq!(writes.take(at(500)), Some(key.clone()));
        writes.postpone(&key, at(1000));
        assert_eq!(writes.take(at(1000)), Some(key.clone()));
        writes.finished(&key, at(1000), &Ok(()));
        assert_eq!((writes.next(), writes.under_way), (None, 0));
    }

    #[test]
    fn sixteen_writes_are_under_way_at_once() {
        let mut writes = Writes::default();
        (0..20).for_each(|number| writes.add(format!("n/{number}").into(), at(0)));
        let taken: Vec<Key> = std::iter::from_fn(|| writes.take(at(0))).collect();
        assert_eq!((taken.len(), writes.next()), (16, None));
        writes.clear();
        writes.add(taken[0].clone(), at(0));
        for key in &taken {
            writes.finished(key, at(0), &Err(WriteError::Conflict));
        }
        assert_eq!(writes.take(at(0)), Some(taken[0].clone()), "results of before do not count");
        assert_eq!(writes.take(at(0)), None);
    }
}
