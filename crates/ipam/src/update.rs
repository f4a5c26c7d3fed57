//! Applies the stored values of a Service to an update and clears those that do not fit a changed type: the part of
//! `pkg/registry/core/service/{strategy,storage/storage}.go` that concerns addresses and node ports.

use std::collections::{HashMap, HashSet};

use crate::service::{ServicePort, ServiceSpec, ServiceType};

/// Sets `clusterIPs` of a new Service from `clusterIP`, because clients older than dual stack write only the latter.
pub fn normalise_create(spec: &mut ServiceSpec) {
    if !spec.cluster_ip.is_empty() && spec.cluster_ips.is_empty() {
        spec.cluster_ips = vec![spec.cluster_ip.clone()];
    }
}

/// Completes the spec of an update. Allocated values that the client left out are copied from the stored object,
/// unless the changed type does not allow them.
pub fn carry_over(spec: &mut ServiceSpec, old: &ServiceSpec) {
    if spec.may_have_address() && old.may_have_address() {
        if spec.cluster_ip.is_empty() {
            spec.cluster_ip.clone_from(&old.cluster_ip);
        }
        if spec.cluster_ips.is_empty() {
            spec.cluster_ips.clone_from(&old.cluster_ips);
        }
    }
    if spec.needs_node_ports() && old.needs_node_ports() {
        copy_node_ports(spec, &old.ports);
    }
    let both_need = spec.needs_health_check_port() && old.needs_health_check_port();
    if both_need && spec.health_check_node_port == 0 {
        spec.health_check_node_port = old.health_check_node_port;
    }
    normalise_update(spec, old);
    clear_for_type(spec, old);
}

/// Sets `clusterIPs` from `clusterIP` if only the latter changed: the client knows only that field.
fn normalise_update(spec: &mut ServiceSpec, old: &ServiceSpec) {
    let is_single_same = spec.cluster_ip == old.cluster_ip;
    let is_plural_same = spec.cluster_ips == old.cluster_ips;
    if !is_single_same && is_plural_same {
        let given = (!spec.cluster_ip.is_empty()).then(|| spec.cluster_ip.clone());
        spec.cluster_ips = given.into_iter().collect();
    }
}

/// Copies the node ports of ports with the same name, unless another port of the new object uses the number.
fn copy_node_ports(spec: &mut ServiceSpec, old: &[ServicePort]) {
    let used: HashSet<u16> = spec.ports.iter().map(|port| port.node_port).collect();
    let old: HashMap<&str, u16> = old.iter().map(|port| (port.name.as_str(), port.node_port)).collect();
    for port in spec.ports.iter_mut().filter(|port| port.node_port == 0) {
        let stored = old.get(port.name.as_str()).filter(|stored| !used.contains(stored));
        port.node_port = stored.copied().unwrap_or(0);
    }
}

/// Clears fields that the new type does not allow, if the client left them unchanged.
fn clear_for_type(spec: &mut ServiceSpec, old: &ServiceSpec) {
    if spec.service_type == ServiceType::ExternalName && old.may_have_address() {
        clear_if_same(&mut spec.cluster_ip, &old.cluster_ip);
        clear_if_same(&mut spec.cluster_ips, &old.cluster_ips);
        clear_if_same(&mut spec.ip_families, &old.ip_families);
        clear_if_same(&mut spec.ip_family_policy, &old.ip_family_policy);
    }
    if old.may_have_node_ports() && !spec.may_have_node_ports() {
        let stored: HashSet<u16> = old.ports.iter().map(|port| port.node_port).collect();
        if spec.ports.iter().all(|port| port.node_port == 0 || stored.contains(&port.node_port)) {
            spec.ports.iter_mut().for_each(|port| port.node_port = 0);
        }
    }
    if old.needs_health_check_port() && !spec.needs_health_check_port() {
        clear_if_same(&mut spec.health_check_node_port, &old.health_check_node_port);
    }
}

fn clear_if_same<T: PartialEq + Default>(new: &mut T, old: &T) {
    if new == old {
        *new = T::default();
    }
}
