//! Endpoint selection: which endpoints a Service port uses, for cluster-wide and for local traffic.
//!
//! Pure and the same for every mode. Sources: KEP-2086 (internal policy), KEP-1669 (terminating endpoints),
//! KEP-2433 and KEP-3015 (hints). Hints are honoured as they stand, whatever the Service's own fields say.

use crate::Backend;

/// What an endpoint's hints of one sort say about this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Hint {
    /// There are none.
    #[default]
    Absent,
    /// They name others only.
    Elsewhere,
    /// They name this node (or this node's zone).
    Here,
}

/// An endpoint as selection sees it.
#[expect(clippy::struct_excessive_bools, reason = "the conditions are independent of each other in the API")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Where it is.
    pub backend: Backend,
    /// Takes new connections.
    pub ready: bool,
    /// Could take connections, ready or not.
    pub serving: bool,
    /// Is shutting down.
    pub terminating: bool,
    /// Runs on this node.
    pub local: bool,
    /// Node hints.
    pub node_hint: Hint,
    /// Zone hints.
    pub zone_hint: Hint,
}

impl Endpoint {
    /// Not ready, but fit for the fall-back: terminating and still serving.
    const fn is_fallback(&self) -> bool {
        !self.ready && self.serving && self.terminating
    }

    /// Order among entries with equal address and port; the greatest counts.
    ///
    /// kube-proxy lets the last non-terminating one win, or else the first; that depends on the order of the
    /// slices. This total order agrees where that one is defined and settles the rest: not terminating, then
    /// ready, serving, local, fit for hairpin, and at last the hints. Entries equal in all of it are the same.
    pub(crate) const fn rank(&self) -> (bool, bool, bool, bool, bool, Hint, Hint) {
        let may_hairpin = self.backend.may_hairpin;
        (!self.terminating, self.ready, self.serving, self.local, may_hairpin, self.node_hint, self.zone_hint)
    }
}

/// Which sets a Service port needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Some traffic takes endpoints of the whole cluster.
    pub cluster: bool,
    /// Some traffic takes only endpoints of this node.
    pub local: bool,
}

/// The endpoints that a Service port uses, each list in the order of the input.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// For traffic that may go anywhere (`C`).
    pub cluster: Vec<Backend>,
    /// For traffic that must stay on this node (`L`).
    pub local: Vec<Backend>,
    /// Whether there is any usable endpoint at all, here or not (`A`).
    pub has_endpoints: bool,
}

impl Selection {
    /// Every endpoint in use (`U`), sorted by address and port.
    pub fn reachable(&self) -> Vec<Backend> {
        let mut all: Vec<Backend> = self.cluster.iter().chain(&self.local).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Sorts by address and port and keeps one entry of each: the one of the highest rank.
pub fn settle_duplicates(endpoints: &mut Vec<Endpoint>) {
    let place = |endpoint: &Endpoint| (endpoint.backend.address, endpoint.backend.port);
    endpoints.sort_unstable_by(|a, b| place(a).cmp(&place(b)).then_with(|| b.rank().cmp(&a.rank())));
    endpoints.dedup_by(|later, kept| place(later) == place(kept));
}

/// Selects among endpoints without duplicates.
pub fn select(endpoints: &[Endpoint], demand: Demand) -> Selection {
    let mut selection = Selection::default();
    if demand.cluster {
        selection.cluster = cluster(endpoints);
        selection.has_endpoints = !selection.cluster.is_empty();
    }
    if demand.local {
        selection.local = local(endpoints);
        selection.has_endpoints |= endpoints.iter().any(|e| e.ready || e.is_fallback());
    }
    selection
}

/// Ready endpoints that the topology allows; where there is none at all, terminating ones from anywhere.
fn cluster(endpoints: &[Endpoint]) -> Vec<Backend> {
    let topology = Topology::of(endpoints);
    let ready = backends(endpoints, |e| e.ready && topology.allows(e));
    if ready.is_empty() { backends(endpoints, Endpoint::is_fallback) } else { ready }
}

/// Local ready endpoints, or else local terminating ones. Topology has no say here.
fn local(endpoints: &[Endpoint]) -> Vec<Backend> {
    let ready = backends(endpoints, |e| e.local && e.ready);
    if ready.is_empty() { backends(endpoints, |e| e.local && e.is_fallback()) } else { ready }
}

fn backends(endpoints: &[Endpoint], wanted: impl Fn(&Endpoint) -> bool) -> Vec<Backend> {
    let count = endpoints.iter().filter(|e| wanted(e)).count();
    let mut backends = Vec::with_capacity(count);
    backends.extend(endpoints.iter().filter(|e| wanted(e)).map(|e| e.backend));
    backends
}

/// How hints narrow the choice; decided over the ready endpoints of the whole cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    Anywhere,
    SameNode,
    SameZone,
}

impl Topology {
    fn of(endpoints: &[Endpoint]) -> Self {
        if complete(endpoints, |e| e.node_hint) {
            Self::SameNode
        } else if complete(endpoints, |e| e.zone_hint) {
            Self::SameZone
        } else {
            Self::Anywhere
        }
    }

    fn allows(self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Anywhere => true,
            Self::SameNode => endpoint.node_hint == Hint::Here,
            Self::SameZone => endpoint.zone_hint == Hint::Here,
        }
    }
}

/// Every ready endpoint has hints of this sort, and one of them points here. Hints that are incomplete are
/// not safe to follow: the rest of the cluster may count on traffic that would no longer come.
fn complete(endpoints: &[Endpoint], hint: impl Fn(&Endpoint) -> Hint) -> bool {
    let mut ready = endpoints.iter().filter(|e| e.ready).map(hint);
    let mut here = false;
    ready.all(|hint| {
        here |= hint == Hint::Here;
        hint != Hint::Absent
    }) && here
}

#[cfg(test)]
mod tests;
