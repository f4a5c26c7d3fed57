//! A lane: one family's data plane with its queue and its deadlines.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::catalog::UdpService;
use portolan_model::{Coalesced, Family, ServicePortName, Settings};

use super::retry::Retry;
use super::successor::{HealthChecks, Retired, Successor};
use super::{ObjectChanges, Report, Step, TRIGGERS_MAX, Timing, Work};
use crate::{Commit, Dataplane, Error};

/// Wait between two parts of a collection: kernels before 6.2 keep a chain referenced for a moment.
const COLLECT_PAUSE: Duration = Duration::from_secs(1);
/// Minimum time between two repairs of drift. Drift is repaired at once, but a program that writes to our table all
/// the time must not keep the thread busy.
const REPAIR_INTERVAL: Duration = Duration::from_millis(200);

/// A data plane with its pending work and its deadlines.
pub(super) struct Lane {
    family: Family,
    dataplane: Box<dyn Dataplane + Send>,
    timing: Timing,
    started: bool,
    changes: Coalesced,
    triggers: Vec<i64>,
    udp: HashMap<Arc<ServicePortName>, UdpService>,
    objects: ObjectChanges,
    /// True if the data plane has health-check node ports to open or close.
    health_checks: bool,
    /// All health-check node ports, for data planes that replace this one.
    health_check_ports: HealthChecks,
    /// The data plane that is to replace the active one.
    successor: Option<Successor>,
    /// Replaced data planes whose rules are not completely removed.
    retired: Vec<Retired>,
    /// Set if everything has to be compared.
    compare: Option<Reason>,
    /// Earliest start of the next commit.
    not_before: Option<Instant>,
    full_at: Option<Instant>,
    collect_at: Option<Instant>,
    /// When to check that the rules are still there, for a mode that the kernel does not notify of changes.
    check_at: Option<Instant>,
    retry: Retry,
}

/// Why everything is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The start, a fault, new settings, or the periodic comparison.
    Planned,
    /// Another program changed the table.
    Drift,
}

impl Lane {
    pub(super) fn new(family: Family, dataplane: Box<dyn Dataplane + Send>, timing: Timing) -> Self {
        Self {
            family,
            dataplane,
            timing,
            started: false,
            changes: Coalesced::default(),
            triggers: Vec::new(),
            udp: HashMap::new(),
            objects: ObjectChanges::default(),
            health_checks: false,
            health_check_ports: HealthChecks::default(),
            successor: None,
            retired: Vec::new(),
            compare: None,
            not_before: None,
            full_at: None,
            collect_at: None,
            check_at: None,
            retry: Retry::default(),
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    pub(super) fn queue(&mut self, work: Work) {
        if !work.health_checks.is_empty() {
            self.health_checks |= self.dataplane.open_health_check_ports(&work.health_checks);
            self.health_check_ports.take(&work.health_checks);
        }
        if let Some(successor) = &mut self.successor {
            successor.queue(&work);
        }
        if self.started {
            self.changes.extend(work.changes);
        } else if !work.changes.is_empty() {
            // Nothing is written before the start: the data plane only stores the changes.
            let _ = self.dataplane.apply(&work.changes);
        }
        let room = TRIGGERS_MAX.saturating_sub(self.triggers.len());
        self.triggers.extend(work.triggers.into_iter().take(room));
        self.udp.extend(work.udp.into_iter().map(|service| (service.name.clone(), service)));
        self.objects += work.objects;
    }

    pub(super) fn start(&mut self, now: Instant) {
        if !self.started {
            self.started = true;
            self.compare = Some(Reason::Planned);
            self.not_before = Some(now);
        }
    }

    /// Replaces the data plane with another, once that one has everything in the kernel.
    pub(super) fn replace(&mut self, dataplane: Box<dyn Dataplane + Send>, now: Instant) {
        let table = self.dataplane.forwardings();
        let successor =
            Successor::new(dataplane, self.family, table, &self.changes, &self.health_check_ports, now);
        if !self.started {
            // Nothing has been written yet.
            self.dataplane = successor.into_dataplane();
            return;
        }
        if let Some(given_up) = self.successor.replace(successor) {
            // It may have written some of its rules.
            self.retire(given_up.into_dataplane(), now);
        }
    }

    /// Removes the rules of a data plane of another place, once everything is in the kernel without them.
    pub(super) fn retire(&mut self, dataplane: Box<dyn Dataplane + Send>, now: Instant) {
        if dataplane.place() != self.dataplane.place() {
            self.retired.push(Retired::new(dataplane, now));
        }
    }

    /// Sets new settings for the data plane and its pending successor.
    pub(super) fn configure(&mut self, settings: Settings) {
        if let Some(successor) = &mut self.successor {
            successor.configure(settings.clone());
        }
        self.dataplane.configure(settings);
        if self.started {
            self.compare = Some(Reason::Planned);
        }
    }

    /// Sets new intervals. Waits under way end no later than the new intervals allow.
    pub(super) fn set_timing(&mut self, timing: Timing, now: Instant) {
        self.timing = timing;
        let longest = if self.retry.failed() { timing.max_retry } else { timing.min_interval };
        self.not_before = self.not_before.map(|at| at.min(now + longest));
        self.check_at = self.check_at.map(|at| at.min(now + timing.check_interval));
    }

    pub(super) fn mark_unknown(&mut self, now: Instant) {
        if self.started && self.compare.is_none() {
            self.compare = Some(Reason::Drift);
            let soon = self.not_before.filter(|&at| at > now).map_or(now, |at| at.min(now + REPAIR_INTERVAL));
            self.not_before = Some(soon);
        }
    }

    /// Returns when to run next, or `None` if nothing is pending.
    pub(super) fn due(&self) -> Option<Instant> {
        if !self.started {
            return None;
        }
        let commit = self.has_work().then(|| self.not_before.unwrap_or_else(Instant::now));
        let succession = self.successor.as_ref().map(Successor::due);
        [commit, self.full_at, self.collect_at, self.check_at, succession, self.removal_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due.
    pub(super) fn run(&mut self, now: Instant) -> Option<Report> {
        if !self.started {
            return None;
        }
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if passed(self.full_at) {
            self.full_at = None;
            self.compare = self.compare.or(Some(Reason::Planned));
        }
        if passed(self.collect_at)
            && let Some(failure) = self.collect(now)
        {
            return Some(failure);
        }
        if passed(self.check_at) {
            self.check(now);
        }
        // The successor's back-off grows with its failures, so the active data plane still gets to commit.
        if passed(self.successor.as_ref().map(Successor::due)) {
            return self.commit_successor();
        }
        if self.has_work() && self.not_before.is_none_or(|at| at <= now) {
            return Some(self.commit());
        }
        if passed(self.removal_due()) {
            self.remove_retired();
        }
        None
    }

    fn has_work(&self) -> bool {
        self.compare.is_some() || !self.changes.is_empty() || !self.udp.is_empty() || self.health_checks
    }

    fn commit(&mut self) -> Report {
        let started = Instant::now();
        let reason = self.compare.take();
        let changes = self.changes.take();
        self.health_checks = false;
        let outcome = match reason {
            None => self.dataplane.apply(&changes),
            Some(_) => self.dataplane.compare(&changes),
        };
        let ended = Instant::now();
        let full = reason.is_some() || outcome.as_ref().is_ok_and(|commit| commit.full);
        let mut report = self.report(self.dataplane.mode(), ended - started, full, outcome);
        if let Ok(commit) = &report.outcome {
            report.repaired = reason == Some(Reason::Drift) && commit.elements + commit.objects > 0;
            let full = commit.full;
            if !full {
                report.changed = changes.into_iter().map(|change| change.name).collect();
            }
            self.complete(&mut report);
            self.succeeded(ended, full);
        } else {
            self.failed(ended);
        }
        report
    }

    /// Commits everything with the successor. If that succeeds, the successor becomes the active data plane.
    fn commit_successor(&mut self) -> Option<Report> {
        let mut successor = self.successor.take()?;
        let started = Instant::now();
        let outcome = successor.commit(self.timing.max_retry);
        let ended = Instant::now();
        let mut report = self.report(successor.mode(), ended - started, true, outcome);
        report.step = Step::Replacement;
        if report.outcome.is_err() {
            self.successor = Some(successor);
            return Some(report);
        }
        let former = std::mem::replace(&mut self.dataplane, successor.into_dataplane());
        let place = self.dataplane.place();
        self.retired.retain(|retired| retired.place() != place);
        self.retire(former, ended);
        // The successor has written all of it.
        self.changes.take();
        self.health_checks = false;
        (self.compare, self.collect_at, self.check_at) = (None, None, None);
        self.complete(&mut report);
        self.succeeded(ended, true);
        Some(report)
    }

    fn report(
        &self,
        mode: &'static str,
        duration: Duration,
        full: bool,
        outcome: Result<Commit, Error>,
    ) -> Report {
        Report {
            family: self.family,
            mode,
            duration,
            full,
            repaired: false,
            step: Step::Commit,
            triggers: Vec::new(),
            udp: Vec::new(),
            objects: ObjectChanges::default(),
            changed: Vec::new(),
            outcome,
        }
    }

    /// Moves what waited for a successful commit into the report.
    fn complete(&mut self, report: &mut Report) {
        report.triggers = std::mem::take(&mut self.triggers);
        report.udp = std::mem::take(&mut self.udp).into_values().collect();
        report.objects = std::mem::take(&mut self.objects);
    }

    fn succeeded(&mut self, now: Instant, full: bool) {
        self.retry.succeeded();
        self.not_before = Some(now + self.timing.min_interval);
        if full || self.full_at.is_none() {
            self.full_at = Some(now + self.timing.full_interval);
        }
        if self.collect_at.is_none() && self.dataplane.needs_collection() {
            self.collect_at = Some(now + self.timing.collect_after);
        }
        if self.check_at.is_none() && self.dataplane.needs_checks() {
            self.check_at = Some(now + self.timing.check_interval);
        }
    }

    fn failed(&mut self, now: Instant) {
        self.compare = Some(Reason::Planned);
        self.not_before = Some(now + self.retry.next(self.timing.max_retry));
    }

    /// Checks that the rules are still in the kernel, for a mode that the kernel does not notify of changes.
    fn check(&mut self, now: Instant) {
        self.check_at = Some(now + self.timing.check_interval);
        if self.compare.is_some() {
            return;
        }
        match self.dataplane.is_intact() {
            Ok(true) => {}
            Ok(false) => self.mark_unknown(now),
            Err(error) => {
                let mode = self.dataplane.mode();
                tracing::warn!(family = %self.family, mode, %error, "whether our rules are there cannot be told now");
            }
        }
    }

    /// Returns when to continue removing the rules of retired data planes. `None` while a comparison or a replacement
    /// is pending: packets depend on those.
    fn removal_due(&self) -> Option<Instant> {
        if self.compare.is_some() || self.successor.is_some() {
            return None;
        }
        self.retired.iter().map(Retired::due).min()
    }

    fn remove_retired(&mut self) {
        let kept = self.dataplane.chains();
        let (family, max_retry) = (self.family, self.timing.max_retry);
        let next = self.retired.iter_mut().enumerate().min_by_key(|(_, retired)| retired.due());
        if let Some((index, retired)) = next
            && retired.retire(family, kept, max_retry)
        {
            self.retired.remove(index);
        }
    }

    /// Removes unused chains and sets. Returns a report if that fails; everything is then compared.
    fn collect(&mut self, now: Instant) -> Option<Report> {
        self.collect_at = None;
        let error = match self.dataplane.collect() {
            Ok(is_more) => {
                self.collect_at = is_more.then(|| now + COLLECT_PAUSE);
                return None;
            }
            Err(error) => error,
        };
        self.failed(now);
        let mut report = self.report(self.dataplane.mode(), now.elapsed(), false, Err(error));
        report.step = Step::Collection;
        Some(report)
    }
}
