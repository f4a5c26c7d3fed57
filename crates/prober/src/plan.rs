//! Which endpoints of which slices are probed, and which conditions the slices get. Services, EndpointSlices and
//! results of probes go in. Endpoints to probe, slices to write and Events come out, each only where something changed.
//!
//! One endpoint of a Service is one address and port. It is probed once, however many slices list it. The endpoints of
//! one Service and one IP family are a group: fail-open and slow start look at the group.

mod address;
mod group;
mod remark;
mod slice;
mod sync;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::annotations::{Complaint, HealthCheck, Wish, parse};
use crate::check::Check;
use crate::object::{EndpointSlice, Input, Key, Service};
use crate::probe::ProbeOutcome;

pub use self::address::awaiting;
pub use self::group::Counts;
use self::group::Group;
pub use self::remark::{Regarding, Report};
use self::slice::SliceEntry;
use self::sync::Origin;
pub use self::write::{EndpointWrite, SliceWrite};

/// Probes in a row that this node could not make, after which it is reported.
const UNABLE_IN_A_ROW: u32 = 3;

/// What changed since the last call of [`Plan::take_changes`].
#[derive(Debug, Default)]
pub struct Changes {
    /// Endpoints to probe, or to probe at another interval.
    pub started: Vec<Started>,
    /// Endpoints that are not probed any further, also of those in `started`.
    pub stopped: Vec<u64>,
    /// Slices whose conditions may have to be written.
    pub slices: BTreeSet<Key>,
    /// Events.
    pub reports: Vec<Report>,
}

/// An endpoint to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Its number. Numbers are not used again.
    pub endpoint: u64,
    /// Key of its Service.
    pub service: Key,
    /// Its address and port.
    pub address: SocketAddr,
    /// From one probe to the next.
    pub interval: Duration,
    /// True if the first probe should not wait for the interval.
    pub soon: bool,
}

/// The effect of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// True if the endpoint is healthy after it.
    pub is_healthy: bool,
    /// True if the state changed.
    pub changed: bool,
}

/// The plan. It is inactive at first: it follows objects, and probes and writes nothing.
#[derive(Debug, Default)]
pub struct Plan {
    /// True if endpoints at loopback and link-local addresses are probed.
    any_address: bool,
    is_active: bool,
    services: HashMap<Key, ServiceEntry>,
    slices: HashMap<Key, SliceEntry>,
    /// Keys of the slices of each Service, also of a Service that does not exist.
    slices_of: HashMap<Key, BTreeSet<Key>>,
    targets: HashMap<u64, Target>,
    numbers: HashMap<(Key, SocketAddr), u64>,
    next_number: u64,
    counts: Counts,
    /// Number of groups that are open.
    open_groups: usize,
    /// Groups with changes.
    touched: HashSet<(Key, bool)>,
    changes: Changes,
}

#[derive(Debug)]
struct ServiceEntry {
    uid: String,
    publishes_all: bool,
    /// The check. If the annotations are invalid, the last valid one.
    check: Option<Arc<HealthCheck>>,
    /// True if the annotations are invalid and there is no valid check: conditions stay as they are.
    is_frozen: bool,
    complaints: Vec<Complaint>,
    /// The groups of IPv4 and of IPv6.
    ipv4: Group,
    ipv6: Group,
}

/// An endpoint that is probed.
#[derive(Debug)]
struct Target {
    service: Key,
    address: SocketAddr,
    check: Check,
    /// Probes in a row that this node could not make.
    unable: u32,
    /// Slices that list it.
    slices: BTreeSet<Key>,
}

impl Plan {
    /// Creates an inactive plan. With `any_address` endpoints at loopback and link-local addresses are probed: only for
    /// tests, because Kubernetes refuses such endpoints, and a probe of them would reach programs of the node.
    pub fn new(any_address: bool) -> Self {
        Self { any_address, ..Self::default() }
    }

    /// Applies an observation.
    pub fn apply(&mut self, input: Input, now: Duration) {
        match input {
            Input::Service(service) => self.service(*service, now),
            Input::ServiceDeleted(key) => self.remove_service(&key, now),
            Input::EndpointSlice(slice) => self.slice(*slice, now),
            Input::EndpointSliceDeleted(key) => self.remove_slice(&key),
            Input::Services(all) => {
                let present: HashSet<Key> = all.iter().map(|service| service.metadata.key()).collect();
                let gone: Vec<Key> =
                    self.services.keys().filter(|key| !present.contains(*key)).cloned().collect();
                for key in &gone {
                    self.remove_service(key, now);
                }
                for service in all {
                    self.service(service, now);
                }
            }
            Input::EndpointSlices(all) => {
                let present: HashSet<Key> = all.iter().map(|slice| slice.metadata.key()).collect();
                let gone: Vec<Key> =
                    self.slices.keys().filter(|key| !present.contains(*key)).cloned().collect();
                for key in &gone {
                    self.remove_slice(key);
                }
                // The complete list is the truth, also after the store was replaced by an older one.
                for slice in all {
                    self.set_slice(slice, now);
                }
            }
        }
    }

    fn service(&mut self, service: Service, now: Duration) {
        let key = service.metadata.key();
        let parsed = parse(service.metadata.annotations.as_ref());
        let mut old = self.services.remove(&key);
        let is_new = old.is_none();
        let old_check = old.as_mut().and_then(|old| old.check.take());
        let is_invalid = parsed.wish == Wish::Invalid;
        let check = match parsed.wish {
            Wish::Absent => None,
            Wish::Invalid => old_check.clone(),
            Wish::Valid(check) => match &old_check {
                Some(old) if **old == check => Some(Arc::clone(old)),
                _ => Some(Arc::new(check)),
            },
        };
        let (ipv4, ipv6) = old.as_ref().map(|old| (old.ipv4, old.ipv6)).unwrap_or_default();
        let entry = ServiceEntry {
            uid: service.metadata.uid,
            publishes_all: service.spec.publish_not_ready_addresses,
            is_frozen: is_invalid && check.is_none(),
            check,
            complaints: parsed.complaints,
            ipv4,
            ipv6,
        };
        let known = old.as_ref().map(|old| old.complaints.as_slice()).unwrap_or_default();
        if self.is_active {
            self.changes.reports.extend(remark::complaints(&key, &entry, known));
        }
        let is_same = entry.check == old_check
            && old.is_some_and(|old| {
                old.publishes_all == entry.publishes_all && old.is_frozen == entry.is_frozen
            });
        let is_checked = entry.check.is_some();
        self.services.insert(Arc::clone(&key), entry);
        if !is_same {
            // Endpoints that were served before the check was added are not taken away before their first result.
            let origin = if !is_new && old_check.is_none() { Origin::Existing } else { Origin::New };
            self.sync_service(&key, origin, now);
            if is_checked && old_check.is_some() {
                self.restart(&key);
            }
        }
    }

    fn remove_service(&mut self, key: &Key, now: Duration) {
        if let Some(entry) = self.services.remove(key) {
            let open = [entry.ipv4, entry.ipv6].iter().filter(|group| group.is_open).count();
            self.open_groups = self.open_groups.saturating_sub(open);
            self.sync_service(key, Origin::New, now);
        }
    }

    fn slice(&mut self, slice: EndpointSlice, now: Duration) {
        let key = slice.metadata.key();
        if self.slices.get(&key).is_none_or(|entry| !entry.is_older(&slice)) {
            self.set_slice(slice, now);
        }
    }

    fn set_slice(&mut self, slice: EndpointSlice, now: Duration) {
        let entry = SliceEntry::new(slice);
        let key = Arc::clone(&entry.key);
        let service = entry.service.clone();
        let old = self.slices.insert(Arc::clone(&key), entry);
        let old_service = old.as_ref().and_then(|old| old.service.clone());
        if let (Some(old), Some(entry)) = (old, self.slices.get_mut(&key)) {
            entry.targets = old.targets;
            entry.lacks_port = old.lacks_port;
            entry.written = old.written;
        }
        if old_service != service {
            self.forget_slice(old_service.as_ref(), &key);
        }
        if let Some(service) = service {
            self.slices_of.entry(service).or_default().insert(Arc::clone(&key));
        }
        self.sync_slice(&key, Origin::New, now);
    }

    fn remove_slice(&mut self, key: &Key) {
        let Some(entry) = self.slices.remove(key) else { return };
        self.forget_slice(entry.service.as_ref(), key);
        self.changes.slices.remove(key);
        entry.targets.into_iter().flatten().for_each(|number| self.unlink(number, key));
    }

    fn forget_slice(&mut self, service: Option<&Key>, key: &Key) {
        let Some(service) = service else { return };
        if let Some(slices) = self.slices_of.get_mut(service) {
            slices.remove(key);
            if slices.is_empty() {
                self.slices_of.remove(service);
            }
        }
    }

    /// Starts probing and writing. The states continue from the conditions that the slices have: a server that takes
    /// over changes no condition before it has results.
    pub fn activate(&mut self, now: Duration) {
        self.is_active = true;
        for (key, entry) in &self.services {
            self.changes.reports.extend(remark::complaints(key, entry, &[]));
        }
        let keys: Vec<Key> = self.slices.keys().cloned().collect();
        for key in &keys {
            self.sync_slice(key, Origin::Existing, now);
        }
    }

    /// Stops probing and writing, and discards all states.
    pub fn deactivate(&mut self) {
        self.is_active = false;
        self.changes = Changes {
            stopped: self.targets.drain().map(|(number, _)| number).collect(),
            ..Changes::default()
        };
        self.numbers.clear();
        self.touched.clear();
        (self.counts, self.open_groups) = (Counts::default(), 0);
        for entry in self.slices.values_mut() {
            entry.targets.clear();
            entry.written = slice::Written::default();
        }
        for entry in self.services.values_mut() {
            (entry.ipv4, entry.ipv6) = (Group::default(), Group::default());
        }
    }

    /// Returns the address and the check of an endpoint, or `None` if it is not probed any further.
    pub fn probe(&self, endpoint: u64) -> Option<(SocketAddr, &Arc<HealthCheck>)> {
        let target = self.targets.get(&endpoint)?;
        Some((target.address, self.services.get(&target.service)?.check.as_ref()?))
    }

    /// Applies the result of a probe. Returns `None` if it decides nothing: the endpoint was removed, or this node could
    /// not probe.
    pub fn result(&mut self, endpoint: u64, outcome: &ProbeOutcome, now: Duration) -> Option<Effect> {
        let passed = match outcome {
            ProbeOutcome::Passed => true,
            ProbeOutcome::Failed(_) => false,
            ProbeOutcome::Unable(error) => {
                self.unable(endpoint, error);
                return None;
            }
        };
        let target = self.targets.get_mut(&endpoint)?;
        target.unable = 0;
        let entry = self.services.get_mut(&target.service)?;
        let check = entry.check.clone()?;
        let old = target.check.state();
        let changed = target.check.result(passed, now, &check.timing);
        let state = target.check.state();
        if changed {
            self.changes.slices.extend(target.slices.iter().cloned());
            self.touched.insert((Arc::clone(&target.service), target.address.is_ipv6()));
            entry.group(target.address.is_ipv6()).counts.replace(old, state);
            self.counts.replace(old, state);
            if !old.is_decided() || old.is_healthy() != state.is_healthy() {
                let slice = target.slices.first().and_then(|key| self.slices.get(key));
                self.changes
                    .reports
                    .extend(slice.map(|slice| remark::endpoint(slice, target.address, &check, outcome)));
            }
        }
        Some(Effect { is_healthy: state.is_healthy(), changed })
    }

    /// Counts a probe that this node could not make, and reports the endpoint if it was the last one of many.
    fn unable(&mut self, endpoint: u64, error: &str) {
        let Some(target) = self.targets.get_mut(&endpoint) else { return };
        target.unable = target.unable.saturating_add(1);
        if target.unable == UNABLE_IN_A_ROW {
            let slice = target.slices.first().and_then(|key| self.slices.get(key));
            self.changes.reports.extend(slice.map(|slice| remark::not_probed(slice, target.address, error)));
        }
    }

    /// Decides about the groups with changes. To be called after a batch of observations and results.
    pub fn settle(&mut self) {
        let touched: Vec<(Key, bool)> = self.touched.drain().collect();
        for (key, is_ipv6) in touched {
            let Some(entry) = self.services.get_mut(&key) else { continue };
            let fail_open = entry.check.as_ref().and_then(|check| check.fail_open);
            let group = entry.group(is_ipv6);
            let flipped = group.settle(fail_open);
            let admits = group.counts.must_admit();
            if flipped {
                let group = *entry.group(is_ipv6);
                let open = self.open_groups;
                self.open_groups =
                    if group.is_open { open.saturating_add(1) } else { open.saturating_sub(1) };
                if fail_open.is_some() {
                    self.changes.reports.push(remark::fail_open(&key, entry, &group, is_ipv6));
                }
                self.changes.slices.extend(self.slices_of.get(&key).into_iter().flatten().cloned());
            }
            if admits {
                self.admit(&key, is_ipv6);
            }
        }
    }

    /// Ends slow start in a group where no other endpoint serves.
    fn admit(&mut self, service: &Key, is_ipv6: bool) {
        let slices = self.slices_of.get(service).into_iter().flatten().filter_map(|key| self.slices.get(key));
        let numbers: Vec<u64> = slices.flat_map(|slice| slice.targets.iter().flatten().copied()).collect();
        let Some(entry) = self.services.get_mut(service) else { return };
        for number in numbers {
            let target = self.targets.get_mut(&number).filter(|target| target.address.is_ipv6() == is_ipv6);
            let Some(target) = target else { continue };
            let old = target.check.state();
            if target.check.admit() {
                entry.group(is_ipv6).counts.replace(old, target.check.state());
                self.counts.replace(old, target.check.state());
                self.changes.slices.extend(target.slices.iter().cloned());
            }
        }
    }

    /// Returns what changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Returns the write that gives a slice its conditions, or `None` if it has them.
    pub fn write(&mut self, key: &Key) -> Option<SliceWrite> {
        let entry = self.slices.get_mut(key).filter(|_| self.is_active)?;
        let service = self.services.get(entry.service.as_ref()?)?;
        if entry.slice.is_managed() || service.is_frozen {
            return None;
        }
        if service.check.is_none() {
            return entry.release();
        }
        let conditions = |(index, number): (usize, &Option<u64>)| {
            let target = self.targets.get(&(*number)?)?;
            let is_terminating = entry.conditions(index).terminating == Some(true);
            service
                .conditions(target, is_terminating)
                .map(|(ready, serving)| (index, Some(ready), Some(serving)))
        };
        let wanted: Vec<_> = entry.targets.iter().enumerate().filter_map(conditions).collect();
        entry.write(wanted)
    }

    /// Records that a write succeeded, with the new resource version.
    pub fn written(&mut self, write: &SliceWrite, resource_version: &str) {
        if let Some(entry) = self.slices.get_mut(&write.key) {
            entry.written(write, resource_version);
        }
    }

    /// Returns the Event of a slice whose conditions another client changes back. Unchanged ones are written at most once in
    /// `interval` meanwhile.
    pub fn overwritten(&self, key: &Key, interval: Duration) -> Option<Report> {
        self.slices.get(key).map(|entry| remark::overwritten(entry, interval))
    }

    /// Returns how many endpoints are in each state.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns how many groups serve all endpoints because too few are healthy.
    pub fn open_groups(&self) -> usize {
        self.open_groups
    }
}
