//! A lane: one family's table, data planes and deadlines.

mod commit;

use std::time::{Duration, Instant};

use portolan_model::{Family, Settings};

use super::arrivals::Outside;
use super::clock::Clock;
use super::driven::Driven;
use super::history::History;
use super::repairs::Repairs;
use super::retry::Retry;
use super::snapshot::{Drift, FamilySnapshot};
use super::state::{Reason, State};
use super::successor::{Retired, Successor};
use super::verification::Verification;
use super::work::{After, Work};
use super::{Boxed, Report, Step, Timing};
use crate::dataplane::{Collection, Condition, Dataplane};
use crate::table::Table;

/// Wait between two parts of a collection: kernels before 6.2 keep a chain referenced for a moment.
const COLLECT_PAUSE: Duration = Duration::from_secs(1);

/// The table of a family, the data plane that programs it, and its deadlines.
pub(super) struct Lane {
    /// The active data plane, the table and the state.
    active: Driven<Boxed>,
    timing: Timing,
    clock: Clock,
    /// What follows the next successful commit.
    after: After,
    /// The data plane that is to replace the active one.
    successor: Option<Successor>,
    /// Replaced data planes whose rules are not completely removed.
    retired: Vec<Retired>,
    /// Earliest start of the next commit.
    not_before: Option<Instant>,
    full_at: Option<Instant>,
    /// When the last comparison ended, while a periodic one is due.
    compared: Option<Instant>,
    /// How many times in a row a periodic comparison was put off.
    put_off: u32,
    collect_at: Option<Instant>,
    /// When to check that the rules are still there, for a mode that the kernel does not notify of changes.
    check_at: Option<Instant>,
    repairs: Repairs,
    verification: Verification,
    /// True if a piece of a removal was due and a commit came first. The piece comes before the next commit.
    is_removal_delayed: bool,
    retry: Retry,
    history: History,
    drift: Drift,
}

impl Lane {
    pub(super) fn new(settings: Settings, dataplane: Boxed, timing: Timing, clock: Clock) -> Self {
        Self {
            active: Driven::new(settings, dataplane),
            timing,
            clock,
            after: After::default(),
            successor: None,
            retired: Vec::new(),
            not_before: None,
            full_at: None,
            compared: None,
            put_off: 0,
            collect_at: None,
            check_at: None,
            repairs: Repairs::default(),
            verification: Verification::default(),
            is_removal_delayed: false,
            retry: Retry::default(),
            history: History::default(),
            drift: Drift::default(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.active.table.family()
    }

    /// Takes over the Service ports of a table.
    pub(super) fn begin_with(&mut self, table: Table) {
        self.after.has_changes |= !table.is_empty();
        if let Some(table) = self.active.begin_with(table) {
            self.queue(Work { changes: table.all().forwardings, ..Work::default() });
        }
    }

    /// Changes the table. The next commit writes the changes.
    pub(super) fn queue(&mut self, work: Work) {
        self.after.has_changes |= !work.changes.is_empty();
        self.after.add_health_checks(work.health_checks.iter().cloned());
        let changes = self.active.take(work.changes, work.health_checks);
        if let Some(successor) = &mut self.successor {
            successor.plane.note(&changes);
        }
        self.after.add(work.triggers, work.udp, work.objects);
    }

    pub(super) fn start(&mut self) {
        if self.active.state.is_waiting() {
            let now = self.clock.now();
            self.active.state.start(now);
            self.not_before = Some(now);
        }
    }

    /// Replaces the data plane with another, once that one has everything in the kernel.
    pub(super) fn replace(&mut self, dataplane: Boxed, settings: Option<Settings>) {
        let given_up = self.successor.take();
        let (given_up, its_settings) = given_up.map(|plane| (plane.plane.dataplane, plane.settings)).unzip();
        let settings = settings.or(its_settings.flatten());
        let successor = Successor::new(dataplane, settings, self.clock.now());
        if self.active.state.is_waiting() {
            // Nothing has been written yet.
            self.active.plane = successor.plane;
            if let Some(settings) = successor.settings {
                self.active.table.configure(settings);
            }
            return;
        }
        self.successor = Some(successor);
        if let Some(dataplane) = given_up {
            // It may have written some of its rules.
            self.retire(dataplane);
        }
    }

    /// Removes the rules of a data plane of another place, once everything is in the kernel without them.
    pub(super) fn retire(&mut self, dataplane: Boxed) {
        if dataplane.about().place != self.place() {
            self.retired.push(Retired::new(dataplane, self.clock.now()));
        }
    }

    /// Sets new settings, and with `of_successor` others for the successor, which are those of the family if it has taken over
    /// already. Everything is compared then.
    pub(super) fn configure(&mut self, settings: Settings, of_successor: Option<Settings>) {
        let now = self.clock.now();
        let of_active = if let Some(successor) = &mut self.successor {
            successor.settings = of_successor;
            settings
        } else {
            of_successor.unwrap_or(settings)
        };
        self.active.table.configure(of_active);
        self.active.state.doubt(Reason::Settings, now);
    }

    /// Sets new intervals. Waits under way end no later than the new intervals allow.
    pub(super) fn set_timing(&mut self, timing: Timing) {
        let now = self.clock.now();
        self.timing = timing;
        let longest = if self.retry.failed() { timing.max_retry } else { timing.min_interval };
        self.not_before = self.not_before.map(|at| at.min(now + longest));
        self.check_at = self.check_at.map(|at| at.min(now + timing.check_interval));
        self.verification.shorten(now, timing.min_interval);
    }

    /// Notes that another program changed the rules. They are compared soon. Changes are committed meanwhile.
    pub(super) fn drifted(&mut self) {
        let now = self.clock.now();
        if !self.repairs.notice(now) {
            return;
        }
        if self.active.state.doubt(Reason::Drift, now) {
            self.not_before = Some(now);
        } else if self.active.state.reason() != Some(Reason::Failure) {
            return;
        }
        // The comparison that follows a failure mends the drift, too. It waits as long as without it.
        if self.repairs.begin() {
            self.drift.noticed = self.drift.noticed.saturating_add(1);
            self.drift.last = Some(now);
        }
    }

    /// Sets whether a comparison that finds no difference is wanted.
    pub(super) fn verify(&mut self, is_wanted: bool) {
        if is_wanted {
            self.verification.want(self.clock.now());
        } else {
            self.verification.end();
        }
    }

    /// Lets the data plane keep what its next start can use, if it is in sync and no drift waits for its repair.
    pub(super) fn leave(&mut self, generation: u32) {
        if self.successor.is_none() && self.retired.is_empty() && self.repairs.due().is_none() {
            self.active.leave(generation);
        }
    }

    /// Returns when something is to be done next, or `None` if nothing is pending.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.run_due(), self.verification_due()].into_iter().flatten().min()
    }

    /// Returns when [`Self::run`] has something to do next.
    pub(super) fn run_due(&self) -> Option<Instant> {
        if self.active.state.is_waiting() {
            return None;
        }
        let commit = self.has_work().then(|| self.not_before.unwrap_or_else(|| self.clock.now()));
        let succession = self.successor.as_ref().map(Successor::due);
        let repair = self.repairs.due();
        [commit, self.full_at, self.collect_at, self.check_at, repair, succession, self.removal_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns when [`Self::run_verification`] has something to do next.
    pub(super) fn verification_due(&self) -> Option<Instant> {
        // A commit comes first, and the verification follows it.
        self.verification.due().filter(|_| !self.active.state.is_waiting() && !self.has_work())
    }

    /// Returns true if this time has come.
    pub(super) fn has_come(&self, at: Option<Instant>) -> bool {
        at.is_some_and(|at| at <= self.clock.now())
    }

    /// Does the most urgent of what is due.
    pub(super) fn run(&mut self, outside: &mut Outside<'_>) -> Option<Report> {
        if self.active.state.is_waiting() {
            return None;
        }
        let now = self.clock.now();
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if passed(self.full_at) {
            self.full_at = None;
            if let State::InSync { since } = self.active.state {
                self.compared = Some(since);
            }
            self.active.state.doubt(Reason::Periodic, now);
        }
        if passed(self.collect_at)
            && let Some(failure) = self.collect(now)
        {
            return Some(failure);
        }
        if passed(self.check_at) {
            self.check(now);
        }
        if passed(self.repairs.due()) {
            self.drifted();
        }
        // The successor's back-off grows with its failures, so the active data plane still gets to commit.
        if passed(self.successor.as_ref().map(Successor::due)) {
            return self.commit_successor();
        }
        let is_removal_due = passed(self.removal_due());
        // A piece waits for one commit at most: changes may come without end.
        let is_removal_first = is_removal_due && self.is_removal_delayed;
        if self.has_work() && self.not_before.is_none_or(|at| at <= now) && !is_removal_first {
            self.is_removal_delayed = is_removal_due;
            return Some(self.commit(outside));
        }
        self.is_removal_delayed = false;
        if is_removal_due {
            self.remove_retired();
        }
        None
    }

    /// Compares everything if that is due to verify, and nothing waits to be committed before it.
    pub(super) fn run_verification(&mut self, outside: &mut Outside<'_>) -> Option<Report> {
        let now = self.clock.now();
        let compares = self.verification.is_due(now)
            && !self.has_work()
            && self.active.state.doubt(Reason::Verification, now);
        compares.then(|| self.commit(outside))
    }

    /// Returns what the lane holds and has done.
    pub(super) fn snapshot(&self) -> FamilySnapshot {
        let about = self.active.plane.dataplane.about();
        FamilySnapshot {
            family: self.family(),
            mode: about.mode,
            place: about.place,
            iptables: about.claims.map(|claims| claims.place),
            table: self.active.table.clone(),
            state: self.active.state,
            pending: self.active.plane.waiting(&self.active.table),
            commits: self.history.commits(),
            failures: self.history.failures(),
            events: self.history.events(),
            totals: self.history.totals(),
            drift: self.drift,
            successor: self.successor.as_ref().map(|successor| successor.plane.dataplane.about().mode),
            retired: self.retired.iter().map(Retired::place).collect(),
        }
    }

    /// Returns true if the kernel notifies of changes to the rules of the active data plane.
    pub(super) fn is_notified(&self) -> bool {
        self.active.plane.dataplane.about().is_notified
    }

    /// Returns true if the kernel notifies of changes to the rules of the active data plane, or of its successor.
    pub(super) fn may_be_notified(&self) -> bool {
        let successor = self.successor.as_ref();
        self.is_notified() || successor.is_some_and(|successor| successor.plane.dataplane.about().is_notified)
    }

    fn place(&self) -> &'static str {
        self.active.plane.dataplane.about().place
    }

    fn has_work(&self) -> bool {
        let Self { active, after, .. } = self;
        active.state.reason().is_some()
            || !active.plane.has_everything()
            || after.has_changes
            || !after.udp.is_empty()
            || !after.health_checks.is_empty()
    }

    /// Checks that the rules are still in the kernel, for a mode that the kernel does not notify of changes.
    fn check(&mut self, now: Instant) {
        self.check_at = Some(now + self.timing.check_interval);
        // Changes that wait are no reason: the data plane knows what it has written.
        if !self.active.state.is_in_sync() {
            return;
        }
        let Driven { plane, table, .. } = &mut self.active;
        match plane.dataplane.check(table) {
            Ok(Condition::Intact) => {}
            // No other program has changed anything, so this is no drift, and no repair.
            Ok(Condition::Outdated) => drop(self.active.state.doubt(Reason::Node, now)),
            Ok(Condition::Changed) => self.drifted(),
            Err(error) => {
                let (family, mode) = (self.family(), self.active.plane.dataplane.about().mode);
                tracing::warn!(%family, mode, %error, "the check whether our rules are there failed");
            }
        }
    }

    /// Returns when to continue removing the rules of retired data planes. `None` while a comparison or the first attempt of a
    /// replacement is pending: packets depend on those.
    fn removal_due(&self) -> Option<Instant> {
        if self.active.state.reason().is_some() {
            return None;
        }
        let may_remove = may_remove(self.successor.as_ref());
        self.retired.iter().filter(|retired| may_remove(retired)).map(Retired::due).min()
    }

    fn remove_retired(&mut self) {
        let Driven { plane, table, .. } = &self.active;
        let (kept, max_retry) = (plane.dataplane.about().claims, self.timing.max_retry);
        let clock = &self.clock;
        let may_remove = may_remove(self.successor.as_ref());
        let retired = self.retired.iter_mut().enumerate().filter(|(_, retired)| may_remove(retired));
        let next = retired.min_by_key(|(_, retired)| retired.due());
        if let Some((index, retired)) = next
            && retired.remove_part(table, kept, max_retry, || clock.now())
        {
            self.retired.remove(index);
        }
    }

    /// Removes what only deleted Services needed. Returns a report if that fails; everything is then compared.
    fn collect(&mut self, now: Instant) -> Option<Report> {
        self.collect_at = None;
        if !self.active.state.is_in_sync() {
            // The next success sets the deadline again.
            return None;
        }
        let error = match self.active.plane.dataplane.collect() {
            Ok(collection) => {
                self.collect_at = (collection == Collection::Continues).then(|| now + COLLECT_PAUSE);
                return None;
            }
            Err(error) => error,
        };
        self.active.state.failed(self.clock.now());
        self.back_off();
        let mode = self.active.plane.dataplane.about().mode;
        let ended = self.clock.now();
        let report = self.report((mode, Step::Collection), (now, ended), false, Err(error));
        self.keep(&report, ended);
        Some(report)
    }
}

/// Returns whether the successor lets the rules of a retired data plane be removed.
fn may_remove(successor: Option<&Successor>) -> impl Fn(&Retired) -> bool + '_ {
    move |retired| successor.is_none_or(|successor| successor.lets_remove(retired))
}
