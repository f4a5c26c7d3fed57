//! What an update takes over from the stored Service, and what a change of type clears.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{
    is_externally_accessible, may_have_node_ports, needs_health_check_port, needs_node_ports, service_type,
};
use crate::json::{self, Object};

/// Copies allocated values that the client omitted, then clears fields that no longer fit the type, unless the
/// client set them anew.
pub(crate) fn carry_over(new: &mut Object, old: &Object) {
    let Some(old_spec) = json::object(old, "spec") else { return };
    let Some(spec) = json::object_mut(new, "spec") else { return };
    if service_type(spec) != "ExternalName" && service_type(old_spec) != "ExternalName" {
        copy_if_empty(spec, old_spec, "clusterIP");
        copy_if_empty(spec, old_spec, "clusterIPs");
    }
    if needs_node_ports(spec) && needs_node_ports(old_spec) {
        copy_node_ports(spec, old_spec);
    }
    if needs_health_check_port(spec) && needs_health_check_port(old_spec) {
        copy_if_empty(spec, old_spec, "healthCheckNodePort");
    }
    clear_for_type(spec, old_spec);
    if service_type(old_spec) == "LoadBalancer"
        && service_type(spec) != "LoadBalancer"
        && let Some(status) = new.get_mut("status").and_then(Value::as_object_mut)
    {
        status.insert("loadBalancer".to_owned(), Value::Object(Object::new()));
    }
}

/// Brings `clusterIP` and `clusterIPs` in line where the client wrote only one of them.
pub(crate) fn normalise(spec: &mut Object, old_spec: Option<&Object>) {
    let single = json::text(spec, "clusterIP").map(str::to_owned);
    let plural_empty = json::list(spec, "clusterIPs").is_empty();
    let Some(old) = old_spec else {
        if let (Some(single), true) = (single, plural_empty) {
            spec.insert("clusterIPs".to_owned(), vec![single].into());
        }
        return;
    };
    let single_changed = single.as_deref() != json::text(old, "clusterIP");
    let plural_changed = json::list(spec, "clusterIPs") != json::list(old, "clusterIPs");
    match single {
        None if !plural_changed => {
            spec.remove("clusterIPs");
        }
        Some(single) if single_changed && (!plural_changed || plural_empty) => {
            spec.insert("clusterIPs".to_owned(), vec![single].into());
        }
        _ => {}
    }
}

fn copy_if_empty(spec: &mut Object, old: &Object, key: &str) {
    let empty = match spec.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(values)) => values.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(_) => false,
    };
    if let (true, Some(value)) = (empty, old.get(key)) {
        spec.insert(key.to_owned(), value.clone());
    }
}

/// Ports of the same name keep their node port, unless another port of the new object uses it.
fn copy_node_ports(spec: &mut Object, old: &Object) {
    let used: HashSet<i64> = node_ports(spec).into_iter().map(|(_, number)| number).collect();
    let old: HashMap<String, i64> = node_ports(old).into_iter().collect();
    for port in json::objects_mut(spec, "ports") {
        let name = json::text(port, "name").unwrap_or_default();
        let Some(number) = old.get(name).filter(|number| !used.contains(number)) else { continue };
        if json::integer(port, "nodePort").is_none() {
            port.insert("nodePort".to_owned(), (*number).into());
        }
    }
}

/// Port name and node port, of the ports that have one.
fn node_ports(spec: &Object) -> Vec<(String, i64)> {
    let ports = json::list(spec, "ports").iter().filter_map(Value::as_object);
    ports
        .filter_map(|port| {
            let name = json::text(port, "name").unwrap_or_default();
            Some((name.to_owned(), json::integer(port, "nodePort")?))
        })
        .collect()
}

fn clear_for_type(spec: &mut Object, old: &Object) {
    let (was, is) = (service_type(old).to_owned(), service_type(spec).to_owned());
    if is == "ExternalName" && was != "ExternalName" {
        remove_same(spec, old, &["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"]);
    }
    if may_have_node_ports(old) && !may_have_node_ports(spec) {
        let stored: HashSet<i64> = node_ports(old).into_iter().map(|(_, number)| number).collect();
        if node_ports(spec).iter().all(|(_, number)| stored.contains(number)) {
            json::objects_mut(spec, "ports").for_each(|port| {
                port.remove("nodePort");
            });
        }
    }
    if needs_health_check_port(old) && !needs_health_check_port(spec) {
        remove_same(spec, old, &["healthCheckNodePort"]);
    }
    if was == "LoadBalancer" && is != "LoadBalancer" {
        remove_same(spec, old, &["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if is_externally_accessible(old) && !is_externally_accessible(spec) {
        remove_same(spec, old, &["externalTrafficPolicy"]);
    }
}

fn remove_same(spec: &mut Object, old: &Object, keys: &[&str]) {
    for key in keys {
        if spec.get(*key) == old.get(*key) {
            spec.remove(*key);
        }
    }
}
