//! Work for a data plane: changes, and what follows their commit.

use std::ops::AddAssign;
use std::sync::Arc;

use portolan_model::catalog::UdpService;
use portolan_model::{Change, ServicePortName};

use crate::table::HealthCheckPort;
use portolan_mailbox::Latest;

/// Trigger times kept while commits fail or take long. Each is one observation of a histogram.
pub(super) const TRIGGERS_MAX: usize = 65_536;

/// Changes of one family, and what to do after they are committed.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Changes of Service ports, in order. The engine knows the former states: `old` does not matter.
    pub changes: Vec<Change>,
    /// Changed health-check node ports. The report of the commit returns them.
    pub health_checks: Vec<HealthCheckPort>,
    /// Trigger times of the EndpointSlice changes behind them, in nanoseconds since the Unix epoch.
    pub triggers: Vec<i64>,
    /// UDP Service ports whose stale flows are to be deleted after the commit.
    pub udp: Vec<UdpService>,
    /// Number of object changes that this work stands for.
    pub objects: ObjectChanges,
}

/// Numbers of object changes, whether or not they change a forwarding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectChanges {
    /// Changes of Services.
    pub services: usize,
    /// Changes of EndpointSlices.
    pub endpoint_slices: usize,
}

impl AddAssign for ObjectChanges {
    fn add_assign(&mut self, others: Self) {
        self.services = self.services.saturating_add(others.services);
        self.endpoint_slices = self.endpoint_slices.saturating_add(others.endpoint_slices);
    }
}

/// What follows the next successful commit, merged: a bounded number of trigger times, and each UDP Service port once.
#[derive(Debug, Default)]
pub(super) struct After {
    pub(super) triggers: Vec<i64>,
    pub(super) udp: Latest<Arc<ServicePortName>, UdpService>,
    pub(super) objects: ObjectChanges,
    /// The health-check node ports that the report returns.
    pub(super) health_checks: Latest<(Arc<str>, Arc<str>), HealthCheckPort>,
    /// True if changes were queued, even if they cancel each other out: a report must follow them.
    pub(super) has_changes: bool,
}

impl After {
    pub(super) fn add(
        &mut self,
        triggers: impl IntoIterator<Item = i64>,
        udp: impl IntoIterator<Item = UdpService>,
        objects: ObjectChanges,
    ) {
        let room = TRIGGERS_MAX.saturating_sub(self.triggers.len());
        self.triggers.extend(triggers.into_iter().take(room));
        udp.into_iter().for_each(|service| self.udp.insert(service.name.clone(), service));
        self.objects += objects;
    }

    /// Adds health-check node ports for the report.
    pub(super) fn add_health_checks(&mut self, checks: impl IntoIterator<Item = HealthCheckPort>) {
        for check in checks {
            self.health_checks.insert((check.namespace.clone(), check.service.clone()), check);
        }
    }

    /// Adds what follows later changes.
    pub(super) fn merge(&mut self, mut later: Self) {
        self.has_changes |= later.has_changes;
        self.add_health_checks(later.health_checks.take());
        self.add(later.triggers, later.udp.take(), later.objects);
    }
}
