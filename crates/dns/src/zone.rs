//! The index over the records of all Services: the forward zone of the cluster domain and the reverse names.
//!
//! Services and EndpointSlices go in one at a time. A change computes the records of the Service that it touches and
//! nothing else. Names are found by hashing two labels, addresses in a sorted map. A name without records exists if
//! there are names below it, so that it is answered without records rather than as non-existent.
//!
//! Until [`Zone::set_in_sync`] says that all objects are known, nothing is said to be non-existent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use crate::object::{ObjectName, Service, Slice};
use crate::records::Records;

mod lookup;
#[cfg(test)]
mod tests;

pub use lookup::{Lookup, LookupResult, Rr, Rrs};

/// Version of the specification of names, in the TXT record `dns-version`.
pub const SCHEMA_VERSION: &str = "1.1.0";

/// Default lifetime of records in seconds, as of `CoreDNS`.
pub const DEFAULT_TTL: u32 = 5;

/// What does not follow from Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The cluster domain, such as `cluster.local.`
    pub domain: Name,
    /// Lifetime of all records in seconds, also of negative answers.
    pub ttl: u32,
    /// Service through which this server is reached. Its cluster IPs are the addresses of the name server `ns.dns`.
    pub server: ObjectName,
    /// True if names such as `10-1-2-3.shop.pod` have the address that they spell. The specification deprecates them.
    pub pod_names: bool,
    /// Ranges of cluster IPs. A reverse name in them that leads to no Service does not exist; other reverse names
    /// belong to other servers.
    pub ranges: Vec<IpNet>,
}

impl Settings {
    /// Makes settings with the usual values: TTL [`DEFAULT_TTL`], the Service `kube-system/kube-dns`, no names of pods
    /// and no ranges. Returns `None` if `domain` is no domain name.
    pub fn new(domain: &str) -> Option<Self> {
        let mut domain = Name::from_ascii(domain).ok()?.to_lowercase();
        domain.set_fqdn(true);
        let server = ObjectName::new("kube-system", "kube-dns");
        let settings = Self { domain, ttl: DEFAULT_TTL, server, pod_names: false, ranges: Vec::new() };
        (!settings.domain.is_root()).then_some(settings)
    }
}

/// Owner of an address: a Service, or a host of a headless Service. Services are sorted before hosts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pointer {
    host: Option<Arc<str>>,
    namespace: Arc<str>,
    service: Arc<str>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Namespace {
    services: HashMap<Arc<str>, Entry>,
    /// Service of each EndpointSlice that has one.
    slices: HashMap<Arc<str>, Arc<str>>,
    /// Number of Services with records. The namespace's name exists if there is one.
    visible: usize,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Entry {
    service: Option<Service>,
    /// By name. Slices of Services with cluster IPs are kept too: a Service may arrive after its slices.
    slices: BTreeMap<Arc<str>, Slice>,
    records: Records,
}

/// The names of a cluster.
#[derive(Debug)]
pub struct Zone {
    settings: Settings,
    serial: u32,
    in_sync: bool,
    namespaces: HashMap<Arc<str>, Namespace>,
    pointers: BTreeMap<IpAddr, Vec<Pointer>>,
}

impl Zone {
    /// Makes a zone without Services that is not in sync. `serial` is the first serial number of the zone; it should be
    /// higher after a restart, such as the time in seconds.
    pub fn new(settings: Settings, serial: u32) -> Self {
        Self { settings, serial, in_sync: false, namespaces: HashMap::new(), pointers: BTreeMap::new() }
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Replaces the ranges of cluster IPs.
    pub fn set_ranges(&mut self, ranges: Vec<IpNet>) {
        self.settings.ranges = ranges;
    }

    /// Sets whether all objects are known. If not, a name that is not found is answered with an error that resolvers
    /// do not keep.
    pub fn set_in_sync(&mut self, in_sync: bool) {
        self.in_sync = in_sync;
    }

    /// Adds or replaces a Service.
    pub fn set_service(&mut self, service: Service) {
        let name = service.name.clone();
        self.entry(&name.namespace, &name.name).service = Some(service);
        self.update(&name.namespace, &name.name);
    }

    /// Removes a Service, if it is there.
    pub fn remove_service(&mut self, name: &ObjectName) {
        let entry = self.namespaces.get_mut(&name.namespace).and_then(|all| all.services.get_mut(&name.name));
        if entry.is_some_and(|entry| entry.service.take().is_some()) {
            self.update(&name.namespace, &name.name);
        }
    }

    /// Adds or replaces an EndpointSlice.
    pub fn set_slice(&mut self, slice: Slice) {
        let namespace = Arc::clone(&slice.name.namespace);
        let before = self.namespaces.get(&namespace).and_then(|all| all.slices.get(&slice.name.name));
        if before != slice.service.as_ref() {
            self.remove_slice(&slice.name);
        }
        let Some(service) = slice.service.clone() else { return };
        let all = self.namespaces.entry(Arc::clone(&namespace)).or_default();
        all.slices.insert(Arc::clone(&slice.name.name), Arc::clone(&service));
        self.entry(&namespace, &service).slices.insert(Arc::clone(&slice.name.name), slice);
        self.update(&namespace, &service);
    }

    /// Removes an EndpointSlice, if it is there.
    pub fn remove_slice(&mut self, name: &ObjectName) {
        let Some(all) = self.namespaces.get_mut(&name.namespace) else { return };
        let Some(service) = all.slices.remove(&name.name) else { return };
        if let Some(entry) = all.services.get_mut(&service) {
            entry.slices.remove(&name.name);
        }
        self.update(&name.namespace, &service);
    }

    /// Replaces all Services by those of a complete list.
    pub fn replace_services(&mut self, services: impl IntoIterator<Item = Service>) {
        let mut listed = HashSet::new();
        for service in services {
            listed.insert(service.name.clone());
            self.set_service(service);
        }
        let known = self.namespaces.values().flat_map(|all| all.services.values());
        let known = known.filter_map(|entry| entry.service.as_ref().map(|service| service.name.clone()));
        let gone: Vec<ObjectName> = known.filter(|name| !listed.contains(name)).collect();
        for name in &gone {
            self.remove_service(name);
        }
    }

    /// Replaces all EndpointSlices by those of a complete list.
    pub fn replace_slices(&mut self, slices: impl IntoIterator<Item = Slice>) {
        let mut listed = HashSet::new();
        for slice in slices {
            listed.insert(slice.name.clone());
            self.set_slice(slice);
        }
        let known = self.namespaces.iter().flat_map(|(namespace, all)| {
            all.slices
                .keys()
                .map(|name| ObjectName { namespace: Arc::clone(namespace), name: Arc::clone(name) })
        });
        let gone: Vec<ObjectName> = known.filter(|name| !listed.contains(name)).collect();
        for name in &gone {
            self.remove_slice(name);
        }
    }

    fn entry(&mut self, namespace: &Arc<str>, service: &Arc<str>) -> &mut Entry {
        let all = self.namespaces.entry(Arc::clone(namespace)).or_default();
        all.services.entry(Arc::clone(service)).or_default()
    }

    /// Computes the records of one Service, and removes what has no content any more.
    fn update(&mut self, namespace: &Arc<str>, service: &Arc<str>) {
        let Some(all) = self.namespaces.get_mut(namespace) else { return };
        if let Some(entry) = all.services.get_mut(service) {
            let records = entry
                .service
                .as_ref()
                .map(|object| Records::of(object, entry.slices.values()))
                .unwrap_or_default();
            if records != entry.records {
                all.visible = all.visible.saturating_sub(usize::from(!entry.records.is_empty()));
                all.visible = all.visible.saturating_add(usize::from(!records.is_empty()));
                point(&mut self.pointers, (namespace, service), &entry.records, &records);
                entry.records = records;
                self.serial = self.serial.wrapping_add(1);
            }
            if entry.service.is_none() && entry.slices.is_empty() {
                all.services.remove(service);
            }
        }
        if all.services.is_empty() && all.slices.is_empty() {
            self.namespaces.remove(namespace);
        }
    }
}

/// Replaces the reverse names of one Service.
fn point(
    pointers: &mut BTreeMap<IpAddr, Vec<Pointer>>,
    (namespace, service): (&Arc<str>, &Arc<str>),
    before: &Records,
    after: &Records,
) {
    let pointer = |host: Option<&Arc<str>>| Pointer {
        host: host.cloned(),
        namespace: Arc::clone(namespace),
        service: Arc::clone(service),
    };
    for (address, host) in before.pointers() {
        let Some(owners) = pointers.get_mut(&address) else { continue };
        if let Ok(index) = owners.binary_search(&pointer(host)) {
            owners.remove(index);
        }
        if owners.is_empty() {
            pointers.remove(&address);
        }
    }
    for (address, host) in after.pointers() {
        let owners = pointers.entry(address).or_default();
        let pointer = pointer(host);
        if let Err(index) = owners.binary_search(&pointer) {
            // Nearly every address has one owner.
            owners.reserve_exact(1);
            owners.insert(index, pointer);
        }
    }
}
