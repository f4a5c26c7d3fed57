//! Reads the objects of a cluster.
//!
//! Services and EndpointSlices are needed. What else the user may not list is a warning, and is not known then. Of the pods, only
//! those are read that the sender may be: a cluster has many.

use anyhow::bail;
use portolan_explain::Sender;
use portolan_serve::json::Value;
use portolan_watch::objects::{ListError, list_all};
use portolan_watch::{Client, ClientSettings, connect, server_url};

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

/// The kind that an API server may lack: Kubernetes before 1.33 has none.
const MAY_LACK: &str = "ServiceCIDR";

/// The collections that are read as a whole.
const COLLECTIONS: [Collection; 4] = [
    collection("/api/v1/services", "v1", "Service", None),
    collection("/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice", None),
    collection("/api/v1/nodes", "v1", "Node", Some("addresses, pod CIDRs and zones of nodes")),
    collection(
        "/apis/networking.k8s.io/v1/servicecidrs",
        "networking.k8s.io/v1",
        MAY_LACK,
        Some("which addresses are cluster IPs"),
    ),
];

/// Reads the objects that decide about packets of a sender.
///
/// # Errors
/// The API server cannot be reached, it has no Services or EndpointSlices, or the user may not list them.
pub(super) fn read(settings: &ClientSettings, from: &Sender) -> anyhow::Result<Objects> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, server) = (connect(settings).await?, server_url(settings)?);
        let api = Api { client, server };
        let mut objects = Objects::default();
        for collection in &COLLECTIONS {
            add(&api, &mut objects, collection.path, collection).await?;
        }
        let pods = collection("", "v1", "Pod", Some("pods without EndpointSlices"));
        for path in paths_of_pods(from) {
            add(&api, &mut objects, &path, &pods).await?;
        }
        Ok(objects)
    })
}

/// An API server.
struct Api {
    client: Client,
    /// Its URL.
    server: String,
}

async fn add(
    Api { client, server }: &Api,
    objects: &mut Objects,
    path: &str,
    collection: &Collection,
) -> anyhow::Result<()> {
    let listed = match (list_all(client, path).await, collection.gives) {
        (Err(ListError::Refused { path, code, message }), Some(gives)) => {
            let fault = format!("{path}: the API server answers {code}: {message}; not known: {gives}");
            objects.faults.push(fault);
            return Ok(());
        }
        (listed, _) => listed?,
    };
    let Some(listed) = listed else { return lacks(server, objects, path, collection) };
    for object in listed {
        objects.take_listed(collection.version, collection.kind, Value::from(object));
    }
    Ok(())
}

/// The API server does not know the path.
fn lacks(server: &str, objects: &mut Objects, path: &str, collection: &Collection) -> anyhow::Result<()> {
    let Collection { kind, gives, .. } = collection;
    match gives {
        None => bail!("{server} has no {kind}s at {path}: it is not the API server of a cluster"),
        Some(_) if *kind == MAY_LACK => {}
        Some(gives) => {
            objects.faults.push(format!("{path}: the API server has no {kind}s; not known: {gives}"));
        }
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
    fn only_service_cidrs_may_be_missing() {
        for collection in &COLLECTIONS {
            let mut objects = Objects::default();
            let found = lacks("http://other:80/", &mut objects, collection.path, collection);
            match collection.kind {
                "Service" | "EndpointSlice" => {
                    let error = found.expect_err("no answer without it").to_string();
                    let start = format!("http://other:80/ has no {}s at ", collection.kind);
                    assert!(error.starts_with(&start), "{error}");
                }
                kind => {
                    found.expect("a warning at most");
                    assert_eq!(objects.faults.is_empty(), kind == MAY_LACK, "{kind}");
                }
            }
        }
    }

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
