//! Which events were posted lately, and how often they came since. Pure: no I/O, no clock.
//!
//! As in client-go: the second occurrence turns an event into a series at once; further ones are only counted,
//! and the count is posted when the series is half an hour old or has been quiet for six minutes. After six
//! quiet minutes an event is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::note::EventNote;

/// A quiet event is forgotten after this time (`finishTime` in `tools/events`).
pub(super) const QUIET: Duration = Duration::from_secs(6 * 60);

/// A series that goes on is posted at this interval (`refreshTime`).
pub(super) const REFRESH: Duration = Duration::from_secs(30 * 60);

/// So many different events are remembered; the longest quiet one makes room.
const KNOWN: usize = 256;

/// An event that became an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    pub(super) note: EventNote,
    /// When it happened first, in nanoseconds since 1970, one for each event: it makes the object's name.
    pub(super) nanos: u128,
    pub(super) at: SystemTime,
}

/// How often it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) count: u32,
    pub(super) last: SystemTime,
}

/// What to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A new object.
    Create(Arc<Recorded>),
    /// A new count of an object.
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
    /// An event happened `at` and is looked at `now`.
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

    /// When to call [`Self::expire`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.known.values().map(Known::due).min()
    }

    /// Forgets what is quiet, and says which counts to post.
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

    /// A number that no other event of this process has.
    fn nanos(&mut self, at: SystemTime) -> u128 {
        let nanos = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.nanos = nanos.max(self.nanos.saturating_add(1));
        self.nanos
    }
}
