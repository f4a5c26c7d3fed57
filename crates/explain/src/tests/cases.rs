//! What Services decide: one report for each fate and each family of reasons.

use portolan_model::LocalDetector;
use portolan_model::oracle::ModeDifferences;

use super::world::{World, question};
use crate::question::Flow;
use crate::report::{ClientKind, Fate, MasqueradeUse, Outcome, Report};
use crate::text::Style;

/// Returns the texts of several questions.
fn texts(world: &World, questions: &[(&str, &str)]) -> String {
    let text = |(from, to): &(&str, &str)| {
        format!("$ explain {from} {to}\n{}", world.answer(from, to).text(Style::Plain))
    };
    questions.iter().map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn endpoints_get_the_packet() {
    let world = World::new();
    insta::assert_snapshot!(texts(
        &world,
        &[
            ("10.244.1.10", "10.96.0.80:80"),
            ("pod/client", "svc/dns:53/udp"),
            ("node", "svc/web"),
            ("198.51.100.9", "192.0.2.80:80"),
            ("outside", "192.0.2.1:30080"),
            ("pod/client", "192.0.2.1:30080"),
            ("pod/client", "svc/zoned"),
            ("outside", "192.0.2.84:80"),
            ("pod/web-1", "svc/web"),
            ("outside", "svc/six"),
        ]
    ));
}

#[test]
fn the_packet_is_stopped() {
    let world = World::new();
    insta::assert_snapshot!(texts(
        &world,
        &[
            ("node", "svc/empty"),
            ("pod/client", "svc/unready"),
            ("pod/client", "svc/remote"),
            ("outside", "192.0.2.80:80"),
            ("pod/client", "10.96.0.80:81"),
            ("pod/client", "10.96.0.80:80/udp"),
            ("pod/client", "10.96.0.99:80"),
        ]
    ));
}

#[test]
fn services_do_not_affect_the_packet() {
    let world = World::new();
    insta::assert_snapshot!(texts(
        &world,
        &[
            ("pod/client", "203.0.113.53:53/udp"),
            ("pod/client", "10.244.2.12:8080"),
            ("outside", "192.0.2.100:30080"),
            ("outside", "192.0.2.1:30080/udp"),
            ("outside", "192.0.2.1:22"),
        ]
    ));
}

#[test]
fn modes_differ() {
    let userspace = World::in_mode("userspace", &ModeDifferences::userspace());
    let ipvs = World::in_mode("ipvs", &ModeDifferences::ipvs());
    let iptables =
        World::in_mode("iptables", &ModeDifferences::iptables(vec!["127.0.0.0/8".parse().unwrap()]));
    // Families are replaced one by one, so one can have another mode than the configured one.
    let mut mixed = World::new();
    mixed.node.families.ipv4 = ipvs.node.families.ipv4.clone();
    let of_mixed = texts(&mixed, &[("pod/client", "10.96.0.80:81")]);
    assert!(of_mixed.contains("ipvs mode, IPv4"), "{of_mixed}");
    let all = [
        texts(&userspace, &[("pod/client", "svc/signals"), ("pod/client", "svc/dns:53/udp")]),
        texts(&ipvs, &[("pod/client", "10.96.0.80:81"), ("node", "192.0.2.1:30080")]),
        texts(&iptables, &[("node", "127.0.0.1:30080"), ("outside", "192.0.2.100:30081")]),
    ];
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn who_the_client_is() {
    let world = World::new();
    insta::assert_snapshot!(texts(
        &world,
        &[
            ("pod/web-2.shop", "svc/dns:53/udp"),
            ("192.0.2.100", "svc/dns:53/udp"),
            ("pod/with.dots", "svc/twin.a")
        ]
    ));
    let kind = |from: &str| world.answer(from, "10.96.0.10:53/udp").from;
    assert_eq!(kind("10.244.1.99").node.as_deref(), Some("n1"), "by the pod CIDR");
    assert_eq!(
        (kind("10.244.3.1").kind, kind("10.244.3.1").node),
        (ClientKind::Pod, None),
        "by the detector"
    );
    assert_eq!(kind("203.0.113.7").kind, ClientKind::Outside);
    assert_eq!(kind("127.0.0.1").kind, ClientKind::Node);
    assert!(kind("outside").example && !kind("203.0.113.1").example);
}

#[test]
fn an_address_of_several_pods_or_of_a_node_is_no_pod() {
    let mut world = World::new();
    let shared = world.pods[0].addresses[0];
    world.pods[1].addresses.push(shared);
    assert_eq!(world.answer("10.244.1.10", "svc/dns:53/udp").from.pod, None, "two pods have it");
    assert_eq!(world.answer("10.244.2.12", "svc/dns:53/udp").from.pod.as_deref(), Some("web-2.shop"));
    let nodes = ["10.244.2.12".parse().unwrap()];
    let facts = crate::Facts { node_addresses: &nodes, ..world.facts() };
    let report = crate::answer(&question("10.244.2.12", "svc/dns:53/udp"), &facts).unwrap();
    assert_eq!(report.from.pod, None, "a node has it");
}

#[test]
fn an_example_is_no_address_of_the_cluster() {
    let mut world = World::new();
    let example = |world: &World| world.answer("outside", "svc/dns:53/udp").from.address.to_string();
    assert_eq!(example(&world), "203.0.113.1");
    world.node.addresses.push("203.0.113.1".parse().unwrap());
    assert_eq!(example(&world), "198.51.100.1");
    world.node.pod_cidrs.push("198.51.100.0/24".parse().unwrap());
    assert_eq!(example(&world), "203.0.113.1", "192.0.2.1 is the node, so that no example is free");
}

#[test]
fn pods_are_recognised_by_their_interface() {
    let world = World::new().detecting(LocalDetector::InterfacePrefix("cali".into()));
    insta::assert_snapshot!(texts(
        &world,
        &[("pod/client", "svc/dns:53/udp"), ("outside", "svc/dns:53/udp")]
    ));
    let mut asked = question("pod/client", "svc/dns:53/udp");
    asked.interface = Some("eth0".to_owned());
    let report = crate::answer(&asked, &world.facts()).unwrap();
    assert_eq!(report.wanted.masquerade.unwrap().applies, MasqueradeUse::Always);
    assert_eq!(report.notes, [], "nothing is assumed");
}

#[test]
fn an_established_flow_with_its_endpoint() {
    let world = World::new();
    let mut asked = question("pod/client", "svc/dns:53/udp");
    asked.flow = Flow::Established { endpoint: Some("10.244.2.6:5353".parse().unwrap()) };
    let report = crate::answer(&asked, &world.facts()).unwrap();
    insta::assert_snapshot!(report.text(Style::Plain));
    assert_eq!((report.wanted.fate, report.wanted.decided_by), (Fate::Delivered, None));
}

#[test]
fn reports_as_json() {
    let world = World::new();
    let questions =
        [("198.51.100.9", "192.0.2.80:80"), ("pod/client", "10.96.0.80:81"), ("node", "svc/empty")];
    let json = |(from, to): &(&str, &str)| {
        let report = world.answer(from, to);
        let json = serde_json::to_string_pretty(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        json
    };
    insta::assert_snapshot!(questions.iter().map(json).collect::<Vec<_>>().join("\n"));
}

#[test]
fn colours_are_only_escape_sequences() {
    let world = World::new();
    for to in ["svc/dns:53/udp", "svc/unready", "svc/remote", "10.244.2.12:8080"] {
        let report = world.answer("pod/client", to);
        let (plain, mut colour) = (report.text(Style::Plain), report.text(Style::Colour));
        assert_ne!(plain, colour);
        for code in ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m"] {
            colour = colour.replace(code, "");
        }
        assert_eq!(plain, colour);
    }
}

#[test]
fn the_outcome_follows_the_fate() {
    let world = World::new();
    let outcome = |from: &str, to: &str| world.answer(from, to).outcome;
    assert_eq!(outcome("pod/client", "svc/dns:53/udp"), Outcome::Reachable);
    assert_eq!(outcome("pod/client", "svc/empty"), Outcome::Refused);
    assert_eq!(outcome("pod/client", "svc/remote"), Outcome::Dropped);
    assert_eq!(outcome("pod/client", "203.0.113.53:53/udp"), Outcome::NotAService);
}
