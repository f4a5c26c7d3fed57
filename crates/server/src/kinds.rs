//! What each kind adds to the common rules: defaults, validation, what an update may change.

pub(crate) mod namespace;
pub(crate) mod network;
pub(crate) mod service;
pub(crate) mod service_cidr;

mod endpoint_slice;
mod endpoints;
mod event;
mod ip_address;
mod lease;
mod node;

use portolan_ipam::check::Neighbours;

use crate::{
    error::FieldError,
    json::{self, Object},
    resource::Resource,
};

/// Fills in what the client left out, and takes out what it may not write; `old` is the stored object on update.
/// Services are prepared in [`service`], together with what they hold.
pub(crate) fn prepare(resource: Resource, object: &mut Object, old: Option<&Object>) {
    match resource {
        Resource::EndpointSlice => {
            endpoint_slice::set_defaults(object);
            endpoint_slice::drop_topology(object, old);
        }
        Resource::Endpoints => endpoints::set_defaults(object),
        Resource::Node => node::set_defaults(object),
        Resource::Namespace => namespace::prepare(object, old.is_none()),
        Resource::ServiceCidr => service_cidr::set_defaults(object),
        Resource::Service
        | Resource::IpAddress
        | Resource::Event
        | Resource::CoreEvent
        | Resource::Lease
        | Resource::NodePort => {}
    }
}

/// Everything that is wrong with the object beside its metadata; `old` is the stored object on update.
pub(crate) fn validate(resource: Resource, object: &Object, old: Option<&Object>) -> Vec<FieldError> {
    match resource {
        Resource::Service => service::validate(object, old),
        Resource::EndpointSlice => endpoint_slice::validate(object, old),
        Resource::Endpoints => endpoints::validate(object, old),
        Resource::Node => node::validate(object, old),
        Resource::Namespace => namespace::validate(object),
        Resource::ServiceCidr => service_cidr::validate(object, old, Neighbours::default()),
        Resource::IpAddress => ip_address::validate(object, old),
        Resource::Event | Resource::CoreEvent => event::validate(resource, object, old),
        Resource::Lease => lease::validate(object),
        Resource::NodePort => Vec::new(),
    }
}

/// Remarks on what is allowed but probably not meant, for the client to show.
pub(crate) fn warnings(resource: Resource, object: &Object) -> Vec<String> {
    match resource {
        Resource::Service => service::warnings(object),
        Resource::EndpointSlice => endpoint_slice::warnings(object),
        Resource::Endpoints => {
            vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_owned()]
        }
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
    let differ = || {
        let is_rest = |(name, _): &(&json::Text, &json::Value)| *name != "metadata";
        new.iter().filter(is_rest).ne(old.iter().filter(is_rest))
    };
    resource == Resource::EndpointSlice && (labels(new) != labels(old) || differ())
}
