//! Counts the object changes that are not in the kernel yet, for the gauges of pending changes.

use portolan_engine::ObjectChanges;
use portolan_model::Family;
use portolan_model::catalog::PerFamily;

/// Object changes between the watch and the kernel. Before the first commit these are all objects.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Changes that have not been handed over to the engine.
    collected: ObjectChanges,
    /// Changes that have been handed over and not been reported back.
    queued: PerFamily<ObjectChanges>,
}

impl Backlog {
    pub(super) fn service_changed(&mut self) {
        self.collected += ObjectChanges { services: 1, ..ObjectChanges::default() };
    }

    pub(super) fn endpoint_slice_changed(&mut self) {
        self.collected += ObjectChanges { endpoint_slices: 1, ..ObjectChanges::default() };
    }

    /// Adds the collected changes to a family's queue and returns them. The engine reports them back with its commit.
    pub(super) fn hand_over(&mut self, family: Family) -> ObjectChanges {
        *self.queued.get_mut(family) += self.collected;
        self.collected
    }

    /// Clears the collected changes, once every family with work has received them.
    pub(super) fn handed_over(&mut self) {
        self.collected = ObjectChanges::default();
    }

    /// Removes changes that the engine has reported back.
    pub(super) fn synced(&mut self, family: Family, done: ObjectChanges) {
        let queued = self.queued.get_mut(family);
        queued.services = queued.services.saturating_sub(done.services);
        queued.endpoint_slices = queued.endpoint_slices.saturating_sub(done.endpoint_slices);
    }

    /// Returns the pending changes. A change that is pending in both families counts once.
    pub(super) fn waiting(&self) -> ObjectChanges {
        let PerFamily { ipv4, ipv6 } = self.queued;
        let mut all = ObjectChanges {
            services: ipv4.services.max(ipv6.services),
            endpoint_slices: ipv4.endpoint_slices.max(ipv6.endpoint_slices),
        };
        all += self.collected;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_during_a_commit_are_pending_until_the_next_one() {
        let mut backlog = Backlog::default();
        backlog.service_changed();
        backlog.endpoint_slice_changed();
        let first = Family::BOTH.map(|family| backlog.hand_over(family));
        backlog.handed_over();
        assert_eq!(
            backlog.waiting(),
            ObjectChanges { services: 1, endpoint_slices: 1 },
            "once, not per family"
        );
        backlog.service_changed();
        let second = backlog.hand_over(Family::Ipv6);
        backlog.handed_over();
        assert_eq!(backlog.waiting(), ObjectChanges { services: 2, endpoint_slices: 1 });
        backlog.synced(Family::Ipv6, first[1]);
        assert_eq!(backlog.waiting(), ObjectChanges { services: 1, endpoint_slices: 1 });
        backlog.synced(Family::Ipv4, first[0]);
        assert_eq!(backlog.waiting(), ObjectChanges { services: 1, endpoint_slices: 0 });
        backlog.synced(Family::Ipv6, second);
        assert_eq!(backlog.waiting(), ObjectChanges::default());
    }

    #[test]
    fn a_change_without_effect_in_any_family_is_not_pending() {
        let mut backlog = Backlog::default();
        backlog.endpoint_slice_changed();
        assert_eq!(backlog.waiting(), ObjectChanges { services: 0, endpoint_slices: 1 });
        backlog.handed_over();
        assert_eq!(backlog.waiting(), ObjectChanges::default());
    }
}
