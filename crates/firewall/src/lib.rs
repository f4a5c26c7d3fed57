//! Firewall rules of all programs, and which packets they stop.
//!
//! [`Ruleset`] is what the kernel has: chains of nftables, of iptables as a front end of nftables, and of the older
//! iptables, in one form. [`native`] and [`compat`] make it from netlink messages, [`saved`] from the output of
//! `iptables-save`. [`walk()`] follows a packet through the chains of a hook and returns the rules that drop it, translate
//! it or exempt it from connection tracking. What a rule tests may be unknown, and so may the packet be: each
//! [`Hit`] says on which conditions it depends. [`along`] does this for one connection and all hooks that it passes;
//! [`Passage`] says which chains of a hook these are, because packets that IPVS translates pass others.
//!
//! All of it is pure: `doctor` reads the rules of a node. [`owner`] says which program chains belong to, by their names.
//! The crate must not know sockets, nor what is done about a rule that stops packets.

pub mod compat;
pub mod native;
pub mod owner;
mod passage;
pub mod saved;
mod test;
mod walk;

use std::collections::HashMap;
use std::fmt;

use portolan_model::Family;

pub use owner::Owner;
pub use passage::Passage;
pub use test::{Answer, ConntrackStates, Packet, Test, is_named};
pub use walk::{Hit, Kind, along, walk};

/// The chains of all tables.
#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    chains: Vec<Chain>,
    index: HashMap<(TableId, String), usize>,
}

/// A table, and the program whose commands change it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    /// The program.
    pub program: Program,
    /// Family of the table.
    pub family: TableFamily,
    /// Name of the table.
    pub table: String,
}

/// The program whose commands change a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Program {
    /// `nft`.
    Nft,
    /// `iptables` and `ip6tables` as front ends of nftables.
    IptablesNft,
    /// The older `iptables-legacy` and `ip6tables-legacy`.
    IptablesLegacy,
}

/// Family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// IPv4 (nft's `ip`).
    Ip,
    /// IPv6 (nft's `ip6`).
    Ip6,
    /// Both (nft's `inet`).
    Inet,
    /// All packets of devices (nft's `netdev`).
    Netdev,
}

/// A chain with its rules, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The table.
    pub place: TableId,
    /// Name of the chain.
    pub name: String,
    /// Where the kernel calls it; `None` if packets reach it only by jumps.
    pub base: Option<Base>,
    /// The rules, in order.
    pub rules: Vec<Rule>,
}

/// The properties of a chain that the kernel calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// The hook that calls it.
    pub hook: Hook,
    /// Order among the chains of a hook, lowest first.
    pub priority: i32,
    /// True for chains of type nat, which see only the first packet of a connection.
    pub nat: bool,
    /// True if packets that no rule decides are dropped.
    pub drops: bool,
}

/// The point in a packet's path at which a chain is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Packets that arrive at devices, before all other hooks.
    Ingress,
    /// Arriving packets, before routing.
    Prerouting,
    /// Packets for this node.
    Input,
    /// Packets that are forwarded.
    Forward,
    /// Packets that this node sends.
    Output,
    /// Leaving packets, after routing.
    Postrouting,
    /// Packets that leave through devices, after all other hooks.
    Egress,
}

/// Priority at which connection tracking looks at packets (`NF_IP_PRI_CONNTRACK`).
pub const CONNTRACK_PRIORITY: i32 = -200;
/// Priority at which destinations are translated (`NF_IP_PRI_NAT_DST`).
pub const TRANSLATION_PRIORITY: i32 = -100;

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The conditions. All of them must be true.
    pub tests: Vec<Test>,
    /// What happens to packets that match.
    pub effect: Effect,
    /// How a command names the rule.
    pub id: RuleId,
}

/// How a command names a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleId {
    /// nft's handle.
    Handle(u64),
    /// The rule in the words of `iptables-save`, without `-A`.
    Line(String),
}

/// What happens to packets that match a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The packet goes on to the next rule.
    Continue,
    /// Ends the evaluation of this base chain. Later base chains still see the packet.
    Accept,
    /// Drops the packet.
    Drop,
    /// Refuses the packet with an answer.
    Reject,
    /// Continues in a chain, and returns at its end.
    Jump(String),
    /// Continues in a chain, and returns to the caller of this one.
    Goto(String),
    /// Returns to the calling chain.
    Return,
    /// Translates the destination, or passes the packet to a socket of this node.
    Redirect,
    /// Exempts the packet from connection tracking.
    NoTrack,
    /// Another decision, such as a queue to a program or a map of verdicts.
    Unknown,
}

impl Base {
    /// Returns true if the chain sees destinations as they are after the translation of Services.
    pub const fn sees_translated(self) -> bool {
        match self.hook {
            Hook::Prerouting | Hook::Output => self.priority > TRANSLATION_PRIORITY,
            Hook::Ingress => false,
            Hook::Input | Hook::Forward | Hook::Postrouting | Hook::Egress => true,
        }
    }
}

impl Ruleset {
    /// Creates a ruleset of these chains. Of two chains with one name in a table the last is kept.
    pub fn new(chains: Vec<Chain>) -> Self {
        let key = |(at, chain): (usize, &Chain)| ((chain.place.clone(), chain.name.clone()), at);
        let index = chains.iter().enumerate().map(key).collect();
        Self { chains, index }
    }

    /// Returns all chains.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// Returns a chain of a table.
    pub fn chain(&self, place: &TableId, name: &str) -> Option<&Chain> {
        self.chains.get(*self.index.get(&(place.clone(), name.to_owned()))?)
    }

    /// Returns the chains that the kernel calls at a hook for packets of a family, in their order.
    pub fn base_chains(&self, family: Family, hook: Hook) -> Vec<&Chain> {
        let at = |chain: &&Chain| {
            chain.place.family.sees(family) && chain.base.is_some_and(|base| base.hook == hook)
        };
        let mut chains: Vec<&Chain> = self.chains.iter().filter(at).collect();
        chains.sort_by_key(|chain| chain.base.map(|base| base.priority));
        chains
    }

    /// Returns the tables, each once, sorted.
    pub fn places(&self) -> Vec<&TableId> {
        let mut places: Vec<&TableId> = self.chains.iter().map(|chain| &chain.place).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

impl TableFamily {
    /// Returns true if chains of the table see packets of a family.
    pub fn sees(self, family: Family) -> bool {
        matches!(
            (self, family),
            (Self::Inet | Self::Netdev, _) | (Self::Ip, Family::Ipv4) | (Self::Ip6, Family::Ipv6)
        )
    }
}

impl TableId {
    /// Returns the program's name for this family: `nft`, `iptables`, `ip6tables-legacy` and so on.
    pub fn command(&self) -> &'static str {
        match (self.program, self.family) {
            (Program::Nft, _) => "nft",
            (Program::IptablesNft, TableFamily::Ip6) => "ip6tables-nft",
            (Program::IptablesNft, _) => "iptables-nft",
            (Program::IptablesLegacy, TableFamily::Ip6) => "ip6tables-legacy",
            (Program::IptablesLegacy, _) => "iptables-legacy",
        }
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Netdev => "netdev",
        })
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
            Self::Egress => "egress",
        })
    }
}

/// Prints `chain FORWARD of table ip filter (iptables-nft)`.
impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableId { program: _, family, table } = &self.place;
        write!(f, "chain {} of table {family} {table} ({})", self.name, self.place.command())
    }
}

/// Prints the conditions and the effect, as in `iifname eth0, tcp: drop`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let RuleId::Line(line) = &self.id {
            return f.write_str(line);
        }
        for test in &self.tests {
            write!(f, "{test} ")?;
        }
        write!(f, "{}", self.effect)
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continue => f.write_str("continue"),
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Reject => f.write_str("reject"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
            Self::Return => f.write_str("return"),
            Self::Redirect => f.write_str("dnat"),
            Self::NoTrack => f.write_str("notrack"),
            Self::Unknown => f.write_str("?"),
        }
    }
}
