//! The Service and the EndpointSlice by which a change is recognised: each change gives them another port and another endpoint.

use std::net::{IpAddr, Ipv4Addr};

use portolan_model::Event;
use serde_json::Value;

use crate::workload;

const SERVICE: &str = "marker";
/// The address of its Service.
const VIP: Ipv4Addr = Ipv4Addr::new(10, 111, 0, 6);
/// The endpoint before the first change.
const FIRST: u32 = u32::from_be_bytes([10, 200, 0, 0]);
/// The port before the first change.
const FIRST_PORT: u16 = 10_000;

/// The objects of a change that a node has heard of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Heard {
    slice: u16,
    service: u16,
}

/// Returns the EndpointSlice of a change.
pub(super) fn slice(change: u16) -> Value {
    let endpoint = Ipv4Addr::from_bits(FIRST.saturating_add(change.into()));
    workload::slice(workload::OWN, SERVICE, 0, &[endpoint])
}

/// Returns the Service of a change.
#[expect(clippy::indexing_slicing, reason = "these are objects, and an assignment adds what they lack")]
pub(super) fn service(change: u16) -> Value {
    let mut service = workload::service(workload::OWN, SERVICE, VIP);
    service["spec"]["ports"][0]["port"] = FIRST_PORT.saturating_add(change).into();
    service
}

impl Heard {
    /// Records an event, if it is of the marker.
    pub(super) fn record(&mut self, event: &Event) {
        match event {
            Event::EndpointSlice(slice) if slice.payload.service.as_deref() == Some(SERVICE) => {
                let endpoint = slice.payload.endpoints.first().map(|endpoint| endpoint.address);
                if let Some(IpAddr::V4(address)) = endpoint {
                    self.slice = u16::try_from(address.to_bits().saturating_sub(FIRST)).unwrap_or_default();
                }
            }
            Event::Service(service) if &*service.key.name == SERVICE => {
                let port = service.payload.ports.first().map(|port| port.port);
                self.service = port.unwrap_or_default().saturating_sub(FIRST_PORT);
            }
            _ => {}
        }
    }

    /// Returns true if the node has heard of this change of the EndpointSlice, and if `both`, of that of the Service.
    pub(super) fn is_of(self, change: u16, both: bool) -> bool {
        self.slice == change && (!both || self.service == change)
    }
}
