//! Endpoints: the predecessor of EndpointSlice. Source: `pkg/apis/core/validation/validation.go`.

use std::collections::HashSet;

use portolan_schema::json::{self, Object, Value};

use crate::{
    error::{FieldError, MOST_CAUSES},
    names,
    network::{PORT_RULE, PROTOCOLS, app_protocols, is_port, parse_address, unusable},
};

#[cfg(test)]
mod tests;

pub(super) fn set_defaults(object: &mut Object) {
    for subset in json::objects_mut(object, "subsets") {
        for port in json::objects_mut(subset, "ports") {
            json::default_text(port, "protocol", "TCP");
        }
    }
}

/// Validates the subsets, unless they are the stored ones. A stored appProtocol may stay, because earlier versions
/// accepted an empty one.
pub(super) fn validate(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.is_some_and(|old| old.get("subsets") == object.get("subsets")) {
        return errors;
    }
    let stored = old.map_or(&[][..], |old| json::list(old, "subsets")).iter().filter_map(Value::as_object);
    let stored_protocols: HashSet<&str> =
        stored.flat_map(|subset| app_protocols(json::list(subset, "ports"))).collect();
    for (index, subset) in json::list(object, "subsets").iter().filter_map(Value::as_object).enumerate() {
        subset_errors(subset, &stored_protocols, &format!("subsets[{index}]"), &mut errors);
    }
    errors
}

fn subset_errors(
    subset: &Object,
    stored_protocols: &HashSet<&str>,
    field: &str,
    errors: &mut Vec<FieldError>,
) {
    let keys = ["addresses", "notReadyAddresses"];
    if keys.iter().all(|key| json::list(subset, key).is_empty()) {
        errors.push(FieldError::required(field, "needs addresses or notReadyAddresses"));
    }
    for key in keys {
        for (index, address) in json::list(subset, key).iter().filter_map(Value::as_object).enumerate() {
            if errors.len() >= MOST_CAUSES {
                return;
            }
            address_errors(address, &format!("{field}.{key}[{index}]"), errors);
        }
    }
    let ports = json::list(subset, "ports");
    for (index, port) in ports.iter().filter_map(Value::as_object).enumerate() {
        port_errors(port, (ports.len() > 1, stored_protocols), &format!("{field}.ports[{index}]"), errors);
    }
}

fn address_errors(address: &Object, field: &str, errors: &mut Vec<FieldError>) {
    let text = json::text(address, "ip").unwrap_or_default();
    if let Some(why) = parse_address(text).map_or(Some("must be a valid IP address"), unusable) {
        errors.push(FieldError::invalid(format!("{field}.ip"), text, why));
    }
    if let Some(name) = json::text(address, "hostname").filter(|name| !names::is_dns_label(name)) {
        errors.push(FieldError::invalid(format!("{field}.hostname"), name, "must be a DNS-1123 label"));
    }
    let node = address.get("nodeName").and_then(Value::as_str);
    if let Some(name) = node.filter(|name| !names::is_dns_subdomain(name)) {
        errors.push(FieldError::invalid(format!("{field}.nodeName"), name, "must be a DNS-1123 subdomain"));
    }
}

fn port_errors(
    port: &Object,
    (needs_name, stored_protocols): (bool, &HashSet<&str>),
    field: &str,
    errors: &mut Vec<FieldError>,
) {
    match json::text(port, "name") {
        None if needs_name => {
            errors.push(FieldError::required(format!("{field}.name"), "several ports need names"));
        }
        Some(name) if !names::is_dns_label(name) => {
            errors.push(FieldError::invalid(format!("{field}.name"), name, "must be a DNS-1123 label"));
        }
        _ => {}
    }
    let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
    if !is_port(number) {
        errors.push(FieldError::invalid(format!("{field}.port"), number, PORT_RULE));
    }
    if let Some(protocol) = json::text(port, "protocol").filter(|it| !PROTOCOLS.contains(it)) {
        errors.push(FieldError::not_supported(format!("{field}.protocol"), protocol, &PROTOCOLS));
    }
    let protocol = port.get("appProtocol").and_then(Value::as_str);
    if let Some(text) =
        protocol.filter(|text| !stored_protocols.contains(text) && !names::is_qualified_name(text))
    {
        errors.push(FieldError::invalid(format!("{field}.appProtocol"), text, "must be a qualified name"));
    }
}
