//! EndpointSlice: its addresses are of one type. The range of its ports is not checked, as upstream.

use std::collections::HashSet;

use portolan_schema::json::{self, Object, Value};

use crate::{
    error::{FieldError, MOST_CAUSES},
    names,
    network::{PROTOCOLS, app_protocols, family_of, parse_address, unusable},
};

#[cfg(test)]
mod tests;

const ADDRESS_TYPES: [&str; 3] = ["IPv4", "IPv6", "FQDN"];
// Limits of `pkg/apis/discovery/validation`.
const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20_000;
const MAX_HINTS: usize = 8;
const TOPOLOGY: &str = "deprecatedTopology";
const HOST_LABEL: &str = "kubernetes.io/hostname";

pub(super) fn set_defaults(object: &mut Object) {
    for key in ["endpoints", "ports"] {
        object.entry(key).or_insert_with(|| Value::Array(json::List::new()));
    }
    for port in json::objects_mut(object, "ports") {
        port.entry("name").or_insert_with(|| Value::from(""));
        port.entry("protocol").or_insert_with(|| Value::from("TCP"));
    }
}

/// Removes `deprecatedTopology`, where clients of v1beta1 recorded the node. A client of v1 that changes the
/// endpoints loses the field; a node that was recorded in it moves to `nodeName`.
pub(super) fn drop_topology(object: &mut Object, old: Option<&Object>) {
    if old.is_some_and(|old| old.get("endpoints") == object.get("endpoints")) {
        return;
    }
    let stored: HashSet<&str> = old
        .into_iter()
        .flat_map(|old| json::list(old, "endpoints"))
        .filter_map(|endpoint| endpoint.get(TOPOLOGY)?.get(HOST_LABEL)?.as_str())
        .collect();
    for endpoint in json::objects_mut(object, "endpoints") {
        let Some(topology) = endpoint.remove(TOPOLOGY) else { continue };
        let node = topology.get(HOST_LABEL).and_then(Value::as_str);
        if let Some(node) = node.filter(|node| stored.contains(node) && names::is_dns_subdomain(node)) {
            endpoint.entry("nodeName").or_insert_with(|| node.into());
        }
    }
}

/// Returns warnings about valid values that should be written differently.
pub(super) fn warnings(object: &Object) -> Vec<String> {
    let is_named = json::text(object, "addressType") == Some("FQDN");
    is_named.then(|| "addressType: FQDN is deprecated; use IPv4 or IPv6".to_owned()).into_iter().collect()
}

pub(super) fn validate(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let address_type = json::text(object, "addressType").unwrap_or_default();
    if address_type.is_empty() {
        errors.push(FieldError::required("addressType", "IPv4, IPv6 or FQDN"));
    } else if !ADDRESS_TYPES.contains(&address_type) {
        errors.push(FieldError::not_supported("addressType", address_type, &ADDRESS_TYPES));
    }
    if let Some(old) = old
        && json::text(old, "addressType").is_some_and(|stored| stored != address_type)
    {
        errors.push(FieldError::invalid("addressType", address_type, "field is immutable"));
    }
    if old.is_none_or(|old| old.get("endpoints") != object.get("endpoints")) {
        endpoints_errors(object, address_type, &mut errors);
    }
    ports_errors(object, old, &mut errors);
    errors
}

fn endpoints_errors(object: &Object, address_type: &str, errors: &mut Vec<FieldError>) {
    let endpoints = json::list(object, "endpoints");
    if endpoints.len() > MAX_ENDPOINTS {
        errors.push(FieldError::too_many("endpoints", endpoints.len(), MAX_ENDPOINTS));
        return;
    }
    for (index, endpoint) in endpoints.iter().filter_map(Value::as_object).enumerate() {
        if errors.len() >= MOST_CAUSES {
            return;
        }
        let field = |name: &str| format!("endpoints[{index}].{name}");
        addresses_errors(endpoint, address_type, &field("addresses"), errors);
        if let Some(name) =
            endpoint.get("hostname").and_then(Value::as_str).filter(|name| !names::is_dns_label(name))
        {
            errors.push(FieldError::invalid(field("hostname"), name, "must be a DNS-1123 label"));
        }
        if let Some(name) =
            endpoint.get("nodeName").and_then(Value::as_str).filter(|name| !names::is_dns_subdomain(name))
        {
            errors.push(FieldError::invalid(field("nodeName"), name, "must be a DNS-1123 subdomain"));
        }
        if let Some(hints) = json::object(endpoint, "hints") {
            hints_errors(hints, "forZones", names::is_label_value, &field("hints.forZones"), errors);
            hints_errors(hints, "forNodes", names::is_dns_subdomain, &field("hints.forNodes"), errors);
        }
    }
}

fn addresses_errors(endpoint: &Object, address_type: &str, field: &str, errors: &mut Vec<FieldError>) {
    let addresses = json::list(endpoint, "addresses");
    if addresses.is_empty() {
        errors.push(FieldError::required(field, "must contain at least 1 address"));
    }
    if addresses.len() > MAX_ADDRESSES {
        errors.push(FieldError::too_many(field, addresses.len(), MAX_ADDRESSES));
        return;
    }
    for (index, address) in json::texts(endpoint, "addresses").enumerate() {
        if let Some(why) = address_fault(address, address_type) {
            errors.push(FieldError::invalid(format!("{field}[{index}]"), address, why));
        }
    }
}

fn address_fault(text: &str, address_type: &str) -> Option<&'static str> {
    if !ADDRESS_TYPES.contains(&address_type) {
        return None;
    }
    if address_type == "FQDN" {
        let name = text.strip_suffix('.').unwrap_or(text);
        let valid = names::is_dns_subdomain(name) && name.contains('.');
        return (!valid).then_some("must be a DNS name of at least two labels");
    }
    match parse_address(text) {
        Some(address) if family_of(address) != address_type => {
            Some("must be an address of the slice's addressType")
        }
        Some(address) if address.is_ipv6() && address.to_string() != text => {
            Some("must be in the canonical form of RFC 5952")
        }
        Some(address) => unusable(address),
        None => Some("must be a valid IP address"),
    }
}

fn hints_errors(
    hints: &Object,
    key: &str,
    valid: impl Fn(&str) -> bool,
    field: &str,
    errors: &mut Vec<FieldError>,
) {
    let entries = json::list(hints, key);
    if entries.len() > MAX_HINTS {
        errors.push(FieldError::too_many(field, entries.len(), MAX_HINTS));
        return;
    }
    let mut seen = HashSet::new();
    for (index, entry) in entries.iter().enumerate() {
        let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
        let field = format!("{field}[{index}].name");
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(field.clone(), name));
        }
        if !valid(name) {
            errors.push(FieldError::invalid(field, name, "must be a valid name"));
        }
    }
}

/// Checks the ports. A stored appProtocol may stay, because earlier versions accepted an empty one.
fn ports_errors(object: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let ports = json::list(object, "ports");
    if ports.len() > MAX_PORTS {
        errors.push(FieldError::too_many("ports", ports.len(), MAX_PORTS));
        return;
    }
    let stored_protocols = app_protocols(old.map_or(&[], |old| json::list(old, "ports")));
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().filter_map(Value::as_object).enumerate() {
        if errors.len() >= MOST_CAUSES {
            return;
        }
        let name = json::text(port, "name").unwrap_or_default();
        let field = |key: &str| format!("ports[{index}].{key}");
        if !name.is_empty() && !names::is_dns_label(name) {
            errors.push(FieldError::invalid(field("name"), name, "must be a DNS-1123 label"));
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(field("name"), name));
        }
        // An empty text is not absence, because both fields are pointers upstream.
        let text = |key: &str| port.get(key).and_then(Value::as_str);
        if let Some(protocol) = text("protocol").filter(|it| !PROTOCOLS.contains(it)) {
            errors.push(FieldError::not_supported(field("protocol"), protocol, &PROTOCOLS));
        }
        let protocol = text("appProtocol").filter(|text| !stored_protocols.contains(text));
        if let Some(text) = protocol.filter(|text| !names::is_qualified_name(text)) {
            errors.push(FieldError::invalid(field("appProtocol"), text, "must be a qualified name"));
        }
    }
}
