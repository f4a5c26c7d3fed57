//! A world with traffic to a Service, and a data plane on its node.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_engine::Driven;
use portolan_iptables::{Iptables, IptablesOptions, Programs, Variant};
use portolan_model::{Change, Family, Forwarding, LocalDetector, Protocol, Settings};
use portolan_testkit::{Namespace, Traffic, TrafficPlan, World};

use super::example::{cluster_ip, put, settings};

/// The endpoints of the Service in use: two pods on this node and one on another.
pub(crate) const ENDPOINTS: [&str; 3] = ["10.244.1.11:8080", "10.244.1.12:8080", "10.244.2.11:8080"];
/// Its cluster IP and port.
pub(crate) const IN_USE: &str = "10.96.0.10:80";

/// Returns a world in which every pod serves TCP and UDP.
pub(crate) fn world() -> World {
    let world = World::builder().pods(2).remote_pods(1).build().unwrap();
    for pod in world.pods().iter().chain(world.remote_pods()) {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            world.serve(pod, protocol, 8080).unwrap();
        }
    }
    world
}

/// Returns the Service `demo/web` with a TCP port and a UDP port.
pub(crate) fn in_use() -> Vec<Change> {
    let at: SocketAddr = IN_USE.parse().unwrap();
    let http = cluster_ip(&at.ip().to_string(), at.port(), &ENDPOINTS);
    let dns = Forwarding { protocol: Protocol::Udp, ..http.clone() };
    vec![put("web", "http", http), put("web", "dns", dns)]
}

/// Returns settings in which all pods are in one CIDR.
pub(crate) fn world_settings() -> Settings {
    let pods = LocalDetector::Cidr("10.244.0.0/16".parse().unwrap());
    Settings { local_detector: pods, ..settings(Family::Ipv4) }
}

pub(crate) fn data_plane(programs: Programs) -> Driven<Iptables> {
    driven(programs, world_settings())
}

/// Returns a data plane with the usual options.
pub(crate) fn driven(programs: Programs, settings: Settings) -> Driven<Iptables> {
    Driven::new(settings.clone(), Iptables::new(programs, settings, IptablesOptions::default()))
}

/// The lock file of the older iptables: each network namespace is a file of its own, so that no test waits for
/// another test or another program.
pub(crate) const LOCK: &str = "/proc/thread-self/ns/net";

pub(crate) fn programs_of(family: Family, variant: Variant) -> Programs {
    Programs::of(family, variant).unwrap().with_lock(LOCK)
}

/// Returns the name of the program of a variant for IPv4.
pub(crate) const fn real_program(variant: Variant) -> &'static str {
    match variant {
        Variant::Nft => "iptables-nft",
        Variant::Legacy => "iptables-legacy",
    }
}

pub(crate) fn programs(variant: Variant) -> Programs {
    programs_of(Family::Ipv4, variant)
}

/// Starts steady load from outside and from a pod.
pub(crate) fn start(world: &World) -> Vec<Traffic> {
    let plan = TrafficPlan {
        connections_per_second: 50,
        udp_interval: Duration::from_millis(20),
        ..TrafficPlan::default()
    };
    load_of(world, plan)
}

/// Starts such load at the pace of a plan.
pub(crate) fn load_of(world: &World, plan: TrafficPlan) -> Vec<Traffic> {
    let to = Some(IN_USE.parse().unwrap());
    let ready_within = Duration::from_secs(60);
    let plan = TrafficPlan { tcp: to, udp: to, streams: 3, udp_flows: 3, ready_within, ..plan };
    let senders: [&Namespace; 2] = [world.client().namespace(), world.pods()[0].namespace()];
    senders.map(|sender| Traffic::start(sender, plan).unwrap()).into()
}

/// Stops the load and asserts that nothing was lost.
pub(crate) fn assert_lossless(load: Vec<Traffic>) {
    for traffic in load {
        let report = traffic.stop().unwrap();
        let all = report.connections_ok > 0 && report.streams > 0 && report.udp_sent > 0;
        assert!(all && report.is_lossless(), "{report}");
    }
}
