//! A random world, whose changes are as the engine passes them on.

use portolan_model::catalog::{Changes, HealthCheckChange};
use portolan_model::table::Entry;
use portolan_model::{Change, Family, world};

use super::HealthCheckPort;

pub(crate) struct Edited(world::Edited);

impl Edited {
    pub(crate) fn new(seed: u64, size: usize) -> Self {
        Self(world::Edited::new(seed, size))
    }

    /// Returns the first complete state, as changes.
    pub(crate) fn first(&mut self) -> (Vec<Change>, Vec<HealthCheckPort>) {
        passed_on(self.0.first())
    }

    /// Makes random edits and returns their changes.
    pub(crate) fn edit(&mut self, count: usize) -> (Vec<Change>, Vec<HealthCheckPort>) {
        passed_on(self.0.edit(count))
    }

    /// Returns the forwardings of a family as the Catalog has them.
    pub(crate) fn entries(&self, family: Family) -> Vec<Entry> {
        self.0.entries(family)
    }
}

fn passed_on(changes: Changes) -> (Vec<Change>, Vec<HealthCheckPort>) {
    let health_check = |change: &HealthCheckChange| HealthCheckPort {
        namespace: change.key.namespace.as_ref().into(),
        service: change.key.name.as_ref().into(),
        port: change.new.map(|check| check.port),
        local_ready: 0,
    };
    let health_checks = changes.health_checks.iter().map(health_check).collect();
    (changes.changes, health_checks)
}
