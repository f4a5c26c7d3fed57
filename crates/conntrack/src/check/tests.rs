use std::sync::Arc;

use portolan_model::ServicePortName;
use portolan_wire::conntrack::Tuple;
use proptest::prelude::*;

use super::*;

const UDP: u8 = 17;
const NODE: &str = "192.0.2.1";

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn service(name: &str, frontends: Vec<Frontend>, serving: &[&str]) -> UdpService {
    let name = ServicePortName {
        namespace: "default".into(),
        service: name.into(),
        port: "".into(),
        protocol: Protocol::Udp,
    };
    let serving = serving.iter().map(|text| socket(text)).collect();
    UdpService::new(Arc::new(name), frontends, serving)
}

/// A UDP or other flow of a client to `destination`, with replies from `answers`.
fn flow_of(protocol: u8, destination: SocketAddr, answers: SocketAddr) -> Flow {
    let client = (destination.ip(), 40_000);
    Flow {
        original: Tuple::with_ports(protocol, client, (destination.ip(), destination.port())),
        reply: Tuple::with_ports(protocol, (answers.ip(), answers.port()), client),
        status: 0,
        mark: None,
        id: None,
        timeout: None,
        zone: None,
        tcp_state: None,
    }
}

fn flow(destination: &str, answers: &str) -> Flow {
    flow_of(UDP, socket(destination), socket(answers))
}

fn cluster_ip(text: &str) -> Frontend {
    Frontend::ClusterIp(socket(text).ip(), socket(text).port())
}

/// A check of two Services: one with every kind of frontend and two endpoints, and one without endpoints.
fn check() -> Check {
    let dns = vec![
        cluster_ip("10.96.0.10:53"),
        Frontend::ExternalIp(socket("198.51.100.7:53").ip(), 53),
        Frontend::LoadBalancerIp(socket("203.0.113.9:53").ip(), 53),
        Frontend::NodePort(30053),
    ];
    let idle = vec![
        cluster_ip("10.96.0.11:53"),
        Frontend::ExternalIp(NODE.parse().unwrap(), 30053),
        Frontend::NodePort(30054),
    ];
    // Not sorted, although the Catalog sorts them.
    let services = [service("dns", dns, &["10.1.0.5:5353", "10.1.0.4:5353"]), service("idle", idle, &[])];
    let addresses = vec!["192.0.2.2".parse().unwrap(), NODE.parse().unwrap(), "10.0.0.1".parse().unwrap()];
    Check::new(Family::Ipv4, &services, addresses)
}

#[test]
fn external_frontends_may_have_other_endpoints() {
    let outside = socket("198.51.100.7:53");
    let external = Frontend::ExternalIp(outside.ip(), outside.port());
    let frontends = vec![cluster_ip("10.96.0.10:53"), external, Frontend::NodePort(30053)];
    let dns = service("dns", frontends, &["10.1.0.4:5353", "10.1.0.5:5353"]);
    let dns = UdpService { external: Some(vec![socket("10.1.0.5:5353")]), ..dns };
    let check = Check::new(Family::Ipv4, [&dns], vec![NODE.parse().unwrap()]);
    for to in ["10.96.0.10:53", "198.51.100.7:53", "192.0.2.1:30053"] {
        assert_eq!(check.is_stale(&flow(to, "10.1.0.4:5353")), to != "10.96.0.10:53", "{to}");
        assert!(!check.is_stale(&flow(to, "10.1.0.5:5353")), "{to}");
    }
}

#[test]
fn a_captured_flow_is_valid_unless_it_is_translated_to_another_endpoint() {
    let frontends = vec![cluster_ip("10.96.0.10:53"), Frontend::NodePort(30053)];
    let dns = UdpService { is_captured: true, ..service("dns", frontends, &["10.1.0.4:5353"]) };
    let check = Check::new(Family::Ipv4, [&dns], vec![NODE.parse().unwrap()]);
    for (to, from, want) in [
        ("10.96.0.10:53", "10.96.0.10:53", Verdict::Valid),
        ("192.0.2.1:30053", "192.0.2.1:30053", Verdict::Valid),
        ("10.96.0.10:53", "10.1.0.4:5353", Verdict::Valid),
        // Another mode has translated it.
        ("10.96.0.10:53", "10.1.0.9:5353", Verdict::Stale),
        ("192.0.2.1:30053", "10.96.0.10:53", Verdict::Stale),
    ] {
        assert_eq!(check.judge(&flow(to, from)), want, "{to} {from}");
    }
}

#[test]
fn a_flow_that_starts_with_a_reply_is_stale_on_request() {
    let answer = |from: &str| {
        let (from, client) = (socket(from), (IpAddr::from([192, 0, 2, 200]), 40_000));
        let original = Tuple::with_ports(UDP, (from.ip(), from.port()), client);
        let reply = Tuple::with_ports(UDP, client, (from.ip(), from.port()));
        Flow { original, reply, ..flow("10.96.0.10:53", "10.96.0.10:53") }
    };
    let with_answers = check().including_replies();
    for from in ["10.96.0.10:53", "192.0.2.1:30053", "10.96.0.11:53"] {
        assert!(!check().is_stale(&answer(from)), "{from}");
        assert!(with_answers.is_stale(&answer(from)), "{from}");
    }
    for from in ["10.96.0.10:54", "192.0.2.9:30053", "10.1.0.4:5353"] {
        assert!(!with_answers.is_stale(&answer(from)), "{from}");
    }
    assert!(!with_answers.is_stale(&flow("10.96.0.10:53", "10.1.0.4:5353")), "translated");
    assert_eq!(with_answers.filters().len(), 1, "they are to any port");
}

#[test]
fn a_flow_to_a_frontend_is_stale_unless_a_serving_endpoint_answers() {
    use Verdict::{Foreign, Stale, Valid};
    let cases = [
        // Translated to an endpoint that serves, to one that does not, and to another port of a serving address.
        ("10.96.0.10:53", "10.1.0.4:5353", Valid),
        ("10.96.0.10:53", "10.1.0.5:5353", Valid),
        ("10.96.0.10:53", "10.1.0.6:5353", Stale),
        ("10.96.0.10:53", "10.1.0.4:53", Stale),
        // Not translated: older than the rules.
        ("10.96.0.10:53", "10.96.0.10:53", Stale),
        ("198.51.100.7:53", "10.1.0.4:5353", Valid),
        ("198.51.100.7:53", "10.1.0.6:5353", Stale),
        ("203.0.113.9:53", "10.1.0.5:5353", Valid),
        ("203.0.113.9:53", "203.0.113.9:53", Stale),
        // Another port of a frontend's address, and another address.
        ("10.96.0.10:54", "10.96.0.10:54", Foreign),
        ("10.96.0.12:53", "10.96.0.12:53", Foreign),
        ("10.1.0.6:5353", "10.1.0.6:5353", Foreign),
        // A Service port without serving endpoints.
        ("10.96.0.11:53", "10.1.0.6:5353", Valid),
        ("10.96.0.11:53", "10.96.0.11:53", Valid),
    ];
    for (destination, answers, verdict) in cases {
        assert_eq!(check().judge(&flow(destination, answers)), verdict, "{destination} {answers}");
    }
}

#[test]
fn a_node_port_is_one_only_at_addresses_that_accept_node_ports() {
    use Verdict::{Foreign, Stale, Valid};
    let cases = [
        ("192.0.2.2:30053", "10.1.0.4:5353", Valid),
        ("192.0.2.2:30053", "10.1.0.6:5353", Stale),
        ("10.0.0.1:30053", "10.0.0.1:30053", Stale),
        // A flow of a pod to a server outside the cluster.
        ("198.51.100.200:30053", "198.51.100.200:30053", Foreign),
        ("127.0.0.1:30053", "127.0.0.1:30053", Foreign),
        // A cluster IP of a Service port that is not checked.
        ("10.96.0.77:30053", "10.1.0.9:1053", Foreign),
        ("192.0.2.2:30054", "192.0.2.2:30054", Valid),
        ("192.0.2.2:30055", "192.0.2.2:30055", Foreign),
        // An external IP takes precedence over a node port, even if its Service port has no serving endpoint.
        ("192.0.2.1:30053", "192.0.2.1:30053", Valid),
    ];
    for (destination, answers, verdict) in cases {
        assert_eq!(check().judge(&flow(destination, answers)), verdict, "{destination} {answers}");
    }
}

#[test]
fn only_udp_counts() {
    for protocol in [6, 132, 136] {
        let other = flow_of(protocol, socket("10.96.0.10:53"), socket("10.1.0.6:5353"));
        assert_eq!(check().judge(&other), Verdict::Foreign);
    }
}

#[test]
fn of_two_services_with_one_frontend_the_later_counts() {
    let at = |name, endpoint| service(name, vec![cluster_ip("10.96.0.10:53")], &[endpoint]);
    let (first, second) = (at("a", "10.1.0.4:53"), at("b", "10.1.0.5:53"));
    let check = Check::new(Family::Ipv4, [&first, &second], Vec::new());
    assert_eq!(check.judge(&flow("10.96.0.10:53", "10.1.0.4:53")), Verdict::Stale);
    assert_eq!(check.judge(&flow("10.96.0.10:53", "10.1.0.5:53")), Verdict::Valid);
}

#[test]
fn ipv6_flows_are_matched_by_address_and_port() {
    let frontends = vec![cluster_ip("[fd00:96::a]:53"), Frontend::NodePort(30053)];
    let services = [service("dns", frontends, &["[fd00:1::4]:53"])];
    let check = Check::new(Family::Ipv6, &services, vec!["2001:db8::1".parse().unwrap()]);
    assert_eq!(check.judge(&flow("[fd00:96::a]:53", "[fd00:1::4]:53")), Verdict::Valid);
    assert_eq!(check.judge(&flow("[fd00:96::a]:53", "[fd00:1::5]:53")), Verdict::Stale);
    assert_eq!(check.judge(&flow("[2001:db8::1]:30053", "[2001:db8::1]:30053")), Verdict::Stale);
    assert_eq!(check.judge(&flow("[2001:db8::2]:30053", "[2001:db8::2]:30053")), Verdict::Foreign);
}

/// Returns the filters of a check, as (port, address).
fn asked(services: &[UdpService], addresses: &[&str]) -> Vec<(Option<u16>, Option<String>)> {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let filters = Check::new(Family::Ipv4, services, addresses).filters();
    assert!(filters.iter().all(|filter| filter.protocol == Some(UDP)));
    let text = |filter: &Filter| (filter.destination_port, filter.destination.map(|ip| ip.to_string()));
    filters.iter().map(text).collect()
}

#[test]
fn the_kernel_is_asked_for_as_little_as_possible() {
    let serving = ["10.1.0.4:53"];
    let at = |frontends: Vec<Frontend>| [service("a", frontends, &serving)];
    let address = Some("10.96.0.10".to_owned());
    let one = at(vec![cluster_ip("10.96.0.10:53")]);
    assert_eq!(asked(&one, &[]), [(Some(53), address.clone())]);
    let same_port = at(vec![cluster_ip("10.96.0.10:53"), cluster_ip("10.96.0.11:53")]);
    assert_eq!(asked(&same_port, &[]), [(Some(53), None)]);
    let node_port = at(vec![cluster_ip("10.96.0.10:53"), Frontend::NodePort(30053)]);
    assert_eq!(asked(&node_port, &[NODE]), [(Some(53), address.clone()), (Some(30053), None)]);
    assert_eq!(asked(&node_port, &[]), [(Some(53), address)], "no address accepts node ports");
    let both = at(vec![cluster_ip("10.96.0.10:30053"), Frontend::NodePort(30053)]);
    assert_eq!(asked(&both, &[NODE]), [(Some(30053), None)]);
    let many = at((1..=4).map(|port| Frontend::ClusterIp(NODE.parse().unwrap(), port)).collect());
    assert_eq!(asked(&many, &[]), [(None, None)]);
    let idle = [service("a", vec![cluster_ip("10.96.0.10:53"), Frontend::NodePort(1)], &[])];
    assert_eq!(asked(&idle, &[NODE]), []);
}

/// A small range of values, so that they collide.
fn any_address() -> impl Strategy<Value = IpAddr> {
    (0_u8..5).prop_map(|last| IpAddr::from([10, 0, 0, last]))
}

fn any_socket() -> impl Strategy<Value = SocketAddr> {
    (any_address(), 1_u16..6).prop_map(SocketAddr::from)
}

fn any_frontend() -> impl Strategy<Value = Frontend> {
    prop_oneof![
        any_socket().prop_map(|at| Frontend::ClusterIp(at.ip(), at.port())),
        any_socket().prop_map(|at| Frontend::ExternalIp(at.ip(), at.port())),
        any_socket().prop_map(|at| Frontend::LoadBalancerIp(at.ip(), at.port())),
        (1_u16..6).prop_map(Frontend::NodePort),
    ]
}

fn any_service() -> impl Strategy<Value = UdpService> {
    let frontends = prop::collection::vec(any_frontend(), 0..4);
    (frontends, prop::collection::vec(any_socket(), 0..4))
        .prop_map(|(frontends, serving)| UdpService { serving, ..service("any", frontends, &[]) })
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let protocol = prop_oneof![4 => Just(UDP), 1 => Just(6_u8)];
    (protocol, any_socket(), any_socket()).prop_map(|(protocol, to, from)| flow_of(protocol, to, from))
}

/// The rule, literally: the last Service port with that address and port, else the last with that node port.
fn stale_by_the_rule(services: &[UdpService], nodes: &[IpAddr], flow: &Flow) -> bool {
    let to = SocketAddr::new(flow.original.destination, flow.original.destination_port().unwrap());
    let from = SocketAddr::new(flow.reply.source, flow.reply.source_port().unwrap());
    let exact = |frontend: &Frontend| match *frontend {
        Frontend::ClusterIp(ip, port)
        | Frontend::ExternalIp(ip, port)
        | Frontend::LoadBalancerIp(ip, port) => SocketAddr::new(ip, port) == to,
        Frontend::NodePort(_) => false,
    };
    let node_port = |f: &Frontend| *f == Frontend::NodePort(to.port()) && nodes.contains(&to.ip());
    let by_address = services.iter().rev().find(|service| service.frontends.iter().any(exact));
    let by_node_port = || services.iter().rev().find(|service| service.frontends.iter().any(node_port));
    let owner = by_address.or_else(by_node_port);
    flow.original.protocol == UDP
        && owner.is_some_and(|owner| !owner.serving.is_empty() && !owner.serving.contains(&from))
}

fn listed(filters: &[Filter], flow: &Flow) -> bool {
    filters.iter().any(|filter| {
        filter.protocol.is_none_or(|protocol| protocol == flow.original.protocol)
            && filter.destination.is_none_or(|destination| destination == flow.original.destination)
            && filter.destination_port.is_none_or(|port| Some(port) == flow.original.destination_port())
    })
}

proptest! {
    #[test]
    fn the_verdict_is_that_of_the_rule(
        services in prop::collection::vec(any_service(), 0..5),
        nodes in prop::collection::vec(any_address(), 0..3),
        flows in prop::collection::vec(any_flow(), 1..20),
    ) {
        let check = Check::new(Family::Ipv4, &services, nodes.clone());
        let filters = check.filters();
        for flow in &flows {
            let stale = stale_by_the_rule(&services, &nodes, flow);
            prop_assert_eq!(check.is_stale(flow), stale);
            prop_assert!(!stale || listed(&filters, flow), "a stale flow that the kernel is not asked for");
        }
    }
}
