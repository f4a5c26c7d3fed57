//! What other programs and the network do on the node.

use std::io::Write as _;
use std::process::{Command, Stdio};

use fastrand::Rng;
use portolan_testkit::Namespace;

/// Elements that another program adds in one transaction: their notifications are many times what a socket's buffer holds.
const MANY: u32 = 60_000;

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

/// Drops no more packets.
pub(crate) fn lose_no_more(node: &Namespace) {
    nft(node, "delete table inet lost");
}

/// Resets all connections to the port.
pub(crate) fn reset(node: &Namespace, port: u16) {
    node.output("ss", &["--kill", "--tcp", "--no-header", "dport", "=", &format!(":{port}")]).unwrap();
}

/// Adds and removes many elements of another table.
pub(crate) fn overrun(node: &Namespace) {
    let elements: Vec<String> = (0..MANY).map(|number| number.to_string()).collect();
    let elements = elements.join(",");
    nft(node, &format!("table inet other {{ set many {{ type mark; elements = {{ {elements} }} }}\n}}"));
    nft(node, "delete table inet other");
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

/// Removes one element of a map, or one rule of an endpoint, whichever it is.
pub(crate) fn remove_one(node: &Namespace, mode: &str, family: &str, rng: &mut Rng) {
    if mode == "nftables" {
        let map = ["services", "endpoints"][rng.usize(..2)];
        let listing = node.output("nft", &["list", "map", family, "portolan", map]).unwrap();
        let Some((_, elements)) = listing.split_once("elements = {") else { return };
        let elements = elements.split_once('}').map_or(elements, |(elements, _)| elements);
        let Some(element) = any(elements.split(','), rng) else { return };
        let key = element.split(" : ").next().unwrap_or_default();
        let key = key.split(" comment ").next().unwrap_or_default().trim();
        nft(node, &format!("delete element {family} portolan {map} {{ {key} }}"));
    } else {
        let saved = node.output(iptables(family), &["-t", "nat", "-S"]).unwrap();
        let chains = saved.lines().filter_map(|line| line.strip_prefix("-A KUBE-SEP-"));
        let Some(chain) = any(chains.filter_map(|line| line.split(' ').next()), rng) else { return };
        node.output(iptables(family), &["-t", "nat", "-D", &format!("KUBE-SEP-{chain}"), "1"]).unwrap();
    }
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
    let output = node.run(|| {
        let mut nft = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        nft.wait_with_output().unwrap()
    });
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
