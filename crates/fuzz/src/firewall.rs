//! Rules of other programs, as netlink lists them and as `iptables-save` prints them, and the ways of packets through them. A walk
//! ends, also if rules lead in a circle.
//!
//! Inputs that begin with a byte 1 are edits of rules of proxies, in tables of another name. The others are messages, then text.

use ipnet::IpNet;
use portolan_firewall::native::{self, Sets};
use portolan_firewall::{Chain, Hook, Packet, Passage, Ruleset, along, saved, walk};
use portolan_iptables::IptablesOptions;
use portolan_model::Family;
use portolan_wire::Frames;
use portolan_wire::nftables::NftablesEvent;

use crate::script::Script;
use crate::{edits, observed, worlds};

/// Bytes that choose edits of the text; the others choose edits of messages.
const TEXT: usize = 48;
/// Rules are written into tables of this name, since those of Services are left out of a walk. It has the length of `kube-proxy`.
const TABLE: &[u8] = b"other-fire";

/// Reads the rules, and follows packets.
pub(crate) fn run(bytes: &[u8]) {
    let (messages, text) = match Script::after(1, bytes) {
        Some(mut script) => edited(&mut script),
        None => (bytes.to_vec(), String::from_utf8_lossy(bytes).into_owned()),
    };
    let mut chains = native_chains(&messages);
    for family in Family::BOTH {
        chains.extend(saved::chains(family, &text));
    }
    follow(chains);
}

fn edited(script: &mut Script<'_>) -> (Vec<u8>, String) {
    let family = script.pick(&Family::BOTH);
    let mut messages = portolan_nftables::fuzzing::kube_proxy(family).to_vec();
    let name = b"kube-proxy";
    let places: Vec<usize> = (0..messages.len()).filter(|at| messages[*at..].starts_with(name)).collect();
    for at in places {
        messages[at..at + name.len()].copy_from_slice(TABLE);
    }
    let table = worlds::table(script);
    let text = portolan_iptables::fuzzing::save(&table, IptablesOptions::default());
    // Chains of Services and rules with counters are not read.
    let text = text.replace("KUBE-", "OTHER-").replace("[1:60] ", "");
    let text = edits::lines(&text, &mut Script::new(script.bytes(TEXT)));
    (edits::frames(&messages, |_| observed::NFNETLINK_HEADER, script), text)
}

fn native_chains(messages: &[u8]) -> Vec<Chain> {
    let (mut chains, mut rules, mut sets) = (Vec::new(), Vec::new(), Sets::new());
    for frame in Frames::new(messages).map_while(Result::ok) {
        match NftablesEvent::decode(&frame) {
            Ok(NftablesEvent::NewChain(chain)) => chains.push(chain),
            Ok(NftablesEvent::NewRule(rule)) => rules.push(rule),
            Ok(NftablesEvent::NewElements(list)) => {
                let key = (list.family.0, list.table.to_owned(), list.set.to_owned());
                let elements = list.elements().flatten().map(|element| element.to_owned());
                sets.entry(key).or_default().extend(elements);
            }
            _ => {}
        }
    }
    native::chains(chains, rules, &sets)
}

fn follow(chains: Vec<Chain>) {
    let ruleset = Ruleset::new(chains);
    for family in Family::BOTH {
        let packet = packet(family);
        for chain in ruleset.chains().iter().filter(|chain| chain.base.is_some()) {
            for hit in walk(&ruleset, chain, &packet) {
                assert!(!hit.is_certain() || hit.only_if.is_empty());
            }
        }
        let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
        for passage in [Passage::Tracked, Passage::Untranslated, Passage::BeforeIpvs, Passage::SentByIpvs] {
            along(&ruleset, &packet, &Packet::of(family), &hooks.map(passage));
        }
    }
}

fn packet(family: Family) -> Packet {
    let [source, destination] = match family {
        Family::Ipv4 => ["10.180.0.0/16", "172.30.10.1/32"],
        Family::Ipv6 => ["fd00:10:180::/48", "fd00:172:30::14/128"],
    };
    let net = |text: &str| -> Option<IpNet> { text.parse().ok() };
    Packet {
        input: Some(vec!["eth0".to_owned()]),
        source: net(source),
        destination: net(destination),
        protocol: Some(6),
        port: Some(80..=80),
        ..Packet::of(family)
    }
}

#[cfg(test)]
mod tests {
    use portolan_firewall::Test;

    use super::*;

    #[test]
    fn rules_without_edits_are_read() {
        let (messages, text) = edited(&mut Script::new(&[]));
        for chains in [native_chains(&messages), saved::chains(Family::Ipv4, &text)] {
            let rules: Vec<_> = chains.iter().flat_map(|chain| &chain.rules).collect();
            let is_unknown = |test: &Test| matches!(test, Test::Unknown(_));
            let known = rules.iter().filter(|rule| !rule.tests.iter().any(is_unknown)).count();
            assert!(rules.len() > 10 && known * 2 > rules.len(), "{known} of {}", rules.len());
            assert!(chains.iter().any(|chain| chain.base.is_some()));
        }
    }
}
