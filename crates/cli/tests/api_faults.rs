//! The API server goes away, misbehaves and comes back. Meanwhile all Services keep working, and then the proxy
//! follows the new state. Needs root and nft, and fails without.
//!
//! `PORTOLAN_OUTAGE_REQUESTS=240 cargo test -p portolan --test api_faults` keeps the API server away for a minute.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use portolan_serve::Resource;
use portolan_testkit::{
    Namespace, Pod, PortolanProcess, Probe, ProbeResult, Protocol, Traffic, TrafficPlan, World, eventually,
};
use serde_json::{Value, json};

use common::cutter::Cutter;
use common::faulty::{BREAKS_OFF, Fault, FaultyServer};
use common::kernel::generation;
use common::{
    BINARY, Cluster, IN_SYNC, PATIENCE, Proxy, all_work, at, in_sync, listen, objects, reaches, start_proxy,
    watch_restarts,
};

const STAYS: &str = "10.96.0.10:80";
const MOVES: &str = "10.96.0.11:80";
const GOES: &str = "10.96.0.12:80";
const COMES: &str = "10.96.0.13:80";

/// Returns the number of requests that fail during the outage: `PORTOLAN_OUTAGE_REQUESTS`, or a number that keeps the
/// suite short. Four watches send one request per second each.
fn outage() -> usize {
    let requests = std::env::var("PORTOLAN_OUTAGE_REQUESTS").ok();
    requests.map_or(32, |requests| requests.parse().unwrap())
}

/// Returns the Services before or after the fault, with their EndpointSlices.
fn services(world: &World, after: bool) -> Vec<Value> {
    let [here, there] = [&world.pods()[1], &world.remote_pods()[0]];
    let others: [(&str, &str, &Pod); 2] = if after {
        [("moves", MOVES, there), ("comes", COMES, here)]
    } else {
        [("moves", MOVES, here), ("goes", GOES, here)]
    };
    let mut objects = Vec::new();
    for (name, to, pod) in others.into_iter().chain([("stays", STAYS, there)]) {
        let service = objects::cluster_ip(name, &at(to).ip().to_string());
        objects.push(objects::slice(name, &[pod], &objects::ports(&service)));
        objects.push(service);
    }
    objects
}

fn works_as_before(world: &World) {
    let from = world.pods()[0].namespace();
    let probe = |to| Probe::new(Protocol::Tcp, at(to));
    all_work(&[(from, probe(STAYS)), (from, probe(MOVES)), (from, probe(GOES))]);
}

/// Waits for the state after the fault. Returns how long that took.
fn follows(world: &World) -> Duration {
    let started = Instant::now();
    let from = world.pods()[0].namespace();
    let [here, there] =
        [&world.pods()[1], &world.remote_pods()[0]].map(|pod| Some(common::backend(pod, at(STAYS).ip())));
    let wanted = [(STAYS, there), (MOVES, there), (GOES, None), (COMES, here)];
    let probes = wanted.map(|(to, _)| Probe::new(Protocol::Tcp, at(to)).timeout(Duration::from_millis(50)));
    let outcome = eventually(2 * PATIENCE, "the new state", || {
        let results = from.probe_many(&probes).unwrap();
        results.iter().map(ProbeResult::backend).eq(wanted.map(|(_, backend)| backend))
    });
    assert!(outcome.is_ok(), "{:?}", from.probe_many(&probes));
    started.elapsed()
}

fn steady(world: &World) -> Traffic {
    let plan = TrafficPlan { tcp: Some(at(STAYS)), udp: Some(at(STAYS)), ..TrafficPlan::default() };
    Traffic::start(world.pods()[0].namespace(), plan).unwrap()
}

fn assert_lossless(traffic: Traffic) {
    let report = traffic.stop().unwrap();
    assert!(report.is_lossless() && report.connections_ok > 0, "{report}");
}

/// Returns a free loopback port of a namespace in which no other program opens any.
fn free_port(namespace: &Namespace) -> u16 {
    listen(namespace, 0).local_addr().unwrap().port()
}

fn serve(world: &World, port: u16, manifests: &Path) -> PortolanProcess {
    let listen = format!("127.0.0.1:{port}");
    let arguments = [
        "serve",
        "--in-memory",
        "--insecure-http",
        "--listen",
        &listen,
        "--manifests",
        manifests.to_str().unwrap(),
    ];
    PortolanProcess::start(world.node().namespace(), BINARY.as_ref(), &arguments).unwrap()
}

fn write_manifests(world: &World, folder: &Path, after: bool) {
    let items = [vec![objects::node(world)], services(world, after)].concat();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::write(folder.join("all.json"), list.to_string()).unwrap();
}

#[test]
fn an_api_server_that_was_killed_comes_back_with_other_content() {
    let world = common::world();
    let (folder, manifests) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let port = free_port(world.node().namespace());
    write_manifests(&world, manifests.path(), false);
    let mut server = serve(&world, port, manifests.path());
    let master = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut proxy = start_proxy(&world, folder.path(), &Proxy { yaml: "", master });
    in_sync(&mut proxy);
    works_as_before(&world);
    let traffic = steady(&world);
    let node = world.node().namespace();
    let (before, restarts) = (generation(node), watch_restarts(node));

    server.kill().unwrap();
    let failed = eventually(PATIENCE + Duration::from_secs(outage() as u64), "failed requests", || {
        works_as_before(&world);
        watch_restarts(node) >= restarts + outage()
    });
    assert!(failed.is_ok(), "{}", proxy.output());
    assert_eq!(generation(world.node().namespace()), before, "nothing is written without an API server");
    write_manifests(&world, manifests.path(), true);
    let _server = serve(&world, port, manifests.path());
    let took = follows(&world);
    println!("after {} failed requests, the state of the API server was followed in {took:?}", outage());
    assert!(proxy.ended().is_none());
    assert_lossless(traffic);
}

/// Replaces the real server by one with this fault. Then restarts the real one with other content.
fn survives(fault: Fault, requests: usize) {
    let mut cluster = Cluster::new();
    cluster.apply_all(services(&cluster.world, false));
    let mut proxy = cluster.proxy();
    works_as_before(&cluster.world);
    let traffic = steady(&cluster.world);
    let before = generation(cluster.world.node().namespace());

    cluster.stop_server();
    let faulty = FaultyServer::start(cluster.world.node().namespace(), cluster.address.port(), fault);
    // A proxy that starts meanwhile must not change any rule either.
    let mut newcomer =
        cluster.start_proxy("healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: 127.0.0.1:2\n");
    let asked = eventually(PATIENCE, "requests", || faulty.requests() >= requests);
    assert!(asked.is_ok(), "{fault:?}: {} requests {}", faulty.requests(), proxy.output());
    works_as_before(&cluster.world);
    assert_eq!(generation(cluster.world.node().namespace()), before, "{fault:?}: nothing is written");
    assert!(newcomer.ended().is_none() && !newcomer.output().contains(IN_SYNC), "{}", newcomer.output());
    newcomer.terminate(PATIENCE).unwrap();
    drop(faulty);
    cluster.delete(Resource::Service, "goes");
    cluster.apply_all(services(&cluster.world, true));
    cluster.restart_server();
    let took = follows(&cluster.world);
    println!("after {fault:?} the state was followed in {took:?}");
    assert!(proxy.ended().is_none());
    assert_lossless(traffic);
    reaches(cluster.world.client().namespace(), Protocol::Udp, at(COMES), &[&cluster.world.pods()[1]]);
}

#[test]
fn an_api_server_that_never_answers() {
    survives(Fault::Silent, 8);
}

#[test]
fn an_api_server_that_answers_with_errors() {
    survives(Fault::Answers("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 5\r\n\r\nouch\n"), 16);
}

#[test]
fn an_api_server_that_answers_with_garbage() {
    survives(Fault::Answers("\u{1}\u{2} this is not HTTP at all\r\n\r\n{]"), 16);
}

#[test]
fn an_api_server_that_is_no_api_server() {
    survives(Fault::Answers("HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n<html>Hello.</html>\r\n"), 16);
}

/// If half of a list were applied, everything in the other half would be removed.
#[test]
fn an_api_server_that_breaks_off_in_the_middle_of_a_list() {
    survives(Fault::Answers(BREAKS_OFF), 16);
}

#[test]
fn an_api_server_that_lists_another_kind() {
    survives(
        Fault::Lists(
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":[]}"#,
        ),
        16,
    );
}

/// The Services' namespaces and names, before the kind of the list.
#[test]
fn an_api_server_that_lists_pods_with_the_names_of_services() {
    survives(
        Fault::Lists(
            r#"{"apiVersion":"v1","items":[{"metadata":{"namespace":"default","name":"stays"}},{"kind":"Pod","metadata":{"namespace":"default","name":"goes"}}],"kind":"PodList","metadata":{"resourceVersion":"900"}}"#,
        ),
        16,
    );
}

#[test]
fn an_api_server_whose_lists_are_null() {
    survives(
        Fault::Lists(
            r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":null}"#,
        ),
        16,
    );
}

/// The list of Services has the right kind and is empty. The other lists are of another kind.
#[test]
fn an_empty_list_of_services_is_not_believed_alone() {
    let mut cluster = Cluster::new();
    cluster.apply_all(services(&cluster.world, false));
    let mut proxy = cluster.proxy();
    works_as_before(&cluster.world);
    let before = generation(cluster.world.node().namespace());
    let held = || common::page(&cluster, "/metrics").contains(HELD);
    assert!(!held());
    cluster.stop_server();
    let faulty = FaultyServer::start(
        cluster.world.node().namespace(),
        cluster.address.port(),
        Fault::Lists(NO_SERVICES),
    );
    let held = || common::page(&cluster, "/metrics").contains(HELD);
    assert!(eventually(PATIENCE, "the metric", held).is_ok(), "{}", proxy.output());
    works_as_before(&cluster.world);
    assert_eq!(generation(cluster.world.node().namespace()), before, "nothing is written");
    drop(faulty);
    cluster.apply_all(services(&cluster.world, true));
    cluster.delete(Resource::Service, "goes");
    cluster.restart_server();
    follows(&cluster.world);
    let events = || {
        let node = cluster.world.node().namespace();
        let answer = common::http::get(node, cluster.address, "/apis/events.k8s.io/v1/events");
        answer.is_some_and(|answer| answer.body.contains("EmptyListHeld"))
    };
    assert!(eventually(PATIENCE, "the Event", events).is_ok(), "{}", proxy.output());
    assert!(proxy.ended().is_none());
}

const HELD: &str = r#"portolan_watch_empty_lists_held_total{resource="services"} 1"#;
const NO_SERVICES: &str =
    r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":[]}"#;

#[test]
fn an_empty_list_of_services_is_believed_at_once_if_the_flag_says_so() {
    let mut cluster = Cluster::new();
    cluster.apply_all(services(&cluster.world, false));
    let mut proxy = cluster.proxy_with_arguments("", &["--empty-list-hold=0s"]);
    works_as_before(&cluster.world);
    let node = cluster.world.node().namespace().clone();
    let before = generation(&node);
    cluster.stop_server();
    let _faulty = FaultyServer::start(&node, cluster.address.port(), Fault::Lists(NO_SERVICES));
    let held = || common::page(&cluster, "/metrics").contains(HELD);
    // The lists of the other collections are refused, because they are of another kind.
    let removed = eventually(PATIENCE, "no Service", || generation(&node) != before || held());
    assert!(removed.is_ok() && !held(), "{}", proxy.output());
    let from = cluster.world.pods()[0].namespace();
    let probes = [STAYS, MOVES, GOES].map(|to| Probe::new(Protocol::Tcp, at(to)).expecting_silence());
    let gone = || from.probe_many(&probes).unwrap().iter().all(|result| result.backend().is_none());
    assert!(eventually(PATIENCE, "no endpoint", gone).is_ok(), "{:?}", from.probe_many(&probes));
    assert!(proxy.ended().is_none());
}

/// The list of ServiceCIDRs fails, and all other requests work. The start waits for it as long as for the Node object.
#[test]
fn an_api_server_that_cannot_list_service_cidrs_does_not_hold_up_the_start() {
    let cluster = Cluster::new();
    cluster.apply_all(services(&cluster.world, false));
    let node = cluster.world.node().namespace();
    let cutter = Cutter::start(node, cluster.address);
    cutter.fail(Some("servicecidrs"));
    let folder = tempfile::tempdir().unwrap();
    let master = cutter.address();
    let mut proxy = start_proxy(&cluster.world, folder.path(), &Proxy { yaml: "", master });
    proxy.wait_for_output(PATIENCE, "awaited=\"the list of ServiceCIDRs\"").unwrap();
    in_sync(&mut proxy);
    works_as_before(&cluster.world);
    let without = proxy.output();
    let said: Vec<_> = without.lines().filter(|line| line.contains(NO_SERVICE_CIDRS)).collect();
    assert!(said.len() == 1 && said[0].contains(" waited=\"30s\""), "{said:?}");
    assert!(!cutter.requests("servicecidrs").is_empty());
    let drops = || common::kernel::nft(node, "list table ip portolan").contains("10.96.0.0/16");
    assert!(!drops(), "no ServiceCIDR is known yet");
    // The readiness does not depend on it either.
    let ready =
        || common::http::get(node, at("127.0.0.1:10256"), "/readyz").is_some_and(|got| got.status == 200);
    assert!(eventually(PATIENCE, "readiness", ready).is_ok(), "{}", proxy.output());

    cutter.fail(None);
    let outcome = eventually(PATIENCE, "the ServiceCIDRs take effect", drops);
    assert!(outcome.is_ok(), "{}", proxy.output());
    works_as_before(&cluster.world);
    assert!(proxy.ended().is_none());
    let output = proxy.output();
    assert_eq!(output.matches(NO_SERVICE_CIDRS).count(), 1, "{output}");
}

const NO_SERVICE_CIDRS: &str = "\"starting without ServiceCIDRs";
