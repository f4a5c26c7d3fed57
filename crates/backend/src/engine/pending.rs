//! Requests to the engine that its thread has not taken, merged.
//!
//! They take memory for each Service port that changed, not for each request: a commit may take a minute, and changes go on
//! meanwhile.

use std::sync::Arc;

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
    /// Settings that came after it.
    settings: Option<Settings>,
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

    /// The last one counts. A data plane that the engine has not received has written nothing.
    pub(super) fn replace(&mut self, dataplane: Box<dyn Dataplane + Send>) {
        self.replacement = Some(Replacement { dataplane, settings: None });
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

    /// Passes everything to the lane of the family. A replacement comes after the changes: it receives the lane's table.
    pub(super) fn pass_to(mut self, lane: &mut Lane, now: std::time::Instant) {
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
        if let Some(Replacement { dataplane, settings }) = self.replacement {
            lane.replace(dataplane, now);
            if let Some(settings) = settings {
                lane.configure(settings);
            }
        }
        self.retired.into_iter().for_each(|dataplane| lane.retire(dataplane, now));
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
