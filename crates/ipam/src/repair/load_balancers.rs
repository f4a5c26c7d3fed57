//! Compares the load-balancer addresses of Services with `IPAddress` objects, in both directions. Addresses that other
//! programs wrote into the status of a Service are not examined: they are in no range and have no such object.

use std::net::IpAddr;

use super::{
    Audit, Mend, Observed, Parent, Problem, ServiceObject, Subject,
    addresses::{Services, Sides, leaked},
};
use crate::service::ServiceKey;

pub(super) fn audit(observed: &Observed<'_>, services: &Services<'_>, audit: &mut Audit) {
    let mut sides = Sides::new(observed, services, audit);
    for service in observed.services {
        for address in &service.load_balancer {
            sides.load_balancer_address(service, *address);
        }
    }
    for object in observed.addresses.iter().filter(|object| object.is_load_balancer) {
        if sides.recorded.contains_key(&object.address) {
            continue;
        }
        let lists = |service: &ServiceObject| service.load_balancer.contains(&object.address);
        leaked(observed, services, object, lists, sides.audit);
    }
}

impl<'a> Sides<'a> {
    fn load_balancer_address(&mut self, service: &'a ServiceObject, address: IpAddr) {
        let Some((problem, mend)) = self.problem(&service.key, address) else { return };
        if matches!(mend, Mend::RecordLoadBalancer(..)) {
            self.recorded.insert(address, &service.key);
        }
        self.audit.report(Subject::Service(service.key.clone()), problem, mend);
    }

    /// Returns the problem of an address that the status of a Service lists, or `None` if it has none.
    fn problem(&self, key: &ServiceKey, address: IpAddr) -> Option<(Problem, Mend)> {
        let ranges = self.observed.load_balancers;
        let is_inside = ranges.is_some_and(|ranges| ranges.iter().any(|range| range.accepts(address)));
        if let Some(holder) = self.recorded.get(&address) {
            return (*holder != key).then(|| duplicate(address, holder.to_string()));
        }
        let missing =
            || (Problem::BalancerNotAllocated(address), Mend::RecordLoadBalancer(address, key.clone()));
        let Some(object) = self.objects.get(&address) else { return is_inside.then(missing) };
        match &object.parent {
            _ if !object.is_load_balancer && !is_inside => None,
            Parent::Service(parent) if parent == key && object.is_load_balancer => {
                let is_kept = ranges.is_some() && !is_inside;
                is_kept.then_some((Problem::BalancerOutOfRange(address), Mend::Nothing))
            }
            // The address is a cluster IP, or another controller holds it.
            Parent::Other => Some(duplicate(address, "something that is no Service".to_owned())),
            Parent::Service(parent) if object.is_managed => Some(duplicate(address, parent.to_string())),
            Parent::Service(parent) if parent == key => Some(missing()),
            Parent::Service(parent) => match self.services.get(parent) {
                Some(other) if other.load_balancer.contains(&address) => {
                    Some(duplicate(address, parent.to_string()))
                }
                // The check of the `IPAddress` decides whether to delete it. The next audit then records the address.
                _ => None,
            },
        }
    }
}

fn duplicate(address: IpAddr, holder: String) -> (Problem, Mend) {
    (Problem::BalancerDuplicate { address, holder }, Mend::Nothing)
}
