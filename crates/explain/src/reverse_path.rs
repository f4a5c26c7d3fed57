//! Packets and answers that a reverse-path filter of this node drops (Linux, `Documentation/networking/ip-sysctl.rst`,
//! `rp_filter`). IPv6 has no such filter.
//!
//! The filter decides when the kernel routes the packet, which has its translated destination then. Nothing is said of a
//! packet if the interface at which it arrives is not known.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use portolan_model::catalog::ExplainedPort;
use portolan_model::verdict::Fate;

use crate::facts::{Facts, Filter, Routes, Strictness, Way};
use crate::legs::{endpoints, unevaluated};
use crate::report::{ClientKind, Filtered, ReversePath};
use crate::resolve::Asked;

/// Name of the loopback interface, at which no packet from outside arrives.
const LOOPBACK: &str = "lo";

/// Returns what reverse-path filters drop: the packet, or answers of endpoints on other nodes.
pub(crate) fn reverse_path(
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    fate: &Fate,
    explained: Option<&ExplainedPort>,
) -> Vec<ReversePath> {
    let Some(routes) = facts.routes else { return Vec::new() };
    let mut found: Vec<ReversePath> = of_packet(asked, facts, fate, routes).into_iter().collect();
    found.extend(of_answers(asked, facts, fate, explained, routes));
    found
}

/// Returns the filter that drops the packet of the client.
fn of_packet(asked: &Asked<'_>, facts: &Facts<'_>, fate: &Fate, routes: &dyn Routes) -> Option<ReversePath> {
    let interface = asked.input.as_deref().filter(|_| asked.client.kind != ClientKind::Node)?;
    let IpAddr::V4(source) = asked.client.address else { return None };
    // An example has no route of its own, and a packet with an address of this node is dropped for another reason.
    if asked.client.example || facts.node.has(source.into()) {
        return None;
    }
    let Filter { strictness, setting } = routes.filter(interface)?;
    let way = routes.way_to(source);
    let own = if let Way::Through { source, .. } = &way { *source } else { None };
    let route = match (way, strictness) {
        (_, Strictness::Off) | (Way::Unknown, _) | (Way::Through { .. }, Strictness::Loose) => return None,
        (Way::None, _) => None,
        (Way::Through { interface: back, .. }, Strictness::Strict) => Some(back),
    };
    if route.as_deref() == Some(interface) {
        return None;
    }
    // Other routes count, too: those of several ways, and those for one destination. The kernel knows them all.
    let is_dropped = |destination: IpAddr| match destination {
        IpAddr::V4(destination) => routes.accepts(interface, source, destination) == Some(false),
        IpAddr::V6(_) => false,
    };
    let dropped = match fate {
        Fate::Reject | Fate::Drop => return None,
        Fate::NotOurs => is_dropped(asked.destination.ip()).then(Vec::new)?,
        // This node is the destination.
        Fate::Backends { .. } if asked.view.differences.hides_clients => {
            own.is_none_or(|own| is_dropped(own.into())).then(Vec::new)?
        }
        Fate::Backends { .. } if asked.view.differences.refuses_at_virtual_addresses => {
            is_dropped(asked.destination.ip()).then(Vec::new)?
        }
        Fate::Backends { .. } => {
            let dropped: Vec<SocketAddr> = endpoints(fate).filter(|one| is_dropped(one.ip())).collect();
            if dropped.is_empty() {
                return None;
            }
            let is_all = unevaluated(fate) == 0 && dropped.len() == endpoints(fate).count();
            if is_all { Vec::new() } else { dropped }
        }
    };
    Some(ReversePath {
        drops: Filtered::Packet,
        certain: true,
        interface: interface.to_owned(),
        setting,
        address: source.into(),
        route,
        endpoints: dropped,
    })
}

/// Returns the filters that drop answers. An answer to an address of this node may arrive at the interface that has the
/// address, while the route to the endpoint leads through another one.
fn of_answers(
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    fate: &Fate,
    explained: Option<&ExplainedPort>,
    routes: &dyn Routes,
) -> Vec<ReversePath> {
    let Fate::Backends { masqueraded, .. } = fate else { return Vec::new() };
    let mut found: Vec<ReversePath> = Vec::new();
    for (endpoint, masqueraded) in endpoints(fate).zip(masqueraded) {
        let IpAddr::V4(address) = endpoint.ip() else { continue };
        if is_local(explained, endpoint) || facts.node.has(endpoint.ip()) {
            continue;
        }
        let Way::Through { interface: route, source } = routes.way_to(address) else { continue };
        let Some(own) = source_to(asked, *masqueraded, &route, source, routes) else { continue };
        let Some(interface) = routes.holder(own).filter(|name| *name != route && name != LOOPBACK) else {
            continue;
        };
        let Some(Filter { strictness: Strictness::Strict, setting }) = routes.filter(&interface) else {
            continue;
        };
        let one = ReversePath {
            drops: Filtered::Answer,
            certain: false,
            interface,
            setting,
            address: own.into(),
            route: Some(route),
            endpoints: Vec::new(),
        };
        let is_same =
            |known: &&mut ReversePath| ReversePath { endpoints: Vec::new(), ..(**known).clone() } == one;
        match found.iter_mut().find(is_same) {
            Some(known) => known.endpoints.push(endpoint),
            None => found.push(ReversePath { endpoints: vec![endpoint], ..one }),
        }
    }
    found
}

/// Returns the address of this node that an endpoint sees as the source. `None` if it sees the client's, or if it is an address
/// of the interface through which the packet leaves.
fn source_to(
    asked: &Asked<'_>,
    masqueraded: bool,
    route: &str,
    of_route: Option<Ipv4Addr>,
    routes: &dyn Routes,
) -> Option<Ipv4Addr> {
    if masqueraded && asked.view.differences.hides_clients {
        return of_route;
    }
    if masqueraded {
        // Masquerading takes an address of the interface, whatever source the route names, if the interface has one.
        return of_route.filter(|_| !routes.has_address(route));
    }
    match asked.client.address {
        IpAddr::V4(address) if asked.client.kind == ClientKind::Node && !asked.client.example => {
            Some(address)
        }
        _ => None,
    }
}

fn is_local(explained: Option<&ExplainedPort>, endpoint: SocketAddr) -> bool {
    let mut all = explained.iter().flat_map(|explained| &explained.selection.endpoints);
    all.any(|one| one.endpoint.local && one.endpoint.backend.socket() == endpoint)
}
