//! A data plane with its table and its state: a lane without deadlines.
//!
//! The engine's lanes are made of it. Tests and benchmarks use it to run one data plane by hand, without the engine's
//! thread, with the same guarantees ([`crate::dataplane`]).

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use portolan_model::{Change, Settings};

use super::arrivals::Arrivals;
use super::state::{Reason, State};
use crate::dataplane::{
    Claims, Collection, Commit, Condition, Dataplane, Error, Meanwhile, Removal, Takeover, Undisturbed,
};
use crate::table::{Changes, HealthCheckPort, Merged, Table};

/// Pause between two pieces of a removal. Pending work is committed first.
pub(super) const PIECE_PAUSE: Duration = Duration::from_millis(10);

/// A data plane, and the changes that it has not been given.
#[derive(Debug)]
pub(super) struct Plane<D> {
    pub(super) dataplane: D,
    /// `None` if it has not been given anything.
    waiting: Option<Merged>,
}

impl<D: Dataplane> Plane<D> {
    pub(super) const fn new(dataplane: D) -> Self {
        Self { dataplane, waiting: None }
    }

    /// Stores changes of the table for the next call.
    pub(super) fn note(&mut self, changes: &Changes) {
        if let Some(waiting) = &mut self.waiting {
            waiting.add(changes.clone());
        }
    }

    /// Returns true if the data plane has not been given anything.
    pub(super) const fn is_new(&self) -> bool {
        self.waiting.is_none()
    }

    /// Returns true if the data plane has been given the whole table.
    pub(super) fn has_everything(&self) -> bool {
        self.waiting.as_ref().is_some_and(Merged::is_empty)
    }

    /// Number of Service ports with a change that the data plane has not been given.
    pub(super) fn waiting(&self, table: &Table) -> usize {
        self.waiting.as_ref().map_or_else(|| table.len(), Merged::len)
    }

    /// Compares everything and writes the difference.
    pub(super) fn compare(
        &mut self,
        table: &Table,
        meanwhile: &mut dyn Meanwhile,
    ) -> (Result<Commit, Error>, Changes) {
        let changes = self.take(table);
        (self.dataplane.compare_and_follow(table, &changes, meanwhile), changes)
    }

    fn apply(&mut self, table: &Table) -> (Result<Commit, Error>, Changes) {
        let changes = self.take(table);
        (self.dataplane.apply(table, &changes), changes)
    }

    fn take(&mut self, table: &Table) -> Changes {
        match &mut self.waiting {
            Some(waiting) => waiting.take(),
            waiting @ None => {
                *waiting = Some(Merged::default());
                if self.dataplane.about().starts_from_table { Changes::default() } else { table.all() }
            }
        }
    }
}

/// A data plane, the wanted state of its family, and whether the kernel has it.
#[derive(Debug)]
pub struct Driven<D> {
    pub(super) plane: Plane<D>,
    pub(super) table: Table,
    pub(super) state: State,
    /// When the removal began, and when its next part is due.
    removal: Option<(Instant, Instant)>,
}

impl<D: Dataplane> Driven<D> {
    /// Gives a data plane an empty table. Nothing is written before the first [`Driven::resync`].
    pub fn new(settings: Settings, dataplane: D) -> Self {
        Self {
            plane: Plane::new(dataplane),
            table: Table::new(settings),
            state: State::Waiting,
            removal: None,
        }
    }

    /// Returns the wanted state.
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Returns whether the kernel has the wanted state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Writes what waits: the changes if in sync, everything after a comparison otherwise. `clock` returns the time at
    /// which the commit ends. The changes that the data plane took during the comparison are not in the table yet.
    pub(super) fn commit(
        &mut self,
        arrivals: Option<&mut Arrivals<'_>>,
        clock: impl Fn() -> Instant,
    ) -> (Result<Commit, Error>, Changes) {
        let Self { plane, table, .. } = self;
        let (outcome, changes) = match (self.state, arrivals) {
            (State::InSync { .. }, _) => plane.apply(table),
            (State::Waiting | State::Unknown { .. }, Some(arrivals)) => {
                plane.compare(table, &mut arrivals.during(table))
            }
            (State::Waiting | State::Unknown { .. }, None) => plane.compare(table, &mut Undisturbed),
        };
        self.ended(&outcome, clock());
        (outcome, changes)
    }

    /// Notes how a commit or a comparison ended.
    fn ended(&mut self, outcome: &Result<Commit, Error>, at: Instant) {
        match outcome {
            Ok(commit) => self.state.succeeded(commit.full, at),
            Err(_) => self.state.failed(at),
        }
    }

    /// Takes over the Service ports of a table, if the data plane has been given nothing and has none. Otherwise returns the
    /// table.
    pub(super) fn begin_with(&mut self, table: Table) -> Option<Table> {
        if self.plane.is_new() { self.table.begin_with(table) } else { Some(table) }
    }

    /// Changes the table. Returns the difference, which the next commit writes.
    pub(super) fn take(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
        health_checks: impl IntoIterator<Item = HealthCheckPort>,
    ) -> Changes {
        let changes = self.table.take(changes, health_checks);
        self.plane.note(&changes);
        changes
    }

    /// Applies changes. Before the first [`Driven::resync`] they are only stored. Unless in sync, compares everything.
    ///
    /// # Errors
    /// See [`Dataplane::apply`] and [`Dataplane::compare`].
    pub fn apply(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        self.take(changes.iter().cloned(), []);
        if self.state.is_waiting() { Ok(Commit::default()) } else { self.commit(None, Instant::now).0 }
    }

    /// Applies changed health-check node ports like [`Driven::apply`].
    ///
    /// # Errors
    /// See [`Driven::apply`].
    pub fn open_health_check_ports(&mut self, health_checks: &[HealthCheckPort]) -> Result<Commit, Error> {
        self.take([], health_checks.iter().cloned());
        self.apply(&[])
    }

    /// Applies changes with a comparison of everything.
    ///
    /// # Errors
    /// See [`Dataplane::compare`].
    pub fn compare(&mut self, changes: &[Change]) -> Result<Commit, Error> {
        self.take(changes.iter().cloned(), []);
        self.mark_unknown();
        self.commit(None, Instant::now).0
    }

    /// Does the same as [`Driven::resync`] and gives the data plane the changes that arrive meanwhile. [`Driven::follow`] puts
    /// them into the table afterwards.
    ///
    /// # Errors
    /// See [`Dataplane::compare_and_follow`].
    pub fn resync_and_follow(&mut self, meanwhile: &mut dyn Meanwhile) -> Result<Commit, Error> {
        self.mark_unknown();
        let (outcome, _) = self.plane.compare(&self.table, meanwhile);
        self.ended(&outcome, Instant::now());
        outcome
    }

    /// Puts changes into the table that the data plane was given during a comparison.
    pub fn follow(&mut self, changes: impl IntoIterator<Item = Change>) -> Changes {
        self.table.take(changes, [])
    }

    /// Runs [`Driven::compare`] without changes.
    ///
    /// # Errors
    /// See [`Dataplane::compare`].
    pub fn resync(&mut self) -> Result<Commit, Error> {
        self.compare(&[])
    }

    /// Lets the data plane keep what its next start can use ([`Dataplane::leave`]), if it is in sync and nothing waits.
    pub fn leave(&mut self, generation: u32) {
        if self.state.is_in_sync() && self.plane.has_everything() {
            self.plane.dataplane.leave(&self.table, generation);
        }
    }

    /// Sets new settings. The next commit compares everything.
    pub fn configure(&mut self, settings: Settings) {
        if self.table.configure(settings) {
            self.state.doubt(Reason::Settings, Instant::now());
        }
    }

    /// Notes that another program may have changed the rules. The next commit compares everything.
    pub fn mark_unknown(&mut self) {
        self.state.doubt(Reason::Drift, Instant::now());
    }

    /// Returns whether the rules in the kernel are as they should be, as far as a quick check shows. If not, the next commit
    /// compares everything.
    ///
    /// # Errors
    /// See [`Dataplane::check`].
    pub fn check(&mut self) -> Result<Condition, Error> {
        let condition = self.plane.dataplane.check(&self.table)?;
        match condition {
            Condition::Intact => {}
            Condition::Outdated => drop(self.state.doubt(Reason::Node, Instant::now())),
            Condition::Changed => self.mark_unknown(),
        }
        Ok(condition)
    }

    /// Returns true if [`Driven::check`] finds them [`Condition::Intact`].
    ///
    /// # Errors
    /// See [`Dataplane::check`].
    pub fn is_intact(&mut self) -> Result<bool, Error> {
        Ok(self.check()? == Condition::Intact)
    }

    /// Collects once. Returns true if there is more to collect. Does nothing unless in sync.
    ///
    /// # Errors
    /// See [`Dataplane::collect`].
    pub fn collect(&mut self) -> Result<bool, Error> {
        if !self.state.is_in_sync() {
            return Ok(false);
        }
        let outcome = self.plane.dataplane.collect();
        if outcome.is_err() {
            self.state.failed(Instant::now());
        }
        outcome.map(|collection| collection == Collection::Continues)
    }

    /// Removes a part, unless it is too early for the next one. Returns true if there is more to remove.
    ///
    /// # Errors
    /// See [`Dataplane::remove_part`].
    pub fn remove_part(&mut self, kept: Option<Claims>) -> Result<bool, Error> {
        let now = Instant::now();
        let (begun, due) = *self.removal.get_or_insert((now, now));
        if now < due {
            return Ok(true);
        }
        self.remove_next(kept, now.saturating_duration_since(begun))
    }

    fn remove_next(&mut self, kept: Option<Claims>, elapsed: Duration) -> Result<bool, Error> {
        let takeover = Takeover { table: &self.table, kept, elapsed };
        let removal = self.plane.dataplane.remove_part(&takeover)?;
        let now = Instant::now();
        self.removal = match removal {
            Removal::Done => None,
            Removal::Continues(wait) => {
                let begun = self.removal.map_or(now, |(begun, _)| begun);
                Some((begun, now + wait))
            }
        };
        self.state.doubt(Reason::Drift, now);
        Ok(self.removal.is_some())
    }

    /// Returns when the next part of the removal is due, or `None` if no removal is in progress.
    pub fn removal_due(&self) -> Option<Instant> {
        self.removal.map(|(_, due)| due)
    }

    /// Removes everything, part by part. Connections get no time to drain.
    ///
    /// # Errors
    /// See [`Dataplane::remove_part`].
    pub fn remove(&mut self) -> Result<(), Error> {
        while self.remove_next(None, Duration::MAX)? {
            let wait = self.removal_due().map(|due| due.saturating_duration_since(Instant::now()));
            std::thread::sleep(wait.unwrap_or_default().max(PIECE_PAUSE));
        }
        Ok(())
    }
}

impl<D> Deref for Driven<D> {
    type Target = D;

    fn deref(&self) -> &D {
        &self.plane.dataplane
    }
}

impl<D> DerefMut for Driven<D> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.plane.dataplane
    }
}
