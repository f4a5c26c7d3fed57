//! The objects of manifests, of an API server, or of a snapshot: what the agent watches, and pods.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ipnet::IpNet;
use portolan_explain::{Pod, Sender, Unanswerable, sender_pod};
use portolan_model::catalog::ApiServer;
use portolan_model::object::{
    DecodeError, EndpointSlice, Object, ObjectKey, Service, decode_endpoint_slice, decode_node,
    decode_service, decode_service_cidr, parse_address,
};
use portolan_model::{Catalog, Event};
use portolan_proxy::packets::Configured;
use portolan_serve::json::{Value, json};
use portolan_serve::manifests::{self, Declared, Read};
use portolan_snapshot::Snapshot;

/// Namespace of objects that name none, as in kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// Namespace and name of a pod.
type PodName = (String, String);

/// A Node.
#[derive(Debug)]
pub(crate) struct NodeOf {
    /// Its name.
    pub(crate) name: String,
    addresses: Vec<IpAddr>,
    pod_cidrs: Vec<IpNet>,
}

/// The objects of all manifests, or of an API server.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// What the agent watches.
    events: Vec<Event>,
    /// All Nodes.
    pub(crate) nodes: Vec<NodeOf>,
    /// The Pods; `None` for those that have ended, whose addresses may belong to other pods.
    declared: BTreeMap<PodName, Option<Pod>>,
    /// The pods that EndpointSlices refer to.
    referenced: BTreeMap<PodName, Pod>,
    /// The EndpointSlices, for the names of nodes.
    pub(crate) slices: Vec<(ObjectKey, EndpointSlice)>,
    /// What cannot be used, each in one sentence that names the object.
    pub(crate) faults: Vec<String>,
}

impl Objects {
    /// Reads the files, folders and standard input (`-`) that a flag names. An object that cannot be read is a fault.
    ///
    /// # Errors
    /// A path does not exist, cannot be read, or has no object.
    pub(crate) fn read(flag: &str, paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut objects = Self::default();
        for path in paths {
            objects.add(read(flag, path)?);
        }
        Ok(objects)
    }

    /// Returns the objects of a snapshot. The names of nodes in its EndpointSlices stand for others, so that they are not
    /// used as names.
    pub(crate) fn of_snapshot(snapshot: &Snapshot) -> Self {
        let mut objects = Self::default();
        for object in &snapshot.objects {
            if let Err(fault) = objects.take(object.clone().into()) {
                objects.faults.push(format!("snapshot: {fault}"));
            }
        }
        objects.slices.clear();
        objects
    }

    fn add(&mut self, read: Read) {
        self.faults.extend(read.faults);
        for Declared { place, object } in read.objects {
            if let Err(fault) = self.take(object) {
                self.faults.push(format!("{place}: {fault}"));
            }
        }
    }

    /// Adds an object of a list, in which objects have neither kind nor version.
    pub(crate) fn take_listed(&mut self, version: &str, kind: &str, object: Value) {
        let mut object = object;
        if let Some(fields) = object.as_object_mut() {
            fields.insert("apiVersion".to_owned(), json!(version));
            fields.insert("kind".to_owned(), json!(kind));
        }
        if let Err(fault) = self.take(object) {
            self.faults.push(format!("{kind} {fault}"));
        }
    }

    /// Adds an object. Objects of other kinds are skipped.
    fn take(&mut self, object: Value) -> Result<(), String> {
        let kind = text(&object, "/kind").unwrap_or_default().to_owned();
        let version = text(&object, "/apiVersion").unwrap_or_default().to_owned();
        let is_of = |group: &str| version.is_empty() || version.split('/').next() == Some(group);
        match kind.as_str() {
            "Service" if is_of("v1") => self.service(&with_namespace(object)),
            "EndpointSlice" if is_of("discovery.k8s.io") => self.slice(&with_namespace(object)),
            "Node" if is_of("v1") => self.node(&object),
            "ServiceCIDR" if is_of("networking.k8s.io") => {
                let object = decode(&object, decode_service_cidr)?;
                self.events.push(Event::ServiceCidr(object));
                Ok(())
            }
            "Pod" if is_of("v1") => self.pod(&with_namespace(object)),
            "" => Err("there is no kind; every object needs apiVersion and kind".to_owned()),
            _ => Ok(()),
        }
    }

    fn service(&mut self, object: &Value) -> Result<(), String> {
        let service = decode(object, decode_service)?;
        let is_external = text(object, "/spec/type") == Some("ExternalName");
        if text(object, "/spec/clusterIP").is_none_or(str::is_empty) && !is_external {
            self.faults.push(format!(
                "Service {}: spec.clusterIP is missing, so nothing leads to it; write it, or take the object from the \
                 cluster (kubectl get -o yaml)",
                service.key
            ));
        }
        self.events.push(Event::Service(service));
        Ok(())
    }

    fn slice(&mut self, object: &Value) -> Result<(), String> {
        let slice = decode(object, decode_endpoint_slice)?;
        let endpoints = object.get("endpoints").and_then(Value::as_array);
        for endpoint in endpoints.into_iter().flatten() {
            let namespace = &*slice.key.namespace;
            // Endpoints are pods of the namespace of their EndpointSlice.
            let is_pod = text(endpoint, "/targetRef/kind") == Some("Pod")
                && text(endpoint, "/targetRef/namespace").is_none_or(|of_pod| of_pod == namespace);
            let name = text(endpoint, "/targetRef/name").filter(|_| is_pod);
            if let Some(name) = name {
                self.reference(namespace, name, endpoint);
            }
        }
        self.slices.push((slice.key.clone(), slice.payload.clone()));
        self.events.push(Event::EndpointSlice(slice));
        Ok(())
    }

    /// Adds the pod of an endpoint. A pod with addresses of both families is in two EndpointSlices.
    fn reference(&mut self, namespace: &str, name: &str, endpoint: &Value) {
        let new = || Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            addresses: Vec::new(),
            node: None,
        };
        let pod = self.referenced.entry((namespace.to_owned(), name.to_owned())).or_insert_with(new);
        pod.node = pod.node.take().or_else(|| text(endpoint, "/nodeName").map(str::to_owned));
        for address in addresses(endpoint.get("addresses")) {
            if !pod.addresses.contains(&address) {
                pod.addresses.push(address);
            }
        }
    }

    fn node(&mut self, object: &Value) -> Result<(), String> {
        let node = decode(object, decode_node)?;
        let of_node = node.payload.internal_addresses.iter().chain(&node.payload.external_addresses);
        self.nodes.push(NodeOf {
            name: node.key.name.to_string(),
            addresses: of_node.copied().collect(),
            pod_cidrs: node.payload.pod_cidrs.clone(),
        });
        self.events.push(Event::Node(node));
        Ok(())
    }

    /// Adds a pod.
    fn pod(&mut self, object: &Value) -> Result<(), String> {
        let name = text(object, "/metadata/name")
            .ok_or("Pod has no usable metadata.name; every object needs one")?;
        let namespace = text(object, "/metadata/namespace").unwrap_or(DEFAULT_NAMESPACE);
        let has_ended = matches!(text(object, "/status/phase"), Some("Succeeded" | "Failed"));
        let mut found = addresses(object.pointer("/status/podIP"));
        let all = object.pointer("/status/podIPs").and_then(Value::as_array);
        for address in all.into_iter().flatten().flat_map(|entry| addresses(entry.get("ip"))) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        let pod = Pod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            addresses: found,
            node: text(object, "/spec/nodeName").map(str::to_owned),
        };
        self.declared.insert((namespace.to_owned(), name.to_owned()), (!has_ended).then_some(pod));
        Ok(())
    }

    /// Returns the pods. The Pod object decides; references of EndpointSlices name the pods that have none.
    pub(crate) fn pods(&self) -> Vec<Pod> {
        let of_slices = self.referenced.iter().filter(|(name, _)| !self.declared.contains_key(*name));
        of_slices.map(|(_, pod)| pod).chain(self.declared.values().flatten()).cloned().collect()
    }

    /// Returns the Services.
    pub(crate) fn services(&self) -> impl Iterator<Item = (ObjectKey, Service)> {
        self.events.iter().filter_map(|event| match event {
            Event::Service(service) => Some((service.key.clone(), service.payload.clone())),
            _ => None,
        })
    }

    /// Returns the addresses of all Nodes.
    pub(crate) fn node_addresses(&self) -> Vec<IpAddr> {
        self.nodes.iter().flat_map(|node| &node.addresses).copied().collect()
    }

    /// Returns the name of the node that handles the packets of a sender. `None` if it is not known.
    ///
    /// # Errors
    /// No pod has the name of the sender, or several pods have it.
    pub(crate) fn node_of(&self, from: &Sender, pods: &[Pod]) -> Result<Option<String>, Unanswerable> {
        let address = match from {
            Sender::Address(address) => Some(*address),
            Sender::Pod(_) | Sender::Node | Sender::Outside => None,
        };
        let of_node = |is_it: &dyn Fn(&NodeOf, IpAddr) -> bool| {
            let found = self.nodes.iter().find(|node| address.is_some_and(|address| is_it(node, address)));
            found.map(|node| node.name.clone())
        };
        // Pods in the network of a node have its address.
        let at_address = of_node(&|node, address| node.addresses.contains(&address));
        if at_address.is_some() {
            return Ok(at_address);
        }
        let of_pod = sender_pod(from, pods)?.and_then(|pod| pod.node.clone());
        let in_pod_cidr = |node: &NodeOf, address| node.pod_cidrs.iter().any(|cidr| cidr.contains(&address));
        Ok(of_pod.or_else(|| of_node(&in_pod_cidr)))
    }

    /// Returns the Catalog of a node whose agent is configured like this and reaches the API server there, and the fields and
    /// objects that it ignores.
    pub(crate) fn catalog(
        &self,
        node_name: &str,
        configured: &Configured,
        api_server: ApiServer,
    ) -> (Catalog, Vec<String>) {
        let (mut catalog, mut faults) = (Catalog::new(node_name), Vec::new());
        configured.prepare(&mut catalog);
        // An empty Catalog has no Service that hides it, so there are no faults.
        catalog.set_api_server(api_server);
        for event in &self.events {
            let mut event = event.clone();
            configured.admit(&mut event);
            let applied = catalog.apply(event);
            // Conflicts are part of the answer.
            let found = applied.faults.iter().filter(|fault| fault.fault.notice.is_none());
            faults.extend(found.map(|fault| format!("{} {}: {}", fault.kind, fault.key, fault.fault)));
        }
        catalog.drain_changes(|_| {});
        (catalog, faults)
    }
}

/// Returns the name of the node: that of the configuration, or that of the only Node in the manifests, or this host's.
pub(crate) fn node_name(configured: &Configured, objects: &Objects) -> anyhow::Result<String> {
    if let Some(name) = configured.node_name() {
        return Ok(name.to_owned());
    }
    if let [only] = objects.nodes.as_slice() {
        return Ok(only.name.clone());
    }
    host_name()
}

/// Returns the name of this host.
pub(crate) fn host_name() -> anyhow::Result<String> {
    let host = rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase();
    anyhow::ensure!(!host.is_empty(), "this host has no name; name the node with --hostname-override");
    Ok(host)
}

/// Reads a path that the command line names. It must have an object: an answer from nothing would mislead.
fn read(flag: &str, path: &Path) -> anyhow::Result<Read> {
    let read = if path == Path::new("-") {
        manifests::read_stream("-", std::io::stdin().lock())
    } else {
        manifests::read(path)
    };
    let read = read.with_context(|| format!("{flag}: cannot read {}", path.display()))?;
    if read.objects.is_empty() {
        let fault = read.faults.first().map_or_else(String::new, |fault| format!(" ({fault})"));
        anyhow::bail!(
            "{flag}: {} has no object{fault}; name a file or folder with objects in YAML or JSON",
            path.display()
        );
    }
    Ok(read)
}

fn decode<T>(
    object: &Value,
    read: impl Fn(&[u8]) -> Result<Object<T>, DecodeError>,
) -> Result<Object<T>, String> {
    read(object.to_string().as_bytes()).map_err(|error| describe(object, &error))
}

/// Names the object of an error as well as possible.
fn describe(object: &Value, error: &impl Display) -> String {
    match text(object, "/metadata/name") {
        Some(name) => format!("{name}: {error}"),
        None => error.to_string(),
    }
}

fn with_namespace(mut object: Value) -> Value {
    let has_one = text(&object, "/metadata/namespace").is_some_and(|name| !name.is_empty());
    if !has_one && let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.insert("namespace".to_owned(), json!(DEFAULT_NAMESPACE));
    }
    object
}

fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer).and_then(Value::as_str)
}

/// Returns the addresses of a text or a list of texts, without those that cannot be read.
fn addresses(value: Option<&Value>) -> Vec<IpAddr> {
    let parse = |value: &Value| value.as_str().and_then(parse_address);
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(parse).collect(),
        Some(value) => parse(value).into_iter().collect(),
        None => Vec::new(),
    }
}
