use portolan_model::Family;

use super::super::{Base, Program, RuleId, TableFamily, TableId, saved};
use super::*;
use ipnet::IpNet;

const SAVED: &str = "\
*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 10.96.0.80/32 -i eth1 -j CT --notrack
COMMIT
*filter
:FORWARD DROP [0:0]
-A FORWARD -d 10.244.1.11/32 -p tcp -m tcp --dport 8080 -j ACCEPT
-A FORWARD -d 10.96.0.80/32 -j REJECT
COMMIT
";

fn hits(endpoint: &str, input: &str) -> Vec<String> {
    let ruleset = Ruleset::new(saved::chains(Family::Ipv4, SAVED));
    let before = Packet {
        destination: Some("10.96.0.80/32".parse().expect("an address")),
        input: Some(vec![input.to_owned()]),
        protocol: Some(6),
        port: Some(80..=80),
        ..Packet::of(Family::Ipv4)
    };
    let destination = Some(endpoint.parse().expect("an address"));
    let after = Packet { destination, port: Some(8080..=8080), translated: true, ..before.clone() };
    let passages = [Hook::Prerouting, Hook::Forward].map(Passage::Tracked);
    let hits = along(&ruleset, &before, &after, &passages);
    let text = |hit: &Hit<'_>| {
        let rule = hit.rule.map_or("policy".to_owned(), ToString::to_string);
        format!("{:?} by {rule}, certain: {}", hit.kind, hit.is_certain())
    };
    hits.iter().map(text).collect()
}

/// Chains of iptables with those of kube-proxy.
fn of_kube_proxy(nat: &str, forward: &str, masqueraded: bool, established: bool) -> Vec<(Kind, bool)> {
    let saved = format!(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:mine - [0:0]\n{nat}\n\
         -A PREROUTING -j KUBE-SERVICES\n-A PREROUTING -j DNAT --to-destination 10.9.9.9\nCOMMIT\n\
         *filter\n:FORWARD DROP [0:0]\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n{forward}\nCOMMIT\n"
    );
    let ruleset = Ruleset::new(saved::chains(Family::Ipv4, &saved));
    let before = Packet {
        destination: Some("10.96.0.80/32".parse().expect("an address")),
        masqueraded: Some(masqueraded),
        established,
        ..Packet::of(Family::Ipv4)
    };
    let after = Packet { translated: true, ..before.clone() };
    let passages = [Hook::Prerouting, Hook::Forward].map(Passage::Tracked);
    let hits = along(&ruleset, &before, &after, &passages);
    hits.iter().map(|hit| (hit.kind, hit.is_certain())).collect()
}

#[test]
fn the_chain_of_kube_proxy_accepts_what_is_masqueraded_or_established() {
    let dropped = [(Kind::Stop, true)];
    assert_eq!(of_kube_proxy("", "", false, false), dropped);
    assert_eq!(of_kube_proxy("", "-A FORWARD -s 10.0.0.0/8 -j ACCEPT", false, false), [(Kind::Stop, false)]);
    assert_eq!(of_kube_proxy("", "", true, false), []);
    assert_eq!(of_kube_proxy("", "", false, true), []);
}

#[test]
fn rules_after_chains_of_kube_proxy_that_accept_nothing_are_certain() {
    let hits = |jumps: &[&str], hook: &str, of_service| {
        let declared: Vec<_> = jumps.iter().map(|chain| format!(":{chain} - [0:0]\n")).collect();
        let rules: Vec<_> = jumps.iter().map(|chain| format!("-A {hook} -j {chain}\n")).collect();
        let saved = format!("*filter\n:{hook} DROP [0:0]\n{}{}COMMIT\n", declared.concat(), rules.concat());
        let ruleset = Ruleset::new(saved::chains(Family::Ipv4, &saved));
        let packet = Packet { of_service, ..Packet::of(Family::Ipv4) };
        let hook = if hook == "INPUT" { Hook::Input } else { Hook::Forward };
        let hits = along(&ruleset, &packet, &packet, &[Passage::Tracked(hook)]);
        hits.iter().map(|hit| (hit.kind, hit.is_certain())).collect::<Vec<_>>()
    };
    for jumps in [
        &["KUBE-FIREWALL"][..],
        &["KUBE-PROXY-FIREWALL", "KUBE-SERVICES", "KUBE-NODEPORTS"],
        &["KUBE-IPVS-FILTER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL"],
    ] {
        assert_eq!(hits(jumps, "INPUT", true), [(Kind::Stop, true)], "{jumps:?}");
        let of_others = hits(jumps, "INPUT", false);
        assert_eq!(of_others, [(Kind::Stop, false)], "{jumps:?}: health-check node ports");
    }
    assert_eq!(
        hits(&["KUBE-FORWARD"], "FORWARD", true),
        [(Kind::Stop, false)],
        "whether it is masqueraded is not known"
    );
}

#[test]
fn chains_after_the_translation_of_sources_see_an_address_of_the_node() {
    let place = TableId { program: Program::Nft, family: TableFamily::Ip, table: "guard".to_owned() };
    let pods: IpNet = "10.244.0.0/16".parse().expect("a network");
    let hits = |hook, priority, leaves_masqueraded| {
        let id = RuleId::Handle(1);
        let rule = Rule { tests: vec![Test::Source(pods)], effect: Effect::Drop, id };
        let base = Some(Base { hook, priority, nat: false, drops: false });
        let chain = Chain { place: place.clone(), name: "c".to_owned(), base, rules: vec![rule] };
        let packet = Packet {
            source: Some("10.244.1.10/32".parse().expect("an address")),
            leaves_masqueraded,
            ..Packet::of(Family::Ipv4)
        };
        let ruleset = Ruleset::new(vec![chain]);
        let hits = along(&ruleset, &packet, &packet, &[Passage::Tracked(hook)]);
        hits.iter().map(Hit::is_certain).collect::<Vec<_>>()
    };
    assert_eq!(hits(Hook::Postrouting, 200, true), [false]);
    assert_eq!(hits(Hook::Postrouting, 200, false), [true]);
    assert_eq!(hits(Hook::Postrouting, 0, true), [true], "it has the client's address there");
    assert_eq!(hits(Hook::Egress, 0, true), [false]);
}

#[test]
fn a_verdict_before_the_chain_of_services() {
    let hits = |nat: &str| of_kube_proxy(nat, "", true, false);
    for rules in [
        "-A PREROUTING -d 10.96.0.80/32 -j ACCEPT",
        "-A PREROUTING -d 10.96.0.80/32 -j RETURN",
        "-A PREROUTING -j mine\n-A mine -j ACCEPT",
        "-A PREROUTING -g mine",
    ] {
        assert_eq!(hits(rules), [(Kind::NotTranslated, true)], "{rules}");
    }
    assert_eq!(hits("-A PREROUTING -m mark --mark 1 -j ACCEPT"), [(Kind::NotTranslated, false)]);
    assert_eq!(hits("-A PREROUTING -d 10.9.9.9/32 -j ACCEPT"), [], "another packet");
    assert_eq!(hits("-A PREROUTING -j mine\n-A mine -j RETURN"), [], "Services come after that");
}

#[test]
fn chains_of_type_nat_after_the_translation_are_not_called() {
    const NONE: [bool; 0] = [];
    let place = TableId { program: Program::Nft, family: TableFamily::Inet, table: "mine".to_owned() };
    let hits = |hook, priority, nat, (is_translated, translates): (bool, bool)| {
        let base = Some(Base { hook, priority, nat, drops: true });
        let chain = Chain { place: place.clone(), name: "c".to_owned(), base, rules: Vec::new() };
        let before = Packet { translated: is_translated, ..Packet::of(Family::Ipv4) };
        let after = Packet { translated: is_translated || translates, ..before.clone() };
        let ruleset = Ruleset::new(vec![chain]);
        let hits = along(&ruleset, &before, &after, &[Passage::Tracked(hook)]);
        hits.iter().map(Hit::is_certain).collect::<Vec<_>>()
    };
    let (translates, not) = ((false, true), (false, false));
    for hook in [Hook::Prerouting, Hook::Output] {
        assert_eq!(hits(hook, -101, true, translates), [true]);
        assert_eq!(hits(hook, -100, true, translates), [false], "which one is first is not known");
        assert_eq!(hits(hook, -90, true, translates), NONE);
        assert_eq!(hits(hook, -90, false, translates), [true], "of type filter");
        assert_eq!(hits(hook, -90, true, not), [true], "nothing has translated it");
        assert_eq!(hits(hook, -101, true, (true, false)), NONE, "it is translated already");
    }
    assert_eq!(hits(Hook::Postrouting, 110, true, translates), [true], "of sources");
}

#[test]
fn a_connection_is_followed_before_and_after_its_translation() {
    assert_eq!(hits("10.244.1.11/32", "eth0"), Vec::<String>::new());
    assert_eq!(hits("10.244.1.12/32", "eth0"), ["Stop by policy, certain: true"]);
    assert_eq!(
        hits("10.244.1.11/32", "eth1"),
        ["NoTrack by PREROUTING -d 10.96.0.80/32 -i eth1 -j CT --notrack, certain: true"]
    );
}

#[test]
fn a_netmap_translates_sources_of_packets_that_leave_or_have_arrived() {
    let hits = |hook, chain: &str| {
        let saved = format!(
            "*nat\n:{chain} ACCEPT [0:0]\n:mine - [0:0]\n-A {chain} -j mine\n\
             -A mine -d 10.0.0.0/8 -j NETMAP --to 192.0.2.0/24\nCOMMIT\n"
        );
        let ruleset = Ruleset::new(saved::chains(Family::Ipv4, &saved));
        let destination = Some("10.96.0.80/32".parse().expect("an address"));
        let packet = Packet { destination, ..Packet::of(Family::Ipv4) };
        let hits = along(&ruleset, &packet, &packet, &[Passage::Tracked(hook)]);
        hits.iter().map(|hit| hit.kind).collect::<Vec<_>>()
    };
    for (hook, chain) in [(Hook::Input, "INPUT"), (Hook::Postrouting, "POSTROUTING")] {
        assert_eq!(hits(hook, chain), [], "{chain}");
    }
    for (hook, chain) in [(Hook::Prerouting, "PREROUTING"), (Hook::Output, "OUTPUT")] {
        assert_eq!(hits(hook, chain), [Kind::Redirect], "{chain}");
    }
}
