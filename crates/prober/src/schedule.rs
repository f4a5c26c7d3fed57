//! When each endpoint is probed. Every endpoint has a fixed phase within its interval, so the probes of many endpoints
//! are spread evenly, and a slow answer does not move the next probe.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

#[cfg(test)]
mod tests;

/// A new endpoint is probed within this time: it gets no traffic before its first answer.
pub const FIRST_WITHIN: Duration = Duration::from_secs(1);
/// 2^64 divided by the golden ratio. Its multiples modulo 2^64 are spread evenly, however many they are (Knuth, The Art
/// of Computer Programming, section 6.4).
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The schedule of all endpoints. An endpoint is scheduled, or its probe is under way.
#[derive(Debug, Default)]
pub struct Schedule {
    heap: BinaryHeap<Reverse<Due>>,
    entries: HashMap<u64, Entry>,
    /// Number of the next turn.
    turn: u64,
}

/// A turn of an endpoint, ordered by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Duration,
    turn: u64,
    endpoint: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    interval: Duration,
    /// The turn that is scheduled. The heap may also have turns that were replaced.
    turn: Option<u64>,
}

impl Schedule {
    /// Adds an endpoint, or gives it another interval. With `soon` its first probe is within [`FIRST_WITHIN`], otherwise
    /// within the interval.
    pub fn add(&mut self, endpoint: u64, interval: Duration, now: Duration, soon: bool) {
        let entry = Entry { interval, turn: None };
        let at = if soon {
            now.saturating_add(phase(endpoint, interval.min(FIRST_WITHIN)))
        } else {
            slot(endpoint, interval, now)
        };
        self.entries.insert(endpoint, entry);
        self.push(endpoint, at);
    }

    /// Removes an endpoint.
    pub fn remove(&mut self, endpoint: u64) {
        self.entries.remove(&endpoint);
        // Removed turns stay in the heap until their time. They are dropped early if they are most of it.
        if self.heap.len() > self.entries.len().saturating_mul(2).saturating_add(64) {
            let entries = &self.entries;
            self.heap.retain(|Reverse(due)| is_scheduled(entries, due));
        }
    }

    /// Removes all endpoints.
    pub fn clear(&mut self) {
        self.heap.clear();
        self.entries.clear();
    }

    /// Returns the time of the next probe.
    pub fn next_due(&mut self) -> Option<Duration> {
        while let Some(Reverse(due)) = self.heap.peek() {
            if is_scheduled(&self.entries, due) {
                return Some(due.at);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes an endpoint whose time has come, with that time. It is scheduled again by [`finished`](Self::finished).
    pub fn take(&mut self, now: Duration) -> Option<(u64, Duration)> {
        if self.next_due()? > now {
            return None;
        }
        let Reverse(due) = self.heap.pop()?;
        self.entries.get_mut(&due.endpoint)?.turn = None;
        Some((due.endpoint, due.at))
    }

    /// Schedules the next probe of an endpoint whose probe has ended. Turns that have passed are left out. No effect if
    /// the endpoint was removed or is scheduled.
    pub fn finished(&mut self, endpoint: u64, now: Duration) {
        let Some(entry) = self.entries.get(&endpoint).filter(|entry| entry.turn.is_none()) else { return };
        let interval = entry.interval;
        self.push(endpoint, slot(endpoint, interval, now));
    }

    fn push(&mut self, endpoint: u64, at: Duration) {
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        if let Some(entry) = self.entries.get_mut(&endpoint) {
            entry.turn = Some(turn);
            self.heap.push(Reverse(Due { at, turn, endpoint }));
        }
    }
}

fn is_scheduled(entries: &HashMap<u64, Entry>, due: &Due) -> bool {
    entries.get(&due.endpoint).is_some_and(|entry| entry.turn == Some(due.turn))
}

/// Returns the endpoint's place within a time.
fn phase(endpoint: u64, within: Duration) -> Duration {
    let share = u128::from(endpoint.wrapping_mul(GOLDEN));
    let nanoseconds = within.as_nanos().saturating_mul(share) >> 64_u32;
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// Returns the endpoint's first turn after `now`.
fn slot(endpoint: u64, interval: Duration, now: Duration) -> Duration {
    let step = interval.as_nanos().max(1);
    let phase = phase(endpoint, interval).as_nanos();
    let turns = match now.as_nanos().checked_sub(phase) {
        Some(since) => (since / step).saturating_add(1),
        None => 0,
    };
    let at = turns.saturating_mul(step).saturating_add(phase);
    Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX))
}
