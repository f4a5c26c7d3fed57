//! Addresses that a Service lists, and that have no IPAddress: it was deleted by hand, and the repair has not restored it yet.
//! There are nearly always none. They are taken.
//!
//! Such an address is free when the Service goes, or lists it no more. No deletion of an IPAddress shows this. So a server looks
//! at the Services that have changed: another server on the same store may have written them.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use portolan_schema::Resource;
use portolan_store::{Change, Expired, Scope, Store, StoredObject};

use super::{BATCH, Ledger};

/// The addresses, with the key of a Service that lists each.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    services: BTreeMap<IpAddr, Box<str>>,
    /// The revision up to which changes of Services are known.
    seen: u64,
}

impl Unrecorded {
    /// Adds an address that the Service listed after revision `seen`.
    pub(super) fn add(&mut self, address: IpAddr, service: &str, seen: u64) {
        self.seen = if self.services.is_empty() { seen } else { self.seen.min(seen) };
        self.services.insert(address, service.into());
    }

    /// Removes an address that is recorded.
    pub(super) fn remove(&mut self, address: IpAddr) {
        self.services.remove(&address);
    }

    /// Returns the addresses of Services that may have changed.
    fn changed(&mut self, store: &dyn Store) -> Vec<(IpAddr, Box<str>)> {
        if self.services.is_empty() {
            return Vec::new();
        }
        let changed = changed_since(store, &mut self.seen);
        let is_unchanged = |service: &str| changed.as_ref().is_ok_and(|changed| !changed.contains(service));
        let found = self.services.iter().filter(|(_, service)| !is_unchanged(service));
        found.map(|(address, service)| (*address, service.clone())).collect()
    }
}

/// Returns the keys of the Services that have changed, or an error if any may have.
fn changed_since(store: &dyn Store, seen: &mut u64) -> Result<HashSet<String>, Expired> {
    let key = |change: &Change| Some(change.new.as_ref().or(change.old.as_ref())?.key().to_owned());
    let mut changed = HashSet::new();
    loop {
        let revision = store.revision();
        let read = store.changes(Resource::Service, *seen, BATCH).inspect_err(|_| *seen = revision)?;
        *seen = read.through;
        changed.extend(read.changes.iter().filter_map(key));
        if read.changes.len() < BATCH {
            return Ok(changed);
        }
    }
}

impl Ledger {
    /// Retires the addresses that no Service lists any more.
    pub(super) fn retire_unlisted(&mut self, store: &dyn Store) {
        for (address, service) in self.unrecorded.changed(store) {
            let is_recorded = store.latest(Resource::IpAddress, &address.to_string()).is_some();
            let service = store.latest(Resource::Service, &service);
            if !is_recorded && service.is_some_and(|service| self.lists(&service, address)) {
                continue;
            }
            self.unrecorded.remove(address);
            if is_recorded || self.in_flight.0.contains(&address) {
                continue;
            }
            match self.other_that_lists(store, address) {
                Ok(Some(other)) => self.unrecorded.add(address, other.key(), self.unrecorded.seen),
                Ok(None) => self.retire_address(store, address),
                // Only a snapshot of the past can be too old.
                Err(_) => {}
            }
        }
    }

    fn other_that_lists(
        &self,
        store: &dyn Store,
        address: IpAddr,
    ) -> Result<Option<Arc<StoredObject>>, Expired> {
        let services = store.snapshot(Resource::Service, &Scope::default(), None)?.objects;
        Ok(services.into_iter().find(|service| self.lists(service, address)))
    }
}
