//! Under load, the proxy restarts or another program changes its table, and no packet is lost. Needs root and nft,
//! and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portolan_testkit::{Family, PortolanProcess, Probe, ProbeResult, Protocol, World, eventually};
use rustix::process::Signal;
use serde_json::json;

use common::kernel::{Frontends, frontends, generation, nft};
use common::load::{assert_lossless, busy_services};
use common::{Cluster, PATIENCE, at, http, load, objects};

/// Returns a pseudo-random number below `below`. The sequence is the same in every run.
fn next_random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// The proxy's log message about the elements that it knew when it was terminated.
const SAVED: &str = "the last run has saved the elements of large sets";

#[test]
fn restarts_under_load_lose_nothing_and_write_nothing() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    let load = load::start(&cluster);
    let node = cluster.world.node().namespace();
    let before = generation(node);
    let (mut random, mut with_saved_elements) = (1, 0);
    for round in 0..120 {
        match round % 3 {
            0 => assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output()),
            1 => drop(proxy.kill().unwrap()),
            _ => {
                // In the middle of a start.
                proxy.kill().unwrap();
                proxy = cluster.start_proxy("");
                thread::sleep(Duration::from_micros(next_random(&mut random, 40_000)));
                proxy.kill().unwrap();
            }
        }
        proxy = cluster.proxy();
        let output = proxy.output();
        assert_eq!(generation(node), before, "{output}");
        let is_saved = output.contains(SAVED);
        assert!(round % 3 == 0 || !is_saved, "a killed proxy saves nothing: {output}");
        with_saved_elements += u32::from(is_saved && output.contains("is_current=true"));
    }
    // Not all: the proxy may be ended before it is told of changes by others.
    assert!(with_saved_elements > 10, "{with_saved_elements} of 40");
    assert_lossless(load);
    assert_eq!(generation(node), before, "{}", proxy.output());
}

#[test]
fn a_change_by_others_around_the_end_is_repaired_by_the_next_start() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    let node = cluster.world.node().namespace();
    let read = || Family::BOTH.map(|family| frontends(node, family));
    let whole = read();
    for round in 0..20 {
        // Right before the end, or between two runs.
        let damage = || nft(node, "flush map ip portolan endpoints; flush map ip6 portolan endpoints");
        if round % 2 == 0 {
            damage();
        }
        assert!(proxy.terminate(PATIENCE).unwrap().success(), "{}", proxy.output());
        if round % 2 == 1 {
            damage();
        }
        proxy = cluster.proxy();
        let outcome = eventually(PATIENCE, "the whole table", || read() == whole);
        assert!(outcome.is_ok(), "round {round}: {:#?}\n{}", read(), proxy.output());
    }
}

/// Number of Services `churn-0`, `churn-1` and so on, every second one IPv6. Their endpoints do not exist.
const CHURNING: u16 = 40;

fn churn_address(number: u16) -> String {
    if number.is_multiple_of(2) { format!("10.96.1.{number}") } else { format!("fd00:96::1{number:02x}") }
}

/// Returns an EndpointSlice of a churning Service with some endpoints, and their addresses.
fn churn_slice(number: u16, random: &mut u64) -> (serde_json::Value, BTreeSet<SocketAddr>) {
    let name = format!("churn-{number}");
    let family = if number.is_multiple_of(2) { Family::Ipv4 } else { Family::Ipv6 };
    let mut slice = objects::slice(&name, &[], &[("tcp".to_owned(), family)]);
    let (count, first) = (next_random(random, 12), next_random(random, 200));
    let address = |offset: u64| match family {
        Family::Ipv4 => format!("10.244.7.{}", first + offset),
        Family::Ipv6 => format!("fd00:10:244:7::{:x}", first + offset),
    };
    let addresses: Vec<IpAddr> = (0..count).map(|offset| address(offset).parse().unwrap()).collect();
    let endpoint = |address: &IpAddr| json!({"addresses": [address], "nodeName": "node7"});
    slice["addressType"] = json!(if family == Family::Ipv4 { "IPv4" } else { "IPv6" });
    slice["endpoints"] = addresses.iter().map(endpoint).collect();
    (slice, addresses.into_iter().map(|address| SocketAddr::new(address, common::BACKEND_PORT)).collect())
}

/// Changes endpoints as fast as the API accepts it until `stop` is set. Returns the final state of the Services.
fn churn(cluster: &Cluster, stop: &AtomicBool) -> Frontends {
    let (mut state, mut random) = (Frontends::new(), 7);
    let mut changes = 0_u64;
    while !stop.load(Ordering::Relaxed) || state.len() < CHURNING.into() {
        let number = u16::try_from(changes % u64::from(CHURNING)).unwrap();
        let (slice, backends) = churn_slice(number, &mut random);
        cluster.apply(slice);
        state.insert(
            (SocketAddr::new(churn_address(number).parse().unwrap(), 80), "tcp".to_owned()),
            backends,
        );
        changes += 1;
        thread::sleep(Duration::from_micros(next_random(&mut random, 4_000)));
    }
    state
}

#[test]
fn after_restarts_during_changes_the_table_matches_the_api() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    for number in 0..CHURNING {
        let mut service = objects::cluster_ip(&format!("churn-{number}"), &churn_address(number));
        service["spec"]["ports"].as_array_mut().unwrap().truncate(1);
        cluster.apply(service);
    }
    let mut proxy = cluster.proxy();
    let load = load::start(&cluster);
    let stop = AtomicBool::new(false);
    let expected = thread::scope(|scope| {
        let churning = scope.spawn(|| churn(&cluster, &stop));
        let mut random = 3;
        for round in 0..40 {
            thread::sleep(Duration::from_micros(next_random(&mut random, 120_000)));
            if round % 2 == 0 {
                proxy.kill().unwrap();
            } else {
                // It may have saved the elements that it knew. It may also end before it handles the signal.
                proxy.terminate(PATIENCE).unwrap();
            }
            proxy = cluster.start_proxy("");
        }
        stop.store(true, Ordering::Relaxed);
        churning.join().unwrap()
    });
    common::in_sync(&mut proxy);
    let node = cluster.world.node().namespace();
    let read = || {
        let all = Family::BOTH.into_iter().flat_map(|family| frontends(node, family));
        all.filter(|((to, _), _)| expected.keys().any(|(other, _)| other == to)).collect::<Frontends>()
    };
    // A Service without endpoints has no frontend.
    let expected: Frontends =
        expected.clone().into_iter().filter(|(_, backends)| !backends.is_empty()).collect();
    let outcome = eventually(PATIENCE, "the table of the API's state", || read() == expected);
    assert!(outcome.is_ok(), "{:#?}\n{:#?}", read(), expected);
    assert_lossless(load);
}

/// The proxy's log message after it repaired its table.
const MENDED: &str = "another program had changed our table; mended";

/// Returns the number of repairs that the proxy counts.
fn repairs(world: &World) -> u64 {
    let answer = http::get(world.node().namespace(), at("127.0.0.1:10249"), "/metrics").unwrap();
    let prefix = "portolan_dataplane_drift_repairs_total ";
    answer.body.lines().find_map(|line| line.strip_prefix(prefix)).unwrap().parse().unwrap()
}

/// Damages the table with each command. Each damage must be repaired, logged and counted.
fn damage_and_watch(cluster: &Cluster, proxy: &mut PortolanProcess, commands: &[&str]) {
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    let read = || Family::BOTH.map(|family| frontends(node, family));
    let whole = read();
    let probes = ["10.96.0.10:80", "198.51.100.7:80", "192.168.100.1:30080", "[fd00:96::10]:80"]
        .map(|to| Probe::new(Protocol::Tcp, at(to)).timeout(Duration::from_millis(50)));
    for command in commands {
        let (counted, logged) = (repairs(&cluster.world), proxy.output().matches(MENDED).count());
        nft(node, command);
        let mended = eventually(PATIENCE, "the repair", || {
            client.probe_many(&probes).unwrap().iter().all(|result| result.backend().is_some())
        });
        assert!(mended.is_ok(), "{command}: {}", proxy.output());
        let count = eventually(PATIENCE, "the count", || repairs(&cluster.world) > counted);
        assert!(count.is_ok(), "{command}: {}", proxy.output());
        common::logged(proxy, MENDED, logged + 1);
        let outcome = eventually(PATIENCE, "the whole table", || read() == whole);
        assert!(outcome.is_ok(), "{command}: {:#?}", read());
    }
}

#[test]
fn damaged_elements_are_repaired_and_unrelated_flows_go_on() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    // New flows need the elements.
    let load = load::start_plans(&cluster, |to| load::without_renewed(load::plan(to)));
    assert_eq!(repairs(&cluster.world), 0);
    let commands = [
        "flush map ip6 portolan endpoints",
        "delete element ip portolan services { 198.51.100.7 . tcp . 80 }",
        "delete element ip6 portolan cluster-ips { fd00:96::10 }",
        "flush map ip6 portolan services",
        "delete element ip portolan node-port-ips { 192.168.100.1 }",
    ];
    damage_and_watch(&cluster, &mut proxy, &commands);
    for (name, traffic) in load {
        let report = traffic.stop().unwrap();
        // Established flows do not look up the elements again. New connections do.
        let lost = report.streams_broken + report.udp_lost + report.udp_moved;
        let concerned = name != "pod to cluster IP";
        assert!(lost == 0 && (concerned || report.is_lossless()), "{name}: {report}");
    }
}

#[test]
fn a_removed_table_is_restored() {
    let cluster = Cluster::new();
    busy_services(&cluster);
    let mut proxy = cluster.proxy();
    // Without the table, the kernel no longer translates established flows either.
    let _load = load::start(&cluster);
    let commands = ["flush ruleset", "delete table ip portolan", "flush table ip6 portolan", "flush ruleset"];
    damage_and_watch(&cluster, &mut proxy, &commands);
}

/// The kernel keeps the entry of such a flow as long as its client sends.
#[test]
fn udp_flows_that_begin_while_rules_are_missing_reach_their_service_after_the_repair() {
    for mode in ["nftables", "iptables"] {
        let cluster = Cluster::new();
        busy_services(&cluster);
        let mut proxy = cluster.proxy_with(&format!("mode: {mode}\niptables: {{syncPeriod: 2s}}\n"));
        let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
        let probes = ["192.168.100.1:30080", "[fd00:192:168:100::1]:30081"]
            .map(|to| Probe::new(Protocol::Udp, at(to)).from_port(40_000));
        proxy.signal(Signal::STOP);
        nft(node, "flush ruleset");
        let without = client.probe_many(&probes).unwrap();
        assert_eq!(without, [ProbeResult::Refused; 2], "{mode}");
        proxy.signal(Signal::CONT);
        common::logged(&mut proxy, MENDED, 2);
        for probe in probes {
            let answered = || client.probe(probe).unwrap().backend().is_some();
            let outcome = eventually(PATIENCE, "an answer", answered);
            assert!(outcome.is_ok(), "{mode}, {probe:?}: {}", proxy.output());
        }
    }
}
