//! Requests to the engine that its thread has not taken, merged.
//!
//! They take memory for each Service port that changed, not for each request: a commit may take a minute, and changes go on
//! meanwhile.

use std::sync::Arc;
use std::time::Instant;

use portolan_model::catalog::{PerFamily, UdpService};
use portolan_model::{Coalesced, ServicePortName, Settings};

use super::lane::Lane;
use super::{ObjectChanges, TRIGGERS_MAX, Timing, Work};
use crate::latest::Latest;
use crate::{Dataplane, HealthCheckPort};

/// Everything that was requested since the last time.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) families: PerFamily<Requests>,
    pub(super) start: bool,
    pub(super) timing: Option<Timing>,
    pub(super) stop: bool,
}

/// What was requested for one family.
#[derive(Default)]
pub(super) struct Requests {
    changes: Coalesced,
    triggers: Vec<i64>,
    udp: Latest<Arc<ServicePortName>, UdpService>,
    health_checks: Latest<(Arc<str>, Arc<str>), HealthCheckPort>,
    objects: ObjectChanges,
    settings: Option<Settings>,
    replacement: Option<Replacement>,
    /// Data planes whose rules are to be removed. A process has one for each mode.
    retired: Vec<Box<dyn Dataplane + Send>>,
    has_drifted: bool,
}

/// A data plane that is to replace the family's.
struct Replacement {
    dataplane: Box<dyn Dataplane + Send>,
    /// True if it was requested after the start: the data plane before it writes first, and is replaced as usual.
    is_after_start: bool,
    /// Settings that came after it.
    settings: Option<Settings>,
}

impl Replacement {
    fn pass_to(self, lane: &mut Lane, now: Instant) {
        lane.replace(self.dataplane, now);
        if let Some(settings) = self.settings {
            lane.configure(settings);
        }
    }
}

impl Requests {
    pub(super) fn work(&mut self, work: Work) {
        self.changes.extend(work.changes);
        let room = TRIGGERS_MAX.saturating_sub(self.triggers.len());
        self.triggers.extend(work.triggers.into_iter().take(room));
        work.udp.into_iter().for_each(|service| self.udp.insert(service.name.clone(), service));
        for check in work.health_checks {
            self.health_checks.insert((check.namespace.clone(), check.service.clone()), check);
        }
        self.objects += work.objects;
    }

    /// The last replacement counts. Returns the one before it, whose rules have not been written. The settings that came after
    /// that one are kept for the active data plane, which works until the last one is complete.
    pub(super) fn replace(
        &mut self,
        dataplane: Box<dyn Dataplane + Send>,
        is_after_start: bool,
    ) -> Option<Box<dyn Dataplane + Send>> {
        let replacement = Replacement { dataplane, is_after_start, settings: None };
        let Replacement { dataplane, settings, .. } = self.replacement.replace(replacement)?;
        self.settings = settings.or(self.settings.take());
        Some(dataplane)
    }

    pub(super) fn retire(&mut self, dataplane: Box<dyn Dataplane + Send>) {
        self.retired.push(dataplane);
    }

    pub(super) fn configure(&mut self, settings: Settings) {
        match &mut self.replacement {
            Some(replacement) => replacement.settings = Some(settings),
            None => self.settings = Some(settings),
        }
    }

    pub(super) fn drifted(&mut self) {
        self.has_drifted = true;
    }

    /// Passes everything to the lane of the family, and starts it if `start` is true. A replacement comes after the changes: it
    /// receives the lane's table.
    pub(super) fn pass_to(mut self, lane: &mut Lane, start: bool, now: Instant) {
        if let Some(settings) = self.settings.take() {
            lane.configure(settings);
        }
        lane.queue(Work {
            changes: self.changes.take(),
            triggers: self.triggers,
            udp: self.udp.take(),
            health_checks: self.health_checks.take(),
            objects: self.objects,
        });
        let replacement = self.replacement.take();
        let (before, after) = match replacement {
            Some(replacement) if replacement.is_after_start => (None, Some(replacement)),
            before => (before, None),
        };
        if let Some(replacement) = before {
            replacement.pass_to(lane, now);
        }
        self.retired.into_iter().for_each(|dataplane| lane.retire(dataplane, now));
        if start {
            lane.start(now);
        }
        if let Some(replacement) = after {
            replacement.pass_to(lane, now);
        }
        if self.has_drifted {
            lane.mark_unknown(now);
        }
    }

    /// Number of Service ports with a pending change.
    #[cfg(test)]
    pub(super) fn changes(&self) -> usize {
        self.changes.iter().count()
    }

    /// Number of trigger times, UDP Service ports and health-check node ports that are pending.
    #[cfg(test)]
    pub(super) fn others(&self) -> [usize; 3] {
        [self.triggers.len(), self.udp.values().count(), self.health_checks.values().count()]
    }
}
