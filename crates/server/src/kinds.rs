//! What each kind adds to the common rules: defaults, validation, what an update may change.

pub(crate) mod namespace;
pub(crate) mod service;

mod endpoint_slice;
mod network;
mod node;
pub(crate) mod service_cidr;

use portolan_ipam::check::Neighbours;

use crate::{
    error::FieldError,
    json::{self, Object},
    resource::Resource,
};

/// Fills in what the client left out. Services are defaulted in [`service`], where families are decided.
pub(crate) fn set_defaults(resource: Resource, object: &mut Object) {
    match resource {
        Resource::EndpointSlice => endpoint_slice::set_defaults(object),
        Resource::Node => node::set_defaults(object),
        Resource::ServiceCidr => service_cidr::set_defaults(object),
        _ => {}
    }
}

/// Everything that is wrong with the object beside its metadata; `old` is the stored object on update.
pub(crate) fn validate(resource: Resource, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    match resource {
        Resource::Service => service::validate(object, old),
        Resource::EndpointSlice => endpoint_slice::validate(object, old),
        Resource::Node => node::validate(object),
        Resource::ServiceCidr => service_cidr::validate(object, old, Neighbours::default()),
        _ => Vec::new(),
    }
}

/// The address that an endpoint can have, by this text.
pub(crate) fn usable_address(text: &str) -> Option<std::net::IpAddr> {
    network::parse_address(text).filter(|address| network::unusable(*address).is_none())
}

/// Whether an update changes what `metadata.generation` counts: anything outside metadata, or the labels.
pub(crate) fn bumps_generation(resource: Resource, new: &Object, old: &Object) -> bool {
    let labels = |object| json::object(object, "metadata").and_then(|metadata| metadata.get("labels"));
    let rest = |object: &'_ Object| {
        let mut members: Vec<_> = object.clone().into_iter().filter(|(key, _)| key != "metadata").collect();
        members.sort_by(|left, right| left.0.cmp(&right.0));
        members
    };
    resource == Resource::EndpointSlice && (labels(new) != labels(old) || rest(new) != rest(old))
}
