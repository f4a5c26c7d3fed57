//! Decides whether to accept a list that is empty although objects are known. Such a list is more often a server's
//! fault than the truth.

use std::time::{Duration, Instant};

use portolan_model::object::Kind;

/// An empty list is held if at least this many objects are known. A single object is often deleted.
const MANY: usize = 2;

/// While an empty list is held, a list is requested this many times per hold, or more often: no watch runs in that
/// time, so a list with objects has to be found soon.
const RECHECKS: u32 = 6;
const LONGEST_RECHECK: Duration = Duration::from_secs(5);

/// Counts objects and holds unexpected empty lists.
#[derive(Debug)]
pub(super) struct Guard {
    hold: Duration,
    /// Objects in the last accepted list, with the additions and deletions since.
    known: usize,
    /// Objects in the list that is being read.
    listed: usize,
    /// When the list that is being read began.
    begun: Option<Instant>,
    /// When the first of the held empty lists came; `None` if none is held.
    held_since: Option<Instant>,
}

impl Guard {
    /// Holds empty lists of Services and EndpointSlices for `hold`. Lists of other kinds are never held: only one
    /// Node is requested, and there are few ServiceCIDRs.
    pub(super) fn new(kind: Kind, known: usize, hold: Duration) -> Self {
        let doubts = matches!(kind, Kind::Service | Kind::EndpointSlice);
        let hold = if doubts { hold } else { Duration::ZERO };
        Self { hold, known, listed: 0, begun: None, held_since: None }
    }

    /// Returns the number of known objects.
    pub(super) fn known(&self) -> usize {
        self.known
    }

    /// Records that a list begins.
    pub(super) fn list_begins(&mut self, now: Instant) {
        (self.listed, self.begun) = (0, Some(now));
    }

    /// Counts an object that came, readable or not.
    pub(super) fn object(&mut self, of_list: bool) {
        let count = if of_list { &mut self.listed } else { &mut self.known };
        *count = count.saturating_add(1);
    }

    /// Counts an object that was deleted.
    pub(super) fn deleted(&mut self, of_list: bool) {
        let count = if of_list { &mut self.listed } else { &mut self.known };
        *count = count.saturating_sub(1);
    }

    /// Ends the list. Returns the number of known objects if the list is empty and not accepted yet. An empty list
    /// is accepted if it began at least `hold` after the first empty one came.
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

    /// Returns true if an empty list is held.
    pub(super) const fn holds(&self) -> bool {
        self.held_since.is_some()
    }

    /// Returns true if the first held list came at this time.
    pub(super) fn is_first(&self, now: Instant) -> bool {
        self.held_since == Some(now)
    }

    /// Returns the time to wait before the next list while an empty one is held.
    pub(super) fn recheck(&self) -> Duration {
        (self.hold / RECHECKS).min(LONGEST_RECHECK)
    }
}
