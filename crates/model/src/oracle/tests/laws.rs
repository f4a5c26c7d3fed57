//! Laws that hold for every packet in every random world and mode.

use proptest::prelude::*;

use super::*;
use crate::Catalog;
use crate::catalog::{ApiServer, PerFamily};
use crate::verdict::{Decision, EndpointList, Reason};
use crate::world::{Pod, Ranges, Rng, World};

const PACKETS: usize = 60;

fn address(family: Family, v4: &str, v6: &str) -> IpAddr {
    ip(if family == Family::Ipv4 { v4 } else { v6 })
}

/// The addresses of this node in random worlds.
fn node_addresses(family: Family) -> Vec<IpAddr> {
    vec![address(family, "192.168.0.2", "fd00:192:168::2"), address(family, "10.1.0.1", "2001:db8:1::1")]
}

fn modes() -> [ModeDifferences; 5] {
    [
        ModeDifferences::default(),
        ModeDifferences::iptables(vec!["127.0.0.0/8".parse().expect("a CIDR")]),
        ModeDifferences::ipvs(),
        ModeDifferences::userspace(),
        ModeDifferences::redirect(),
    ]
}

fn random_settings(rng: &mut Rng, family: Family) -> Settings {
    let pods = if family == Family::Ipv4 { "10.244.0.0/29" } else { "2001:db8:244::/125" };
    let services = if family == Family::Ipv4 { "10.96.0.0/16" } else { "2001:db8:96::/112" };
    let detectors = [
        LocalDetector::None,
        LocalDetector::Cidr(pods.parse().expect("a CIDR")),
        LocalDetector::InterfacePrefix("veth".into()),
    ];
    let addresses = [
        NodePortAddresses::MatchAll,
        NodePortAddresses::Addresses(node_addresses(family)[..1].to_vec()),
        NodePortAddresses::Addresses(Vec::new()),
    ];
    let node_ips =
        [None, Some(node_addresses(family)[0]), Some(address(family, "192.0.2.9", "2001:db8:1::9"))];
    Settings {
        local_detector: rng.pick(&detectors).expect("one").clone(),
        masquerade_all: rng.chance(20),
        node_port_addresses: rng.pick(&addresses).expect("one").clone(),
        node_ip: *rng.pick(&node_ips).expect("one"),
        service_cidrs: if rng.chance(70) { vec![services.parse().expect("a CIDR")] } else { Vec::new() },
        counters: false,
        ..Settings::plain(family)
    }
}

fn random_packet(rng: &mut Rng, family: Family, ranges: &Ranges) -> Packet<'static> {
    let of =
        |list: &[IpAddr]| list.iter().copied().filter(|ip| Family::of(*ip) == family).collect::<Vec<_>>();
    let pods: Vec<IpAddr> = ranges.pods.iter().filter_map(|pod| *pod.addresses.get(family)).collect();
    let (external, balancers) = (of(&ranges.external_ips), of(&ranges.load_balancer_ips));
    let loopback = vec![address(family, "127.0.0.1", "::1")];
    let node = node_addresses(family);
    let outside = vec![address(family, "192.0.2.1", "2001:db8:1::5")];
    let senders: [(Origin<'static>, &Vec<IpAddr>); 6] = [
        (POD, &pods),
        (Origin::Node, &node),
        (Origin::Node, &balancers),
        (Origin::Node, &loopback),
        (REMOTE, &outside),
        (REMOTE, &pods),
    ];
    let unused = vec![address(family, "10.96.0.99", "2001:db8:96::99")];
    let places: [&Vec<IpAddr>; 7] =
        [ranges.cluster_ips.get(family), &external, &balancers, &node, &loopback, &unused, &outside];
    let ports: Vec<u16> = ranges.ports.iter().chain(&ranges.node_ports).copied().chain([81]).collect();
    let (origin, sources) = *rng.pick(&senders).expect("one");
    let destinations = *rng.pick(&places).expect("one");
    Packet {
        origin,
        source: *rng.pick(sources).expect("one"),
        destination: *rng.pick(destinations).expect("one"),
        protocol: *rng.pick(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]).expect("one"),
        port: *rng.pick(&ports).expect("one"),
        flow: FlowState::New,
    }
}

fn random_catalog(rng: &mut Rng, ranges: &Ranges) -> Catalog {
    let mut catalog = Catalog::new("n1");
    catalog.set_api_server(ApiServer::default());
    for edit in World::random(rng, 6, ranges).edits() {
        catalog.apply(edit.event().expect("worlds decode"));
    }
    catalog
}

/// Returns the fate that follows from the reasons alone, with `*` for each masqueraded backend.
fn fate_of_reasons(verdict: &Verdict, backends: &[Backend]) -> String {
    let has = |code: &str| verdict.codes().any(|own| own == code);
    let any = |codes: &[&str]| codes.iter().any(|code| has(code));
    if any(&["own-traffic-leaves", "strays-ignored", "left-to-node", "no-frontend", "other-family"]) {
        return "not ours".to_owned();
    }
    if any(&["no-endpoints", "sctp-not-carried", "refused-at-service-address"]) {
        return "reject".to_owned();
    }
    let dropped = [
        "source-outside-ranges",
        "source-ranges-unreadable",
        "unused-address",
        "internal-endpoints-elsewhere",
        "external-endpoints-elsewhere",
    ];
    if any(&dropped) {
        return "drop".to_owned();
    }
    if has("other-port") {
        let is_cluster_ip = verdict
            .reasons
            .iter()
            .any(|reason| matches!(reason, Reason::OtherPort { frontend: Frontend::ClusterIp(..), .. }));
        return if is_cluster_ip { "reject" } else { "not ours" }.to_owned();
    }
    let all = verdict.codes().any(|code| code.starts_with("masquerade-") && !code.contains("hairpin"));
    let hairpin = |reason: &Reason| match reason {
        Reason::MasqueradeHairpin { endpoint } | Reason::MasqueradeHairpinElsewhere { endpoint } => {
            Some(*endpoint)
        }
        _ => None,
    };
    let hairpins: Vec<_> = verdict.reasons.iter().filter_map(hairpin).collect();
    let kept = |endpoint| [Reason::SourceKeptOnNode { endpoint }, Reason::SourceKeptByRelay { endpoint }];
    let stays = |endpoint| kept(endpoint).iter().any(|reason| verdict.reasons.contains(reason));
    let words = backends.iter().map(|backend| {
        let masqueraded = all && !stays(backend.socket()) || hairpins.contains(&backend.socket());
        let star = if masqueraded { "*" } else { "" };
        format!("{}{star}", backend.socket())
    });
    words.collect::<Vec<_>>().join(" ")
}

fn in_words(fate: &Fate) -> String {
    match fate {
        Fate::Reject => "reject".to_owned(),
        Fate::Drop => "drop".to_owned(),
        Fate::NotOurs => "not ours".to_owned(),
        Fate::Backends { set, masqueraded, .. } => {
            let words = set.iter().zip(masqueraded).map(|(backend, masqueraded)| {
                format!("{}{}", backend.socket(), if *masqueraded { "*" } else { "" })
            });
            words.collect::<Vec<_>>().join(" ")
        }
    }
}

/// Returns the Service port of the table whose frontend the destination is, found without the oracle: by address, or
/// else by node port.
fn owners<'a>(table: &'a [Entry], packet: &Packet<'_>) -> (Option<&'a Entry>, Option<&'a Entry>) {
    let has = |entry: &&Entry, wanted: &dyn Fn(&Frontend) -> bool| {
        entry.1.protocol == packet.protocol && entry.1.frontends.iter().any(wanted)
    };
    let destination = (packet.destination, packet.port);
    let by_address = table.iter().find(|entry| {
        has(entry, &|frontend| {
            frontend.socket().is_some_and(|socket| (socket.ip(), socket.port()) == destination)
        })
    });
    let by_node_port =
        table.iter().find(|entry| has(entry, &|frontend| *frontend == Frontend::NodePort(packet.port)));
    (by_address, by_node_port)
}

/// A packet in a random world and mode.
struct Case<'a> {
    catalog: &'a Catalog,
    family: Family,
    table: &'a [Entry],
    packet: Packet<'static>,
    verdict: Verdict,
}

/// Checks a law for random packets of one random world, in every mode.
fn check(
    seed: u64,
    v6: bool,
    law: impl Fn(&Case<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
    let (mut rng, mut ranges) = (Rng::new(seed), Ranges::example());
    let [ipv4, ipv6] = Family::BOTH.map(|family| node_addresses(family).first().copied());
    ranges.pods.push(Pod { addresses: PerFamily { ipv4, ipv6 }, node: Some("n1".to_owned()) });
    let catalog = random_catalog(&mut rng, &ranges);
    let mut table: Vec<Entry> = catalog.forwardings(family).collect();
    for (_, forwarding) in &mut table {
        Arc::make_mut(forwarding).keep_client_address = rng.chance(30);
    }
    let settings = &random_settings(&mut rng, family);
    let (local_addresses, table) = (&node_addresses(family), table.as_slice());
    for differences in &modes() {
        let oracle = Oracle { settings, local_addresses, table, differences, health_check_ports: &[] };
        for _ in 0..PACKETS {
            let packet = random_packet(&mut rng, family, &ranges);
            let verdict = oracle.verdict(&packet);
            law(&Case { catalog: &catalog, family, table, packet, verdict })?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn reasons_determine_the_fate(seed in any::<u64>(), v6 in any::<bool>()) {
        check(seed, v6, |Case { catalog, family, packet, verdict, .. }| {
            let backends = match (&verdict.decided_by, verdict.endpoints) {
                (Some(Decision { name, .. }), Some(list)) => {
                    let explained = catalog.explain(name, *family).expect("is in the table");
                    match list {
                        EndpointList::Cluster => explained.forwarding.cluster.to_vec(),
                        EndpointList::Local => explained.forwarding.local.to_vec(),
                    }
                }
                _ => Vec::new(),
            };
            prop_assert!(!verdict.reasons.is_empty());
            let fate = fate_of_reasons(verdict, &backends);
            prop_assert_eq!(fate, in_words(&verdict.fate), "{:?}: {:?}", packet, verdict);
            Ok(())
        })?;
    }

    #[test]
    fn the_service_port_that_decides_has_the_frontend(seed in any::<u64>(), v6 in any::<bool>()) {
        check(seed, v6, |Case { table, packet, verdict, .. }| {
            let decided_by = verdict.decided_by.as_ref().map(|decision| &decision.name);
            match owners(table, packet) {
                (Some((name, _)), _) => prop_assert_eq!(decided_by, Some(name)),
                (None, Some((name, _))) => {
                    prop_assert!(decided_by.is_none_or(|by| by == name));
                    let translated = matches!(verdict.fate, Fate::Backends { .. });
                    prop_assert!(decided_by.is_some() || !translated);
                }
                (None, None) => prop_assert_eq!(decided_by, None),
            }
            Ok(())
        })?;
    }

    #[test]
    fn explained_endpoints_are_those_of_the_fate(seed in any::<u64>(), v6 in any::<bool>()) {
        check(seed, v6, |Case { catalog, family, verdict, .. }| {
            let Some(Decision { name, .. }) = &verdict.decided_by else { return Ok(()) };
            let explained = catalog.explain(name, *family).expect("is in the table");
            let Fate::Backends { set, .. } = verdict.fate.clone() else { return Ok(()) };
            let reasons = verdict.clone().with_endpoints(&explained.selection).reasons;
            let used = reasons.iter().filter_map(|reason| match reason {
                Reason::Endpoint { endpoint, choice } if choice.is_used() => Some(*endpoint),
                _ => None,
            });
            prop_assert_eq!(used.collect::<Vec<_>>(), set.iter().map(Backend::socket).collect::<Vec<_>>());
            Ok(())
        })?;
    }
}
