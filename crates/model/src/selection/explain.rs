//! The selection with its reasons, endpoint by endpoint.

use super::{Choice, Demand, Endpoint, HintUse, Rules, by_place_and_rank, place, settle_aside};

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
/// [`settle_duplicates`](super::settle_duplicates), [`settle_aside`] and [`select`](super::select) return.
pub fn explain<T>(
    mut endpoints: Vec<(Endpoint, T)>,
    demand: Demand,
    is_failing: impl Fn(&Endpoint) -> bool,
) -> Explanation<T> {
    endpoints.sort_by(|(a, _), (b, _)| by_place_and_rank(a, b));
    let mut considered: Vec<Endpoint> = endpoints.iter().map(|(endpoint, _)| *endpoint).collect();
    considered.dedup_by(|later, kept| place(later) == place(kept));
    settle_aside(&mut considered, demand, is_failing);
    let rules = Rules::of(&considered, demand);
    let mut considered = considered.into_iter().peekable();
    let explained = |(endpoint, from): (Endpoint, T)| {
        // The first entry of each address and port is the considered one.
        match considered.next_if(|next| place(next) == place(&endpoint)) {
            Some(endpoint) => {
                Explained { endpoint, from, cluster: rules.cluster(&endpoint), local: rules.local(&endpoint) }
            }
            None => Explained { endpoint, from, cluster: Choice::Duplicate, local: Choice::Duplicate },
        }
    };
    Explanation {
        endpoints: endpoints.into_iter().map(explained).collect(),
        node_hints: rules.node_hints,
        zone_hints: rules.zone_hints,
    }
}
