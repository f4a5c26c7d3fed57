//! Endpoint selection: which endpoints a Service port uses, for cluster-wide and for local traffic.
//!
//! The functions are pure and the same for every mode. Sources: KEP-2086 (internal policy), KEP-1669 (terminating
//! endpoints), KEP-2433 and KEP-3015 (hints). Hints are honoured regardless of the Service's own fields.
//!
//! [`select`] returns the endpoints in use. [`explain`] returns, for each endpoint, the [`Choice`] by which it is in
//! use or left out. Both apply the same rules.

mod choice;
mod explain;

use std::cmp::Ordering;
use std::net::IpAddr;

pub use choice::{Choice, HintKind, HintUse};
pub use explain::{Explained, Explanation, explain};

use crate::Backend;

/// How an endpoint's hints of one kind relate to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Hint {
    /// The endpoint has no such hints.
    #[default]
    Absent,
    /// The hints name only other nodes or zones.
    Elsewhere,
    /// The hints name this node or this node's zone.
    Here,
}

/// An endpoint with the conditions that selection reads.
#[expect(clippy::struct_excessive_bools, reason = "the conditions are independent of each other in the API")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The address and port.
    pub backend: Backend,
    /// True if the endpoint accepts new connections.
    pub ready: bool,
    /// True if the endpoint could accept connections, ready or not.
    pub serving: bool,
    /// True if the endpoint is shutting down.
    pub terminating: bool,
    /// True if the endpoint gets no new connections for a while because earlier ones failed. [`settle_aside`] decides
    /// whether this counts.
    pub aside: bool,
    /// True if the endpoint is on this node.
    pub local: bool,
    /// The node hints.
    pub node_hint: Hint,
    /// The zone hints.
    pub zone_hint: Hint,
}

impl Endpoint {
    /// Returns true if the endpoint is usable when none is ready: terminating and still serving.
    const fn is_fallback(&self) -> bool {
        !self.ready && self.serving && self.terminating
    }

    /// Returns true if the endpoint is ready and not set aside.
    const fn takes_connections(&self) -> bool {
        self.ready && !self.aside
    }

    /// Returns whether a list uses the endpoint, by its conditions. `any_ready` is true if an endpoint of the list takes
    /// connections.
    const fn choice(&self, any_ready: bool) -> Choice {
        match (self.ready, self.is_fallback()) {
            (true, _) if self.aside => Choice::SetAside,
            (true, _) => Choice::Ready,
            (false, true) if any_ready => Choice::Terminating,
            (false, true) => Choice::Fallback,
            (false, false) if self.terminating => Choice::NotServing,
            (false, false) => Choice::NotReady,
        }
    }

    /// Returns the rank among entries with equal address and port. The entry with the greatest rank is used.
    ///
    /// kube-proxy uses the last entry that is not terminating, or else the first, which depends on the order of the
    /// slices. This total order agrees with kube-proxy where the result is defined there, and decides the other
    /// cases: first entries that are not terminating, then ready, serving, local, and possible hairpins, and last the
    /// hints. Entries of equal rank are equal.
    pub(crate) const fn rank(&self) -> (bool, bool, bool, bool, bool, Hint, Hint) {
        let may_hairpin = self.backend.may_hairpin;
        (!self.terminating, self.ready, self.serving, self.local, may_hairpin, self.node_hint, self.zone_hint)
    }
}

/// The sets of endpoints that a Service port needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// True if some traffic uses endpoints of the whole cluster.
    pub cluster: bool,
    /// True if some traffic uses only endpoints of this node.
    pub local: bool,
}

/// The endpoints that a Service port uses, each list in the order of the input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// For traffic that may go to any node (`C`).
    pub cluster: Vec<Backend>,
    /// For traffic that must stay on this node (`L`).
    pub local: Vec<Backend>,
    /// True if there is a usable endpoint on any node (`A`).
    pub has_endpoints: bool,
}

impl Selection {
    /// Returns all endpoints in use (`U`), sorted by address and port.
    pub fn reachable(&self) -> Vec<Backend> {
        let mut all: Vec<Backend> = self.cluster.iter().chain(&self.local).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Sorts by address and port and keeps one entry of each, the one of the highest rank.
pub fn settle_duplicates(endpoints: &mut Vec<Endpoint>) {
    endpoints.sort_unstable_by(by_place_and_rank);
    endpoints.dedup_by(|later, kept| place(later) == place(kept));
}

/// Compares by address and port. Of entries with equal address and port, the one of the highest rank comes first.
fn by_place_and_rank(a: &Endpoint, b: &Endpoint) -> Ordering {
    place(a).cmp(&place(b)).then_with(|| b.rank().cmp(&a.rank()))
}

const fn place(endpoint: &Endpoint) -> (IpAddr, u16) {
    (endpoint.backend.address, endpoint.backend.port)
}

/// Decides which endpoints are set aside. `is_failing` names those whose connections fail. If all ready endpoints of a
/// list fail, none of them is set aside: a connection that may fail is better than one that does. The endpoints have no
/// duplicates.
pub fn settle_aside(endpoints: &mut [Endpoint], demand: Demand, is_failing: impl Fn(&Endpoint) -> bool) {
    for endpoint in &mut *endpoints {
        endpoint.aside = endpoint.ready && is_failing(endpoint);
    }
    if !endpoints.iter().any(|e| e.aside) {
        return;
    }
    let only_local = [false, true];
    for is_local in only_local.into_iter().filter(|is_local| demand.local || !is_local) {
        let is_in = |e: &Endpoint| e.ready && (e.local || !is_local);
        if endpoints.iter().filter(|e| is_in(e)).all(|e| e.aside) {
            endpoints.iter_mut().filter(|e| is_in(e)).for_each(|e| e.aside = false);
        }
    }
}

/// Selects among endpoints without duplicates.
pub fn select(endpoints: &[Endpoint], demand: Demand) -> Selection {
    let rules = Rules::of(endpoints, demand);
    let mut selection = Selection::default();
    if demand.cluster {
        selection.cluster = backends(endpoints, |e| rules.cluster(e).is_used());
        selection.has_endpoints = !selection.cluster.is_empty();
    }
    if demand.local {
        selection.local = backends(endpoints, |e| rules.local(e).is_used());
        selection.has_endpoints |= endpoints.iter().any(|e| e.takes_connections() || e.is_fallback());
    }
    selection
}

fn backends(endpoints: &[Endpoint], wanted: impl Fn(&Endpoint) -> bool) -> Vec<Backend> {
    let count = endpoints.iter().filter(|e| wanted(e)).count();
    let mut backends = Vec::with_capacity(count);
    backends.extend(endpoints.iter().filter(|e| wanted(e)).map(|e| e.backend));
    backends
}

/// What the choice of an endpoint depends on besides the endpoint: facts about all endpoints of the Service port.
#[derive(Debug, Clone, Copy)]
struct Rules {
    demand: Demand,
    node_hints: HintUse,
    zone_hints: HintUse,
    /// True if an endpoint on any node is ready.
    any_ready: bool,
    /// True if an endpoint on this node is ready.
    any_local_ready: bool,
}

impl Rules {
    /// Decides the facts. The endpoints have no duplicates.
    fn of(endpoints: &[Endpoint], demand: Demand) -> Self {
        let node_hints = HintUse::of(endpoints, demand, |e| e.node_hint);
        let zone_hints = match HintUse::of(endpoints, demand, |e| e.zone_hint) {
            HintUse::Followed if node_hints == HintUse::Followed => HintUse::Superseded,
            other => other,
        };
        Self {
            demand,
            node_hints,
            zone_hints,
            any_ready: endpoints.iter().any(Endpoint::takes_connections),
            any_local_ready: demand.local && endpoints.iter().any(|e| e.takes_connections() && e.local),
        }
    }

    /// Returns whether an endpoint is in the cluster list: the ready endpoints that the hints allow. If none is
    /// ready, the terminating ones of all nodes. Hints that are followed name this node or zone at a ready endpoint,
    /// so they never leave out all of them.
    fn cluster(self, endpoint: &Endpoint) -> Choice {
        if !self.demand.cluster {
            return Choice::NoTraffic;
        }
        let hint = match (self.node_hints, self.zone_hints) {
            (HintUse::Followed, _) => Some((HintKind::Node, endpoint.node_hint)),
            (_, HintUse::Followed) => Some((HintKind::Zone, endpoint.zone_hint)),
            _ => None,
        };
        match hint {
            Some((kind, Hint::Here)) if endpoint.takes_connections() => Choice::Hinted(kind),
            Some((kind, _)) if endpoint.takes_connections() => Choice::HintedElsewhere(kind),
            _ => endpoint.choice(self.any_ready),
        }
    }

    /// Returns whether an endpoint is in the local list: the ready ones on this node, or else the terminating ones on
    /// this node. Hints do not apply here.
    fn local(self, endpoint: &Endpoint) -> Choice {
        if !self.demand.local {
            Choice::NoTraffic
        } else if endpoint.local {
            endpoint.choice(self.any_local_ready)
        } else if endpoint.backend.may_hairpin {
            Choice::UnknownNode
        } else {
            Choice::OtherNode
        }
    }
}

#[cfg(test)]
mod tests;
