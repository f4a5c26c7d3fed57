//! The metrics of the allocator and the repair loop, under kube-apiserver's names.

use std::{collections::BTreeMap, sync::Arc};

use portolan_api::{AllocationScope, AllocatorMetrics, Api};
use portolan_controllers::{RepairCounters, RepairMetrics};
use portolan_web::metrics::{Collect, MetricKind, Page, labels_text};

/// The allocator, and the repair loop that works for it.
#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) api: Arc<Api>,
    pub(super) repairs: RepairCounters,
}

impl Collect for Allocation {
    fn collect(&self, page: &mut Page) {
        let metrics = self.api.allocator_metrics();
        addresses(page, &metrics);
        ports(page, &metrics);
        repair(page, &self.repairs.read());
    }
}

fn addresses(page: &mut Page, metrics: &AllocatorMetrics) {
    let name = "kube_apiserver_clusterip_allocator_allocated_ips";
    page.family(name, MetricKind::Gauge, "Cluster IPs that are given out.");
    for (cidr, (allocated, _)) in &metrics.addresses {
        page.sample(name, &labels_text([("cidr", cidr)]), number(*allocated));
    }
    let name = "kube_apiserver_clusterip_allocator_available_ips";
    page.family(name, MetricKind::Gauge, "Cluster IPs that are left.");
    for (cidr, (_, available)) in &metrics.addresses {
        page.sample(name, &labels_text([("cidr", cidr)]), number(*available));
    }
    let name = "kube_apiserver_clusterip_allocator_allocation_total";
    page.family(name, MetricKind::Counter, "Cluster IPs that this server gave out.");
    for ((cidr, scope), count) in &metrics.addresses_allocated {
        page.sample(name, &labels_text([("cidr", cidr), ("scope", scope.name())]), number(*count));
    }
    let name = "kube_apiserver_clusterip_allocator_allocation_errors_total";
    page.family(name, MetricKind::Counter, "Requests for a cluster IP that could not be met.");
    for ((cidr, scope), count) in &metrics.address_errors {
        page.sample(name, &labels_text([("cidr", cidr), ("scope", scope.name())]), number(*count));
    }
    let name = "kube_apiserver_clusterip_allocator_allocation_duration_seconds";
    page.family(name, MetricKind::Histogram, "Time in which a Service got its cluster IP and was stored.");
    for (cidr, histogram) in &metrics.durations {
        let counts = histogram.counts().iter().copied();
        page.histogram(name, &labels_text([("cidr", cidr)]), histogram.bounds(), counts, histogram.sum());
    }
}

fn ports(page: &mut Page, metrics: &AllocatorMetrics) {
    let (allocated, available) = metrics.ports;
    let name = "kube_apiserver_nodeport_allocator_allocated_ports";
    page.single(name, MetricKind::Gauge, "Node ports that are given out.", number(allocated));
    let name = "kube_apiserver_nodeport_allocator_available_ports";
    page.single(name, MetricKind::Gauge, "Node ports that are left.", number(available));
    let name = "kube_apiserver_nodeport_allocator_allocation_total";
    scopes(page, name, "Node ports that this server gave out.", &metrics.ports_allocated);
    let name = "kube_apiserver_nodeport_allocator_allocation_errors_total";
    scopes(page, name, "Requests for a node port that could not be met.", &metrics.port_errors);
}

fn repair(page: &mut Page, metrics: &RepairMetrics) {
    let failed = "Passes of the repair loop that could not be finished.";
    for (of, errors) in
        [("clusterip_repair_ip", &metrics.address_errors), ("nodeport_repair_port", &metrics.port_errors)]
    {
        let name = format!("apiserver_{of}_errors_total");
        page.family(&name, MetricKind::Counter, "What the repair loop found, by its kind.");
        for (kind, count) in errors {
            page.sample(&name, &labels_text([("type", kind)]), number(*count));
        }
    }
    for of in ["clusterip", "nodeport"] {
        let name = format!("apiserver_{of}_repair_reconcile_errors_total");
        page.single(&name, MetricKind::Counter, failed, number(metrics.failed_passes));
    }
}

fn scopes(page: &mut Page, name: &str, help: &str, counts: &BTreeMap<AllocationScope, u64>) {
    page.family(name, MetricKind::Counter, help);
    for (scope, count) in counts {
        page.sample(name, &labels_text([("scope", scope.name())]), number(*count));
    }
}

/// Converts a count for Prometheus, whose samples are floating-point numbers.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and larger counts need no more digits")]
fn number(count: u64) -> f64 {
    count as f64
}
