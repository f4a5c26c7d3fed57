//! The objects of an agent as manifests: in the form of the API, with what its Catalog keeps and nothing else.
//!
//! A Catalog that gets these objects has the same forwardings, with the same reasons. What the Catalog does not keep is
//! not there: Services without cluster IP, labels, annotations, owners, pods, and the names of other nodes. Where such a
//! name decides, [`OTHER`] or a name derived from it stands for it. Two annotations of Portolan are written again from
//! their values, never from their text.

use std::time::{Duration, UNIX_EPOCH};

use portolan_model::catalog::{Catalog, KeptEndpoint, KeptService, KeptSlice};
use portolan_model::object::{Node, ObjectKey, Service, UNKNOWN_AGE};
use portolan_model::selection::Hint;
use portolan_model::{ExternalPolicy, InternalPolicy};
use portolan_node::time::rfc3339;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Stands for another node than the agent's, and for another zone.
pub const OTHER: &str = "another";

/// The objects of a Catalog. They are made one by one when they are serialised.
#[derive(Debug, Clone)]
pub struct Objects {
    /// The Catalog.
    pub catalog: Catalog,
    /// The Node object, which may have addresses of an earlier one. `None` if there is none.
    pub node: Option<Node>,
}

impl Objects {
    /// Iterates over the manifests. The EndpointSlices of a Service are in the order in which the Catalog got them.
    pub fn iter(&self) -> impl Iterator<Item = Value> {
        let Self { catalog, node } = self;
        let name = catalog.node_name();
        let node = node.iter().map(move |node| self::node(name, node));
        let cidrs = catalog.kept_service_cidrs().map(|(key, cidrs)| service_cidr(key, cidrs));
        let services = catalog.kept_services().map(|kept| service(&kept));
        let slices = catalog.kept_slices().map(move |kept| slice(&kept, name));
        node.chain(cidrs).chain(services).chain(slices)
    }
}

impl Serialize for Objects {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

fn object(api_version: &str, kind: &str, metadata: Value) -> Map<String, Value> {
    let fields = [("apiVersion", api_version.into()), ("kind", kind.into()), ("metadata", metadata)];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Adds a field unless it is empty.
fn add(object: &mut Map<String, Value>, name: &str, value: Value) {
    let is_empty = match &value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if !is_empty {
        object.insert(name.to_owned(), value);
    }
}

fn texts<T: ToString>(list: impl IntoIterator<Item = T>) -> Value {
    list.into_iter().map(|item| item.to_string()).collect::<Vec<String>>().into()
}

/// Returns the manifest of a Service.
pub fn service(kept: &KeptService<'_>) -> Value {
    let KeptService { namespace, name, service } = kept;
    let mut metadata = Map::new();
    add(&mut metadata, "namespace", (*namespace).into());
    add(&mut metadata, "name", (*name).into());
    if service.created != UNKNOWN_AGE {
        let created = UNIX_EPOCH + Duration::from_secs(service.created.into());
        add(&mut metadata, "creationTimestamp", rfc3339(created).into());
    }
    let mut annotations = Map::new();
    if let Some(scheduler) = service.ipvs_scheduler {
        add(&mut annotations, "portolan.dev/ipvs-scheduler", scheduler.name().into());
    }
    if service.keep_client_address {
        add(&mut annotations, "portolan.dev/userspace-keep-client-address", "true".into());
    }
    add(&mut metadata, "annotations", annotations.into());
    let mut manifest = object("v1", "Service", metadata.into());
    add(&mut manifest, "spec", spec(service).into());
    if !service.load_balancer_ips().is_empty() {
        let ingress = service.load_balancer_ips().iter().map(|ip| json!({ "ip": ip, "ipMode": "VIP" }));
        add(&mut manifest, "status", json!({ "loadBalancer": { "ingress": ingress.collect::<Vec<_>>() } }));
    }
    manifest.into()
}

fn spec(service: &Service) -> Map<String, Value> {
    let mut spec = Map::new();
    add(&mut spec, "type", kind(service).into());
    let cluster_ips =
        [service.cluster_ipv4.map(|ip| ip.to_string()), service.cluster_ipv6.map(|ip| ip.to_string())];
    let families = [service.cluster_ipv4.map(|_| "IPv4"), service.cluster_ipv6.map(|_| "IPv6")];
    add(&mut spec, "clusterIP", cluster_ips.iter().flatten().next().cloned().into());
    add(&mut spec, "clusterIPs", texts(cluster_ips.iter().flatten()));
    add(&mut spec, "ipFamilies", texts(families.iter().flatten()));
    let ports = service.ports.iter().map(|port| {
        let mut fields = Map::new();
        if !port.name.is_empty() {
            add(&mut fields, "name", (*port.name).into());
        }
        add(&mut fields, "protocol", port.protocol.name().into());
        add(&mut fields, "port", port.port.into());
        add(&mut fields, "nodePort", port.node_port.into());
        Value::from(fields)
    });
    add(&mut spec, "ports", ports.collect::<Vec<_>>().into());
    add(&mut spec, "externalIPs", texts(service.external_ips()));
    add(&mut spec, "loadBalancerSourceRanges", texts(service.source_ranges()));
    add(&mut spec, "healthCheckNodePort", service.health_check_port().into());
    if let Some(seconds) = service.affinity {
        add(&mut spec, "sessionAffinity", "ClientIP".into());
        add(&mut spec, "sessionAffinityConfig", json!({ "clientIP": { "timeoutSeconds": seconds } }));
    }
    if service.internal_policy == InternalPolicy::Local {
        add(&mut spec, "internalTrafficPolicy", "Local".into());
    }
    if service.external_policy == ExternalPolicy::Local {
        add(&mut spec, "externalTrafficPolicy", "Local".into());
    }
    spec
}

/// Returns a type with which the other fields have their meaning. The Catalog does not keep the type itself.
fn kind(service: &Service) -> &'static str {
    let has_node_port = service.ports.iter().any(|port| port.node_port.is_some());
    // A policy Local without a health check server is that of another type than LoadBalancer.
    let is_local = service.external_policy == ExternalPolicy::Local;
    if service.health_check_port().is_some() || (!service.load_balancer_ips().is_empty() && !is_local) {
        "LoadBalancer"
    } else if has_node_port || is_local {
        "NodePort"
    } else {
        "ClusterIP"
    }
}

/// Returns the manifest of an EndpointSlice, as the node of this name keeps it.
pub fn slice(kept: &KeptSlice<'_>, node_name: &str) -> Value {
    let KeptSlice { namespace, name, service, family, ports, endpoints } = kept;
    let labels = json!({ "kubernetes.io/service-name": service });
    let metadata = json!({ "namespace": namespace, "name": name, "labels": labels });
    let mut manifest = object("discovery.k8s.io/v1", "EndpointSlice", metadata);
    add(&mut manifest, "addressType", family.name().into());
    let ports = ports
        .iter()
        .map(|port| json!({ "name": &*port.name, "protocol": port.protocol.name(), "port": port.port }));
    add(&mut manifest, "ports", ports.collect::<Vec<_>>().into());
    let endpoints = endpoints.iter().map(|kept| endpoint(kept, node_name));
    add(&mut manifest, "endpoints", endpoints.collect::<Vec<_>>().into());
    manifest.into()
}

fn endpoint(kept: &KeptEndpoint, node_name: &str) -> Value {
    let KeptEndpoint { endpoint, zone_hints } = kept;
    let mut fields = Map::new();
    add(&mut fields, "addresses", texts([endpoint.backend.address]));
    let conditions = json!({
        "ready": endpoint.ready, "serving": endpoint.serving, "terminating": endpoint.terminating,
    });
    add(&mut fields, "conditions", conditions);
    if !kept.lacks_node() {
        let node = if endpoint.local { node_name.to_owned() } else { other(node_name) };
        add(&mut fields, "nodeName", node.into());
    }
    let names =
        |names: Vec<&str>| -> Value { names.into_iter().map(|name| json!({ "name": name })).collect() };
    let mut hints = Map::new();
    match (zone_hints, endpoint.zone_hint) {
        (Some(zones), _) => add(&mut hints, "forZones", names(zones.iter().map(|zone| &**zone).collect())),
        // The Catalog keeps a bounded number of zones.
        (None, Hint::Elsewhere | Hint::Here) => add(&mut hints, "forZones", names(vec![OTHER])),
        (None, Hint::Absent) => {}
    }
    match endpoint.node_hint {
        Hint::Here => add(&mut hints, "forNodes", names(vec![node_name])),
        Hint::Elsewhere => add(&mut hints, "forNodes", names(vec![other(node_name).as_str()])),
        Hint::Absent => {}
    }
    add(&mut fields, "hints", hints.into());
    fields.into()
}

/// Returns a name that is not the node's.
fn other(node_name: &str) -> String {
    if node_name == OTHER { format!("{OTHER}-node") } else { OTHER.to_owned() }
}

/// Returns the manifest of a Node.
pub fn node(name: &str, node: &Node) -> Value {
    let mut metadata = Map::new();
    add(&mut metadata, "name", name.into());
    if let Some(zone) = &node.zone {
        add(&mut metadata, "labels", json!({ "topology.kubernetes.io/zone": &**zone }));
    }
    if node.deleting {
        // Only whether there is one matters.
        add(&mut metadata, "deletionTimestamp", rfc3339(UNIX_EPOCH).into());
    }
    let mut manifest = object("v1", "Node", metadata.into());
    let mut spec = Map::new();
    add(&mut spec, "podCIDRs", texts(&node.pod_cidrs));
    let taints = node.taints.iter().map(|taint| json!({ "key": &*taint.key, "effect": &*taint.effect }));
    add(&mut spec, "taints", taints.collect::<Vec<_>>().into());
    add(&mut manifest, "spec", spec.into());
    let listed = [("InternalIP", &node.internal_addresses), ("ExternalIP", &node.external_addresses)];
    let addresses: Vec<Value> = listed
        .into_iter()
        .flat_map(|(kind, list)| list.iter().map(move |address| json!({ "type": kind, "address": address })))
        .collect();
    add(&mut manifest, "status", json!({ "addresses": addresses }));
    manifest.into()
}

fn service_cidr(key: &ObjectKey, cidrs: &[ipnet::IpNet]) -> Value {
    let mut manifest = object("networking.k8s.io/v1", "ServiceCIDR", json!({ "name": &*key.name }));
    add(&mut manifest, "spec", json!({ "cidrs": texts(cidrs) }));
    manifest.into()
}

#[cfg(test)]
mod tests;
