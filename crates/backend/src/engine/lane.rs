//! One family's data plane with its queue and its deadlines.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_model::catalog::UdpService;
use portolan_model::{Change, Family, ServicePortName, Settings};

use super::{ObjectChanges, Report, Timing, Work};
use crate::Dataplane;

/// Wait before the first retry.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Kernels before 6.2 keep a chain referenced for a moment.
const COLLECT_PAUSE: Duration = Duration::from_secs(1);
/// Trigger times kept while commits fail; each is one observation of a histogram.
const TRIGGERS_MAX: usize = 65_536;
/// Drift is mended at once, but not more often than this: somebody who writes to our table all the time must
/// not keep the thread busy.
const MEND_INTERVAL: Duration = Duration::from_millis(200);

/// A data plane, what waits for it, and when.
pub(super) struct Lane {
    family: Family,
    dataplane: Box<dyn Dataplane + Send>,
    timing: Timing,
    started: bool,
    changes: Coalesced,
    triggers: Vec<i64>,
    udp: HashMap<Arc<ServicePortName>, UdpService>,
    objects: ObjectChanges,
    /// The data plane has health check ports to let in, or to let in no more.
    health_checks: bool,
    /// Everything has to be compared.
    compare: Option<Reason>,
    /// The next commit may not start earlier.
    not_before: Option<Instant>,
    full_at: Option<Instant>,
    collect_at: Option<Instant>,
    failures: u32,
}

/// Why everything is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// At the start, after a fault, for new settings, or because it is time.
    Planned,
    /// Because somebody else changed the table.
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
            compare: None,
            not_before: None,
            full_at: None,
            collect_at: None,
            failures: 0,
        }
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    pub(super) fn queue(&mut self, work: Work) {
        self.health_checks |= !work.health_checks.is_empty() && self.dataplane.let_in(&work.health_checks);
        if self.started {
            self.changes.extend(work.changes);
        } else {
            // Nothing is written before the start; the data plane only remembers.
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

    pub(super) fn configure(&mut self, settings: Settings) {
        self.dataplane.configure(settings);
        if self.started {
            self.compare = Some(Reason::Planned);
        }
    }

    /// Waits that are under way end no later than with the new intervals.
    pub(super) fn set_timing(&mut self, timing: Timing, now: Instant) {
        self.timing = timing;
        let longest = if self.failures > 0 { timing.max_retry } else { timing.min_interval };
        self.not_before = self.not_before.map(|at| at.min(now + longest));
    }

    pub(super) fn suspect(&mut self, now: Instant) {
        if self.started && self.compare.is_none() {
            self.compare = Some(Reason::Drift);
            let soon = self.not_before.filter(|&at| at > now).map_or(now, |at| at.min(now + MEND_INTERVAL));
            self.not_before = Some(soon);
        }
    }

    /// When to run next; `None` when there is nothing to wait for.
    pub(super) fn due(&self) -> Option<Instant> {
        if !self.started {
            return None;
        }
        let commit = self.has_work().then(|| self.not_before.unwrap_or_else(Instant::now));
        [commit, self.full_at, self.collect_at].into_iter().flatten().min()
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
        if passed(self.collect_at) {
            self.collect(now);
        }
        (self.has_work() && self.not_before.is_none_or(|at| at <= now)).then(|| self.commit())
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
        let mut report = Report {
            family: self.family,
            duration: ended - started,
            full: reason.is_some() || outcome.as_ref().is_ok_and(|commit| commit.full),
            repaired: false,
            triggers: Vec::new(),
            udp: Vec::new(),
            objects: ObjectChanges::default(),
            outcome,
        };
        if let Ok(commit) = &report.outcome {
            report.repaired = reason == Some(Reason::Drift) && commit.elements + commit.objects > 0;
            report.triggers = std::mem::take(&mut self.triggers);
            report.udp = std::mem::take(&mut self.udp).into_values().collect();
            report.objects = std::mem::take(&mut self.objects);
            self.succeeded(ended, commit.full);
        } else {
            self.failed(ended);
        }
        report
    }

    fn succeeded(&mut self, now: Instant, full: bool) {
        self.failures = 0;
        self.not_before = Some(now + self.timing.min_interval);
        if full || self.full_at.is_none() {
            self.full_at = Some(now + self.timing.full_interval);
        }
        if self.collect_at.is_none() && self.dataplane.needs_collection() {
            self.collect_at = Some(now + self.timing.collect_after);
        }
    }

    /// Doubles the wait with each failure in a row.
    fn failed(&mut self, now: Instant) {
        self.compare = Some(Reason::Planned);
        let wait = FIRST_RETRY.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = (self.failures + 1).min(16);
        self.not_before = Some(now + wait.min(self.timing.max_retry));
    }

    fn collect(&mut self, now: Instant) {
        self.collect_at = None;
        match self.dataplane.collect() {
            Ok(true) => self.collect_at = Some(now + COLLECT_PAUSE),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(family = %self.family, %error, "unused chains could not be removed; comparing everything");
                self.failed(now);
            }
        }
    }
}

/// Changes with one entry for each Service port: the latest.
#[derive(Debug, Default)]
struct Coalesced {
    changes: Vec<Change>,
    places: HashMap<Arc<ServicePortName>, usize>,
}

impl Coalesced {
    fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn extend(&mut self, changes: Vec<Change>) {
        for change in changes {
            let known = self.places.get(&change.name).and_then(|&place| self.changes.get_mut(place));
            if let Some(earlier) = known {
                earlier.new = change.new;
            } else {
                self.places.insert(change.name.clone(), self.changes.len());
                self.changes.push(change);
            }
        }
    }

    fn take(&mut self) -> Vec<Change> {
        self.places.clear();
        std::mem::take(&mut self.changes)
    }
}
