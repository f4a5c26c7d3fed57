//! How the userspace mode gets the packets of Services.

/// The priority (`SO_PRIORITY`, `socket(7)`) of the relay's packets to endpoints, by which rules skip them. Other programs are unlikely to use it ("port" in
/// ASCII, with the lowest four bits zero, which queueing disciplines treat as best effort).
pub const RELAY_PRIORITY: u32 = 0x706f_7270;

/// How the userspace mode captures packets of Services for its relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capture {
    /// By `tproxy` rules of nftables. Packets keep the destination that the client used. The relay's listeners are on the
    /// loopback addresses.
    #[default]
    Tproxy,
    /// By translation to an address of this node, with rules of iptables. The kernel stores the original destination. The
    /// relay's listeners are on every address.
    Redirect,
}

impl Capture {
    /// All ways, the preferred one first.
    pub const ALL: [Self; 2] = [Self::Tproxy, Self::Redirect];

    /// Returns the way as flags and the log spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tproxy => "tproxy",
            Self::Redirect => "redirect",
        }
    }
}
