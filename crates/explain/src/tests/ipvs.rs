//! Rules of other programs in IPVS mode, whose packets pass other hooks.

use portolan_firewall::{
    Base, Chain, Effect, Hook, Program, Rule, RuleId, Ruleset, TableFamily, TableId, Test, saved,
};
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Family, LocalDetector};

use super::world::{World, question};
use crate::facts::Facts;
use crate::report::{ObstacleKind, Outcome, Report};

/// A Service with one endpoint.
const SERVICE: &str = "10.96.0.85";
const ENDPOINT: &str = "10.244.1.18";

fn world() -> World {
    World::in_mode("ipvs", &ModeDifferences::ipvs())
}

/// Creates the world with the endpoint on an address of the node itself.
fn with_endpoint_on_the_node() -> World {
    let mut world = world();
    world.node.addresses.push(ENDPOINT.parse().unwrap());
    world
}

/// Returns the report of a packet from a pod, and of one from the node, to the Service.
fn reports(world: &World, rules: &Ruleset) -> [Report; 2] {
    ["pod/client", "node"].map(|from| {
        let facts = Facts { rules: Some(rules), ..world.facts() };
        crate::answer(&question(from, "svc/signals"), &facts).unwrap()
    })
}

/// Returns the rules of a table of iptables with one rule. `SVC` and `POD` stand for the Service and its endpoint.
fn one(table: &str, rule: &str) -> Ruleset {
    let rule = rule.replace("SVC", &format!("{SERVICE}/32")).replace("POD", &format!("{ENDPOINT}/32"));
    let chain = rule.split(' ').next().unwrap().to_owned();
    let text = format!("*{table}\n:{chain} ACCEPT [0:0]\n-A {rule}\nCOMMIT\n");
    Ruleset::new(saved::chains(Family::Ipv4, &text))
}

/// Checks which packets a rule certainly drops: those from a pod, and those of the node.
fn drops(world: &World, table: &str, rule: &str, want: [bool; 2]) {
    let found = reports(world, &one(table, rule)).map(|report| {
        let obstacles = report.firewall.unwrap();
        assert!(obstacles.iter().all(|obstacle| obstacle.certain), "{table} {rule}: {obstacles:?}");
        assert_eq!(report.outcome == Outcome::Dropped, !obstacles.is_empty(), "{table} {rule}");
        assert!(report.notes.is_empty(), "{:?}", report.notes);
        report.outcome == Outcome::Dropped
    });
    assert_eq!(found, want, "{table} {rule}");
}

#[test]
fn a_packet_to_a_pod_passes_input_and_output_and_is_not_forwarded() {
    let world = world();
    for (table, rule, want) in [
        ("raw", "PREROUTING -d SVC -j DROP", [true, false]),
        ("mangle", "PREROUTING -d SVC -j DROP", [true, false]),
        ("mangle", "PREROUTING -d POD -j DROP", [false, false]),
        ("filter", "INPUT -j DROP", [true, false]),
        ("filter", "INPUT -d SVC -j DROP", [true, false]),
        ("filter", "INPUT -d POD -j DROP", [false, false]),
        ("filter", "FORWARD -j DROP", [false, false]),
        ("raw", "OUTPUT -d SVC -j DROP", [false, true]),
        ("raw", "OUTPUT -d POD -j DROP", [true, true]),
        ("mangle", "OUTPUT -o lo -d SVC -j DROP", [false, true]),
        ("filter", "OUTPUT -d SVC -j DROP", [false, false]),
        ("filter", "OUTPUT -d POD -j DROP", [true, true]),
        ("mangle", "POSTROUTING -d SVC -j DROP", [false, false]),
        ("mangle", "POSTROUTING -d POD -j DROP", [true, true]),
    ] {
        drops(&world, table, rule, want);
    }
}

#[test]
fn a_packet_to_an_endpoint_on_the_node_stays_there() {
    let world = with_endpoint_on_the_node();
    for (table, rule, want) in [
        ("filter", "INPUT -d SVC -j DROP", [true, false]),
        ("filter", "INPUT -d POD -j DROP", [false, true]),
        ("raw", "OUTPUT -d SVC -j DROP", [false, true]),
        ("raw", "OUTPUT -d POD -j DROP", [false, false]),
        ("filter", "OUTPUT -o lo -d POD -j DROP", [false, true]),
        ("mangle", "POSTROUTING -j DROP", [false, true]),
        ("mangle", "PREROUTING -i lo -d POD -j DROP", [false, true]),
    ] {
        drops(&world, table, rule, want);
    }
}

#[test]
fn input_is_split_by_priority() {
    let at = |priority| {
        let place = TableId { program: Program::Nft, family: TableFamily::Inet, table: "mine".to_owned() };
        let tests = vec![Test::Destination(format!("{ENDPOINT}/32").parse().unwrap())];
        let rule = Rule { tests, effect: Effect::Drop, id: RuleId::Handle(3) };
        let base = Some(Base { hook: Hook::Input, priority, nat: false, drops: false });
        Ruleset::new(vec![Chain { place, name: "input".to_owned(), base, rules: vec![rule] }])
    };
    let outcomes = |world: &World, priority| reports(world, &at(priority)).map(|report| report.outcome);
    let (away, here) = (world(), with_endpoint_on_the_node());
    let (reachable, dropped) = (Outcome::Reachable, Outcome::Dropped);
    assert_eq!(outcomes(&away, 150), [reachable, reachable]);
    assert_eq!(outcomes(&here, 150), [dropped, dropped]);
    assert_eq!(outcomes(&here, 50), [reachable, dropped], "IPVS translates what arrives after that");
}

#[test]
fn connection_tracking_does_not_count_it_as_translated() {
    let text = "*filter\n:OUTPUT DROP [0:0]\n-A OUTPUT -m conntrack --ctstate DNAT -j ACCEPT\nCOMMIT\n";
    let rules = Ruleset::new(saved::chains(Family::Ipv4, text));
    let outcomes = reports(&world(), &rules).map(|report| report.outcome);
    assert_eq!(outcomes, [Outcome::Dropped, Outcome::Dropped]);
    let other = reports(&World::new(), &rules).map(|report| report.outcome);
    assert_eq!(other, [Outcome::Reachable, Outcome::Reachable], "in nftables mode");
}

#[test]
fn a_connection_passes_chains_that_translate_once() {
    let kinds = |rule: &str| {
        reports(&world(), &one("nat", rule))
            .map(|report| report.firewall.unwrap().iter().map(|obstacle| obstacle.kind).collect::<Vec<_>>())
    };
    let redirects = || vec![ObstacleKind::Redirects];
    assert_eq!(kinds("PREROUTING -d SVC -j DNAT --to-destination 10.9.9.9"), [redirects(), Vec::new()]);
    assert_eq!(kinds("OUTPUT -d SVC -j DNAT --to-destination 10.9.9.9"), [Vec::new(), redirects()]);
    assert_eq!(kinds("OUTPUT -d POD -j DNAT --to-destination 10.9.9.9"), [Vec::new(), Vec::new()]);
}

/// The device of this mode has the addresses of Services, so that a process of the node sends from them.
#[test]
fn the_node_sends_from_the_address_of_the_service() {
    let mut world = world().detecting(LocalDetector::None);
    let spec = r#"{"type":"NodePort","clusterIP":"10.96.0.83","externalIPs":["192.0.2.83"],
        "externalTrafficPolicy":"Local","ports":[{"port":80}]}"#;
    world.service("remote", "{}", spec);
    for address in ["10.96.0.83", "192.0.2.83"] {
        let report = world.answer("node", &format!("{address}:80"));
        assert_eq!(report.from.address.to_string(), address);
        assert_eq!(report.outcome, Outcome::Reachable, "its endpoint is on another node");
        assert_eq!(report.wanted.masquerade.unwrap().code, "masquerade-own-traffic");
    }
    assert_eq!(World::new().answer("node", "10.96.0.83:80").from.address.to_string(), "192.0.2.1");
}

#[test]
fn servers_for_health_checks_answer_at_addresses_of_services() {
    let mut world = world();
    let spec = r#"{"type":"LoadBalancer","clusterIP":"10.96.0.90","externalTrafficPolicy":"Local",
        "healthCheckNodePort":31000,"ports":[{"port":80}]}"#;
    world.service("checked", "{}", spec);
    let rules = one("filter", "INPUT -p tcp -m tcp --dport 31000 -j DROP");
    let facts = Facts { rules: Some(&rules), ..world.facts() };
    for from in ["pod/client", "node"] {
        let report = |to| crate::answer(&question(from, to), &facts).unwrap();
        let asked = report("10.96.0.90:31000");
        assert_eq!(asked.outcome, Outcome::NotAService, "{from}");
        assert_eq!(asked.firewall.unwrap().len(), 1, "{from}: it arrives at the node");
        for to in ["10.96.0.90:31001", "10.96.0.90:31000/udp"] {
            assert_eq!(report(to).outcome, Outcome::Refused, "{from} {to}");
        }
    }
}
