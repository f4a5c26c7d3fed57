//! A list that is empty although objects are known: more often the fault of a server than the truth.

use std::time::{Duration, Instant};

use portolan_model::object::Kind;

/// From so many known objects on an empty list is doubted. One alone is deleted every day.
const MANY: usize = 2;

/// So often an empty list is asked for again before it is believed.
const RECHECKS: u32 = 6;

/// Counts objects, and doubts.
#[derive(Debug)]
pub(super) struct Guard {
    hold: Duration,
    /// Objects in the last list that was believed, and what came and went since.
    known: usize,
    /// Objects of the list that is being read.
    listed: usize,
    /// When the first empty list came.
    held_since: Option<Instant>,
}

impl Guard {
    /// Doubts empty lists of Services and EndpointSlices for this long. Of Nodes one alone is asked for, and
    /// ServiceCIDRs are few.
    pub(super) fn new(kind: Kind, hold: Duration) -> Self {
        let doubts = matches!(kind, Kind::Service | Kind::EndpointSlice);
        Self { hold: if doubts { hold } else { Duration::ZERO }, known: 0, listed: 0, held_since: None }
    }

    /// A list begins.
    pub(super) fn list_begins(&mut self) {
        self.listed = 0;
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

    /// The list is complete. How many objects are known if it is not believed yet.
    pub(super) fn list_ends(&mut self, now: Instant) -> Option<usize> {
        if self.listed == 0 && self.known >= MANY && !self.hold.is_zero() {
            let since = *self.held_since.get_or_insert(now);
            if now.saturating_duration_since(since) < self.hold {
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
        self.hold / RECHECKS
    }
}
