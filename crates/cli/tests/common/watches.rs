//! The agent's watches of the API server, by its metrics.

use std::time::Instant;

use portolan_testkit::{Namespace, eventually};
use serde_json::{Value, json};

use super::{Cluster, PATIENCE, at, http, objects};

pub(crate) const COLLECTIONS: [&str; 4] = ["services", "endpointslices", "nodes", "servicecidrs"];

/// Returns the seconds since a watch of the agent has received anything.
pub(crate) fn age(node: &Namespace, collection: &str) -> f64 {
    last_received(node, collection).unwrap_or_else(|| panic!("no age of the watch of {collection}"))
}

/// Does the same, and returns `None` if the agent does not say.
fn last_received(node: &Namespace, collection: &str) -> Option<f64> {
    metric(node, "portolan_watch_age_seconds", collection)
}

/// Returns how many empty lists of a collection the agent did not believe at first.
pub(crate) fn empty_lists_held(node: &Namespace, collection: &str) -> f64 {
    // The metric has no value before the first one.
    metric(node, "portolan_watch_empty_lists_held_total", collection).unwrap_or_default()
}

fn metric(node: &Namespace, name: &str, collection: &str) -> Option<f64> {
    // A caller that waits tries again, for example because the agent has just started.
    let page = http::get(node, at("127.0.0.1:10249"), "/metrics")?.body;
    let sample = format!("{name}{{resource=\"{collection}\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&sample))?;
    Some(value.parse().unwrap())
}

/// Changes an object of each collection, and waits until the agent has received something of each since then. The Service and the
/// EndpointSlice are the caller's. `round` is another one each time.
pub(crate) fn all_open(cluster: &Cluster, service: Value, slice: Value, round: usize) {
    let since = Instant::now();
    let changed = |mut object: Value| {
        object["metadata"]["labels"]["round"] = json!(round.to_string());
        cluster.apply(object);
    };
    changed(service);
    changed(slice);
    changed(objects::node(&cluster.world));
    changed(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"},
        "spec": {"cidrs": ["10.97.0.0/24"]},
    }));
    let received = |collection: &&str| {
        // Read before the page is made: a lower age is that of something that came after `since`.
        let passed = since.elapsed().as_secs_f64();
        last_received(cluster.world.node().namespace(), collection).is_some_and(|age| age < passed)
    };
    let outcome = eventually(PATIENCE, "something of each watch", || COLLECTIONS.iter().all(received));
    assert!(outcome.is_ok(), "{COLLECTIONS:?}");
}
