//! The Node object of the host on which the server runs, for hosts on which nothing else registers it.
//!
//! In: the host's name and addresses. Out: the Node, its addresses each time they change, and its condition `Ready` with
//! a heartbeat ([`ready`]).
//!
//! An annotation marks a Node that this controller made. A Node without it, or from a manifest, is left as it is.

mod ready;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use portolan_api::{Api, ApiError, Part, Target, WriteOptions, metadata};
use portolan_schema::{
    Resource,
    json::{self, Object, Value, json},
};
use tokio::sync::watch;

use super::{RECHECK_INTERVAL, manifests::MARKER};

/// Annotation of a Node that this controller maintains.
const REGISTERED: &str = "portolan.internal/registered-by";
const BY: &str = "portolan up";

/// The host on which the server runs.
#[derive(Debug, Clone)]
pub struct OwnNode {
    /// The name of its Node.
    pub name: String,
    /// Its addresses (`InternalIP`). While there are none, the Node keeps the last ones.
    pub addresses: watch::Receiver<Vec<IpAddr>>,
    /// True if an administrator gave the addresses. Otherwise a Node that exists keeps its last ones while the host has only
    /// loopback.
    pub is_given: bool,
}

/// What is to be done with the Node.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create,
    /// Sets these fields of `status`.
    Set(Object),
    /// It is as it should be.
    Nothing,
    /// Others made it.
    Leave,
}

/// Maintains the Node: looks at it when it or the addresses change, and every [`RECHECK_INTERVAL`], which is less than the
/// time from one heartbeat to the next.
pub(super) async fn keep(api: &Api, node: Option<&OwnNode>) {
    let Some(node) = node else { return std::future::pending().await };
    let mut stored = api.store().subscribe(Resource::Node);
    let mut addresses = node.addresses.clone();
    let mut is_reported = false;
    loop {
        stored.borrow_and_update();
        addresses.borrow_and_update();
        let is_left = node.sync(api).await;
        if is_left && !is_reported {
            tracing::info!(
                node = node.name,
                "the Node was made by other means: its addresses are not followed"
            );
        }
        is_reported = is_left;
        tokio::select! {
            _ = stored.changed() => {}
            // An error means that nothing follows the addresses any more.
            Ok(()) = addresses.changed() => {}
            () = tokio::time::sleep(RECHECK_INTERVAL) => {}
        }
    }
}

impl OwnNode {
    /// Creates the Node, or sets its addresses, if that is needed. Returns true if the Node belongs to others.
    pub(super) async fn sync(&self, api: &Api) -> bool {
        self.sync_at(api, &metadata::now()).await
    }

    async fn sync_at(&self, api: &Api, now: &str) -> bool {
        let addresses = self.addresses.borrow().clone();
        let stored = api.store().get(Resource::Node, &self.target().key());
        let object = stored.as_ref().map(|stored| stored.decode());
        let step = step(object.as_ref(), self.wanted(&addresses), self.are_unknown(&addresses), now);
        let (written, has_addresses) = match step {
            Step::Nothing => return false,
            Step::Leave => return true,
            Step::Create => (self.create(api, &addresses, now).await, true),
            Step::Set(status) => {
                let has_addresses = status.contains_key("addresses");
                let revision = stored.map(|stored| stored.revision().to_string());
                (self.set(api, status, revision).await, has_addresses)
            }
        };
        match written {
            Ok(()) if has_addresses => {
                tracing::info!(node = self.name, ?addresses, "the Node has the addresses of this host");
            }
            // Another client changed the Node meanwhile, so it is looked at again.
            Ok(()) | Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => {}
            // It is tried again.
            Err(error) => tracing::error!(node = self.name, %error, "the Node cannot be written"),
        }
        false
    }

    fn target(&self) -> Target<'_> {
        Target { resource: Resource::Node, namespace: "", name: &self.name }
    }

    /// Returns true if these are no addresses at which other hosts may reach this one.
    fn are_unknown(&self, addresses: &[IpAddr]) -> bool {
        addresses.is_empty() || (!self.is_given && addresses.iter().all(IpAddr::is_loopback))
    }

    /// Returns `status.addresses`.
    fn wanted(&self, addresses: &[IpAddr]) -> Value {
        let ips = addresses.iter().map(|address| json!({"type": "InternalIP", "address": address}));
        ips.chain([json!({"type": "Hostname", "address": self.name})]).collect::<Vec<_>>().into()
    }

    async fn create(&self, api: &Api, addresses: &[IpAddr], now: &str) -> Result<(), ApiError> {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": self.name,
                "annotations": {REGISTERED: BY},
                "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"},
            },
            "status": {"addresses": self.wanted(addresses), "conditions": ready::conditions(None, now)},
        });
        api.apply(node).await.map(drop)
    }

    async fn set(&self, api: &Api, status: Object, revision: Option<String>) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"resourceVersion": revision}, "status": status});
        let Some(patch) = patch.as_object().cloned() else { return Ok(()) };
        api.merge_patch(self.target(), Part::Status, patch, WriteOptions::default()).await.map(drop)
    }
}

/// Returns true if `status.addresses` has an `InternalIP`.
fn has_address(addresses: Option<&Value>) -> bool {
    let mut addresses =
        addresses.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
    addresses.any(|address| json::text(address, "type") == Some("InternalIP"))
}

/// Returns what is to be done. `wanted` is `status.addresses`; `is_unknown` tells that the host's addresses are not known.
fn step(stored: Option<&Object>, wanted: Value, is_unknown: bool, now: &str) -> Step {
    let Some(stored) = stored else { return Step::Create };
    let annotation = |name| {
        let annotations = json::object(json::object(stored, "metadata")?, "annotations")?;
        json::text(annotations, name)
    };
    if annotation(REGISTERED) != Some(BY) || annotation(MARKER).is_some() {
        return Step::Leave;
    }
    let present = |field| json::object(stored, "status").and_then(|status| status.get(field));
    let mut status = Object::new();
    // A Node without any gets what there is: its agent waits for an address.
    let is_needed = !is_unknown || (!has_address(present("addresses")) && has_address(Some(&wanted)));
    if is_needed && present("addresses") != Some(&wanted) {
        status.insert("addresses".to_owned(), wanted);
    }
    if let Some(conditions) = ready::conditions(present("conditions"), now) {
        status.insert("conditions".to_owned(), conditions);
    }
    if status.is_empty() { Step::Nothing } else { Step::Set(status) }
}
