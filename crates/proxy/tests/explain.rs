//! What the agent answers about packets on its control socket: it is what its objects and configuration require, and the kernel
//! has it. Needs root, nft and iptables, and fails without; one test needs IPVS.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

use std::net::{IpAddr, SocketAddr};

use clap::Parser;
use portolan_explain::{Facts, NodeView, Outcome, Question, Report, Sender, Source, Target, answer};
use portolan_model::object::Kind;
use portolan_model::world::{Edit, Pod, Ranges, Rng, World};
use portolan_model::{Catalog, Family, Protocol};
use portolan_proxy::ProxyOptions;
use portolan_proxy::packets::{self, Configured, NoAnswer};
use portolan_testcluster::{Agent, Cluster, NODE, PATIENCE, at, http, logged, objects};
use portolan_testkit::{Namespace, eventually, eventually_some};
use portolan_web::ServerAddress;
use serde_json::Value;

/// The path of the route.
const EXPLAIN: &str = "/debug/portolan/explain";
/// The code of the note that says that the node has no route to the destination.
const NO_ROUTE: &str = "no-route";
/// The code of the note that says that the Service port that decides could not be programmed.
const NOT_PROGRAMMED: &str = "not-programmed";
/// Environment variable that requires IPVS in the kernel.
const IPVS_MUST_RUN: &str = "PORTOLAN_TEST_IPVS";
/// How many questions are asked in each mode.
const QUESTIONS: usize = 120;
/// How many Services the world has.
const SERVICES: usize = 12;

/// The collections that the agent follows.
const COLLECTIONS: [(&str, Kind); 4] = [
    ("/api/v1/nodes", Kind::Node),
    ("/apis/networking.k8s.io/v1/servicecidrs", Kind::ServiceCidr),
    ("/api/v1/services", Kind::Service),
    ("/apis/discovery.k8s.io/v1/endpointslices", Kind::EndpointSlice),
];

struct PortolanProxy;

impl Agent for PortolanProxy {
    const BINARY: &'static str = env!("CARGO_BIN_EXE_portolan-proxy");
    const SUBCOMMAND: &'static [&'static str] = &[];
}

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    options: ProxyOptions,
}

/// The values of a random world whose pods are on the node of the cluster, on another one, and on none.
fn ranges() -> Ranges {
    let example = Ranges::example();
    let on_node = |(number, pod): (usize, Pod)| {
        let node = [Some(NODE), Some("node2"), None][number % 3].map(str::to_owned);
        Pod { node, ..pod }
    };
    Ranges {
        pods: example.pods.into_iter().enumerate().map(on_node).collect(),
        nodes: vec![NODE.to_owned(), "node2".to_owned()],
        zones: vec!["a".to_owned(), "b".to_owned()],
        ..example
    }
}

/// Stores a random world. The API server refuses some objects that contradict others.
fn populate(cluster: &Cluster<PortolanProxy>, rng: &mut Rng, ranges: &Ranges) {
    for edit in World::random(rng, SERVICES, ranges).edits() {
        let Edit::Upsert(_, mut object) = edit else { continue };
        // It is the world's own, not the server's.
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        let _ = cluster.api.blocking().apply(object);
    }
}

/// Returns the node and the Catalog of an agent with the same objects and configuration, which does not run.
fn offline(cluster: &Cluster<PortolanProxy>) -> (NodeView, Catalog) {
    let file = cluster.configuration_file();
    let line = Line::try_parse_from(["portolan", "--config", file.to_str().unwrap()]).unwrap();
    let configured = Configured::load(&line.options).unwrap();
    let mut catalog = Catalog::new(NODE);
    configured.prepare(&mut catalog);
    let node = cluster.world.node().namespace();
    for (path, kind) in COLLECTIONS {
        let list: Value =
            serde_json::from_str(&http::get(node, cluster.address, path).unwrap().body).unwrap();
        for object in list["items"].as_array().unwrap() {
            // The agent skips what cannot be read.
            if let Ok(mut event) = Edit::Upsert(kind, object.clone()).event() {
                configured.admit(&mut event);
                catalog.apply(event);
            }
        }
    }
    let addresses = node.run(packets::interface_addresses).unwrap().unwrap();
    (configured.node_view(&catalog, Some(addresses)), catalog)
}

/// Returns random questions about the addresses and Services of a world.
fn questions(rng: &mut Rng, ranges: &Ranges, catalog: &Catalog) -> Vec<Question> {
    let mut addresses: Vec<IpAddr> =
        ranges.external_ips.iter().chain(&ranges.load_balancer_ips).copied().collect();
    for family in Family::BOTH {
        addresses.extend(ranges.cluster_ips.get(family));
        addresses.extend(ranges.pods.iter().filter_map(|pod| *pod.addresses.get(family)));
    }
    addresses
        .extend(["192.168.100.1", "127.0.0.1", "203.0.113.9"].map(|text| text.parse::<IpAddr>().unwrap()));
    let ports: Vec<u16> = ranges.ports.iter().chain(&ranges.node_ports).copied().chain([9]).collect();
    let services: Vec<String> = catalog
        .forwardings(Family::Ipv4)
        .map(|(name, _)| format!("svc/{}.{}:{}", name.service, name.namespace, name.port))
        .collect();
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let mut question = || {
        let to = *rng.pick(&addresses)?;
        let named = rng.pick(&services).and_then(|name| name.parse().ok()).filter(|_| rng.chance(50));
        let socket = SocketAddr::new(to, *rng.pick(&ports)?);
        let target = named.unwrap_or(Target::Socket { socket, protocol: *rng.pick(&protocols)? });
        let same_family: Vec<IpAddr> =
            addresses.iter().copied().filter(|from| from.is_ipv4() == to.is_ipv4()).collect();
        let from = match rng.below(4) {
            0 => Sender::Node,
            1 => Sender::Outside,
            _ => Sender::Address(*rng.pick(&same_family)?),
        };
        Some(Question::new(from, target))
    };
    (0..QUESTIONS).filter_map(|_| question()).collect()
}

/// Asks the agent, and again while it is busy: a commit may take longer than a question waits for it.
fn ask(cluster: &Cluster<PortolanProxy>, question: &Question) -> Result<Report, NoAnswer> {
    let socket = cluster.control_socket();
    let mut busy = None;
    let answer = eventually_some(PATIENCE, "an answer", || match packets::ask(&socket, question) {
        Err(error @ NoAnswer::Busy { .. }) => {
            busy = Some(error);
            None
        }
        answer => Some(answer),
    });
    answer.unwrap_or_else(|error| panic!("{error}: {busy:?}"))
}

/// Returns what both answers must have in common: everything but what is read from the kernel, and what only a running agent
/// knows of its commits. The node has no routes to some of the random endpoints, so the outcome is another one.
fn wanted(mut report: Report, want: &Report) -> Report {
    report.notes.retain(|note| ![NO_ROUTE, NOT_PROGRAMMED].contains(&note.code.as_str()));
    if !report.routing.is_empty() {
        (report.outcome, report.summary) = (want.outcome, want.summary.clone());
    }
    Report { programmed: None, connections: None, firewall: None, routing: Vec::new(), ..report }
}

fn the_agent_answers_as_its_objects_require(mode: &str, seed: u64) {
    let (mut rng, ranges) = (Rng::new(seed), ranges());
    let cluster = Cluster::<PortolanProxy>::without_validation();
    populate(&cluster, &mut rng, &ranges);
    let mut proxy = cluster.start_proxy(&format!("mode: {mode}\n"));
    logged(&mut proxy, portolan_testcluster::IN_SYNC, 2);
    let (node, catalog) = offline(&cluster);
    let facts = Facts { source: Source::Agent, ..Facts::new(&node, &catalog) };
    let (mut reports, mut unanswerable, mut delivered) = (0, 0, 0);
    for question in questions(&mut rng, &ranges, &catalog) {
        let ours = ask(&cluster, &question);
        let is_node = question.from == Sender::Node;
        let node_source = ours.as_ref().ok().map(|report| report.from.address).filter(|_| is_node);
        match (answer(&question, &Facts { node_source, ..facts }), ours) {
            (Ok(want), Ok(report)) => {
                let programmed = report.programmed.as_ref().unwrap();
                assert!(programmed.as_wanted, "seed {seed}: {report:#?}");
                assert!(report.firewall.is_some(), "{report:#?}");
                assert_eq!(report.connections.as_ref().map(|all| all.count), Some(0));
                let is_refused = want.wanted.steps.iter().any(|step| step.code == "sctp-not-carried");
                let has_note = report.notes.iter().any(|note| note.code == NOT_PROGRAMMED);
                assert_eq!(has_note, is_refused, "seed {seed}: {report:#?}");
                delivered += u32::from(want.outcome == Outcome::Reachable);
                assert_eq!(wanted(report, &want), want, "seed {seed}");
                reports += 1;
            }
            (Err(want), Err(NoAnswer::Refused(text))) => {
                assert_eq!(text, want.to_string(), "seed {seed}");
                unanswerable += 1;
            }
            (want, ours) => panic!("seed {seed}: {question:?}: {want:?} and {ours:?}"),
        }
    }
    assert!(
        reports > 60 && delivered > 3,
        "{reports} reports, {delivered} delivered, {unanswerable} without"
    );
}

#[test]
fn the_agent_answers_as_its_objects_require_in_nftables_mode() {
    for seed in [1, 2] {
        the_agent_answers_as_its_objects_require("nftables", seed);
    }
}

#[test]
fn the_agent_answers_as_its_objects_require_in_iptables_mode() {
    the_agent_answers_as_its_objects_require("iptables", 3);
}

#[test]
fn the_agent_answers_as_its_objects_require_in_userspace_mode() {
    the_agent_answers_as_its_objects_require("userspace", 4);
}

/// Without IPVS in the kernel it is left out, or fails where the environment requires IPVS.
#[test]
fn the_agent_answers_as_its_objects_require_in_ipvs_mode() {
    let look = || portolan_ipvs::available("rr", &Family::BOTH).map(drop);
    if let Err(error) = Namespace::new("look").unwrap().run(look).unwrap() {
        assert!(std::env::var_os(IPVS_MUST_RUN).is_none(), "{error}");
        eprintln!("left out: {error}");
        return;
    }
    the_agent_answers_as_its_objects_require("ipvs", 5);
}

/// Returns the status and the text of an answer, once the agent is not busy.
fn send(cluster: &Cluster<PortolanProxy>, method: &str, body: &[u8]) -> (u16, String) {
    let place = ServerAddress::Unix(cluster.control_socket());
    let answer = eventually_some(PATIENCE, "an answer", || {
        let answer = portolan_web::ask(&place, method, EXPLAIN, body).unwrap();
        (answer.status != 503).then_some(answer)
    });
    let answer = answer.unwrap();
    (answer.status, String::from_utf8(answer.body).unwrap())
}

#[test]
fn changes_show_and_bad_questions_are_refused_with_the_reason() {
    let cluster = Cluster::<PortolanProxy>::new();
    let [pod, other] = cluster.world.pods() else { panic!("two pods") };
    let mut proxy = cluster.start_proxy("");
    logged(&mut proxy, portolan_testcluster::IN_SYNC, 2);
    let question = Question::new(Sender::Outside, "10.96.0.10:80".parse().unwrap());
    let ask = || ask(&cluster, &question).unwrap();
    let before = ask();
    assert_ne!(before.outcome, Outcome::Reachable);
    let used = |report: &Report| -> Vec<IpAddr> {
        report.wanted.endpoints.iter().filter(|endpoint| endpoint.used).map(|one| one.endpoint.ip()).collect()
    };
    for pods in [vec![pod], vec![pod, other], vec![other]] {
        cluster.service(objects::cluster_ip("web", "10.96.0.10"), &pods);
        let want: Vec<IpAddr> = pods.iter().map(|pod| pod.address(portolan_testkit::Family::Ipv4)).collect();
        let mut last = before.clone();
        let outcome = eventually(PATIENCE, "the change", || {
            last = ask();
            used(&last) == want && last.outcome == Outcome::Reachable
        });
        assert!(outcome.is_ok(), "{last:#?}");
        assert_eq!((last.source, last.node.as_str()), (Source::Agent, NODE));
        assert!(last.programmed.as_ref().unwrap().as_wanted, "{last:#?}");
    }

    let (status, text) = send(&cluster, "POST", br#"{"from": "nobody", "to": "10.96.0.10:80"}"#);
    assert_eq!(status, 400);
    assert!(text.starts_with("the body is no question: `nobody` is no sender; write"), "{text}");
    let bad: [&[u8]; 4] = [b"", b"{", br#"{"from": "node"}"#, br#"{"from":"node","to":"svc/a","secret":1}"#];
    for body in bad {
        let (status, text) = send(&cluster, "POST", body);
        assert!(status == 400 && text.starts_with("the body is no question: "), "{text}");
    }
    let (status, text) = send(&cluster, "POST", br#"{"from": "node", "to": "svc/none"}"#);
    assert!(status == 400 && text.starts_with("no Service `svc/none` with a cluster IP is known"), "{text}");
    let (status, text) = send(&cluster, "GET", b"");
    assert_eq!((status, text.as_str()), (405, "use POST here\n"));
    // The metrics port does not show connections of clients.
    let on_metrics = http::get(cluster.world.node().namespace(), at("127.0.0.1:10249"), EXPLAIN).unwrap();
    assert_eq!(on_metrics.status, 404);
}

#[test]
fn a_process_of_the_node_sends_from_the_address_that_the_route_says() {
    let cluster = Cluster::<PortolanProxy>::new();
    let node = cluster.world.node().namespace();
    let mut proxy = cluster.start_proxy("");
    logged(&mut proxy, portolan_testcluster::IN_SYNC, 2);
    let ask = |to: &str| ask(&cluster, &Question::new(Sender::Node, to.parse().unwrap())).unwrap();
    let has_route = |report: &Report| report.notes.iter().all(|note| note.code != NO_ROUTE);
    node.ip("addr add 198.51.100.77/32 dev lo\nroute add 10.96.7.0/24 dev lo src 198.51.100.77\n\
         route add unreachable 198.18.0.0/24\n")
        .unwrap();
    let source = |to: &str| ask(to).from.address.to_string();
    assert_eq!(source("10.96.7.7:80"), "198.51.100.77");
    assert_eq!(source("192.168.100.1:80"), "192.168.100.1", "its own address");
    assert!(has_route(&ask("10.96.7.7:80")));
    let without = ask("198.18.0.9:80");
    assert_eq!(without.from.address.to_string(), "192.168.100.1");
    assert!(!has_route(&without), "{without:#?}");
}

#[test]
fn nothing_is_asked_before_all_objects_are_known() {
    let mut cluster = Cluster::<PortolanProxy>::new();
    cluster.stop_server();
    let _proxy = cluster.start_proxy("");
    let question = Question::new(Sender::Node, "10.96.0.10:80".parse().unwrap());
    let mut last = None;
    let outcome = eventually(PATIENCE, "an answer", || {
        let answer = packets::ask(&cluster.control_socket(), &question);
        let is_busy = matches!(answer, Err(NoAnswer::Busy { .. }));
        last = Some(answer);
        is_busy
    });
    assert!(outcome.is_ok(), "{last:?}");
    let error = last.unwrap().unwrap_err().to_string();
    assert!(
        error.ends_with("cannot answer now: the Services are not known completely yet; ask again"),
        "{error}"
    );
}
