//! The schedulers of IPVS, by which a Service may ask to be balanced. Other modes balance at random.

use std::fmt;

/// How IPVS chooses an endpoint for a connection (`ipvsadm(8)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum IpvsScheduler {
    /// One after the other.
    #[default]
    Rr,
    /// One after the other, by weight.
    Wrr,
    /// The one with the fewest connections.
    Lc,
    /// The one with the fewest connections, by weight.
    Wlc,
    /// The one with the highest weight that is available.
    Fo,
    /// The one with the highest weight, until it has as many connections as its weight.
    Ovf,
    /// By destination address, unless that one has too many connections.
    Lblc,
    /// The same, with a set of them for each destination address.
    Lblcr,
    /// By source address.
    Sh,
    /// By destination address.
    Dh,
    /// The one with the shortest expected delay.
    Sed,
    /// An idle one, or else the one with the shortest expected delay.
    Nq,
    /// By source address, with few changes when endpoints come or go (Maglev).
    Mh,
    /// The better one of two at random.
    Twos,
}

impl IpvsScheduler {
    /// All of them.
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

    /// The name by which the kernel knows it.
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

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheduler| scheduler.name() == name)
    }

    /// All names, for messages.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for IpvsScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
