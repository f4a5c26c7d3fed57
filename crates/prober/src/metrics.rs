//! What the prober has done, as numbers that any thread may read. [`Collect`] writes them to a page of metrics.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_web::metrics::{Collect, MetricKind, Page, labels_text};

use crate::object::Key;
use crate::plan::Counts;
use crate::probe::{ProbeOutcome, REASONS};

/// A number.
#[derive(Debug, Default)]
pub struct Number(AtomicU64);

impl Number {
    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the number for a sample.
    #[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and larger counts need no more digits")]
    fn value(&self) -> f64 {
        self.get() as f64
    }

    pub(crate) fn increment(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(u64::try_from(value).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// All numbers.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Probes that passed.
    pub passed: Number,
    /// Probes that failed, in the order of [`REASONS`].
    pub failed: [Number; REASONS.len()],
    /// Probes that this node could not send.
    pub unable: Number,
    /// Probes that began more than a second late, because too many were under way.
    pub late: Number,
    /// Endpoints that became healthy.
    pub became_healthy: Number,
    /// Endpoints that became unhealthy.
    pub became_unhealthy: Number,
    /// Writes of slices that succeeded.
    pub written: Number,
    /// Writes that met another version of the slice.
    pub conflicts: Number,
    /// Writes that failed for another reason.
    pub write_failures: Number,
    /// Events that were not recorded, because one object had too many.
    pub events_dropped: Number,
    /// Groups of endpoints that serve although too few are healthy.
    pub open_groups: Number,
    /// 1 while this server probes, otherwise 0.
    pub is_active: Number,
    /// Endpoints without a result.
    pub undecided: Number,
    /// Endpoints that fail.
    pub failing: Number,
    /// Healthy endpoints that slow start holds back.
    pub warming: Number,
    /// Healthy endpoints.
    pub passing: Number,
    endpoints: Mutex<BTreeMap<u64, Arc<EndpointMetrics>>>,
}

/// The numbers of one endpoint.
#[derive(Debug)]
pub struct EndpointMetrics {
    /// Namespace and name of the Service.
    pub service: Key,
    /// Address and port.
    pub address: SocketAddr,
    /// Probes.
    pub probes: Number,
    /// Probes that failed.
    pub failures: Number,
    is_healthy: AtomicBool,
    last_microseconds: AtomicU64,
}

impl EndpointMetrics {
    /// Returns true if the endpoint is healthy.
    pub fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Returns how long the last probe took.
    pub fn last(&self) -> Duration {
        Duration::from_micros(self.last_microseconds.load(Ordering::Relaxed))
    }

    pub(crate) fn probed(&self, outcome: &ProbeOutcome, took: Duration) {
        self.probes.increment();
        if matches!(outcome, ProbeOutcome::Failed(_)) {
            self.failures.increment();
        }
        let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.last_microseconds.store(microseconds, Ordering::Relaxed);
    }

    pub(crate) fn set_healthy(&self, is_healthy: bool) {
        self.is_healthy.store(is_healthy, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn start(&self, number: u64, service: Key, address: SocketAddr) -> Arc<EndpointMetrics> {
        let endpoint = Arc::new(EndpointMetrics {
            service,
            address,
            probes: Number::default(),
            failures: Number::default(),
            is_healthy: AtomicBool::new(false),
            last_microseconds: AtomicU64::new(0),
        });
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.insert(number, Arc::clone(&endpoint));
        endpoint
    }

    pub(crate) fn stop(&self, number: u64) {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        self.undecided.set(counts.undecided);
        self.failing.set(counts.failing);
        self.warming.set(counts.warming);
        self.passing.set(counts.passing);
    }

    /// Counts the outcome of a probe.
    pub(crate) fn count(&self, outcome: &ProbeOutcome) {
        let number = match outcome {
            ProbeOutcome::Passed => Some(&self.passed),
            ProbeOutcome::Failed(failure) => self.failed.get(failure.index()),
            ProbeOutcome::Unable(_) => Some(&self.unable),
        };
        number.into_iter().for_each(Number::increment);
    }

    /// Returns the numbers of all endpoints.
    pub fn endpoints(&self) -> Vec<Arc<EndpointMetrics>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl Collect for Metrics {
    fn collect(&self, page: &mut Page) {
        let probes = REASONS.iter().zip(&self.failed).map(|(reason, number)| (*reason, number));
        let probes = [("passed", &self.passed), ("unable", &self.unable)].into_iter().chain(probes);
        let name = "portolan_health_check_probes_total";
        page.family(name, MetricKind::Counter, "Probes of endpoints, by result.");
        samples(page, name, "result", probes);
        let name = "portolan_health_check_late_probes_total";
        let help = "Probes that began more than a second late.";
        page.single(name, MetricKind::Counter, help, self.late.value());
        let name = "portolan_health_check_changes_total";
        page.family(name, MetricKind::Counter, "Changes of the health of endpoints.");
        let changes = [("healthy", &self.became_healthy), ("unhealthy", &self.became_unhealthy)];
        samples(page, name, "to", changes);
        let name = "portolan_health_check_endpoints";
        page.family(name, MetricKind::Gauge, "Endpoints that are checked, by state.");
        let states = [
            ("undecided", &self.undecided),
            ("failing", &self.failing),
            ("warming", &self.warming),
            ("passing", &self.passing),
        ];
        samples(page, name, "state", states);
        let name = "portolan_health_check_fail_open";
        let help = "Services and IP families whose endpoints are all ready because too few are healthy.";
        page.single(name, MetricKind::Gauge, help, self.open_groups.value());
        let name = "portolan_health_check_active";
        page.single(name, MetricKind::Gauge, "1 while this server probes.", self.is_active.value());
        let name = "portolan_health_check_writes_total";
        page.family(name, MetricKind::Counter, "Writes of EndpointSlices, by result.");
        let writes =
            [("written", &self.written), ("conflict", &self.conflicts), ("failed", &self.write_failures)];
        samples(page, name, "result", writes);
        let name = "portolan_health_check_events_dropped_total";
        let help = "Events that were not recorded because one object had too many.";
        page.single(name, MetricKind::Counter, help, self.events_dropped.value());
        self.collect_endpoints(page);
    }
}

impl Metrics {
    fn collect_endpoints(&self, page: &mut Page) {
        let endpoints = self.endpoints();
        let mut each = |name: &str, kind: MetricKind, help: &str, value: fn(&EndpointMetrics) -> f64| {
            page.family_with(name, kind, help, |page| {
                for endpoint in &endpoints {
                    let (namespace, service) = endpoint.service.split_once('/').unwrap_or_default();
                    let address = endpoint.address.to_string();
                    let labels = [("namespace", namespace), ("service", service), ("endpoint", &address)];
                    page.sample(name, &labels_text(labels), value(endpoint));
                }
            });
        };
        let (counter, gauge) = (MetricKind::Counter, MetricKind::Gauge);
        let name = "portolan_health_check_endpoint_healthy";
        each(name, gauge, "1 if the endpoint is healthy.", |it| f64::from(u8::from(it.is_healthy())));
        let name = "portolan_health_check_endpoint_probes_total";
        each(name, counter, "Probes of the endpoint.", |it| it.probes.value());
        let name = "portolan_health_check_endpoint_failures_total";
        each(name, counter, "Probes of the endpoint that failed.", |it| it.failures.value());
        let name = "portolan_health_check_endpoint_last_probe_seconds";
        each(name, gauge, "Duration of the endpoint's last probe.", |it| it.last().as_secs_f64());
    }
}

fn samples<'a>(
    page: &mut Page,
    name: &str,
    label: &str,
    values: impl IntoIterator<Item = (&'a str, &'a Number)>,
) {
    for (value, number) in values {
        page.sample(name, &labels_text([(label, value)]), number.value());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Failure;

    fn text(metrics: &Metrics) -> String {
        let mut page = Page::default();
        metrics.collect(&mut page);
        page.into_text()
    }

    #[test]
    fn the_text_has_every_number() {
        let metrics = Metrics::default();
        metrics.count(&ProbeOutcome::Passed);
        metrics.count(&ProbeOutcome::Failed(Failure::Status(503)));
        metrics.count(&ProbeOutcome::Unable(String::new()));
        metrics.set_counts(Counts { undecided: 1, failing: 2, warming: 3, passing: 4 });
        let endpoint = metrics.start(7, "shop/we\"b".into(), "10.0.0.1:80".parse().unwrap());
        endpoint.probed(&ProbeOutcome::Failed(Failure::Refused), Duration::from_millis(3));
        endpoint.set_healthy(true);
        insta::assert_snapshot!(text(&metrics), @r##"
    # HELP portolan_health_check_probes_total Probes of endpoints, by result.
    # TYPE portolan_health_check_probes_total counter
    portolan_health_check_probes_total{result="passed"} 1
    portolan_health_check_probes_total{result="unable"} 1
    portolan_health_check_probes_total{result="timeout"} 0
    portolan_health_check_probes_total{result="refused"} 0
    portolan_health_check_probes_total{result="unreachable"} 0
    portolan_health_check_probes_total{result="tls"} 0
    portolan_health_check_probes_total{result="status"} 1
    portolan_health_check_probes_total{result="answer"} 0
    # HELP portolan_health_check_late_probes_total Probes that began more than a second late.
    # TYPE portolan_health_check_late_probes_total counter
    portolan_health_check_late_probes_total 0
    # HELP portolan_health_check_changes_total Changes of the health of endpoints.
    # TYPE portolan_health_check_changes_total counter
    portolan_health_check_changes_total{to="healthy"} 0
    portolan_health_check_changes_total{to="unhealthy"} 0
    # HELP portolan_health_check_endpoints Endpoints that are checked, by state.
    # TYPE portolan_health_check_endpoints gauge
    portolan_health_check_endpoints{state="undecided"} 1
    portolan_health_check_endpoints{state="failing"} 2
    portolan_health_check_endpoints{state="warming"} 3
    portolan_health_check_endpoints{state="passing"} 4
    # HELP portolan_health_check_fail_open Services and IP families whose endpoints are all ready because too few are healthy.
    # TYPE portolan_health_check_fail_open gauge
    portolan_health_check_fail_open 0
    # HELP portolan_health_check_active 1 while this server probes.
    # TYPE portolan_health_check_active gauge
    portolan_health_check_active 0
    # HELP portolan_health_check_writes_total Writes of EndpointSlices, by result.
    # TYPE portolan_health_check_writes_total counter
    portolan_health_check_writes_total{result="written"} 0
    portolan_health_check_writes_total{result="conflict"} 0
    portolan_health_check_writes_total{result="failed"} 0
    # HELP portolan_health_check_events_dropped_total Events that were not recorded because one object had too many.
    # TYPE portolan_health_check_events_dropped_total counter
    portolan_health_check_events_dropped_total 0
    # HELP portolan_health_check_endpoint_healthy 1 if the endpoint is healthy.
    # TYPE portolan_health_check_endpoint_healthy gauge
    portolan_health_check_endpoint_healthy{namespace="shop",service="we\"b",endpoint="10.0.0.1:80"} 1
    # HELP portolan_health_check_endpoint_probes_total Probes of the endpoint.
    # TYPE portolan_health_check_endpoint_probes_total counter
    portolan_health_check_endpoint_probes_total{namespace="shop",service="we\"b",endpoint="10.0.0.1:80"} 1
    # HELP portolan_health_check_endpoint_failures_total Probes of the endpoint that failed.
    # TYPE portolan_health_check_endpoint_failures_total counter
    portolan_health_check_endpoint_failures_total{namespace="shop",service="we\"b",endpoint="10.0.0.1:80"} 1
    # HELP portolan_health_check_endpoint_last_probe_seconds Duration of the endpoint's last probe.
    # TYPE portolan_health_check_endpoint_last_probe_seconds gauge
    portolan_health_check_endpoint_last_probe_seconds{namespace="shop",service="we\"b",endpoint="10.0.0.1:80"} 0.003
    "##);
        metrics.stop(7);
        assert!(metrics.endpoints().is_empty() && !text(&metrics).contains("10.0.0.1"));
    }
}
