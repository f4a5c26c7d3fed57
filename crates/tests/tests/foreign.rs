//! Rules of other programs: a packet is dropped if and only if the explanation says so, whatever the hook, the mode and the
//! place of the endpoint.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test program: its helpers fail the test, too"
)]

mod explained;

use std::net::{IpAddr, SocketAddr};

use portolan_doctor::gather;
use portolan_explain::{Outcome, Sender as Client};
use portolan_firewall::Ruleset;
use portolan_model::object::Kind;
use portolan_model::world::Edit;
use portolan_model::{Family, Protocol};
use portolan_node::sysctl::Host;
use portolan_testkit::{Namespace, Probe, ProbeResult, probe_many};
use portolan_tests::{At, Cluster, Mode, Sender, SenderLocation, TARGET_PORTS, in_every_mode, service};
use serde_json::json;

in_every_mode!(a_packet_is_dropped_if_the_explanation_says_so);

/// Set where the machine is emulated.
const EMULATED: &str = "PORTOLAN_TEST_EMULATED";
/// Hooks, with priorities on both sides of each translation.
const CHAINS: [(&str, i32); 8] = [
    ("prerouting", -290),
    ("prerouting", 10),
    ("input", 10),
    ("input", 150),
    ("forward", 10),
    ("output", -290),
    ("output", 10),
    ("postrouting", 10),
];

fn a_packet_is_dropped_if_the_explanation_says_so(mode: Mode) {
    // With a relay there are two connections, and the client's may be open although that to the endpoint is not.
    if mode.relays() {
        return;
    }
    let mut cluster = Cluster::new(mode);
    let (mut dropped, mut reached) = (0, 0);
    for (number, endpoint) in all_endpoints(&cluster).into_iter().enumerate() {
        // Each place with one family is enough where everything takes long.
        if std::env::var_os(EMULATED).is_some() && number % 2 == 1 {
            continue;
        }
        cluster.put(&service().external(), "");
        cluster.apply(&[slice(endpoint)]);
        let at = [At::ClusterIp, At::ExternalIp][number % 2];
        for chain in CHAINS {
            for is_endpoint in [false, true] {
                let counts = check(&cluster, at, &Planted { chain, endpoint, is_endpoint });
                dropped += counts[0];
                reached += counts[1];
            }
        }
    }
    assert!(dropped > 60 && reached > 60, "{dropped} dropped, {reached} reached");
}

/// Returns a pod of the node, a pod of another node, and the node itself, where something responds, in both families.
fn all_endpoints(cluster: &Cluster) -> [SocketAddr; 6] {
    let world = cluster.world();
    let own =
        Family::BOTH.map(|family| SocketAddr::new(world.node().addresses().of(family), TARGET_PORTS[0]));
    let pod = |pods: &[portolan_testkit::Pod]| {
        Family::BOTH.map(|family| SocketAddr::new(pods[0].address(family), TARGET_PORTS[0]))
    };
    let [local, [remote4, remote6]] = [pod(world.pods()), pod(world.remote_pods())];
    // The first, third and fifth are of every place and of both families.
    [local[0], local[1], remote6, remote4, own[0], own[1]]
}

/// Returns the slice of `default/web` with one endpoint.
fn slice(endpoint: SocketAddr) -> Edit {
    let family = Family::of(endpoint.ip());
    let port = |protocol: &str| json!({ "name": protocol.to_lowercase(), "protocol": protocol, "port": endpoint.port() });
    let slice = json!({
        "metadata": {
            "namespace": "default",
            "name": format!("web-{}", family.to_string().to_lowercase()),
            "resourceVersion": "999",
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": family.to_string(),
        "ports": [port("TCP"), port("UDP")],
        "endpoints": [{ "addresses": [endpoint.ip()], "conditions": { "ready": true } }],
    });
    Edit::Upsert(Kind::EndpointSlice, slice)
}

/// A rule of another program. It drops what goes to an address.
#[derive(Debug)]
struct Planted {
    chain: (&'static str, i32),
    endpoint: SocketAddr,
    /// Whether the address is the endpoint's instead of the Service's.
    is_endpoint: bool,
}

impl Planted {
    fn write(&self, node: &Namespace, service: IpAddr) {
        let address = if self.is_endpoint { self.endpoint.ip() } else { service };
        let protocol = if address.is_ipv4() { "ip" } else { "ip6" };
        let (hook, priority) = self.chain;
        let table = format!(
            "add table inet mine; delete table inet mine; add table inet mine; \
             add chain inet mine c {{ type filter hook {hook} priority {priority}; }}; \
             add rule inet mine c meta l4proto {{ tcp, udp }} {protocol} daddr {address} drop"
        );
        node.output("nft", &[&table]).unwrap();
    }
}

/// Sends packets past a rule. Returns how many were dropped, and how many arrived.
fn check(cluster: &Cluster, at: At, planted: &Planted) -> [usize; 2] {
    let node = cluster.world().node().namespace();
    let destination = at.socket(Family::of(planted.endpoint.ip()));
    planted.write(node, destination.ip());
    let (rules, unread) = node.run(|| gather::ruleset(&Host::default())).unwrap();
    assert_eq!(unread, [], "{planted:?}");
    let sent = probes(cluster, &rules, destination, planted.endpoint);
    let probes: Vec<(&Namespace, Probe)> =
        sent.iter().map(|Sent { sender, probe, .. }| (&sender.namespace, *probe)).collect();
    let mut counts = [0, 0];
    for (result, Sent { sender, probe, outcome }) in probe_many(&probes).unwrap().iter().zip(&sent) {
        let fits = match result {
            ProbeResult::TimedOut => *outcome == Outcome::Dropped,
            ProbeResult::Reached(at) => *outcome == Outcome::Reachable && at.backend == planted.endpoint,
            _ => false,
        };
        let name = &sender.name;
        assert!(fits, "{planted:?}: {name} {probe:?}: explained as {outcome:?}, but {result:?}");
        counts[usize::from(*outcome == Outcome::Reachable)] += 1;
    }
    node.output("nft", &["delete table inet mine"]).unwrap();
    counts
}

/// A packet, and the outcome that the explanation gives it.
struct Sent<'a> {
    sender: &'a Sender,
    probe: Probe,
    outcome: Outcome,
}

/// Returns packets of every place to a Service.
fn probes<'a>(
    cluster: &'a Cluster,
    rules: &Ruleset,
    destination: SocketAddr,
    endpoint: SocketAddr,
) -> Vec<Sent<'a>> {
    let mut sent = Vec::new();
    for name in ["pod", "remote", "client", "node"] {
        let sender = cluster.sender(name);
        let source = sender.address(Family::of(destination.ip()));
        // Answers to the endpoint would meet the rule, too.
        if source == endpoint.ip() {
            continue;
        }
        let from = if sender.place == SenderLocation::Node { Client::Node } else { Client::Address(source) };
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let outcome =
                explained::explain(cluster, Some(rules), from.clone(), None, (destination, protocol)).outcome;
            let probe = Probe::new(protocol, destination).from(source);
            let probe = if outcome == Outcome::Dropped { probe.expecting_silence() } else { probe };
            sent.push(Sent { sender, probe, outcome });
        }
    }
    sent
}
