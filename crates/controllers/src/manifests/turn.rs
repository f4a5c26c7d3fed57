//! The turn of a document. Services that name their addresses and node ports come before those that get what is free: these
//! could get what the others name. EndpointSlices come after all Services: only with its Service does the API know whether an
//! endpoint has to wait for a health check. Reads the store, changes nothing.

use std::collections::{HashMap, HashSet};

use portolan_schema::{
    Resource, SERVICE_NAME,
    json::{self, Object, Value},
};
use portolan_store::Store;

use super::ObjectId;

/// When a document is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// Whatever is in no other turn, such as a Service that names all that it takes, or has it already.
    First,
    /// A Service that names a part of what it takes.
    Partly,
    /// A Service that names nothing, and gets what is free.
    Free,
    /// An EndpointSlice of a Service.
    Last,
}

/// Annotation of a Service that requests load-balancer addresses.
const BALANCER_ADDRESSES: &str = "portolan.dev/load-balancer-ips";

/// What a Service names of the things that it takes.
#[derive(Debug, Default)]
struct Choice {
    /// True if it names one of them.
    names: bool,
    /// True if it does not name all of them, and does not have the others yet.
    leaves: bool,
}

impl Turn {
    /// Returns the turn of an object with this identity.
    pub(super) fn of(id: &ObjectId, object: &Value, store: &dyn Store) -> Self {
        let Some(object) = object.as_object() else { return Self::First };
        match id.resource {
            Resource::Service => match Self::of_service(object, &Object::new()) {
                Self::First => Self::First,
                turn => match store.get(id.resource, &id.target().key()) {
                    Some(stored) => Self::of_service(object, &stored.decode()),
                    None => turn,
                },
            },
            Resource::EndpointSlice if has_service(object) => Self::Last,
            _ => Self::First,
        }
    }

    /// Returns the turn after this one.
    pub(super) fn next(self) -> Self {
        match self {
            Self::First => Self::Partly,
            Self::Partly => Self::Free,
            Self::Free | Self::Last => Self::Last,
        }
    }

    /// Returns the turn of a Service. `stored` is the Service as it is stored, or empty.
    fn of_service(object: &Object, stored: &Object) -> Self {
        let none = Object::new();
        let spec = json::object(object, "spec").unwrap_or(&none);
        let old = json::object(stored, "spec").unwrap_or(&none);
        let mut choice = Choice::default();
        if json::text(spec, "type") != Some("ExternalName") {
            choice.addresses(spec, old);
        }
        if has_node_ports(spec) {
            choice.node_ports(spec, old);
        }
        if is_balancer(spec) {
            choice.add(names_balancer(object, spec), is_balancer(old) && has_ingress(stored));
        }
        if has_health_check_port(spec) {
            let key = "healthCheckNodePort";
            choice.add(is_given(spec, key), has_health_check_port(old) && is_given(old, key));
        }
        match choice {
            Choice { leaves: false, .. } => Self::First,
            Choice { names: true, .. } => Self::Partly,
            Choice { names: false, .. } => Self::Free,
        }
    }
}

impl Choice {
    /// Adds a thing that the Service names, or has.
    fn add(&mut self, is_named: bool, is_kept: bool) {
        self.names |= is_named;
        self.leaves |= !is_named && !is_kept;
    }

    /// Adds the cluster IPs.
    fn addresses(&mut self, spec: &Object, old: &Object) {
        let (named, kept) = (addresses(spec), addresses(old));
        self.add(named > 0, kept > 0);
        let policy = json::text(spec, "ipFamilyPolicy").or_else(|| json::text(old, "ipFamilyPolicy"));
        let may_be_dual = policy.is_some_and(|policy| policy != "SingleStack");
        self.leaves |= may_be_dual && named.max(kept) < 2 && !is_headless(spec) && !is_headless(old);
    }

    /// Adds the node ports. As in an update, a port keeps the one of the port with the same name, unless another port names it.
    fn node_ports(&mut self, spec: &Object, old: &Object) {
        let named: HashSet<i64> = ports(spec).filter_map(|port| json::integer(port, "nodePort")).collect();
        let kept: HashMap<&str, i64> = if has_node_ports(old) {
            ports(old)
                .filter_map(|port| Some((port_name(port), json::integer(port, "nodePort")?)))
                .filter(|(_, number)| *number != 0 && !named.contains(number))
                .collect()
        } else {
            HashMap::new()
        };
        for port in ports(spec) {
            self.add(is_given(port, "nodePort"), kept.contains_key(port_name(port)));
        }
    }
}

fn addresses(spec: &Object) -> usize {
    let is_single = json::text(spec, "clusterIP").is_some_and(|address| !address.is_empty());
    json::texts(spec, "clusterIPs").count().max(usize::from(is_single))
}

fn is_headless(spec: &Object) -> bool {
    json::text(spec, "clusterIP").into_iter().chain(json::texts(spec, "clusterIPs")).any(|it| it == "None")
}

fn ports(spec: &Object) -> impl Iterator<Item = &Object> {
    json::list(spec, "ports").iter().filter_map(Value::as_object)
}

fn port_name(port: &Object) -> &str {
    json::text(port, "name").unwrap_or_default()
}

fn is_balancer(spec: &Object) -> bool {
    json::text(spec, "type") == Some("LoadBalancer")
}

fn has_health_check_port(spec: &Object) -> bool {
    is_balancer(spec) && json::text(spec, "externalTrafficPolicy") == Some("Local")
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
    let is_annotated = json::object(object, "metadata")
        .and_then(|metadata| json::object(metadata, "annotations"))
        .and_then(|annotations| json::text(annotations, BALANCER_ADDRESSES))
        .is_some_and(|text| !text.is_empty());
    let is_in_spec = json::text(spec, "loadBalancerIP").is_some_and(|text| !text.is_empty());
    is_annotated || has_ingress(object) || is_in_spec
}

fn has_ingress(object: &Object) -> bool {
    let status = json::object(object, "status").and_then(|status| json::object(status, "loadBalancer"));
    status.is_some_and(|status| !json::list(status, "ingress").is_empty())
}

fn is_given(object: &Object, key: &str) -> bool {
    object.get(key).is_some_and(|value| !value.is_null() && *value != 0)
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
        let of = |spec: Value| Turn::of_service(json!({"spec": spec}).as_object().unwrap(), &Object::new());
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
            Turn::of_service(service.as_object().unwrap(), &Object::new())
        };
        assert_eq!(with("metadata", json!({})), Turn::Partly);
        assert_eq!(with("metadata", json!({"annotations": {BALANCER_ADDRESSES: "192.0.2.1"}})), Turn::First);
        assert_eq!(with("status", json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}})), Turn::First);
    }

    #[test]
    fn a_stored_service_keeps_what_it_has() {
        let web = json!({"name": "web", "port": 1});
        let dns = json!({"name": "dns", "port": 2});
        let with = |port: &Value, number: u16| {
            let mut port = port.clone();
            port["nodePort"] = number.into();
            port
        };
        let single = json!({"type": "NodePort", "clusterIPs": ["10.96.0.1"], "ipFamilyPolicy": "SingleStack",
            "ports": [with(&web, 30_000), with(&dns, 30_001)]});
        let changed = |spec: &Value, change: Value| {
            let mut spec = spec.clone();
            spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            spec
        };
        let dual = changed(
            &single,
            json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilyPolicy": "PreferDualStack"}),
        );
        let balancer = changed(&single, json!({"type": "LoadBalancer"}));
        let bare = changed(
            &balancer,
            json!({"allocateLoadBalancerNodePorts": false, "ports": [with(&web, 30_000), dns]}),
        );
        let local = changed(&bare, json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 30_002}));
        let headless = json!({"type": "ClusterIP", "clusterIPs": ["None"]});
        let (both, renamed) = (json!([dns, web]), json!([web, {"name": "dns2", "port": 2}]));
        let node_port = |ports: &Value| json!({"type": "NodePort", "ports": ports});
        let prefers_dual = json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"});
        let of_balancer = |more: Value| changed(&json!({"type": "LoadBalancer", "ports": both}), more);
        let no_ports = json!({"allocateLoadBalancerNodePorts": false});
        for (stored, spec, turn) in [
            (&single, node_port(&both), Turn::First),
            (&single, node_port(&json!([web])), Turn::First),
            (&single, json!({"ports": both}), Turn::First),
            (&single, node_port(&renamed), Turn::Free),
            (&single, node_port(&json!([web, dns, {"name": "more", "port": 3}])), Turn::Free),
            // The number of one is named for the other.
            (&single, node_port(&json!([with(&web, 30_001), dns])), Turn::Partly),
            (&single, prefers_dual.clone(), Turn::Free),
            (&dual, prefers_dual.clone(), Turn::First),
            (&headless, prefers_dual, Turn::First),
            (&balancer, of_balancer(json!({})), Turn::First),
            (&balancer, node_port(&both), Turn::First),
            (&single, of_balancer(json!({})), Turn::Free),
            (&bare, of_balancer(no_ports.clone()), Turn::First),
            (&bare, of_balancer(json!({})), Turn::Free),
            (&bare, of_balancer(changed(&no_ports, json!({"externalTrafficPolicy": "Local"}))), Turn::Free),
            (&local, of_balancer(changed(&no_ports, json!({"externalTrafficPolicy": "Local"}))), Turn::First),
        ] {
            let ingress = json!([{"ip": "192.0.2.1"}]);
            let stored = json!({"spec": stored, "status": {"loadBalancer": {"ingress": ingress}}});
            let object = json!({"spec": spec});
            let (stored, object) = (stored.as_object().unwrap(), object.as_object().unwrap());
            assert_eq!(Turn::of_service(object, stored), turn, "{spec} after {stored:?}");
        }
        let object = json!({"spec": of_balancer(json!({}))});
        let stored = json!({"spec": balancer, "status": {"loadBalancer": {}}});
        let turn = Turn::of_service(object.as_object().unwrap(), stored.as_object().unwrap());
        assert_eq!(turn, Turn::Free, "it has no load-balancer address");
    }
}
