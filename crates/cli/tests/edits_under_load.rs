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

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use portolan_testkit::{
    Family, Namespace, Pod, Probe, ProbeResult, Protocol, Traffic, TrafficPlan, eventually, is_emulated,
};
use serde_json::{Value, json};

use common::http::get;
use common::load::{assert_lossless, dual_stack, dual_stack_slices, plan, without_renewed};
use common::{Cluster, PATIENCE, at, ipvs, objects, page, reaches};

/// A source range of each family.
type Ranges = [&'static str; 2];

/// The addresses of the client.
const CLIENT: Ranges = ["203.0.113.0/24", "2001:db8:113::/64"];
/// The addresses of the pod on the other node.
const REMOTE: Ranges = ["10.244.2.0/24", "fd00:10:244:2::/64"];
/// Ranges without any address of the test.
const FOREIGN: Ranges = ["198.18.0.0/15", "2001:2::/48"];
/// The addresses of the Service with source ranges.
const GUARDED: [&str; 2] = ["198.51.100.7:80", "[2001:db8:100::7]:80"];
const WEIGHED: &str = "198.51.100.8:80";
const HINTED: &str = "[fd00:96::12]:80";
/// Time for an answer to a client outside the ranges, on any machine: many short tries meet more moments than a few long ones.
const SHORT: Duration = Duration::from_millis(250);

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
    reaches_guarded(client, &[one, other]);
    expect_weight(cluster, &[one]);
    reaches(remote, Protocol::Tcp, at(HINTED), &[one]);
    let stranger = Stranger::start(other.namespace());
    let [ipv4, ipv6] = GUARDED;
    let ways =
        [("client to guarded", ipv4), ("client to guarded, IPv6", ipv6), ("client to weighed", WEIGHED)];
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
            reaches_guarded(client, &[one, other]);
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
    for to in GUARDED {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            reaches(other.namespace(), protocol, at(to), &[one, other]);
        }
    }
}

/// Waits until new connections in both families reach exactly these pods.
fn reaches_guarded(from: &Namespace, pods: &[&Pod]) {
    for to in GUARDED {
        reaches(from, Protocol::Tcp, at(to), pods);
    }
}

/// Takes away the range of a client that connects all the time, and gives it back. Meanwhile the client's new connections are
/// dropped, and a client in another range loses nothing.
fn a_range_goes_and_returns(cluster: &Cluster, mode: &str) {
    let [one, other] = cluster.world.pods() else { panic!("two pods") };
    let (client, remote) = (cluster.world.client().namespace(), cluster.world.remote_pods()[0].namespace());
    let expect_answers = |from: &Namespace| reaches_guarded(from, &[one, other]);
    guard(cluster, &[CLIENT, REMOTE]);
    expect_answers(client);
    expect_answers(remote);
    let start = |from: &Namespace, plan_to: fn(&str) -> TrafficPlan| {
        GUARDED.map(|to| Traffic::start(from, plan_to(to)).unwrap())
    };
    let kept = start(remote, plan);
    // What is open when the range goes may break, so the client opens new connections only.
    let cut = start(client, |to| TrafficPlan { udp: None, streams: 0, ..without_renewed(plan(to)) });

    guard(cluster, &[REMOTE]);
    becomes_silent(client);
    let outsider = Stranger::start(client);
    for ranges in [&[FOREIGN, REMOTE][..], &[REMOTE, FOREIGN], &[REMOTE]] {
        guard(cluster, ranges);
        expect_answers(remote);
    }
    outsider.assert_had_no_answer();
    // A connection that has not timed out yet is answered when the range is back.
    let is_dropped = || cut.iter().all(|traffic| traffic.connections_timed_out() > 0);
    eventually(PATIENCE, "a connection of each family has timed out", is_dropped).unwrap();

    guard(cluster, &[CLIENT, REMOTE]);
    expect_answers(client);
    for (family, traffic) in Family::BOTH.into_iter().zip(cut) {
        let report = traffic.stop().unwrap();
        // A connection that is refused fails as well, but not by its timeout.
        let dropped = report.connections_timed_out;
        let all_dropped = dropped > 0 && dropped == report.connections_failed;
        assert!(all_dropped && report.connections_ok > 0, "{mode}, {family}: without its range: {report}");
    }
    let back = start(client, plan);
    for ranges in [&[CLIENT, FOREIGN, REMOTE][..], &[REMOTE, CLIENT]] {
        guard(cluster, ranges);
        expect_answers(client);
        expect_answers(remote);
    }
    let named = |name, load: [Traffic; 2]| load.map(|traffic| (name, traffic));
    let both = [named("client with its range again", back), named("pod in another range", kept)];
    assert_lossless(both.into_iter().flatten().collect());
}

/// Returns probes to the Service with source ranges, of both families and protocols.
fn probes() -> Vec<Probe> {
    let of_protocol = |protocol| GUARDED.map(|to| Probe::new(protocol, at(to)));
    [of_protocol(Protocol::Tcp), of_protocol(Protocol::Udp)].concat()
}

/// Waits until new connections and flows are dropped: none of a batch is answered or refused.
fn becomes_silent(from: &Namespace) {
    let batch = probes().repeat(4);
    let mut results = Vec::new();
    let outcome = eventually(PATIENCE, "silence", || {
        results = from.probe_many(&batch).unwrap();
        results.iter().all(|result| *result == ProbeResult::TimedOut)
    });
    assert!(outcome.is_ok(), "from {}: {results:?}", from.name());
}

/// Writes the Service with source ranges.
fn guard(cluster: &Cluster, ranges: &[Ranges]) {
    let service = objects::load_balancer("guarded", "10.96.0.10", 30_080, "198.51.100.7");
    let mut service = dual_stack(service, "fd00:96::10", "2001:db8:100::7");
    service["spec"]["loadBalancerSourceRanges"] = json!(ranges.concat());
    let slices = dual_stack_slices(&service, &cluster.world.pods().iter().collect::<Vec<_>>());
    cluster.apply(service);
    cluster.apply_all(slices.into());
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
    let service = objects::cluster_ip("hinted", "fd00:96::12");
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

/// A client outside of the source ranges, which tries TCP and UDP in both families all the time.
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
            let batch: Vec<Probe> = probes().into_iter().map(|probe| probe.timeout(SHORT)).collect();
            let batch = batch.repeat(4);
            let (mut tried, mut answers) = (0, Vec::new());
            // It tries once at least, even if this thread starts late.
            loop {
                let results = from.probe_many(&batch).unwrap();
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
