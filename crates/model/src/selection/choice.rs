//! Why an endpoint is in use or left out, and why hints are followed or ignored.

use std::fmt;

use super::{Demand, Endpoint, Hint};

/// Why a list of endpoints has an endpoint or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Choice {
    /// In use: it is ready.
    Ready,
    /// In use: it is ready, and its hints of this kind name this node or zone.
    Hinted(HintKind),
    /// In use: it is terminating but serving, and no endpoint of the list is ready.
    Fallback,
    /// Left out: no traffic of the Service port uses this list.
    NoTraffic,
    /// Left out: it is not ready.
    NotReady,
    /// Left out for a while: connections from this node to it failed.
    SetAside,
    /// Left out: it is terminating, and the list has ready endpoints.
    Terminating,
    /// Left out: it is terminating and not serving.
    NotServing,
    /// Left out: it is on another node, and the list has the endpoints of this node.
    OtherNode,
    /// Left out: its node is not known, and the list has the endpoints of this node.
    UnknownNode,
    /// Left out: its hints of this kind name only other nodes or zones.
    HintedElsewhere(HintKind),
    /// Left out: another entry has the same address and port, and is considered in its place.
    Duplicate,
}

impl Choice {
    /// Returns true if the list has the endpoint.
    pub const fn is_used(self) -> bool {
        matches!(self, Self::Ready | Self::Hinted(_) | Self::Fallback)
    }

    /// Returns the stable name for programs.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Ready => "endpoint-ready",
            Self::Hinted(HintKind::Node) => "endpoint-hinted-node",
            Self::Hinted(HintKind::Zone) => "endpoint-hinted-zone",
            Self::Fallback => "endpoint-terminating-used",
            Self::NoTraffic => "endpoint-list-unused",
            Self::NotReady => "endpoint-not-ready",
            Self::SetAside => "endpoint-set-aside",
            Self::Terminating => "endpoint-terminating",
            Self::NotServing => "endpoint-not-serving",
            Self::OtherNode => "endpoint-on-other-node",
            Self::UnknownNode => "endpoint-on-unknown-node",
            Self::HintedElsewhere(HintKind::Node) => "endpoint-hinted-other-node",
            Self::HintedElsewhere(HintKind::Zone) => "endpoint-hinted-other-zone",
            Self::Duplicate => "endpoint-duplicate",
        }
    }
}

/// Continues a sentence that starts with the endpoint.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("is used: it is ready"),
            Self::Hinted(kind) => write!(f, "is used: it is ready, and {} names this {kind}", kind.field()),
            Self::Fallback => f.write_str(
                "is used: it is terminating but serving, and no endpoint that the policy allows is ready",
            ),
            Self::NoTraffic => f.write_str("is left out: no traffic policy uses this list of endpoints"),
            Self::NotReady => f.write_str("is left out: it is not ready"),
            Self::SetAside => f.write_str("is left out for a while: connections of this node to it failed"),
            Self::Terminating => {
                f.write_str("is left out: it is terminating, and others that the policy allows are ready")
            }
            Self::NotServing => f.write_str("is left out: it is terminating and not serving"),
            Self::OtherNode => f.write_str("is left out: it is on another node"),
            Self::UnknownNode => f.write_str("is left out: it has no nodeName, so it may be on another node"),
            Self::HintedElsewhere(kind) => {
                write!(f, "is left out: {} does not name this {kind}", kind.field())
            }
            Self::Duplicate => f.write_str("is left out: another entry has the same address and port"),
        }
    }
}

/// The two kinds of topology hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HintKind {
    /// `hints.forNodes` (KEP-3015).
    Node,
    /// `hints.forZones` (KEP-2433).
    Zone,
}

impl HintKind {
    /// Returns the field of an endpoint in an EndpointSlice.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Node => "hints.forNodes",
            Self::Zone => "hints.forZones",
        }
    }
}

impl fmt::Display for HintKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Zone => "zone",
        })
    }
}

/// Whether the hints of one kind restrict the cluster list. Decided over the ready endpoints of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HintUse {
    /// No ready endpoint has such hints, or no traffic uses the cluster list.
    Absent,
    /// Every ready endpoint has such hints, and at least one names this node or zone.
    Followed,
    /// They would be followed, but the node hints are, which are more precise.
    Superseded,
    /// Ignored: a ready endpoint has no such hints. Incomplete hints are not safe to follow: the rest of the cluster
    /// may rely on traffic that would not arrive.
    Incomplete,
    /// Ignored: no ready endpoint's hints name this node or zone.
    NoneHere,
}

impl HintUse {
    /// Decides the use of one kind of hints, regardless of the other kind.
    pub(super) fn of(endpoints: &[Endpoint], demand: Demand, hint: impl Fn(&Endpoint) -> Hint) -> Self {
        if !demand.cluster {
            return Self::Absent;
        }
        let (mut absent, mut elsewhere, mut here) = (false, false, false);
        for hint in endpoints.iter().filter(|e| e.takes_connections()).map(hint) {
            match hint {
                Hint::Absent => absent = true,
                Hint::Elsewhere => elsewhere = true,
                Hint::Here => here = true,
            }
        }
        match (absent, elsewhere, here) {
            (_, false, false) => Self::Absent,
            (true, ..) => Self::Incomplete,
            (false, _, true) => Self::Followed,
            (false, true, false) => Self::NoneHere,
        }
    }

    /// Returns the stable name for programs.
    pub const fn code(self, kind: HintKind) -> &'static str {
        match (kind, self) {
            (HintKind::Node, Self::Absent) => "node-hints-absent",
            (HintKind::Node, Self::Followed) => "node-hints-followed",
            (HintKind::Node, Self::Superseded) => "node-hints-superseded",
            (HintKind::Node, Self::Incomplete) => "node-hints-incomplete",
            (HintKind::Node, Self::NoneHere) => "node-hints-elsewhere",
            (HintKind::Zone, Self::Absent) => "zone-hints-absent",
            (HintKind::Zone, Self::Followed) => "zone-hints-followed",
            (HintKind::Zone, Self::Superseded) => "zone-hints-superseded",
            (HintKind::Zone, Self::Incomplete) => "zone-hints-incomplete",
            (HintKind::Zone, Self::NoneHere) => "zone-hints-elsewhere",
        }
    }
}
