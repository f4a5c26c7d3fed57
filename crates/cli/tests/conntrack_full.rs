//! The kernel's connection table is full. What is open goes on, the agent follows the API server, `portolan doctor` says why new
//! connections fail, and an agent that starts meanwhile loses nothing.
//!
//! Only the machine itself can change the limit of the table, and it is that of all namespaces. So these tests run in a guest
//! of `tests/vm`: `make vm-test`.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;

use portolan_testkit::{Namespace, Probe, ProbeResult, Protocol, TrafficPlan, eventually};
use serde_json::{Value, json};

use common::load::{self, busy_services_with_sctp, plan, start_plans};
use common::{BINARY, Cluster, PATIENCE, at, differences, in_sync, ipvs, logged, objects, reaches};

const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
/// Set in guests of `tests/vm`.
const GUEST: &str = "PORTOLAN_TEST_GUEST";

#[test]
#[ignore = "it changes the limit of the whole machine: `make vm-test` runs it in a guest"]
fn in_nftables_mode() {
    a_full_table_stops_new_connections_only(&Cluster::new(), "nftables");
}

#[test]
#[ignore = "it changes the limit of the whole machine: `make vm-test` runs it in a guest"]
fn in_iptables_mode() {
    a_full_table_stops_new_connections_only(&Cluster::new(), "iptables");
}

#[test]
#[ignore = "it changes the limit of the whole machine: `make vm-test` runs it in a guest"]
fn in_ipvs_mode() {
    if let Some(cluster) = ipvs::cluster() {
        a_full_table_stops_new_connections_only(&cluster, "ipvs");
    }
}

fn a_full_table_stops_new_connections_only(cluster: &Cluster, mode: &str) {
    assert!(std::env::var_os(GUEST).is_some(), "`make vm-test` runs it in a guest");
    let configuration = format!("mode: {mode}\n");
    let [pod, other] = cluster.world.pods() else { panic!("two pods") };
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    busy_services_with_sctp(cluster);
    let mut proxy = cluster.proxy_with(&configuration);
    let open = |to: &str| {
        load::with_sctp(TrafficPlan { connections_per_second: 0, ..load::without_renewed(plan(to)) })
    };
    let load = start_plans(cluster, open);
    until_watches_are_tracked(cluster);
    until_assured(node);

    let full = FullTable::begin();
    dropped(node, client, at("198.51.100.7:80"));
    dropped(node, client, at("192.168.100.1:30080"));
    dropped(node, pod.namespace(), at("10.96.0.10:80"));
    doctor_reports(node);
    // The agent's connections to the API server were open before, so changes still reach it.
    cluster.service(objects::cluster_ip("meanwhile", "10.96.3.1"), &[pod]);
    // IPVS has no transactions: a virtual server comes before its endpoints.
    let last = if mode == "ipvs" { "10.96.3.1:80 -r" } else { "10.96.3.1" };
    let programmed = eventually(PATIENCE, "the rules of a new Service", || rules(node, mode).contains(last));
    assert!(programmed.is_ok(), "{}", proxy.output());

    // A new agent cannot connect to the API server.
    let before = rules(node, mode);
    proxy.kill().unwrap();
    let mut proxy = cluster.start_proxy(&configuration);
    logged(&mut proxy, "watch interrupted", 1);
    cluster.service(objects::cluster_ip("later", "10.96.3.2"), &[other]);
    assert_eq!(rules(node, mode), before, "{}", proxy.output());
    drop(full);

    in_sync(&mut proxy);
    for (to, pod) in [("10.96.3.1:80", pod), ("10.96.3.2:80", other)] {
        reaches(client, Protocol::Tcp, at(to), &[pod]);
    }
    let plan = differences(cluster);
    assert_eq!(plan.status.code(), Some(0), "{}", String::from_utf8_lossy(&plan.stdout));
    for (name, traffic) in load {
        let report = traffic.stop().unwrap();
        assert!(report.is_lossless(), "{mode}: {name}: {report}");
    }
}

/// Checks that the node drops the packets of a new connection.
fn dropped(node: &Namespace, from: &Namespace, to: SocketAddr) {
    let before = drops(node);
    let result = from.probe(Probe::new(Protocol::Tcp, to).expecting_silence()).unwrap();
    assert_eq!(result, ProbeResult::TimedOut, "{to} from {}", from.name());
    let counted = eventually(PATIENCE, "a drop", || drops(node) > before);
    assert!(counted.is_ok(), "{to} from {}", from.name());
}

/// Returns how many packets the kernel dropped because it could not track them.
fn drops(node: &Namespace) -> u64 {
    let counters = node.output("conntrack", &["-S"]).unwrap();
    let of_processors = counters.split_whitespace().filter_map(|word| word.strip_prefix("drop="));
    of_processors.map(|count| count.parse::<u64>().unwrap()).sum()
}

fn doctor_reports(node: &Namespace) {
    let mut doctor = node.command(BINARY);
    let doctor = doctor.args(["doctor", "-o", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let report: Value = serde_json::from_slice(&doctor.wait_with_output().unwrap().stdout).unwrap();
    let mut findings = report["findings"].as_array().unwrap().iter();
    let found = findings.find(|found| found["code"] == "conntrack-nearly-full");
    assert_eq!(found.map(|found| &found["severity"]), Some(&"error".into()), "{report:#}");
}

/// A connection table without room for new connections. Dropping this restores the table's former limit.
struct FullTable {
    max: String,
}

impl FullTable {
    fn begin() -> Self {
        let max = fs::read_to_string(MAX).unwrap();
        fs::write(MAX, "1").unwrap();
        Self { max }
    }
}

impl Drop for FullTable {
    fn drop(&mut self) {
        fs::write(MAX, &self.max).unwrap();
    }
}

/// Changes objects until the agent's watches of Services and EndpointSlices have assured entries. The agent opens its watches
/// before it writes rules, and without rules the kernel tracks nothing.
fn until_watches_are_tracked(cluster: &Cluster) {
    let port = format!("port={} ", cluster.address.port());
    let mut changes = 0;
    let tracked = eventually(PATIENCE, "tracked watches", || {
        changes += 1;
        let mut service = objects::cluster_ip("before", "10.96.3.3");
        service["metadata"]["labels"] = json!({"changes": changes.to_string()});
        cluster.service(service, &[&cluster.world.pods()[changes % 2]]);
        let entries = cluster.world.node().namespace().output("conntrack", &["-L", "-f", "ipv4"]).unwrap();
        let is_assured = |line: &&str| line.contains(&port) && line.contains("[ASSURED]");
        entries.lines().filter(is_assured).count() >= 2
    });
    assert!(tracked.is_ok());
}

/// Waits until all entries of the load are assured: the kernel never removes assured entries to make room for others.
fn until_assured(node: &Namespace) {
    let mut entries = String::new();
    let assured = eventually(PATIENCE, "assured entries", || {
        entries =
            ["ipv4", "ipv6"].map(|family| node.output("conntrack", &["-L", "-f", family]).unwrap()).concat();
        let of_services = |line: &&str| {
            ["dport=80 ", "dport=30080 ", "dport=30081 "].iter().any(|port| line.contains(port))
        };
        let mut lines = entries.lines().filter(of_services).peekable();
        lines.peek().is_some() && lines.all(|line| line.contains("[ASSURED]"))
    });
    assert!(assured.is_ok(), "{entries}");
}

/// Returns the rules of a mode as its tools print them, without counters.
fn rules(node: &Namespace, mode: &str) -> String {
    let run = |program, arguments: &[&str]| node.output(program, arguments).unwrap();
    match mode {
        "nftables" => ["ip", "ip6"].map(|family| run("nft", &["list", "table", family, "portolan"])).concat(),
        "iptables" => {
            let saved = ["iptables-nft-save", "ip6tables-nft-save"].map(|program| run(program, &[])).concat();
            saved.lines().filter(|line| line.starts_with("-A ")).collect::<Vec<_>>().join("\n")
        }
        _ => run("ipvsadm", &["--save", "--numeric"]),
    }
}
