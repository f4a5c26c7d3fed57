//! The counters of the userspace mode's relays, read for every page.

use std::sync::Arc;

use portolan_web::metrics::{MetricKind, Page};

use crate::metrics::{Metric, Registry};

/// What the relays of this process have done since its start, and what is open at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayMeasures {
    /// Connections open at present.
    pub open: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections and UDP flows refused for lack of room.
    pub no_room: u64,
    /// Connections refused because their destination is no Service port's.
    pub unknown: u64,
    /// Attempts to connect to an endpoint that failed.
    pub attempts_failed: u64,
    /// Connections reset because every endpoint failed.
    pub all_failed: u64,
    /// Connections reset because their endpoint was removed too long ago, or after too long without data.
    pub expired: u64,
    /// UDP flows begun.
    pub flows: u64,
    /// UDP flows open at present.
    pub flows_open: u64,
    /// UDP flows ended before their idle time, because a new flow needed the place.
    pub flows_replaced: u64,
    /// Datagrams dropped.
    pub datagrams_lost: u64,
    /// Bytes sent to endpoints.
    pub bytes_to_endpoints: u64,
    /// Bytes sent to clients.
    pub bytes_to_clients: u64,
    /// Endpoints that failed at their last attempt.
    pub failing: u64,
    /// Whether packets come to the newest relay by redirect.
    pub is_redirected: bool,
}

type Read = Arc<dyn Fn() -> Option<RelayMeasures> + Send + Sync>;

pub(super) fn add(registry: &Registry, read: &Read) {
    let add = |name, help: &str, kind, which| {
        registry.add(name, help.to_owned(), Live { read: Arc::clone(read), kind, which });
    };
    let counter = |name, help, which| add(name, help, MetricKind::Counter, which);
    counter("portolan_relay_connections_total", "Connections that the relay took in", |m| m.accepted);
    counter(
        "portolan_relay_refused_connections_total",
        "Connections and UDP flows refused for want of room",
        |m| m.no_room,
    );
    counter(
        "portolan_relay_stray_connections_total",
        "Connections refused whose Service port is gone",
        |m| m.unknown,
    );
    counter(
        "portolan_relay_failed_attempts_total",
        "Attempts to reach an endpoint that failed; the next endpoint is tried",
        |m| m.attempts_failed,
    );
    counter("portolan_relay_failed_connections_total", "Connections that no endpoint took", |m| m.all_failed);
    counter(
        "portolan_relay_expired_connections_total",
        "Connections cut: their endpoint was gone, or nothing came, for too long",
        |m| m.expired,
    );
    counter("portolan_relay_udp_flows_total", "UDP flows that the relay began", |m| m.flows);
    counter(
        "portolan_relay_replaced_udp_flows_total",
        "UDP flows that ended early because a new flow needed their place",
        |m| m.flows_replaced,
    );
    counter("portolan_relay_lost_datagrams_total", "Datagrams that were not passed on", |m| m.datagrams_lost);
    counter("portolan_relay_bytes_to_endpoints_total", "Bytes given to endpoints, over TCP and UDP", |m| {
        m.bytes_to_endpoints
    });
    counter("portolan_relay_bytes_to_clients_total", "Bytes given to clients, over TCP and UDP", |m| {
        m.bytes_to_clients
    });
    add(
        "portolan_relay_failing_endpoints",
        "Endpoints that failed last and are set aside, counted for each Service port",
        MetricKind::Gauge,
        |m| m.failing,
    );
    add(
        "portolan_relay_redirected",
        "1 where packets come to the relay by redirection, 0 where tproxy hands them over untouched",
        MetricKind::Gauge,
        |m| u64::from(m.is_redirected),
    );
    add("portolan_relay_connections", "Connections that the relay has", MetricKind::Gauge, |m| m.open);
    add("portolan_relay_udp_flows", "UDP flows that the relay has", MetricKind::Gauge, |m| m.flows_open);
}

/// A number that is kept elsewhere.
struct Live {
    read: Read,
    kind: MetricKind,
    which: fn(RelayMeasures) -> u64,
}

impl Metric for Live {
    fn kind(&self) -> MetricKind {
        self.kind
    }

    fn collect(&self, name: &str, labels: &str, page: &mut Page) {
        if let Some(measures) = (self.read)() {
            page.sample(name, labels, (self.which)(measures) as f64);
        }
    }
}
