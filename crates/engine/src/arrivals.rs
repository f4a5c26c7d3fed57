//! Changes that arrive during a comparison: what the data plane took of them, and what follows.
//!
//! The table stays as it is while the data plane reads it, because a change would copy it. The changes are kept beside it, and
//! go into it when the comparison has ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::{Change, Family, Forwarding, ServicePortName};

use super::attempt::{Attempt, Cause};
use super::clock::Clock;
use super::work::{After, ObjectChanges};
use super::{Report, Step};
use crate::dataplane::{Commit, Meanwhile};
use crate::table::{Changes, Table};

/// What a lane needs of the engine while a data plane works.
pub(super) struct Outside<'a> {
    /// Takes the changes of a family that have arrived, and what follows their commit.
    pub(super) arrived: &'a dyn Fn(Family) -> Option<(Vec<Change>, After)>,
    /// Receives reports.
    pub(super) report: &'a mut dyn FnMut(Report),
}

/// The changes that have arrived during one comparison.
pub(super) struct Arrivals<'a> {
    outside: Outside<'a>,
    about: (Family, &'static str),
    clock: Clock,
    /// Minimum time between two commits.
    min_interval: Duration,
    /// Earliest time of the next commit of arrived changes.
    not_before: Option<Instant>,
    /// The last state of each Service port that the data plane was given; `None` if it is deleted.
    given: BTreeMap<Arc<ServicePortName>, Option<Arc<Forwarding>>>,
    /// When changes were taken last.
    taken: Option<Instant>,
    /// The changes given last with what follows their commit, until they are written.
    current: Option<(Instant, Vec<Change>, After)>,
    /// What follows the end of the comparison.
    after: After,
    attempts: Vec<Attempt>,
}

/// What is left of the changes at the end of a comparison.
pub(super) struct Arrived {
    /// The changes that the data plane was given.
    pub(super) changes: Vec<Change>,
    /// What follows the next successful commit.
    pub(super) after: After,
    /// The commits.
    pub(super) attempts: Vec<Attempt>,
    /// When changes were taken last.
    pub(super) taken: Option<Instant>,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(
        outside: &'a mut Outside<'_>,
        about: (Family, &'static str),
        clock: Clock,
        min_interval: Duration,
    ) -> Self {
        Self {
            outside: Outside { arrived: outside.arrived, report: &mut *outside.report },
            about,
            clock,
            min_interval,
            not_before: None,
            taken: None,
            given: BTreeMap::new(),
            current: None,
            after: After::default(),
            attempts: Vec::new(),
        }
    }

    /// Returns what a data plane calls during the comparison of a table.
    pub(super) fn during<'b>(&'b mut self, table: &'b Table) -> impl Meanwhile {
        During { arrivals: self, table }
    }

    pub(super) fn finish(mut self) -> Arrived {
        self.leave_current();
        let family = self.about.0;
        let changes = self.given.into_iter().map(|(name, new)| Change { name, family, old: None, new });
        Arrived { changes: changes.collect(), after: self.after, attempts: self.attempts, taken: self.taken }
    }

    fn arrived(&mut self, table: &Table) -> Option<Changes> {
        let now = self.clock.now();
        if self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        let family = self.about.0;
        let (changes, mut after) = (self.outside.arrived)(family)?;
        self.leave_current();
        // A change that came while they were taken is among them.
        self.taken = Some(self.clock.now());
        after.has_changes = true;
        let of_family = changes.into_iter().filter(|change| change.family == family);
        let changes: Vec<Change> = of_family.map(|change| self.give(table, change)).collect();
        self.current = Some((now, changes.clone(), after));
        Some(Changes { forwardings: changes, health_checks: Vec::new() })
    }

    /// Returns the change with its exact former state.
    fn give(&mut self, table: &Table, change: Change) -> Change {
        let former = self.given.insert(change.name.clone(), change.new.clone());
        let old = former.unwrap_or_else(|| table.get(&change.name));
        Change { old, ..change }
    }

    fn written(&mut self, commit: Commit) {
        let Some((started, changes, After { triggers, mut udp, objects, .. })) = self.current.take() else {
            return;
        };
        let ended = self.clock.now();
        self.not_before = Some(ended + self.min_interval);
        // The objects are reported when the comparison shows that the kernel has everything. The UDP Service ports are reported
        // then, too, in place of an older state of theirs that waits for it.
        let udp = udp.take();
        self.after.add([], udp.iter().cloned(), objects);
        let (family, mode) = self.about;
        let report = Report {
            family,
            mode,
            duration: ended.saturating_duration_since(started),
            taken_before: ended.saturating_duration_since(started),
            full: false,
            repaired: false,
            verified: false,
            step: Step::DuringComparison,
            cause: Cause::new(None, &changes),
            triggers,
            udp,
            objects: ObjectChanges::default(),
            health_checks: Vec::new(),
            changed: changes.into_iter().map(|change| change.name).collect(),
            outcome: Ok(commit),
        };
        self.attempts.push(Attempt::new(&report, ended));
        (self.outside.report)(report);
    }

    /// The comparison writes the current changes.
    fn leave_current(&mut self) {
        if let Some((_, _, after)) = self.current.take() {
            self.after.merge(after);
        }
    }
}

/// What a data plane calls during a comparison.
struct During<'a, 'b> {
    arrivals: &'b mut Arrivals<'a>,
    table: &'b Table,
}

impl Meanwhile for During<'_, '_> {
    fn arrived(&mut self) -> Option<Changes> {
        self.arrivals.arrived(self.table)
    }

    fn written(&mut self, commit: Commit) {
        self.arrivals.written(commit);
    }
}
