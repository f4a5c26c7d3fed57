//! Rules of other programs, as netlink lists them and as `iptables-save` prints them, and the ways of packets through them. A walk
//! ends, also if rules lead in a circle, and each hit is a rule, or a policy, on that way.
//!
//! Choices edit rules, and choose packets. Other inputs are messages, then text.

use std::ops::RangeInclusive;

use ipnet::IpNet;
use portolan_firewall::native::{self, Interfaces, Sets};
use portolan_firewall::{Chain, Hit, Hook, Packet, Passage, Ruleset, along, saved, walk};
use portolan_model::Family;
use portolan_nftables::fuzzing::{OTHER, kube_proxy};
use portolan_wire::Frames;
use portolan_wire::nftables::NftablesEvent;

use crate::observed::NFNETLINK_HEADER;
use crate::script::Script;
use crate::{edits, worlds};

/// Bytes that choose edits of the text; the others choose edits of messages.
const TEXT: usize = 48;
/// The rules of kube-proxy are read from a table of another name, since those of Services are left out of a walk. The name has the
/// length of `kube-proxy`.
const TABLE: &[u8] = b"other-fire";
/// Hooks that a packet passes.
const HOOKS: [Hook; 7] = [
    Hook::Ingress,
    Hook::Prerouting,
    Hook::Input,
    Hook::Forward,
    Hook::Output,
    Hook::Postrouting,
    Hook::Egress,
];
/// Networks of sources and destinations, in the rules and outside.
const NETWORKS: [&str; 12] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.96.0.1/32",
    "10.96.0.9/32",
    "10.1.0.1/32",
    "192.0.2.7/32",
    "172.30.10.1/32",
    "10.244.0.0/16",
    "::/0",
    "fd00::/8",
    "2001:db8::1/128",
    "2001:db8:96::1/128",
];
const PORTS: [RangeInclusive<u16>; 8] =
    [80..=80, 81..=81, 8080..=8080, 9090..=9090, 22..=443, 1000..=1000, 4789..=4789, 0..=65535];

/// Reads the rules, and follows packets.
pub(crate) fn run(bytes: &[u8]) {
    let (messages, text, packets) = if let Some(mut script) = Script::of(bytes) {
        let packets = [packet(&mut script), packet(&mut script)];
        let (messages, text) = edited(&mut script);
        (messages, text, packets)
    } else {
        (bytes.to_vec(), String::from_utf8_lossy(bytes).into_owned(), Family::BOTH.map(Packet::of))
    };
    let mut chains = native_chains(&messages);
    chains.extend(Family::BOTH.into_iter().flat_map(|family| saved::chains(family, &text)));
    follow(&Ruleset::new(chains), &packets);
}

fn edited(script: &mut Script<'_>) -> (Vec<u8>, String) {
    let messages = match script.below(4) {
        0 => renamed(kube_proxy(Family::Ipv4)),
        1 => renamed(kube_proxy(Family::Ipv6)),
        _ => OTHER.to_vec(),
    };
    let text = worlds::other_rules(&worlds::table(script));
    let text = edits::lines(&text, &mut Script::new(script.bytes(TEXT)));
    (edits::frames(&messages, |_| NFNETLINK_HEADER, script), text)
}

/// Gives kube-proxy's table another name.
fn renamed(messages: &[u8]) -> Vec<u8> {
    let (mut messages, name) = (messages.to_vec(), b"kube-proxy");
    let places: Vec<usize> = (0..messages.len()).filter(|at| messages[*at..].starts_with(name)).collect();
    for at in places {
        messages[at..at + name.len()].copy_from_slice(TABLE);
    }
    messages
}

fn packet(script: &mut Script<'_>) -> Packet {
    let family = script.pick(&Family::BOTH);
    let network = |script: &mut Script<'_>| -> Option<IpNet> {
        let network: IpNet = script.pick(&NETWORKS).parse().expect("a network");
        (script.flag() && Family::of(network.addr()) == family).then_some(network)
    };
    let interfaces = |script: &mut Script<'_>| match script.below(4) {
        0 => None,
        1 => Some(Vec::new()),
        2 => Some(vec!["eth0".to_owned()]),
        _ => Some(vec!["cali1".to_owned(), "lo".to_owned()]),
    };
    Packet {
        family,
        input: interfaces(script),
        output: interfaces(script),
        source: network(script),
        destination: network(script),
        protocol: script.pick(&[None, Some(6), Some(17), Some(132), Some(1)]),
        port: script.flag().then(|| script.pick(&PORTS)),
        translated: script.flag(),
        ..Packet::of(family)
    }
}

/// Returns the chains that these messages list.
pub(crate) fn native_chains(messages: &[u8]) -> Vec<Chain> {
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
    native::chains(chains, rules, &sets, &Interfaces::from([(1, "lo".to_owned())]))
}

fn follow(ruleset: &Ruleset, packets: &[Packet; 2]) {
    let [before, after] = packets;
    for packet in packets {
        for chain in ruleset.chains().iter().filter(|chain| chain.base.is_some()) {
            for hit in walk(ruleset, chain, packet) {
                check(ruleset, &hit);
            }
        }
    }
    for passage in [Passage::Tracked, Passage::Untranslated, Passage::BeforeIpvs, Passage::SentByIpvs] {
        for hit in along(ruleset, before, after, &HOOKS.map(passage)) {
            check(ruleset, &hit);
        }
    }
}

fn check(ruleset: &Ruleset, hit: &Hit<'_>) {
    let is_own = ruleset.chains().iter().any(|chain| std::ptr::eq(chain, hit.chain));
    assert!(is_own, "a chain of the ruleset: {hit:?}");
    assert!(hit.base.base.is_some(), "a base chain: {hit:?}");
    match hit.rule {
        Some(rule) => assert!(hit.chain.rules.iter().any(|own| std::ptr::eq(own, rule)), "its rule: {hit:?}"),
        None => assert!(hit.base.base.is_some_and(|base| base.drops), "a policy that drops: {hit:?}"),
    }
}

#[cfg(test)]
mod tests {
    use portolan_firewall::{Kind, Test};

    use super::*;

    #[test]
    fn rules_without_edits_are_read() {
        let text = worlds::other_rules(&worlds::table(&mut Script::new(&[])));
        let known = |chains: Vec<Chain>| {
            let is_unknown = |test: &Test| matches!(test, Test::Unknown(_));
            let rules: Vec<_> = chains.iter().flat_map(|chain| &chain.rules).collect();
            let known = rules.iter().filter(|rule| !rule.tests.iter().any(is_unknown)).count();
            assert!(chains.iter().any(|chain| chain.base.is_some()));
            (rules.len(), known)
        };
        for messages in [OTHER, &renamed(kube_proxy(Family::Ipv4)), &renamed(kube_proxy(Family::Ipv6))] {
            let (rules, known) = known(native_chains(messages));
            assert!(rules > 20 && known * 2 > rules, "{known} of {rules}");
        }
        let (rules, known) = known(saved::chains(Family::Ipv4, &text));
        assert!(rules > 10 && known * 2 > rules, "{known} of {rules}");
    }

    #[test]
    fn packets_meet_rules_of_every_kind() {
        let ruleset = Ruleset::new(native_chains(OTHER));
        let mut kinds = Vec::new();
        for seed in 0..64 {
            let bytes = crate::script::random(seed, 64);
            let packet = packet(&mut Script::new(&bytes));
            let chains = ruleset.chains().iter().filter(|chain| chain.base.is_some());
            let hits = chains.flat_map(|chain| walk(&ruleset, chain, &packet));
            kinds.extend(hits.map(|hit| (hit.kind, hit.is_certain())));
        }
        for kind in [Kind::Stop, Kind::Redirect, Kind::NoTrack] {
            assert!(kinds.iter().any(|(other, _)| *other == kind), "{kind:?}");
        }
        assert!([true, false].iter().all(|certain| kinds.iter().any(|(_, other)| other == certain)));
    }
}
