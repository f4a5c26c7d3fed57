//! `portolan explain` names the reverse-path filter that drops a packet, and the kernel drops it. Needs root and nft, and fails
//! without.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::process::Command;

use common::{BINARY, Cluster, at, objects, reaches};
use portolan_testkit::{Probe, ProbeResult, Protocol};
use serde_json::{Value, json};

const CLUSTER_IP: &str = "10.96.0.10";
/// A second address of the client. Its packets reach the node through eth1, and the node's route back leads through `aside`.
const ELSEWHERE: &str = "203.0.113.77";

/// Connects the node with the client a second time.
fn connect_aside(cluster: &Cluster) {
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    let peer = client.path();
    node.ip(&format!("link add aside type veth peer name aside netns {peer}\n")).unwrap();
    client.ip(&format!("link set aside up\naddr add {ELSEWHERE}/32 dev lo\n")).unwrap();
    node.ip(&format!("link set aside up\nroute add {ELSEWHERE}/32 dev aside\n")).unwrap();
    // The answers leave the node for an address that is not in the subnet of the interface.
    let source = cluster.world.node().address(portolan_model::Family::Ipv4);
    node.ip(&format!("addr add {source}/32 dev aside\n")).unwrap();
}

fn filter(cluster: &Cluster, interface: &str, value: &str) {
    let setting = (format!("net/ipv4/conf/{interface}/rp_filter"), value);
    cluster.world.node().namespace().write_sysctls(&[setting]).unwrap();
}

/// Returns the exit status and the report about the packet from elsewhere, with an option that names the interface.
fn explain(cluster: &Cluster, more: &[&str]) -> (i32, Value) {
    let socket = format!("--control-socket={}", cluster.control_socket().display());
    let to = format!("{CLUSTER_IP}:80");
    let arguments = [&["explain", ELSEWHERE, &to, &socket, "-o=json"], more].concat();
    let run = || Command::new(BINARY).args(&arguments).output().unwrap();
    let output = cluster.world.node().namespace().run(run).unwrap();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), report)
}

fn probe(cluster: &Cluster) -> ProbeResult {
    let probe = Probe::new(Protocol::Tcp, at(&format!("{CLUSTER_IP}:80"))).from(ELSEWHERE.parse().unwrap());
    cluster.world.client().namespace().probe(probe).unwrap()
}

#[test]
fn the_filter_that_drops_a_packet_is_named() {
    let cluster = Cluster::new();
    let pods = cluster.all_pods();
    let _proxy = cluster.proxy();
    cluster.service(objects::cluster_ip("web", CLUSTER_IP), &pods[..1]);
    let client = cluster.world.client();
    reaches(client.namespace(), Protocol::Tcp, at(&format!("{CLUSTER_IP}:80")), &pods[..1]);
    connect_aside(&cluster);

    let (status, report) = explain(&cluster, &["--interface=eth1"]);
    assert_eq!((status, &report["reversePath"]), (0, &Value::Null), "{report:#}");
    assert!(matches!(probe(&cluster), ProbeResult::Reached(_)), "without a filter the packet arrives");

    for (interface, setting) in [("eth1", "net.ipv4.conf.eth1"), ("all", "net.ipv4.conf.all")] {
        filter(&cluster, interface, "1");
        let (status, report) = explain(&cluster, &["--interface=eth1"]);
        assert_eq!((status, &report["outcome"]), (3, &json!("dropped")), "{report:#}");
        let found = &report["reversePath"][0];
        assert_eq!((&found["drops"], &found["certain"]), (&json!("packet"), &json!(true)), "{report:#}");
        assert_eq!((&found["interface"], &found["route"]), (&json!("eth1"), &json!("aside")));
        assert_eq!(found["setting"], format!("{setting}.rp_filter=1"));
        assert_eq!(probe(&cluster), ProbeResult::TimedOut, "the packet is dropped");
        // Where the packet arrives is not guessed.
        let (status, report) = explain(&cluster, &[]);
        assert_eq!((status, &report["reversePath"]), (0, &Value::Null), "{report:#}");
        let (_, report) = explain(&cluster, &["--interface=aside"]);
        assert_eq!(report["reversePath"], Value::Null, "the route back leads there: {report:#}");
        filter(&cluster, interface, "0");
    }

    filter(&cluster, "eth1", "2");
    let (status, report) = explain(&cluster, &["--interface=eth1"]);
    assert_eq!((status, &report["reversePath"]), (0, &Value::Null), "{report:#}");
    assert!(matches!(probe(&cluster), ProbeResult::Reached(_)), "a loose filter wants any route");
}
