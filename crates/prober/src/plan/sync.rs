//! Compares the endpoints of a slice with those that are probed.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{Plan, Started, Target, address, remark};
use crate::check::{Check, CheckState};
use crate::object::{Conditions, Key};

/// Where an endpoint comes from that was not probed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was added while this plan was active. It is not ready before its first answer.
    New,
    /// It existed before, unchecked or checked by another server. Its conditions tell how it starts.
    Existing,
}

impl Plan {
    pub(super) fn sync_service(&mut self, key: &Key, origin: Origin, now: Duration) {
        let slices: Vec<Key> = self.slices_of.get(key).into_iter().flatten().cloned().collect();
        for slice in &slices {
            self.sync_slice(slice, origin, now);
        }
    }

    /// Starts and stops probes, so that the endpoints of the slice that should be probed are probed.
    pub(super) fn sync_slice(&mut self, key: &Key, origin: Origin, now: Duration) {
        if !self.is_active {
            return;
        }
        self.changes.slices.insert(Arc::clone(key));
        // Endpoints of a slice without the port of the check were not checked, and may serve.
        let lacked_port = self.slices.get(key).is_some_and(|entry| entry.lacks_port);
        let origin = if lacked_port { Origin::Existing } else { origin };
        let addresses = self.addresses(key);
        let Some(entry) = self.slices.get_mut(key) else { return };
        let old = std::mem::take(&mut entry.targets);
        let service = entry.service.clone();
        let mut targets = Vec::with_capacity(addresses.len());
        for (index, address) in addresses.into_iter().enumerate() {
            let number = address
                .zip(service.as_ref())
                .map(|(address, service)| self.link(key, index, service, address, &old, origin, now));
            targets.push(number);
        }
        let kept: HashSet<u64> = targets.iter().flatten().copied().collect();
        if let Some(entry) = self.slices.get_mut(key) {
            entry.targets = targets;
            entry.written.retain(|number| kept.contains(&number));
        }
        let gone = old.into_iter().flatten().filter(|number| !kept.contains(number));
        gone.for_each(|number| self.unlink(number, key));
    }

    /// Returns for each endpoint of a slice the address that is probed. Empty if the slice is not checked.
    fn addresses(&mut self, key: &Key) -> Vec<Option<SocketAddr>> {
        let any_address = self.any_address;
        let Some(entry) = self.slices.get_mut(key) else { return Vec::new() };
        let service = entry.service.as_ref().and_then(|service| self.services.get(service));
        let check = service.and_then(|service| service.check.as_ref()).filter(|_| !entry.slice.is_managed());
        let Some(check) = check else {
            entry.lacks_port = false;
            return Vec::new();
        };
        let Some(port) = address::port_of(&entry.slice, &check.port) else {
            if !std::mem::replace(&mut entry.lacks_port, true) {
                self.changes.reports.push(remark::lacks_port(entry, &check.port));
            }
            return Vec::new();
        };
        entry.lacks_port = false;
        let address_type = &entry.slice.address_type;
        let endpoints = entry.slice.endpoints.iter();
        endpoints.map(|endpoint| address::address_of(endpoint, address_type, port, any_address)).collect()
    }

    /// Returns the number of an endpoint of a slice. Starts to probe it if it is not probed for another slice.
    #[expect(clippy::too_many_arguments, reason = "one caller; all of them are of that loop")]
    fn link(
        &mut self,
        key: &Key,
        index: usize,
        service: &Key,
        address: SocketAddr,
        old: &[Option<u64>],
        origin: Origin,
        now: Duration,
    ) -> u64 {
        let id = (Arc::clone(service), address);
        if let Some(number) = self.numbers.get(&id) {
            if let Some(target) = self.targets.get_mut(number) {
                target.slices.insert(Arc::clone(key));
            }
            return *number;
        }
        let check = self
            .inherited(old, service, address)
            .unwrap_or_else(|| self.first(key, index, service, origin, now));
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1);
        self.numbers.insert(id, number);
        let slices = [Arc::clone(key)].into();
        let target = Target { service: Arc::clone(service), address, check, unable: 0, slices };
        self.targets.insert(number, target);
        self.counts.add(check.state());
        if let Some(entry) = self.services.get_mut(service) {
            entry.group(address.is_ipv6()).counts.add(check.state());
        }
        self.touched.insert((Arc::clone(service), address.is_ipv6()));
        self.start(number, !check.state().is_decided());
        number
    }

    /// Returns the state of the slice's endpoint with the same address and another port: the port of a check that
    /// changes must not make endpoints new.
    fn inherited(&self, old: &[Option<u64>], service: &Key, address: SocketAddr) -> Option<Check> {
        let mut targets = old.iter().flatten().filter_map(|number| self.targets.get(number));
        let same = targets.find(|target| target.service == *service && target.address.ip() == address.ip());
        same.map(|target| Check::new(target.check.state()))
    }

    /// Returns the state in which an endpoint starts.
    fn first(&self, key: &Key, index: usize, service: &Key, origin: Origin, now: Duration) -> Check {
        let entry = self.slices.get(key).filter(|_| origin == Origin::Existing);
        let Some(entry) = entry else { return Check::new(CheckState::New) };
        let service = self.services.get(service);
        let slow_start =
            service.and_then(|service| service.check.as_ref()).map(|check| check.timing.slow_start);
        let conditions = entry.conditions(index);
        Check::new(resumed(conditions, entry.slice.is_marked(), slow_start.unwrap_or_default(), now))
    }

    /// Stops to probe an endpoint for a slice.
    pub(super) fn unlink(&mut self, number: u64, key: &Key) {
        let Some(target) = self.targets.get_mut(&number) else { return };
        target.slices.remove(key);
        if !target.slices.is_empty() {
            return;
        }
        let Some(target) = self.targets.remove(&number) else { return };
        let (state, is_ipv6) = (target.check.state(), target.address.is_ipv6());
        self.counts.remove(state);
        if let Some(entry) = self.services.get_mut(&target.service) {
            entry.group(is_ipv6).counts.remove(state);
        }
        self.touched.insert((Arc::clone(&target.service), is_ipv6));
        self.numbers.remove(&(target.service, target.address));
        self.changes.stopped.push(number);
    }

    /// Schedules the endpoints of a Service whose check changed.
    pub(super) fn restart(&mut self, service: &Key) {
        self.touched.extend([false, true].map(|is_ipv6| (Arc::clone(service), is_ipv6)));
        let slices = self.slices_of.get(service).into_iter().flatten().filter_map(|key| self.slices.get(key));
        let numbers: HashSet<u64> =
            slices.flat_map(|slice| slice.targets.iter().flatten().copied()).collect();
        for number in numbers {
            let is_decided =
                self.targets.get(&number).is_some_and(|target| target.check.state().is_decided());
            self.start(number, !is_decided);
        }
    }

    fn start(&mut self, endpoint: u64, soon: bool) {
        let Some((address, check)) = self.probe(endpoint) else { return };
        let Some(service) = self.targets.get(&endpoint).map(|target| Arc::clone(&target.service)) else {
            return;
        };
        let interval = check.timing.interval;
        self.changes.started.push(Started { endpoint, service, address, interval, soon });
    }
}

/// Returns the state that the conditions tell. Those of a slice with the marker are the prober's.
fn resumed(conditions: Conditions, is_marked: bool, slow_start: Duration, now: Duration) -> CheckState {
    let is_ready = conditions.ready != Some(false);
    match conditions.serving.filter(|_| is_marked) {
        Some(false) => CheckState::Failing,
        Some(true) if !is_ready && conditions.terminating != Some(true) && !slow_start.is_zero() => {
            CheckState::Warming { until: now.saturating_add(slow_start) }
        }
        Some(true) => CheckState::Passing,
        None if is_ready => CheckState::Unchecked,
        None => CheckState::New,
    }
}
