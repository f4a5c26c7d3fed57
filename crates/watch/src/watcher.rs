//! Runs the four reflectors together.

use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;

use futures::future::join4;
use portolan_model::object::Kind;

use crate::counts::Counts;
use crate::driver::Driver;
use crate::request::Collection;
use crate::timing::Timing;
use crate::watch_event::WatchEvent;

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
