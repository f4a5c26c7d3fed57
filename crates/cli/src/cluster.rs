//! Reads a cluster, for every subcommand that asks an API server about Services.
//!
//! - [`Cluster`]: the API server, and the collections that the agent watches ([`COLLECTIONS`])
//! - `access`: what the API server permits the agent, its version and its clock

pub(crate) mod access;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::bail;
use portolan_model::object::Kind;
use portolan_serve::json::Value;
use portolan_watch::objects::{ListError, list_all, list_kind};
use portolan_watch::{Client, ClientError, ClientSettings, Peers, connect, server_url};

use crate::objects::Objects;

/// A collection of the API.
#[derive(Debug)]
pub(crate) struct Collection {
    /// The kind in the agent.
    pub(crate) kind: Kind,
    /// The API group; empty for the core group.
    pub(crate) group: &'static str,
    /// The resource in paths.
    pub(crate) resource: &'static str,
    /// The group and the version in objects.
    version: &'static str,
    /// What is not known without it. `None` if there is no answer without it.
    gives: Option<&'static str>,
}

/// All kinds that the agent watches.
pub(crate) const ALL_KINDS: [Kind; 4] = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];

/// The collections that the agent watches.
pub(crate) const COLLECTIONS: [Collection; 4] = [
    Collection { kind: Kind::Service, group: "", resource: "services", version: "v1", gives: None },
    Collection {
        kind: Kind::EndpointSlice,
        group: "discovery.k8s.io",
        resource: "endpointslices",
        version: "discovery.k8s.io/v1",
        gives: None,
    },
    Collection {
        kind: Kind::Node,
        group: "",
        resource: "nodes",
        version: "v1",
        gives: Some("addresses, pod CIDRs and zones of nodes"),
    },
    Collection {
        kind: Kind::ServiceCidr,
        group: "networking.k8s.io",
        resource: "servicecidrs",
        version: "networking.k8s.io/v1",
        gives: Some("which addresses are cluster IPs"),
    },
];

impl Collection {
    /// Returns true if an API server may lack it: Kubernetes before 1.33 has no ServiceCIDRs.
    pub(crate) fn may_be_missing(&self) -> bool {
        self.kind == Kind::ServiceCidr
    }

    /// Returns what is not known without it, if there is an answer of this extent without it. An agent does without a
    /// collection that may be missing, also if it is forbidden.
    fn dispensable<T>(&self, extent: Extent<'_>, listed: &Result<T, ListError>) -> Option<&'static str> {
        let is_forbidden = matches!(listed, Err(ListError::Refused { code: 403, .. }));
        let lacks = match extent {
            Extent::All => true,
            Extent::Node(_) => self.may_be_missing() && is_forbidden,
        };
        self.gives.filter(|_| lacks)
    }

    /// Returns the path of all its objects.
    fn path(&self) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        format!("{root}/{}/{}", self.version, self.resource)
    }
}

/// Which objects are read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Extent<'a> {
    /// All, as far as the user may list them. A collection that only adds to an answer may be refused.
    All,
    /// Those that the agent of the node with this name watches. All are needed, except for those that may be missing.
    Node(&'a str),
}

/// An API server.
pub(crate) struct Cluster {
    client: Client,
    /// Its URL.
    pub(crate) server: String,
    peers: Peers,
}

impl Cluster {
    /// Makes a client. Sends nothing. Must be called inside a runtime.
    pub(crate) async fn connect(settings: &ClientSettings) -> Result<Self, ClientError> {
        let (client, server) = (connect(settings).await?, server_url(settings)?);
        Ok(Self { client, server, peers: settings.peers.clone() })
    }

    /// Returns the addresses and ports to which the client is connected.
    pub(crate) fn sockets(&self) -> BTreeSet<SocketAddr> {
        self.peers.sockets()
    }

    /// Reads the collections of these kinds.
    ///
    /// # Errors
    /// The API server cannot be reached, or it lacks or refuses what there is no answer without.
    pub(crate) async fn objects(&self, kinds: &[Kind], extent: Extent<'_>) -> anyhow::Result<Objects> {
        let mut objects = Objects::default();
        for collection in COLLECTIONS.iter().filter(|collection| kinds.contains(&collection.kind)) {
            let listed = match extent {
                Extent::All => list_all(&self.client, &collection.path()).await,
                Extent::Node(name) => list_kind(&self.client, collection.kind, name).await,
            };
            let gives = collection.dispensable(extent, &listed);
            let Some(listed) = permitted(listed, gives, &mut objects)? else { continue };
            match listed {
                Some(listed) => add(listed, collection.version, collection.kind.name(), &mut objects),
                None => lacks(&self.server, collection, gives, &mut objects)?,
            }
        }
        Ok(objects)
    }

    /// Adds the pods at a path. Without the permission, there is a fault.
    pub(crate) async fn add_pods(&self, path: &str, objects: &mut Objects) -> anyhow::Result<()> {
        let gives = Some("pods without EndpointSlices");
        let listed = permitted(list_all(&self.client, path).await, gives, objects)?;
        if let Some(listed) = listed {
            add(listed.unwrap_or_default(), "v1", "Pod", objects);
        }
        Ok(())
    }
}

/// Returns what was listed. `None` with a fault if it was refused, and there is an answer without it.
fn permitted<T>(
    listed: Result<T, ListError>,
    gives: Option<&str>,
    objects: &mut Objects,
) -> Result<Option<T>, ListError> {
    match (listed, gives) {
        (Err(ListError::Refused { path, code, message }), Some(gives)) => {
            let fault = format!("{path}: the API server answers {code}: {message}; not known: {gives}");
            objects.faults.push(fault);
            Ok(None)
        }
        (listed, _) => listed.map(Some),
    }
}

fn add<V: Into<Value>>(listed: Vec<V>, version: &str, name: &str, objects: &mut Objects) {
    for object in listed {
        objects.take_listed(version, name, object.into());
    }
}

/// The API server does not know the collection.
fn lacks(
    server: &str,
    collection: &Collection,
    gives: Option<&str>,
    objects: &mut Objects,
) -> anyhow::Result<()> {
    let (path, name) = (collection.path(), collection.kind.name());
    match gives {
        _ if collection.may_be_missing() => {}
        None => bail!("{server} has no {name}s at {path}: it is not the API server of a cluster"),
        Some(gives) => {
            objects.faults.push(format!("{path}: the API server has no {name}s; not known: {gives}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_service_cidrs_may_be_missing() {
        for collection in &COLLECTIONS {
            let mut objects = Objects::default();
            let found = lacks("http://other:80/", collection, collection.gives, &mut objects);
            match collection.kind.name() {
                "Service" | "EndpointSlice" => {
                    let error = found.expect_err("no answer without it").to_string();
                    let start = format!("http://other:80/ has no {}s at ", collection.kind.name());
                    assert!(error.starts_with(&start), "{error}");
                }
                name => {
                    found.expect("a warning at most");
                    assert_eq!(objects.faults.is_empty(), name == "ServiceCIDR", "{name}");
                }
            }
        }
        let paths = COLLECTIONS.map(|collection| collection.path());
        assert_eq!(
            paths,
            [
                "/api/v1/services",
                "/apis/discovery.k8s.io/v1/endpointslices",
                "/api/v1/nodes",
                "/apis/networking.k8s.io/v1/servicecidrs",
            ]
        );
    }

    fn refused(path: &str, code: u16) -> Result<(), ListError> {
        Err(ListError::Refused { path: path.to_owned(), code, message: "forbidden".to_owned() })
    }

    #[test]
    fn an_agent_does_without_service_cidrs_that_are_forbidden() {
        for collection in &COLLECTIONS {
            let lacks = |extent, code| collection.dispensable(extent, &refused("", code));
            let of_node = collection.gives.filter(|_| collection.kind == Kind::ServiceCidr);
            assert_eq!(lacks(Extent::Node("n1"), 403), of_node, "{}", collection.resource);
            assert_eq!(lacks(Extent::Node("n1"), 401), None, "{}", collection.resource);
            assert_eq!(lacks(Extent::All, 401), collection.gives, "{}", collection.resource);
        }
    }

    #[test]
    fn an_agent_needs_what_an_answer_can_lack() {
        let refused = || refused("/api/v1/nodes", 403);
        let mut objects = Objects::default();
        assert!(permitted(refused(), Some("zones"), &mut objects).is_ok_and(|listed| listed.is_none()));
        assert_eq!(
            objects.faults,
            ["/api/v1/nodes: the API server answers 403: forbidden; not known: zones"]
        );
        assert!(permitted(refused(), None, &mut objects).is_err());
    }
}
