//! Rules of other programs that stop, redirect or exempt the packet.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portolan_firewall::{Effect, Hit, Kind, Owner, Ruleset, along};
use portolan_model::verdict::Fate;

use crate::facts::Facts;
use crate::legs::{MOST_ENDPOINTS, endpoints, legs, unevaluated};
use crate::report::{Note, Obstacle, ObstacleKind, ReversePath};
use crate::resolve::Asked;

/// Returns what rules of other programs do to the packet, and adds a note on what is not evaluated. Nothing is evaluated for
/// packets that Services reject or drop.
pub(crate) fn firewall(
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    fate: &Fate,
    rules: &Ruleset,
    notes: &mut Vec<Note>,
) -> Vec<Obstacle> {
    let left = unevaluated(fate);
    if left > 0 {
        let text = format!(
            "rules of other programs were looked at for the first {MOST_ENDPOINTS} endpoints only; {left} more endpoints \
             may get the packet"
        );
        notes.push(Note::new("firewall-some-endpoints", text));
    }
    obstacles(asked, facts, fate, rules)
}

fn obstacles(asked: &Asked<'_>, facts: &Facts<'_>, fate: &Fate, rules: &Ruleset) -> Vec<Obstacle> {
    let all: BTreeSet<SocketAddr> = endpoints(fate).collect();
    let mut found: Vec<(Obstacle, BTreeSet<SocketAddr>)> = Vec::new();
    for leg in legs(asked, facts, fate) {
        let affected = leg.endpoint.map_or_else(|| all.clone(), |endpoint| BTreeSet::from([endpoint]));
        for hit in along(rules, &leg.before, &leg.after, leg.passages) {
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
