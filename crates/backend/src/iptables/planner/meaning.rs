//! The rules mean what the oracle says, but for what this mode does otherwise.

use std::collections::BTreeMap;
use std::net::IpAddr;

use portolan_model::oracle::{Fate, Oracle, Origin, Packet};
use portolan_model::world::{Ranges, Rng};
use portolan_model::{
    ExternalPolicy, Family, Forwarding, Frontend, LocalDetector, NodePortAddresses, Protocol, Settings,
};
use proptest::prelude::*;

use super::tests::{Edited, loaded, settings};
use super::{Options, Planner};
use crate::iptables::walk::{End, Walk};

/// What becomes of a packet; for each endpoint, whether it is masqueraded.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Translated(BTreeMap<String, bool>),
    Rejected,
    Dropped,
    Passed,
}

fn text(v4: &str, v6: &str, family: Family) -> IpAddr {
    if family == Family::Ipv4 { v4 } else { v6 }.parse().unwrap()
}

/// The node's own addresses: two, of which the first is its primary one.
fn local_addresses(family: Family) -> [IpAddr; 2] {
    [text("192.168.0.2", "fd00:192:168::2", family), text("192.168.1.2", "fd00:192:168:1::2", family)]
}

fn random_settings(rng: &mut Rng, family: Family) -> Settings {
    let pods = if family == Family::Ipv4 { "10.244.0.0/29" } else { "2001:db8:244::/125" };
    let detectors = [
        LocalDetector::None,
        LocalDetector::Cidr(pods.parse().unwrap()),
        LocalDetector::Interface("cni0".into()),
        LocalDetector::InterfacePrefix("cni".into()),
    ];
    let some = NodePortAddresses::Addresses(local_addresses(family)[..1].to_vec());
    let node_port_addresses = if rng.chance(50) { NodePortAddresses::MatchAll } else { some };
    // The node's own address is in one of the source ranges of random worlds or in none.
    let node_ip =
        if rng.chance(50) { text("192.0.2.9", "2001:db8:1::9", family) } else { local_addresses(family)[0] };
    Settings {
        local_detector: rng.pick(&detectors).unwrap().clone(),
        masquerade_all: rng.chance(20),
        node_port_addresses,
        node_ip: Some(node_ip),
        ..settings(family)
    }
}

fn random_packet(rng: &mut Rng, family: Family, ranges: &Ranges) -> Packet<'static> {
    let of =
        |list: &[IpAddr]| list.iter().copied().filter(|ip| Family::of(*ip) == family).collect::<Vec<_>>();
    let pods: Vec<IpAddr> = ranges.pods.iter().filter_map(|pod| *pod.addresses.get(family)).collect();
    let vips = of(&ranges.load_balancer_ips);
    let outside =
        vec![text("192.0.2.1", "2001:db8:1::1", family), text("198.51.100.1", "2001:db9::1", family)];
    let origins = [
        (Origin::Pod { input_interface: "cni0" }, &pods),
        (Origin::Node, &local_addresses(family).to_vec()),
        (Origin::Node, &vips),
        (Origin::Remote { input_interface: "eth0" }, &outside),
        (Origin::Remote { input_interface: "eth0" }, &pods),
    ];
    let (origin, sources) = *rng.pick(&origins).unwrap();
    let mut destinations = ranges.cluster_ips.get(family).clone();
    destinations.extend(of(&ranges.external_ips));
    destinations.extend(vips.iter().chain(&local_addresses(family)));
    let ports: Vec<u16> = ranges.ports.iter().chain(&ranges.node_ports).copied().collect();
    Packet {
        origin,
        source: *rng.pick(sources).unwrap(),
        destination: *rng.pick(&destinations).unwrap(),
        protocol: *rng.pick(&[Protocol::Tcp, Protocol::Udp, Protocol::Sctp]).unwrap(),
        port: *rng.pick(&ports).unwrap(),
    }
}

/// What the rules do.
fn outcome(walk: Walk<'_>, packet: &Packet<'_>) -> Outcome {
    let ways = walk.ways(packet);
    let endpoints: Vec<(&String, bool, f64)> = ways
        .iter()
        .filter_map(|way| match &way.end {
            End::Translated(place) => Some((place, way.marked, way.part)),
            _ => None,
        })
        .collect();
    if endpoints.is_empty() {
        assert_eq!(ways.len(), 1, "{packet:?}: {ways:?}");
        return match ways[0].end {
            End::Rejected => Outcome::Rejected,
            End::Dropped => Outcome::Dropped,
            _ => Outcome::Passed,
        };
    }
    assert_eq!(endpoints.len(), ways.len(), "{packet:?}: {ways:?}");
    let even = 1.0 / f64::from(u32::try_from(endpoints.len()).unwrap());
    assert!(endpoints.iter().all(|(.., part)| (part - even).abs() < 1e-6), "{packet:?}: {ways:?}");
    Outcome::Translated(endpoints.into_iter().map(|(place, marked, _)| (place.clone(), marked)).collect())
}

/// What the oracle, which speaks of the nftables mode, says for this one.
fn expected(oracle: &Oracle<'_>, packet: &Packet<'_>) -> Outcome {
    let serves = |forwarding: &&&Forwarding, wanted: &dyn Fn(&Frontend) -> bool| {
        forwarding.protocol == packet.protocol && forwarding.frontends.iter().any(wanted)
    };
    let at_address = |frontend: &Frontend| match *frontend {
        Frontend::ClusterIp(address, port)
        | Frontend::ExternalIp(address, port)
        | Frontend::LoadBalancerIp(address, port) => (address, port) == (packet.destination, packet.port),
        Frontend::NodePort(_) => false,
    };
    let is_cluster_ip =
        |frontend: &Frontend| at_address(frontend) && matches!(frontend, Frontend::ClusterIp(..));
    let on_node = oracle.local_addresses.contains(&packet.destination);
    let at_node_port = |frontend: &Frontend| on_node && *frontend == Frontend::NodePort(packet.port);
    let forwardings = || oracle.forwardings.iter();
    let by_address = forwardings().find(|forwarding| serves(forwarding, &at_address));
    let Some(forwarding) =
        by_address.or_else(|| forwardings().find(|forwarding| serves(forwarding, &at_node_port)))
    else {
        // Other ports of cluster IPs, and unused addresses, are left alone.
        return Outcome::Passed;
    };
    let internal = forwarding.frontends.iter().any(is_cluster_ip);
    // What leaves this node for an external address meets no rule that would stop it.
    let leaves = packet.origin == Origin::Node && !on_node && !internal;
    let stopped = match (leaves, forwarding.has_endpoints) {
        (true, _) => Outcome::Passed,
        // Source ranges count only where there are endpoints; without them everybody is refused.
        (false, false) => Outcome::Rejected,
        (false, true) => Outcome::Dropped,
    };
    match oracle.fate(packet) {
        Fate::Backends { set, masqueraded, .. } => {
            // Every endpoint that calls itself is masqueraded, wherever it runs.
            let of = |(backend, masqueraded): (&portolan_model::Backend, bool)| {
                (backend.socket().to_string(), masqueraded || backend.address == packet.source)
            };
            Outcome::Translated(set.iter().zip(masqueraded).map(of).collect())
        }
        // Those outside the source ranges are stopped wherever they are.
        Fate::Drop if forwarding.has_endpoints && !forwarding.source_ranges.is_empty() && !internal => {
            let on_load_balancer = |frontend: &Frontend| {
                at_address(frontend) && matches!(frontend, Frontend::LoadBalancerIp(..))
            };
            if forwarding.frontends.iter().any(on_load_balancer) { Outcome::Dropped } else { stopped }
        }
        Fate::Reject | Fate::Drop => stopped,
        // On addresses that take no node ports, those without endpoints are stopped all the same.
        Fate::NotOurs => match (forwarding.has_endpoints, forwarding.external_policy) {
            (false, _) => Outcome::Rejected,
            (true, ExternalPolicy::Local) if forwarding.local.is_empty() => Outcome::Dropped,
            _ => Outcome::Passed,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rules_mean_what_the_oracle_says(seed in any::<u64>(), v6 in any::<bool>()) {
        let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
        let mut rng = Rng::new(seed);
        let settings = random_settings(&mut rng, family);
        let options = Options { localhost_node_ports: false, ..Options::default() };
        let mut planner = Planner::new(settings.clone(), options);
        let (changes, health_checks) = Edited::new(seed).first();
        planner.remember(&changes, &health_checks);
        let tables = loaded(&mut planner);
        let local_addresses = local_addresses(family);
        let forwardings: Vec<&Forwarding> = planner.forwardings().map(|(_, forwarding)| &**forwarding).collect();
        let oracle =
            Oracle { settings: &settings, local_addresses: &local_addresses, forwardings: &forwardings };
        let walk = Walk { tables: &tables, local_addresses: &local_addresses };
        let ranges = Ranges::example();
        for _ in 0..200 {
            let packet = random_packet(&mut rng, family, &ranges);
            prop_assert_eq!(outcome(walk, &packet), expected(&oracle, &packet), "{:?}", packet);
        }
    }
}
