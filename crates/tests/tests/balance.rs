//! How new connections are spread over the endpoints of a Service: with equal chances, or in turn.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test program: its helpers fail the test, too"
)]

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_model::world::Edit;
use portolan_model::{Family, Protocol};
use portolan_testkit::{Namespace, Pod, Probe, ProbeResult};
use portolan_tests::{At, Cluster, Endpoint, Mode, TARGET_PORTS, in_every_mode, service, slices};
use serde_json::json;

in_every_mode! {
    every_endpoint_gets_its_share,
    local_endpoints_get_their_share_at_node_ports_with_and_without_counters,
}

/// The number of connections for each number of endpoints.
const DRAWS: u16 = 3000;
/// Maximum number of endpoints.
const ENDPOINTS: u16 = 40;
/// Numbers of endpoints with policy Local. Modes that use them in turn need only the first.
const LOCAL_ENDPOINTS: [u16; 2] = [3, 17];
/// Endpoints of the other node. With policy Local they get no connection.
const ELSEWHERE: &str = "Rr1 Rr2";
/// The quantile of the normal distribution above which a result is a fault. Equal chances give such a result once in
/// 1,000,000,000 tests.
const QUANTILE: f64 = 6.0;

/// The modes nftables and iptables draw each endpoint at random. IPVS with its usual scheduler and the relay use the
/// endpoints in turn.
fn every_endpoint_gets_its_share(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service(), "Rl1");
    let pod = cluster.sender("pod").namespace.clone();
    for family in Family::BOTH {
        let addresses = endpoint_addresses(family);
        serve(&cluster, &addresses);
        let mut faults = String::new();
        for count in counts(mode, family) {
            set_endpoints(&mut cluster, family, &addresses[..usize::from(count)], "");
            if let Some(fault) = unequal_shares(&cluster, &pod, At::ClusterIp.socket(family), count) {
                writeln!(faults, "{family}, {count} endpoints: {fault}").unwrap();
            }
        }
        assert!(faults.is_empty(), "{faults}");
    }
}

/// Local endpoints have numbers of their own, and endpoints that count are in other maps.
fn local_endpoints_get_their_share_at_node_ports_with_and_without_counters(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external_local(), "Rl1");
    let client = cluster.sender("client").namespace.clone();
    let mut faults = String::new();
    for family in Family::BOTH {
        let addresses = endpoint_addresses(family);
        serve(&cluster, &addresses);
        for count in LOCAL_ENDPOINTS.into_iter().take(if draws(mode) { 2 } else { 1 }) {
            set_endpoints(&mut cluster, family, &addresses[..usize::from(count)], ELSEWHERE);
            for counters in [false, true] {
                cluster.configure(|settings| settings.counters = counters);
                if let Some(fault) = unequal_shares(&cluster, &client, At::NodePort.socket(family), count) {
                    writeln!(faults, "{family}, {count} endpoints, counters {counters}: {fault}").unwrap();
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

/// Returns what is wrong with the shares of the endpoints. Flows of earlier endpoints are forgotten first, because a source port
/// that is used again continues its flow.
fn unequal_shares(cluster: &Cluster, from: &Namespace, to: SocketAddr, count: u16) -> Option<String> {
    cluster.world().node().namespace().output("conntrack", &["-F"]).unwrap();
    if draws(cluster.mode()) { unequal_chances(from, to, count) } else { out_of_turn(from, to, count) }
}

/// Returns the numbers of endpoints to check: every number, if chances are computed from it. The rules of both families
/// have the same chances, so one family has fewer.
fn counts(mode: Mode, family: Family) -> Vec<u16> {
    match family {
        _ if !draws(mode) => vec![2, 3, 5, 8],
        Family::Ipv4 => (2..=ENDPOINTS).collect(),
        Family::Ipv6 => vec![2, 3, 17, ENDPOINTS],
    }
}

fn draws(mode: Mode) -> bool {
    matches!(mode, Mode::Nftables | Mode::IptablesNft | Mode::IptablesLegacy)
}

fn endpoint_addresses(family: Family) -> Vec<IpAddr> {
    (1..=ENDPOINTS)
        .map(|number| match family {
            Family::Ipv4 => Ipv4Addr::from(0x0af4_0180 + u32::from(number)).into(),
            Family::Ipv6 => Ipv6Addr::new(0xfd00, 0x10, 0x244, 1, 0, 0, 1, number).into(),
        })
        .collect()
}

fn server(cluster: &Cluster) -> &Pod {
    &cluster.world().pods()[0]
}

/// Makes the first pod respond at these addresses.
fn serve(cluster: &Cluster, addresses: &[IpAddr]) {
    server(cluster).add_addresses(addresses).unwrap();
    let places = |protocol| {
        addresses.iter().map(move |address| (protocol, SocketAddr::new(*address, TARGET_PORTS[0])))
    };
    let places: Vec<_> = places(Protocol::Tcp).chain(places(Protocol::Udp)).collect();
    cluster.world().echo().listen_many(server(cluster).namespace(), &places).unwrap();
}

/// Gives the Service `default/web` endpoints of this node at these addresses in a family, and `others` (see [`Endpoint`]).
fn set_endpoints(cluster: &mut Cluster, family: Family, addresses: &[IpAddr], others: &str) {
    let version = u64::MAX - u64::from(ENDPOINTS) + addresses.len() as u64;
    let mut edits = slices(&Endpoint::parse_all(&format!("Rl1 {others}")), version);
    edits.retain(|edit| matches!(edit, Edit::Upsert(_, slice) if slice["addressType"] == family.to_string()));
    for edit in &mut edits {
        let Edit::Upsert(_, slice) = edit else { continue };
        let endpoints = slice["endpoints"].as_array_mut().unwrap();
        let here = endpoints.remove(0);
        endpoints.extend(addresses.iter().map(|address| {
            let mut endpoint = here.clone();
            endpoint["addresses"] = json!([address]);
            endpoint
        }));
    }
    cluster.apply(&edits);
}

/// Returns what is wrong with the chances of the endpoints, by the chi-square test.
fn unequal_chances(from: &Namespace, to: SocketAddr, count: u16) -> Option<String> {
    let probes = vec![Probe::new(Protocol::Udp, to); DRAWS.into()];
    let mut drawn: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    let mut others: BTreeMap<String, u32> = BTreeMap::new();
    for result in from.probe_many(&probes).unwrap() {
        match result.backend() {
            Some(backend) => *drawn.entry(backend).or_default() += 1,
            None => *others.entry(format!("{result:?}")).or_default() += 1,
        }
    }
    if !others.is_empty() {
        let lost: u32 = others.values().sum();
        return Some(format!("{lost} of {DRAWS} packets reached no endpoint: {others:?}"));
    }
    // Equal chances leave one of 40 endpoints out once in 10^31 tests.
    if drawn.len() != usize::from(count) {
        return Some(format!("{} endpoints were drawn: {drawn:?}", drawn.len()));
    }
    let expected = f64::from(DRAWS) / f64::from(count);
    let squares = drawn.values().map(|times| (f64::from(*times) - expected).powi(2)).sum::<f64>();
    let statistic = squares / expected;
    let limit = chi_square_limit(f64::from(count) - 1.0, QUANTILE);
    (statistic > limit).then(|| format!("chi-square is {statistic:.0}, above {limit:.0}: {drawn:?}"))
}

/// Returns the limit of the chi-square statistic with these degrees of freedom and this quantile of the normal
/// distribution, by the approximation of Wilson and Hilferty (1931).
fn chi_square_limit(freedom: f64, quantile: f64) -> f64 {
    let variance = 2.0 / (9.0 * freedom);
    freedom * quantile.mul_add(variance.sqrt(), 1.0 - variance).powi(3)
}

/// Returns what is wrong with the order of the endpoints in three rounds.
fn out_of_turn(from: &Namespace, to: SocketAddr, count: u16) -> Option<String> {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let probe = Probe::new(protocol, to);
        let results: Vec<_> = (0..3 * count).map(|_| from.probe(probe).unwrap()).collect();
        let order: Vec<_> = results.iter().filter_map(ProbeResult::backend).collect();
        let (round, all) = (usize::from(count), order.iter().collect::<HashSet<_>>());
        let repeats = order.iter().zip(order.iter().skip(round)).all(|(first, next)| first == next);
        if order.len() != results.len() || all.len() != round || !repeats {
            return Some(format!("{protocol}: {results:?}"));
        }
    }
    None
}

#[test]
fn the_limit_is_that_of_the_tables() {
    // The limits that are exceeded once in 1000 times, which is a quantile of 3.09.
    for (freedom, limit) in [(1.0, 10.83), (10.0, 29.59), (39.0, 72.05)] {
        let approximation = chi_square_limit(freedom, 3.09);
        assert!((approximation - limit).abs() < limit / 25.0, "{freedom}: {approximation}");
    }
}
