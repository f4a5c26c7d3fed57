//! Endpoint selection: which endpoints a Service port uses, for cluster-wide and for local traffic.
//!
//! The functions are pure and the same for every mode. Sources: KEP-2086 (internal policy), KEP-1669 (terminating
//! endpoints), KEP-2433 and KEP-3015 (hints). Hints are honoured regardless of the Service's own fields.

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

/// Returns the ready endpoints that the topology allows. If there are none, returns the terminating ones of all
/// nodes.
fn cluster(endpoints: &[Endpoint]) -> Vec<Backend> {
    let topology = Topology::of(endpoints);
    let ready = backends(endpoints, |e| e.ready && topology.allows(e));
    if ready.is_empty() { backends(endpoints, Endpoint::is_fallback) } else { ready }
}

/// Returns the local ready endpoints, or else the local terminating ones. Topology does not apply here.
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

/// How hints restrict the choice. Decided over the ready endpoints of the whole cluster.
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

/// Returns true if every ready endpoint has hints of this kind and at least one names this node or zone. Incomplete
/// hints are not safe to follow: the rest of the cluster may rely on traffic that would not arrive.
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
