//! Objects that proxies have in the kernel, and what a mode lacks, as the caller of this crate finds them.

/// An object in the kernel that belongs to a mode, as a clean-up lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What it is a part of.
    pub part: Part,
    /// What it is, in one word: `table`, `ipset` and so on.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

/// What an object is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Portolan's nftables mode.
    Nftables,
    /// The tables of Portolan's userspace mode.
    Userspace,
    /// The policy routing of Portolan's userspace mode.
    Routing,
    /// The IPVS mode of Portolan or of kube-proxy.
    Ipvs,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 4] = [Self::Nftables, Self::Userspace, Self::Routing, Self::Ipvs];
}

/// What the kernel, or a program that a mode runs, lacks for the mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// The IP family, and what the trial of the mode found.
    pub reason: String,
    /// True if the proxy does not start for this reason. Otherwise it serves the other family only.
    pub is_fatal: bool,
}
