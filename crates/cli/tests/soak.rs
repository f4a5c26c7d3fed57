//! The agent while Services come and go without end: its memory and descriptors, the kernel's rules and connection table, and
//! the UDP flows of Services that are gone. Every run includes some seconds of it. `PORTOLAN_SOAK_SECONDS=300` makes it longer
//! and `--nocapture` prints the figures. Needs root, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use portolan_serve::Resource;
use portolan_testkit::{
    Family, Namespace, Pod, PortolanProcess, Probe, Protocol, Traffic, eventually, is_emulated,
};
use serde_json::Value;

use common::kernel::nft;
use common::load::{assert_lossless, busy_services, plan, without_renewed};
use common::{Cluster, PATIENCE, backend, objects};

const SHORT: u64 = 15;
/// Services of a round, in the short run and in a longer one. Each round waits some seconds for what is removed late.
const SERVICES: [usize; 2] = [16, 120];
/// Edits of the endpoints of each Service, after it was created.
const EDITS: [usize; 2] = [4, 24];
/// Other writes of the API for each Service of a round: it and its slice are created and deleted, and the slice is edited twice for
/// flows.
const OTHER_WRITES: usize = 6;
/// Memory is compared with that after one in this many parts of the run.
const WARM: u32 = 5;
/// Rounds that are made from then on, also on a slow machine.
const ROUNDS_AFTER: u32 = 3;
/// Growth that is allowed from then on, in bytes, for the allocator.
const GROWTH: u64 = 4 << 20;
/// The address that the load uses all the time.
const LOAD: &str = "198.51.100.7:80";
/// The number of connections that the kernel tracks in the network namespace of the reading thread.
const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// Most tracked connections of the agent itself: those of its watches and Events, each until two minutes after its end.
const OF_THE_AGENT: usize = 16;

/// The number of objects of each kind.
type Counts = BTreeMap<String, usize>;

#[test]
fn nothing_grows_in_nftables_mode() {
    nothing_grows("nftables");
}

#[test]
fn nothing_grows_in_iptables_mode() {
    nothing_grows("iptables");
}

fn nothing_grows(mode: &str) {
    let seconds = std::env::var("PORTOLAN_SOAK_SECONDS").map_or(SHORT, |text| text.parse().unwrap());
    let whole = Duration::from_secs(seconds);
    let is_long = usize::from(seconds > SHORT);
    let (services, edits) = (SERVICES[is_long], EDITS[is_long]);
    let writes = services * (edits + OTHER_WRITES);
    let cluster = Cluster::new();
    busy_services(&cluster);
    let proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
    let (node, client) = (cluster.world.node().namespace(), cluster.world.client().namespace());
    // A UDP flow that the agent must delete does not expire before the test has ended.
    for timeout in ["udp_timeout", "udp_timeout_stream"] {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_{timeout}");
        node.run(move || std::fs::write(path, "86400")).unwrap().unwrap();
    }
    // Entries of UDP flows that end would stay.
    let kept = without_renewed(plan(LOAD));
    let load = vec![("client to load balancer", Traffic::start(client, kept).unwrap())];
    let kernel = count(&rules(node, mode), mode);

    let (mut descriptors, mut peak) = (0, 0_usize);
    let (started, mut warm, mut rounds, mut rounds_after) = (Instant::now(), None, 0, 0);
    while started.elapsed() < whole || rounds_after < ROUNDS_AFTER {
        rounds += 1;
        round(&cluster, rounds, services, edits);
        assert_eq!(settled(node, mode, &kernel), kernel, "{mode}, round {rounds}: {}", proxy.output());
        peak = peak.max(tracked(node));
        if rounds == 1 {
            // Some are opened only when the first changes are written.
            descriptors = self::descriptors(&proxy);
        }
        if warm.is_some() {
            rounds_after += 1;
        } else if started.elapsed() >= whole / WARM {
            warm = proxy.resident();
        }
        if rounds % 20 == 0 {
            let (changes, resident) = (rounds * writes, proxy.resident().unwrap() >> 10);
            eprintln!("{mode}: {changes} changes in {:.0?}: {resident} KiB", started.elapsed());
        }
    }
    let (took, warm, last) = (started.elapsed(), warm.unwrap(), proxy.resident().unwrap());
    let (mut left, most) = (0, most_tracked());
    let is_flat = eventually(PATIENCE, "no more tracked connections than those of the load", || {
        left = tracked(node);
        left <= most
    });
    let changes = rounds * writes;
    let a_second = f64::from(u32::try_from(changes).unwrap()) / took.as_secs_f64();
    eprintln!(
        "{mode}: {changes} changes in {took:.0?}, {a_second:.1} a second; resident {} KiB, then {} KiB; \
         {descriptors} descriptors; {peak} tracked connections at most, {left} at the end; {kernel:?}",
        warm >> 10,
        last >> 10
    );
    assert_lossless(load);
    assert!(is_flat.is_ok(), "{mode}: {left} tracked connections, at most {most} wanted");
    assert!(last <= warm + GROWTH, "{mode}: from {warm} to {last} bytes after {rounds} rounds");
    let outcome = eventually(PATIENCE, "no more descriptors", || self::descriptors(&proxy) <= descriptors);
    assert!(outcome.is_ok(), "{mode}: from {descriptors} to {} descriptors", self::descriptors(&proxy));
}

/// Creates Services with names and addresses of this round, of IPv4 and IPv6 by turns, edits their endpoints, and deletes them. The
/// last edits take away the endpoint of a UDP flow of each.
fn round(cluster: &Cluster, number: usize, services: usize, edits: usize) {
    let (pods, client) = (cluster.all_pods(), cluster.world.client().namespace());
    // The addresses are used again after 200 rounds.
    let networks = [format!("10.96.{}.", 20 + number % 200), format!("fd00:96::{:x}", 20 + number % 200)];
    let address = |index: usize| match index % 2 {
        0 => format!("{}{index}", networks[0]),
        _ => format!("{}{index:02x}", networks[1]),
    };
    let addresses: Vec<IpAddr> = (0..services).map(|index| address(index).parse().unwrap()).collect();
    let name = |index: usize| format!("soak-{number}-{index}");
    let service =
        |(index, ip): (usize, &IpAddr)| (name(index), objects::cluster_ip(&name(index), &ip.to_string()));
    let services: Vec<(String, Value)> = addresses.iter().enumerate().map(service).collect();
    let endpoints = |of: &(String, Value), pods: &[&Pod]| {
        cluster.apply(objects::slice(&of.0, pods, &objects::ports(&of.1)));
    };
    for (index, service) in services.iter().enumerate() {
        cluster.apply(service.1.clone());
        (0..=edits).for_each(|edit| endpoints(service, &pods[(index + edit) % pods.len()..]));
        endpoints(service, &pods[..1]);
    }
    let to = addresses.iter().map(|&ip| Probe::new(Protocol::Udp, SocketAddr::new(ip, 80)));
    let probes: Vec<Probe> = to.collect();
    let former = |ip: &IpAddr| Some(backend(pods[0], *ip));
    let outcome = eventually(PATIENCE, "answers of the only endpoint", || {
        let results = client.probe_many(&probes).unwrap();
        results.iter().zip(&addresses).all(|(result, ip)| result.backend() == former(ip))
    });
    assert!(outcome.is_ok(), "round {number}");
    for service in &services {
        endpoints(service, &pods[1..2]);
    }
    let node = cluster.world.node().namespace();
    let is_stale = |flow: &str| {
        networks.iter().any(|network| flow.contains(&format!(" dst={network}")))
            && Family::BOTH.iter().any(|&family| flow.contains(&format!(" src={} ", pods[0].address(family))))
    };
    let mut flows = String::new();
    let outcome = eventually(PATIENCE, "the end of stale flows", || {
        flows = udp_flows(node);
        !flows.lines().any(is_stale)
    });
    assert!(outcome.is_ok(), "round {number}: {flows}");
    for (name, _) in &services {
        cluster.delete(Resource::Service, name);
        cluster.delete(Resource::EndpointSlice, &format!("{name}-1"));
    }
}

/// Waits until the rules have as much as before, and returns how much they have at the end.
fn settled(node: &Namespace, mode: &str, before: &Counts) -> Counts {
    let mut seen = Counts::new();
    // What is unused is removed a moment later. If it stays, the caller compares.
    let _ = eventually(PATIENCE, "the former state", || {
        seen = count(&rules(node, mode), mode);
        seen == *before
    });
    seen
}

fn rules(node: &Namespace, mode: &str) -> String {
    match mode {
        "nftables" => nft(node, "-j list ruleset"),
        _ => ["iptables-nft-save", "ip6tables-nft-save"].map(|save| node.output(save, &[]).unwrap()).concat(),
    }
}

/// Counts chains, rules, sets, maps and their elements in a listing.
fn count(text: &str, mode: &str) -> Counts {
    let mut counts = Counts::new();
    let mut add = |kind: &str, count: usize| *counts.entry(kind.to_owned()).or_default() += count;
    if mode == "iptables" {
        add("chains", text.lines().filter(|line| line.starts_with(':')).count());
        add("rules", text.lines().filter(|line| line.starts_with("-A ")).count());
        return counts;
    }
    let listing: Value = serde_json::from_str(text).unwrap();
    for object in listing["nftables"].as_array().unwrap() {
        for (kind, value) in object.as_object().unwrap() {
            add(kind, 1);
            add("elements", value["elem"].as_array().map_or(0, Vec::len));
        }
    }
    counts
}

/// Returns the list of the UDP flows of both families.
fn udp_flows(node: &Namespace) -> String {
    ["ipv4", "ipv6"]
        .map(|family| node.output("conntrack", &["-L", "-p", "udp", "-f", family]).unwrap())
        .concat()
}

/// Returns how many connections the node's kernel tracks.
fn tracked(node: &Namespace) -> usize {
    // An expired entry counts until the table is listed, or for up to a minute.
    udp_flows(node);
    let count = node.run(|| std::fs::read_to_string(TRACKED)).unwrap().unwrap();
    count.trim().parse().unwrap()
}

/// Returns how many connections the node's kernel may track while the load goes on and no Service of a round is left. It does
/// not depend on the number of rounds, whose flows the agent has deleted by then.
fn most_tracked() -> usize {
    let load = plan(LOAD);
    // The load ends a connection by a reset when it is answered. The kernel then keeps the entry for ten seconds
    // (`nf_conntrack_tcp_timeout_close`). A connection without an answer for three seconds, thirty on an emulated machine,
    // counts as lost and fails the test. So only connections of the last 13 seconds, or 40, have an entry.
    let seconds = if is_emulated() { 40 } else { 13 };
    let connections = seconds * usize::try_from(load.connections_per_second).unwrap();
    connections + load.streams + load.udp_flows + OF_THE_AGENT
}

fn descriptors(proxy: &PortolanProcess) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", proxy.id())).unwrap().count()
}
