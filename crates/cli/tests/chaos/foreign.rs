//! What other programs and the network do on the node.

use fastrand::Rng;
use portolan_testkit::{Namespace, eventually};

use crate::common::PATIENCE;

/// Elements that another program adds in one transaction, and such transactions. Their notifications have some 30 MB, and
/// the agent's sockets hold 16 MiB.
const ELEMENTS: u32 = 100_000;
const TRANSACTIONS: u32 = 4;

/// Drops packets to and from a port on loopback: all of them, or those that an expression of nft matches.
pub(crate) fn lose(node: &Namespace, port: u16, which: &str) {
    let rule = |direction| format!("iifname lo tcp {direction} {port} {which} drop;");
    let (to, from) = (rule("dport"), rule("sport"));
    nft(
        node,
        &format!(
            "table inet lost {{ chain input {{ type filter hook input priority -400; {to} {from} }}\n}}"
        ),
    );
}

/// Answers each new connection to a port on loopback with a reset, as if nothing listened there.
pub(crate) fn refuse(node: &Namespace, port: u16) {
    let begins = "tcp flags & (syn | ack) == syn";
    let rule = format!("iifname lo tcp dport {port} {begins} reject with tcp reset;");
    nft(
        node,
        &format!("table inet lost {{ chain input {{ type filter hook input priority -400; {rule} }}\n}}"),
    );
}

/// Drops packets and refuses connections no more.
pub(crate) fn lose_no_more(node: &Namespace) {
    nft(node, "delete table inet lost");
}

/// Resets all connections to the port.
pub(crate) fn reset(node: &Namespace, port: u16) {
    // It prints what it resets, and succeeds if that is nothing.
    let arguments = ["--kill", "--tcp", "--no-header", "dport", "=", &format!(":{port}")];
    let reset = || !node.output("ss", &arguments).unwrap().trim().is_empty();
    assert!(eventually(PATIENCE, "connections to reset", reset).is_ok());
}

/// Adds many elements to another table and removes it. Fails if that overran no socket: the agent must not read meanwhile.
pub(crate) fn overrun(node: &Namespace) {
    let before = dropped(node);
    nft(node, "table inet other {\n set many { type mark; }\n}");
    for first in (0..TRANSACTIONS).map(|number| number * ELEMENTS) {
        let elements: Vec<String> = (first..first + ELEMENTS).map(|number| number.to_string()).collect();
        nft(node, &format!("add element inet other many {{ {} }}", elements.join(",")));
    }
    nft(node, "delete table inet other");
    assert!(dropped(node) > before, "{}", node.output("cat", &["/proc/net/netlink"]).unwrap());
}

/// Returns the number of notifications of netfilter that sockets had no room for.
fn dropped(node: &Namespace) -> u64 {
    let sockets = node.output("cat", &["/proc/net/netlink"]).unwrap();
    let fields = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields[1] == "12").map(|fields| fields[8].parse::<u64>().unwrap()).sum()
}

/// Removes all rules that lead packets of a family to Services.
pub(crate) fn remove_rules(node: &Namespace, mode: &str, family: &str) {
    match mode {
        "nftables" => node.output("nft", &["delete", "table", family, "portolan"]),
        _ => node.output(iptables(family), &["-t", "nat", "-F"]),
    }
    .unwrap();
}

/// Removes the endpoints of a family, or the way to them.
pub(crate) fn damage(node: &Namespace, mode: &str, family: &str) {
    match mode {
        "nftables" => node.output("nft", &["flush", "map", family, "portolan", "endpoints"]),
        _ => node.output(iptables(family), &["-t", "nat", "-F", "KUBE-SERVICES"]),
    }
    .unwrap();
}

/// Removes one element of a map, or the first rule of one endpoint's chain, by the mode.
pub(crate) fn remove_one(node: &Namespace, mode: &str, family: &str, rng: &mut Rng) {
    // The agent may remove what was listed.
    let remove = || if mode == "nftables" { element(node, family, rng) } else { rule(node, family, rng) };
    assert!(eventually(PATIENCE, "something to remove", remove).is_ok());
}

fn element(node: &Namespace, family: &str, rng: &mut Rng) -> bool {
    let map = ["services", "endpoints"][rng.usize(..2)];
    let Ok(listing) = node.output("nft", &["list", "map", family, "portolan", map]) else { return false };
    let Some((_, elements)) = listing.split_once("elements = {") else { return false };
    let elements = elements.split_once('}').map_or(elements, |(elements, _)| elements);
    let Some(element) = any(elements.split(','), rng) else { return false };
    let key = element.split(" : ").next().unwrap_or_default();
    let key = key.split(" comment ").next().unwrap_or_default().trim();
    node.output("nft", &["delete", "element", family, "portolan", map, &format!("{{ {key} }}")]).is_ok()
}

fn rule(node: &Namespace, family: &str, rng: &mut Rng) -> bool {
    let Ok(saved) = node.output(iptables(family), &["-t", "nat", "-S"]) else { return false };
    let chains = saved.lines().filter_map(|line| line.strip_prefix("-A KUBE-SEP-"));
    let Some(chain) = any(chains.filter_map(|line| line.split(' ').next()), rng) else { return false };
    node.output(iptables(family), &["-t", "nat", "-D", &format!("KUBE-SEP-{chain}"), "1"]).is_ok()
}

fn any<'a>(all: impl Iterator<Item = &'a str>, rng: &mut Rng) -> Option<&'a str> {
    let all: Vec<&str> = all.collect();
    (!all.is_empty()).then(|| all[rng.usize(..all.len())])
}

fn iptables(family: &str) -> &'static str {
    if family == "ip" { "iptables-nft" } else { "ip6tables-nft" }
}

/// Runs nft with this text as its input.
fn nft(node: &Namespace, text: &str) {
    node.output_with_input("nft", &["-f", "-"], text).unwrap();
}
