//! Tests that no packet escapes between two tables of a restore: each table takes effect by itself.

use portolan_model::oracle::Packet;
use portolan_model::world::{Ranges, Rng};
use portolan_model::{ExternalPolicy, Family, Forwarding, Frontend};
use proptest::prelude::*;

use super::meaning::{local_addresses, random_options, random_packet, random_settings};
use super::tests::example::{backends, cluster_ip, ip, put};
use super::tests::{Edited, Planned, family, loaded, planner};
use super::{Pieces, Present};
use crate::Variant;
use crate::interpreter::Tables;
use crate::walk::{End, Walk};

/// What happens to packets of this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Translated,
    /// Each is refused, dropped or translated.
    Stopped,
    /// Some leave as they came.
    Escaped,
}

fn kind(tables: &Tables, family: Family, packet: &Packet<'_>) -> Kind {
    let ways = Walk { tables, local_addresses: &local_addresses(family) }.ways(packet);
    if ways.iter().any(|way| way.end == End::Passed) {
        Kind::Escaped
    } else if ways.iter().all(|way| matches!(way.end, End::Translated(_))) {
        Kind::Translated
    } else {
        Kind::Stopped
    }
}

/// Runs a restore that leads to `new`. Returns the packets that escape or are refused at some moment, but neither before it nor
/// after it.
fn astray(
    tables: &mut Tables,
    new: &Tables,
    family: Family,
    text: &str,
    packets: &[Packet<'_>],
) -> Vec<String> {
    let kind = |tables: &Tables, packet: &Packet<'_>| kind(tables, family, packet);
    // A packet that may escape before or after may do so meanwhile.
    let kinds = packets.iter().map(|packet| (packet, [kind(tables, packet), kind(new, packet)]));
    let kinds: Vec<_> = kinds.filter(|(_, kinds)| !kinds.contains(&Kind::Escaped)).collect();
    let mut astray = Vec::new();
    let seen = |tables: &Tables| {
        for (packet, kinds) in &kinds {
            let now = kind(tables, packet);
            if now == Kind::Escaped || (now == Kind::Stopped && *kinds == [Kind::Translated; 2]) {
                astray.push(format!("{kinds:?}, {now:?}: {packet:?}"));
            }
        }
    };
    tables.restore(text, seen).unwrap();
    astray
}

fn packets(rng: &mut Rng, family: Family) -> Vec<Packet<'static>> {
    let ranges = Ranges::example();
    (0..100).map(|_| random_packet(rng, family, &ranges)).collect()
}

fn of_a_world(seed: u64, family: Family) -> (Planned, Edited, Rng) {
    let mut rng = Rng::new(seed);
    let settings = random_settings(&mut rng, family);
    let options = random_options(&mut rng, &settings);
    let mut planner = Planned::new(settings, options);
    let mut edited = Edited::new(seed, 6);
    let (changes, health_checks) = edited.first();
    planner.remember(&changes, &health_checks);
    (planner, edited, rng)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_packet_escapes_while_a_change_is_written(seed in any::<u64>(), family in family()) {
        let (mut planner, mut edited, mut rng) = of_a_world(seed, family);
        let mut tables = loaded(&mut planner);
        let packets = packets(&mut rng, family);
        for _ in 0..6 {
            let (changes, health_checks) = edited.edit(4);
            let text = planner.plan(&changes, &health_checks);
            let new = loaded(&mut planner);
            let astray = astray(&mut tables, &new, family, &text, &packets);
            prop_assert_eq!(astray, [""; 0], "{}", text);
        }
    }

    #[test]
    fn no_packet_escapes_while_a_load_is_written(seed in any::<u64>(), family in family(), in_pieces in any::<bool>()) {
        let (mut planner, mut edited, mut rng) = of_a_world(seed, family);
        let mut tables = loaded(&mut planner);
        let packets = packets(&mut rng, family);
        let pieces = if in_pieces { Pieces::Of(std::num::NonZeroUsize::MIN) } else { Pieces::One };
        for _ in 0..4 {
            let (changes, health_checks) = edited.edit(12);
            planner.remember(&changes, &health_checks);
            let new = loaded(&mut planner);
            let text = planner.full(&tables.present(family), pieces);
            let astray = astray(&mut tables, &new, family, &text, &packets);
            prop_assert_eq!(astray, [""; 0], "{}", text);
            prop_assert_eq!(tables.clone().unordered(), new.unordered());
        }
    }
}

/// Returns the tables that a restore writes, in order.
fn order(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.strip_prefix('*')).collect()
}

/// A node port with policy Local, and a load balancer with source ranges.
fn edge(local: &[&str], ranges: &[&str]) -> Forwarding {
    Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip("172.30.10.2"), 443),
            Frontend::LoadBalancerIp(ip("198.51.100.7"), 443),
            Frontend::NodePort(30443),
        ]),
        external_policy: ExternalPolicy::Local,
        local: backends(local),
        source_ranges: ranges.iter().map(|range| range.parse().unwrap()).collect(),
        ..cluster_ip("172.30.10.2", 443, &["10.180.0.21:8443", "10.180.1.22:8443"])
    }
}

#[test]
fn drops_come_before_the_nat_table_and_go_after_it() {
    const HERE: [&str; 1] = ["10.180.0.21:8443"];
    let edge = |local: &[&str], ranges: &[&str]| put("edge", "api", edge(local, ranges));
    let range = ["192.0.2.0/24"];
    for full in [false, true] {
        let mut planner = planner(Family::Ipv4, &[edge(&HERE, &[])]);
        let mut tables = loaded(&mut planner);
        for (what, change, expected) in [
            ("the last local endpoint goes", edge(&[], &[]), vec!["filter", "nat"]),
            ("it comes", edge(&HERE, &[]), vec!["nat", "filter"]),
            ("source ranges come", edge(&HERE, &range), vec!["filter", "nat"]),
            (
                "the last local endpoint goes and source ranges go",
                edge(&[], &[]),
                vec!["filter", "nat", "filter"],
            ),
            ("source ranges come, and an endpoint", edge(&HERE, &range), vec!["filter", "nat", "filter"]),
            ("source ranges go", edge(&HERE, &[]), vec!["nat", "filter"]),
        ] {
            let text = if full {
                planner.remember(&[change], &[]);
                planner.full(&tables.present(Family::Ipv4), Pieces::One)
            } else {
                planner.plan(&[change], &[])
            };
            assert_eq!(order(&text), expected, "{what}:\n{text}");
            tables.restore(&text, |_| {}).unwrap();
            assert_eq!(tables.clone().unordered(), loaded(&mut planner).unordered(), "{what}");
        }
    }
}

/// Above a number of removed rules, a change writes chains as a whole. It does so after the nat table, too.
#[test]
fn many_refusals_go_after_the_nat_table() {
    let service = |number: u8, endpoints: &[&str]| {
        put(&format!("s{number}"), "", cluster_ip(&format!("172.30.1.{number}"), 80, endpoints))
    };
    let of_all = |endpoints: &[&str]| (0..150).map(|number| service(number, endpoints)).collect::<Vec<_>>();
    let mut planner = planner(Family::Ipv4, &of_all(&[]));
    let mut tables = loaded(&mut planner);
    let mut come = of_all(&["10.180.1.1:80"]);
    come.push(service(200, &[]));
    let text = planner.plan(&come, &[]);
    assert_eq!(order(&text), ["filter", "nat", "filter"]);
    assert!(!text.contains("\n-D ") && text.matches("demo/s200 has no endpoints").count() == 2, "{text}");
    tables.restore(&text, |_| {}).unwrap();
    assert_eq!(tables.unordered(), loaded(&mut planner).unordered());
}

/// Where iptables prints rules in another way, each load takes all of them for missing. Loads that fail after the filter table
/// must not make its chains longer and longer.
#[test]
fn a_load_that_fails_again_and_again_does_not_fill_a_chain() {
    let mut planner = planner(Family::Ipv4, &[put("empty", "", cluster_ip("172.30.10.4", 53, &[]))]);
    let mut tables = loaded(&mut planner);
    let mut most = 0;
    for _ in 0..10 {
        let mut present = Present::default();
        for line in tables.save(Family::Ipv4, Variant::Nft).lines() {
            let line = line.split_once("] ").map_or(line, |(_, rule)| rule);
            present.line(&line.replace("--reject-with", "--reject-also-with"));
        }
        let text = planner.full(&present, Pieces::One);
        let first: String = text.split_inclusive("COMMIT\n").take(1).collect();
        tables.restore(&first, |_| {}).unwrap();
        most = most.max(tables.chain("filter", "KUBE-SERVICES").unwrap().len());
    }
    assert!(most <= 2 + 1, "{most}");
}
