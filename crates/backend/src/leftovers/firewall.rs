//! The rule of [`FIREWALL`](super::chains::FIREWALL) that kube-proxy and kubelet write: it drops what comes to loopback
//! addresses from elsewhere. Where another rule is in the chain, another program uses it, too, and it stays.

use portolan_model::Family;
use portolan_wire::nftables::expr::{CmpOperation, PayloadBase};
use portolan_wire::nftables::{Data, Expr, Rule, Verdict};

/// The first byte of `127.0.0.0/8`.
const LOOPBACK: u8 = 127;
/// Where the addresses are in an IPv4 header (RFC 791), in bytes.
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;
/// Modules of iptables that the rule uses: a comment, and that connections from this node are left alone. By an expression
/// of that name iptables calls them where it is a front end of nftables.
const MODULES: [&[u8]; 2] = [b"comment\0", b"conntrack\0"];
pub(super) const MODULE: &str = "match";

/// Whether a rule of iptables, as its program prints it without the chain, is the one. In IPv6 there is none.
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

/// Whether a rule of nftables is what iptables makes of the one.
pub(super) fn is_ours(family: Family, rule: &Rule) -> bool {
    let (mut at, mut compared, mut drops) = (None, Vec::new(), false);
    for expression in &rule.expressions {
        match expression {
            Expr::Payload(payload) if payload.base == PayloadBase::NETWORK => at = Some(payload.offset),
            // Of four bytes, where a version of iptables loads all of an address.
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
    fn only_what_keeps_loopback_addresses_from_the_network_is_ours() {
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
