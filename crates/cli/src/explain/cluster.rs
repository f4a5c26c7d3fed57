//! Reads the objects of a cluster.
//!
//! Services and EndpointSlices are needed. What else the user may not list is a warning, and is not known then. Of the pods, only
//! those are read that the sender may be: a cluster has many.

use portolan_explain::Sender;
use portolan_serve::json::Value;
use portolan_watch::objects::{ListError, list_all};
use portolan_watch::{Client, ClientSettings, connect};

use crate::objects::Objects;

/// A collection of the API.
struct Collection {
    path: &'static str,
    version: &'static str,
    kind: &'static str,
    /// What is not known without it. `None` if there is no answer without it.
    gives: Option<&'static str>,
}

const fn collection(
    path: &'static str,
    version: &'static str,
    kind: &'static str,
    gives: Option<&'static str>,
) -> Collection {
    Collection { path, version, kind, gives }
}

/// The collections that are read as a whole. An API server may lack ServiceCIDRs (Kubernetes before 1.33).
const COLLECTIONS: [Collection; 4] = [
    collection("/api/v1/services", "v1", "Service", None),
    collection("/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice", None),
    collection("/api/v1/nodes", "v1", "Node", Some("addresses, pod CIDRs and zones of nodes")),
    collection(
        "/apis/networking.k8s.io/v1/servicecidrs",
        "networking.k8s.io/v1",
        "ServiceCIDR",
        Some("which addresses are cluster IPs"),
    ),
];

/// Reads the objects that decide about packets of a sender.
///
/// # Errors
/// The API server cannot be reached, or the user may not list Services or EndpointSlices.
pub(super) fn read(settings: &ClientSettings, from: &Sender) -> anyhow::Result<Objects> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(settings).await?;
        let mut objects = Objects::default();
        for collection in &COLLECTIONS {
            add(&client, &mut objects, collection.path, collection).await?;
        }
        let pods = collection("", "v1", "Pod", Some("pods without EndpointSlices"));
        for path in paths_of_pods(from) {
            add(&client, &mut objects, &path, &pods).await?;
        }
        Ok(objects)
    })
}

async fn add(
    client: &Client,
    objects: &mut Objects,
    path: &str,
    collection: &Collection,
) -> Result<(), ListError> {
    let listed = match (list_all(client, path).await, collection.gives) {
        (Err(ListError::Refused { path, code, message }), Some(gives)) => {
            let fault = format!("{path}: the API server answers {code}: {message}; not known: {gives}");
            objects.faults.push(fault);
            return Ok(());
        }
        (listed, _) => listed?,
    };
    for object in listed.into_iter().flatten() {
        objects.take_listed(collection.version, collection.kind, Value::from(object));
    }
    Ok(())
}

/// Returns the paths of the pods that a sender may be. Names have no characters that a URL escapes.
fn paths_of_pods(from: &Sender) -> Vec<String> {
    match from {
        Sender::Node | Sender::Outside => Vec::new(),
        Sender::Address(address) => vec![format!("/api/v1/pods?fieldSelector=status.podIP%3D{address}")],
        Sender::Pod(name) => {
            let everywhere = format!("/api/v1/pods?fieldSelector=metadata.name%3D{name}");
            // The text after the last dot may be the namespace.
            let in_namespace = name.rsplit_once('.').map(|(name, namespace)| {
                format!("/api/v1/namespaces/{namespace}/pods?fieldSelector=metadata.name%3D{name}")
            });
            std::iter::once(everywhere).chain(in_namespace).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_may_be_the_sender_are_read() {
        let table = [
            ("node", vec![]),
            ("10.244.1.10", vec!["/api/v1/pods?fieldSelector=status.podIP%3D10.244.1.10"]),
            ("pod/web", vec!["/api/v1/pods?fieldSelector=metadata.name%3Dweb"]),
            (
                "pod/web.1.shop",
                vec![
                    "/api/v1/pods?fieldSelector=metadata.name%3Dweb.1.shop",
                    "/api/v1/namespaces/shop/pods?fieldSelector=metadata.name%3Dweb.1",
                ],
            ),
        ];
        for (from, want) in table {
            assert_eq!(paths_of_pods(&from.parse().expect("a sender")), want, "{from}");
        }
    }
}
