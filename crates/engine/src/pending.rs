//! Requests to the engine that its thread has not taken, merged.
//!
//! They take memory for each Service port that changed, not for each request: a commit may take a minute, and changes go on
//! meanwhile.

use std::sync::Arc;

use portolan_model::catalog::PerFamily;
use portolan_model::{Change, Coalesced, Family, Settings};

use super::lane::Lane;
use super::snapshot::FamilySnapshot;
use super::work::{After, ObjectChanges, Work};
use super::{Boxed, Timing};
use crate::table::{HealthCheckPort, Table};
use portolan_mailbox::Latest;

/// Receives a snapshot of every family.
pub(super) type Reply = Box<dyn FnOnce(Vec<FamilySnapshot>) + Send>;

/// Everything that was requested since the last time.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) families: PerFamily<Requests>,
    pub(super) start: bool,
    pub(super) timing: Option<Timing>,
    pub(super) watched: bool,
    pub(super) snapshots: Vec<Reply>,
    pub(super) stop: Option<Stop>,
}

/// How the engine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Data planes do nothing before the end.
    Now,
    /// Data planes in sync keep what their next start can use. No drift was known at this generation of the ruleset.
    InSync { generation: u32 },
}

impl Pending {
    /// Takes the changes of a family and what follows their commit. Returns `None` if there are none.
    pub(super) fn take_changes(&mut self, family: Family) -> Option<(Vec<Change>, After)> {
        self.families.get_mut(family).take_changes()
    }
}

/// What was requested for one family.
#[derive(Default)]
pub(super) struct Requests {
    /// What the family begins with.
    table: Option<Table>,
    changes: Coalesced,
    health_checks: Latest<(Arc<str>, Arc<str>), HealthCheckPort>,
    after: After,
    settings: Option<NewSettings>,
    replacement: Option<Replacement>,
    /// Data planes whose rules are to be removed. A process has one for each mode.
    retired: Vec<Boxed>,
    has_drifted: bool,
    /// Whether a verification is wanted, if that was requested.
    verifies: Option<bool>,
}

/// The settings that a family gets.
struct NewSettings {
    active: Settings,
    /// Those of the data plane that is to replace the active one, if it has its own.
    successor: Option<Settings>,
}

/// A data plane that is to replace the family's.
struct Replacement {
    dataplane: Boxed,
    /// Settings that belong to it. `None` if it has those of the data plane before it.
    settings: Option<Settings>,
    /// True if it was requested after the start: the data plane before it writes first, and is replaced as usual.
    is_after_start: bool,
}

impl Requests {
    /// Returns true if the rules stay as they are.
    pub(super) fn is_empty(&self) -> bool {
        let Self {
            table,
            changes,
            health_checks,
            after: _,
            settings,
            replacement,
            retired,
            has_drifted,
            verifies: _,
        } = self;
        table.is_none()
            && changes.is_empty()
            && health_checks.is_empty()
            && settings.is_none()
            && replacement.is_none()
            && retired.is_empty()
            && !has_drifted
    }

    pub(super) fn work(&mut self, work: Work) {
        self.changes.extend(work.changes);
        for check in work.health_checks {
            self.health_checks.insert((check.namespace.clone(), check.service.clone()), check);
        }
        self.after.add(work.triggers, work.udp, work.objects);
    }

    pub(super) fn begin_with(&mut self, table: Table) {
        self.table = Some(table);
    }

    /// The last replacement counts. Returns the one before it, whose rules have not been written.
    pub(super) fn replace(
        &mut self,
        dataplane: Boxed,
        settings: Option<Settings>,
        is_after_start: bool,
    ) -> Option<Boxed> {
        let former = self.replacement.take();
        let (former, its_settings) = former.map(|former| (former.dataplane, former.settings)).unzip();
        let settings = settings.or(its_settings.flatten());
        self.replacement = Some(Replacement { dataplane, settings, is_after_start });
        former
    }

    /// Returns true if a data plane is to replace the family's.
    pub(super) const fn replaces(&self) -> bool {
        self.replacement.is_some()
    }

    pub(super) fn retire(&mut self, dataplane: Boxed) {
        self.retired.push(dataplane);
    }

    pub(super) fn configure(&mut self, settings: Settings) {
        if let Some(replacement) = &mut self.replacement {
            replacement.settings = None;
        }
        self.settings = Some(NewSettings { active: settings, successor: None });
    }

    pub(super) fn configure_both(&mut self, of_active: Settings, of_successor: Settings) {
        let successor = match &mut self.replacement {
            Some(replacement) => {
                replacement.settings = Some(of_successor);
                None
            }
            None => Some(of_successor),
        };
        self.settings = Some(NewSettings { active: of_active, successor });
    }

    pub(super) fn drifted(&mut self) {
        self.has_drifted = true;
    }

    pub(super) const fn verify(&mut self, is_wanted: bool) {
        self.verifies = Some(is_wanted);
    }

    /// Takes the changes of Service ports and what follows their commit. Returns `None` if there are none.
    fn take_changes(&mut self) -> Option<(Vec<Change>, After)> {
        let changes = self.changes.take();
        if changes.is_empty() {
            return None;
        }
        let after = std::mem::take(&mut self.after);
        if self.settings.is_some() || self.replacement.is_some() {
            // They may be about the flows that these settings, or another data plane, concern. The comparison under way has
            // neither.
            self.after.add([], after.udp.values().cloned(), ObjectChanges::default());
        }
        Some((changes, after))
    }

    /// Passes everything to the lane of the family, and starts it if `start` is true.
    pub(super) fn pass_to(mut self, lane: &mut Lane, start: bool) {
        if let Some(settings) = self.settings {
            lane.configure(settings.active, settings.successor);
        }
        if let Some(table) = self.table {
            lane.begin_with(table);
        }
        lane.queue(Work {
            changes: self.changes.take(),
            health_checks: self.health_checks.take(),
            triggers: self.after.triggers,
            udp: self.after.udp.take(),
            objects: self.after.objects,
        });
        let (before, after) = match self.replacement {
            Some(replacement) if replacement.is_after_start => (None, Some(replacement)),
            before => (before, None),
        };
        if let Some(replacement) = before {
            lane.replace(replacement.dataplane, replacement.settings);
        }
        self.retired.into_iter().for_each(|dataplane| lane.retire(dataplane));
        if start {
            lane.start();
        }
        if let Some(replacement) = after {
            lane.replace(replacement.dataplane, replacement.settings);
        }
        if self.has_drifted {
            lane.drifted();
        }
        if let Some(is_wanted) = self.verifies {
            lane.verify(is_wanted);
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
        let Self { after, health_checks, .. } = self;
        [after.triggers.len(), after.udp.values().count(), health_checks.values().count()]
    }
}
