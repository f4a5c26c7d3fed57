//! Changes of objects on their way from the watch to the engine.

use portolan_engine::Work;
use portolan_model::catalog::Changes;
use portolan_model::object::Kind;
use portolan_model::{Change, Event};
use portolan_node::health::Now;

use super::{Agent, health_checks};

impl Agent {
    /// Applies one event of the watch to the Catalog.
    pub(super) fn apply(&mut self, mut event: Event) {
        let kind = kind_of(&event);
        if let Event::NodeDeleted(key) = &event
            && *key.name == *self.catalog.node_name()
        {
            self.progress.node_may_be_new();
        }
        self.complete_node(&mut event);
        if let Event::Service(service) = &mut event
            && !self.allows_external_ips
        {
            service.payload.ignore_external_ips();
        }
        let seen = self.see(&event);
        let applied = self.catalog.apply(event);
        if let Some(seen) = seen {
            self.record_object(seen, &applied);
        }
        match kind {
            Some(Kind::Service) => self.metrics.service_change(),
            Some(Kind::EndpointSlice) => self.metrics.endpoint_change(),
            Some(Kind::Node) => self.node_changed(),
            Some(Kind::ServiceCidr) | None => {}
        }
        match kind.filter(|_| applied.changed) {
            Some(Kind::Service) => self.backlog.service_changed(),
            Some(Kind::EndpointSlice) => self.backlog.endpoint_slice_changed(),
            _ => {}
        }
        for fault in &applied.faults {
            self.report_fault(fault);
        }
    }

    /// Hands the Catalog's changes over to the engine. Starts the engine when the first complete state is known.
    pub(super) fn hand_over(&mut self) {
        if self.running.is_none() {
            // A failed start ends the process at the next check of the deadlines. It is not repeated until then.
            if self.error.is_none() && self.may_start() {
                self.error = self.start().err();
            }
            self.update_readiness();
            return;
        }
        let changes = self.catalog.take_changes();
        if changes.service_cidrs {
            self.reconfigure();
        }
        if !changes.is_empty() {
            self.send(changes);
        }
        self.backlog.handed_over();
    }

    fn send(&mut self, mut changes: Changes) {
        self.record_changes(&changes.changes);
        changes.changes.iter().for_each(|change| self.need.take(change));
        self.review_memory();
        let Some(running) = &self.running else { return };
        let now = Now::read();
        for &family in &self.families {
            let (of_family, others) =
                changes.changes.into_iter().partition(|change: &Change| change.family == family);
            changes.changes = others;
            let triggers = std::mem::take(changes.triggers.get_mut(family));
            let udp = changes.udp.iter().filter(|(of, _)| *of == family);
            let udp = udp.filter_map(|(_, name)| self.catalog.udp_service(name, family)).collect();
            let udp = self.as_translated(family, self.with_others_at_node_ports(family, udp));
            let health_checks = health_checks::of_family(&changes.health_checks, family);
            let mut work = Work { changes: of_family, triggers, udp, health_checks, ..Work::default() };
            // Changes without effect in this family do not count for its programming latency.
            if work.changes.is_empty() && work.udp.is_empty() {
                if !work.health_checks.is_empty() {
                    running
                        .engine
                        .work(family, Work { health_checks: work.health_checks, ..Work::default() });
                }
                continue;
            }
            self.metrics.sync_queued(family, now.wall);
            self.health.queued(family, now);
            work.objects = self.backlog.hand_over(family);
            running.engine.work(family, work);
        }
        self.lower_health_checks(&changes.health_checks);
    }
}

fn kind_of(event: &Event) -> Option<Kind> {
    match event {
        Event::Service(_) | Event::ServiceDeleted(_) => Some(Kind::Service),
        Event::EndpointSlice(_) | Event::EndpointSliceDeleted(_) => Some(Kind::EndpointSlice),
        Event::Node(_) | Event::NodeDeleted(_) => Some(Kind::Node),
        _ => None,
    }
}
