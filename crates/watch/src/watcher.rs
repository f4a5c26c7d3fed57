//! Runs the four reflectors together and defines the events that they report.

use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join4;
use portolan_model::Event;
use portolan_model::object::Kind;

use crate::driver::{Driver, ObjectError};
use crate::reflector::RestartReason;
use crate::request::Collection;
use crate::timing::Timing;

/// One event for the consumer.
#[derive(Debug)]
pub enum WatchEvent {
    /// Events of one collection in order, all that arrived together. A list is enclosed in `ListStart` and
    /// `ListEnd`. A `ListStart` without its end may be followed by another one, which begins the list anew.
    /// `ServiceCidrsUnavailable` comes when the server has no ServiceCIDRs or forbids reading them, and again at
    /// each slow retry.
    Objects(Vec<Event>),
    /// A whole list, an event after it or a bookmark came, so that the known objects of this collection are those of
    /// the API server at this time. Sent after the events.
    Heard(Kind),
    /// A list was empty where this many objects were known. Another list is requested before it is accepted
    /// ([`Timing::empty_list_hold`]). Sent once until a list is accepted.
    EmptyListHeld {
        /// The collection.
        kind: Kind,
        /// Number of known objects.
        known: usize,
    },
    /// A request failed and will be repeated. The known objects stay valid.
    Restarted {
        /// The collection.
        kind: Kind,
        /// Why the request failed.
        reason: RestartReason,
        /// True if the collection is listed again; false if the request continues where it was.
        relist: bool,
        /// The wait before the next request.
        delay: Duration,
    },
    /// One object was skipped because it cannot be identified. (Faults inside an object come with the object.)
    Fault {
        /// The collection.
        kind: Kind,
        /// What is wrong with the object.
        error: ObjectError,
    },
}

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

/// Follows the collections that a node needs.
pub struct Watcher {
    client: kube::Client,
    node_name: Box<str>,
    timing: Timing,
    counts: Arc<Counts>,
}

impl Watcher {
    /// Creates a watcher for the node of this name. The client must come from [`connect`](crate::connect), which
    /// enforces the maximum time for an answer.
    pub fn new(client: kube::Client, node_name: &str) -> Self {
        Self { client, node_name: node_name.into(), timing: Timing::default(), counts: Arc::default() }
    }

    /// Replaces the default timeouts and delays.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// Makes this watcher the successor of another one whose counters these are: empty lists are held by the number
    /// of objects that the other one knew. Call this after the other one has ended.
    #[must_use]
    pub fn after(self, other: &Counts) -> Self {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
            self.counts.of(kind).set_known(other.of(kind).known());
        }
        self
    }

    /// Returns the counters, which are updated while the watcher runs.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Runs until dropped. `sink` is called on this task, between polls: the time that it takes delays the reading
    /// of bodies, which is the back-pressure. The future is not `Send`; run it on a `current_thread` runtime.
    pub async fn run(self, sink: impl FnMut(WatchEvent)) -> Infallible {
        let sink = RefCell::new(sink);
        let drive = |kind| {
            let collection = Collection::new(kind, &self.node_name);
            Driver::new(&self.client, collection, self.timing, &sink, self.counts.of(kind)).run()
        };
        let (never, ..) = join4(
            drive(Kind::Service),
            drive(Kind::EndpointSlice),
            drive(Kind::Node),
            drive(Kind::ServiceCidr),
        )
        .await;
        never
    }
}
