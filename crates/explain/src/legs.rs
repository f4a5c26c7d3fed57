//! The parts of a packet's path through the hooks of the kernel, by mode.
//!
//! ```text
//!                from elsewhere                                       from this node
//! translated by  prerouting*, forward, postrouting                    output*, postrouting
//! conntrack      prerouting*, input, to this node                     output*, postrouting, prerouting, input, to itself
//! by IPVS        prerouting, input*, output, postrouting              output*, output, postrouting
//!                prerouting, input*, to this node                     output*, postrouting, prerouting, input, to itself
//! ```
//!
//! Before prerouting and after postrouting are the hooks of devices, ingress and egress.
//!
//! The star marks the hook in which the destination is translated. To IPVS every address of a Service is one of this node. A packet that it
//! translates does not pass forward; it is sent from the beginning of output, unless the endpoint is this node.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_firewall::{Hook, Packet, Passage};
use portolan_model::Backend;
use portolan_model::verdict::Fate;

use crate::facts::Facts;
use crate::report::ClientKind;
use crate::resolve::Asked;

/// Most endpoints for which rules are evaluated.
pub(crate) const MOST_ENDPOINTS: usize = 64;

/// Name of the loopback interface.
const LOOPBACK: &str = "lo";

const ARRIVING: [Passage; 3] =
    [Passage::Tracked(Hook::Ingress), Passage::Tracked(Hook::Prerouting), Passage::Tracked(Hook::Input)];
const FORWARDED: [Passage; 5] = [
    Passage::Tracked(Hook::Ingress),
    Passage::Tracked(Hook::Prerouting),
    Passage::Tracked(Hook::Forward),
    Passage::Tracked(Hook::Postrouting),
    Passage::Tracked(Hook::Egress),
];
const TO_IPVS: [Passage; 3] = [
    Passage::Untranslated(Hook::Ingress),
    Passage::Untranslated(Hook::Prerouting),
    Passage::BeforeIpvs(Hook::Input),
];
/// The last hooks of packets that leave.
const SENT: [Passage; 2] = [Passage::Tracked(Hook::Postrouting), Passage::Tracked(Hook::Egress)];
/// Those of packets that IPVS translates and that stay on this node.
const TO_ITSELF: [Passage; 3] =
    [Passage::AfterIpvs(Hook::Output), Passage::Tracked(Hook::Postrouting), Passage::Tracked(Hook::Egress)];

/// A part of the path: the packet before and after its destination is translated, and the hooks that it passes.
pub(crate) struct Leg {
    pub(crate) before: Packet,
    pub(crate) after: Packet,
    pub(crate) passages: &'static [Passage],
    pub(crate) endpoint: Option<SocketAddr>,
}

/// Returns the endpoints for which rules are evaluated.
pub(crate) fn endpoints(fate: &Fate) -> impl Iterator<Item = SocketAddr> {
    backends(fate).iter().take(MOST_ENDPOINTS).map(Backend::socket)
}

/// Returns the number of endpoints for which no rules are evaluated.
pub(crate) fn unevaluated(fate: &Fate) -> usize {
    backends(fate).len().saturating_sub(MOST_ENDPOINTS)
}

fn backends(fate: &Fate) -> &[Backend] {
    match fate {
        Fate::Backends { set, .. } => set.as_slice(),
        Fate::Reject | Fate::Drop | Fate::NotOurs => &[],
    }
}

/// Returns the parts of the path to each endpoint, or to the destination if Services do not affect the packet. There are none
/// for packets that Services reject or drop.
pub(crate) fn legs(asked: &Asked<'_>, facts: &Facts<'_>, fate: &Fate) -> Vec<Leg> {
    let origin = Origin::of(asked);
    let of_service = matches!(fate, Fate::Backends { .. });
    let describe = |destination| Packet { of_service, ..describe(asked, facts, destination) };
    let before = describe(asked.destination);
    let is_here = |endpoint: SocketAddr| facts.node.has(endpoint.ip());
    match fate {
        Fate::Reject | Fate::Drop => Vec::new(),
        Fate::NotOurs => path(origin, asked.is_virtual || is_here(asked.destination), &before, &before, None),
        Fate::Backends { masqueraded, .. } if asked.view.differences.hides_clients => {
            // The relay receives the packet, and connects to the endpoint itself.
            let to_endpoint = |(endpoint, &masqueraded): (SocketAddr, &bool)| {
                let packet = by_relay(asked, describe(endpoint), masqueraded);
                path(Origin::Node, is_here(endpoint), &packet, &packet, Some(endpoint))
            };
            let to_endpoints = endpoints(fate).zip(masqueraded).flat_map(to_endpoint);
            let masqueraded = asked.view.in_kube_proxys_chains.then_some(false);
            let before = Packet { masqueraded, ..before };
            let to_relay = path(origin, true, &before, &at_relay(asked, &before), None);
            to_relay.into_iter().chain(to_endpoints).collect()
        }
        Fate::Backends { masqueraded, .. } if asked.view.differences.refuses_at_virtual_addresses => {
            let to_endpoint = |(endpoint, &leaves_masqueraded): (SocketAddr, &bool)| {
                let after = Packet { leaves_masqueraded, ..describe(endpoint) };
                through_ipvs(origin, is_here(endpoint), &before, &after, endpoint)
            };
            endpoints(fate).zip(masqueraded).flat_map(to_endpoint).collect()
        }
        Fate::Backends { masqueraded, .. } => {
            let to_endpoint = |(endpoint, &leaves_masqueraded): (SocketAddr, &bool)| {
                let masqueraded = asked.view.in_kube_proxys_chains.then_some(leaves_masqueraded);
                let before = Packet { masqueraded, ..before.clone() };
                let after =
                    Packet { translated: true, masqueraded, leaves_masqueraded, ..describe(endpoint) };
                path(origin, is_here(endpoint), &before, &after, Some(endpoint))
            };
            endpoints(fate).zip(masqueraded).flat_map(to_endpoint).collect()
        }
    }
}

/// Describes the packet as it arrives at the relay. If it is redirected there, connection tracking has translated it to an
/// address of this node.
fn at_relay(asked: &Asked<'_>, before: &Packet) -> Packet {
    let Some(ports) = &asked.view.redirected_to else { return before.clone() };
    Packet {
        destination: asked.view.settings.node_ip.map(host),
        port: Some(ports.clone()),
        translated: true,
        destination_is_local: Some(true),
        ..before.clone()
    }
}

/// Describes the packet that the relay sends to an endpoint, with the client's address as source unless it is masqueraded.
fn by_relay(asked: &Asked<'_>, packet: Packet, masqueraded: bool) -> Packet {
    let packet = Packet { input: Some(Vec::new()), from_elsewhere: false, ..packet };
    if !masqueraded {
        return packet;
    }
    let source = asked.view.settings.node_ip.map(IpNet::from);
    Packet { source, source_is_local: Some(true), ..packet }
}

/// Where a packet enters the hooks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Node,
    Elsewhere,
}

impl Origin {
    fn of(asked: &Asked<'_>) -> Self {
        if asked.client.kind == ClientKind::Node { Self::Node } else { Self::Elsewhere }
    }
}

/// Returns the hooks that a packet passes, to this node if `is_here`. What the node sends to itself leaves and arrives
/// through the loopback interface.
fn path(
    origin: Origin,
    is_here: bool,
    before: &Packet,
    after: &Packet,
    endpoint: Option<SocketAddr>,
) -> Vec<Leg> {
    let leg = |before: Packet, after: Packet, passages| Leg { before, after, passages, endpoint };
    match (origin, is_here) {
        (Origin::Node, _) => {
            // Output sees the interface of the route to the address before its translation, also in chains that are called after it.
            let is_local = before.destination_is_local;
            let (routed, sent) = (leaving(after, is_local), leaving(after, Some(is_here)));
            let mut legs = vec![
                leg(leaving(before, is_local), routed, &[Passage::Tracked(Hook::Output)]),
                leg(sent.clone(), sent, &SENT),
            ];
            if is_here {
                let arriving = from_loopback(after);
                legs.push(leg(arriving.clone(), arriving, &ARRIVING));
            }
            legs
        }
        (Origin::Elsewhere, true) => vec![leg(before.clone(), after.clone(), &ARRIVING)],
        (Origin::Elsewhere, false) => {
            let after = Packet { to_elsewhere: true, ..after.clone() };
            vec![leg(before.clone(), after, &FORWARDED)]
        }
    }
}

/// Returns the hooks that a packet passes if IPVS translates it. Connection tracking does not count it as translated.
fn through_ipvs(
    origin: Origin,
    is_here: bool,
    before: &Packet,
    after: &Packet,
    endpoint: SocketAddr,
) -> Vec<Leg> {
    let leg = |packet: Packet, passages| Leg {
        before: packet.clone(),
        after: packet,
        passages,
        endpoint: Some(endpoint),
    };
    let sent = |after: &Packet| {
        let after = Packet { to_elsewhere: true, ..after.clone() };
        vec![
            leg(Packet { input: Some(Vec::new()), ..after.clone() }, &[Passage::SentByIpvs(Hook::Output)]),
            // Not every kernel knows here where the packet arrived.
            leg(Packet { input: None, ..after }, &SENT),
        ]
    };
    let mut legs = match origin {
        // The address of the Service is one of this node, so the way to it is the loopback interface.
        Origin::Node => vec![leg(to_loopback(before), &[Passage::BeforeIpvs(Hook::Output)])],
        Origin::Elsewhere => vec![leg(before.clone(), &TO_IPVS)],
    };
    legs.extend(match (origin, is_here) {
        (_, false) => sent(after),
        (Origin::Elsewhere, true) => vec![leg(after.clone(), &[Passage::AfterIpvs(Hook::Input)])],
        (Origin::Node, true) => {
            vec![leg(to_loopback(after), &TO_ITSELF), leg(from_loopback(after), &ARRIVING)]
        }
    });
    legs
}

/// Describes the packet as it leaves to an address of this node, or to another one.
fn leaving(packet: &Packet, to_this_node: Option<bool>) -> Packet {
    match to_this_node {
        Some(true) => to_loopback(packet),
        Some(false) => Packet { to_elsewhere: true, ..packet.clone() },
        None => packet.clone(),
    }
}

fn to_loopback(packet: &Packet) -> Packet {
    Packet { output: Some(vec![LOOPBACK.to_owned()]), to_elsewhere: false, ..packet.clone() }
}

fn from_loopback(packet: &Packet) -> Packet {
    let (input, output) = (Some(vec![LOOPBACK.to_owned()]), Some(Vec::new()));
    // It was masqueraded when it left.
    let source = packet.source.filter(|_| !packet.leaves_masqueraded);
    Packet { input, output, source, from_elsewhere: false, to_elsewhere: false, ..packet.clone() }
}

/// Describes the packet with this destination.
fn describe(asked: &Asked<'_>, facts: &Facts<'_>, destination: SocketAddr) -> Packet {
    let input = asked.input.clone().map(|name| vec![name]);
    let is_of_node = Origin::of(asked) == Origin::Node;
    let is_virtual = asked.is_virtual && destination.ip() == asked.destination.ip();
    Packet {
        input: if is_of_node { Some(Vec::new()) } else { input },
        from_elsewhere: !is_of_node,
        source_is_local: Some(is_of_node),
        destination_is_local: Some(is_virtual || facts.node.has(destination.ip())),
        source: (!asked.client.example).then(|| host(asked.client.address)),
        destination: Some(host(destination.ip())),
        protocol: Some(asked.protocol.number()),
        port: Some(destination.port()..=destination.port()),
        established: asked.established,
        ..Packet::of(asked.family)
    }
}

fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}
