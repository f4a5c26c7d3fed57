//! Tests that a change from another mode to this one and back loses no packet.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_engine::Dataplane as _;
use portolan_engine::{Boxed, Driven};
use portolan_iptables::{Iptables, IptablesOptions, Programs, Variant};
use portolan_ipvs::Ipvs;
use portolan_model::{Change, Family, Forwarding, Frontend, Protocol};
use portolan_nftables::Nftables;
use portolan_testkit::{Namespace, Traffic, TrafficPlan, World};

use super::example::{cluster_ip, put};
use super::load::{ENDPOINTS, assert_lossless, in_use, load_of, programs, world, world_settings};
use super::support::{in_namespace, options, write_settings};

/// How long a retirement runs. Packets would hit missing rules in this time.
const A_WHILE: Duration = Duration::from_secs(2);

/// The load-balancer IP and port of a Service with source ranges.
const GUARDED: &str = "198.51.100.20:80";
/// A range with the client outside.
const CLIENTS: &str = "203.0.113.0/24";

type Plane = Driven<Boxed>;

fn nftables() -> Plane {
    Driven::new(world_settings(), Box::new(Nftables::open(world_settings()).unwrap()))
}

fn iptables() -> Plane {
    let plane = Iptables::new(programs(Variant::Nft), world_settings(), IptablesOptions::default());
    Driven::new(world_settings(), Box::new(plane))
}

fn ipvs() -> Plane {
    write_settings();
    let programs = Programs::of(Family::Ipv4, Variant::Nft).unwrap();
    let plane = Ipvs::open(programs, world_settings(), options()).unwrap();
    Driven::new(world_settings(), Box::new(plane))
}

/// Returns the Service in use, and one whose load-balancer IP is for some clients only.
fn services() -> Vec<Change> {
    let at: SocketAddr = GUARDED.parse().unwrap();
    let guarded = |protocol| Forwarding {
        protocol,
        frontends: Box::new([Frontend::LoadBalancerIp(at.ip(), at.port())]),
        source_ranges: Box::new([CLIENTS.parse().unwrap()]),
        ..cluster_ip("10.96.0.11", 80, &ENDPOINTS)
    };
    let mut services = in_use();
    services.push(put("guarded", "http", guarded(Protocol::Tcp)));
    services.push(put("guarded", "dns", guarded(Protocol::Udp)));
    services
}

/// Starts a load that an emulated machine can carry.
fn start(world: &World) -> Vec<Traffic> {
    let interval = Duration::from_millis(100);
    let plan = TrafficPlan {
        stream_interval: interval,
        connections_per_second: 10,
        udp_interval: interval,
        ..TrafficPlan::default()
    };
    let mut load = load_of(world, plan);
    let to = Some(GUARDED.parse().unwrap());
    let ready_within = Duration::from_secs(60);
    let guarded = TrafficPlan { tcp: to, udp: to, streams: 3, udp_flows: 3, ready_within, ..plan };
    load.push(Traffic::start(world.client().namespace(), guarded).unwrap());
    load
}

/// Returns a data plane with the Services.
fn started(node: &Namespace, make: fn() -> Plane) -> Plane {
    let work = move || {
        let mut plane = make();
        plane.apply(&services()).unwrap();
        plane.resync().unwrap();
        plane
    };
    node.run(work).unwrap()
}

/// Retires the former data plane. IPVS may have connections left to wait for.
fn retire(node: &Namespace, mut former: Plane, new: &Plane) {
    let kept = new.about().claims;
    let work = move || {
        let start = Instant::now();
        let mut more = true;
        while more || start.elapsed() < A_WHILE {
            more = former.remove_part(kept).unwrap() && start.elapsed() < A_WHILE;
        }
    };
    node.run(work).unwrap();
}

fn there_and_back(other: fn() -> Plane) {
    if in_namespace(|| ()).is_none() {
        return;
    }
    let world = world();
    let node = world.node().namespace();
    let first = started(node, other);
    let load = start(&world);
    let second = started(node, ipvs);
    retire(node, first, &second);
    assert_lossless(load);
    // New connections go through virtual servers.
    let load = start(&world);
    drop(second);
    let second = started(node, ipvs);
    let third = started(node, other);
    retire(node, second, &third);
    assert_lossless(load);
}

#[test]
fn from_nftables_and_back() {
    there_and_back(nftables);
}

#[test]
fn from_iptables_and_back() {
    there_and_back(iptables);
}
