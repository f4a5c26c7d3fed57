//! Routes and settings of the node that stop the packet.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use portolan_model::Family;
use portolan_model::oracle::ModeDifferences;

use super::world::{World, question};
use crate::facts::{Facts, Filter, Lead, Routes, Way};
use crate::report::{Outcome, Report};
use crate::text::Style;

/// A node whose routes lead on, except for these destinations.
#[derive(Debug)]
struct Node {
    forwards: bool,
    leads: BTreeMap<IpAddr, Lead>,
}

impl Node {
    fn new(leads: &[(&str, Lead)]) -> Self {
        let leads = leads.iter().map(|(to, lead)| (to.parse().unwrap(), lead.clone())).collect();
        Self { forwards: true, leads }
    }
}

impl Routes for Node {
    fn way_to(&self, _: Ipv4Addr) -> Way {
        Way::Unknown
    }

    fn accepts(&self, _: &str, _: Ipv4Addr, _: Ipv4Addr) -> Option<bool> {
        None
    }

    fn filter(&self, _: &str) -> Option<Filter> {
        None
    }

    fn holder(&self, _: Ipv4Addr) -> Option<String> {
        None
    }

    fn has_address(&self, _: &str) -> bool {
        true
    }

    fn forwards(&self, _: Family, _: Option<&str>) -> Option<bool> {
        Some(self.forwards)
    }

    fn lead(&self, destination: IpAddr) -> Lead {
        self.leads.get(&destination).cloned().unwrap_or(Lead::On)
    }
}

fn ask(world: &World, node: &Node, from: &str, to: &str) -> Report {
    let node_source = Some(Ipv4Addr::new(192, 0, 2, 1).into());
    let facts = Facts { routes: Some(node), node_source, ..world.facts() };
    crate::answer(&question(from, to), &facts).unwrap()
}

/// Returns the outcome and the line about routes.
fn routed(world: &World, node: &Node, from: &str, to: &str) -> (Outcome, String) {
    let report = ask(world, node, from, to);
    let text = report.text(Style::Plain);
    let line = text.lines().find_map(|line| line.strip_prefix("  route         "));
    (report.outcome, line.unwrap_or_default().to_owned())
}

#[test]
fn a_node_that_does_not_forward() {
    let node = Node { forwards: false, ..Node::new(&[]) };
    let (outcome, line) = routed(&World::new(), &node, "pod/client", "svc/web");
    assert_eq!(outcome, Outcome::Dropped);
    assert_eq!(
        line,
        "this node does not forward packets, so those to the endpoint are dropped (net.ipv4.ip_forward, \
         net.ipv6.conf.all.forwarding)"
    );
    let reachable = (Outcome::Reachable, String::new());
    assert_eq!(routed(&World::new(), &node, "node", "svc/web"), reachable, "the node sends it");
    for (mode, differences) in
        [("ipvs", ModeDifferences::ipvs()), ("userspace", ModeDifferences::userspace())]
    {
        let world = World::in_mode(mode, &differences);
        assert_eq!(routed(&world, &node, "pod/client", "svc/web"), reachable, "{mode} sends it");
    }
    let refused = ask(&World::new(), &node, "pod/client", "svc/empty");
    assert_eq!((refused.outcome, refused.routing), (Outcome::Refused, Vec::new()), "by Services");
}

#[test]
fn an_endpoint_without_a_way() {
    let world = World::new();
    let to_signals =
        |lead: Lead, from: &str| routed(&world, &Node::new(&[("10.244.1.18", lead)]), from, "svc/signals");
    let found = |outcome, line: &str| (outcome, line.to_owned());
    assert_eq!(to_signals(Lead::On, "pod/client"), found(Outcome::Reachable, ""));
    assert_eq!(to_signals(Lead::Unknown, "pod/client"), found(Outcome::Reachable, ""));
    assert_eq!(
        to_signals(Lead::NoRoute, "pod/client"),
        found(Outcome::Refused, "this node has no route to the endpoint")
    );
    assert_eq!(
        to_signals(Lead::NoRoute, "node"),
        found(Outcome::Dropped, "this node has no route to the endpoint"),
        "no host sends an ICMP error to itself here"
    );
    assert_eq!(
        to_signals(Lead::Refuses, "pod/client"),
        found(Outcome::Refused, "the route to the endpoint refuses packets (unreachable, prohibit)")
    );
    assert_eq!(
        to_signals(Lead::Discards, "pod/client"),
        found(Outcome::Dropped, "the route to the endpoint discards packets (blackhole)")
    );
    let interface = "cali1".to_owned();
    assert_eq!(
        to_signals(Lead::NoCarrier { interface }, "pod/client"),
        found(
            Outcome::Dropped,
            "the route to the endpoint leads through cali1, which has no carrier: its other end is down"
        )
    );
}

#[test]
fn one_of_two_endpoints_without_a_way() {
    let report = ask(&World::new(), &Node::new(&[("10.244.2.12", Lead::NoRoute)]), "pod/client", "svc/web");
    assert_eq!(report.outcome, Outcome::Reachable);
    assert_eq!(report.routing[0].endpoints, ["10.244.2.12:8080".parse().unwrap()]);
    assert_eq!(
        report.summary,
        "one of 2 endpoints gets the packet, unless it goes to one to which this node does not send it"
    );
    let both = [("10.244.2.12", Lead::NoRoute), ("10.244.1.11", Lead::Discards)];
    let report = ask(&World::new(), &Node::new(&both), "pod/client", "svc/web");
    assert_eq!((report.outcome, report.routing.len()), (Outcome::Dropped, 2), "at times");
    assert_eq!(report.summary, "this node does not send the packet to its endpoint");
}
