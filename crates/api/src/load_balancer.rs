//! Services that wait for a load-balancer address. A controller calls [`pending`] for each Service that changes, and
//! [`settle`] for those that wait when an address may have become free.
//!
//! In: stored Services. Out: what a Service waits for and why, and a write that changes nothing but the addresses: each
//! write of a Service allocates what it lacks.

use std::net::IpAddr;

use portolan_ipam::{Family, ServiceKey};
use portolan_schema::{
    Resource,
    json::{self, Object},
};
use portolan_store::StoredObject;

use crate::{
    allocate::{Request, held, is_being_deleted, is_ours},
    api::{Api, Effect, Part, Target, WriteOptions},
    error::ApiError,
};

#[cfg(test)]
mod tests;

/// The text that every Service of type LoadBalancer contains in its stored form.
const TYPE: &[u8] = b"\"LoadBalancer\"";

/// What a Service waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// The families of which it has no address.
    pub families: Vec<Family>,
    /// The addresses that it requests of these families. If there are none, any address will do.
    pub requested: Vec<IpAddr>,
    /// The reason, for people.
    pub note: String,
}

/// Returns what a Service waits for. `None` if it waits for no address: it has all, another load balancer has to give it
/// one, or it is not of type LoadBalancer.
pub fn pending(api: &Api, service: &StoredObject) -> Option<Pending> {
    // Most Services are of another type. They are not worth decoding.
    if !service.body().windows(TYPE.len()).any(|part| part == TYPE) {
        return None;
    }
    let object = service.decode();
    if !is_ours(&object) || is_being_deleted(&object) {
        return None;
    }
    let families = missing(api, service, &object);
    if families.is_empty() {
        return None;
    }
    let request = Request::of(&object);
    let mut requested = request.addresses();
    requested.retain(|address| families.contains(&Family::of(*address)));
    let note = if requested.is_empty() { full(api, &families) } else { refused(api, &request, &requested) };
    Some(Pending { families, requested, note })
}

/// Returns the families of which addresses are free.
pub fn free_families(api: &Api) -> Vec<Family> {
    api.ledger().free_families()
}

/// Writes a Service without a change of its own, which allocates the addresses that it lacks if they are free. Returns
/// true if the Service got one.
pub async fn settle(api: &Api, service: &ServiceKey) -> Result<bool, ApiError> {
    let target = Target { resource: Resource::Service, namespace: &service.namespace, name: &service.name };
    let nothing = Object::new();
    match api.merge_patch(target, Part::Status, nothing, WriteOptions::default()).await {
        Ok(outcome) => Ok(outcome.effect == Effect::Updated),
        Err(ApiError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the families of which the Service has no address, although there is a range. If it has no address at all,
/// those without range count, too.
fn missing(api: &Api, service: &StoredObject, object: &Object) -> Vec<Family> {
    let spec = json::object(object, "spec");
    let families = spec.into_iter().flat_map(|spec| json::texts(spec, "ipFamilies"));
    let families: Vec<Family> = families
        .filter_map(|text| [Family::Ipv4, Family::Ipv6].into_iter().find(|family| family.name() == text))
        .collect();
    let held = held(&**api.store(), &key_of(service), object);
    let has = |family: &Family| held.iter().any(|address| Family::of(*address) == *family);
    let has_range = |family: &Family| has_range(api, *family);
    let missing: Vec<Family> = families.iter().copied().filter(|family| !has(family)).collect();
    if held.is_empty() && !missing.iter().any(has_range) {
        return missing;
    }
    missing.into_iter().filter(has_range).collect()
}

fn has_range(api: &Api, family: Family) -> bool {
    api.load_balancer_ranges().iter().any(|range| range.family() == family)
}

/// Returns the namespace and name of a stored Service.
pub fn key_of(service: &StoredObject) -> ServiceKey {
    let (namespace, name) = service.key().split_once('/').unwrap_or(("", service.key()));
    ServiceKey::new(namespace, name)
}

fn full(api: &Api, families: &[Family]) -> String {
    let (full, without): (Vec<Family>, Vec<Family>) =
        families.iter().copied().partition(|family| has_range(api, *family));
    let names = |families: &[Family]| families.iter().map(|it| it.name()).collect::<Vec<_>>().join(" and ");
    if full.is_empty() {
        let names = names(&without);
        return format!(
            "--load-balancer-ip-range has no {names} range; add one, or set spec.loadBalancerClass"
        );
    }
    let ranges = api.load_balancer_ranges().iter().filter(|range| full.contains(&range.family()));
    let ranges = ranges.map(|range| range.net().to_string()).collect::<Vec<_>>().join(",");
    format!(
        "no {} load-balancer address is free in {ranges}; the Service gets one when another Service releases it",
        names(&full)
    )
}

fn refused(api: &Api, request: &Request<'_>, requested: &[IpAddr]) -> String {
    let ledger = api.ledger();
    let why = requested.iter().find_map(|address| {
        let refusal = ledger.why_not_free(&**api.store(), *address)?;
        Some(format!("{}: {address} {refusal}", request.field))
    });
    why.unwrap_or_else(|| format!("{}: the address is not allocated yet", request.field))
}
