//! Counters and gauges of the allocator. Names are those of kube-apiserver, but without its faults: a gauge is what is
//! recorded, whoever wrote it, and a range that is gone has none; each request counts once.

use std::collections::BTreeMap;

use portolan_ipam::{Claims, ServiceSpec};

use super::Ledger;

/// How an address or port was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// By its number.
    Static,
    /// Any would do.
    Dynamic,
}

/// What the allocator has done and how full it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllocatorMetrics {
    /// `kube_apiserver_clusterip_allocator_allocation_total`, by `cidr` and `scope`.
    pub addresses_allocated: BTreeMap<(String, Scope), u64>,
    /// `kube_apiserver_clusterip_allocator_allocation_errors_total`, by `scope`: which range a refused request meant is
    /// not known.
    pub address_errors: BTreeMap<Scope, u64>,
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
    /// The label `scope`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
        }
    }
}

impl Ledger {
    /// Everything up to now.
    pub(crate) fn metrics(&self) -> AllocatorMetrics {
        let usage = self.allocations.addresses.usage();
        AllocatorMetrics {
            addresses: usage.map(|it| (it.range.to_string(), (it.allocated, it.available))).collect(),
            ports: (self.allocations.ports.taken(), self.allocations.ports.free()),
            ..self.metrics.clone()
        }
    }

    /// A Service has been stored with these; `asked` is what the client wrote.
    pub(crate) fn count_taken(&mut self, taken: &Claims, asked: &ServiceSpec) {
        let asked = asked.claims();
        for address in &taken.addresses {
            let ranges = self.allocations.addresses.ranges();
            let Some(range) = ranges.into_iter().find(|range| range.accepts(*address)) else { continue };
            let key = (range.to_string(), scope(asked.addresses.contains(address)));
            add_one(&mut self.metrics.addresses_allocated, key);
        }
        for port in &taken.ports {
            add_one(&mut self.metrics.ports_allocated, scope(asked.ports.contains(port)));
        }
    }

    /// A Service has been refused for these fields.
    pub(crate) fn count_refused(&mut self, errors: &[portolan_ipam::FieldError]) {
        for error in errors {
            let scope = scope(!error.value.is_empty());
            if error.field.ends_with("odePort") {
                add_one(&mut self.metrics.port_errors, scope);
            } else if matches!(
                error.reason,
                portolan_ipam::Refusal::Address(_) | portolan_ipam::Refusal::HeldBy(_)
            ) {
                add_one(&mut self.metrics.address_errors, scope);
            }
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
