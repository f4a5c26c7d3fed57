//! The allocator's counters and gauges, under kube-apiserver's names but without its faults. A gauge counts what is
//! recorded, whichever server wrote it. A removed range has no gauge. Each request is counted once.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use portolan_ipam::{AddressError, Claims, FieldError, Refusal, ServiceSpec, family::parse_address};

use super::Ledger;
use crate::histogram::Histogram;

/// Upper bounds in seconds: the defaults of Prometheus' client libraries, which upstream's histogram has, too.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How an address or port was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The client requested a specific one.
    Static,
    /// The client requested any.
    Dynamic,
}

/// The allocator's counters, and how many addresses and ports are allocated and free.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AllocatorMetrics {
    /// `kube_apiserver_clusterip_allocator_allocation_total`, by `cidr` and `scope`.
    pub addresses_allocated: BTreeMap<(String, Scope), u64>,
    /// `kube_apiserver_clusterip_allocator_allocation_duration_seconds`, by `cidr`: the time from the first decision
    /// to the result of the store, retries included.
    pub durations: BTreeMap<String, Histogram>,
    /// `kube_apiserver_clusterip_allocator_allocation_errors_total`, by `cidr` and `scope`. An address outside of all
    /// ranges is counted for the empty `cidr`. If all ranges are exhausted, each of them is counted.
    pub address_errors: BTreeMap<(String, Scope), u64>,
    /// `kube_apiserver_nodeport_allocator_allocation_total`, by `scope`.
    pub ports_allocated: BTreeMap<Scope, u64>,
    /// `kube_apiserver_nodeport_allocator_allocation_errors_total`, by `scope`.
    pub port_errors: BTreeMap<Scope, u64>,
    /// `kube_apiserver_clusterip_allocator_allocated_ips` and `..._available_ips`, by `cidr`.
    pub addresses: BTreeMap<String, (u64, u64)>,
    /// `kube_apiserver_nodeport_allocator_allocated_ports` and `..._available_ports`.
    pub ports: (u64, u64),
}

impl Scope {
    /// Returns the value of the label `scope`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        }
    }
}

impl Ledger {
    /// Returns the current metrics.
    pub(crate) fn metrics(&self) -> AllocatorMetrics {
        let usage = self.allocations.addresses.usage();
        AllocatorMetrics {
            addresses: usage.map(|it| (it.range.to_string(), (it.allocated, it.available))).collect(),
            ports: (self.allocations.ports.taken(), self.allocations.ports.free()),
            ..self.metrics.clone()
        }
    }

    /// Counts the addresses and ports of a stored Service. `asked` is the spec as the client wrote it.
    pub(crate) fn count_taken(&mut self, taken: &Claims, asked: &ServiceSpec, took: Duration) {
        // Clients older than dual stack set only `clusterIP`.
        let single = parse_address(&asked.cluster_ip);
        let asked = asked.claims();
        for address in &taken.addresses {
            let Some(cidr) = self.cidr_of(*address) else { continue };
            let histogram = self.metrics.durations.entry(cidr.clone());
            histogram.or_insert_with(|| Histogram::new(&BOUNDS)).observe(took.as_secs_f64());
            let key = (cidr, scope(asked.addresses.contains(address) || single == Some(*address)));
            add_one(&mut self.metrics.addresses_allocated, key);
        }
        for port in &taken.ports {
            add_one(&mut self.metrics.ports_allocated, scope(asked.ports.contains(port)));
        }
    }

    /// Counts the refused fields of a Service.
    pub(crate) fn count_refused(&mut self, errors: &[FieldError]) {
        for error in errors {
            let scope = scope(!error.value.is_empty());
            if error.field.ends_with("odePort") {
                add_one(&mut self.metrics.port_errors, scope);
            } else {
                for cidr in self.cidrs_of(error) {
                    add_one(&mut self.metrics.address_errors, (cidr, scope));
                }
            }
        }
    }

    fn cidr_of(&self, address: IpAddr) -> Option<String> {
        let mut ranges = self.allocations.addresses.ranges();
        ranges.find(|range| range.accepts(address)).map(|range| range.to_string())
    }

    /// Returns the ranges that a refusal concerns; none if it does not concern an address.
    fn cidrs_of(&self, error: &FieldError) -> Vec<String> {
        match &error.reason {
            Refusal::Address(AddressError::Full { ranges, .. }) => {
                ranges.split(',').map(str::to_owned).collect()
            }
            Refusal::Address(AddressError::Allocated { address }) => {
                vec![self.cidr_of(*address).unwrap_or_default()]
            }
            Refusal::Address(AddressError::NotInRange { range, .. }) => vec![range.to_string()],
            Refusal::Address(_) => vec![String::new()],
            Refusal::HeldBy(_) => {
                let asked = error.value.split(',').filter_map(parse_address);
                let mut held = asked.filter(|address| self.allocations.addresses.is_taken(*address));
                vec![held.find_map(|address| self.cidr_of(address)).unwrap_or_default()]
            }
            _ => Vec::new(),
        }
    }
}

fn scope(is_static: bool) -> Scope {
    if is_static { Scope::Static } else { Scope::Dynamic }
}

fn add_one<K: Ord>(counters: &mut BTreeMap<K, u64>, key: K) {
    let counter = counters.entry(key).or_insert(0);
    *counter = counter.saturating_add(1);
}
