//! Addresses of Services of type LoadBalancer, if `--load-balancer-ip-range` is set.
//!
//! Such an address is in the status of its Service, and an IPAddress records that the Service holds it. The name of an
//! IPAddress is the address, so that no other Service gets it, as cluster IP or as load-balancer address. Both objects
//! are written in one transaction. A Service holds an address if its status lists it and its IPAddress, with the label
//! of load-balancer addresses, names the Service.
//!
//! The addresses are decided at every write of a Service, its status included. So a client that writes the status can
//! neither take an address of another Service nor remove one. Entries of the status that are in no range, such as those
//! of another load balancer, stay as clients write them.

use std::net::IpAddr;

use portolan_ipam::{
    Family, Holder, ServiceKey,
    family::parse_address,
    load_balancer::{self, Allocation, Demand, RequestRefusal, Supply},
};
use portolan_schema::{
    Resource,
    json::{self, Object, Value, json},
};
use portolan_store::Store;

use super::{
    Ledger, MANAGED_BY,
    records::{Recorded, parent_of},
};
use crate::{error::FieldError, kinds::service::service_type};

/// The `loadBalancerClass` of Services that get their address from this server. Those without class do, too.
const CLASS: &str = "portolan.dev/load-balancer";
/// Annotation of a Service that requests load-balancer addresses, separated by commas: one of each family.
const REQUEST: &str = "portolan.dev/load-balancer-ips";
/// Value of [`MANAGED_BY`] for load-balancer addresses.
pub(crate) const BALANCER: &str = "load-balancer.portolan.dev";

/// Returns true if the Service is of type LoadBalancer, and its class is unset or [`CLASS`].
pub(crate) fn is_ours(service: &Object) -> bool {
    json::object(service, "spec").is_some_and(|spec| {
        service_type(spec) == "LoadBalancer"
            && json::text(spec, "loadBalancerClass").is_none_or(|class| class == CLASS)
    })
}

/// Returns the addresses that the status lists.
pub(crate) fn listed(service: &Object) -> Vec<IpAddr> {
    entries(service).iter().filter_map(entry_address).collect()
}

/// Returns the addresses that a stored Service holds.
pub(crate) fn held(store: &dyn Store, owner: &ServiceKey, service: &Object) -> Vec<IpAddr> {
    let is_own = |address: &IpAddr| recorded_holder(store, *address).is_some_and(|holder| holder == *owner);
    let mut held = listed(service);
    held.retain(is_own);
    held
}

/// The requested addresses, and the field that requests them.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) field: String,
    texts: Vec<&'a str>,
}

impl<'a> Request<'a> {
    /// Reads the request of a Service: the annotation, or the deprecated `spec.loadBalancerIP`.
    pub(crate) fn of(service: &'a Object) -> Self {
        let metadata = json::object(service, "metadata");
        let annotations = metadata.and_then(|metadata| json::object(metadata, "annotations"));
        if let Some(text) = annotations.and_then(|annotations| json::text(annotations, REQUEST)) {
            let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
            return Self { field: format!("metadata.annotations[{REQUEST}]"), texts };
        }
        let single = json::object(service, "spec").and_then(|spec| json::text(spec, "loadBalancerIP"));
        Self { field: "spec.loadBalancerIP".to_owned(), texts: single.into_iter().collect() }
    }

    /// Returns the requested addresses. Texts that are no address are left out.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.texts.iter().filter_map(|text| parse_address(text)).collect()
    }

    fn refused(&self, value: &str, refusal: &RequestRefusal) -> FieldError {
        FieldError::invalid(self.field.as_str(), value, &refusal.to_string())
    }

    fn unreadable(&self) -> Option<FieldError> {
        let text = self.texts.iter().find(|text| parse_address(text).is_none())?;
        Some(self.refused(text, &RequestRefusal::NotAnAddress))
    }
}

impl Ledger {
    /// Plans the load-balancer addresses of a new or changed Service, and writes them into its status. `families` are
    /// those of the planned spec.
    pub(crate) fn plan_load_balancer(
        &mut self,
        store: &dyn Store,
        (new, old): (&mut Object, Option<&Object>),
        (owner, families): (&ServiceKey, &[Family]),
    ) -> Result<Allocation, Vec<FieldError>> {
        let (was_ours, is_ours) = (old.is_some_and(is_ours), is_ours(new));
        if !was_ours && !is_ours {
            return Ok(Allocation::default());
        }
        let held = old.map(|old| held(store, owner, old)).unwrap_or_default();
        if held.is_empty() && self.balancers.ranges().next().is_none() {
            return Ok(Allocation::default());
        }
        let allocation = if !is_ours {
            Allocation { release: held, ..Allocation::default() }
        } else if is_being_deleted(new) {
            Allocation { keep: held, ..Allocation::default() }
        } else {
            let request = Request::of(new);
            let is_new_request = !was_ours || old.is_some_and(|old| Request::of(old).texts != request.texts);
            let is_strict = is_new_request && !self.is_lenient;
            if let Some(error) = request.unreadable().filter(|_| is_strict) {
                return Err(vec![error]);
            }
            let requested = request.addresses();
            let listed = self.adoptable(store, new, old);
            let demand = Demand { families: families.to_vec(), held, requested, is_strict, listed };
            let Self { balancers, nodes, random, .. } = self;
            let supply = Supply { pools: balancers, nodes: nodes.nodes() };
            let plan = load_balancer::plan(supply, &Recorded(store), &demand, &mut || random.u64(..));
            plan.map_err(|refused| {
                let error = |(address, refusal): &(IpAddr, _)| request.refused(&address.to_string(), refusal);
                refused.iter().map(error).collect::<Vec<_>>()
            })?
        };
        write_ingress(new, &allocation, |address| {
            // The first and last address of a range are inside of it, although they are never allocated.
            let is_inside = self.balancers.ranges().any(|range| range.net().contains(&address));
            !is_inside && recorded_holder(store, address).is_none()
        });
        Ok(allocation)
    }

    /// Returns addresses that the status lists and that no object records: those of the stored status, which wait for
    /// the repair of their IPAddress or were there before the range was configured, then free ones of the new status.
    fn adoptable(&self, store: &dyn Store, new: &Object, old: Option<&Object>) -> Vec<IpAddr> {
        let is_fit = |address: &IpAddr| {
            self.balancers.ranges().any(|range| range.accepts(*address))
                && !self.nodes().has_address(*address)
                && store.latest(Resource::IpAddress, &address.to_string()).is_none()
        };
        let stored = old.map(listed).unwrap_or_default();
        let given = listed(new).into_iter().filter(|address| self.balancers.check(*address).is_ok());
        stored.iter().copied().chain(given).filter(is_fit).collect()
    }

    /// Returns the load-balancer addresses that a deleted Service releases.
    pub(crate) fn held_load_balancer(store: &dyn Store, owner: &ServiceKey, service: &Object) -> Vec<IpAddr> {
        if is_ours(service) { held(store, owner, service) } else { Vec::new() }
    }

    /// Returns true if the stored Service lists the address as its load-balancer address.
    pub(super) fn lists_load_balancer(&self, service: &Object, address: IpAddr) -> bool {
        self.balancers.ranges().any(|range| range.accepts(address))
            && is_ours(service)
            && listed(service).contains(&address)
    }

    /// Returns the families of which a load-balancer address is free.
    pub(crate) fn free_families(&self) -> Vec<Family> {
        self.supply().free_families()
    }

    /// Returns the reason why a load-balancer address is not free.
    pub(crate) fn why_not_free(&self, store: &dyn Store, address: IpAddr) -> Option<RequestRefusal> {
        self.supply().check(&Recorded(store), address).err()
    }

    fn supply(&self) -> Supply<'_> {
        Supply { pools: &self.balancers, nodes: self.nodes() }
    }
}

/// Returns the Service that holds a load-balancer address.
fn recorded_holder(store: &dyn Store, address: IpAddr) -> Option<ServiceKey> {
    let object = store.latest(Resource::IpAddress, &address.to_string())?;
    match parent_of(&object) {
        Holder::Service(holder) if object.labels().get(MANAGED_BY) == Some(BALANCER) => Some(holder),
        _ => None,
    }
}

pub(crate) fn is_being_deleted(service: &Object) -> bool {
    json::object(service, "metadata").is_some_and(|metadata| metadata.contains_key("deletionTimestamp"))
}

fn entries(service: &Object) -> &[Value] {
    let status = json::object(service, "status");
    let balancer = status.and_then(|status| json::object(status, "loadBalancer"));
    balancer.map_or(&[], |balancer| json::list(balancer, "ingress"))
}

fn entry_address(entry: &Value) -> Option<IpAddr> {
    parse_address(entry.get("ip")?.as_str()?)
}

/// Writes the addresses of the Service into its status, before the entries that other programs wrote.
fn write_ingress(service: &mut Object, allocation: &Allocation, is_foreign: impl Fn(IpAddr) -> bool) {
    let before = entries(service);
    let own = allocation.keep.iter().chain(&allocation.take).map(|address| {
        let known = before.iter().find(|entry| entry_address(entry) == Some(*address));
        known.cloned().unwrap_or_else(|| json!({"ip": address.to_string(), "ipMode": "VIP"}))
    });
    let has = |address| allocation.keep.contains(&address) || allocation.take.contains(&address);
    let is_kept = |entry: &&Value| match entry_address(entry) {
        Some(address) => !has(address) && !allocation.release.contains(&address) && is_foreign(address),
        None => true,
    };
    let after: Vec<Value> = own.chain(before.iter().filter(is_kept).cloned()).collect();
    if after == before {
        return;
    }
    let Some(balancer) = part(service, "status").and_then(|status| part(status, "loadBalancer")) else {
        return;
    };
    if after.is_empty() {
        balancer.remove("ingress");
    } else {
        balancer.insert("ingress".to_owned(), after.into());
    }
}

/// Returns the object at `key`, which replaces a value of another type.
fn part<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    if map.get(key).is_some_and(|value| !value.is_object()) {
        map.remove(key);
    }
    json::object_mut(map, key)
}
