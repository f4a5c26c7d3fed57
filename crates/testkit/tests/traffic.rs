//! Background traffic notices losses and reports no others; processes under test end when asked.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test program: its helpers fail the test, too"
)]

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use portolan_testkit::{
    Family, PortolanProcess, Protocol, TestkitError, Traffic, TrafficPlan, TrafficReport, World, eventually,
};

const PORT: u16 = 8080;
/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns a world with a pod that answers, and a plan with traffic from the client to it.
fn world_and_plan(family: Family) -> (World, TrafficPlan) {
    let world = World::builder().pods(2).remote_pods(0).build().unwrap();
    let at = SocketAddr::new(world.pods()[0].address(family), PORT);
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        world.serve(&world.pods()[0], protocol, PORT).unwrap();
    }
    (world, TrafficPlan { tcp: Some(at), udp: Some(at), ..TrafficPlan::default() })
}

/// Returns the number of packets in a counter of the node's rules.
fn counted(world: &World, counter: &str) -> u64 {
    let listed = world.node().namespace().output("nft", &["list", "counter", "ip", "t", counter]).unwrap();
    listed.split("packets ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn nft(world: &World, rules: &str) {
    world.node().namespace().output_with_input("nft", &["-f", "-"], rules).unwrap();
}

/// Counts these packets from now on, if the node forwards them: those that match, or all.
fn count(world: &World, packets: &str, counter: &str) {
    let rule = format!("{packets} counter name {counter};");
    let chain = format!("chain forward {{ type filter hook forward priority 0; {rule} }};");
    nft(world, &format!("table ip t {{ counter {counter} {{ }}; {chain} }}"));
}

/// Drops these packets from now on, and counts them as `dropped`.
fn drop_and_count(world: &World, packets: &str) {
    let rule = format!("{packets} counter name dropped drop;");
    let chain = format!("chain gate {{ type filter hook forward priority -1; {rule} }};");
    nft(world, &format!("table ip t {{ counter dropped {{ }}; {chain} }}"));
}

/// Waits until a counter has counted as many more packets, so that the test does not depend on the clock. Each thread of the
/// traffic may not run for a while, so a test waits for the packets of each one that its assertions are about.
fn await_packets(world: &World, counter: &str, packets: u64) {
    let seen = counted(world, counter);
    eventually(PATIENCE, "traffic", || counted(world, counter) > seen + packets).unwrap();
}

#[test]
fn undisturbed_traffic_is_lossless() {
    for family in Family::BOTH {
        let (world, plan) = world_and_plan(family);
        let plan = TrafficPlan { sctp: plan.udp, ..plan };
        let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
        let pod = world.pods()[0].namespace();
        let received = || -> u64 {
            let statistics = pod.output("ip", &["-s", "-o", "link", "show", "eth0"]).unwrap();
            statistics
                .split("RX:")
                .nth(1)
                .unwrap()
                .split_whitespace()
                .find_map(|word| word.parse().ok())
                .unwrap_or(0)
        };
        eventually(PATIENCE, "100 kB of traffic", || received() > 100_000).unwrap();
        let report = traffic.stop().unwrap();
        assert!(report.is_lossless(), "{report}");
        assert_eq!(report.streams, 10);
        assert!(report.connections_ok > 0 && report.stream_lines > 10, "{report}");
        assert!(report.udp_sent > 10 && report.associations_ok > 0 && report.sctp_sent > 10, "{report}");
    }
}

/// Connections and flows that are older go on.
#[test]
fn renewed_streams_and_flows_notice_what_happens_to_new_ones() {
    let (world, plan) = world_and_plan(Family::Ipv4);
    let plan = TrafficPlan { connections_per_second: 0, streams: 1, udp_flows: 1, ..plan };
    let plan = TrafficPlan { renewed_streams: 2, renewed_flows: 2, ..plan };
    // The kernel tracks connections from now on. Those from before would count as new ones at their next packet.
    count(&world, "ct state new tcp flags syn / fin,syn,rst,ack", "opened");
    let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
    await_packets(&world, "opened", 4);
    let report = traffic.stop().unwrap();
    assert!(report.is_lossless() && report.streams > 3, "{report}");

    let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
    drop_and_count(&world, "ct state new ip protocol udp");
    await_packets(&world, "dropped", 2);
    nft(
        &world,
        "flush chain ip t gate\nadd rule ip t gate ct state new ip protocol tcp counter name dropped reject with tcp reset",
    );
    await_packets(&world, "dropped", 1);
    let report = traffic.stop().unwrap();
    assert!((1..=2).contains(&report.streams_broken), "{report}");
    assert!(report.udp_lost > 0 && report.udp_lost < report.udp_sent, "{report}");
}

#[test]
fn datagrams_that_are_dropped_for_a_moment_count_as_lost_only() {
    let (world, plan) = world_and_plan(Family::Ipv4);
    count(&world, "ip protocol udp", "passed");
    let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
    drop_and_count(&world, "ip protocol udp");
    await_packets(&world, "dropped", 100);
    nft(&world, "flush chain ip t gate");
    await_packets(&world, "passed", 100);
    let report = traffic.stop().unwrap();
    assert!(report.udp_lost > 0 && report.udp_lost < report.udp_sent, "{report}");
    assert_eq!((report.connections_failed, report.streams_broken, report.udp_moved), (0, 0, 0), "{report}");
}

#[test]
fn heartbeats_that_are_dropped_for_a_moment_count_as_lost_only() {
    let (world, plan) = world_and_plan(Family::Ipv4);
    count(&world, "", "passed");
    let plan = TrafficPlan { tcp: None, udp: None, sctp: plan.udp, connections_per_second: 0, ..plan };
    let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
    // Heartbeats pass, and their answers are dropped.
    drop_and_count(&world, &format!("sctp sport {PORT}"));
    await_packets(&world, "dropped", 50);
    nft(&world, "flush chain ip t gate");
    await_packets(&world, "passed", 100);
    let report = traffic.stop().unwrap();
    assert!(report.sctp_lost > 0 && report.sctp_lost < report.sctp_sent, "{report}");
    assert_eq!((report.associations_failed, report.sctp_moved), (0, 0), "{report}");
    assert!(report.losses.iter().any(|loss| loss.contains("association")), "{report}");
}

#[test]
fn refused_associations_show() {
    let (world, plan) = world_and_plan(Family::Ipv4);
    let plan = TrafficPlan { tcp: None, udp: None, sctp: plan.udp, associations: 1, ..plan };
    let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
    world.echo().close(world.pods()[0].namespace(), Protocol::Sctp, plan.sctp.unwrap()).unwrap();
    // The type of the first chunk follows the common header (RFC 9260 section 3).
    count(&world, "ip protocol sctp @th,96,8 1", "inits");
    count(&world, "ip protocol sctp @th,96,8 4", "heartbeats");
    await_packets(&world, "inits", 20);
    await_packets(&world, "heartbeats", 20);
    let report = traffic.stop().unwrap();
    assert!(report.associations_failed > 0 && report.sctp_lost > 0, "{report}");
}

#[test]
fn reset_streams_and_refused_connections_show() {
    let (world, plan) = world_and_plan(Family::Ipv4);
    let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
    world.echo().close(world.pods()[0].namespace(), Protocol::Tcp, plan.tcp.unwrap()).unwrap();
    count(&world, "tcp flags & (syn | ack) == syn", "connections");
    await_packets(&world, "connections", 20);
    let report = traffic.stop().unwrap();
    assert_eq!(report.streams_broken, 10, "{report}");
    assert!(report.connections_failed > 0, "{report}");
    assert_eq!((report.udp_lost, report.udp_moved), (0, 0), "{report}");
    assert!(report.losses.iter().any(|loss| loss.contains("stream")), "{report}");
}

/// Returns the report of UDP flows or SCTP associations, all of which move to another backend.
fn moved(protocol: Protocol) -> TrafficReport {
    let (world, plan) = world_and_plan(Family::Ipv4);
    world.serve(&world.pods()[1], protocol, PORT).unwrap();
    let [one, two] = [0, 1].map(|pod| world.pods()[pod].address(Family::Ipv4));
    count(&world, "", "passed");
    // Stateless translation: the current rules apply to each packet, as if flows were not tracked.
    let moved = format!(
        "table ip m {{ chain pre {{ type filter hook prerouting priority -300; \
         ip daddr {one} th dport {PORT} ip daddr set {two}; ip saddr {two} th sport {PORT} ip saddr set {one}; }}; }}"
    );
    let at = plan.udp;
    let plan = TrafficPlan { tcp: None, udp: None, connections_per_second: 0, ..plan };
    let plan = match protocol {
        Protocol::Sctp => TrafficPlan { sctp: at, ..plan },
        _ => TrafficPlan { udp: at, ..plan },
    };
    let traffic = Traffic::start(world.client().namespace(), plan).unwrap();
    nft(&world, &moved);
    await_packets(&world, "passed", 100);
    traffic.stop().unwrap()
}

#[test]
fn flows_and_associations_that_change_their_backend_show_as_moved() {
    let report = moved(Protocol::Udp);
    assert_eq!((report.udp_moved, report.udp_lost), (10, 0), "{report}");
    let report = moved(Protocol::Sctp);
    assert_eq!((report.sctp_moved, report.sctp_lost), (10, 0), "{report}");
}

#[test]
fn traffic_to_nowhere_does_not_start() {
    let (world, plan) = world_and_plan(Family::Ipv4);
    let nowhere = SocketAddr::new(world.pods()[1].address(Family::Ipv4), PORT);
    let ready_within = Duration::from_millis(300);
    let plan = TrafficPlan { udp: Some(nowhere), tcp: None, ready_within, ..plan };
    let error = Traffic::start(world.client().namespace(), plan).unwrap_err();
    assert!(matches!(error, TestkitError::TrafficNotReady { kind: "flows", .. }), "{error}");
}

#[test]
fn a_process_is_seen_starting_asked_to_end_and_killed() {
    let world = World::builder().pods(0).remote_pods(0).build().unwrap();
    let start = |script: &str| {
        PortolanProcess::start(world.node().namespace(), Path::new("/bin/sh"), &["-c", script]).unwrap()
    };
    let mut polite = start(
        "trap 'echo bye >&2; exit 3' TERM; ip -o link >&2; echo ready >&2; while :; do sleep 0.01; done",
    );
    polite.wait_for_output(PATIENCE, "ready").unwrap();
    assert!(polite.output().contains("eth1@"), "inside the node's namespace: {}", polite.output());
    assert!(polite.resident_high_water().unwrap() >= polite.resident().unwrap().min(1));
    assert_eq!(polite.terminate(PATIENCE).unwrap().code(), Some(3));
    assert!(polite.output().ends_with("bye\n"), "{}", polite.output());

    let mut stubborn = start("trap '' TERM; echo ready; exec sleep 1000");
    stubborn.wait_for_output(PATIENCE, "ready").unwrap();
    assert!(stubborn.terminate(Duration::from_millis(50)).is_err());
    assert_eq!(stubborn.kill().unwrap().signal(), Some(9));
}

#[test]
fn a_process_that_ends_early_fails_the_wait_with_its_output() {
    let world = World::builder().pods(0).remote_pods(0).build().unwrap();
    let script = ["-c", "echo no such flag >&2; exit 2"];
    let mut process =
        PortolanProcess::start(world.node().namespace(), Path::new("/bin/sh"), &script).unwrap();
    let error = process.wait_until(PATIENCE, "readiness", || false).unwrap_err();
    assert!(
        matches!(&error, TestkitError::ProcessEnded { stderr, .. } if stderr == "no such flag\n"),
        "{error}"
    );
}
