//! The schedulers of IPVS, one of which a Service may request. Other modes choose endpoints at random.

use std::fmt;

/// How IPVS chooses the endpoint of a connection (`ipvsadm(8)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum IpvsScheduler {
    /// Round robin.
    #[default]
    Rr,
    /// Weighted round robin.
    Wrr,
    /// The endpoint with the fewest connections.
    Lc,
    /// The endpoint with the fewest connections, weighted.
    Wlc,
    /// The available endpoint with the highest weight.
    Fo,
    /// The endpoint with the highest weight, until it has as many connections as its weight.
    Ovf,
    /// By destination address, unless that endpoint has too many connections.
    Lblc,
    /// As `lblc`, with a set of endpoints for each destination address.
    Lblcr,
    /// By source address.
    Sh,
    /// By destination address.
    Dh,
    /// The endpoint with the shortest expected delay.
    Sed,
    /// An idle endpoint, or else the one with the shortest expected delay.
    Nq,
    /// By source address and port, with few changes when endpoints are added or removed (Maglev).
    Mh,
    /// The better of two randomly chosen endpoints.
    Twos,
}

impl IpvsScheduler {
    /// All schedulers.
    pub const ALL: [Self; 14] = [
        Self::Rr,
        Self::Wrr,
        Self::Lc,
        Self::Wlc,
        Self::Fo,
        Self::Ovf,
        Self::Lblc,
        Self::Lblcr,
        Self::Sh,
        Self::Dh,
        Self::Sed,
        Self::Nq,
        Self::Mh,
        Self::Twos,
    ];

    /// Returns the name in the kernel.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Fo => "fo",
            Self::Ovf => "ovf",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Sh => "sh",
            Self::Dh => "dh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Mh => "mh",
            Self::Twos => "twos",
        }
    }

    /// Returns the scheduler of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheduler| scheduler.name() == name)
    }

    /// Returns all names, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for IpvsScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
