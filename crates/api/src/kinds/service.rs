//! Service. The steps of a write, in order: [`clear_for_type`] (update only), [`set_defaults`], the allocator's plan,
//! [`validate`]. Only `portolan-ipam` knows the rules of families, addresses and node ports.

mod update;
mod validation;
mod warnings;

pub(crate) use self::{
    update::clear_for_type,
    validation::validate,
    warnings::{status_warnings, warnings},
};
use portolan_schema::json::{self, Object, Value};

#[cfg(test)]
mod tests;

/// Sets the defaults that do not depend on the server's ranges.
pub(crate) fn set_defaults(object: &mut Object) {
    // In Go both are plain structs, which JSON always contains. Without this, a controller that writes the object
    // back unchanged would change it.
    if let Some(status) = json::object_mut(object, "status") {
        json::object_mut(status, "loadBalancer");
    }
    let Some(spec) = json::object_mut(object, "spec") else { return };
    json::default_text(spec, "type", "ClusterIP");
    json::default_text(spec, "sessionAffinity", "None");
    default_affinity(spec);
    for port in json::objects_mut(spec, "ports") {
        default_port(port);
    }
    if is_externally_accessible(spec) {
        json::default_text(spec, "externalTrafficPolicy", "Cluster");
    }
    default_internal_policy(spec);
    let is_load_balancer = service_type(spec) == "LoadBalancer";
    if is_load_balancer && !spec.contains_key("allocateLoadBalancerNodePorts") {
        spec.insert("allocateLoadBalancerNodePorts".to_owned(), true.into());
    }
    if is_load_balancer {
        default_ingress(object);
    }
}

/// Returns `spec.type`, or its default.
pub(crate) fn service_type(spec: &Object) -> &str {
    json::text(spec, "type").unwrap_or("ClusterIP")
}

/// Returns true if the Service has `clusterIP: None`.
pub(crate) fn is_headless(spec: &Object) -> bool {
    json::text(spec, "clusterIP") == Some("None") || json::texts(spec, "clusterIPs").next() == Some("None")
}

/// Returns true if the Service needs a health-check node port.
pub(crate) fn needs_health_check_port(spec: &Object) -> bool {
    service_type(spec) == "LoadBalancer" && json::text(spec, "externalTrafficPolicy") == Some("Local")
}

/// Returns true if the type or external IPs allow traffic from outside the cluster.
pub(crate) fn is_externally_accessible(spec: &Object) -> bool {
    match service_type(spec) {
        "NodePort" | "LoadBalancer" => true,
        "ClusterIP" => !json::list(spec, "externalIPs").is_empty(),
        _ => false,
    }
}

/// Sets the default, or removes a valid policy from a Service of type ExternalName, which has none. An empty text is not
/// absence, because the field is a pointer upstream.
fn default_internal_policy(spec: &mut Object) {
    let key = "internalTrafficPolicy";
    match spec.get(key) {
        None | Some(Value::Null) if service_type(spec) != "ExternalName" => {
            spec.insert(key.to_owned(), "Cluster".into());
        }
        Some(Value::String(policy))
            if service_type(spec) == "ExternalName" && validation::POLICIES.contains(&policy.as_str()) =>
        {
            spec.remove(key);
        }
        _ => {}
    }
}

fn default_affinity(spec: &mut Object) {
    match json::text(spec, "sessionAffinity") {
        Some("None") => {
            spec.remove("sessionAffinityConfig");
        }
        Some("ClientIP") => {
            let config = json::object_mut(spec, "sessionAffinityConfig");
            if let Some(client_ip) = config.and_then(|config| json::object_mut(config, "clientIP")) {
                // Three hours: `core/v1` `DefaultClientIPServiceAffinitySeconds`.
                client_ip.entry("timeoutSeconds").or_insert_with(|| 10_800.into());
            }
        }
        _ => {}
    }
}

fn default_port(port: &mut Object) {
    json::default_text(port, "protocol", "TCP");
    let unset = match port.get("targetPort") {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(_) => false,
    };
    if unset && let Some(number) = port.get("port").cloned() {
        port.insert("targetPort".to_owned(), number);
    }
}

fn default_ingress(object: &mut Object) {
    let status = object.get_mut("status").and_then(Value::as_object_mut);
    let balancer = status.and_then(|status| status.get_mut("loadBalancer")).and_then(Value::as_object_mut);
    for ingress in balancer.into_iter().flat_map(|balancer| json::objects_mut(balancer, "ingress")) {
        if json::text(ingress, "ip").is_some() {
            ingress.entry("ipMode").or_insert_with(|| "VIP".into());
        }
    }
}
