//! Keeps the zone in sync with the stored objects.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use ipnet::IpNet;
use portolan_api::Api;
use portolan_controllers::{Feed, Seen};
use portolan_dns::object::Invalid;
use portolan_dns::{ObjectName, Service, Slice, Zone};
use portolan_schema::{Resource, json};
use portolan_store::{Change, Scope, StoredObject};
use tokio::sync::watch;

/// Applies all objects and then each change. Sets `is_in_sync` when everything is applied and `loaded` is true. Never
/// returns.
pub(super) async fn follow(
    api: &Arc<Api>,
    zone: &RwLock<Zone>,
    mut loaded: watch::Receiver<bool>,
    is_in_sync: &AtomicBool,
) {
    let resources = [Resource::Service, Resource::EndpointSlice, Resource::ServiceCidr];
    let mut feed = Feed::new(api.store(), resources);
    loop {
        // Read before the changes, which then contain everything that was loaded.
        let is_loaded = *loaded.borrow_and_update();
        loop {
            let all = feed.take();
            if all.is_empty() {
                break;
            }
            for seen in all {
                apply(api, zone, seen);
            }
            // Answers take turns with many changes.
            tokio::task::yield_now().await;
        }
        if is_loaded && !is_in_sync.load(Relaxed) {
            write(zone).set_in_sync(true);
            is_in_sync.store(true, Relaxed);
        }
        tokio::select! {
            () = feed.changed() => {}
            Ok(()) = loaded.changed() => {}
        }
    }
}

fn apply(api: &Api, zone: &RwLock<Zone>, seen: Seen) {
    match seen {
        Seen::State(Resource::Service, objects) => {
            let services: Vec<Service> = objects.iter().filter_map(|object| service(object)).collect();
            write(zone).replace_services(services);
        }
        Seen::State(Resource::EndpointSlice, objects) => {
            let slices: Vec<Slice> = objects.iter().filter_map(|object| slice(object)).collect();
            write(zone).replace_slices(slices);
        }
        Seen::Change(Resource::Service, change) => match change.new.as_deref().and_then(service) {
            Some(service) => write(zone).set_service(service),
            None => name(&change).iter().for_each(|name| write(zone).remove_service(name)),
        },
        Seen::Change(Resource::EndpointSlice, change) => match change.new.as_deref().and_then(slice) {
            Some(slice) => write(zone).set_slice(slice),
            None => name(&change).iter().for_each(|name| write(zone).remove_slice(name)),
        },
        // ServiceCIDRs, of which there are few.
        Seen::State(..) | Seen::Change(..) => write(zone).set_ranges(ranges(api)),
    }
}

fn write(zone: &RwLock<Zone>) -> RwLockWriteGuard<'_, Zone> {
    zone.write().unwrap_or_else(PoisonError::into_inner)
}

fn service(object: &StoredObject) -> Option<Service> {
    usable(object, Service::decode(object.body()))
}

fn slice(object: &StoredObject) -> Option<Slice> {
    usable(object, Slice::decode(object.body()))
}

/// Logs why an object has no names. Without validation, clients can store objects of any shape.
fn usable<T>(object: &StoredObject, decoded: Result<T, Invalid>) -> Option<T> {
    decoded.inspect_err(|error| tracing::warn!(object = object.key(), %error, "no names for an object")).ok()
}

fn name(change: &Change) -> Option<ObjectName> {
    let object = change.new.as_deref().or(change.old.as_deref())?;
    Some(ObjectName::new(object.namespace(), object.name()))
}

/// Returns the ranges of all ServiceCIDRs.
fn ranges(api: &Api) -> Vec<IpNet> {
    let stored = api.store().snapshot(Resource::ServiceCidr, &Scope::default(), None);
    let stored = stored.map(|snapshot| snapshot.objects).unwrap_or_default();
    let cidrs = stored.iter().flat_map(|object| {
        let object = object.decode();
        let spec = json::object(&object, "spec").cloned().unwrap_or_default();
        json::texts(&spec, "cidrs").filter_map(|cidr| cidr.parse().ok()).collect::<Vec<IpNet>>()
    });
    cidrs.collect()
}
