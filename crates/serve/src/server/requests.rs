//! Metrics of requests and connections. They have upstream's names if upstream has the same metric.

#![allow(clippy::cast_precision_loss, reason = "the text format has only f64 values")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use portolan_api::Histogram;
use portolan_http::{Attributes, Target};
use portolan_schema::Resource;
use portolan_web::metrics::{Collect, MetricKind, Page, labels_text};

use crate::security::Security;

/// Upper bounds in seconds, the same as in upstream's `apiserver_request_duration_seconds`.
const BOUNDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

/// The labels of a request. They contain only names that this server knows, so clients cannot create label values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Labels {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
}

/// The counters and gauges.
#[derive(Debug, Default)]
pub(super) struct Requests {
    counted: Mutex<Counted>,
    pub(super) connections: AtomicU64,
    pub(super) connections_refused: AtomicU64,
    pub(super) handshakes_failed: AtomicU64,
}

#[derive(Debug, Default)]
struct Counted {
    answers: BTreeMap<(Labels, u16), u64>,
    durations: BTreeMap<Labels, Histogram>,
    in_flight: BTreeMap<&'static str, u64>,
    watches: BTreeMap<Labels, u64>,
}

impl Labels {
    pub(super) fn of(attributes: &Attributes) -> Self {
        let verb = match attributes.verb {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            _ => "other",
        };
        let known = match &attributes.target {
            Target::Resource { group, version, resource, .. } => Resource::by_path(group, version, resource),
            Target::Path(_) => None,
        };
        let (group, resource) = known.map_or(("", ""), |it| (it.info().group, it.info().plural));
        Self { verb, group, resource }
    }

    fn pairs(&self) -> [(&'static str, &'static str); 3] {
        [("verb", self.verb), ("group", self.group), ("resource", self.resource)]
    }
}

impl Requests {
    pub(super) fn answered(&self, labels: Labels, code: u16, took: Option<Duration>) {
        let mut counted = self.lock();
        *counted.answers.entry((labels, code)).or_default() += 1;
        if let Some(took) = took {
            let histogram = counted.durations.entry(labels).or_insert_with(|| Histogram::new(&BOUNDS));
            histogram.observe(took.as_secs_f64());
        }
    }

    /// Counts a request as in flight until the result is dropped.
    pub(super) fn in_flight(self: &Arc<Self>, kind: &'static str) -> impl Send + Sync + 'static {
        *self.lock().in_flight.entry(kind).or_default() += 1;
        OnDrop::new(self, move |counted| {
            let count = counted.in_flight.entry(kind).or_default();
            *count = count.saturating_sub(1);
        })
    }

    /// Counts a watch until the result is dropped.
    pub(super) fn watching(self: &Arc<Self>, labels: Labels) -> impl Send + Sync + 'static {
        *self.lock().watches.entry(labels).or_default() += 1;
        OnDrop::new(self, move |counted| {
            let count = counted.watches.entry(labels).or_default();
            *count = count.saturating_sub(1);
        })
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collect for Requests {
    fn collect(&self, page: &mut Page) {
        let counted = self.lock();
        let name = "apiserver_request_total";
        page.family(
            name,
            MetricKind::Counter,
            "Requests by verb, resource and HTTP status; watches when they begin.",
        );
        for ((labels, code), count) in &counted.answers {
            let [verb, group, resource] = labels.pairs();
            let labels = labels_text([verb, group, resource, ("code", &code.to_string())]);
            page.sample(name, &labels, *count as f64);
        }
        let name = "apiserver_request_duration_seconds";
        page.family(
            name,
            MetricKind::Histogram,
            "Time from a request's head to its answer's, without watches.",
        );
        for (labels, histogram) in &counted.durations {
            let counts = histogram.counts().iter().copied();
            page.histogram(name, &labels_text(labels.pairs()), histogram.bounds(), counts, histogram.sum());
        }
        let name = "apiserver_current_inflight_requests";
        page.family(name, MetricKind::Gauge, "Requests under way, without watches.");
        for (kind, count) in &counted.in_flight {
            page.sample(name, &labels_text([("request_kind", kind)]), *count as f64);
        }
        let name = "apiserver_longrunning_requests";
        page.family(name, MetricKind::Gauge, "Watches under way.");
        for (labels, count) in &counted.watches {
            page.sample(name, &labels_text(labels.pairs()), *count as f64);
        }
        drop(counted);
        let value = |number: &AtomicU64| number.load(Relaxed) as f64;
        let name = "portolan_server_connections";
        page.single(name, MetricKind::Gauge, "Open connections.", value(&self.connections));
        let name = "portolan_server_connections_refused_total";
        let help = "Connections closed at once because their client had too many.";
        page.single(name, MetricKind::Counter, help, value(&self.connections_refused));
        let name = "apiserver_tls_handshake_errors_total";
        let help = "TLS handshakes that failed or took too long.";
        page.single(name, MetricKind::Counter, help, value(&self.handshakes_failed));
    }
}

/// Reverts a count when it is dropped.
struct OnDrop<F: Fn(&mut Counted)> {
    requests: Arc<Requests>,
    undo: F,
}

impl<F: Fn(&mut Counted)> OnDrop<F> {
    fn new(requests: &Arc<Requests>, undo: F) -> Self {
        Self { requests: Arc::clone(requests), undo }
    }
}

impl<F: Fn(&mut Counted)> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.undo)(&mut self.requests.lock());
    }
}

/// Shows when the server's certificate expires.
impl Collect for Security {
    fn collect(&self, page: &mut Page) {
        let Some(end) = self.certificate_end() else { return };
        let seconds = end.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let name = "portolan_server_certificate_expiration_timestamp_seconds";
        page.single(name, MetricKind::Gauge, "When the server's certificate ends.", seconds);
    }
}
