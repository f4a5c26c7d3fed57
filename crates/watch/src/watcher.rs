//! The four reflectors together, and what they tell.

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

/// One thing for the consumer.
#[derive(Debug)]
pub enum WatchEvent {
    /// Events of one collection in their order, all that had arrived together. Lists are framed by
    /// `ListStart` and `ListEnd`; a `ListStart` without its end may be followed by another, which begins anew.
    /// `ServiceCidrsUnavailable` comes when the server has no ServiceCIDRs or lets us not see them, and
    /// again at each slow retry.
    Objects(Vec<Event>),
    /// A whole list, an event after it or a bookmark came: until now, what is known of this collection is what the
    /// API server says. It comes after the events.
    Heard(Kind),
    /// A list was empty where this many objects were known. It is asked for again before it is believed
    /// ([`Timing::empty_list_hold`]). Told once until a list is believed.
    EmptyListHeld {
        /// Which collection.
        kind: Kind,
        /// How many objects are known.
        known: usize,
    },
    /// A request failed and will be repeated. What was learned stays valid until events say otherwise.
    Restarted {
        /// Which collection.
        kind: Kind,
        /// What happened.
        reason: RestartReason,
        /// Whether the collection will be read anew; otherwise it goes on where it was.
        relist: bool,
        /// The wait before that.
        delay: Duration,
    },
    /// One object was passed over: it cannot even be identified. (Faults inside an object come with it.)
    Fault {
        /// Which collection.
        kind: Kind,
        /// What is wrong with it.
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
    /// Objects passed over, each time that one came.
    pub faults: AtomicU64,
    /// Objects passed over since the collection was last read whole. Not a counter: for a gauge of bad objects.
    pub unreadable: AtomicU64,
    /// Objects that the server was last seen to have. Not a counter: it says which empty list is doubted.
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

/// Counters since start, for metrics; may be read from any thread.
#[derive(Debug, Default)]
pub struct Counts {
    services: KindCounts,
    endpoint_slices: KindCounts,
    nodes: KindCounts,
    service_cidrs: KindCounts,
}

impl Counts {
    /// The counters of a collection.
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
    /// A watcher for the node of this name. The client is to come from [`connect`](crate::connect), which keeps to
    /// the time that an answer may take.
    pub fn new(client: kube::Client, node_name: &str) -> Self {
        Self { client, node_name: node_name.into(), timing: Timing::default(), counts: Arc::default() }
    }

    /// Other timeouts and delays than client-go's.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }

    /// The same, in the place of another watcher with these counters, whose consumer it gets: an empty list is doubted
    /// by what that one knew. To be called when the other one has ended.
    #[must_use]
    pub fn after(self, other: &Counts) -> Self {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr] {
            self.counts.of(kind).set_known(other.of(kind).known());
        }
        self
    }

    /// The counters; they go on counting while the watcher runs.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Runs until dropped. `sink` is called on this task, between polls: what it does delays the reading of
    /// bodies, which is the back-pressure. The future is not `Send`; run it on a `current_thread` runtime.
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
