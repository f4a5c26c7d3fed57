//! `/metrics/slis`: results of the metrics server's own health check (KEP-3466), which is not the health of the proxy.

use std::sync::Arc;

use crate::metrics::{Counter, DynamicVector, Gauge, ProcessMetrics, Registry};

pub(super) struct Slis {
    registry: Registry,
    result: Arc<DynamicVector<2, Gauge>>,
    results: Arc<DynamicVector<3, Counter>>,
}

impl Slis {
    pub(super) fn new() -> Self {
        let registry = Registry::default();
        ProcessMetrics::add_start_time_to(&registry);
        Self {
            result: registry.add(
                "kubernetes_healthcheck",
                "[STABLE] Last result of a health check, 1 for success",
                DynamicVector::new(["name", "type"], Gauge::default),
            ),
            results: registry.add(
                "kubernetes_healthchecks_total",
                "[STABLE] Results of health checks",
                DynamicVector::new(["name", "status", "type"], Counter::default),
            ),
            registry,
        }
    }

    pub(super) fn ping_succeeded(&self) {
        self.result.with(["ping", "healthz"], |gauge| gauge.set(1.0));
        self.results.with(["ping", "success", "healthz"], Counter::increment);
    }

    pub(super) fn reset(&self) {
        self.result.clear();
        self.results.clear();
    }

    pub(super) fn page(&self) -> String {
        self.registry.page()
    }
}
