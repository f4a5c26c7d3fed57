//! What was read from the kernel: rules of the mode, connections, and firewall rules of other programs.

use std::sync::Arc;

use portolan_firewall::{
    Base, Chain, ConntrackStates, Effect, Hook, Program, Rule, RuleId, Ruleset, TableFamily, TableId, Test,
    saved,
};
use portolan_model::catalog::PerFamily;
use portolan_model::observed::{
    Fact, Observed, ObservedEndpoint, ObservedEndpoints, ObservedFrontend, ObservedPlace, ObservedPort,
};
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Family, Frontend, Protocol};

use super::world::{World, question};
use crate::facts::{Connection, Facts, Known};
use crate::question::Flow;
use crate::report::{Fate, Outcome, Report};
use crate::resolve::Unanswerable;
use crate::text::Style;

/// Returns what a mode reads from a kernel that has exactly the wanted table.
fn as_wanted(world: &World) -> Observed {
    let port = |(name, forwarding): (Arc<_>, Arc<portolan_model::Forwarding>)| {
        let list = |list: &[portolan_model::Backend]| {
            Fact::Known(list.iter().map(|backend| ObservedEndpoint::at(backend.socket())).collect())
        };
        ObservedPort {
            name: Some(name),
            protocol: forwarding.protocol,
            frontends: forwarding
                .frontends
                .iter()
                .map(|frontend| ObservedFrontend::at(ObservedPlace::Frontend(*frontend)))
                .collect(),
            endpoints: ObservedEndpoints::Lists {
                cluster: list(&forwarding.cluster),
                local: list(&forwarding.local),
            },
            affinity: Fact::Known(forwarding.affinity),
            source_ranges: Fact::Known(forwarding.source_ranges.to_vec()),
            counters: None,
        }
    };
    let ports = world.catalog.forwardings(Family::Ipv4).map(port).collect();
    Observed { family: Family::Ipv4, node_port_addresses: None, node_ports: Fact::Unknown, ports }
}

fn with_observed(world: &World, observed: &Observed, from: &str, to: &str) -> Report {
    let observed = PerFamily { ipv4: Some(observed), ipv6: None };
    crate::answer(&question(from, to), &Facts { observed, ..world.facts() }).unwrap()
}

fn port<'a>(observed: &'a mut Observed, service: &str) -> &'a mut ObservedPort {
    let is_it = |port: &&mut ObservedPort| port.name.as_ref().is_some_and(|name| *name.service == *service);
    observed.ports.iter_mut().find(is_it).unwrap()
}

#[test]
fn the_kernel_has_what_is_wanted() {
    let world = World::new();
    let observed = as_wanted(&world);
    for to in ["svc/web", "10.96.0.80:81", "203.0.113.1:80", "192.0.2.1:30080"] {
        let report = with_observed(&world, &observed, "pod/client", to);
        let programmed = report.programmed.unwrap();
        assert!(programmed.as_wanted && programmed.differences.is_empty(), "{to}: {programmed:?}");
        assert_ne!(report.outcome, Outcome::NotAsWanted);
    }
    assert_eq!(world.answer("pod/client", "svc/web").programmed, None);
    let six = with_observed(&world, &observed, "outside", "svc/six");
    assert_eq!(six.programmed, None, "nothing was read of IPv6");
}

#[test]
fn differences_of_the_service_port_and_at_the_frontend() {
    let world = World::new();
    let mut observed = as_wanted(&world);
    let web = port(&mut observed, "web");
    web.endpoints = ObservedEndpoints::Lists {
        cluster: Fact::Known(vec![ObservedEndpoint::at("10.244.9.9:8080".parse().unwrap())]),
        local: Fact::Unknown,
    };
    web.affinity = Fact::Known(None);
    // A Service that no object wants, at a node port and at an address.
    let mut stale = port(&mut observed, "empty").clone();
    let mut name = (**stale.name.as_ref().unwrap()).clone();
    name.service = "gone".into();
    stale.name = Some(Arc::new(name));
    stale.frontends = vec![
        ObservedFrontend::at(ObservedPlace::Frontend(Frontend::NodePort(30099))),
        ObservedFrontend::at(ObservedPlace::Address("10.96.0.99:80".parse().unwrap())),
    ];
    observed.ports.push(stale);
    let dns = with_observed(&world, &observed, "pod/client", "svc/dns:53/udp");
    assert!(dns.programmed.unwrap().as_wanted, "differences of other Services do not count");
    let codes = |from: &str, to: &str| {
        let report = with_observed(&world, &observed, from, to);
        assert_eq!(report.outcome, Outcome::NotAsWanted, "{to}");
        let differences = report.programmed.unwrap().differences;
        differences.into_iter().map(|difference| difference.code).collect::<Vec<_>>()
    };
    assert_eq!(codes("pod/client", "10.96.0.99:80"), ["service-port-extra"]);
    assert_eq!(codes("outside", "192.0.2.1:30099"), ["service-port-extra"]);
    let web = with_observed(&world, &observed, "pod/client", "svc/web");
    insta::assert_snapshot!(web.text(Style::Plain));
}

#[test]
fn a_frontend_without_name_that_no_service_wants() {
    let world = World::new();
    let mut observed = as_wanted(&world);
    let mut stale = port(&mut observed, "empty").clone();
    stale.name = None;
    let places = ["10.96.0.99:80", "192.0.2.1:30099"].map(|socket| socket.parse().unwrap());
    stale.frontends = places.map(|socket| ObservedFrontend::at(ObservedPlace::Address(socket))).to_vec();
    observed.ports.push(stale);
    let report = with_observed(&world, &observed, "pod/client", "10.96.0.99:80");
    let programmed = report.programmed.unwrap();
    assert_eq!(programmed.differences.len(), 1, "only what is at the destination: {programmed:?}");
    assert_eq!(programmed.differences[0].service, None);
    let udp = with_observed(&world, &observed, "pod/client", "10.96.0.99:80/udp");
    assert!(udp.programmed.unwrap().as_wanted);
}

#[test]
fn a_mode_without_sctp_programs_no_endpoints_of_it() {
    let world = World::in_mode("userspace", &ModeDifferences::userspace());
    let mut observed = as_wanted(&world);
    let none = Fact::Known(Vec::new());
    port(&mut observed, "signals").endpoints =
        ObservedEndpoints::Lists { cluster: none.clone(), local: none };
    assert!(with_observed(&world, &observed, "pod/client", "svc/signals").programmed.unwrap().as_wanted);
    let world = World::new();
    assert!(!with_observed(&world, &observed, "pod/client", "svc/signals").programmed.unwrap().as_wanted);
}

pub(super) const FIREWALL: &str = "\
*raw
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 10.96.0.84/32 -j CT --notrack
COMMIT
*filter
:FORWARD DROP [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -d 10.244.1.0/24 -j ACCEPT
-A DOCKER-USER -d 10.244.1.18/32 -j REJECT --reject-with icmp-port-unreachable
-A DOCKER-USER -d 10.244.1.5/32 -m owner --uid-owner 0 -j DROP
COMMIT
";

fn behind_firewall(world: &World, from: &str, to: &str) -> Report {
    let rules = Ruleset::new(saved::chains(Family::Ipv4, FIREWALL));
    crate::answer(&question(from, to), &Facts { rules: Some(&rules), ..world.facts() }).unwrap()
}

#[test]
fn rules_of_other_programs() {
    let world = World::new();
    let questions = [
        ("pod/client", "svc/web"),
        ("pod/client", "svc/signals"),
        ("pod/client", "svc/dns:53/udp"),
        ("pod/client", "svc/zoned"),
        ("pod/client", "203.0.113.53:53/udp"),
        ("node", "svc/web"),
    ];
    let text = |(from, to): &(&str, &str)| {
        format!("$ explain {from} {to}\n{}", behind_firewall(&world, from, to).text(Style::Plain))
    };
    insta::assert_snapshot!(questions.iter().map(text).collect::<Vec<_>>().join("\n"));
}

#[test]
fn the_outcome_follows_certain_rules() {
    let world = World::new();
    let report = |to: &str| behind_firewall(&world, "pod/client", to);
    let web = report("svc/web");
    assert_eq!(web.outcome, Outcome::Reachable, "the rules let packets to one of two endpoints pass");
    let rules = web.firewall.unwrap();
    assert_eq!(rules[0].endpoints, ["10.244.2.12:8080".parse().unwrap()]);
    assert_eq!(report("svc/signals").outcome, Outcome::Refused);
    let dns = report("svc/dns:53/udp");
    assert_eq!((dns.outcome, dns.firewall.unwrap()[0].certain), (Outcome::Reachable, false));
    let own = behind_firewall(&world, "node", "svc/web");
    assert_eq!(own.firewall, Some(Vec::new()), "packets of the node are not forwarded");
    let stopped = report("svc/empty");
    assert_eq!((stopped.outcome, stopped.firewall), (Outcome::Refused, Some(Vec::new())));
}

/// Returns the outcome of a packet of the pod `client` that arrives at eth0, and of each obstacle whether it is certain, its owner
/// and its rule.
fn obstacles(world: &World, rules: &Ruleset, to: &str) -> (Outcome, Vec<(bool, String, Option<String>)>) {
    let mut asked = question("pod/client", to);
    asked.interface = Some("eth0".to_owned());
    let report = crate::answer(&asked, &Facts { rules: Some(rules), ..world.facts() }).unwrap();
    let obstacles = report.firewall.unwrap().into_iter();
    (report.outcome, obstacles.map(|obstacle| (obstacle.certain, obstacle.owner, obstacle.rule)).collect())
}

/// Chains of ufw, which drops forwarded packets unless a rule of the operator accepts them.
const UFW: &str = "\
*filter
:FORWARD DROP [0:0]
:ufw-before-forward - [0:0]
:ufw-user-forward - [0:0]
-A FORWARD -j ufw-before-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-user-forward -d 10.244.1.18/32 -j DROP
-A ufw-user-forward -d 10.244.1.0/24 -j ACCEPT
COMMIT
";

#[test]
fn a_ufw_drops_what_no_rule_of_the_operator_accepts() {
    let (world, rules) = (World::new(), Ruleset::new(saved::chains(Family::Ipv4, UFW)));
    let rule = "ufw-user-forward -d 10.244.1.18/32 -j DROP".to_owned();
    assert_eq!(
        obstacles(&world, &rules, "svc/signals"),
        (Outcome::Dropped, vec![(true, "ufw".to_owned(), Some(rule))])
    );
    // The policy of the kernel's chain drops packets to one of two endpoints.
    assert_eq!(
        obstacles(&world, &rules, "svc/web"),
        (Outcome::Reachable, vec![(true, "another program".to_owned(), None)])
    );
    assert_eq!(obstacles(&world, &rules, "svc/zoned"), (Outcome::Reachable, Vec::new()));
}

/// Returns the chain of firewalld for forwarded packets, with these first rules.
fn firewalld(first: &[(Test, Effect)]) -> Ruleset {
    let place = TableId { program: Program::Nft, family: TableFamily::Inet, table: "firewalld".to_owned() };
    let known = ConntrackStates::ESTABLISHED.with(ConntrackStates::RELATED);
    let others = [
        (Test::State(known), Effect::Accept),
        (Test::Input("lo".to_owned()), Effect::Accept),
        (Test::State(ConntrackStates::INVALID), Effect::Drop),
    ];
    let rule = |(test, effect): &(Test, Effect)| Rule {
        tests: vec![test.clone()],
        effect: effect.clone(),
        id: RuleId::Handle(1),
    };
    let mut rules: Vec<Rule> = first.iter().chain(&others).map(rule).collect();
    rules.push(Rule { tests: Vec::new(), effect: Effect::Reject, id: RuleId::Handle(2) });
    let base = Some(Base { hook: Hook::Forward, priority: 10, nat: false, drops: false });
    Ruleset::new(vec![Chain { place, name: "filter_FORWARD".to_owned(), base, rules }])
}

#[test]
fn a_firewalld_accepts_what_was_translated() {
    let world = World::new();
    let translated = (Test::State(ConntrackStates::DNAT), Effect::Accept);
    assert_eq!(obstacles(&world, &firewalld(&[translated]), "svc/web"), (Outcome::Reachable, Vec::new()));
    let without = firewalld(&[]);
    let rejected = vec![(true, "firewalld".to_owned(), Some("reject".to_owned()))];
    assert_eq!(obstacles(&world, &without, "svc/web"), (Outcome::Refused, rejected));
    // IPVS translates packets after input, so that they are not forwarded.
    let ipvs = World::in_mode("ipvs", &ModeDifferences::ipvs());
    assert_eq!(obstacles(&ipvs, &without, "svc/web"), (Outcome::Reachable, Vec::new()));
}

/// A rule that drops packets to all endpoints stops the packet only if all endpoints were looked at.
#[test]
fn the_packet_is_not_stopped_if_some_endpoints_were_not_looked_at() {
    let drops = "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n";
    for (count, outcome, listed) in [(64, Outcome::Dropped, 0), (65, Outcome::Reachable, 64)] {
        let mut world = World::new();
        world.endpoints("signals", count);
        let rules = Ruleset::new(saved::chains(Family::Ipv4, drops));
        let facts = Facts { rules: Some(&rules), ..world.facts() };
        let report = crate::answer(&question("pod/client", "svc/signals"), &facts).unwrap();
        assert_eq!(report.outcome, outcome, "{count} endpoints");
        assert_eq!(report.firewall.unwrap()[0].endpoints.len(), listed, "{count} endpoints");
        let noted = report.notes.iter().any(|note| note.code == "firewall-some-endpoints");
        assert_eq!(noted, count > 64, "{:?}", report.notes);
    }
}

#[test]
fn the_relay_sends_packets_of_the_node() {
    let world = World::in_mode("userspace", &ModeDifferences::userspace());
    let report = behind_firewall(&world, "pod/client", "svc/web");
    assert_eq!((report.outcome, report.firewall), (Outcome::Reachable, Some(Vec::new())));
}

/// The usual rules of a firewall for packets to this node.
const INPUT: &str = "\
*filter
:INPUT DROP [0:0]
:OUTPUT DROP [0:0]
-A INPUT -i lo -j ACCEPT
-A OUTPUT -o lo -j ACCEPT
-A OUTPUT -o eth0 -j ACCEPT
COMMIT
";

#[test]
fn what_the_node_sends_to_itself_passes_the_loopback_interface() {
    let world = World::new();
    let rules = Ruleset::new(saved::chains(Family::Ipv4, INPUT));
    let facts = Facts { rules: Some(&rules), ..world.facts() };
    let obstacles = |from: &str, to: &str| {
        let obstacles = crate::answer(&question(from, to), &facts).unwrap().firewall.unwrap();
        obstacles.iter().map(|obstacle| (obstacle.chain.clone(), obstacle.certain)).collect::<Vec<_>>()
    };
    assert_eq!(obstacles("node", "192.0.2.1:22"), []);
    let chain = |name: &str| format!("chain {name} of table ip filter (iptables-legacy)");
    let input = obstacles("outside", "192.0.2.1:22");
    assert_eq!(input, [(chain("INPUT"), true)], "no client elsewhere arrives at lo");
    let mut asked = question("outside", "192.0.2.1:22");
    asked.interface = Some("eth0".to_owned());
    let firewall = crate::answer(&asked, &facts).unwrap().firewall.unwrap();
    assert!(firewall.iter().all(|obstacle| obstacle.certain) && firewall.len() == 1, "{firewall:?}");
    let away = obstacles("node", "svc/web");
    assert_eq!(away, [(chain("OUTPUT"), false)], "the interface to the endpoint is not known");
}

fn connection(source: &str, destination: &str, endpoint: &str, seen: &str) -> Connection {
    Connection {
        protocol: Protocol::Udp,
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        reply_source: endpoint.parse().unwrap(),
        reply_destination: seen.parse().unwrap(),
        replied: true,
        timeout: Some(28),
    }
}

const fn all(list: &[Connection]) -> Known<'_> {
    Known { list, partial: false }
}

fn dns_connections() -> Vec<Connection> {
    let of_client = |port: u16, endpoint| {
        let source = format!("10.244.1.10:{port}");
        connection(&source, "10.96.0.10:53", endpoint, &source)
    };
    vec![
        of_client(5001, "10.244.2.6:5353"),
        of_client(5002, "10.244.1.5:5353"),
        of_client(5003, "10.96.0.10:53"),
        connection("10.244.1.11:5004", "10.96.0.10:53", "10.244.1.5:5353", "192.0.2.1:5004"),
        connection("10.244.1.10:5005", "10.96.0.99:53", "10.244.1.5:5353", "10.244.1.10:5005"),
    ]
}

#[test]
fn connections_of_the_flow() {
    let world = World::new();
    let connections = dns_connections();
    let answer = |from: &str, to: &str| {
        crate::answer(&question(from, to), &Facts { connections: Some(all(&connections)), ..world.facts() })
            .unwrap()
    };
    let report = answer("pod/client", "svc/dns:53/udp");
    insta::assert_snapshot!(report.text(Style::Plain));
    let found = report.connections.unwrap();
    let stale: Vec<bool> = found.some.iter().map(|connection| connection.stale).collect();
    assert_eq!((found.count, stale), (3, vec![true, false, false]));
    assert_eq!(answer("outside", "svc/dns:53/udp").connections.unwrap().count, 4, "an example is any client");
    assert_eq!(answer("pod/client", "svc/web").connections.unwrap().count, 0);
}

#[test]
fn long_lists_of_connections_are_cut() {
    let world = World::new();
    let source = |port: u16| format!("10.244.1.10:{port}");
    let connections: Vec<Connection> = (1000..1100)
        .map(|port| connection(&source(port), "10.96.0.10:53", "10.244.1.5:5353", &source(port)))
        .collect();
    let facts = Facts { connections: Some(all(&connections)), ..world.facts() };
    let report = crate::answer(&question("pod/client", "svc/dns:53/udp"), &facts).unwrap();
    assert!(report.text(Style::Plain).contains("and 80 more"));
    assert_eq!(report.connections.unwrap().some.len(), 20);
}

#[test]
fn an_established_flow_goes_where_conntrack_says() {
    let world = World::new();
    let mut connections = dns_connections();
    let mut asked = question("pod/client", "svc/dns:53/udp");
    asked.flow = Flow::Established { endpoint: None };
    let unknown = crate::answer(&asked, &world.facts()).unwrap_err();
    assert_eq!(unknown, Unanswerable::FlowNotKnown);
    let answer = |connections: &[Connection]| {
        crate::answer(&asked, &Facts { connections: Some(all(connections)), ..world.facts() }).unwrap()
    };
    let report = answer(&connections);
    assert!(report.wanted.steps[0].text.contains("10.244.2.6:5353"), "{:?}", report.wanted.steps);
    connections.retain(|connection| connection.source.port() == 5003);
    assert_eq!(answer(&connections).wanted.fate, Fate::NotAffected);
    let report = answer(&[]);
    assert_eq!((report.wanted.fate, report.notes[0].code.as_str()), (Fate::Delivered, "no-connection"));
    let part = |list| {
        let connections = Some(Known { list, partial: true });
        crate::answer(&asked, &Facts { connections, ..world.facts() })
    };
    assert_eq!(part(&[]).unwrap_err(), Unanswerable::FlowNotKnown, "it may be one that was not read");
    let report = part(&connections).unwrap();
    assert!(report.text(Style::Plain).contains("at least 1; not all"), "{}", report.text(Style::Plain));
    assert!(report.connections.unwrap().partial);
    let relay = World::in_mode("userspace", &ModeDifferences::userspace());
    let facts = Facts { connections: Some(all(&connections)), ..relay.facts() };
    assert_eq!(crate::answer(&asked, &facts).unwrap_err(), Unanswerable::FlowNotKnown);
}
