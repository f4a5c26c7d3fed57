//! Requests to the API server, under the names of Kubernetes' shared client library
//! (`component-base/metrics/prometheus/restclient`).

use std::sync::Arc;
use std::time::Duration;

use super::alpha;
use crate::metrics::{Counter, DynamicVector, Histogram, Registry};

const LATENCY: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The library's code for a request without a response.
const NO_ANSWER: &str = "<error>";

pub(super) struct ClientMetrics {
    requests: Arc<DynamicVector<3, Counter>>,
    duration: Arc<DynamicVector<2, Histogram>>,
    delay: Arc<DynamicVector<2, Histogram>>,
}

impl ClientMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let latency = || DynamicVector::new(["host", "verb"], || Histogram::new(LATENCY));
        Self {
            requests: registry.add(
                "rest_client_requests_total",
                alpha("Requests to the API server by status code, HTTP method and host"),
                DynamicVector::new(["code", "host", "method"], Counter::default),
            ),
            duration: registry.add(
                "rest_client_request_duration_seconds",
                alpha("Time until the API server answers, in seconds, by HTTP method and host"),
                latency(),
            ),
            delay: registry.add(
                "rest_client_rate_limiter_duration_seconds",
                alpha("Time that requests wait for the client's own rate limit, in seconds, by HTTP method and host"),
                latency(),
            ),
        }
    }

    pub(super) fn request_finished(&self, verb: &str, host: &str, code: Option<u16>, duration: Duration) {
        let code = code.map_or_else(|| NO_ANSWER.to_owned(), |code| code.to_string());
        self.requests.with([&code, host, verb], Counter::increment);
        self.duration.with([host, verb], |histogram| histogram.observe(duration.as_secs_f64()));
    }

    pub(super) fn request_delayed(&self, verb: &str, host: &str, waited: Duration) {
        self.delay.with([host, verb], |histogram| histogram.observe(waited.as_secs_f64()));
    }
}
