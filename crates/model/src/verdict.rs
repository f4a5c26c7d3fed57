//! What happens to a packet, and why.
//!
//! A [`Verdict`] is the answer of the [`oracle`](crate::oracle): the [`Fate`] of the packet, the Service port and
//! frontend that decided it, and the [`Reason`]s in the order in which they applied. It is a value: this module must
//! not know how a verdict is reached.
//!
//! ```text
//! Oracle::verdict ──> Verdict ──with_endpoints──> Verdict with the choice of each endpoint
//!                    Catalog::explain ──┘
//!         Verdict ──with_left_out──> Verdict with the Services that claim the destination and do not get it
//! Catalog::left_out_at ──┘
//! ```

mod reason;

use std::fmt;
use std::sync::Arc;

pub use reason::{Reason, SourceKept, Traffic};

use crate::catalog::LeftOut;
use crate::selection::{Explanation, HintKind};
use crate::{Backend, Frontend, ServicePortName};

/// The handling of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The packet goes to one of these backends, each equally likely. The set is never empty.
    Backends {
        /// The candidates.
        set: Vec<Backend>,
        /// For each candidate, true if it sees this node's address instead of the source.
        masqueraded: Vec<bool>,
        /// All flows of a source within this many seconds of each other go to the same candidate. `None` if there is
        /// no affinity.
        affinity: Option<u32>,
    },
    /// The packet is rejected: with a TCP reset, or an ICMP port unreachable for other protocols.
    Reject,
    /// The packet is dropped without reply.
    Drop,
    /// The packet is not affected by the proxy.
    NotOurs,
}

/// The handling of a packet with everything that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The handling.
    pub fate: Fate,
    /// The Service port and frontend by which the packet is handled. `None` if no frontend matches, or if the packet
    /// belongs to an established flow.
    pub decided_by: Option<Decision>,
    /// The list of the Service port's endpoints that the packet's traffic uses. `None` if it uses none of them.
    pub endpoints: Option<EndpointList>,
    /// The reasons, in the order in which they applied. Never empty.
    pub reasons: Vec<Reason>,
}

/// The Service port and the frontend that a packet matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The Service port.
    pub name: Arc<ServicePortName>,
    /// The frontend.
    pub frontend: Frontend,
}

/// One of the two lists of endpoints of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointList {
    /// Endpoints of the whole cluster ([`Forwarding::cluster`](crate::Forwarding::cluster)).
    Cluster,
    /// Endpoints of this node ([`Forwarding::local`](crate::Forwarding::local)).
    Local,
}

impl Verdict {
    /// Adds why each endpoint of the Service port serves or not, after the reason that selects the list of endpoints.
    /// `selection` must be that of the Service port in `decided_by` (see
    /// [`Catalog::explain`](crate::Catalog::explain)). Does nothing if the packet's traffic uses no list.
    #[must_use]
    pub fn with_endpoints<T>(mut self, selection: &Explanation<T>) -> Self {
        let Some(list) = self.endpoints else { return self };
        let selects = self.reasons.iter().position(Reason::selects_endpoints);
        let at = selects.map_or(self.reasons.len(), |index| index.saturating_add(1));
        let hints = [(HintKind::Node, selection.node_hints), (HintKind::Zone, selection.zone_hints)];
        let hints = hints.map(|(kind, used)| Reason::Hints { kind, used });
        let hints = hints.into_iter().filter(|_| list == EndpointList::Cluster);
        let endpoints = selection.endpoints.iter().map(|explained| Reason::Endpoint {
            endpoint: explained.endpoint.backend.socket(),
            choice: match list {
                EndpointList::Cluster => explained.cluster,
                EndpointList::Local => explained.local,
            },
        });
        let added: Vec<Reason> = hints.chain(endpoints).collect();
        self.reasons.splice(at..at, added);
        self
    }

    /// Adds the Services that claim the destination and do not get it, before all other reasons. `left_out` must be that
    /// of the packet's destination (see [`Catalog::left_out_at`](crate::Catalog::left_out_at)). Does nothing if the
    /// destination was not looked up.
    #[must_use]
    pub fn with_left_out(mut self, left_out: impl IntoIterator<Item = LeftOut>) -> Self {
        if !self.reasons.first().is_some_and(Reason::precedes_lookup) {
            self.reasons.splice(0..0, left_out.into_iter().map(Reason::LeftOut));
        }
        self
    }

    /// Returns the codes of the reasons, in order.
    pub fn codes(&self) -> impl Iterator<Item = &'static str> {
        self.reasons.iter().map(Reason::code)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.frontend)
    }
}

impl fmt::Display for EndpointList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Local => "local",
        })
    }
}

#[cfg(test)]
mod tests;
