//! The modes.

use std::fmt;

/// The mode in which Services are programmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// nftables.
    Nftables,
    /// iptables.
    Iptables,
    /// IPVS.
    Ipvs,
    /// userspace.
    Userspace,
}

impl Mode {
    /// Returns the mode that the value of `--proxy-mode` names.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "nftables" => Some(Self::Nftables),
            "iptables" => Some(Self::Iptables),
            "ipvs" => Some(Self::Ipvs),
            "userspace" => Some(Self::Userspace),
            _ => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Userspace => "userspace",
        })
    }
}
