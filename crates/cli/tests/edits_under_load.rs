//! Edits of source ranges, of endpoints behind a health-check node port, and of the node's zone, under load and in every mode:
//! no connection is lost, and no client outside the ranges gets in. A client whose range is taken away is dropped until the
//! range is back, and clients in other ranges lose nothing. Needs root, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use portolan_testkit::{
    Namespace, Pod, Probe, ProbeResult, Protocol, Traffic, TrafficPlan, eventually, is_emulated,
};
use serde_json::{Value, json};

use common::http::get;
use common::load::{assert_lossless, plan, without_renewed};
use common::{Cluster, PATIENCE, at, ipvs, objects, page, reaches};

/// The addresses of the client.
const CLIENT: &str = "203.0.113.0/24";
/// The addresses of the pod on the other node.
const REMOTE: &str = "10.244.2.0/24";
/// A range without any address of the test.
const FOREIGN: &str = "198.18.0.0/15";
const GUARDED: &str = "198.51.100.7:80";
const WEIGHED: &str = "198.51.100.8:80";
const HINTED: &str = "10.96.0.12:80";

#[test]
fn in_nftables_mode() {
    edits_lose_nothing(&Cluster::new(), "nftables");
}

#[test]
fn in_iptables_mode() {
    edits_lose_nothing(&Cluster::new(), "iptables");
}

#[test]
fn in_userspace_mode() {
    edits_lose_nothing(&Cluster::new(), "userspace");
}

#[test]
fn in_ipvs_mode() {
    if let Some(cluster) = ipvs::cluster() {
        edits_lose_nothing(&cluster, "ipvs");
    }
}

fn edits_lose_nothing(cluster: &Cluster, mode: &str) {
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    guard(cluster, &[CLIENT]);
    weigh(cluster, &[one]);
    hint(cluster, [one, other]);
    zone(cluster, "a");
    let _proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
    assert_eq!(page(cluster, "/proxyMode"), mode);
    let (client, remote) = (cluster.world.client().namespace(), cluster.world.remote_pods()[0].namespace());
    reaches(client, Protocol::Tcp, at(GUARDED), &[one, other]);
    expect_weight(cluster, &[one]);
    reaches(remote, Protocol::Tcp, at(HINTED), &[one]);
    let stranger = Stranger::start(other.namespace());
    let ways = [("client to guarded", GUARDED), ("client to weighed", WEIGHED)];
    // A new UDP flow may get the endpoint that goes, and moves then.
    let plan_of = |to| TrafficPlan {
        renewed_flows: if to == WEIGHED { 0 } else { plan(to).renewed_flows },
        ..plan(to)
    };
    let load = ways.map(|(name, to)| (name, Traffic::start(client, plan_of(to)).unwrap()));
    // UDP flows of an endpoint that is not chosen any more may move.
    let hinted = Traffic::start(remote, TrafficPlan { udp: None, ..plan(HINTED) }).unwrap();

    // A round adds and removes a range, an endpoint, and moves the node to another zone.
    for _ in 0..if is_emulated() { 2 } else { 10 } {
        for (ranges, ready, (zone_now, chosen)) in [
            (&[CLIENT, FOREIGN][..], &[one, other][..], ("b", &[other][..])),
            (&[FOREIGN, CLIENT], &[one], ("c", &[one, other])),
            (&[CLIENT], &[other, one], ("a", &[one])),
        ] {
            guard(cluster, ranges);
            weigh(cluster, ready);
            zone(cluster, zone_now);
            reaches(client, Protocol::Tcp, at(GUARDED), &[one, other]);
            expect_weight(cluster, ready);
            reaches(remote, Protocol::Tcp, at(HINTED), chosen);
        }
    }
    stranger.assert_had_no_answer();
    assert_lossless(load.into());
    let report = hinted.stop().unwrap();
    assert!(report.is_lossless() && report.connections_ok > 0, "{mode}: pod to hinted: {report}");
    a_range_goes_and_returns(cluster, mode);

    // Its packets do arrive: without ranges it is answered.
    guard(cluster, &[]);
    reaches(other.namespace(), Protocol::Tcp, at(GUARDED), &[one, other]);
}

/// Takes away the range of a client that connects all the time, and gives it back. Meanwhile the client's new connections are
/// dropped, and a client in another range loses nothing.
fn a_range_goes_and_returns(cluster: &Cluster, mode: &str) {
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let (client, remote) = (cluster.world.client().namespace(), cluster.world.remote_pods()[0].namespace());
    let expect_answers = |from: &Namespace| reaches(from, Protocol::Tcp, at(GUARDED), &[one, other]);
    guard(cluster, &[CLIENT, REMOTE]);
    expect_answers(client);
    expect_answers(remote);
    let kept = Traffic::start(remote, plan(GUARDED)).unwrap();
    // What is open when the range goes may break, so the client opens new connections only.
    let new_ones = TrafficPlan { udp: None, streams: 0, ..without_renewed(plan(GUARDED)) };
    let cut = Traffic::start(client, new_ones).unwrap();

    guard(cluster, &[REMOTE]);
    becomes_silent(client, at(GUARDED));
    let outsider = Stranger::start(client);
    for ranges in [&[FOREIGN, REMOTE][..], &[REMOTE, FOREIGN], &[REMOTE]] {
        guard(cluster, ranges);
        expect_answers(remote);
    }
    outsider.assert_had_no_answer();
    // A connection that has not timed out yet is answered when the range is back.
    eventually(PATIENCE, "a connection has timed out", || cut.connections_timed_out() > 0).unwrap();

    guard(cluster, &[CLIENT, REMOTE]);
    expect_answers(client);
    let report = cut.stop().unwrap();
    // A connection that is refused fails as well, but not by its timeout.
    let dropped = report.connections_timed_out;
    let all_dropped = dropped > 0 && dropped == report.connections_failed;
    assert!(all_dropped && report.connections_ok > 0, "{mode}: client without its range: {report}");
    let back = Traffic::start(client, plan(GUARDED)).unwrap();
    for ranges in [&[CLIENT, FOREIGN, REMOTE][..], &[REMOTE, CLIENT]] {
        guard(cluster, ranges);
        expect_answers(client);
        expect_answers(remote);
    }
    assert_lossless(vec![("client with its range again", back), ("pod in another range", kept)]);
}

/// Waits until new connections are dropped: none of a batch is answered or refused.
fn becomes_silent(from: &Namespace, to: SocketAddr) {
    let mut results = Vec::new();
    let outcome = eventually(PATIENCE, "silence", || {
        results = from.probe_many(&[Probe::new(Protocol::Tcp, to); 8]).unwrap();
        results.iter().all(|result| *result == ProbeResult::TimedOut)
    });
    assert!(outcome.is_ok(), "{to} from {}: {results:?}", from.name());
}

/// Writes the Service with source ranges.
fn guard(cluster: &Cluster, ranges: &[&str]) {
    let mut service = objects::load_balancer("guarded", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["loadBalancerSourceRanges"] = json!(ranges);
    cluster.service(service, &cluster.world.pods().iter().collect::<Vec<_>>());
}

/// Writes the Service with a health-check node port and these endpoints.
fn weigh(cluster: &Cluster, pods: &[&Pod]) {
    let mut service = objects::load_balancer("weighed", "10.96.0.11", 30_081, "198.51.100.8");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    cluster.service(service, pods);
}

/// Waits until new connections reach exactly these pods, and the weight is their number.
fn expect_weight(cluster: &Cluster, pods: &[&Pod]) {
    reaches(cluster.world.client().namespace(), Protocol::Tcp, at(WEIGHED), pods);
    let weight = format!("x-load-balancing-endpoint-weight: {}", pods.len());
    let mut last = String::new();
    let outcome = eventually(PATIENCE, "the weight", || {
        let Some(answer) = get(cluster.world.node().namespace(), at("192.168.100.1:32000"), "/") else {
            return false;
        };
        last = format!("{} {}", answer.status, answer.head);
        answer.status == 200 && answer.head.contains(&weight)
    });
    assert!(outcome.is_ok(), "{weight}: {last}");
}

/// Writes the Service whose endpoints are for the zones `a` and `b`.
fn hint(cluster: &Cluster, pods: [&Pod; 2]) {
    let service = objects::cluster_ip("hinted", "10.96.0.12");
    let mut slice = objects::slice("hinted", &pods, &objects::ports(&service));
    for (endpoint, zone) in slice["endpoints"].as_array_mut().unwrap().iter_mut().zip(["a", "b"]) {
        endpoint["hints"] = json!({"forZones": [{"name": zone}]});
    }
    cluster.apply(service);
    cluster.apply(slice);
}

/// Moves the node to a zone.
fn zone(cluster: &Cluster, zone: &str) {
    let mut node: Value = objects::node(&cluster.world);
    node["metadata"]["labels"]["topology.kubernetes.io/zone"] = zone.into();
    cluster.apply(node);
}

/// A client outside of the source ranges, which tries all the time.
struct Stranger {
    over: Arc<AtomicBool>,
    /// Returns how often it has tried, and the answers.
    thread: JoinHandle<(usize, Vec<ProbeResult>)>,
}

impl Stranger {
    fn start(namespace: &Namespace) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (until, from) = (Arc::clone(&over), namespace.clone());
        let work = move || {
            let probe = Probe::new(Protocol::Tcp, at(GUARDED)).expecting_silence();
            let (mut tried, mut answers) = (0, Vec::new());
            // It tries once at least, even if this thread starts late.
            loop {
                let results = from.probe_many(&[probe; 8]).unwrap();
                tried += results.len();
                answers.extend(results.into_iter().filter(|result| result.backend().is_some()));
                if until.load(Ordering::Relaxed) {
                    return (tried, answers);
                }
            }
        };
        Self { over, thread: thread::spawn(work) }
    }

    fn assert_had_no_answer(self) {
        self.over.store(true, Ordering::Relaxed);
        let (tried, answers) = self.thread.join().unwrap();
        assert!(tried > 0 && answers.is_empty(), "{} of {tried}: {:?}", answers.len(), answers.first());
    }
}
