//! The turn of a document: Services that name their addresses and node ports come before those that get what is free, and
//! would otherwise get the same ones. EndpointSlices come after new Services: health checks hold new endpoints back, and
//! must know the Service for that. Pure but for the stored objects.

use portolan_schema::{
    Resource, SERVICE_NAME,
    json::{self, Object, Value},
};
use portolan_store::Store;

use super::ObjectId;

/// When a document is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// It takes nothing that is not named in it, or has it already.
    First,
    /// A Service that names a part of what it takes.
    Partly,
    /// A Service that gets what is free.
    Free,
    /// An EndpointSlice.
    Last,
}

/// Annotation of a Service that requests load-balancer addresses.
const BALANCER_ADDRESSES: &str = "portolan.dev/load-balancer-ips";

/// Which of the things that a Service takes it names.
#[derive(Debug, Default)]
struct Choice {
    names: bool,
    leaves: bool,
}

impl Turn {
    /// Returns the turn of an object with this identity.
    pub(super) fn of(id: &ObjectId, object: &Value, store: &dyn Store) -> Self {
        let Some(object) = object.as_object() else { return Self::First };
        let stored = || store.get(id.resource, &id.target().key());
        match id.resource {
            Resource::Service => match Self::of_service(object) {
                Self::First => Self::First,
                _ if stored().is_some_and(|stored| needs_nothing_new(object, &stored.decode())) => {
                    Self::First
                }
                turn => turn,
            },
            Resource::EndpointSlice if has_service(object) && stored().is_none() => Self::Last,
            _ => Self::First,
        }
    }

    fn of_service(object: &Object) -> Self {
        let Some(spec) = json::object(object, "spec") else { return Self::Free };
        let mut choice = Choice::default();
        if json::text(spec, "type") != Some("ExternalName") {
            choice.addresses(spec);
        }
        if has_node_ports(spec) {
            for port in json::list(spec, "ports").iter().filter_map(Value::as_object) {
                choice.add(is_given(port, "nodePort"));
            }
        }
        if json::text(spec, "type") == Some("LoadBalancer") {
            choice.add(names_balancer(object, spec));
            if json::text(spec, "externalTrafficPolicy") == Some("Local") {
                choice.add(is_given(spec, "healthCheckNodePort"));
            }
        }
        match choice {
            Choice { leaves: false, .. } => Self::First,
            Choice { names: true, .. } => Self::Partly,
            Choice { names: false, .. } => Self::Free,
        }
    }
}

impl Choice {
    fn add(&mut self, is_named: bool) {
        self.names |= is_named;
        self.leaves |= !is_named;
    }

    /// Adds the cluster IPs.
    fn addresses(&mut self, spec: &Object) {
        let given = json::texts(spec, "clusterIPs").count();
        self.add(given > 0 || json::text(spec, "clusterIP").is_some_and(|address| !address.is_empty()));
        let is_headless = json::text(spec, "clusterIP") == Some("None")
            || json::texts(spec, "clusterIPs").any(|address| address == "None");
        let may_be_dual = json::text(spec, "ipFamilyPolicy").is_some_and(|policy| policy != "SingleStack");
        self.leaves |= may_be_dual && given < 2 && !is_headless;
    }
}

fn has_node_ports(spec: &Object) -> bool {
    match json::text(spec, "type") {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        _ => false,
    }
}

/// Returns true if the Service names a load-balancer address, or has the status of a server that gave it one.
fn names_balancer(object: &Object, spec: &Object) -> bool {
    let part = |name, key| json::object(object, name).and_then(|it| json::object(it, key));
    let is_annotated = part("metadata", "annotations")
        .and_then(|annotations| json::text(annotations, BALANCER_ADDRESSES))
        .is_some_and(|text| !text.is_empty());
    let has_status = part("status", "loadBalancer").is_some_and(|it| !json::list(it, "ingress").is_empty());
    let is_in_spec = json::text(spec, "loadBalancerIP").is_some_and(|text| !text.is_empty());
    is_annotated || has_status || is_in_spec
}

fn is_given(object: &Object, key: &str) -> bool {
    object.get(key).is_some_and(|value| !value.is_null() && *value != 0)
}

/// Returns true if the stored Service is of the same type, and has as many ports: it keeps what it has.
fn needs_nothing_new(object: &Object, stored: &Object) -> bool {
    let shape = |object| {
        let spec = json::object(object, "spec")?;
        let text = |key, default: &str| json::text(spec, key).unwrap_or(default).to_owned();
        let texts = [text("type", "ClusterIP"), text("externalTrafficPolicy", "Cluster")];
        Some((texts, json::list(spec, "ports").len()))
    };
    shape(object) == shape(stored)
}

fn has_service(slice: &Object) -> bool {
    let labels = json::object(slice, "metadata").and_then(|metadata| json::object(metadata, "labels"));
    labels.is_some_and(|labels| labels.contains_key(SERVICE_NAME))
}

#[cfg(test)]
mod tests {
    use portolan_schema::json::json;

    use super::*;

    #[test]
    fn what_a_service_names_decides() {
        let of = |spec: Value| Turn::of_service(json!({"spec": spec}).as_object().unwrap());
        for (spec, turn) in [
            (json!({"ports": [{"port": 1}]}), Turn::Free),
            (json!({"clusterIP": "", "clusterIPs": []}), Turn::Free),
            (json!({"clusterIP": "10.96.0.1"}), Turn::First),
            (json!({"clusterIPs": ["10.96.0.1"]}), Turn::First),
            (json!({"clusterIP": "None", "ipFamilyPolicy": "RequireDualStack"}), Turn::First),
            (json!({"clusterIP": "10.96.0.1", "ipFamilyPolicy": "PreferDualStack"}), Turn::Partly),
            (
                json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilyPolicy": "PreferDualStack"}),
                Turn::First,
            ),
            (json!({"type": "ExternalName"}), Turn::First),
            (json!({"type": "NodePort", "ports": [{"port": 1}]}), Turn::Free),
            (json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30000}]}), Turn::Partly),
            (json!({"type": "NodePort", "clusterIP": "10.96.0.1", "ports": [{"nodePort": 0}]}), Turn::Partly),
            (
                json!({"type": "NodePort", "clusterIP": "10.96.0.1", "ports": [{"nodePort": 30000}]}),
                Turn::First,
            ),
            (json!({"type": "LoadBalancer", "loadBalancerIP": "192.0.2.1"}), Turn::Partly),
            (
                json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001}),
                Turn::Partly,
            ),
            (
                json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "loadBalancerIP": "192.0.2.1",
                    "allocateLoadBalancerNodePorts": false, "ports": [{"port": 1}]}),
                Turn::First,
            ),
        ] {
            assert_eq!(of(spec.clone()), turn, "{spec}");
        }
    }

    #[test]
    fn load_balancer_addresses_are_named_in_three_places() {
        let spec =
            json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "allocateLoadBalancerNodePorts": false});
        let with = |key: &str, value: Value| {
            let mut service = json!({"spec": spec});
            service[key] = value;
            Turn::of_service(service.as_object().unwrap())
        };
        assert_eq!(with("metadata", json!({})), Turn::Partly);
        assert_eq!(with("metadata", json!({"annotations": {BALANCER_ADDRESSES: "192.0.2.1"}})), Turn::First);
        assert_eq!(with("status", json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}})), Turn::First);
    }
}
