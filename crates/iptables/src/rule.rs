//! Tables, chains and rules as text.

use std::fmt::{self, Display};

use portolan_model::Protocol;

/// A table that this mode writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum IptablesTable {
    /// Has only the canary.
    Mangle,
    /// Refuses, drops and accepts packets.
    Filter,
    /// Translates packets.
    Nat,
}

impl IptablesTable {
    /// Returns the table of this name; `None` if this mode does not write to it.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Mangle, Self::Filter, Self::Nat].into_iter().find(|table| table.name() == name)
    }

    /// Returns its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Mangle => "mangle",
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

impl Display for IptablesTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A rule that may be in a table: its table, its chain, and its text as a save prints it.
pub type Candidate<'a> = (&'a str, &'a str, &'a str);

/// Returns the table that a line of a save names as one that it does not print.
pub(super) fn unprinted(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("# Table `")?;
    rest.split_once("' is incompatible").map(|(table, _)| table)
}

/// A rule of a fixed chain. The text is that of a restore, without the operation and the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) table: IptablesTable,
    pub(super) chain: &'static str,
    pub(super) text: String,
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: String,
    pub(super) rules: Vec<String>,
}

/// A comment match. It is always in quotes, which words with spaces between them need; the name of a Service port has
/// neither spaces nor quotes.
pub(super) struct Comment<T>(pub(super) T);

impl<T: Display> Display for Comment<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-m comment --comment \"{}\"", self.0)
    }
}

/// Matches packets whose destination has not been translated.
pub(super) const UNTRANSLATED: &str = "-m conntrack ! --ctstate DNAT";

/// Opens a table of a restore.
pub(super) fn begin(out: &mut impl fmt::Write, table: IptablesTable) -> fmt::Result {
    writeln!(out, "*{table}")
}

/// Creates a chain, or empties it.
pub(super) fn declare(out: &mut impl fmt::Write, chain: impl Display) -> fmt::Result {
    writeln!(out, ":{chain} - [0:0]")
}

/// Adds a rule at the end of a chain.
pub(super) fn append(out: &mut impl fmt::Write, chain: impl Display, rule: impl Display) -> fmt::Result {
    writeln!(out, "-A {chain} {rule}")
}

/// Adds a rule before all others of a chain.
pub(super) fn prepend(out: &mut impl fmt::Write, chain: impl Display, rule: impl Display) -> fmt::Result {
    writeln!(out, "-I {chain} {rule}")
}

/// Removes a rule.
pub(super) fn remove(out: &mut impl fmt::Write, chain: impl Display, rule: impl Display) -> fmt::Result {
    writeln!(out, "-D {chain} {rule}")
}

/// Removes all rules of a chain.
pub(super) fn flush(out: &mut impl fmt::Write, chain: impl Display) -> fmt::Result {
    writeln!(out, "-F {chain}")
}

/// Removes an empty chain that nothing refers to.
pub(super) fn remove_chain(out: &mut impl fmt::Write, chain: impl Display) -> fmt::Result {
    writeln!(out, "-X {chain}")
}

/// Closes a table. Its changes take effect at once.
pub(super) fn commit(out: &mut impl fmt::Write) -> fmt::Result {
    out.write_str("COMMIT\n")
}

/// Returns the target that refuses packets of a protocol; the protocol is in lower case. TCP gets a reset: an ICMP
/// error reaches a client of this node while its `connect()` holds the socket, and takes effect only when the SYN is
/// repeated, a second later (`tcp_v4_err`, `TCP_TIMEOUT_INIT`). The kernel accepts the reset target in rules for TCP
/// only.
pub(super) fn refusal(protocol: &str) -> &'static str {
    if protocol == "tcp" { "REJECT --reject-with tcp-reset" } else { "REJECT" }
}

/// Returns the name of a protocol as iptables spells it.
pub(super) const fn lower_case(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

/// Splits a rule into words. A quoted text is one word.
pub(super) fn words(rule: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (index, part) in rule.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part);
        } else {
            words.extend(part.split_whitespace());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_a_save() {
        assert_eq!(unprinted("# Table `filter' is incompatible, use 'nft' tool."), Some("filter"));
        assert_eq!(unprinted("# Generated by iptables-nft-save v1.8.9 (nf_tables)"), None);
        assert_eq!(unprinted("*filter"), None);
    }
}
