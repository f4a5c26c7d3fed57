//! Validates `spec.ports`.

use std::collections::HashSet;

use portolan_schema::json::{self, Object, Value};

use crate::{
    error::{FieldError, MOST_CAUSES},
    kinds::service::{is_headless, service_type},
    names,
    network::{PORT_RULE, PROTOCOLS, app_protocols, is_port},
};

/// Checks the ports. `old` is the stored spec if this is an update: what is stored already and was allowed by an earlier
/// version may stay.
pub(super) fn check(spec: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let ports: Vec<&Object> = json::list(spec, "ports").iter().filter_map(Value::as_object).collect();
    if ports.is_empty() && !is_headless(spec) && service_type(spec) != "ExternalName" {
        errors
            .push(FieldError::required("spec.ports", "a Service with a virtual IP needs at least one port"));
    }
    let stored: &[Value] = old.map_or(&[], |old| json::list(old, "ports"));
    let stored_protocols = app_protocols(stored);
    let mut seen = Seen::default();
    for (index, port) in ports.iter().enumerate() {
        // Further errors are not reported, and each takes more memory than its port.
        if errors.len() >= MOST_CAUSES {
            break;
        }
        let field = |key: &str| format!("spec.ports[{index}].{key}");
        check_port(port, field, &stored_protocols, errors);
        check_name(port, ports.len(), field, &mut seen, errors);
        let protocol = json::text(port, "protocol").unwrap_or("TCP");
        let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
        if !seen.ports.insert((protocol, number)) {
            errors
                .push(FieldError::duplicate(format!("spec.ports[{index}]"), format!("{number}/{protocol}")));
        }
        if let Some(number) = json::integer(port, "nodePort") {
            node_port(number, service_type(spec), field("nodePort"), errors);
        }
    }
}

#[derive(Default)]
struct Seen<'a> {
    names: HashSet<&'a str>,
    ports: HashSet<(&'a str, i64)>,
}

fn check_port(
    port: &Object,
    field: impl Fn(&str) -> String,
    stored_protocols: &HashSet<&str>,
    errors: &mut Vec<FieldError>,
) {
    let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
    if !is_port(number) {
        errors.push(FieldError::invalid(field("port"), number, PORT_RULE));
    }
    if let Some(protocol) = json::text(port, "protocol").filter(|it| !PROTOCOLS.contains(it)) {
        errors.push(FieldError::not_supported(field("protocol"), protocol, &PROTOCOLS));
    }
    // Without a target, it is the port: upstream reports a bad port twice.
    match port.get("targetPort") {
        Some(Value::String(name)) if !names::is_service_name(name) => {
            let why = "must be a port name: at most 15 lower-case letters, digits and single hyphens, one letter at least";
            errors.push(FieldError::invalid(field("targetPort"), name.as_str(), why));
        }
        Some(Value::String(_)) => {}
        target => {
            let target = target.and_then(Value::as_i64).unwrap_or(number);
            if !is_port(target) {
                errors.push(FieldError::invalid(field("targetPort"), target, PORT_RULE));
            }
        }
    }
    let protocol = port.get("appProtocol").and_then(Value::as_str);
    if let Some(text) =
        protocol.filter(|text| !stored_protocols.contains(text) && !names::is_qualified_name(text))
    {
        errors.push(FieldError::invalid(field("appProtocol"), text, "must be a qualified name"));
    }
}

fn check_name<'a>(
    port: &'a Object,
    count: usize,
    field: impl Fn(&str) -> String,
    seen: &mut Seen<'a>,
    errors: &mut Vec<FieldError>,
) {
    match json::text(port, "name") {
        None if count > 1 => errors.push(FieldError::required(field("name"), "several ports need names")),
        Some(name) if !names::is_dns_label(name) => {
            errors.push(FieldError::invalid(field("name"), name, "must be a DNS-1123 label"));
        }
        Some(name) if !seen.names.insert(name) => errors.push(FieldError::duplicate(field("name"), name)),
        None | Some(_) => {}
    }
}

fn node_port(number: i64, service_type: &str, field: String, errors: &mut Vec<FieldError>) {
    if service_type == "ClusterIP" {
        errors.push(FieldError::forbidden(field, "may not be used for type ClusterIP"));
    } else if !is_port(number) {
        errors.push(FieldError::invalid(field, number, PORT_RULE));
    }
}
