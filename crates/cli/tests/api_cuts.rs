//! The proxy follows an API server whose watches are cut or that restarts repeatedly. These tests print how soon, and check
//! the delays that the agent has chosen, which its log names. Crate `watch` tests the delays in every case, with a controlled
//! clock. Needs root and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use portolan_testkit::{Pod, PortolanProcess, Probe, Protocol, World, eventually};
use serde_json::{Value, json};

use common::cutter::Cutter;
use common::watches::{COLLECTIONS, age, all_open};
use common::{
    BINARY, Cluster, PATIENCE, Proxy, at, http, in_sync, listen, objects, start_proxy, watch_restarts,
};

const SERVICE: &str = "10.96.0.11:80";

/// Number of cuts, and the time for which all watches are open before each.
const CUTS: usize = 4;
const APART: Duration = Duration::from_secs(5);

/// The longest delays that the agent may choose: before it opens a watch again that worked, while connections are refused,
/// and while they break without an answer.
const REOPENED: Duration = Duration::from_millis(250);
const REFUSED: Duration = Duration::from_secs(1);
const BROKEN: Duration = Duration::from_millis(1500);

/// What the agent says of a watch that was interrupted or not answered.
#[derive(Debug)]
struct Interruption {
    kind: String,
    /// The delay before the next request.
    delay: Duration,
    /// Number of failures since the last answer with status 200. 1 if an answer with status 200 was interrupted, or if the first
    /// request failed.
    failures: u32,
    reason: String,
}

/// Returns the interruptions in the agent's log. At verbosity 2 it has all of them.
fn interruptions(log: &str) -> Vec<Interruption> {
    let lines = log.lines().filter(|line| line.contains("] \"watch interrupted\" "));
    let read = |line: &str| {
        let field = |name: &str| {
            let found = line.split_once(&format!(" {name}="));
            found.unwrap_or_else(|| panic!("no {name} in {line}")).1
        };
        let word = |name: &str| field(name).split(' ').next().unwrap().trim_matches('"');
        Interruption {
            kind: word("kind").to_owned(),
            delay: Duration::from_millis(word("delay_ms").parse().unwrap()),
            failures: word("failures").parse().unwrap(),
            reason: field("reason").to_owned(),
        }
    };
    lines.map(read).collect()
}

/// Returns the pod that serves in this round.
fn pod(world: &World, round: usize) -> &Pod {
    if round.is_multiple_of(2) { &world.pods()[1] } else { &world.remote_pods()[0] }
}

fn service() -> Value {
    objects::cluster_ip("web", &at(SERVICE).ip().to_string())
}

fn slice(world: &World, round: usize) -> Value {
    objects::slice("web", &[pod(world, round)], &objects::ports(&service()))
}

/// Waits until the kernel has this round's endpoint. Returns how long that took.
fn followed(world: &World, round: usize, since: Instant) -> Duration {
    let from = world.pods()[0].namespace();
    let wanted = Some(common::backend(pod(world, round), at(SERVICE).ip()));
    let probe = Probe::new(Protocol::Tcp, at(SERVICE)).timeout(Duration::from_millis(50));
    let outcome = eventually(PATIENCE, "the new endpoint", || from.probe(probe).unwrap().backend() == wanted);
    assert!(outcome.is_ok(), "round {round}");
    since.elapsed()
}

#[test]
fn each_watch_that_is_cut_is_opened_again_where_it_was_and_none_lists_again() {
    let cluster = Cluster::new();
    let world = &cluster.world;
    cluster.apply(service());
    cluster.apply(slice(world, 0));
    let cutter = Cutter::start(world.node().namespace(), cluster.address);
    let folder = tempfile::tempdir().unwrap();
    let mut proxy = start_proxy(world, folder.path(), &Proxy { yaml: "", master: cutter.address() });
    in_sync(&mut proxy);
    let requests = |collection| cutter.requests(collection).len();
    let (mut round, mut ages) = (0, Vec::new());
    for cuts in 0..=CUTS {
        if cuts > 0 {
            let before = COLLECTIONS.map(requests);
            cutter.cut();
            round += 1;
            cluster.apply(slice(world, round));
            ages.push(followed(world, round, Instant::now()));
            let opened = || COLLECTIONS.map(requests).iter().zip(before).all(|(now, before)| *now > before);
            let outcome = eventually(PATIENCE, "watches that are open again", opened);
            assert!(outcome.is_ok(), "{}", proxy.output());
        }
        round += 1;
        all_open(&cluster, service(), slice(world, round), round);
        let open = Instant::now();
        followed(world, round, open);
        while open.elapsed() < APART {
            round += 1;
            cluster.apply(slice(world, round));
            ages.push(followed(world, round, Instant::now()));
        }
    }
    // A connection counts only after its reset, which the agent may have seen before.
    let is_counted = eventually(PATIENCE, "cut connections", || cutter.connections_cut() >= 4 * CUTS);
    ages.sort_unstable();
    let (median, oldest, cut) = (ages[ages.len() / 2], ages.last().unwrap(), cutter.connections_cut());
    println!("{} changes, {cut} cut connections: {median:?} old (median), {oldest:?} at most", ages.len());
    assert!(is_counted.is_ok(), "{cut} connections");
    // Each watch had been open for much longer than a second. A request that fails after a cut is not counted here.
    let cut_watches = || interruptions(&proxy.output()).into_iter().filter(|it| it.failures == 1);
    let is_logged = eventually(PATIENCE, "the log", || cut_watches().count() >= COLLECTIONS.len() * CUTS);
    assert!(is_logged.is_ok(), "{:?}", interruptions(&proxy.output()));
    for kind in ["Service", "EndpointSlice", "Node", "ServiceCIDR"] {
        let of_kind = cut_watches().filter(|it| it.kind == kind);
        assert!(of_kind.count() >= CUTS, "{kind}: {:?}", interruptions(&proxy.output()));
    }
    let late: Vec<_> = cut_watches().filter(|it| it.delay > REOPENED).collect();
    assert!(late.is_empty(), "{late:?}");
    // There are events of this collection, so silence does not cause another list.
    let lines = cutter.requests("endpointslices");
    let lists = lines.iter().filter(|line| !line.contains("&resourceVersion=")).count();
    assert_eq!(lists, 1, "{lines:?}");
    assert_eq!(http::get(world.node().namespace(), at("127.0.0.1:10256"), "/healthz").unwrap().status, 200);
}

fn serve(world: &World, port: u16, folder: &Path) -> PortolanProcess {
    let (data, manifests) = (folder.join("data"), folder.join("manifests"));
    let listen = format!("127.0.0.1:{port}");
    let arguments = [
        "serve",
        "--insecure-http",
        "--listen",
        &listen,
        "--data-dir",
        data.to_str().unwrap(),
        "--manifests",
        manifests.to_str().unwrap(),
    ];
    PortolanProcess::start(world.node().namespace(), BINARY.as_ref(), &arguments).unwrap()
}

fn write_manifests(world: &World, folder: &Path, round: usize) {
    let items = [objects::node(world), service(), slice(world, round)];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::create_dir_all(folder.join("manifests")).unwrap();
    fs::write(folder.join("manifests/all.json"), list.to_string()).unwrap();
}

/// Waits until the API server shows this round's endpoint.
fn ready(world: &World, server: SocketAddr, round: usize) -> Instant {
    let address = common::backend(pod(world, round), at(SERVICE).ip()).ip().to_string();
    let shows = || {
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1";
        let answer = http::get(world.node().namespace(), server, path);
        answer.is_some_and(|answer| answer.status == 200 && answer.body.contains(&address))
    };
    assert!(eventually(PATIENCE, "a ready API server", shows).is_ok());
    Instant::now()
}

/// Graceful stops and kills alternate, with growing outages.
#[test]
fn a_server_that_is_restarted_again_and_again_is_followed_as_soon_as_it_is_ready() {
    let world = common::world();
    let folder = tempfile::tempdir().unwrap();
    let port = listen(world.node().namespace(), 0).local_addr().unwrap().port();
    let master = SocketAddr::from(([127, 0, 0, 1], port));
    write_manifests(&world, folder.path(), 0);
    let mut server = serve(&world, port, folder.path());
    let mut proxy = start_proxy(&world, folder.path(), &Proxy { yaml: "logging: {verbosity: 2}\n", master });
    in_sync(&mut proxy);
    followed(&world, 0, Instant::now());
    let mut took = Vec::new();
    for round in 1..=6 {
        let failures = || watch_restarts(world.node().namespace());
        let before = failures();
        if round % 2 == 0 {
            server.kill().unwrap();
        } else {
            server.terminate(PATIENCE).unwrap();
        }
        // The outage lasts until the four watches have failed a number of times that grows with each round.
        let tried = eventually(PATIENCE, "attempts", || failures() >= before + 8 * round);
        assert!(tried.is_ok(), "{} attempts: {}", failures() - before, proxy.output());
        write_manifests(&world, folder.path(), round);
        server = serve(&world, port, folder.path());
        took.push(followed(&world, round, ready(&world, master, round)));
    }
    println!("followed after {took:?}");
    assert!(proxy.ended().is_none());
    // In each outage, each watch has been refused again and again. The delays have not grown.
    let all = interruptions(&proxy.output());
    let refused: Vec<_> = all.iter().filter(|it| it.reason.contains("Connection refused")).collect();
    assert!(refused.len() >= 6 * COLLECTIONS.len(), "{all:?}");
    assert!(refused.iter().all(|it| it.delay <= REFUSED), "{refused:?}");
    // A connection to a server that begins or ends may break before there is an answer.
    let is_broken = |it: &&Interruption| it.failures > 1 && it.reason.contains("the connection failed");
    let broken: Vec<_> = all.iter().filter(is_broken).collect();
    assert!(broken.iter().all(|it| it.delay <= BROKEN), "{broken:?}");
}

/// An operator can see that a watch is silent.
#[test]
fn the_age_of_each_watch_is_shown() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let node = cluster.world.node().namespace().clone();
    for collection in COLLECTIONS {
        age(&node, collection);
    }
    let health = http::get(&node, at("127.0.0.1:10256"), "/healthz").unwrap();
    let body: Value = serde_json::from_str(&health.body).unwrap();
    assert!(body["watches"]["services"]["ageSeconds"].is_u64(), "{body}");
    assert!(eventually(PATIENCE, "a second", || age(&node, "services") > 1.0).is_ok());
    cluster.apply(objects::cluster_ip("web", "10.96.0.11"));
    let is_younger = || age(&node, "services") < age(&node, "nodes");
    assert!(eventually(PATIENCE, "a younger watch", is_younger).is_ok());
}
