//! The commits of a lane, and what follows them.

use std::time::Instant;

use super::super::arrivals::{Arrivals, Arrived, Outside};
use super::super::attempt::{Attempt, Cause};
use super::super::repairs::Repairs;
use super::super::state::Reason;
use super::super::successor::Retired;
use super::super::work::{After, ObjectChanges};
use super::super::{Report, Step};
use super::Lane;
use crate::dataplane::{Commit, Error};

impl Lane {
    /// Writes what waits with the active data plane, or compares everything.
    pub(super) fn commit(&mut self, outside: &mut Outside<'_>) -> Report {
        let started = self.clock.now();
        let reason = self.active.state.reason();
        // Drift that waits for its repair has to be mended.
        let may_be_put_off = reason == Some(Reason::Periodic) && self.repairs.due().is_none();
        if reason.is_some() {
            self.repairs.compares();
        }
        let clock = self.clock.clone();
        let mode = self.active.plane.dataplane.about().mode;
        let about = (self.family(), mode);
        let mut arrivals = Arrivals::new(outside, about, clock.clone(), self.timing.min_interval);
        // A verification ends only if nothing is written.
        let follows = reason != Some(Reason::Verification);
        let first_cause = self.active.plane.is_new().then(|| Cause::of_all(reason, &self.active.table));
        let (outcome, changes) = self.active.commit(follows.then_some(&mut arrivals), || clock.now());
        let taken = self.follow(arrivals.finish()).unwrap_or(started);
        let ended = self.clock.now();
        let full = reason.is_some() || outcome.as_ref().is_ok_and(|commit| commit.full);
        let mut report = self.report((mode, Step::Commit), (started, ended), full, outcome);
        report.taken_before = ended.saturating_duration_since(taken);
        report.cause = first_cause.unwrap_or_else(|| Cause::new(reason, &changes.forwardings));
        if let Ok(commit) = &report.outcome {
            let full = commit.full;
            let mends = full && self.repairs.succeeded(ended, report.duration);
            report.repaired = mends && commit.elements.saturating_add(commit.objects) > 0;
            if report.repaired {
                self.drift.repaired = self.drift.repaired.saturating_add(1);
                self.drift.last_repaired = Some(ended);
            }
            if !full {
                report.changed = changes.forwardings.into_iter().map(|change| change.name).collect();
            }
            self.complete(&mut report);
            self.succeeded(full);
            self.follow_verification(&mut report, reason);
        } else if may_be_put_off
            && matches!(report.outcome, Err(Error::Contended { is_unchanged: true, .. }))
            && let Some(compared) = self.compared
        {
            self.put_off(compared, ended);
            report.step = Step::PutOff;
        } else {
            self.back_off();
        }
        // A comparison that is put off is no failure.
        if report.step != Step::PutOff {
            self.keep(&report, ended);
        }
        report
    }

    /// Puts off a periodic comparison. The data plane is as before it, so changes are written without one.
    fn put_off(&mut self, compared: Instant, now: Instant) {
        self.active.state.trust(compared);
        let wait = self.timing.max_retry.saturating_mul(1 << self.put_off.min(16));
        self.put_off = self.put_off.saturating_add(1);
        self.full_at = Some(now + wait.min(self.timing.full_interval));
    }

    /// Puts the changes into the table that the data plane has taken during a comparison. Returns when it took the last ones.
    fn follow(&mut self, arrived: Arrived) -> Option<Instant> {
        let Arrived { changes, after, attempts, taken } = arrived;
        let changes = self.active.follow(changes);
        if let Some(successor) = &mut self.successor {
            successor.plane.note(&changes);
        }
        self.after.merge(after);
        for attempt in attempts {
            self.history.keep(attempt);
        }
        taken
    }

    /// Ends the verification if this commit was a comparison that found no difference. If it found one, compares again
    /// later.
    fn follow_verification(&mut self, report: &mut Report, reason: Option<Reason>) {
        let Ok(commit) = &report.outcome else { return };
        if !self.verification.is_wanted() || !commit.full {
            return;
        }
        report.verified = commit.elements == 0 && commit.objects == 0;
        if report.verified {
            self.verification.end();
        } else {
            let was_to_verify = reason == Some(Reason::Verification);
            self.verification.found_difference(self.clock.now(), was_to_verify, self.timing.min_interval);
        }
    }

    /// Commits everything with the successor. If that succeeds, the successor becomes the active data plane.
    pub(super) fn commit_successor(&mut self) -> Option<Report> {
        let mut successor = self.successor.take()?;
        self.retired.iter_mut().for_each(Retired::suspend);
        let started = self.clock.now();
        let changed = successor.plane.waiting(&self.active.table);
        let outcome = successor.compare(&self.active.table);
        let mode = successor.plane.dataplane.about().mode;
        let now = self.clock.now();
        let mut report = self.report((mode, Step::Replacement), (started, now), true, outcome);
        report.cause.changed = changed;
        if report.outcome.is_err() {
            successor.failed(now, self.timing.max_retry);
            self.successor = Some(successor);
            self.keep(&report, now);
            return Some(report);
        }
        if let Some(settings) = successor.settings {
            self.active.table.configure(settings);
        }
        let former = std::mem::replace(&mut self.active.plane, successor.plane);
        let place = self.place();
        self.retired.retain(|retired| retired.place() != place);
        self.retire(former.dataplane);
        // The successor has written all of it.
        self.active.state.succeeded(true, now);
        (self.collect_at, self.check_at) = (None, None);
        self.repairs = Repairs::default();
        self.complete(&mut report);
        self.succeeded(true);
        self.keep(&report, now);
        Some(report)
    }

    pub(super) fn report(
        &self,
        (mode, step): (&'static str, Step),
        (started, ended): (Instant, Instant),
        full: bool,
        outcome: Result<Commit, Error>,
    ) -> Report {
        Report {
            family: self.family(),
            mode,
            duration: ended.saturating_duration_since(started),
            taken_before: ended.saturating_duration_since(started),
            full,
            repaired: false,
            verified: false,
            step,
            cause: Cause::default(),
            triggers: Vec::new(),
            udp: Vec::new(),
            objects: ObjectChanges::default(),
            health_checks: Vec::new(),
            changed: Vec::new(),
            outcome,
        }
    }

    /// Remembers the attempt that a complete report is about.
    pub(super) fn keep(&mut self, report: &Report, ended: Instant) {
        self.history.keep(Attempt::new(report, ended));
    }

    /// Moves what waited for a successful commit into the report.
    fn complete(&mut self, report: &mut Report) {
        let After { triggers, mut udp, objects, mut health_checks, .. } = std::mem::take(&mut self.after);
        (report.triggers, report.udp, report.objects) = (triggers, udp.take(), objects);
        report.health_checks = health_checks.take();
    }

    fn succeeded(&mut self, full: bool) {
        let now = self.clock.now();
        self.retry.succeeded();
        self.not_before = Some(now + self.timing.min_interval);
        if full {
            self.put_off = 0;
        }
        if full || self.full_at.is_none() {
            self.full_at = Some(now + self.timing.full_interval);
        }
        self.collect_at.get_or_insert(now + self.timing.collect_after);
        if self.check_at.is_none() && !self.is_notified() {
            self.check_at = Some(now + self.timing.check_interval);
        }
    }

    pub(super) fn back_off(&mut self) {
        self.not_before = Some(self.clock.now() + self.retry.next(self.timing.max_retry));
    }
}
