//! What a clean-up finds: the objects that it removes, and those that stay, with the reason.
//!
//! Plain values. `Display` gives the one line by which reports name an object.

use std::fmt;

use portolan_iptables::Variant;
use portolan_model::Family;

/// What can be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A table of nftables.
    Table,
    /// A chain of iptables, with its rules.
    Chain,
    /// A rule of iptables that leads from one chain to another.
    Jump,
    /// An ipset.
    Set,
    /// A virtual server of IPVS, with its real servers and their connections.
    VirtualServer,
    /// An address of a network device.
    Address,
    /// A network device.
    Device,
    /// A rule of policy routing.
    Rule,
    /// A route.
    Route,
    /// A counter of nfacct.
    Counter,
}

impl Kind {
    /// Returns the word for it in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Chain => "chain",
            Self::Jump => "jump",
            Self::Set => "ipset",
            Self::VirtualServer => "virtual server",
            Self::Address => "address",
            Self::Device => "device",
            Self::Rule => "rule",
            Self::Route => "route",
            Self::Counter => "counter",
        }
    }
}

/// One object in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: Kind,
    /// Its family, if it belongs to one.
    pub family: Option<Family>,
    /// The variant of iptables, for chains and jumps.
    pub variant: Option<Variant>,
    /// The table of iptables, for chains and jumps.
    pub table: Option<String>,
    /// Its name or address; for a jump, the chain that has it.
    pub name: String,
    /// The chain that a jump leads to.
    pub to: Option<String>,
}

impl Object {
    /// Creates an object outside iptables.
    pub fn new(kind: Kind, family: Option<Family>, name: impl Into<String>) -> Self {
        Self { kind, family, variant: None, table: None, name: name.into(), to: None }
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, family, variant, table, name, to } = self;
        f.write_str(kind.name())?;
        if let Some(family) = family {
            write!(f, " {}", in_nft(*family))?;
        }
        if let Some(table) = table {
            write!(f, " {table}")?;
        }
        write!(f, " {name}")?;
        if let Some(to) = to {
            write!(f, " to {to}")?;
        }
        variant.map_or(Ok(()), |variant| write!(f, " ({})", variant.place()))
    }
}

/// Returns the name of a family in the language of nft.
const fn in_nft(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    }
}

/// An object that cannot be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The object.
    pub object: Object,
    /// Who holds it, and how.
    pub reason: String,
}

/// An object that stays because others use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The object.
    pub object: Object,
    /// Why it stays.
    pub reason: &'static str,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// What a clean-up removes, in the order of removal.
    pub objects: Vec<Object>,
    /// What it cannot remove.
    pub held: Vec<Held>,
    /// What it leaves.
    pub kept: Vec<Kept>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_has_one_line() {
        let table = Object::new(Kind::Table, Some(Family::Ipv6), "portolan");
        assert_eq!(table.to_string(), "table ip6 portolan");
        let jump = Object {
            variant: Some(Variant::Legacy),
            table: Some("nat".into()),
            to: Some("KUBE-SERVICES".into()),
            ..Object::new(Kind::Jump, Some(Family::Ipv4), "PREROUTING")
        };
        assert_eq!(jump.to_string(), "jump ip nat PREROUTING to KUBE-SERVICES (iptables-legacy)");
        let set = Object::new(Kind::Set, None, "KUBE-CLUSTER-IP");
        assert_eq!(set.to_string(), "ipset KUBE-CLUSTER-IP");
    }
}
