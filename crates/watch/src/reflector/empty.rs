//! A list that is empty although objects are known: more often the fault of a server than the truth.

use std::time::{Duration, Instant};

use portolan_model::object::Kind;

/// From so many known objects on an empty list is doubted. One alone is deleted every day.
const MANY: usize = 2;

/// So often an empty list is asked for again while it is not believed, or more often: no watch runs in that time, and
/// a list that is not empty has to be found soon.
const RECHECKS: u32 = 6;
const LONGEST_RECHECK: Duration = Duration::from_secs(5);

/// Counts objects, and doubts.
#[derive(Debug)]
pub(super) struct Guard {
    hold: Duration,
    /// Objects in the last list that was believed, and what came and went since.
    known: usize,
    /// Objects of the list that is being read.
    listed: usize,
    /// When that one began.
    begun: Option<Instant>,
    /// When the first empty list came.
    held_since: Option<Instant>,
}

impl Guard {
    /// Doubts empty lists of Services and EndpointSlices for this long. Of Nodes one alone is asked for, and
    /// ServiceCIDRs are few.
    pub(super) fn new(kind: Kind, known: usize, hold: Duration) -> Self {
        let doubts = matches!(kind, Kind::Service | Kind::EndpointSlice);
        let hold = if doubts { hold } else { Duration::ZERO };
        Self { hold, known, listed: 0, begun: None, held_since: None }
    }

    /// How many objects are known.
    pub(super) fn known(&self) -> usize {
        self.known
    }

    /// A list begins.
    pub(super) fn list_begins(&mut self, now: Instant) {
        (self.listed, self.begun) = (0, Some(now));
    }

    /// An object came, readable or not.
    pub(super) fn object(&mut self, of_list: bool) {
        let count = if of_list { &mut self.listed } else { &mut self.known };
        *count = count.saturating_add(1);
    }

    /// An object went.
    pub(super) fn deleted(&mut self, of_list: bool) {
        let count = if of_list { &mut self.listed } else { &mut self.known };
        *count = count.saturating_sub(1);
    }

    /// The list is complete. How many objects are known if it is not believed yet: an empty one is believed only if it
    /// began when the hold was over.
    pub(super) fn list_ends(&mut self, now: Instant) -> Option<usize> {
        if self.listed == 0 && self.known >= MANY && !self.hold.is_zero() {
            let since = *self.held_since.get_or_insert(now);
            let begun = self.begun.unwrap_or(since);
            if begun.saturating_duration_since(since) < self.hold {
                return Some(self.known);
            }
        }
        (self.known, self.held_since) = (self.listed, None);
        None
    }

    /// Whether the first of the empty lists came now.
    pub(super) fn is_first(&self, now: Instant) -> bool {
        self.held_since == Some(now)
    }

    /// How long to wait before an empty list is asked for again.
    pub(super) fn recheck(&self) -> Duration {
        (self.hold / RECHECKS).min(LONGEST_RECHECK)
    }
}
