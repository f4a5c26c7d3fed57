//! The handling of packets in rows of a table. The reasons are in `reasons`, laws for random worlds in `laws`.

mod established;
mod laws;
mod reasons;

use std::net::SocketAddr;
use std::sync::Arc;

use super::*;
use crate::{
    Backend, ExternalPolicy, Family, Forwarding, Frontend, InternalPolicy, LocalDetector, NodePortAddresses,
    Protocol, ServicePortName,
};

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn backend(address: &str, may_hairpin: bool) -> Backend {
    Backend { address: ip(address), port: 8080, may_hairpin }
}

/// An endpoint on this node.
const HERE: &str = "10.244.1.5";
/// An endpoint on another node.
const THERE: &str = "10.244.2.5";
const CLUSTER_IP: &str = "10.96.0.1";
const EXTERNAL_IP: &str = "192.0.2.10";
const LOAD_BALANCER_IP: &str = "192.0.2.20";
/// The address of this node that accepts node ports, and one that does not.
const NODE_IP: &str = "172.16.0.1";
const OTHER_NODE_IP: &str = "172.17.0.1";

const POD: Origin<'static> = Origin::Pod { input_interface: "veth0" };
const REMOTE: Origin<'static> = Origin::Remote { input_interface: "eth0" };

fn settings() -> Settings {
    Settings {
        family: Family::Ipv4,
        local_detector: LocalDetector::Cidr("10.244.1.0/24".parse().expect("a CIDR")),
        masquerade_all: false,
        masquerade_bit: 14,
        node_port_addresses: NodePortAddresses::Addresses(vec![ip(NODE_IP)]),
        node_ip: Some(ip(NODE_IP)),
        service_cidrs: vec!["10.96.0.0/16".parse().expect("a CIDR")],
        counters: false,
    }
}

fn forwarding() -> Forwarding {
    let cluster = Box::new([backend(HERE, true), backend(THERE, false)]);
    Forwarding {
        frontends: Box::new([
            Frontend::ClusterIp(ip(CLUSTER_IP), 80),
            Frontend::ExternalIp(ip(EXTERNAL_IP), 80),
            Frontend::LoadBalancerIp(ip(LOAD_BALANCER_IP), 80),
            Frontend::NodePort(30080),
        ]),
        ..Forwarding::plain(SocketAddr::new(ip(CLUSTER_IP), 80), Protocol::Tcp, cluster)
    }
}

/// Returns the Service port `default/web` with this forwarding.
fn entry(forwarding: &Forwarding) -> Entry {
    let [namespace, service, port] = ["default", "web", ""].map(Arc::from);
    let name = ServicePortName { namespace, service, port, protocol: forwarding.protocol };
    (Arc::new(name), Arc::new(forwarding.clone()))
}

/// The addresses of this node's interfaces.
fn local_addresses() -> [IpAddr; 3] {
    [ip(NODE_IP), ip(OTHER_NODE_IP), ip("10.244.1.1")]
}

/// Returns the first packet of a TCP connection.
fn packet<'a>(origin: Origin<'a>, source: &str, to: (&str, u16)) -> Packet<'a> {
    Packet {
        origin,
        source: ip(source),
        destination: ip(to.0),
        protocol: Protocol::Tcp,
        port: to.1,
        flow: FlowState::New,
    }
}

/// Returns `C` or `L` for the set of backends, with `m` for each masqueraded backend and `-` for each other one. Any
/// other fate is returned by its name.
fn ask(
    settings: &Settings,
    forwarding: &Forwarding,
    origin: Origin<'_>,
    source: &str,
    to: (&str, u16),
) -> String {
    ask_in(&ModeDifferences::default(), settings, forwarding, origin, source, to)
}

fn ask_in(
    differences: &ModeDifferences,
    settings: &Settings,
    forwarding: &Forwarding,
    origin: Origin<'_>,
    source: &str,
    to: (&str, u16),
) -> String {
    let (local_addresses, table) = (&local_addresses(), &[entry(forwarding)]);
    let oracle = Oracle { settings, local_addresses, table, differences, health_check_ports: &[] };
    match oracle.fate(&packet(origin, source, to)) {
        Fate::Backends { set, masqueraded, .. } => {
            let name = if *set == *forwarding.cluster { "C" } else { "L" };
            let flags: String = masqueraded.iter().map(|m| if *m { 'm' } else { '-' }).collect();
            assert_eq!(set.len(), masqueraded.len());
            format!("{name}{flags}")
        }
        other => format!("{other:?}"),
    }
}

/// The clients of the tables: a pod on this node, a process of this node, a pod on another node, an external host.
const CLIENTS: [(Origin<'static>, &str); 4] =
    [(POD, "10.244.1.9"), (Origin::Node, NODE_IP), (REMOTE, "10.244.2.9"), (REMOTE, "203.0.113.1")];

fn row(settings: &Settings, forwarding: &Forwarding, to: (&str, u16)) -> [String; 4] {
    CLIENTS.map(|(origin, source)| ask(settings, forwarding, origin, source, to))
}

const EXTERNAL: [(&str, u16); 3] = [(EXTERNAL_IP, 80), (LOAD_BALANCER_IP, 80), (NODE_IP, 30080)];

#[test]
fn internal_traffic() {
    let row = |change: fn(&mut Forwarding)| {
        let mut forwarding = forwarding();
        change(&mut forwarding);
        row(&settings(), &forwarding, (CLUSTER_IP, 80))
    };
    assert_eq!(row(|_| {}), ["C--", "Cmm", "Cmm", "Cmm"]);
    assert_eq!(
        row(|f| {
            f.cluster = Box::default();
            f.has_endpoints = false;
        }),
        ["Reject"; 4]
    );
    assert_eq!(
        row(|f| {
            f.internal_policy = InternalPolicy::Local;
            f.local = Box::new([backend(HERE, true)]);
        }),
        ["L-", "Lm", "Lm", "Lm"]
    );
    // An internal Local policy has no short cut, not even for pods.
    assert_eq!(row(|f| f.internal_policy = InternalPolicy::Local), ["Drop"; 4]);
}

#[test]
fn external_traffic() {
    for to in EXTERNAL {
        let row = |change: fn(&mut Forwarding)| {
            let mut forwarding = forwarding();
            change(&mut forwarding);
            row(&settings(), &forwarding, to)
        };
        assert_eq!(row(|_| {}), ["Cmm"; 4], "{to:?}");
        assert_eq!(
            row(|f| {
                f.cluster = Box::default();
                f.has_endpoints = false;
                f.external_policy = ExternalPolicy::Local;
            }),
            ["Reject"; 4],
            "{to:?}"
        );
        assert_eq!(
            row(|f| {
                f.external_policy = ExternalPolicy::Local;
                f.local = Box::new([backend(HERE, true)]);
            }),
            ["C--", "Cmm", "L-", "L-"],
            "{to:?}"
        );
        assert_eq!(
            row(|f| f.external_policy = ExternalPolicy::Local),
            ["C--", "Cmm", "Drop", "Drop"],
            "{to:?}"
        );
    }
}

#[test]
fn without_a_detector_no_source_is_a_pod() {
    let settings = Settings { local_detector: LocalDetector::None, ..settings() };
    assert_eq!(row(&settings, &forwarding(), (CLUSTER_IP, 80)), ["C--"; 4]);
    let local = Forwarding { external_policy: ExternalPolicy::Local, ..forwarding() };
    assert_eq!(row(&settings, &local, (EXTERNAL_IP, 80)), ["Drop", "Cmm", "Drop", "Drop"]);
}

#[test]
fn masquerade_all_applies_to_all_sources() {
    for local_detector in [LocalDetector::None, settings().local_detector] {
        let settings = Settings { masquerade_all: true, local_detector, ..settings() };
        assert_eq!(row(&settings, &forwarding(), (CLUSTER_IP, 80)), ["Cmm"; 4]);
    }
}

#[test]
fn detection_by_interface_sees_the_input_interface_only() {
    let detectors = [LocalDetector::Interface("veth0".into()), LocalDetector::InterfacePrefix("veth".into())];
    for local_detector in detectors {
        let settings = Settings { local_detector, ..settings() };
        assert_eq!(row(&settings, &forwarding(), (CLUSTER_IP, 80)), ["C--", "Cmm", "Cmm", "Cmm"]);
        // A pod's address behind another interface is not a pod, nor is a process of the node.
        assert_eq!(ask(&settings, &forwarding(), REMOTE, "10.244.1.9", (CLUSTER_IP, 80)), "Cmm");
        assert_eq!(ask(&settings, &forwarding(), Origin::Node, "10.244.1.1", (CLUSTER_IP, 80)), "Cmm");
    }
    let whole_name = Settings { local_detector: LocalDetector::Interface("veth".into()), ..settings() };
    assert_eq!(ask(&whole_name, &forwarding(), POD, "10.244.1.9", (CLUSTER_IP, 80)), "Cmm");
}

#[test]
fn the_pod_short_cut_comes_before_the_one_for_the_node() {
    // The bridge's address is local to this node and inside the pod CIDR.
    let local = Forwarding { external_policy: ExternalPolicy::Local, ..forwarding() };
    assert_eq!(ask(&settings(), &local, Origin::Node, "10.244.1.1", (EXTERNAL_IP, 80)), "C--");
}

#[test]
fn hairpin_is_masqueraded_where_the_backend_may_be_here() {
    assert_eq!(ask(&settings(), &forwarding(), POD, HERE, (CLUSTER_IP, 80)), "Cm-");
    let mut elsewhere = forwarding();
    elsewhere.cluster[0].may_hairpin = false;
    assert_eq!(ask(&settings(), &elsewhere, POD, HERE, (CLUSTER_IP, 80)), "C--");
    let local = Forwarding { external_policy: ExternalPolicy::Local, ..forwarding() };
    assert_eq!(ask(&settings(), &local, POD, HERE, (NODE_IP, 30080)), "Cm-");
}

#[test]
fn hairpin_is_masqueraded_if_another_service_has_the_backend_here() {
    let mut elsewhere = forwarding();
    elsewhere.cluster[0].may_hairpin = false;
    let other = |protocol| {
        let frontends = Box::new([Frontend::ClusterIp(ip("10.96.0.2"), 80)]);
        entry(&Forwarding { protocol, frontends, ..forwarding() })
    };
    for (protocol, masqueraded) in [(Protocol::Tcp, true), (Protocol::Udp, false)] {
        let (settings, differences) = (&settings(), &ModeDifferences::default());
        let (local_addresses, table) = (&local_addresses(), &[entry(&elsewhere), other(protocol)]);
        let oracle = Oracle { settings, local_addresses, table, differences, health_check_ports: &[] };
        let Fate::Backends { masqueraded: found, .. } = oracle.fate(&packet(POD, HERE, (CLUSTER_IP, 80)))
        else {
            panic!("no backends");
        };
        assert_eq!(found, [masqueraded, false], "{protocol}");
    }
}

#[test]
fn packets_from_elsewhere_that_end_on_this_node_are_not_masqueraded() {
    let mut to_node = forwarding();
    to_node.cluster[0].address = ip(OTHER_NODE_IP);
    for to in EXTERNAL {
        assert_eq!(row(&settings(), &to_node, to), ["C-m", "Cmm", "C-m", "C-m"]);
    }
    assert_eq!(row(&settings(), &to_node, (CLUSTER_IP, 80)), ["C--", "Cmm", "C-m", "C-m"]);
    let relay = ModeDifferences::userspace();
    assert_eq!(ask_in(&relay, &settings(), &to_node, REMOTE, "203.0.113.1", (CLUSTER_IP, 80)), "Cmm");
}

#[test]
fn source_ranges_of_load_balancer_ips_apply_to_all_sources() {
    let guarded =
        Forwarding { source_ranges: Box::new(["203.0.113.0/24".parse().expect("a CIDR")]), ..forwarding() };
    assert_eq!(row(&settings(), &guarded, (LOAD_BALANCER_IP, 80)), ["Drop", "Drop", "Drop", "Cmm"]);
    for to in [(EXTERNAL_IP, 80), (NODE_IP, 30080)] {
        assert_eq!(row(&settings(), &guarded, to), ["Cmm"; 4], "{to:?}");
    }
    // Without endpoints, sources outside of the ranges are dropped and those inside are rejected.
    let empty = Forwarding { cluster: Box::default(), has_endpoints: false, ..guarded };
    assert_eq!(row(&settings(), &empty, (LOAD_BALANCER_IP, 80)), ["Drop", "Drop", "Drop", "Reject"]);
}

#[test]
fn a_node_in_the_ranges_may_appear_as_the_load_balancer() {
    let ranges =
        |cidr: &str| Forwarding { source_ranges: Box::new([cidr.parse().expect("a CIDR")]), ..forwarding() };
    let to = (LOAD_BALANCER_IP, 80);
    assert_eq!(ask(&settings(), &ranges("172.16.0.0/16"), Origin::Node, LOAD_BALANCER_IP, to), "Cmm");
    assert_eq!(ask(&settings(), &ranges("203.0.113.0/24"), Origin::Node, LOAD_BALANCER_IP, to), "Drop");
    let unknown = Settings { node_ip: None, ..settings() };
    assert_eq!(ask(&unknown, &ranges("172.16.0.0/16"), Origin::Node, LOAD_BALANCER_IP, to), "Drop");
}

#[test]
fn addresses_that_accept_node_ports() {
    let ask_node_port =
        |settings: &Settings, to: &str| ask(settings, &forwarding(), REMOTE, "203.0.113.1", (to, 30080));
    assert_eq!(ask_node_port(&settings(), NODE_IP), "Cmm");
    assert_eq!(ask_node_port(&settings(), OTHER_NODE_IP), "NotOurs");
    let all = Settings { node_port_addresses: NodePortAddresses::MatchAll, ..settings() };
    assert_eq!(ask_node_port(&all, NODE_IP), "Cmm");
    assert_eq!(ask_node_port(&all, OTHER_NODE_IP), "Cmm");
    assert_eq!(ask_node_port(&all, "198.51.100.1"), "NotOurs");
    assert_eq!(ask(&all, &forwarding(), Origin::Node, "127.0.0.1", ("127.0.0.1", 30080)), "NotOurs");
}

#[test]
fn packets_without_a_matching_frontend() {
    let wrong_port = row(&settings(), &forwarding(), (CLUSTER_IP, 81));
    assert_eq!(wrong_port, ["Reject"; 4]);
    assert_eq!(row(&settings(), &forwarding(), ("10.96.7.7", 80)), ["Drop"; 4]);
    assert_eq!(row(&settings(), &forwarding(), ("198.51.100.1", 80)), ["NotOurs"; 4]);
    assert_eq!(row(&settings(), &forwarding(), (EXTERNAL_IP, 81)), ["NotOurs"; 4]);
    let no_cidrs = Settings { service_cidrs: Vec::new(), ..settings() };
    assert_eq!(row(&no_cidrs, &forwarding(), ("10.96.7.7", 80)), ["NotOurs"; 4]);
    // An address of this node inside the service CIDR: incoming packets to it are left to the node.
    let wide = Settings { service_cidrs: vec!["172.16.0.0/12".parse().expect("a CIDR")], ..settings() };
    assert_eq!(row(&wide, &forwarding(), (NODE_IP, 22)), ["NotOurs", "Drop", "NotOurs", "NotOurs"]);
}

#[test]
fn protocol_and_family_must_match() {
    let (settings, table) = (&settings(), &[entry(&forwarding())]);
    let differences = &ModeDifferences::default();
    let oracle = Oracle { settings, local_addresses: &[], table, differences, health_check_ports: &[] };
    let packet = Packet { protocol: Protocol::Udp, ..packet(REMOTE, "203.0.113.1", (CLUSTER_IP, 80)) };
    assert_eq!(oracle.fate(&packet), Fate::Reject, "no such port on this cluster IP");
    let six = Packet { destination: ip("2001:db8::1"), source: ip("2001:db8::2"), ..packet };
    assert_eq!(oracle.fate(&six), Fate::NotOurs);
}

#[test]
fn affinity_is_part_of_the_fate() {
    let sticky = Forwarding { affinity: Some(60), ..forwarding() };
    let (settings, table) = (&settings(), &[entry(&sticky)]);
    let differences = &ModeDifferences::default();
    let oracle = Oracle { settings, local_addresses: &[], table, differences, health_check_ports: &[] };
    let fate = oracle.fate(&packet(REMOTE, "203.0.113.1", (CLUSTER_IP, 80)));
    assert!(matches!(fate, Fate::Backends { affinity: Some(60), .. }), "{fate:?}");
}

#[test]
fn iptables_mode() {
    let loopback = "127.0.0.0/8".parse().expect("a CIDR");
    let differences = ModeDifferences::iptables(vec![loopback]);
    let row = |forwarding: &Forwarding, to| {
        CLIENTS.map(|(origin, source)| ask_in(&differences, &settings(), forwarding, origin, source, to))
    };
    let at_loopback = |forwarding: &Forwarding| {
        ask_in(&differences, &settings(), forwarding, Origin::Node, "127.0.0.1", ("127.0.0.1", 30080))
    };
    let usual = forwarding();
    assert_eq!(row(&usual, (CLUSTER_IP, 80)), ["C--", "Cmm", "Cmm", "Cmm"]);
    assert_eq!(row(&usual, (CLUSTER_IP, 81)), ["NotOurs"; 4]);
    assert_eq!(row(&usual, ("10.96.7.7", 80)), ["NotOurs"; 4]);
    assert_eq!(row(&usual, (OTHER_NODE_IP, 30080)), ["NotOurs"; 4]);
    assert_eq!(at_loopback(&usual), "Cmm");
    let itself = ask_in(&differences, &settings(), &usual, REMOTE, THERE, (CLUSTER_IP, 80));
    let masquerade_none = Settings { local_detector: LocalDetector::None, ..settings() };
    let alone = ask_in(&differences, &masquerade_none, &usual, REMOTE, THERE, (CLUSTER_IP, 80));
    assert_eq!((itself.as_str(), alone.as_str()), ("Cmm", "C-m"));

    let guarded =
        Forwarding { source_ranges: Box::new(["203.0.113.0/24".parse().expect("a CIDR")]), ..forwarding() };
    assert_eq!(row(&guarded, (LOAD_BALANCER_IP, 80)), ["Drop", "Drop", "Drop", "Cmm"]);
    let empty = Forwarding { cluster: Box::default(), has_endpoints: false, ..guarded };
    for (to, expected) in [
        ((CLUSTER_IP, 80), ["Reject"; 4]),
        ((LOAD_BALANCER_IP, 80), ["Reject", "NotOurs", "Reject", "Reject"]),
        ((EXTERNAL_IP, 80), ["Reject", "NotOurs", "Reject", "Reject"]),
        ((NODE_IP, 30080), ["Reject"; 4]),
        ((OTHER_NODE_IP, 30080), ["Reject"; 4]),
    ] {
        assert_eq!(row(&empty, to), expected, "{to:?}");
    }
    assert_eq!(at_loopback(&empty), "Reject");
    let elsewhere = Forwarding { external_policy: ExternalPolicy::Local, ..forwarding() };
    assert_eq!(row(&elsewhere, (OTHER_NODE_IP, 30080)), ["Drop"; 4]);
    assert_eq!(row(&elsewhere, (NODE_IP, 30080)), ["C--", "Cmm", "Drop", "Drop"]);
}

/// In IPVS mode the node has the addresses of Services, and the kernel chooses the one that a process connects to as source.
#[test]
fn the_node_sends_from_virtual_addresses_in_ipvs_mode() {
    let ask = |settings: &Settings, forwarding: &Forwarding, source: &str, to: &str| {
        ask_in(&ModeDifferences::ipvs(), settings, forwarding, Origin::Node, source, (to, 80))
    };
    let elsewhere = Forwarding { external_policy: ExternalPolicy::Local, ..forwarding() };
    let here = Forwarding { local: Box::new([backend(HERE, true)]), ..elsewhere.clone() };
    let no_detector = Settings { local_detector: LocalDetector::None, ..settings() };
    for settings in [&settings(), &no_detector] {
        for to in [EXTERNAL_IP, LOAD_BALANCER_IP] {
            assert_eq!(ask(settings, &elsewhere, to, to), "Cmm", "{to}");
            assert_eq!(ask(settings, &here, to, to), "Lm", "{to}");
        }
        assert_eq!(ask(settings, &forwarding(), CLUSTER_IP, CLUSTER_IP), "Cmm");
    }
    assert_eq!(ask(&no_detector, &forwarding(), NODE_IP, CLUSTER_IP), "C--");
}
