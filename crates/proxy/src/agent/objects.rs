//! Reports on objects: parts that cannot be used, and external addresses that belong to something else.

use std::sync::atomic::Ordering;

use portolan_model::catalog::{GuardAction, ObjectFault};
use portolan_model::object::{Kind, Notice};

use super::{Agent, resource};

impl Agent {
    /// Uses the configured address guard. Services whose frontends it changes are handed over with the next changes.
    pub(super) fn review_address_guard(&mut self) {
        let policy = self.configuration.address_guard.clone();
        let applied = self.catalog.set_address_guard(policy, self.configuration.cluster_cidrs.clone());
        for fault in &applied.faults {
            self.report_fault(fault);
        }
        self.count_guarded_addresses();
    }

    /// Shows in the metrics how many external addresses belong to something else or hide the API server, if that changed.
    pub(super) fn count_guarded_addresses(&mut self) {
        let (counts, of_api_server) = (self.catalog.guarded_addresses(), self.catalog.api_server_addresses());
        if (counts, &of_api_server) == (&self.guarded.0, &self.guarded.1) {
            return;
        }
        self.guarded = (counts.clone(), of_api_server);
        let of_guard = counts.iter().map(|((owner, action), count)| {
            let action = if *action == GuardAction::Refuse { "refuse" } else { "warn" };
            ([action, owner.name()], *count)
        });
        let of_api_server = (of_api_server > 0).then_some((["refuse", "apiServer"], of_api_server));
        self.metrics.guarded_addresses(&of_guard.chain(of_api_server).collect::<Vec<_>>());
    }

    /// Logs a part of an object that cannot be used. If clients of a Service notice it, also posts an Event for the
    /// Service.
    pub(super) fn report_fault(&self, fault: &ObjectFault) {
        let (kind, key) = (fault.kind.name(), &fault.key);
        let what = if fault.fault.notice == Some(Notice::AddressShared) {
            "served nevertheless"
        } else {
            "left out"
        };
        tracing::warn!(kind, namespace = &*key.namespace, name = &*key.name, fault = %fault.fault, "{what}");
        if let (Some(notice), Kind::Service) = (fault.fault.notice, fault.kind) {
            self.notes.service_fault(key, notice, &fault.fault);
        }
    }

    pub(super) fn count_bad_objects(&self) {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
            let unreadable = self.counts.of(kind).unreadable.load(Ordering::Relaxed);
            let unreadable = usize::try_from(unreadable).unwrap_or(usize::MAX);
            let bad = self.catalog.faulty_objects(kind).saturating_add(unreadable);
            self.metrics.bad_objects(resource(kind), bad);
        }
    }
}
