//! The rule of [`FIREWALL`](super::chains::FIREWALL) that kube-proxy and kubelet write: it drops packets to loopback
//! addresses from other sources. If the chain has another rule, another program uses it, too, and it stays.

use portolan_model::Family;
use portolan_wire::nftables::expr::{CmpOperation, PayloadBase};
use portolan_wire::nftables::{Data, Expr, Rule, Verdict};

/// The first byte of `127.0.0.0/8`.
const LOOPBACK: u8 = 127;
/// The offsets of the addresses in an IPv4 header (RFC 791), in bytes.
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;
/// Modules of iptables that the rule uses: for the comment, and to exempt connections from this node. Where iptables
/// is a front end of nftables, it calls them by an expression with the name `MODULE`.
const MODULES: [&[u8]; 2] = [b"comment\0", b"conntrack\0"];
pub(super) const MODULE: &str = "match";

/// Returns true if a rule, as iptables prints it without the chain, is this one. IPv6 has no such rule.
pub(super) fn is_ours_in_words(family: Family, rule: &str) -> bool {
    let addresses = "! -s 127.0.0.0/8 -d 127.0.0.0/8 ";
    let Some(rest) = rule.strip_prefix(addresses).and_then(|rest| rest.strip_suffix("-j DROP")) else {
        return false;
    };
    let rest = match rest.strip_prefix("-m comment --comment \"").and_then(|rest| rest.split_once("\" ")) {
        Some((_, rest)) => rest,
        None => rest,
    };
    let of_others = "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT";
    family == Family::Ipv4 && ["", of_others].contains(&rest.trim_end())
}

/// Returns true if a rule of nftables is what iptables makes of this one.
pub(super) fn is_ours(family: Family, rule: &Rule) -> bool {
    let (mut at, mut compared, mut drops) = (None, Vec::new(), false);
    for expression in &rule.expressions {
        match expression {
            Expr::Payload(payload) if payload.base == PayloadBase::NETWORK => at = Some(payload.offset),
            // Some versions of iptables load all four bytes of an address and mask them.
            Expr::Bitwise(_) | Expr::Counter(_) => {}
            Expr::Cmp(cmp) => match cmp.data.split_first() {
                Some((&LOOPBACK, rest)) if rest.iter().all(|byte| *byte == 0) => {
                    compared.push((at.take(), cmp.operation));
                }
                _ => return false,
            },
            Expr::Immediate(immediate) => drops = immediate.data == Data::Verdict(Verdict::Drop),
            Expr::Other { name, bytes } if name == MODULE => {
                let calls = |module: &&[u8]| bytes.windows(module.len()).any(|part| part == *module);
                if !MODULES.iter().any(calls) {
                    return false;
                }
            }
            _ => return false,
        }
    }
    let addresses = [(Some(SOURCE), CmpOperation::NEQ), (Some(DESTINATION), CmpOperation::EQ)];
    family == Family::Ipv4 && drops && compared == addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_rule_that_protects_loopback_addresses_is_ours() {
        let whole = "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -m \
                     conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
        assert!(is_ours_in_words(Family::Ipv4, whole));
        assert!(is_ours_in_words(Family::Ipv4, "! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP"));
        assert!(!is_ours_in_words(Family::Ipv6, whole));
        for others in [
            "-d 203.0.113.1/32 -j DROP",
            "-j DROP",
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 -j ACCEPT",
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 -p tcp -m tcp --dport 22 -j DROP",
            "! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"mine\" -m owner --uid-owner 5 -j DROP",
        ] {
            assert!(!is_ours_in_words(Family::Ipv4, others), "{others}");
        }
    }
}
