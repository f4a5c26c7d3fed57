//! Validates the fields of a Service. Source: `pkg/apis/core/validation/validation.go` of Kubernetes v1.36.

mod ports;

use portolan_schema::json::{self, Object, Value};

use super::{is_externally_accessible, needs_health_check_port, service_type};
use crate::{
    error::{FieldError, MOST_CAUSES},
    metadata, names,
    network::{FAMILIES, PORT_RULE, is_port, parse_address, parse_cidr, unusable},
};

const TYPES: [&str; 4] = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
/// The traffic policies.
pub(super) const POLICIES: [&str; 2] = ["Cluster", "Local"];
const FAMILY_POLICIES: [&str; 3] = ["SingleStack", "PreferDualStack", "RequireDualStack"];
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];
/// One day: `core/v1` `MaxClientIPServiceAffinitySeconds`.
const MAX_AFFINITY_SECONDS: i64 = 86_400;
const ONLY_LOAD_BALANCER: &str = "may only be set for type LoadBalancer";
const SOURCE_RANGES_ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// Annotation that selects the algorithm of topology hints.
pub(super) const MODE_ANNOTATION: &str = "service.kubernetes.io/topology-mode";
/// The older name of [`MODE_ANNOTATION`].
pub(super) const HINTS_ANNOTATION: &str = "service.kubernetes.io/topology-aware-hints";

/// Returns everything that is wrong with a Service whose defaults are set. `old` is the stored one if this is an
/// update.
pub(crate) fn validate(object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    let empty = Object::new();
    let spec = json::object(object, "spec").unwrap_or(&empty);
    let mut errors = Vec::new();
    let old = old.and_then(|old| json::object(old, "spec"));
    enumerations(spec, old, &mut errors);
    ports::check(spec, old, &mut errors);
    cluster_ips(spec, old, &mut errors);
    errors.extend(metadata::label_errors(spec, "selector", "spec.selector"));
    affinity(spec, &mut errors);
    hints(object, &mut errors);
    external(spec, &mut errors);
    load_balancer(object, spec, old, &mut errors);
    health_check_port(spec, &mut errors);
    ingress(object, spec, &mut errors);
    if let Some(old) = old {
        transition(spec, old, &mut errors);
    }
    errors
}

/// Checks the fields with a fixed set of values. A stored trafficDistribution is kept, because earlier versions accepted
/// an empty one.
fn enumerations(spec: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let enumerated: [(&str, &[&str]); 5] = [
        ("type", &TYPES),
        ("sessionAffinity", &["None", "ClientIP"]),
        ("ipFamilyPolicy", &FAMILY_POLICIES),
        ("internalTrafficPolicy", &POLICIES),
        ("trafficDistribution", &DISTRIBUTIONS),
    ];
    // Where an empty text means absence, it has been dropped or replaced by the default.
    for (key, allowed) in enumerated {
        let is_kept = key == "trafficDistribution" && is_stored(spec, old, key);
        let value = spec.get(key).and_then(Value::as_str).filter(|_| !is_kept);
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            errors.push(FieldError::not_supported(format!("spec.{key}"), value, allowed));
        }
    }
}

/// Checks the names of families and the form of addresses. Stored addresses may keep their form.
fn cluster_ips(spec: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let stored: Vec<&str> = old.into_iter().flat_map(|old| json::texts(old, "clusterIPs")).collect();
    for (index, text) in json::texts(spec, "clusterIPs").enumerate() {
        if text != "None" && !stored.contains(&text) && parse_address(text).is_none() {
            let why = "must be a valid IP address, without leading zeros and not IPv4 inside IPv6";
            errors.push(FieldError::invalid(format!("spec.clusterIPs[{index}]"), text, why));
        }
    }
    for (index, family) in json::texts(spec, "ipFamilies").enumerate() {
        if !FAMILIES.contains(&family) {
            errors.push(FieldError::not_supported(format!("spec.ipFamilies[{index}]"), family, &FAMILIES));
        }
    }
}

fn affinity(spec: &Object, errors: &mut Vec<FieldError>) {
    let config =
        json::object(spec, "sessionAffinityConfig").and_then(|config| json::object(config, "clientIP"));
    let Some(timeout) = config.and_then(|client_ip| client_ip.get("timeoutSeconds")) else { return };
    if !timeout.as_i64().is_some_and(|seconds| (1..=MAX_AFFINITY_SECONDS).contains(&seconds)) {
        let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
        errors.push(FieldError::invalid(field, timeout.clone(), "must be between 1 and 86400, inclusive"));
    }
}

/// Checks that both names of the annotation have the same value, if both are present.
fn hints(object: &Object, errors: &mut Vec<FieldError>) {
    let annotations = json::object(object, "metadata").and_then(|it| json::object(it, "annotations"));
    let value = |name| annotations.and_then(|annotations| annotations.get(name)).and_then(Value::as_str);
    if let (Some(mode), Some(older)) = (value(MODE_ANNOTATION), value(HINTS_ANNOTATION))
        && mode != older
    {
        let why = format!("must be the same as metadata.annotations[{HINTS_ANNOTATION}]");
        errors.push(FieldError::invalid(format!("metadata.annotations[{MODE_ANNOTATION}]"), mode, &why));
    }
}

fn external(spec: &Object, errors: &mut Vec<FieldError>) {
    if service_type(spec) == "ExternalName" {
        let name = json::text(spec, "externalName").unwrap_or_default();
        let relative = name.strip_suffix('.').unwrap_or(name);
        if relative.is_empty() {
            errors.push(FieldError::required("spec.externalName", "type ExternalName needs a DNS name"));
        } else if !names::is_dns_subdomain(relative) {
            errors.push(FieldError::invalid("spec.externalName", name, "must be a DNS-1123 subdomain"));
        }
    }
    for (index, text) in json::texts(spec, "externalIPs").enumerate() {
        if errors.len() >= MOST_CAUSES {
            break;
        }
        let fault = parse_address(text).map_or(Some("must be a valid IP address"), unusable);
        errors.extend(fault.map(|why| FieldError::invalid(format!("spec.externalIPs[{index}]"), text, why)));
    }
    let policy = json::text(spec, "externalTrafficPolicy");
    if let Some(policy) = policy.filter(|_| !is_externally_accessible(spec)) {
        let why = "may only be set for NodePort and LoadBalancer Services and those with externalIPs";
        errors.push(FieldError::invalid("spec.externalTrafficPolicy", policy, why));
    } else if let Some(policy) = policy.filter(|policy| !POLICIES.contains(policy)) {
        errors.push(FieldError::not_supported("spec.externalTrafficPolicy", policy, &POLICIES));
    }
}

/// Returns true if the field has the stored value.
fn is_stored(spec: &Object, old: Option<&Object>, key: &str) -> bool {
    old.is_some_and(|old| old.get(key) == spec.get(key))
}

fn load_balancer(object: &Object, spec: &Object, old: Option<&Object>, errors: &mut Vec<FieldError>) {
    let is_load_balancer = service_type(spec) == "LoadBalancer";
    source_ranges(object, spec, errors);
    for key in ["loadBalancerClass", "allocateLoadBalancerNodePorts"] {
        if spec.contains_key(key) && !is_load_balancer {
            errors.push(FieldError::forbidden(format!("spec.{key}"), ONLY_LOAD_BALANCER));
        }
    }
    // A stored class is kept, because earlier versions accepted an empty one.
    let is_checked = is_load_balancer && !is_stored(spec, old, "loadBalancerClass");
    let class = spec.get("loadBalancerClass").and_then(Value::as_str);
    if let Some(class) = class.filter(|class| is_checked && !names::is_qualified_name(class)) {
        errors.push(FieldError::invalid("spec.loadBalancerClass", class, "must be a qualified name"));
    }
}

/// Checks the field, or the annotation if the field is empty.
fn source_ranges(object: &Object, spec: &Object, errors: &mut Vec<FieldError>) {
    let annotations = json::object(object, "metadata").and_then(|it| json::object(it, "annotations"));
    let annotation = annotations.and_then(|it| it.get(SOURCE_RANGES_ANNOTATION)).and_then(Value::as_str);
    let ranges: Vec<&str> = json::texts(spec, "loadBalancerSourceRanges").collect();
    let (field, is_set) = if ranges.is_empty() {
        (format!("metadata.annotations[{SOURCE_RANGES_ANNOTATION}]"), annotation.is_some())
    } else {
        // Upstream writes the name of the field in Go.
        ("spec.LoadBalancerSourceRanges".to_owned(), true)
    };
    if is_set && service_type(spec) != "LoadBalancer" {
        errors.push(FieldError::forbidden(&field, ONLY_LOAD_BALANCER));
    }
    let why = "must be a CIDR without host bits";
    for (index, text) in ranges.iter().enumerate() {
        if parse_cidr(text.trim()).is_none() {
            errors.push(FieldError::invalid(format!("{field}[{index}]"), *text, why));
        }
    }
    let listed = annotation.filter(|text| ranges.is_empty() && !text.trim().is_empty());
    for text in listed.into_iter().flat_map(|text| text.split(',')).take(MOST_CAUSES) {
        if parse_cidr(text.trim()).is_none() {
            errors.push(FieldError::invalid(&field, text, why));
        }
    }
}

fn health_check_port(spec: &Object, errors: &mut Vec<FieldError>) {
    let Some(port) = json::integer(spec, "healthCheckNodePort") else { return };
    let field = "spec.healthCheckNodePort";
    if !needs_health_check_port(spec) {
        let why = "may only be set for type LoadBalancer with externalTrafficPolicy Local";
        errors.push(FieldError::invalid(field, port, why));
    } else if !is_port(port) {
        errors.push(FieldError::invalid(field, port, PORT_RULE));
    }
}

fn ingress(object: &Object, spec: &Object, errors: &mut Vec<FieldError>) {
    let balancer = json::object(object, "status").and_then(|status| json::object(status, "loadBalancer"));
    let entries = balancer.map_or(&[][..], |balancer| json::list(balancer, "ingress"));
    if !entries.is_empty() && service_type(spec) != "LoadBalancer" {
        errors.push(FieldError::forbidden("status.loadBalancer.ingress", ONLY_LOAD_BALANCER));
        return;
    }
    for (index, entry) in entries.iter().filter_map(Value::as_object).enumerate() {
        ingress_entry(entry, &format!("status.loadBalancer.ingress[{index}]"), errors);
    }
}

fn ingress_entry(entry: &Object, field: &str, errors: &mut Vec<FieldError>) {
    let (ip, mode) = (json::text(entry, "ip"), entry.get("ipMode").and_then(Value::as_str));
    if let Some(text) = ip.filter(|text| parse_address(text).is_none()) {
        errors.push(FieldError::invalid(format!("{field}.ip"), text, "must be a valid IP address"));
    }
    match (ip, mode) {
        (None, Some(_)) => {
            errors.push(FieldError::forbidden(format!("{field}.ipMode"), "may not be set without ip"));
        }
        (Some(_), None) => {
            errors.push(FieldError::required(format!("{field}.ipMode"), "says what ip means to nodes"));
        }
        (Some(_), Some(mode)) if !["VIP", "Proxy"].contains(&mode) => {
            errors.push(FieldError::not_supported(format!("{field}.ipMode"), mode, &["VIP", "Proxy"]));
        }
        _ => {}
    }
    if let Some(name) = json::text(entry, "hostname")
        && (!names::is_dns_subdomain(name) || parse_address(name).is_some())
    {
        errors.push(FieldError::invalid(
            format!("{field}.hostname"),
            name,
            "must be a DNS name, not an IP address",
        ));
    }
}

/// Checks the changes of the stored Service, except those of its addresses and ports.
fn transition(spec: &Object, old: &Object, errors: &mut Vec<FieldError>) {
    let key = "loadBalancerClass";
    let is_load_balancer = |spec| service_type(spec) == "LoadBalancer";
    if is_load_balancer(spec) && is_load_balancer(old) && spec.get(key) != old.get(key) {
        let value = spec.get(key).cloned().unwrap_or_default();
        errors.push(FieldError::invalid(format!("spec.{key}"), value, "may not change once set"));
    }
}
