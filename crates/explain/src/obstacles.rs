//! Rules of other programs that stop, redirect or exempt the packet.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_firewall::{Effect, Hit, Hook, Kind, Owner, Packet, Ruleset, along};
use portolan_model::Backend;
use portolan_model::verdict::Fate;

use crate::facts::Facts;
use crate::report::{ClientKind, Note, Obstacle, ObstacleKind, ReversePath};
use crate::resolve::Asked;

/// Most endpoints for which rules are evaluated.
const MOST_ENDPOINTS: usize = 64;

/// Name of the loopback interface.
const LOOPBACK: &str = "lo";

/// A part of the path: the packet before and after its destination is translated, and the hooks that it passes.
struct Leg {
    before: Packet,
    after: Packet,
    hooks: &'static [Hook],
    endpoint: Option<SocketAddr>,
}

/// Returns what rules of other programs do to the packet, and adds a note on what is not evaluated. Nothing is evaluated for
/// packets that Services reject or drop. `None` if the mode lets packets pass hooks that are not known here.
pub(crate) fn firewall(
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    fate: &Fate,
    rules: &Ruleset,
    notes: &mut Vec<Note>,
) -> Option<Vec<Obstacle>> {
    if asked.view.differences.refuses_at_virtual_addresses {
        // The addresses of Services are local, so packets meet the hook INPUT before they are translated.
        let text = "rules of other programs were not looked at: in this mode packets to Services pass other hooks of the \
                    kernel, which are not evaluated";
        notes.push(Note::new("firewall-not-evaluated", text));
        return None;
    }
    let left = unevaluated(fate);
    if left > 0 {
        let text = format!(
            "rules of other programs were looked at for the first {MOST_ENDPOINTS} endpoints only; {left} more endpoints \
             may get the packet"
        );
        notes.push(Note::new("firewall-some-endpoints", text));
    }
    Some(obstacles(asked, facts, fate, rules))
}

fn obstacles(asked: &Asked<'_>, facts: &Facts<'_>, fate: &Fate, rules: &Ruleset) -> Vec<Obstacle> {
    let all: BTreeSet<SocketAddr> = endpoints(fate).collect();
    let mut found: Vec<(Obstacle, BTreeSet<SocketAddr>)> = Vec::new();
    for leg in legs(asked, facts, fate) {
        let affected = leg.endpoint.map_or_else(|| all.clone(), |endpoint| BTreeSet::from([endpoint]));
        for hit in along(rules, &leg.before, &leg.after, leg.hooks) {
            let obstacle = obstacle(&hit);
            match found.iter_mut().find(|(known, _)| *known == obstacle) {
                Some((_, endpoints)) => endpoints.extend(&affected),
                None => found.push((obstacle, affected.clone())),
            }
        }
    }
    let is_complete = unevaluated(fate) == 0;
    let with_endpoints = |(obstacle, endpoints): (Obstacle, BTreeSet<SocketAddr>)| {
        let affects_all = is_complete && endpoints == all;
        let endpoints = if affects_all { Vec::new() } else { endpoints.into_iter().collect() };
        Obstacle { endpoints, ..obstacle }
    };
    found.into_iter().map(with_endpoints).collect()
}

/// Returns how the packet is certainly stopped whatever its endpoint, by rules or by a reverse-path filter; `None` if it may
/// arrive, or if there are endpoints for which no rules are evaluated.
pub(crate) fn stops(obstacles: &[Obstacle], filters: &[ReversePath], fate: &Fate) -> Option<ObstacleKind> {
    if unevaluated(fate) > 0 {
        return None;
    }
    let stopping = |endpoint: SocketAddr| {
        if filters.iter().any(|filter| filter.certainly_drops_packet_to(endpoint)) {
            return Some(ObstacleKind::Drops);
        }
        let mut certain = obstacles.iter().filter(|obstacle| obstacle.certain);
        let found = certain.find(|obstacle| {
            matches!(obstacle.kind, ObstacleKind::Drops | ObstacleKind::Rejects)
                && (obstacle.endpoints.is_empty() || obstacle.endpoints.contains(&endpoint))
        });
        found.map(|obstacle| obstacle.kind)
    };
    let kinds: Option<Vec<ObstacleKind>> = endpoints(fate).map(stopping).collect();
    let kinds = kinds.filter(|kinds| !kinds.is_empty())?;
    let all_reject = kinds.iter().all(|kind| *kind == ObstacleKind::Rejects);
    Some(if all_reject { ObstacleKind::Rejects } else { ObstacleKind::Drops })
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

fn legs(asked: &Asked<'_>, facts: &Facts<'_>, fate: &Fate) -> Vec<Leg> {
    let origin = Origin::of(asked);
    let before = describe(asked, asked.destination);
    match fate {
        Fate::Reject | Fate::Drop => Vec::new(),
        Fate::NotOurs => {
            let is_here = facts.node.has(asked.destination.ip());
            path(origin, is_here, &before, &before, None)
        }
        Fate::Backends { .. } if asked.view.differences.hides_clients => {
            // The relay receives the packet, and connects to the endpoint itself.
            let to_endpoint = |endpoint: SocketAddr| {
                let packet = Packet {
                    input: Some(Vec::new()),
                    source: asked.view.settings.node_ip.map(IpNet::from),
                    ..describe(asked, endpoint)
                };
                path(Origin::Node, facts.node.has(endpoint.ip()), &packet, &packet, Some(endpoint))
            };
            let to_relay = path(origin, true, &before, &before, None);
            to_relay.into_iter().chain(endpoints(fate).flat_map(to_endpoint)).collect()
        }
        Fate::Backends { .. } => {
            let to_endpoint = |endpoint: SocketAddr| {
                let after = Packet { translated: true, ..describe(asked, endpoint) };
                path(origin, facts.node.has(endpoint.ip()), &before, &after, Some(endpoint))
            };
            endpoints(fate).flat_map(to_endpoint).collect()
        }
    }
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
    let leg = |before: Packet, after: Packet, hooks| Leg { before, after, hooks, endpoint };
    let loopback = || Some(vec![LOOPBACK.to_owned()]);
    match (origin, is_here) {
        (Origin::Node, true) => {
            let leaving = |packet: &Packet| Packet { output: loopback(), ..packet.clone() };
            let arriving = Packet { input: loopback(), output: Some(Vec::new()), ..after.clone() };
            vec![
                leg(leaving(before), leaving(after), &[Hook::Output, Hook::Postrouting]),
                leg(arriving.clone(), arriving, &[Hook::Prerouting, Hook::Input]),
            ]
        }
        (Origin::Node, false) => vec![leg(before.clone(), after.clone(), &[Hook::Output, Hook::Postrouting])],
        (Origin::Elsewhere, true) => {
            vec![leg(before.clone(), after.clone(), &[Hook::Prerouting, Hook::Input])]
        }
        (Origin::Elsewhere, false) => {
            vec![leg(before.clone(), after.clone(), &[Hook::Prerouting, Hook::Forward, Hook::Postrouting])]
        }
    }
}

/// Describes the packet with this destination.
fn describe(asked: &Asked<'_>, destination: SocketAddr) -> Packet {
    let input = asked.input.clone().map(|name| vec![name]);
    Packet {
        input: if Origin::of(asked) == Origin::Node { Some(Vec::new()) } else { input },
        source: (!asked.client.example).then(|| host(asked.client.address)),
        destination: Some(host(destination.ip())),
        protocol: Some(asked.protocol.number()),
        port: Some(destination.port()..=destination.port()),
        ..Packet::of(asked.family)
    }
}

fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

fn obstacle(hit: &Hit<'_>) -> Obstacle {
    let rejects = hit.rule.is_some_and(|rule| rule.effect == Effect::Reject);
    Obstacle {
        kind: match hit.kind {
            Kind::Stop if rejects => ObstacleKind::Rejects,
            Kind::Stop => ObstacleKind::Drops,
            Kind::Redirect => ObstacleKind::Redirects,
            Kind::NoTrack => ObstacleKind::NotTracked,
        },
        certain: hit.is_certain(),
        owner: Owner::of(&hit.chain.place, &hit.chain.name).to_string(),
        chain: hit.chain.to_string(),
        rule: hit.rule.map(ToString::to_string),
        only_if: hit.only_if.iter().map(ToString::to_string).collect(),
        endpoints: Vec::new(),
    }
}
