//! The Node object of the host on which the server runs, for hosts on which nothing else registers it.
//!
//! In: the host's name and addresses. Out: the Node, and its addresses each time they change.
//!
//! An annotation marks a Node that this controller made. A Node without it, or from a manifest, is left as it is.

use std::net::IpAddr;

use portolan_api::{Api, ApiError, Part, Target, WriteOptions};
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
    SetAddresses,
    /// It is as it should be.
    Nothing,
    /// Others made it.
    Leave,
}

/// Maintains the Node: looks at it when it or the addresses change, and every [`RECHECK_INTERVAL`].
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
        let addresses = self.addresses.borrow().clone();
        let stored = api.store().get(Resource::Node, &self.target().key()).map(|stored| stored.decode());
        let step = step(stored.as_ref(), &self.wanted(&addresses), self.are_unknown(&addresses));
        let written = match step {
            Step::Nothing | Step::Leave => return step == Step::Leave,
            Step::Create => self.create(api, &addresses).await,
            Step::SetAddresses => self.set_addresses(api, &addresses).await,
        };
        match written {
            Ok(()) => tracing::info!(node = self.name, ?addresses, "the Node has the addresses of this host"),
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

    async fn create(&self, api: &Api, addresses: &[IpAddr]) -> Result<(), ApiError> {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": self.name,
                "annotations": {REGISTERED: BY},
                "labels": {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"},
            },
            "status": {"addresses": self.wanted(addresses)},
        });
        api.apply(node).await.map(drop)
    }

    async fn set_addresses(&self, api: &Api, addresses: &[IpAddr]) -> Result<(), ApiError> {
        let patch = json!({"status": {"addresses": self.wanted(addresses)}});
        let Some(patch) = patch.as_object().cloned() else { return Ok(()) };
        api.merge_patch(self.target(), Part::Status, patch, WriteOptions::default()).await.map(drop)
    }
}

/// Returns what is to be done. `wanted` is `status.addresses`; `is_unknown` tells that the host's addresses are not known.
fn step(stored: Option<&Object>, wanted: &Value, is_unknown: bool) -> Step {
    let Some(stored) = stored else { return Step::Create };
    let annotation = |name| {
        let annotations = json::object(json::object(stored, "metadata")?, "annotations")?;
        json::text(annotations, name)
    };
    if annotation(REGISTERED) != Some(BY) || annotation(MARKER).is_some() {
        return Step::Leave;
    }
    let present = json::object(stored, "status").and_then(|status| status.get("addresses"));
    if is_unknown || present == Some(wanted) { Step::Nothing } else { Step::SetAddresses }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_api::ApiConfig;

    use super::*;

    fn stored(api: &Api) -> Value {
        let node = api.store().get(Resource::Node, "host1").unwrap().decode();
        Value::Object(node)
    }

    fn addresses(api: &Api) -> Value {
        stored(api).pointer("/status/addresses").cloned().unwrap()
    }

    #[tokio::test]
    async fn the_node_has_the_addresses_of_the_host() {
        let api = Arc::new(Api::new(&ApiConfig::default()));
        let (host, followed) = watch::channel(vec!["127.0.0.1".parse().unwrap()]);
        let node = OwnNode { name: "host1".to_owned(), addresses: followed, is_given: false };
        assert!(!node.sync(&api).await);
        assert_eq!(
            addresses(&api).pointer("/0/address"),
            Some(&json!("127.0.0.1")),
            "a new Node has loopback"
        );
        host.send_replace(vec!["192.0.2.1".parse().unwrap()]);
        assert!(!node.sync(&api).await);
        let hostname = json!({"type": "Hostname", "address": "host1"});
        assert_eq!(
            addresses(&api),
            json!([{"type": "InternalIP", "address": "192.0.2.1"}, hostname.clone()])
        );
        let revision = api.store().revision();
        assert!(!node.sync(&api).await);
        assert_eq!(api.store().revision(), revision, "nothing is written if nothing changed");
        host.send_replace(vec!["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()]);
        assert!(!node.sync(&api).await);
        let both = json!([{"type": "InternalIP", "address": "192.0.2.2"},
            {"type": "InternalIP", "address": "2001:db8::2"}, hostname]);
        assert_eq!(addresses(&api), both.clone());
        for without in [Vec::new(), vec!["127.0.0.1".parse().unwrap()]] {
            host.send_replace(without);
            assert!(!node.sync(&api).await);
            assert_eq!(addresses(&api), both, "without addresses it keeps the last ones");
        }
        let given = OwnNode { is_given: true, ..node };
        assert!(!given.sync(&api).await);
        assert_eq!(addresses(&api).pointer("/0/address"), Some(&json!("127.0.0.1")), "the option decides");
    }

    #[tokio::test]
    async fn a_node_of_others_stays() {
        let api = Arc::new(Api::new(&ApiConfig::default()));
        let (_host, followed) = watch::channel(vec!["192.0.2.1".parse().unwrap()]);
        let node = OwnNode { name: "host1".to_owned(), addresses: followed, is_given: false };
        let given = |annotations: Value| {
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host1", "annotations": annotations},
                "status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.7"}]}})
        };
        let of_manifest = json!({MARKER: "Node host1 in /a/b.yaml", REGISTERED: BY});
        for annotations in [json!({}), of_manifest] {
            api.apply(given(annotations)).await.unwrap();
            assert!(node.sync(&api).await);
            assert_eq!(addresses(&api), json!([{"type": "InternalIP", "address": "198.51.100.7"}]));
        }
        // Without it the host gets a Node again.
        let target = node.target();
        api.delete(target, &portolan_api::Preconditions::default(), WriteOptions::default()).await.unwrap();
        assert!(!node.sync(&api).await);
        assert_eq!(stored(&api).pointer("/metadata/annotations").cloned(), Some(json!({REGISTERED: BY})));
    }
}
