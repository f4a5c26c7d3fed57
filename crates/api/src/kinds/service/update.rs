//! The fields that a change of type clears, besides addresses and node ports, which `portolan_ipam::update` clears.

use portolan_schema::json::{self, Object, Value};

use super::{is_externally_accessible, service_type};

/// Clears fields that do not fit the new type, unless the client has changed them. `new` has no defaults yet.
pub(crate) fn clear_for_type(new: &mut Object, old: &Object) {
    let Some(old_spec) = json::object(old, "spec") else { return };
    let Some(spec) = json::object_mut(new, "spec") else { return };
    let leaves_load_balancer =
        service_type(old_spec) == "LoadBalancer" && service_type(spec) != "LoadBalancer";
    if leaves_load_balancer {
        remove_same(spec, old_spec, &["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if is_externally_accessible(old_spec) && !is_externally_accessible(spec) {
        remove_same(spec, old_spec, &["externalTrafficPolicy"]);
    }
    if leaves_load_balancer && let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) {
        status.insert("loadBalancer".to_owned(), Value::Object(Object::new()));
    }
}

fn remove_same(spec: &mut Object, old: &Object, keys: &[&str]) {
    for key in keys {
        if spec.get(key) == old.get(key) {
            spec.remove(key);
        }
    }
}
