//! The selection with its reasons, endpoint by endpoint.

use super::{Choice, Demand, Endpoint, HintUse, Rules, by_place_and_rank, place};

/// An endpoint with the reasons why each list has it or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained<T> {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// What the caller knows about its origin.
    pub from: T,
    /// Its place in the cluster list.
    pub cluster: Choice,
    /// Its place in the local list.
    pub local: Choice,
}

/// All endpoints of a Service port with the reasons of the selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation<T> {
    /// The endpoints, duplicates included, sorted by address and port. Of entries with equal address and port, the
    /// first is the one that is considered.
    pub endpoints: Vec<Explained<T>>,
    /// The use of `hints.forNodes`.
    pub node_hints: HintUse,
    /// The use of `hints.forZones`.
    pub zone_hints: HintUse,
}

/// Selects among endpoints that may have duplicates, and explains the result. The endpoints in use are those that
/// [`settle_duplicates`](super::settle_duplicates) and [`select`](super::select) return.
pub fn explain<T>(mut endpoints: Vec<(Endpoint, T)>, demand: Demand) -> Explanation<T> {
    endpoints.sort_by(|(a, _), (b, _)| by_place_and_rank(a, b));
    let mut considered: Vec<Endpoint> = endpoints.iter().map(|(endpoint, _)| *endpoint).collect();
    considered.dedup_by(|later, kept| place(later) == place(kept));
    let rules = Rules::of(&considered, demand);
    let mut last = None;
    let explained = |(endpoint, from): (Endpoint, T)| {
        let duplicate = last.replace(place(&endpoint)) == Some(place(&endpoint));
        let (cluster, local) = if duplicate {
            (Choice::Duplicate, Choice::Duplicate)
        } else {
            (rules.cluster(&endpoint), rules.local(&endpoint))
        };
        Explained { endpoint, from, cluster, local }
    };
    Explanation {
        endpoints: endpoints.into_iter().map(explained).collect(),
        node_hints: rules.node_hints,
        zone_hints: rules.zone_hints,
    }
}
