//! The reasons, one line for each way to decide: who asks for what, and the codes of the answer.

use super::*;
use crate::object::no_source;
use crate::verdict::Reason;

/// A world with one Service port, in which packets are judged.
struct Judge {
    settings: Settings,
    forwarding: Forwarding,
    differences: ModeDifferences,
}

impl Judge {
    fn of(forwarding: Forwarding) -> Self {
        Self { settings: settings(), forwarding, differences: ModeDifferences::default() }
    }

    fn in_mode(self, differences: ModeDifferences) -> Self {
        Self { differences, ..self }
    }

    fn verdict(&self, packet: &Packet<'_>) -> Verdict {
        let Self { settings, forwarding, differences } = self;
        let (local_addresses, table) = (&local_addresses(), &[entry(forwarding)]);
        let health_check_ports = &[HEALTH_CHECK];
        Oracle { settings, local_addresses, table, differences, health_check_ports }.verdict(packet)
    }

    /// Returns the codes for a packet of one of the [`CLIENTS`], by its index.
    fn codes(&self, client: usize, to: (&str, u16)) -> String {
        let (origin, source) = CLIENTS[client];
        self.verdict(&packet(origin, source, to)).codes().collect::<Vec<_>>().join(" ")
    }
}

/// A health-check node port.
const HEALTH_CHECK: u16 = 31_000;

// Indexes of the clients.
const POD_HERE: usize = 0;
const NODE: usize = 1;
const POD_THERE: usize = 2;
const OUTSIDE: usize = 3;

fn iptables() -> ModeDifferences {
    ModeDifferences::iptables(Vec::new())
}

fn without_endpoints() -> Forwarding {
    Forwarding { cluster: Box::default(), has_endpoints: false, ..forwarding() }
}

fn with_local_policy(local: &[Backend]) -> Forwarding {
    Forwarding {
        internal_policy: InternalPolicy::Local,
        external_policy: ExternalPolicy::Local,
        local: local.into(),
        ..forwarding()
    }
}

fn guarded(ranges: &[&str]) -> Forwarding {
    let ranges = ranges.iter().map(|range| range.parse().expect("a CIDR"));
    Forwarding { source_ranges: ranges.collect(), ..forwarding() }
}

#[test]
fn of_internal_traffic() {
    let usual = Judge::of(forwarding());
    let to = (CLUSTER_IP, 80);
    assert_eq!(usual.codes(POD_HERE, to), "matched internal-policy-cluster balanced source-kept-pod");
    assert_eq!(usual.codes(OUTSIDE, to), "matched internal-policy-cluster balanced masquerade-from-outside");
    let no_detector =
        Judge { settings: Settings { local_detector: LocalDetector::None, ..settings() }, ..usual };
    assert_eq!(
        no_detector.codes(OUTSIDE, to),
        "matched internal-policy-cluster balanced source-kept-no-detector"
    );
    let all = Judge { settings: Settings { masquerade_all: true, ..settings() }, ..no_detector };
    assert_eq!(all.codes(POD_HERE, to), "matched internal-policy-cluster balanced masquerade-all");
    let empty = Judge::of(without_endpoints());
    assert_eq!(empty.codes(POD_HERE, to), "matched internal-policy-cluster no-endpoints");
    let elsewhere = Judge::of(with_local_policy(&[]));
    assert_eq!(elsewhere.codes(POD_HERE, to), "matched internal-policy-local internal-endpoints-elsewhere");
    let local = Judge::of(with_local_policy(&[backend(HERE, true)]));
    assert_eq!(local.codes(POD_HERE, to), "matched internal-policy-local balanced source-kept-pod");
}

#[test]
fn of_endpoints_at_addresses_of_this_node() {
    let cluster = Box::new([backend(NODE_IP, true), backend(THERE, false)]);
    let judge = Judge::of(Forwarding { cluster, ..forwarding() });
    let to = (EXTERNAL_IP, 80);
    let masqueraded = "matched external-policy-cluster balanced masquerade-external";
    assert_eq!(judge.codes(NODE, to), masqueraded);
    assert_eq!(judge.codes(OUTSIDE, to), format!("{masqueraded} source-kept-on-node"));
    let relay = judge.in_mode(ModeDifferences::userspace());
    assert_eq!(relay.codes(OUTSIDE, to), "matched external-policy-cluster balanced masquerade-by-relay");
}

#[test]
fn of_external_traffic() {
    for to in EXTERNAL {
        let has_ranges = to.0 == LOAD_BALANCER_IP;
        let usual = Judge::of(guarded(&["0.0.0.0/1", "128.0.0.0/1"]));
        let range = if has_ranges { "source-in-range " } else { "" };
        for client in [POD_HERE, NODE, POD_THERE, OUTSIDE] {
            let expected = format!("matched {range}external-policy-cluster balanced masquerade-external");
            assert_eq!(usual.codes(client, to), expected);
        }
        let local = Judge::of(with_local_policy(&[backend(HERE, true)]));
        assert_eq!(local.codes(POD_HERE, to), "matched short-cut-for-pods balanced source-kept-pod");
        assert_eq!(local.codes(NODE, to), "matched short-cut-for-node balanced masquerade-own-traffic");
        assert_eq!(
            local.codes(OUTSIDE, to),
            "matched external-policy-local balanced source-kept-local-policy"
        );
        let elsewhere = Judge::of(with_local_policy(&[]));
        assert_eq!(
            elsewhere.codes(OUTSIDE, to),
            "matched external-policy-local external-endpoints-elsewhere"
        );
        let ipvs = local.in_mode(ModeDifferences::ipvs());
        let for_all = "matched external-policy-local-for-all balanced";
        assert_eq!(ipvs.codes(POD_HERE, to), format!("{for_all} source-kept-pod"));
        assert_eq!(ipvs.codes(NODE, to), format!("{for_all} masquerade-own-traffic"));
        assert_eq!(
            ipvs.codes(OUTSIDE, to),
            "matched external-policy-local balanced source-kept-local-policy"
        );
        let elsewhere = elsewhere.in_mode(ModeDifferences::ipvs());
        assert_eq!(elsewhere.codes(POD_HERE, to), "matched short-cut-for-pods balanced source-kept-pod");
    }
}

#[test]
fn of_source_ranges() {
    let to = (LOAD_BALANCER_IP, 80);
    let outside = Judge::of(guarded(&["203.0.113.0/24"]));
    assert_eq!(outside.codes(POD_HERE, to), "matched source-outside-ranges");
    let verdict = outside.verdict(&packet(REMOTE, "203.0.113.1", to));
    let range = "203.0.113.0/24".parse().expect("a CIDR");
    assert!(verdict.reasons.contains(&Reason::SourceInRange { source: ip("203.0.113.1"), range }));
    let closed = Forwarding { source_ranges: Box::new([no_source(Family::Ipv4)]), ..forwarding() };
    assert_eq!(Judge::of(closed).codes(OUTSIDE, to), "matched source-ranges-unreadable");
    let with_node = Judge::of(guarded(&["172.16.0.0/16"]));
    let vip = with_node.verdict(&packet(Origin::Node, LOAD_BALANCER_IP, to));
    let node = Reason::SourceIsLoadBalancerIp { source: ip(LOAD_BALANCER_IP), node: ip(NODE_IP) };
    assert_eq!(vip.reasons.get(1), Some(&node));
    let empty = Forwarding { cluster: Box::default(), has_endpoints: false, ..guarded(&["203.0.113.0/24"]) };
    assert_eq!(Judge::of(empty.clone()).codes(POD_HERE, to), "matched source-outside-ranges");
    let unchecked = Judge::of(empty).in_mode(iptables());
    let expected = "matched source-ranges-not-checked external-policy-cluster no-endpoints";
    assert_eq!(unchecked.codes(POD_HERE, to), expected);
    assert_eq!(unchecked.codes(NODE, to), format!("{expected} own-traffic-leaves"));
}

#[test]
fn of_packets_that_no_frontend_matches() {
    let usual = Judge::of(forwarding());
    let iptables = Judge::of(forwarding()).in_mode(iptables());
    let ipvs = Judge::of(forwarding()).in_mode(ModeDifferences::ipvs());
    for (to, nftables_codes, iptables_codes, ipvs_codes) in [
        (
            (CLUSTER_IP, 81),
            "other-port",
            "other-port strays-ignored",
            "other-port refused-at-service-address",
        ),
        ((EXTERNAL_IP, 81), "other-port", "other-port", "other-port refused-at-service-address"),
        ((EXTERNAL_IP, HEALTH_CHECK), "other-port", "other-port", "other-port left-to-node"),
        (
            ("10.96.7.7", 80),
            "unused-address",
            "unused-address strays-ignored",
            "unused-address strays-ignored",
        ),
        (("198.51.100.1", 80), "no-frontend", "no-frontend", "no-frontend"),
        ((NODE_IP, 22), "no-frontend left-to-node", "no-frontend left-to-node", "no-frontend left-to-node"),
    ] {
        for client in [POD_HERE, OUTSIDE] {
            assert_eq!(usual.codes(client, to), nftables_codes, "{to:?}");
            assert_eq!(iptables.codes(client, to), iptables_codes, "{to:?}");
            assert_eq!(ipvs.codes(client, to), ipvs_codes, "{to:?}");
        }
    }
    assert_eq!(usual.codes(NODE, (NODE_IP, 22)), "no-frontend");
    let health_check = (CLUSTER_IP, HEALTH_CHECK);
    assert_eq!(ipvs.codes(NODE, health_check), "other-port left-to-node");
    let udp = Packet { protocol: Protocol::Udp, ..packet(POD, HERE, health_check) };
    let codes: Vec<_> = ipvs.verdict(&udp).codes().collect();
    assert_eq!(codes, ["other-port", "refused-at-service-address"], "its server listens with TCP only");
    let wide = vec!["192.0.2.0/24".parse().expect("a CIDR")];
    let wide = Judge { settings: Settings { service_cidrs: wide, ..settings() }, ..usual };
    assert_eq!(wide.codes(POD_HERE, (EXTERNAL_IP, 81)), "other-port unused-address");
    let six = Packet {
        destination: ip("2001:db8::1"),
        source: ip("2001:db8::2"),
        ..packet(POD, HERE, (CLUSTER_IP, 80))
    };
    assert_eq!(wide.verdict(&six).codes().collect::<Vec<_>>(), ["other-family"]);
}

#[test]
fn of_node_ports_at_other_addresses() {
    let to = (OTHER_NODE_IP, 30080);
    let left = "node-port-not-accepted no-frontend left-to-node";
    assert_eq!(Judge::of(without_endpoints()).codes(OUTSIDE, to), left);
    let loopback = Judge::of(forwarding()).verdict(&packet(Origin::Node, "127.0.0.1", ("127.0.0.1", 30080)));
    let text = loopback.reasons[0].to_string();
    assert!(text.ends_with("does not accept node ports (it is a loopback address)"), "{text}");
    assert_eq!(Judge::of(forwarding()).in_mode(iptables()).codes(OUTSIDE, to), left);
    let empty = Judge::of(without_endpoints()).in_mode(iptables());
    assert_eq!(
        empty.codes(OUTSIDE, to),
        "node-port-not-accepted node-port-stopped external-policy-cluster no-endpoints"
    );
    let verdict = empty.verdict(&packet(REMOTE, "203.0.113.1", to));
    assert_eq!(verdict.decided_by.map(|decision| decision.frontend), Some(Frontend::NodePort(30080)));
    let elsewhere = Judge::of(with_local_policy(&[])).in_mode(iptables());
    assert_eq!(
        elsewhere.codes(OUTSIDE, to),
        "node-port-not-accepted node-port-stopped external-policy-local external-endpoints-elsewhere"
    );
}

#[test]
fn of_hairpins_affinity_and_the_relay() {
    let to = (CLUSTER_IP, 80);
    let usual = Judge::of(Forwarding { affinity: Some(60), ..forwarding() });
    let codes = |judge: &Judge, origin, source| {
        judge.verdict(&packet(origin, source, to)).codes().skip(2).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(codes(&usual, POD, HERE), "balanced session-affinity source-kept-pod masquerade-hairpin");
    let no_detector = Settings { local_detector: LocalDetector::None, ..settings() };
    let usual = Judge { settings: no_detector, ..usual };
    assert_eq!(codes(&usual, REMOTE, THERE), "balanced session-affinity source-kept-no-detector");
    let iptables = usual.in_mode(iptables());
    assert_eq!(
        codes(&iptables, REMOTE, THERE),
        "balanced session-affinity source-kept-no-detector masquerade-hairpin-elsewhere"
    );
    let relay = iptables.in_mode(ModeDifferences::userspace());
    assert_eq!(codes(&relay, POD, HERE), "balanced session-affinity masquerade-by-relay");
    let ipvs = relay.in_mode(ModeDifferences::ipvs()).verdict(&packet(POD, HERE, to));
    assert!(ipvs.reasons.contains(&Reason::SessionAffinity { seconds: 60, per_frontend: true }));
}

#[test]
fn of_clients_whose_address_a_service_keeps() {
    let asks = Forwarding { keep_client_address: true, ..forwarding() };
    let tproxy = Judge::of(asks.clone()).in_mode(ModeDifferences::userspace());
    let codes = |judge: &Judge, origin, source, to| {
        let verdict = judge.verdict(&packet(origin, source, to));
        let Fate::Backends { masqueraded, .. } = &verdict.fate else { panic!("{verdict:?}") };
        (verdict.codes().skip(3).collect::<Vec<_>>().join(" "), masqueraded.clone())
    };
    let kept = "source-kept-on-request";
    for (origin, source, to, expected, masqueraded) in [
        (REMOTE, "203.0.113.1", CLUSTER_IP, kept.to_owned(), [false, false]),
        (POD, HERE, CLUSTER_IP, format!("{kept} masquerade-hairpin"), [true, false]),
        (REMOTE, THERE, CLUSTER_IP, format!("{kept} masquerade-hairpin-elsewhere"), [false, true]),
        (
            REMOTE,
            "203.0.113.1",
            EXTERNAL_IP,
            "masquerade-by-relay source-kept-by-relay".to_owned(),
            [false, true],
        ),
        (POD, HERE, EXTERNAL_IP, "masquerade-by-relay".to_owned(), [true, true]),
    ] {
        let found = codes(&tproxy, origin, source, (to, 80));
        assert_eq!(found, (expected, masqueraded.to_vec()), "{source} {to}");
    }
    let local = Box::new([backend(HERE, true)]);
    let local = Forwarding { external_policy: ExternalPolicy::Local, local, ..asks };
    let local = Judge::of(local).in_mode(ModeDifferences::userspace());
    let found = codes(&local, REMOTE, "203.0.113.1", (EXTERNAL_IP, 80));
    assert_eq!(found, (kept.to_owned(), vec![false]), "each endpoint is on this node");
    let redirect = tproxy.in_mode(ModeDifferences::redirect());
    let found = codes(&redirect, REMOTE, "203.0.113.1", (CLUSTER_IP, 80));
    assert_eq!(found, ("masquerade-by-relay".to_owned(), vec![true, true]));
}

#[test]
fn of_sctp_in_the_userspace_mode() {
    let sctp = Judge::of(Forwarding { protocol: Protocol::Sctp, ..forwarding() });
    let at = |to| Packet { protocol: Protocol::Sctp, ..packet(POD, HERE, to) };
    let userspace = sctp.in_mode(ModeDifferences::userspace());
    for to in [(CLUSTER_IP, 80), (EXTERNAL_IP, 80)] {
        assert_eq!(userspace.verdict(&at(to)).codes().collect::<Vec<_>>(), ["matched", "sctp-not-carried"]);
    }
    let redirect = userspace.in_mode(ModeDifferences::redirect());
    let closed = redirect.verdict(&at((OTHER_NODE_IP, 30080)));
    assert_eq!(
        closed.codes().collect::<Vec<_>>(),
        ["node-port-not-accepted", "node-port-stopped", "sctp-not-carried"]
    );
}

#[test]
fn name_the_service_port_and_frontend() {
    let usual = Judge::of(forwarding());
    let verdict = usual.verdict(&packet(POD, HERE, (NODE_IP, 30080)));
    let decision = verdict.decided_by.map(|decision| decision.to_string());
    assert_eq!(decision.as_deref(), Some("default/web (node port 30080)"));
    for to in [(CLUSTER_IP, 81), ("10.96.7.7", 80), (OTHER_NODE_IP, 30080), (NODE_IP, 22)] {
        assert_eq!(usual.verdict(&packet(POD, HERE, to)).decided_by, None, "{to:?}");
    }
}
