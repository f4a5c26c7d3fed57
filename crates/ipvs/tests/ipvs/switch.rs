//! Tests that a change from another mode to this one and back loses no packet.

use std::time::{Duration, Instant};

use portolan_engine::Dataplane as _;
use portolan_engine::{Boxed, Driven};
use portolan_iptables::{Iptables, IptablesOptions, Programs, Variant};
use portolan_ipvs::Ipvs;
use portolan_model::Family;
use portolan_nftables::Nftables;
use portolan_testkit::{Namespace, Traffic, TrafficPlan, World};

use super::load::{assert_lossless, in_use, load_of, programs, world, world_settings};
use super::support::{in_namespace, options, write_settings};

/// How long a retirement runs. Packets would hit missing rules in this time.
const A_WHILE: Duration = Duration::from_secs(2);

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

/// Starts a load that an emulated machine can carry.
fn start(world: &World) -> Vec<Traffic> {
    let interval = Duration::from_millis(100);
    let plan = TrafficPlan {
        stream_interval: interval,
        connections_per_second: 10,
        udp_interval: interval,
        ..TrafficPlan::default()
    };
    load_of(world, plan)
}

/// Returns a data plane with the Service in use.
fn started(node: &Namespace, make: fn() -> Plane) -> Plane {
    let work = move || {
        let mut plane = make();
        plane.apply(&in_use()).unwrap();
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
