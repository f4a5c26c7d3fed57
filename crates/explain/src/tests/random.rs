//! Laws over random worlds.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use portolan_model::catalog::PerFamily;
use portolan_model::oracle::{FlowState, ModeDifferences, Oracle, Origin, Packet};
use portolan_model::verdict::{self, Reason};
use portolan_model::world::{Pod, Ranges, Rng, World};
use portolan_model::{Catalog, Family, LocalDetector, NodePortAddresses, Protocol, Settings};
use proptest::prelude::*;

use crate::facts::{Facts, FamilyView, NodeView};
use crate::question::{Question, Sender, Target};
use crate::report::{ClientKind, Fate, Outcome, Report};
use crate::text::Style;

/// The addresses of the node.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// The node of a random world: n1, with a detector of pods and a mode that the seed chooses.
fn node(rng: &mut Rng, catalog: &Catalog) -> NodeView {
    let addresses: Vec<IpAddr> = ADDRESSES.map(|address| address.parse().unwrap()).to_vec();
    let differences = match rng.below(5) {
        0 => ModeDifferences::iptables(vec!["127.0.0.0/8".parse().unwrap()]),
        1 => ModeDifferences::ipvs(),
        2 => ModeDifferences::userspace(),
        3 => ModeDifferences::redirect(),
        _ => ModeDifferences::default(),
    };
    let mut view = |family: Family| {
        let pods = if family == Family::Ipv4 { "10.244.0.0/16" } else { "2001:db8:244::/64" };
        let local_detector = match rng.below(3) {
            0 => LocalDetector::None,
            1 => LocalDetector::InterfacePrefix("cali".into()),
            _ => LocalDetector::Cidr(pods.parse().unwrap()),
        };
        let node_ip = addresses.iter().copied().find(|address| Family::of(*address) == family);
        let node_port_addresses = if rng.chance(50) {
            NodePortAddresses::MatchAll
        } else {
            NodePortAddresses::Addresses(node_ip.into_iter().collect())
        };
        let settings = Settings {
            local_detector,
            node_ip,
            node_port_addresses,
            masquerade_all: rng.chance(20),
            service_cidrs: catalog.service_cidrs(family),
            counters: false,
            ..Settings::plain(family)
        };
        Some(FamilyView {
            mode: "any".to_owned(),
            settings,
            differences: differences.clone(),
            in_kube_proxys_chains: false,
            redirected_to: None,
        })
    };
    NodeView {
        name: "n1".to_owned(),
        mode: "any".to_owned(),
        pod_cidrs: vec!["10.244.0.0/24".parse().unwrap(), "2001:db8:244::/64".parse().unwrap()],
        families: PerFamily { ipv4: view(Family::Ipv4), ipv6: view(Family::Ipv6) },
        addresses,
    }
}

fn questions(rng: &mut Rng, ranges: &Ranges) -> Vec<Question> {
    let mut addresses: Vec<IpAddr> =
        ranges.external_ips.iter().chain(&ranges.load_balancer_ips).copied().collect();
    for family in Family::BOTH {
        addresses.extend(ranges.cluster_ips.get(family));
        addresses.extend(ranges.pods.iter().filter_map(|pod| *pod.addresses.get(family)));
    }
    addresses.extend(
        ["192.0.2.1", "2001:db8::1", "127.0.0.1", "203.0.113.9"].map(|text| text.parse::<IpAddr>().unwrap()),
    );
    let mut ports: Vec<u16> =
        ranges.ports.iter().chain(&ranges.node_ports).chain(&ranges.target_ports).copied().collect();
    ports.push(9);
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let mut question = || {
        let to = *rng.pick(&addresses)?;
        let same_family: Vec<IpAddr> =
            addresses.iter().copied().filter(|from| Family::of(*from) == Family::of(to)).collect();
        let from = match rng.below(4) {
            0 => Sender::Node,
            1 => Sender::Outside,
            _ => Sender::Address(*rng.pick(&same_family)?),
        };
        let socket = SocketAddr::new(to, *rng.pick(&ports)?);
        let protocol = *rng.pick(&protocols)?;
        Some(Question::new(from, Target::Socket { socket, protocol }))
    };
    (0..40).filter_map(|_| question()).collect()
}

/// Returns the oracle's verdict on the packet that a report is about.
fn verdict(report: &Report, facts: &Facts<'_>) -> verdict::Verdict {
    let Target::Socket { socket, protocol } = report.question.to else { panic!("an address") };
    let family = Family::of(socket.ip());
    let view = facts.node.families.get(family).as_ref().unwrap();
    let table = facts.services.table(family);
    let input_interface = report.from.interface.as_deref().unwrap_or_default();
    let oracle = Oracle {
        settings: &view.settings,
        local_addresses: &facts.node.addresses,
        table: &table,
        differences: &view.differences,
        health_check_ports: &facts.services.health_check_ports(family),
    };
    let verdict = oracle.verdict(&Packet {
        origin: match report.from.kind {
            ClientKind::Node => Origin::Node,
            ClientKind::Pod => Origin::Pod { input_interface },
            ClientKind::Outside => Origin::Remote { input_interface },
        },
        source: report.from.address,
        destination: socket.ip(),
        protocol,
        port: socket.port(),
        flow: FlowState::New,
    });
    verdict.with_left_out(facts.services.left_out_at(socket, protocol))
}

fn check(report: &Report, facts: &Facts<'_>) {
    let verdict = verdict(report, facts);
    let (fate, outcome) = match &verdict.fate {
        verdict::Fate::Backends { .. } => (Fate::Delivered, Outcome::Reachable),
        verdict::Fate::Reject => (Fate::Rejected, Outcome::Refused),
        verdict::Fate::Drop => (Fate::Dropped, Outcome::Dropped),
        verdict::Fate::NotOurs => (Fate::NotAffected, Outcome::NotAService),
    };
    assert_eq!((report.wanted.fate, report.outcome), (fate, outcome), "{report:?}");
    let codes: Vec<&str> = report.wanted.steps.iter().map(|step| step.code.as_str()).collect();
    let of_verdict: Vec<&str> = verdict.reasons.iter().map(Reason::code).collect();
    let is_hint = |code: &&&str| code.contains("-hints-");
    let without_hints: Vec<&str> = codes.iter().filter(|code| !is_hint(code)).copied().collect();
    assert_eq!(without_hints, of_verdict);
    let decided = report.wanted.decided_by.as_ref().map(|by| (by.service.as_str(), by.port.as_str()));
    let by_oracle = verdict.decided_by.as_ref().map(|by| (&*by.name.service, &*by.name.port));
    assert_eq!(decided, by_oracle);
    if let verdict::Fate::Backends { set, masqueraded, affinity } = &verdict.fate {
        let wanted: BTreeSet<(SocketAddr, Option<bool>)> = set
            .iter()
            .zip(masqueraded)
            .map(|(backend, masqueraded)| (backend.socket(), Some(*masqueraded)))
            .collect();
        let used = report.wanted.endpoints.iter().filter(|endpoint| endpoint.used);
        let used: BTreeSet<_> = used.map(|endpoint| (endpoint.endpoint, endpoint.masqueraded)).collect();
        assert_eq!(used, wanted, "{report:?}");
        assert_eq!(report.wanted.affinity.map(|affinity| affinity.seconds), *affinity);
        assert!(report.wanted.masquerade.is_some());
    }
    assert!(verdict.decided_by.is_none() || report.wanted.nearest.is_empty());
    let stages: Vec<_> = report.wanted.steps.iter().map(|step| step.stage).collect();
    assert!(stages.is_sorted(), "the steps are in the order of the path: {codes:?}");
    let json = serde_json::to_string(report).unwrap();
    assert_eq!(&serde_json::from_str::<Report>(&json).unwrap(), report);
    assert!(report.text(Style::Plain).ends_with(&format!("{}\n", report.summary)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The report says what the oracle says, and the endpoints in use are those that may get the packet.
    #[test]
    fn the_report_says_what_the_oracle_says(seed in any::<u64>()) {
        let (mut rng, mut ranges) = (Rng::new(seed), Ranges::example());
        let [ipv4, ipv6] = ADDRESSES.map(|address| Some(address.parse().unwrap()));
        ranges.pods.push(Pod { addresses: PerFamily { ipv4, ipv6 }, node: Some("n1".to_owned()) });
        let mut catalog = Catalog::new("n1");
        for edit in World::random(&mut rng, 8, &ranges).edits() {
            catalog.apply(edit.event().unwrap());
        }
        let node = node(&mut rng, &catalog);
        let facts = Facts::new(&node, &catalog);
        for question in questions(&mut rng, &ranges) {
            check(&crate::answer(&question, &facts).unwrap(), &facts);
        }
    }
}
