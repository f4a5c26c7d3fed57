//! Node: `podCIDR` mirrors the first of `podCIDRs`. The pod CIDRs and the provider's ID may be set, but not changed.
//! Source: `pkg/apis/core/validation/validation.go`, `pkg/registry/core/node/strategy.go`.

use std::{collections::HashSet, net::IpAddr};

use ipnet::IpNet;
use portolan_ipam::check::NodeNetworks;
use portolan_schema::{
    json::{self, Object, Value},
    shape::quantity,
};
use portolan_store::StoredObject;
use serde::Deserialize;

use crate::{error::FieldError, names, network::parse_cidr};

#[cfg(test)]
mod tests;

/// The numbers of objects among the standard resources.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Returns the addresses and ranges of pods of a Node. What cannot be read is left out.
pub(crate) fn networks(object: &Object) -> NodeNetworks {
    let part = |part| json::object(object, part);
    let addresses = part("status").map_or(&[][..], |status| json::list(status, "addresses"));
    let addresses = addresses.iter().filter_map(|it| it.get("address")?.as_str()?.parse::<IpAddr>().ok());
    let cidrs = part("spec").into_iter().flat_map(|spec| json::texts(spec, "podCIDRs"));
    NodeNetworks {
        addresses: addresses.map(IpNet::from).collect(),
        pods: cidrs.filter_map(|cidr| cidr.parse().ok()).collect(),
    }
}

/// Returns the [`networks`] of a stored Node. The rest of it is not decoded.
pub(crate) fn stored_networks(node: &StoredObject) -> NodeNetworks {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Node {
        spec: Spec,
        status: Status,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        #[serde(rename = "podCIDRs")]
        pod_cidrs: Vec<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        addresses: Vec<Address>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Address {
        address: String,
    }
    // A Node that was stored without validation may have other types.
    let Ok(node) = serde_json::from_slice::<Node>(node.body()) else { return networks(&node.decode()) };
    let addresses = node.status.addresses.iter().filter_map(|it| it.address.parse::<IpAddr>().ok());
    NodeNetworks {
        addresses: addresses.map(IpNet::from).collect(),
        pods: node.spec.pod_cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
    }
}

/// Removes the fields of a configuration that kubelets read from the API server, unless they are stored. Kubernetes has
/// removed that feature.
pub(super) fn drop_disabled(object: &mut Object, old: Option<&Object>) {
    super::drop_unless_stored(object, old, "spec", "configSource");
    super::drop_unless_stored(object, old, "status", "config");
}

pub(super) fn set_defaults(object: &mut Object) {
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
        && let Some(capacity) = status.get("capacity").cloned()
    {
        status.entry("allocatable").or_insert(capacity);
    }
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let first = json::texts(spec, "podCIDRs").next().map(str::to_owned);
    match (json::text(spec, "podCIDR").map(str::to_owned), first) {
        (Some(single), None) => spec.insert("podCIDRs".to_owned(), vec![single].into()),
        (None, Some(first)) => spec.insert("podCIDR".to_owned(), first.into()),
        _ => None,
    };
}

pub(super) fn validate(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let empty = Object::new();
    let spec = json::object(object, "spec").unwrap_or(&empty);
    pod_cidrs(spec, &mut errors);
    taints(spec, &mut errors);
    if let Some(old) = old {
        once(spec, json::object(old, "spec").unwrap_or(&empty), &mut errors);
    }
    if let Some(status) = json::object(object, "status") {
        amounts(status, &mut errors);
        // Upstream checks the addresses of a stored Node only.
        if old.is_some() {
            addresses(status, &mut errors);
        }
    }
    errors
}

fn pod_cidrs(spec: &Object, errors: &mut Vec<FieldError>) {
    let cidrs: Vec<&str> = json::texts(spec, "podCIDRs").collect();
    for (index, cidr) in cidrs.iter().enumerate() {
        if parse_cidr(cidr).is_none() {
            let why = "must be a CIDR without host bits";
            errors.push(FieldError::invalid(format!("spec.podCIDRs[{index}]"), *cidr, why));
        }
    }
    let same_family = matches!(*cidrs, [first, second] if first.contains(':') == second.contains(':'));
    if cidrs.len() > 2 || same_family {
        let why = "may hold no more than one CIDR of each family";
        errors.push(FieldError::invalid("spec.podCIDRs", cidrs.clone(), why));
    }
    let mut seen = HashSet::new();
    for (index, cidr) in cidrs.iter().enumerate() {
        if !seen.insert(*cidr) {
            errors.push(FieldError::duplicate(format!("spec.podCIDRs[{index}]"), *cidr));
        }
    }
    let single = json::text(spec, "podCIDR");
    if single != cidrs.first().copied() {
        let why = "must be the same as spec.podCIDRs[0]";
        errors.push(FieldError::invalid("spec.podCIDR", single.unwrap_or_default(), why));
    }
}

/// Checks the taints. The fields are below `metadata`, as upstream writes them.
fn taints(spec: &Object, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (index, taint) in json::list(spec, "taints").iter().filter_map(Value::as_object).enumerate() {
        let field = |key: &str| format!("metadata.taints[{index}].{key}");
        let (key, value) = (json::text(taint, "key").unwrap_or_default(), json::text(taint, "value"));
        if !names::is_qualified_name(key) {
            errors.push(FieldError::invalid(field("key"), key, "must be a qualified name"));
        }
        if let Some(value) = value.filter(|value| !names::is_label_value(value)) {
            errors.push(FieldError::invalid(field("value"), value, "must be a label value"));
        }
        let effect = json::text(taint, "effect").unwrap_or_default();
        if effect.is_empty() {
            errors.push(FieldError::required(field("effect"), "what the taint does"));
        } else if !EFFECTS.contains(&effect) {
            errors.push(FieldError::not_supported(field("effect"), effect, &EFFECTS));
        }
        if !seen.insert((key, effect)) {
            let field = format!("metadata.taints[{index}]");
            errors.push(FieldError::duplicate(field, format!("{key}:{effect}")));
        }
    }
}

/// Checks the fields that may be set, but not changed.
fn once(spec: &Object, old: &Object, errors: &mut Vec<FieldError>) {
    if !json::list(old, "podCIDRs").is_empty() && json::list(old, "podCIDRs") != json::list(spec, "podCIDRs")
    {
        errors.push(FieldError::forbidden("spec.podCIDRs", "may not change once set"));
    }
    let id = json::text(old, "providerID");
    if id.is_some() && id != json::text(spec, "providerID") {
        errors.push(FieldError::forbidden("spec.providerID", "may not change once set"));
    }
    if json::text(old, "externalID") != json::text(spec, "externalID") {
        errors.push(FieldError::forbidden("spec.externalID", "may not change"));
    }
}

fn amounts(status: &Object, errors: &mut Vec<FieldError>) {
    for key in ["capacity", "allocatable"] {
        for (name, amount) in json::object(status, key).into_iter().flatten() {
            let text = amount.as_str().unwrap_or_default();
            let field = || format!("status.{key}.{name}");
            if text.starts_with('-') {
                errors.push(FieldError::invalid(field(), text, "must be greater than or equal to 0"));
            }
            if is_counted(name) && !quantity::is_whole(text) {
                errors.push(FieldError::invalid(field(), text, "must be an integer"));
            }
        }
    }
}

/// Returns true for a resource that has no fractions (`pkg/apis/core/helper`, `IsIntegerResourceName`): a number of
/// objects, or a resource of another domain.
fn is_counted(name: &str) -> bool {
    let is_extended = || {
        let is_native = !name.contains('/') || name.contains("kubernetes.io/");
        !is_native && !name.starts_with("requests.") && names::is_qualified_name(&format!("requests.{name}"))
    };
    COUNTED.contains(&name) || is_extended()
}

fn addresses(status: &Object, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (index, address) in json::list(status, "addresses").iter().filter_map(Value::as_object).enumerate() {
        let pair = (json::text(address, "type"), json::text(address, "address"));
        if !seen.insert(pair) {
            let address = pair.1.unwrap_or_default();
            errors.push(FieldError::duplicate(format!("status.addresses[{index}]"), address));
        }
    }
}
