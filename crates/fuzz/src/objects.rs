//! API objects of every kind, in JSON and in protobuf, and the Catalog that they are applied to.

use portolan_model::object::{Encoded, EndpointSlice, Node, Object, Service, ServiceCidr};
use portolan_model::{Catalog, Event};

/// Decodes each part as every kind, and applies what it is. An input that begins with `k8s\0` is one message without an envelope.
pub(crate) fn run(bytes: &[u8]) {
    let mut catalog = Catalog::new("node");
    let mut take = |encoded: Encoded<'_>| {
        let events = [
            Object::<Service>::decode(encoded).ok().map(Event::Service),
            Object::<EndpointSlice>::decode(encoded).ok().map(Event::EndpointSlice),
            Object::<Node>::decode(encoded).ok().map(Event::Node),
            Object::<ServiceCidr>::decode(encoded).ok().map(Event::ServiceCidr),
        ];
        events.into_iter().flatten().for_each(|event| drop(catalog.apply(event)));
    };
    if let Some(message) = bytes.strip_prefix(b"k8s\0") {
        take(Encoded::Protobuf { kind: "", message });
    } else {
        bytes.split(|&byte| byte == 0).for_each(|part| take(Encoded::Json(part)));
    }
    catalog.take_changes();
}
