//! A planner with the table that it follows.

use std::ops::{Deref, DerefMut};

use portolan_model::{Change, Settings};

use super::{HealthCheckPort, IptablesOptions, Pieces, Planner, Present, Wanted};

pub(crate) struct Planned {
    planner: Planner,
    pub(crate) table: Wanted,
}

impl Planned {
    pub(crate) fn new(settings: Settings, options: IptablesOptions) -> Self {
        Self { planner: Planner::new(settings.clone(), options), table: Wanted::new(settings) }
    }

    /// Changes the table. The next full load writes the changes.
    pub(crate) fn remember(&mut self, changes: &[Change], health_checks: &[HealthCheckPort]) {
        let changes = self.table.take(changes.iter().cloned(), health_checks.iter().cloned());
        self.planner.follow(&changes);
    }

    /// Changes the table. Returns the restore.
    pub(crate) fn plan(&mut self, changes: &[Change], health_checks: &[HealthCheckPort]) -> String {
        let changes = self.table.take(changes.iter().cloned(), health_checks.iter().cloned());
        self.planner.plan(&self.table, &changes)
    }

    /// Returns a full load.
    pub(crate) fn full(&mut self, present: &Present, pieces: Pieces) -> String {
        let mut text = String::new();
        self.planner.full(&self.table, present, pieces, &mut text).unwrap();
        text
    }
}

impl Deref for Planned {
    type Target = Planner;

    fn deref(&self) -> &Planner {
        &self.planner
    }
}

impl DerefMut for Planned {
    fn deref_mut(&mut self) -> &mut Planner {
        &mut self.planner
    }
}
