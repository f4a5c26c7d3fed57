//! Checks that packets fare under the rules as the oracle says.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use portolan_model::oracle::{FlowState, ModeDifferences, Oracle, Origin, Packet};
use portolan_model::table::Entry;
use portolan_model::verdict::Fate;
use portolan_model::world::{Ranges, Rng};
use portolan_model::{Family, LocalDetector, NodePortAddresses, Protocol, Settings};
use proptest::prelude::*;

use super::IptablesOptions;
use super::tests::{Edited, Planned, loaded, settings};
use crate::walk::{End, Walk};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The fate of a packet. `Translated` has each possible endpoint, and whether connections to it are masqueraded.
#[derive(Debug, PartialEq, Eq)]
enum PacketFate {
    Translated(BTreeMap<String, bool>),
    /// Refused with a TCP reset.
    Reset,
    /// Refused with an ICMP error.
    Rejected,
    Dropped,
    Passed,
}

fn text(v4: &str, v6: &str, family: Family) -> IpAddr {
    if family == Family::Ipv4 { v4 } else { v6 }.parse().unwrap()
}

/// Two addresses of the node. The first is its primary one.
pub(super) fn local_addresses(family: Family) -> [IpAddr; 2] {
    [text("192.168.0.2", "fd00:192:168::2", family), text("192.168.1.2", "fd00:192:168:1::2", family)]
}

pub(crate) fn random_settings(rng: &mut Rng, family: Family) -> Settings {
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

pub(crate) fn random_options(rng: &mut Rng, settings: &Settings) -> IptablesOptions {
    let lists_loopback = settings.node_port_addresses != NodePortAddresses::MatchAll && rng.chance(50);
    let loopback_addresses = if lists_loopback { vec![LOOPBACK.into()] } else { Vec::new() };
    IptablesOptions { localhost_node_ports: rng.chance(50), loopback_addresses, ..IptablesOptions::default() }
}

/// Returns how the mode differs from the others: it accepts node ports on loopback addresses, in IPv4 only.
fn differences(settings: &Settings, options: &IptablesOptions) -> ModeDifferences {
    let may = options.localhost_node_ports && settings.family == Family::Ipv4;
    let everywhere = may && settings.node_port_addresses == NodePortAddresses::MatchAll;
    ModeDifferences::iptables(if everywhere {
        vec!["127.0.0.0/8".parse().unwrap()]
    } else if may {
        options.loopback_addresses.iter().map(|address| IpNet::from(*address)).collect()
    } else {
        Vec::new()
    })
}

pub(super) fn random_packet(rng: &mut Rng, family: Family, ranges: &Ranges) -> Packet<'static> {
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
        (Origin::Node, &vec![text("127.0.0.1", "::1", family)]),
    ];
    let (origin, sources) = *rng.pick(&origins).unwrap();
    if sources[0].is_loopback() {
        // A packet from a loopback address can only go to a loopback address.
        let (protocol, port) = (Protocol::Tcp, *rng.pick(&ranges.node_ports).unwrap());
        let (source, flow) = (sources[0], FlowState::New);
        return Packet { origin, source, destination: source, protocol, port, flow };
    }
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
        flow: FlowState::New,
    }
}

/// Returns the fate of a packet under the rules.
fn outcome(walk: Walk<'_>, packet: &Packet<'_>) -> PacketFate {
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
            End::Reset => PacketFate::Reset,
            End::Rejected => PacketFate::Rejected,
            End::Dropped => PacketFate::Dropped,
            _ => PacketFate::Passed,
        };
    }
    assert_eq!(endpoints.len(), ways.len(), "{packet:?}: {ways:?}");
    let even = 1.0 / f64::from(u32::try_from(endpoints.len()).unwrap());
    assert!(endpoints.iter().all(|(.., part)| (part - even).abs() < 1e-6), "{packet:?}: {ways:?}");
    PacketFate::Translated(endpoints.into_iter().map(|(place, marked, _)| (place.clone(), marked)).collect())
}

/// Returns the fate of a packet as the oracle says.
fn expected(oracle: &Oracle<'_>, packet: &Packet<'_>) -> PacketFate {
    match oracle.fate(packet) {
        Fate::Backends { set, masqueraded, .. } => {
            let places = set.iter().map(|backend| backend.socket().to_string());
            PacketFate::Translated(places.zip(masqueraded).collect())
        }
        Fate::Reject if packet.protocol == Protocol::Tcp => PacketFate::Reset,
        Fate::Reject => PacketFate::Rejected,
        Fate::Drop => PacketFate::Dropped,
        Fate::NotOurs => PacketFate::Passed,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rules_mean_what_the_oracle_says(seed in any::<u64>(), v6 in any::<bool>()) {
        let family = if v6 { Family::Ipv6 } else { Family::Ipv4 };
        let mut rng = Rng::new(seed);
        let settings = random_settings(&mut rng, family);
        let options = random_options(&mut rng, &settings);
        let differences = &differences(&settings, &options);
        let mut planner = Planned::new(settings.clone(), options);
        let mut edited = Edited::new(seed, 6);
        let (changes, health_checks) = edited.first();
        planner.remember(&changes, &health_checks);
        let tables = loaded(&mut planner);
        // The oracle gets the Catalog's table, so a planner that loses a Service port is found out.
        let table: Vec<Entry> = edited.entries(family);
        let (settings, table, ranges) = (&settings, table.as_slice(), Ranges::example());
        for _ in 0..200 {
            let packet = random_packet(&mut rng, family, &ranges);
            // A process of the node sends from an address of the node.
            let source = (packet.origin == Origin::Node).then_some(packet.source);
            let local_addresses: Vec<_> = local_addresses(family).into_iter().chain(source).collect();
            let local_addresses = &local_addresses;
            let oracle = Oracle { settings, local_addresses, table, differences, health_check_ports: &[] };
            let walk = Walk { tables: &tables, local_addresses };
            prop_assert_eq!(outcome(walk, &packet), expected(&oracle, &packet), "{:?}", packet);
        }
    }
}
