//! A data plane that is to replace another, and a data plane that was replaced.

use std::time::{Duration, Instant};

use portolan_model::Settings;

use super::Boxed;
use super::driven::{PIECE_PAUSE, Plane};
use super::retry::Retry;
use crate::dataplane::{Claims, Commit, Dataplane, Error, Removal, Takeover, Undisturbed};
use crate::table::Table;

/// A data plane that has not been able to write the table yet.
pub(super) struct Successor {
    pub(super) plane: Plane<Boxed>,
    /// Settings that come with it. `None` if it has those of the active data plane.
    pub(super) settings: Option<Settings>,
    due: Instant,
    retry: Retry,
}

impl Successor {
    pub(super) fn new(dataplane: Boxed, settings: Option<Settings>, now: Instant) -> Self {
        Self { plane: Plane::new(dataplane), settings, due: now, retry: Retry::default() }
    }

    /// Compares the table, with the settings that come with this data plane, and writes the difference.
    pub(super) fn compare(&mut self, table: &Table) -> Result<Commit, Error> {
        let Some(settings) = &self.settings else { return self.plane.compare(table, &mut Undisturbed).0 };
        let mut table = table.clone();
        table.configure(settings.clone());
        self.plane.compare(&table, &mut Undisturbed).0
    }

    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// Returns true if rules of another data plane may be removed before this one has written its own: it may not be able to
    /// write them for a long time. Rules at the same place are left to it.
    pub(super) fn lets_remove(&self, retired: &Retired) -> bool {
        self.retry.failed() && self.plane.dataplane.about().place != retired.place()
    }

    /// Sets the deadline of the next attempt, at most `longest_retry` after `now`.
    pub(super) fn failed(&mut self, now: Instant, longest_retry: Duration) {
        self.due = now + self.retry.next(longest_retry);
    }
}

/// A data plane that is not active any more, and whose rules are to be removed.
pub(super) struct Retired {
    dataplane: Boxed,
    /// When the removal began.
    begun: Option<Instant>,
    due: Instant,
    retry: Retry,
}

impl Retired {
    pub(super) fn new(dataplane: Boxed, now: Instant) -> Self {
        Self { dataplane, begun: None, due: now, retry: Retry::default() }
    }

    pub(super) fn place(&self) -> &'static str {
        self.dataplane.about().place
    }

    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// See [`Dataplane::suspend_removal`].
    pub(super) fn suspend(&mut self) {
        self.dataplane.suspend_removal();
    }

    /// Removes a part of the rules, except for what is `kept` for the active data plane, which programs `table`. Returns
    /// true if nothing is left. `clock` returns the time.
    pub(super) fn remove_part(
        &mut self,
        table: &Table,
        kept: Option<Claims>,
        longest_retry: Duration,
        clock: impl Fn() -> Instant,
    ) -> bool {
        let (family, place, now) = (table.family(), self.place(), clock());
        let elapsed = now.saturating_duration_since(*self.begun.get_or_insert(now));
        match self.dataplane.remove_part(&Takeover { table, kept, elapsed }) {
            Ok(Removal::Done) => {
                tracing::info!(%family, place, "nothing of another mode is left here");
                return true;
            }
            Ok(Removal::Continues(wait)) => {
                self.retry.succeeded();
                self.due = clock() + wait.max(PIECE_PAUSE);
            }
            Err(error) => {
                let wait = self.retry.next(longest_retry);
                self.due = clock() + wait;
                tracing::error!(%family, place, %error, ?wait, "rules of another mode cannot be removed; trying again");
            }
        }
        false
    }
}
