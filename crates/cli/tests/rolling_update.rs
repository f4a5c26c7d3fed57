//! A rolling update of a dual-stack Service with the external traffic policy Local, in every mode, under load in both families:
//! the health check node port, endpoints that terminate, and connections that are open meanwhile. Needs root, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use portolan_testkit::{Pod, Protocol, Traffic, eventually, is_emulated};
use serde_json::{Value, json};

use common::http::get;
use common::load::{assert_lossless, assert_lossless_but_answers, dual_stack, dual_stack_slices, plan};
use common::{Cluster, PATIENCE, at, ipvs, objects, page, reaches};

const LOAD_BALANCER: &str = "198.51.100.7:80";
const LOAD_BALANCER_IPV6: &str = "[2001:db8:100::7]:80";
const NODE_PORT: &str = "192.168.100.1:30080";
const CLUSTER_IP_IPV6: &str = "[fd00:96::10]:80";
/// Replies of an endpoint that is removed may be on their way when its UDP flows are deleted.
const ANSWERS_ON_THEIR_WAY: u64 = 3;
/// IPVS drops packets of a flow whose endpoint has gone until the flow's entry in conntrack is deleted.
const DROPPED_BY_IPVS: u64 = 10;
/// In an emulated guest of a busy machine that takes seconds, in each of which a flow has ten datagrams.
const DROPPED_BY_IPVS_EMULATED: u64 = 50;

#[test]
fn in_nftables_mode() {
    nothing_is_lost(&Cluster::new(), "nftables");
}

#[test]
fn in_iptables_mode() {
    nothing_is_lost(&Cluster::new(), "iptables");
}

#[test]
fn in_userspace_mode() {
    nothing_is_lost(&Cluster::new(), "userspace");
}

#[test]
fn in_ipvs_mode() {
    if let Some(cluster) = ipvs::cluster() {
        nothing_is_lost(&cluster, "ipvs");
    }
}

/// An endpoint of a rolling update.
#[derive(Clone, Copy)]
enum Endpoint<'a> {
    Ready(&'a Pod),
    /// It still serves, but is not ready.
    Terminating(&'a Pod),
}

use Endpoint::{Ready, Terminating};

impl<'a> Endpoint<'a> {
    const fn pod(&self) -> &'a Pod {
        match self {
            Ready(pod) | Terminating(pod) => pod,
        }
    }
}

fn nothing_is_lost(cluster: &Cluster, mode: &str) {
    let [old, new] = cluster.world.pods() else { panic!("two pods") };
    cluster.apply(service());
    update(cluster, &[Ready(old)]);
    let _proxy = cluster.proxy_with(&format!("mode: {mode}\n"));
    assert_eq!(page(cluster, "/proxyMode"), mode);
    expect(cluster, &[old], 1);
    let (load, until_removed) = (start(cluster), start(cluster));

    update(cluster, &[Ready(old), Ready(new)]);
    expect(cluster, &[old, new], 2);
    // New connections avoid the endpoint that terminates. Its open ones and its UDP flows stay until it is removed.
    update(cluster, &[Terminating(old), Ready(new)]);
    expect(cluster, &[new], 1);
    assert_stayed(until_removed, mode);
    update(cluster, &[Ready(new)]);
    expect(cluster, &[new], 1);

    // No endpoint is ready: the load balancer learns it from the health check, and what it still sends is served.
    let until_removed = start(cluster);
    update(cluster, &[Terminating(new)]);
    expect(cluster, &[new], 0);
    update(cluster, &[Terminating(new), Ready(old)]);
    expect(cluster, &[old], 1);
    assert_stayed(until_removed, mode);
    update(cluster, &[Ready(old)]);
    expect(cluster, &[old], 1);
    assert_lossless_but_answers(load, lost_at_most(mode), mode);
}

/// Returns the number of datagrams without an answer that is no failure.
fn lost_at_most(mode: &str) -> u64 {
    match mode {
        "ipvs" if is_emulated() => DROPPED_BY_IPVS_EMULATED,
        "ipvs" => DROPPED_BY_IPVS,
        _ => ANSWERS_ON_THEIR_WAY,
    }
}

/// Stops the load and asserts that nothing was lost, and that every UDP flow has kept its endpoint. In the userspace and
/// IPVS modes, the flows of an endpoint that terminates go to one that is ready.
fn assert_stayed(load: Vec<(&'static str, Traffic)>, mode: &str) {
    if ["userspace", "ipvs"].contains(&mode) {
        assert_lossless_but_answers(load, lost_at_most(mode), mode);
    } else {
        assert_lossless(load);
    }
}

fn service() -> Value {
    let service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    let mut service = dual_stack(service, "fd00:96::10", "2001:db8:100::7");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    service
}

/// Writes the EndpointSlices of the Service.
fn update(cluster: &Cluster, endpoints: &[Endpoint<'_>]) {
    let pods: Vec<&Pod> = endpoints.iter().map(Endpoint::pod).collect();
    for mut slice in dual_stack_slices(&service(), &pods) {
        for (endpoint, object) in endpoints.iter().zip(slice["endpoints"].as_array_mut().unwrap()) {
            if matches!(endpoint, Terminating(_)) {
                object["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
            }
        }
        cluster.apply(slice);
    }
}

/// Waits until new connections from outside reach exactly these pods, and the health check has this number of endpoints.
fn expect(cluster: &Cluster, pods: &[&Pod], ready: usize) {
    let client = cluster.world.client().namespace();
    for to in [LOAD_BALANCER, LOAD_BALANCER_IPV6, NODE_PORT] {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            reaches(client, protocol, at(to), pods);
        }
    }
    let node = cluster.world.node().namespace();
    let status = if ready == 0 { 503 } else { 200 };
    let mut last = String::new();
    let outcome = eventually(PATIENCE, "the health check", || {
        let Some(answer) = get(node, at("192.168.100.1:32000"), "/") else { return false };
        last = format!("{} {}", answer.status, answer.body);
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        answer.status == status && body["localEndpoints"] == json!(ready)
    });
    assert!(outcome.is_ok(), "{ready}: {last}");
}

/// Starts TCP streams, TCP connections and UDP flows from outside and from the other pods.
fn start(cluster: &Cluster) -> Vec<(&'static str, Traffic)> {
    let (client, remote) = (cluster.world.client().namespace(), cluster.world.remote_pods()[0].namespace());
    let ways = [
        ("client to load balancer", client, LOAD_BALANCER),
        ("client to load balancer, IPv6", client, LOAD_BALANCER_IPV6),
        ("client to node port", client, NODE_PORT),
        ("pod to cluster IP, IPv6", remote, CLUSTER_IP_IPV6),
    ];
    ways.map(|(name, from, to)| (name, Traffic::start(from, plan(to)).unwrap())).into()
}
