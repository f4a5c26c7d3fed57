//! Short forms of requests, for tests of this crate and of crates that use it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "helpers of tests: what fails here fails the test"
)]

use portolan_schema::{
    Resource,
    json::{Value, json},
};
use portolan_store::Scope;

use crate::{Api, ApiConfig, Preconditions, Target, WriteOptions};

/// Returns an API with these service ranges and an empty store in memory.
pub fn api(ranges: &str) -> Api {
    Api::new(&ApiConfig { service_ranges: ranges.parse().unwrap(), ..ApiConfig::default() })
}

/// Returns a Service with port 80 at a cluster IP.
pub fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

/// Returns an object of namespace `default`, or a cluster-scoped one, as the target of a request.
pub fn target(resource: Resource, name: &str) -> Target<'_> {
    let namespace = if resource.info().namespaced { "default" } else { "" };
    Target { resource, namespace, name }
}

/// Deletes an object of namespace `default`, or a cluster-scoped one.
pub fn delete(api: &Api, resource: Resource, name: &str) {
    let target = target(resource, name);
    api.blocking().delete(target, &Preconditions::default(), WriteOptions::default()).unwrap();
}

/// Returns the stored object with this key.
pub fn get(api: &Api, resource: Resource, key: &str) -> Option<Value> {
    api.store().get(resource, key).map(|object| object.decode().into())
}

/// Returns all stored objects of a resource.
pub fn list(api: &Api, resource: Resource) -> Vec<Value> {
    let snapshot = api.store().snapshot(resource, &Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.decode().into()).collect()
}
