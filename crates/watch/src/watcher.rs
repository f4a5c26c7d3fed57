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
    versions: Vec<(Kind, Box<str>)>,
    is_in_protobuf: bool,
}

impl Watcher {
    /// Creates a watcher for the node of this name. The client must come from [`connect`](crate::connect), which
    /// enforces the maximum time for an answer.
    pub fn new(client: kube::Client, node_name: &str) -> Self {
        Self {
            client,
            node_name: node_name.into(),
            timing: Timing::default(),
            counts: Arc::default(),
            versions: Vec::new(),
            is_in_protobuf: false,
        }
    }

    /// Sets whether watches, and lists in watches, are asked for in protobuf. It takes less processor time and fewer bytes than JSON. A
    /// server that has none sends JSON. Lists in pages are always JSON.
    #[must_use]
    pub fn in_protobuf(self, is_in_protobuf: bool) -> Self {
        Self { is_in_protobuf, ..self }
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

    /// Starts with watches from these resource versions in place of lists, for a caller that has the objects of these
    /// versions. A collection that is not named begins with a list. The number of known objects is not set: without
    /// [`Watcher::after`], the first empty list is accepted at once.
    #[must_use]
    pub fn resuming(self, versions: Vec<(Kind, Box<str>)>) -> Self {
        Self { versions, ..self }
    }

    /// Returns the counters, which are updated while the watcher runs.
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Runs until dropped. `sink` is called on this task, between polls: the time that it takes delays the reading
    /// of bodies, which is the back-pressure. The future is not `Send`; run it on a `current_thread` runtime.
    pub async fn run(self, sink: impl FnMut(WatchEvent)) -> Infallible {
        let sink = RefCell::new(sink);
        let timing = self.timing.of_one_node(fastrand::f64());
        let drive = |kind| {
            let collection = Collection::new(kind, &self.node_name);
            let collection = if self.is_in_protobuf { collection.in_protobuf() } else { collection };
            let driver = Driver::new(&self.client, collection, timing, &sink, self.counts.of(kind));
            let version = self.versions.iter().find(|(of, _)| *of == kind);
            driver.resuming(version.map(|(_, version)| &**version)).run()
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
