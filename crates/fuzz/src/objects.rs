//! API objects of every kind, and the Catalog that they are applied to.

use portolan_model::object::{decode_endpoint_slice, decode_node, decode_service, decode_service_cidr};
use portolan_model::{Catalog, Event};

/// Decodes each part as every kind, and applies what it is.
pub(crate) fn run(bytes: &[u8]) {
    let mut catalog = Catalog::new("node");
    for part in bytes.split(|&byte| byte == 0) {
        let events = [
            decode_service(part).ok().map(Event::Service),
            decode_endpoint_slice(part).ok().map(Event::EndpointSlice),
            decode_node(part).ok().map(Event::Node),
            decode_service_cidr(part).ok().map(Event::ServiceCidr),
        ];
        events.into_iter().flatten().for_each(|event| drop(catalog.apply(event)));
    }
    catalog.take_changes();
}
