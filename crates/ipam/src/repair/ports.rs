//! Compares the node ports of Services with the recorded node ports.

use std::collections::{BTreeSet, HashMap};

use super::{Audit, Mend, Observed, Problem, SIGHTINGS_TO_RELEASE, ServiceObject, Sightings, Subject};
use crate::service::ServiceKey;

pub(super) fn audit(observed: &Observed<'_>, before: &Sightings, audit: &mut Audit) {
    let recorded: BTreeSet<u16> = observed.recorded_ports.iter().copied().collect();
    let mut holders = HashMap::new();
    for service in observed.services {
        for port in service.spec.held_ports() {
            one(observed, service, port, &recorded, &mut holders, audit);
        }
    }
    for port in recorded.into_iter().filter(|port| !holders.contains_key(port)) {
        leaked(observed, port, before, audit);
    }
}

fn one<'a>(
    observed: &Observed<'_>,
    service: &'a ServiceObject,
    port: u16,
    recorded: &BTreeSet<u16>,
    holders: &mut HashMap<u16, &'a ServiceKey>,
    audit: &mut Audit,
) {
    let subject = Subject::Service(service.key.clone());
    if !observed.port_range.contains(port) {
        audit.report(subject, Problem::PortOutOfRange(port), Mend::Nothing);
        return;
    }
    if let Some(holder) = holders.get(&port) {
        let problem = Problem::PortDuplicate { port, holder: (*holder).clone() };
        audit.report(subject, problem, Mend::Nothing);
        return;
    }
    holders.insert(port, &service.key);
    if !recorded.contains(&port) {
        audit.report(subject, Problem::PortNotAllocated(port), Mend::RecordPort(port));
    }
}

/// Reports a leaked port. A port outside of the range cannot be allocated again, so it is released at once.
fn leaked(observed: &Observed<'_>, port: u16, before: &Sightings, audit: &mut Audit) {
    let sightings = before.ports.get(&port).copied().unwrap_or(0).saturating_add(1);
    let goes = sightings >= SIGHTINGS_TO_RELEASE || !observed.port_range.contains(port);
    let mend = if goes { Mend::ReleasePort(port) } else { Mend::Nothing };
    if !goes {
        audit.sightings.ports.insert(port, sightings);
    }
    audit.report(Subject::Port(port), Problem::PortLeaked { port, sightings }, mend);
}
