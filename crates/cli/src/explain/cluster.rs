//! Reads the objects of a cluster that decide about packets of a sender.
//!
//! Services and EndpointSlices are needed. What else the user may not list is a warning, and is not known then. Of the pods, only
//! those are read that the sender may be: a cluster has many.

use portolan_explain::Sender;
use portolan_watch::ClientSettings;

use crate::cluster::{ALL_KINDS, Cluster, Extent};
use crate::objects::Objects;

/// Reads the objects that decide about packets of a sender.
///
/// # Errors
/// The API server cannot be reached, it has no Services or EndpointSlices, or the user may not list them.
pub(super) fn read(settings: &ClientSettings, from: &Sender) -> anyhow::Result<Objects> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let cluster = Cluster::connect(settings).await?;
        let mut objects = cluster.objects(&ALL_KINDS, Extent::All).await?;
        for path in paths_of_pods(from) {
            cluster.add_pods(&path, &mut objects).await?;
        }
        Ok(objects)
    })
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
