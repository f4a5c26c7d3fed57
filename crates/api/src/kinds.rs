//! The rules of each kind, besides those of all objects: defaults, validation, and the fields that an update may
//! change.

pub mod namespace;
pub(crate) mod node;
pub(crate) mod service;
pub(crate) mod service_cidr;

mod endpoint_slice;
mod endpoints;
mod event;
mod ip_address;
mod lease;

use portolan_ipam::check::Neighbours;
use portolan_schema::{
    Resource,
    json::{self, Object, Value},
};

use crate::{error::FieldError, network};

/// Sets defaults and removes fields that clients may not write. `old` is the stored object if this is an update.
/// Services are prepared in [`service`], together with their allocation.
pub(crate) fn prepare(resource: Resource, object: &mut Object, old: Option<&Object>) {
    match resource {
        Resource::EndpointSlice => {
            endpoint_slice::set_defaults(object);
            endpoint_slice::drop_topology(object, old);
        }
        Resource::Endpoints => endpoints::set_defaults(object),
        Resource::Node => {
            node::drop_disabled(object, old);
            node::set_defaults(object);
        }
        Resource::Namespace => namespace::prepare(object, old.is_none()),
        Resource::ServiceCidr => service_cidr::set_defaults(object),
        Resource::Lease => lease::drop_gated(object, old),
        Resource::Service
        | Resource::IpAddress
        | Resource::Event
        | Resource::CoreEvent
        | Resource::NodePort
        | Resource::Pod
        | Resource::AccessReview
        | Resource::RulesReview
        | Resource::SelfReview => {}
    }
}

/// Returns everything that is wrong with the object, except its metadata. `old` is the stored object if this is an
/// update.
pub(crate) fn validate(resource: Resource, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    match resource {
        Resource::Service => service::validate(object, old),
        Resource::EndpointSlice => endpoint_slice::validate(object, old),
        Resource::Endpoints => endpoints::validate(object, old),
        Resource::Node => node::validate(object, old),
        Resource::Namespace => namespace::validate(object, old.is_none()),
        Resource::ServiceCidr => service_cidr::validate(object, old, Neighbours::default()),
        Resource::IpAddress => ip_address::validate(object, old),
        Resource::Event | Resource::CoreEvent => event::validate(resource, object, old),
        Resource::Lease => lease::validate(object),
        Resource::NodePort
        | Resource::Pod
        | Resource::AccessReview
        | Resource::RulesReview
        | Resource::SelfReview => Vec::new(),
    }
}

/// Returns warnings for the client about values that are valid but probably not meant.
pub(crate) fn warnings(resource: Resource, object: &Object) -> Vec<String> {
    match resource {
        Resource::Service => service::warnings(object),
        Resource::EndpointSlice => endpoint_slice::warnings(object),
        _ => Vec::new(),
    }
}

/// Returns warnings like [`warnings`], about the status that a client writes.
pub(crate) fn status_warnings(resource: Resource, object: &Object) -> Vec<String> {
    match resource {
        Resource::Service => service::status_warnings(object),
        _ => Vec::new(),
    }
}

/// Removes a member of `spec` or `status` unless the stored object has it: upstream does so with the fields of a feature
/// that is off.
fn drop_unless_stored(object: &mut Object, old: Option<&Object>, part: &str, key: &str) {
    let stored = old.and_then(|old| json::object(old, part));
    if stored.is_none_or(|stored| !stored.contains_key(key))
        && let Some(members) = object.get_mut(part).and_then(Value::as_object_mut)
    {
        members.remove(key);
    }
}

/// Returns the address in `text` if an endpoint can have it.
pub fn usable_address(text: &str) -> Option<std::net::IpAddr> {
    network::parse_address(text).filter(|address| network::unusable(*address).is_none())
}

/// Returns true if an update increments `metadata.generation`: for EndpointSlices, if anything outside metadata or
/// the labels change.
pub(crate) fn bumps_generation(resource: Resource, new: &Object, old: &Object) -> bool {
    let labels = |object| json::object(object, "metadata").and_then(|metadata| metadata.get("labels"));
    let differ = || {
        let is_rest = |(name, _): &(&json::Text, &Value)| *name != "metadata";
        new.iter().filter(is_rest).ne(old.iter().filter(is_rest))
    };
    resource == Resource::EndpointSlice && (labels(new) != labels(old) || differ())
}
