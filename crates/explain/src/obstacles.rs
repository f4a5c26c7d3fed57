//! Rules of other programs that stop, redirect or exempt the packet.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portolan_firewall::{Effect, Hit, Kind, Owner, Ruleset, along};
use portolan_model::verdict::Fate;

use crate::facts::Facts;
use crate::legs::{MOST_ENDPOINTS, endpoints, legs, unevaluated};
use crate::report::{Note, Obstacle, ObstacleKind, ReversePath, Routing};
use crate::resolve::Asked;

/// The code of the note on network policies.
pub(crate) const POLICIES_NOTE: &str = "policies-not-evaluated";

/// What rules of other programs do to a packet.
#[derive(Debug, Default)]
pub(crate) struct Firewall {
    pub(crate) obstacles: Vec<Obstacle>,
    /// The programs whose network policies it passes. They are not evaluated.
    pub(crate) policies: BTreeSet<Owner>,
}

/// Returns what rules of other programs do to the packet, and adds notes on what is not evaluated. Nothing is evaluated for
/// packets that Services reject or drop.
pub(crate) fn firewall(
    asked: &Asked<'_>,
    facts: &Facts<'_>,
    fate: &Fate,
    rules: &Ruleset,
    notes: &mut Vec<Note>,
) -> Firewall {
    let left = unevaluated(fate);
    if left > 0 {
        let text = format!(
            "rules of other programs were looked at for the first {MOST_ENDPOINTS} endpoints only; {left} more endpoints \
             may get the packet"
        );
        notes.push(Note::new("firewall-some-endpoints", text));
    }
    let firewall = evaluated(asked, facts, fate, rules);
    if !firewall.policies.is_empty() {
        let owners = names(&firewall.policies);
        let text = format!("the network policies of {owners} were not evaluated; they may stop the packet");
        notes.push(Note::new(POLICIES_NOTE, text));
    }
    firewall
}

/// Returns the names of programs.
pub(crate) fn names(owners: &BTreeSet<Owner>) -> String {
    let names: Vec<String> = owners.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

fn evaluated(asked: &Asked<'_>, facts: &Facts<'_>, fate: &Fate, rules: &Ruleset) -> Firewall {
    let all: BTreeSet<SocketAddr> = endpoints(fate).collect();
    let mut policies = BTreeSet::new();
    let mut found: Vec<(Obstacle, BTreeSet<SocketAddr>)> = Vec::new();
    for leg in legs(asked, facts, fate) {
        let affected = leg.endpoint.map_or_else(|| all.clone(), |endpoint| BTreeSet::from([endpoint]));
        for hit in along(rules, &leg.before, &leg.after, leg.passages) {
            let Some(obstacle) = obstacle(&hit, &mut policies) else { continue };
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
    Firewall { obstacles: found.into_iter().map(with_endpoints).collect(), policies }
}

/// What may stop the packet besides Services.
#[derive(Clone, Copy)]
pub(crate) struct Foreign<'a> {
    pub(crate) rules: &'a [Obstacle],
    pub(crate) policies: &'a BTreeSet<Owner>,
    pub(crate) filters: &'a [ReversePath],
    pub(crate) routing: &'a [Routing],
    /// True if connection tracking must see the packets of Services.
    pub(crate) needs_tracking: bool,
}

/// How a packet to endpoints certainly ends without reaching them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is dropped.
    Dropped(By),
    /// It is refused with an answer.
    Refused(By),
    /// A rule of another program takes it before Services do.
    Taken,
}

/// What stops a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Rule,
    Filter,
    Routing,
}

impl Foreign<'_> {
    /// Returns how the packet is certainly stopped whatever its endpoint; `None` if it may arrive, or if there are endpoints for
    /// which no rules are evaluated.
    pub(crate) fn stops(&self, fate: &Fate) -> Option<Stop> {
        if unevaluated(fate) > 0 {
            return None;
        }
        let stops: Option<Vec<Stop>> = endpoints(fate).map(|endpoint| self.stops_to(endpoint)).collect();
        let stops = stops?;
        let (first, rest) = stops.split_first()?;
        // A packet that is dropped on one of the ways is dropped at times.
        let dropped = stops.iter().find(|stop| matches!(stop, Stop::Dropped(_)));
        let all_same = rest.iter().all(|stop| stop == first);
        Some(if all_same { *first } else { *dropped.unwrap_or(first) })
    }

    fn stops_to(&self, endpoint: SocketAddr) -> Option<Stop> {
        let concerns = |endpoints: &[SocketAddr]| endpoints.is_empty() || endpoints.contains(&endpoint);
        let certain = || self.rules.iter().filter(|rule| rule.certain && concerns(&rule.endpoints));
        // The packet is routed and filtered after its translation.
        if certain().any(|rule| self.takes(rule.kind)) {
            return Some(Stop::Taken);
        }
        if self.filters.iter().any(|filter| filter.certainly_drops_packet_to(endpoint)) {
            return Some(Stop::Dropped(By::Filter));
        }
        if let Some(routing) = self.routing.iter().find(|routing| concerns(&routing.endpoints)) {
            let by = By::Routing;
            return Some(if routing.answers { Stop::Refused(by) } else { Stop::Dropped(by) });
        }
        certain().find_map(|rule| match rule.kind {
            ObstacleKind::Drops => Some(Stop::Dropped(By::Rule)),
            ObstacleKind::Rejects => Some(Stop::Refused(By::Rule)),
            ObstacleKind::Redirects
            | ObstacleKind::NotTracked
            | ObstacleKind::NotTranslated
            | ObstacleKind::NotJudged => None,
        })
    }

    /// Returns true if Services do not get a packet after such a rule.
    const fn takes(&self, kind: ObstacleKind) -> bool {
        match kind {
            ObstacleKind::Redirects | ObstacleKind::NotTranslated => true,
            ObstacleKind::NotTracked => self.needs_tracking,
            ObstacleKind::Drops | ObstacleKind::Rejects | ObstacleKind::NotJudged => false,
        }
    }
}

/// Returns what a rule does. Network policies are no rule: their program is added to a list.
fn obstacle(hit: &Hit<'_>, policies: &mut BTreeSet<Owner>) -> Option<Obstacle> {
    let rejects = hit.rule.is_some_and(|rule| rule.effect == Effect::Reject);
    let mut only_if: Vec<String> = hit.only_if.iter().map(ToString::to_string).collect();
    // Outside of chains of type nat it is passed to a socket, if there is one.
    let needs_socket = hit.kind == Kind::Redirect && !hit.base.base.is_some_and(|base| base.nat);
    only_if.extend(needs_socket.then(|| "a process listens there".to_owned()));
    Some(Obstacle {
        kind: match hit.kind {
            Kind::Stop if rejects => ObstacleKind::Rejects,
            Kind::Stop => ObstacleKind::Drops,
            Kind::Redirect => ObstacleKind::Redirects,
            Kind::NoTrack => ObstacleKind::NotTracked,
            Kind::NotTranslated => ObstacleKind::NotTranslated,
            Kind::NotJudged => ObstacleKind::NotJudged,
            Kind::Policies(owner) => {
                policies.insert(owner);
                return None;
            }
        },
        certain: hit.is_certain() && !needs_socket && hit.kind != Kind::NotJudged,
        owner: Owner::of(&hit.chain.place, &hit.chain.name).to_string(),
        chain: hit.chain.to_string(),
        rule: hit.rule.map(ToString::to_string),
        only_if,
        endpoints: Vec::new(),
    })
}
