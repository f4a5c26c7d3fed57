//! Compares the cluster IPs of Services with `IPAddress` objects, in both directions.

use std::{collections::HashMap, net::IpAddr};

use super::{
    AddressObject, Audit, Mend, ORPHAN_GRACE, Observed, Parent, Problem, ServiceObject, Subject,
    UNLISTED_GRACE,
};
use crate::{
    family::{Family, parse_address},
    service::{ServiceKey, ServiceType},
};

pub(super) type Services<'a> = HashMap<&'a ServiceKey, &'a ServiceObject>;

pub(super) fn audit(observed: &Observed<'_>, services: &Services<'_>, audit: &mut Audit) {
    let mut sides = Sides::new(observed, services, audit);
    for service in observed.services.iter().filter(|service| service.spec.needs_address()) {
        for text in &service.spec.cluster_ips {
            sides.cluster_ip(service, text);
        }
    }
    for object in observed.addresses.iter().filter(|object| object.is_managed) {
        sides.object(object);
    }
}

/// The two sides that an audit compares: Services and `IPAddress` objects.
pub(super) struct Sides<'a> {
    pub(super) observed: &'a Observed<'a>,
    pub(super) services: &'a Services<'a>,
    pub(super) objects: HashMap<IpAddr, &'a AddressObject>,
    /// Addresses for which this audit proposes to write an `IPAddress`, and their Services.
    pub(super) recorded: HashMap<IpAddr, &'a ServiceKey>,
    pub(super) audit: &'a mut Audit,
}

impl<'a> Sides<'a> {
    pub(super) fn new(observed: &'a Observed<'a>, services: &'a Services<'a>, audit: &'a mut Audit) -> Self {
        let objects = observed.addresses.iter().map(|object| (object.address, object)).collect();
        Self { observed, services, objects, recorded: HashMap::new(), audit }
    }

    fn cluster_ip(&mut self, service: &'a ServiceObject, text: &str) {
        let key = &service.key;
        let (problem, mend) = match parse_address(text) {
            None => (Problem::NotAnAddress(text.to_owned()), Mend::Nothing),
            Some(address) if !self.observed.families.contains(Family::of(address)) => {
                (Problem::FamilyNotConfigured(address), Mend::Nothing)
            }
            Some(address) if !self.observed.ranges.iter().any(|range| range.accepts(address)) => {
                (Problem::AddressOutOfRange(address), Mend::Nothing)
            }
            Some(address) => match self.allocation(key, address) {
                Some(found) => found,
                None => return,
            },
        };
        if let Mend::CreateAddress(address, _) | Mend::ReplaceAddress(address, _) = &mend {
            self.recorded.insert(*address, key);
        }
        self.audit.report(Subject::Service(key.clone()), problem, mend);
    }

    /// Returns the problem of the `IPAddress` of a valid cluster IP, or `None` if it has none.
    fn allocation(&self, key: &ServiceKey, address: IpAddr) -> Option<(Problem, Mend)> {
        if let Some(holder) = self.recorded.get(&address) {
            return (*holder != key).then(|| duplicate(address, holder.to_string()));
        }
        let Some(object) = self.objects.get(&address) else {
            let mend = Mend::CreateAddress(address, key.clone());
            return Some((Problem::AddressNotAllocated(address), mend));
        };
        let replace = Mend::ReplaceAddress(address, key.clone());
        match &object.parent {
            Parent::Service(parent) if parent == key => {
                let has_labels = object.is_managed && object.has_family_label;
                (!has_labels).then_some((Problem::WrongLabels(address), replace))
            }
            Parent::Other if !object.is_managed => {
                Some(duplicate(address, "something that is no Service".to_owned()))
            }
            Parent::Other => Some((Problem::AddressWronglyHeld(address), replace)),
            // Another Service has the address as its load-balancer address.
            Parent::Service(parent) if object.is_load_balancer => {
                Some(duplicate(address, parent.to_string()))
            }
            Parent::Service(parent) => match self.services.get(parent) {
                None => Some((Problem::AddressWronglyHeld(address), replace)),
                Some(other) if lists(other, address) => Some(duplicate(address, parent.to_string())),
                // The check of the `IPAddress` decides whether to delete it. Once it is deleted, this Service gets
                // its own.
                Some(_) => None,
            },
        }
    }

    fn object(&mut self, object: &AddressObject) {
        let address = object.address;
        if !self.recorded.contains_key(&address) {
            leaked(self.observed, self.services, object, |service| lists(service, address), self.audit);
        }
    }
}

/// Reports an `IPAddress` whose Service does not exist or does not list it.
pub(super) fn leaked(
    observed: &Observed<'_>,
    services: &Services<'_>,
    object: &AddressObject,
    lists: impl Fn(&ServiceObject) -> bool,
    audit: &mut Audit,
) {
    let address = object.address;
    let age = observed.now.saturating_sub(object.created);
    let problem = match &object.parent {
        Parent::Other => Problem::NoService(address),
        Parent::Service(key) => match services.get(key) {
            None => {
                if age <= ORPHAN_GRACE {
                    audit.recheck_in(ORPHAN_GRACE.saturating_sub(age).saturating_add(1));
                    return;
                }
                Problem::Orphan { address, service: key.clone() }
            }
            Some(service) if lists(service) => return,
            Some(service) => {
                if let Some(rest) = grace(service, object, age) {
                    audit.recheck_in(rest);
                    return;
                }
                // If another Service lists the address, the next audit creates an `IPAddress` for it, so it is
                // due at once.
                audit.recheck_in(0);
                Problem::Unlisted { address, service: key.clone() }
            }
        },
    };
    audit.report(Subject::Address(address), problem, Mend::DeleteAddress(address));
}

/// Returns the seconds for which an `IPAddress` that its Service does not list is still kept, or `None` if it is due.
fn grace(service: &ServiceObject, object: &AddressObject, age: u64) -> Option<u64> {
    let is_external_name = service.spec.service_type == ServiceType::ExternalName;
    let grace = if is_external_name {
        ORPHAN_GRACE
    } else if object.created > service.created {
        UNLISTED_GRACE
    } else {
        0
    };
    grace.checked_sub(age).filter(|rest| *rest > 0)
}

fn lists(service: &ServiceObject, address: IpAddr) -> bool {
    service.spec.addresses().contains(&address)
}

fn duplicate(address: IpAddr, holder: String) -> (Problem, Mend) {
    (Problem::AddressDuplicate { address, holder }, Mend::Nothing)
}
