//! Which events were posted recently, and how often they have repeated. Pure: no I/O, no clock.
//!
//! As in client-go, the second occurrence turns an event into a series at once. Further occurrences are only
//! counted. The count is posted when the last post is half an hour old or the series has been quiet for six
//! minutes. After six quiet minutes an event is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::note::EventNote;

/// Time after which a quiet event is forgotten (`finishTime` in `tools/events`).
pub(super) const QUIET: Duration = Duration::from_secs(6 * 60);

/// Interval at which the count of a continuing series is posted (`refreshTime`).
pub(super) const REFRESH: Duration = Duration::from_secs(30 * 60);

/// Maximum number of different events that are remembered. The one that has been quiet longest is dropped for a new
/// one.
const KNOWN: usize = 256;

/// An event that was posted as an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) note: EventNote,
    /// Time of the first occurrence in nanoseconds since 1970, made unique for each event. It is part of the
    /// object's name.
    pub(super) nanos: u128,
    pub(super) at: SystemTime,
}

/// How often an event has happened, and when last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) count: u32,
    pub(super) last: SystemTime,
}

/// A request to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A new object.
    Create(Arc<Recorded>),
    /// Sets a new count on an existing object.
    Patch(Arc<Recorded>, Count),
}

#[derive(Debug, Default)]
pub(super) struct Series {
    known: HashMap<EventNote, Known>,
    nanos: u128,
}

#[derive(Debug)]
struct Known {
    recorded: Arc<Recorded>,
    count: Count,
    seen: Instant,
    posted: u32,
    posted_at: Instant,
}

impl Known {
    fn due(&self) -> Instant {
        let quiet = self.seen + QUIET;
        if self.posted < self.count.count { quiet.min(self.posted_at + REFRESH) } else { quiet }
    }

    fn post(&mut self, now: Instant) -> Step {
        self.posted = self.count.count;
        self.posted_at = now;
        Step::Patch(Arc::clone(&self.recorded), self.count)
    }
}

impl Series {
    /// Records an event that happened `at` and is handled `now`. Returns the request to send, if any.
    pub(super) fn observe(&mut self, note: EventNote, at: SystemTime, now: Instant) -> Option<Step> {
        if let Some(known) = self.known.get_mut(&note) {
            known.count = Count { count: known.count.count.saturating_add(1), last: at };
            known.seen = now;
            return (known.posted == 1).then(|| known.post(now));
        }
        self.make_room();
        let recorded = Arc::new(Recorded { note: note.clone(), nanos: self.nanos(at), at });
        let count = Count { count: 1, last: at };
        let known = Known { recorded: Arc::clone(&recorded), count, seen: now, posted: 1, posted_at: now };
        self.known.insert(note, known);
        Some(Step::Create(recorded))
    }

    /// Returns when to call [`Self::expire`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.known.values().map(Known::due).min()
    }

    /// Forgets quiet events and returns the counts to post.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Step> {
        let mut steps = Vec::new();
        self.known.retain(|_, known| {
            if known.due() <= now && known.posted < known.count.count {
                steps.push(known.post(now));
            }
            known.seen + QUIET > now
        });
        steps
    }

    fn make_room(&mut self) {
        if self.known.len() < KNOWN {
            return;
        }
        let oldest = self.known.iter().min_by_key(|(_, known)| known.seen).map(|(note, _)| note.clone());
        if let Some(oldest) = oldest {
            self.known.remove(&oldest);
        }
    }

    /// Returns a number that no other event of this process has.
    fn nanos(&mut self, at: SystemTime) -> u128 {
        let nanos = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.nanos = nanos.max(self.nanos.saturating_add(1));
        self.nanos
    }
}
