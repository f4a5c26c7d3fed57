//! The objects of manifests: what the agent watches, and pods.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use portolan_explain::Pod;
use portolan_model::object::{
    DecodeError, EndpointSlice, Object, ObjectKey, decode_endpoint_slice, decode_node, decode_service,
    decode_service_cidr, parse_address,
};
use portolan_model::{Catalog, Event};
use portolan_serve::json::{Value, json};
use portolan_serve::manifests::{self, Declared, Read};

/// Largest standard input that is read, in bytes.
const LIMIT: u64 = 256 << 20;
/// Namespace of objects that name none, as in kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// The objects of all manifests.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// What the agent watches.
    events: Vec<Event>,
    /// The names of all Nodes.
    pub(crate) nodes: Vec<String>,
    /// The pods, from Pods and from the references of EndpointSlices.
    pub(crate) pods: Vec<Pod>,
    /// The EndpointSlices, for the names of nodes.
    pub(crate) slices: Vec<(ObjectKey, EndpointSlice)>,
    /// What cannot be used, each in one sentence that names the object.
    pub(crate) faults: Vec<String>,
}

impl Objects {
    /// Reads files, folders and the standard input (`-`). An object that cannot be read is a fault.
    ///
    /// # Errors
    /// A path does not exist, or a folder cannot be read.
    pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut objects = Self::default();
        for path in paths {
            let read = read(path).with_context(|| format!("--manifests: cannot read {}", path.display()))?;
            objects.add(read);
        }
        Ok(objects)
    }

    fn add(&mut self, read: Read) {
        self.faults.extend(read.faults);
        for Declared { place, object } in read.objects {
            if let Err(fault) = self.take(object) {
                self.faults.push(format!("{place}: {fault}"));
            }
        }
        self.merge_pods();
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
            let is_pod = text(endpoint, "/targetRef/kind") == Some("Pod");
            let name = text(endpoint, "/targetRef/name").filter(|_| is_pod);
            let Some(name) = name else { continue };
            self.pods.push(Pod {
                namespace: text(endpoint, "/targetRef/namespace").unwrap_or(&slice.key.namespace).to_owned(),
                name: name.to_owned(),
                addresses: addresses(endpoint.get("addresses")),
                node: text(endpoint, "/nodeName").map(str::to_owned),
            });
        }
        self.slices.push((slice.key.clone(), slice.payload.clone()));
        self.events.push(Event::EndpointSlice(slice));
        Ok(())
    }

    fn node(&mut self, object: &Value) -> Result<(), String> {
        let node = decode(object, decode_node)?;
        self.nodes.push(node.key.name.to_string());
        self.events.push(Event::Node(node));
        Ok(())
    }

    /// Adds a pod. The addresses of pods that have ended may belong to other pods.
    fn pod(&mut self, object: &Value) -> Result<(), String> {
        let name = text(object, "/metadata/name")
            .ok_or("Pod has no usable metadata.name; every object needs one")?;
        let phase = text(object, "/status/phase").unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return Ok(());
        }
        let mut found = addresses(object.pointer("/status/podIP"));
        let all = object.pointer("/status/podIPs").and_then(Value::as_array);
        found.extend(all.into_iter().flatten().flat_map(|entry| addresses(entry.get("ip"))));
        self.pods.push(Pod {
            namespace: text(object, "/metadata/namespace").unwrap_or(DEFAULT_NAMESPACE).to_owned(),
            name: name.to_owned(),
            addresses: found,
            node: text(object, "/spec/nodeName").map(str::to_owned),
        });
        Ok(())
    }

    /// Makes one pod of those with one name.
    fn merge_pods(&mut self) {
        let mut pods: BTreeMap<(String, String), Pod> = BTreeMap::new();
        for pod in self.pods.drain(..) {
            let key = (pod.namespace.clone(), pod.name.clone());
            let known = pods.entry(key).or_insert_with(|| Pod { addresses: Vec::new(), ..pod.clone() });
            known.node = known.node.take().or(pod.node);
            for address in pod.addresses {
                if !known.addresses.contains(&address) {
                    known.addresses.push(address);
                }
            }
        }
        self.pods = pods.into_values().collect();
    }

    /// Returns the Catalog of a node, and the fields and objects that it ignores.
    pub(crate) fn catalog(&self, node_name: &str, admit: impl Fn(&mut Event)) -> (Catalog, Vec<String>) {
        let (mut catalog, mut faults) = (Catalog::new(node_name), Vec::new());
        for event in &self.events {
            let mut event = event.clone();
            admit(&mut event);
            let applied = catalog.apply(event);
            // Conflicts are part of the answer.
            let found = applied.faults.iter().filter(|fault| fault.fault.notice.is_none());
            faults.extend(found.map(|fault| format!("{} {}: {}", fault.kind, fault.key, fault.fault)));
        }
        catalog.drain_changes(|_| {});
        (catalog, faults)
    }
}

fn read(path: &Path) -> std::io::Result<Read> {
    if path != Path::new("-") {
        return manifests::read(path);
    }
    let mut content = Vec::new();
    std::io::stdin().lock().take(LIMIT + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LIMIT {
        return Err(std::io::Error::other(format!(
            "it has more than {LIMIT} bytes; leave out what is not needed"
        )));
    }
    Ok(manifests::parse("-", &content))
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
