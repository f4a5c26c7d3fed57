//! Reverse-path filters of the node.

use std::net::{IpAddr, Ipv4Addr};

use portolan_model::Family;
use portolan_model::oracle::ModeDifferences;

use super::world::{World, question};
use crate::facts::{Facts, Filter, Lead, Routes, Strictness, Way};
use crate::report::{Filtered, Outcome, Report};
use crate::text::Style;

/// A node with the interfaces eth0 (192.0.2.1), eth1 and tun0. Routes to pods of other nodes lead through tun0.
#[derive(Debug)]
struct Node {
    strictness: Strictness,
    /// The route to 198.51.100.9.
    back: Way,
    /// The endpoint to which packets pass although their source has another route.
    passes: Option<Ipv4Addr>,
    tunnel_has_address: bool,
}

impl Node {
    fn new(strictness: Strictness, back: Way) -> Self {
        Self { strictness, back, passes: None, tunnel_has_address: true }
    }
}

fn through(interface: &str) -> Way {
    Way::Through { interface: interface.to_owned(), source: Some(Ipv4Addr::new(192, 0, 2, 1)) }
}

impl Routes for Node {
    fn way_to(&self, destination: Ipv4Addr) -> Way {
        match destination.octets() {
            [198, 51, 100, 9] => self.back.clone(),
            [10, 244, 1, _] => through("cni0"),
            [10, 244, ..] => through("tun0"),
            _ => through("eth0"),
        }
    }

    fn accepts(&self, _: &str, _: Ipv4Addr, destination: Ipv4Addr) -> Option<bool> {
        Some(self.passes == Some(destination))
    }

    fn filter(&self, interface: &str) -> Option<Filter> {
        Some(Filter {
            strictness: self.strictness,
            setting: format!("net.ipv4.conf.{interface}.rp_filter=N"),
        })
    }

    fn holder(&self, address: Ipv4Addr) -> Option<String> {
        (address == Ipv4Addr::new(192, 0, 2, 1)).then(|| "eth0".to_owned())
    }

    fn has_address(&self, interface: &str) -> bool {
        interface == "eth0" || (interface == "tun0" && self.tunnel_has_address)
    }

    fn forwards(&self, _: Family, _: Option<&str>) -> Option<bool> {
        Some(true)
    }

    fn lead(&self, _: IpAddr) -> Lead {
        Lead::On
    }
}

fn ask(world: &World, node: &Node, from: &str, to: &str, interface: Option<&str>) -> Report {
    let question = crate::Question { interface: interface.map(str::to_owned), ..question(from, to) };
    let node_source = Some(Ipv4Addr::new(192, 0, 2, 1).into());
    crate::answer(&question, &Facts { routes: Some(node), node_source, ..world.facts() }).unwrap()
}

/// Asks about a packet from 198.51.100.9 that arrives at eth0.
fn from_outside(world: &World, node: &Node) -> Report {
    ask(world, node, "198.51.100.9", "svc/web", Some("eth0"))
}

#[test]
fn a_strict_filter_drops_a_packet_whose_source_is_routed_elsewhere() {
    let world = World::new();
    let report = from_outside(&world, &Node::new(Strictness::Strict, through("eth1")));
    assert_eq!(report.outcome, Outcome::Dropped);
    assert_eq!(report.summary, "a reverse-path filter of this node drops the packet");
    let text = report.text(Style::Plain);
    let line = "  reverse path  net.ipv4.conf.eth0.rp_filter=N drops the packet: it arrives at eth0, and the route back to \
                198.51.100.9 leads through eth1\n";
    assert!(text.contains(line), "{text}");
    let [filter] = report.reverse_path.as_slice() else { panic!("{report:?}") };
    assert!(filter.certain && filter.endpoints.is_empty() && filter.drops == Filtered::Packet);
}

#[test]
fn what_no_filter_drops() {
    let world = World::new();
    for node in [
        Node::new(Strictness::Strict, through("eth0")),
        Node::new(Strictness::Strict, Way::Unknown),
        Node::new(Strictness::Loose, through("eth1")),
        Node::new(Strictness::Off, through("eth1")),
        Node::new(Strictness::Off, Way::None),
    ] {
        let report = from_outside(&world, &node);
        assert_eq!((report.outcome, report.reverse_path), (Outcome::Reachable, Vec::new()), "{node:?}");
    }
    let strict = Node::new(Strictness::Strict, through("eth1"));
    for (from, interface) in [
        ("198.51.100.9", None),
        ("outside", Some("eth0")),
        ("192.0.2.1", Some("eth0")),
        ("node", Some("eth0")),
    ] {
        let report = ask(&world, &strict, from, "svc/web", interface);
        assert_eq!(report.reverse_path, [], "{from} at {interface:?}");
    }
    let refused = ask(&world, &strict, "198.51.100.9", "svc/empty", Some("eth0"));
    assert_eq!((refused.outcome, refused.reverse_path), (Outcome::Refused, Vec::new()));
}

#[test]
fn every_filter_drops_a_packet_without_a_way_back() {
    let world = World::new();
    for strictness in [Strictness::Strict, Strictness::Loose] {
        let report = from_outside(&world, &Node::new(strictness, Way::None));
        assert_eq!(report.outcome, Outcome::Dropped);
        let text = report.text(Style::Plain);
        assert!(text.contains("it arrives at eth0, and there is no route back to 198.51.100.9\n"), "{text}");
    }
}

#[test]
fn a_route_for_one_endpoint_lets_its_packets_pass() {
    let passes = Some(Ipv4Addr::new(10, 244, 1, 11));
    let node = Node { passes, ..Node::new(Strictness::Strict, through("eth1")) };
    let report = from_outside(&World::new(), &node);
    assert_eq!(report.outcome, Outcome::Reachable);
    assert_eq!(
        report.summary,
        "one of 2 endpoints gets the packet, unless a reverse-path filter of this node drops it"
    );
    assert_eq!(report.reverse_path[0].endpoints, ["10.244.2.12:8080".parse().unwrap()]);
}

#[test]
fn an_answer_that_comes_back_another_way() {
    let world = World::new();
    let node = Node { tunnel_has_address: false, ..Node::new(Strictness::Strict, Way::Unknown) };
    let report = ask(&world, &node, "node", "svc/web", None);
    assert_eq!(report.outcome, Outcome::Reachable);
    let [filter] = report.reverse_path.as_slice() else { panic!("{report:?}") };
    assert!(!filter.certain && filter.drops == Filtered::Answer);
    let text = report.text(Style::Plain);
    let line = "net.ipv4.conf.eth0.rp_filter=N drops answers of 10.244.2.12:8080 that arrive at eth0: they are sent to its \
                address 192.0.2.1, and the route back to the endpoint leads through tun0\n";
    assert!(text.contains(line), "{text}");
    // Masqueraded packets have the address of the tunnel then.
    let with_address = Node::new(Strictness::Strict, Way::Unknown);
    assert_eq!(ask(&world, &with_address, "node", "svc/web", None).reverse_path, []);
    let loose = Node { strictness: Strictness::Loose, ..node };
    assert_eq!(ask(&world, &loose, "node", "svc/web", None).reverse_path, []);
}

#[test]
fn in_userspace_mode_the_packet_is_for_the_node() {
    let world = World::in_mode("userspace", &ModeDifferences::userspace());
    let node = Node { tunnel_has_address: false, ..Node::new(Strictness::Strict, through("eth1")) };
    let report = from_outside(&world, &node);
    let found: Vec<_> = report.reverse_path.iter().map(|one| (one.drops, one.endpoints.len())).collect();
    assert_eq!(found, [(Filtered::Packet, 0), (Filtered::Answer, 1)]);
    assert_eq!(report.outcome, Outcome::Dropped);
}
