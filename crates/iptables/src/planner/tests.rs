use std::collections::BTreeSet;

use insta::assert_snapshot;
use portolan_model::{
    ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, LocalDetector, NodePortAddresses, Protocol,
};
use proptest::prelude::*;

use super::*;
use crate::interpreter::Tables;
use crate::options::Redirect;
use portolan_engine::HealthCheckPort;

#[path = "../../tests/iptables/edited.rs"]
mod edited;
#[path = "../../tests/iptables/example.rs"]
pub(crate) mod example;
#[path = "../../tests/iptables/planned.rs"]
mod planned;

pub(crate) use edited::Edited;
pub(crate) use example::settings;
use example::{cluster_ip, ip, ipv4 as demo, ipv6, put};
pub(crate) use planned::Planned;

pub(crate) fn counting() -> IptablesOptions {
    IptablesOptions { count_invalid: true, count_localhost: true, ..IptablesOptions::default() }
}

fn gone(change: &Change) -> Change {
    Change { old: change.new.clone(), new: None, ..change.clone() }
}

pub(crate) fn planner(family: Family, changes: &[Change]) -> Planned {
    let mut planner = Planned::new(settings(family), counting());
    planner.remember(changes, &[]);
    planner
}

fn full(planner: &mut Planned, present: &Present, pieces: Pieces) -> String {
    planner.full(present, pieces)
}

pub(crate) fn load(planner: &mut Planned) -> String {
    full(planner, &Present::default(), Pieces::One)
}

#[test]
fn a_load_of_every_kind_of_service() {
    assert_snapshot!(load(&mut planner(Family::Ipv4, &demo())));
}

#[test]
fn a_load_without_services_in_ipv6() {
    assert_snapshot!(load(&mut planner(Family::Ipv6, &[])));
}

/// No endpoint on this node with policy Local for both, a detector by interface prefix, given node-port addresses,
/// another masquerade bit.
#[test]
fn a_load_where_all_is_otherwise() {
    let dual = Forwarding {
        protocol: Protocol::Sctp,
        frontends: Box::new([
            Frontend::ClusterIp(ip("172.30.10.20"), 99),
            Frontend::ExternalIp(ip("192.0.2.50"), 99),
            Frontend::LoadBalancerIp(ip("198.51.100.8"), 99),
            Frontend::NodePort(30999),
        ]),
        internal_policy: InternalPolicy::Local,
        external_policy: ExternalPolicy::Local,
        ..cluster_ip("172.30.10.20", 99, &["10.180.1.62:9099"])
    };
    let settings = Settings {
        local_detector: LocalDetector::InterfacePrefix("veth".into()),
        masquerade_bit: 5,
        node_port_addresses: NodePortAddresses::Addresses(vec![ip("192.168.0.2")]),
        ..settings(Family::Ipv4)
    };
    let options = IptablesOptions {
        loopback_addresses: vec![ip("127.0.0.1")],
        drop_invalid: false,
        ..IptablesOptions::default()
    };
    let mut planner = Planned::new(settings, options);
    planner.remember(&[put("dual", "", dual)], &[health_check(Some(32222))]);
    assert_snapshot!(load(&mut planner));
}

fn health_check(port: Option<u16>) -> HealthCheckPort {
    HealthCheckPort { namespace: "demo".into(), service: "dual".into(), port, local_ready: 1 }
}

#[test]
fn a_load_in_ipv6() {
    assert_snapshot!(load(&mut planner(Family::Ipv6, &ipv6())));
}

#[test]
fn a_change_of_endpoints_writes_their_chains_only() {
    let demo = demo();
    let mut planner = planner(Family::Ipv4, &demo);
    load(&mut planner);
    let web = cluster_ip("172.30.10.1", 80, &["10.180.0.11:8080", "10.180.1.13:8080", "10.180.1.14:8080"]);
    assert_snapshot!(planner.plan(&[put("web", "http", web.clone())], &[]));
    assert_eq!(planner.plan(&[put("web", "http", web)], &[]), "", "nothing changes");
}

/// Without node-port addresses no rule has to be the last of its chain, so Services may be in any order.
#[test]
fn nothing_is_written_again_where_no_address_takes_node_ports() {
    let node_port_addresses = NodePortAddresses::Addresses(Vec::new());
    let settings = Settings { node_port_addresses, ..settings(Family::Ipv4) };
    let mut planner = Planned::new(settings, counting());
    planner.remember(&demo()[2..], &[]);
    let mut tables = loaded(&mut planner);
    tables.restore(&planner.plan(&demo()[..2], &[]), |_| {}).unwrap();
    let present = tables.present(Family::Ipv4);
    assert_eq!(full(&mut planner, &present, Pieces::One), "");
}

#[test]
fn the_last_endpoint_goes_and_comes() {
    let demo = demo();
    let mut planner = planner(Family::Ipv4, &demo);
    load(&mut planner);
    let edge = Forwarding {
        cluster: Box::default(),
        local: Box::default(),
        has_endpoints: false,
        ..(**demo[1].new.as_ref().unwrap()).clone()
    };
    let gone = planner.plan(&[put("edge", "api", edge)], &[]);
    let come = planner.plan(&demo[1..2], &[]);
    assert_snapshot!(format!("# gone\n{gone}# come\n{come}"));
}

#[test]
fn a_service_and_its_health_check_port_come_and_go() {
    let dual = put("dual", "", cluster_ip("172.30.10.20", 99, &["10.180.1.62:9099"]));
    let mut planner = planner(Family::Ipv4, &demo());
    load(&mut planner);
    let steps = [
        planner.plan(&[], &[health_check(Some(32222))]),
        planner.plan(std::slice::from_ref(&dual), &[]),
        planner.plan(&[], &[health_check(Some(32223))]),
        planner.plan(&[gone(&dual)], &[health_check(None)]),
    ];
    assert_snapshot!(steps.join("# then\n"));
}

#[test]
fn a_removal_leaves_what_kubelet_shares() {
    let mut tables = loaded(&mut planner(Family::Ipv4, &demo()));
    tables.restore(&tables.present(Family::Ipv4).removal(|_, _| false), |_| {}).unwrap();
    let left: Vec<_> = ["mangle", "filter", "nat"]
        .into_iter()
        .flat_map(|table| tables.chains(table).into_iter().map(move |chain| (table, chain)))
        .filter(|(table, chain)| Tables::empty().chain(table, chain).is_none())
        .collect();
    assert_eq!(left, [("filter", "KUBE-FIREWALL")]);
    assert_eq!(tables.chain("filter", "INPUT").unwrap(), ["-j KUBE-FIREWALL"]);
    assert_eq!(tables.chain("nat", "OUTPUT").unwrap(), [""; 0]);
    assert_eq!(Tables::empty().present(Family::Ipv4).removal(|_, _| false), "");
}

#[test]
fn probabilities_have_ten_decimals() {
    let places: Vec<String> = (0..12).map(|host| format!("10.180.2.{host}:80")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let text = load(&mut planner(Family::Ipv4, &[put("many", "", cluster_ip("172.30.10.9", 80, &places))]));
    let words: Vec<&str> = text.split_whitespace().collect();
    let found: Vec<&str> =
        words.windows(2).filter(|pair| pair[0] == "--probability").map(|pair| pair[1]).collect();
    assert_eq!(
        found,
        [
            "0.0833333333",
            "0.0909090909",
            "0.1000000000",
            "0.1111111111",
            "0.1250000000",
            "0.1428571429",
            "0.1666666667",
            "0.2000000000",
            "0.2500000000",
            "0.3333333333",
            "0.5000000000"
        ]
    );
    let order = text.find("10.180.2.10:80").unwrap() < text.find("10.180.2.2:80").unwrap();
    assert!(order, "endpoints are sorted as text");
}

/// Rules are tried one after the other, so a rule's chance is its probability times that of reaching it. Ten decimals, and the
/// kernel's 31 bits, change it by less than one in a billion.
#[test]
fn every_endpoint_has_the_same_chance() {
    for count in 2..=100 {
        let places: Vec<String> = (0..count).map(|host| format!("10.180.2.{host}:80")).collect();
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let forwarding = Forwarding {
            frontends: Box::new([Frontend::ClusterIp(ip("172.30.10.9"), 80), Frontend::NodePort(30080)]),
            external_policy: ExternalPolicy::Local,
            local: example::backends(&places),
            affinity: (count % 2 == 0).then_some(600),
            ..cluster_ip("172.30.10.9", 80, &places)
        };
        let text = load(&mut planner(Family::Ipv4, &[put("many", "", forwarding)]));
        for kind in ["KUBE-SVC-", "KUBE-SVL-"] {
            let rules = text.lines().filter_map(|line| line.strip_prefix("-A ")).filter_map(|line| {
                let (chain, rule) = line.split_once(' ')?;
                let chooses = rule.contains(" -j KUBE-SEP-") && !rule.contains("--rcheck");
                (chain.starts_with(kind) && chooses).then_some(rule)
            });
            let written: Vec<String> = rules.map(str::to_owned).collect();
            let stored: Vec<String> =
                written.iter().map(|rule| crate::saved::saved(Family::Ipv4, rule)).collect();
            for rules in [written, stored] {
                let chances = chances(&rules);
                let same = 1.0 / f64::from(count);
                let differs = |chance: &f64| (chance - same).abs() > 1e-9;
                assert!(
                    chances.len() == places.len() && !chances.iter().any(differs),
                    "{count}: {chances:?}"
                );
            }
        }
    }
}

/// Returns the chance of each rule that a packet leaves the chain by it. The last rule takes all that are left.
fn chances(rules: &[String]) -> Vec<f64> {
    let mut left = 1.0;
    let chance = |rule: &String| {
        let mut words = rule.split_whitespace().skip_while(|word| *word != "--probability");
        let probability = words.nth(1).map_or(1.0, |word| word.parse().unwrap());
        let taken = left * probability;
        left -= taken;
        taken
    };
    rules.iter().map(chance).collect()
}

#[test]
fn masquerade_all_and_no_detector() {
    let mut planner = planner(Family::Ipv4, &demo()[..1]);
    let mut all = Settings { masquerade_all: true, ..settings(Family::Ipv4) };
    planner.configure(all.clone(), IptablesOptions::default());
    let marks = |text: &str| {
        let marks =
            text.lines().filter(|line| line.contains("cluster IP") && line.ends_with("KUBE-MARK-MASQ"));
        marks.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        marks(&load(&mut planner)),
        [
            "-A KUBE-SVC-XRY76EGRC3BSCIIJ -m comment --comment \"demo/web:http cluster IP\" -m tcp -p tcp -d 172.30.10.1 \
             --dport 80 -j KUBE-MARK-MASQ"
        ]
    );
    all.masquerade_all = false;
    all.local_detector = LocalDetector::None;
    planner.configure(all, IptablesOptions::default());
    assert_eq!(marks(&load(&mut planner)), [""; 0]);
}

#[test]
fn in_a_large_cluster_single_endpoints_have_no_comments() {
    let service = |number: usize| {
        let places = [format!("10.180.{}.{}:80", number / 250, number % 250)];
        let address = format!("172.30.{}.{}", number / 250, number % 250);
        put(&format!("s{number}"), "", cluster_ip(&address, 80, &[&places[0]]))
    };
    let mut services: Vec<Change> = (0..LARGE).map(service).collect();
    let commented = "-m comment --comment \"demo/s1 -> 10.180.0.1:80\" -j KUBE-SEP-";
    assert!(load(&mut planner(Family::Ipv4, &services)).contains(commented));
    let mut over = planner(Family::Ipv4, &services);
    load(&mut over);
    services.push(service(LARGE));
    let one_more = over.plan(&services[LARGE..], &[]);
    assert!(one_more.contains("demo/s1000 -> "), "the next full load decides anew");
    let text = load(&mut over);
    assert!(!text.contains(" -> ") && !text.contains("--comment demo/s1 "));
    assert!(text.contains("\"demo/s1 cluster IP\""));
}

#[test]
fn an_invalid_name_affects_its_own_service_port_only() {
    let mut bad = demo().remove(0);
    let ServicePortName { namespace, port, protocol, .. } = (*bad.name).clone();
    let service = "web\"\nCOMMIT".into();
    bad.name = Arc::new(ServicePortName { namespace, service, port, protocol });
    let mut planner = planner(Family::Ipv4, &demo()[1..]);
    let before = load(&mut planner);
    assert_eq!(planner.plan(std::slice::from_ref(&bad), &[]), "");
    assert_eq!(
        planner.refused().map(|refusal| refusal.name).collect::<Vec<_>>(),
        std::slice::from_ref(&bad.name)
    );
    assert_eq!(load(&mut planner), before);
    assert_eq!(planner.plan(&[gone(&bad)], &[]), "");
    assert_eq!(planner.refused().count(), 0);
}

#[test]
fn a_shared_chain_that_changes_much_is_written_anew() {
    let redirect = Some(Redirect { own_mark: 1, ports: (1024, 2047) });
    for options in [counting(), IptablesOptions { redirect, ..counting() }] {
        let service = |number: u16| {
            let endpoints: &[&str] = if number.is_multiple_of(2) { &["10.180.1.1:80"] } else { &[] };
            put(
                &format!("s{number}"),
                "",
                cluster_ip(&format!("172.30.{}.1", number % 256), 80 + number / 256, endpoints),
            )
        };
        let services: Vec<Change> = (0..400).map(service).collect();
        let mut planner = Planned::new(settings(Family::Ipv4), options);
        planner.remember(&services, &[]);
        let mut tables = loaded(&mut planner);
        let going: Vec<Change> = services[..300].iter().map(gone).collect();
        let text = planner.plan(&going, &[]);
        assert!(!text.contains("\n-D ") && text.matches("\n:KUBE-SERVICES - [0:0]\n").count() == 2, "{text}");
        tables.restore(&text, |_| {}).unwrap();
        assert_eq!(tables, loaded(&mut planner));
    }
}

/// Returns empty tables after a full load.
pub(crate) fn loaded(planner: &mut Planned) -> Tables {
    let mut tables = Tables::empty();
    tables.restore(&load(planner), |_| {}).unwrap();
    tables
}

pub(crate) fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::Ipv4), Just(Family::Ipv6)]
}

fn pieces() -> impl Strategy<Value = Pieces> {
    prop_oneof![
        Just(Pieces::One),
        (1_usize..4).prop_map(|count| Pieces::Of(NonZeroUsize::new(count).unwrap()))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// After each change the tables are equal to empty tables after a full load, and in no restore does a rule lead
    /// to a missing chain.
    #[test]
    fn changes_lead_to_the_same_rules_as_a_full_load(
        seed in any::<u64>(), family in family(), pieces in pieces(), counts in prop::collection::vec(1_usize..6, 1..12)
    ) {
        let mut edited = Edited::new(seed, 6);
        let mut planner = Planned::new(settings(family), counting());
        let (changes, health_checks) = edited.first();
        planner.remember(&changes, &health_checks);
        let mut tables = Tables::empty();
        let text = full(&mut planner, &Present::default(), pieces);
        prop_assert_eq!(tables.restore(&text, |_| {}), Ok(()));
        for count in counts {
            let (changes, health_checks) = edited.edit(count);
            let text = planner.plan(&changes, &health_checks);
            prop_assert_eq!(tables.restore(&text, |_| {}), Ok(()), "{}", text);
            let expected = loaded(&mut planner);
            prop_assert_eq!(tables.clone().unordered(), expected.unordered());
        }
    }

    /// A restore may fail at any of its lines. No rule leads to a missing chain then, and the next load repairs the
    /// tables.
    #[test]
    fn a_load_repairs_the_tables_after_a_failed_restore(
        seed in any::<u64>(), family in family(), pieces in pieces(), place in any::<prop::sample::Index>(),
        at_first in any::<bool>()
    ) {
        let mut edited = Edited::new(seed, 6);
        let mut planner = Planned::new(settings(family), counting());
        let (changes, health_checks) = edited.first();
        planner.remember(&changes, &health_checks);
        let mut tables = Tables::empty();
        let mut text = full(&mut planner, &Present::default(), pieces);
        if !at_first {
            prop_assert_eq!(tables.restore(&text, |_| {}), Ok(()));
            let (changes, health_checks) = edited.edit(8);
            text = planner.plan(&changes, &health_checks);
        }
        let mut lines: Vec<&str> = text.lines().collect();
        lines.insert(place.index(lines.len() + 1), "-D INPUT -j NOTHING");
        let failed = tables.restore(&lines.join("\n"), |_| {});
        prop_assert!(failed.is_err());
        let mend = full(&mut planner, &tables.present(family), pieces);
        prop_assert_eq!(tables.restore(&mend, |_| {}), Ok(()));
        let expected = loaded(&mut planner);
        prop_assert_eq!(tables.unordered(), expected.unordered());
    }

    /// A load over the rules of other Services: at every moment each chain has its old or its new content, and no
    /// rule of the other Services stays.
    #[test]
    fn a_load_over_other_rules_replaces_them(
        seed in any::<u64>(), other in any::<u64>(), family in family(), pieces in pieces()
    ) {
        let plan = |seed| {
            let mut planner = Planned::new(settings(family), counting());
            let (changes, health_checks) = Edited::new(seed, 6).first();
            planner.remember(&changes, &health_checks);
            planner
        };
        let old = loaded(&mut plan(seed));
        let mut planner = plan(other);
        let new = loaded(&mut planner);
        let mut tables = old.clone();
        let text = full(&mut planner, &old.present(family), pieces);
        let mut wrong = BTreeSet::new();
        let seen = |tables: &Tables| {
            for chain in tables.chains("nat") {
                let now = tables.chain("nat", chain);
                if now != old.chain("nat", chain) && now != new.chain("nat", chain) {
                    wrong.insert(chain.to_owned());
                }
            }
        };
        prop_assert_eq!(tables.restore(&text, seen), Ok(()));
        prop_assert_eq!(wrong, BTreeSet::new());
        let again = full(&mut planner, &tables.present(family), pieces);
        prop_assert_eq!(again, "", "nothing is written twice");
        prop_assert_eq!(tables.unordered(), new.unordered());
    }

    /// A load over the rules of another mode. That mode leads packets until the last transaction of the nat table, and until
    /// then its rules masquerade them. The drops of this mode come after that: they would meet the packets of the other one.
    #[test]
    fn a_load_over_the_rules_of_another_mode_leaves_them_to_it_until_it_leads_packets(
        seed in any::<u64>(), family in family(), pieces in pieces()
    ) {
        let mut planner = Planned::new(settings(family), counting());
        let (changes, health_checks) = Edited::new(seed, 6).first();
        planner.remember(&changes, &health_checks);
        let new = loaded(&mut planner);
        let mut tables = Tables::empty();
        prop_assert_eq!(tables.restore(OF_IPVS, |_| {}), Ok(()));
        let old = tables.clone();
        let text = full(&mut planner, &old.present(family), pieces);
        let is_old = |tables: &Tables, table, chain| tables.chain(table, chain) == old.chain(table, chain);
        let mut wrong = Vec::new();
        let seen = |tables: &Tables| {
            let leads = is_old(tables, "nat", "KUBE-SERVICES");
            for chain in ["KUBE-POSTROUTING", "KUBE-MARK-MASQ"] {
                if is_old(tables, "nat", chain) != leads {
                    wrong.push(chain);
                }
            }
            let is_entered_by_all = ["INPUT", "FORWARD"].iter().any(|hook| {
                tables.chain("filter", hook).unwrap().iter().any(|rule| rule == OF_IPVS_TO_FIREWALL)
            });
            // The packets of that mode's connections are untranslated, also of those that are established.
            if (leads || is_entered_by_all) && !is_old(tables, "filter", "KUBE-PROXY-FIREWALL") {
                wrong.push("KUBE-PROXY-FIREWALL");
            }
            if leads && !is_entered_by_all {
                wrong.push("INPUT");
            }
        };
        prop_assert_eq!(tables.restore(&text, seen), Ok(()));
        prop_assert_eq!(wrong, [""; 0], "{}", text);
        for (table, chain) in [("nat", "KUBE-POSTROUTING"), ("filter", "KUBE-PROXY-FIREWALL"), ("filter", "KUBE-FORWARD")] {
            prop_assert_eq!(tables.chain(table, chain), new.chain(table, chain));
        }
        prop_assert_eq!(full(&mut planner, &tables.present(family), pieces), "", "nothing is written twice");
    }
}

/// The rule by which all packets enter the firewall in the IPVS mode.
const OF_IPVS_TO_FIREWALL: &str = "-m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL";

/// Rules of the IPVS mode in chains that this mode has, too.
const OF_IPVS: &str = "\
*filter
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL
-A KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER dst,dst -j DROP
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
-A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
-A KUBE-MARK-MASQ -j MARK --or-mark 0x8000
COMMIT
";
