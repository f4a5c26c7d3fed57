//! Endpoints to which this node does not send a packet, by its routes and settings.
//!
//! The kernel routes a packet after the translation of its destination.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portolan_model::verdict::Fate;

use crate::facts::{Facts, Lead, Routes};
use crate::legs::{endpoints, unevaluated};
use crate::report::{ClientKind, Routing, RoutingFault};
use crate::resolve::Asked;

/// Returns why the node does not send the packet to endpoints that are to get it.
pub(crate) fn routing(asked: &Asked<'_>, facts: &Facts<'_>, fate: &Fate) -> Vec<Routing> {
    let Some(routes) = facts.routes else { return Vec::new() };
    let way = Way::of(asked);
    let all: BTreeSet<SocketAddr> = endpoints(fate).collect();
    let mut found: Vec<Routing> = Vec::new();
    // A packet to an endpoint on this node is neither forwarded nor sent.
    for endpoint in all.iter().filter(|endpoint| !facts.node.has(endpoint.ip())) {
        let Some(fault) = way.fault(asked, routes, endpoint.ip()) else { continue };
        match found.iter_mut().find(|known| Routing { endpoints: Vec::new(), ..(**known).clone() } == fault) {
            Some(known) => known.endpoints.push(*endpoint),
            None => found.push(Routing { endpoints: vec![*endpoint], ..fault }),
        }
    }
    if let [only] = found.as_mut_slice()
        && unevaluated(fate) == 0
        && only.endpoints.len() == all.len()
    {
        only.endpoints.clear();
    }
    found
}

/// How packets to endpoints on other hosts and in pods come to the node's routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The node sends them: a process or the relay.
    Sent,
    /// The node sends them in the place of a client: IPVS.
    SentAnew,
    /// The node forwards them.
    Forwarded,
}

impl Way {
    fn of(asked: &Asked<'_>) -> Self {
        let differences = &asked.view.differences;
        if asked.client.kind == ClientKind::Node || differences.hides_clients {
            Self::Sent
        } else if differences.refuses_at_virtual_addresses {
            Self::SentAnew
        } else {
            Self::Forwarded
        }
    }

    fn fault(self, asked: &Asked<'_>, routes: &dyn Routes, endpoint: IpAddr) -> Option<Routing> {
        let interface = asked.input.as_deref();
        let fault = |fault| Routing { fault, answers: false, interface: None, endpoints: Vec::new() };
        if self == Self::Forwarded && routes.forwards(asked.family, interface) == Some(false) {
            let interface = interface.map(str::to_owned);
            return Some(Routing { interface, ..fault(RoutingFault::ForwardingOff) });
        }
        // Who sends a packet that is forwarded gets an ICMP error.
        let answers = self == Self::Forwarded;
        Some(match routes.lead(endpoint) {
            Lead::Unknown | Lead::On => return None,
            Lead::NoRoute => Routing { answers, ..fault(RoutingFault::NoRoute) },
            Lead::Refuses => Routing { answers, ..fault(RoutingFault::RouteRefuses) },
            Lead::Discards => fault(RoutingFault::RouteDiscards),
            Lead::NoCarrier { interface } => {
                Routing { interface: Some(interface), ..fault(RoutingFault::NoCarrier) }
            }
        })
    }
}
