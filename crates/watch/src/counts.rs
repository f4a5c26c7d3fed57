//! What the reflectors count.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use portolan_model::object::Kind;

/// Counters of one collection.
#[derive(Debug, Default)]
pub struct KindCounts {
    /// Requests that failed and were repeated.
    pub restarts: AtomicU64,
    /// Lists that were begun.
    pub lists: AtomicU64,
    /// Objects that were skipped, counted each time.
    pub faults: AtomicU64,
    /// Objects that were skipped since the collection was last listed. Not a counter: for a gauge of bad objects.
    pub unreadable: AtomicU64,
    /// Number of objects that the server was last seen to have. Not a counter: it decides whether an empty list is
    /// held.
    known: AtomicUsize,
}

impl KindCounts {
    pub(crate) fn known(&self) -> usize {
        self.known.load(Ordering::Relaxed)
    }

    pub(crate) fn set_known(&self, known: usize) {
        self.known.store(known, Ordering::Relaxed);
    }
}

/// Counters since the start, for metrics. May be read from any thread.
#[derive(Debug, Default)]
pub struct Counts {
    services: KindCounts,
    endpoint_slices: KindCounts,
    nodes: KindCounts,
    service_cidrs: KindCounts,
}

impl Counts {
    /// Returns the counters of a collection.
    pub fn of(&self, kind: Kind) -> &KindCounts {
        match kind {
            Kind::Service => &self.services,
            Kind::EndpointSlice => &self.endpoint_slices,
            Kind::Node => &self.nodes,
            Kind::ServiceCidr => &self.service_cidrs,
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
