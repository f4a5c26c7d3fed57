//! Counters: what a Service port and its endpoints count is what clients did.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test program: its helpers fail the test, too"
)]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portolan_model::observed::{Counted, Refused, Total};
use portolan_model::{Family, Protocol};
use portolan_testkit::{Probe, ProbeResult, eventually_some};
use portolan_tests::{At, Cluster, Mode, Service, in_every_mode, service};

in_every_mode! {
    connections_are_counted_where_they_go,
    counts_stay_while_other_endpoints_come_and_go,
    refusals_are_counted_by_reason,
    counters_are_switched_on_and_off_under_traffic,
}

/// Deadline for a count to appear. IPVS adds up what its processors have counted every two seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Number of connections that are tried at once.
const CONNECTIONS: usize = 24;

/// Connections by endpoint.
type Tally = BTreeMap<SocketAddr, u64>;

/// Returns a cluster that counts.
fn counting(mode: Mode, service: &Service, endpoints: &str) -> Cluster {
    let mut cluster = Cluster::new(mode);
    cluster.configure(|settings| settings.counters = true);
    cluster.put(service, endpoints);
    assert_eq!(cluster.read_back(), [""; 0], "{endpoints}");
    cluster
}

/// Connects as often as [`CONNECTIONS`], and adds the endpoints that answered.
fn connect(cluster: &Cluster, sender: &str, protocol: Protocol, to: SocketAddr, tally: &mut Tally) {
    let namespace = &cluster.sender(sender).namespace;
    for _ in 0..CONNECTIONS {
        match namespace.probe(Probe::new(protocol, to)).unwrap() {
            ProbeResult::Reached(reached) => *tally.entry(reached.backend).or_default() += 1,
            other => panic!("{sender} -> {protocol} {to}: {other:?}"),
        }
    }
}

/// Returns what the port of `default/web` with this protocol has counted.
fn counted(cluster: &Cluster, family: Family, protocol: Protocol) -> Counted {
    let port = format!("default/web:{}", protocol.name().to_lowercase());
    cluster.counted(family).into_iter().find(|(name, _)| name.to_string() == port).unwrap().1
}

/// Waits until the endpoints have these counts and the port this total. IPVS adds up those of each virtual server and real
/// server by itself, so that one is new before the other.
fn expect(cluster: &Cluster, family: Family, protocol: Protocol, tally: &Tally, total: u64) {
    let mut last = String::new();
    let as_wanted = eventually_some(PATIENCE, "the counts", || {
        let counted = counted(cluster, family, protocol);
        last = format!("{counted:?}");
        let nonzero = counted.endpoints.iter().filter(|(_, counters)| counters.connections > 0);
        let found: Tally = nonzero.map(|(at, counters)| (*at, counters.connections)).collect();
        (found == *tally && counted.total.passed.unwrap().connections == total).then_some(())
    });
    as_wanted
        .unwrap_or_else(|error| panic!("{family} {protocol}: {tally:?} of {total}, but {last}: {error}"));
}

/// Returns the counts that a restart keeps. IPVS adds up packets and bytes some time after they have passed, maybe between two
/// looks, so its counts are those of connections, for which [`expect`] has waited.
fn kept(cluster: &Cluster, family: Family) -> Counted {
    let mut kept = counted(cluster, family, Protocol::Tcp);
    if cluster.mode() == Mode::Ipvs {
        for counters in kept.endpoints.values_mut().chain(kept.total.passed.as_mut()) {
            counters.traffic = None;
        }
    }
    kept
}

fn connections_are_counted_where_they_go(mode: Mode) {
    for service in [service().external(), service().external_local(), service().external().affinity(600)] {
        let cluster = counting(mode, &service, "Rl1 Rl2 Rr1");
        for family in Family::BOTH {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let mut tally = Tally::new();
                let before = counted(&cluster, family, protocol);
                assert!(
                    before.endpoints.values().all(|own| own.connections == 0) && before.endpoints.len() == 3
                );
                let places =
                    [("pod", At::ClusterIp), ("client", At::NodePort), ("client", At::LoadBalancerIp)];
                for (sender, at) in places {
                    connect(&cluster, sender, protocol, at.socket(family), &mut tally);
                }
                let total = u64::try_from(places.len() * CONNECTIONS).unwrap();
                expect(&cluster, family, protocol, &tally, total);
            }
        }
        assert_eq!(cluster.read_back(), [""; 0], "what counts reads back the same");
    }
}

fn counts_stay_while_other_endpoints_come_and_go(mode: Mode) {
    for service in [service().external(), service().external().affinity(600)] {
        let mut cluster = counting(mode, &service, "Rl1 Rl2 Rr1");
        for family in Family::BOTH {
            let mut tally = Tally::new();
            let to = At::ClusterIp.socket(family);
            let mut all = 0;
            // The first, the last and a middle one go; others come; one comes back. The IPVS of the kernel remembers a real
            // server for some time, with its counts.
            let steps = ["Rl1 Rl2 Rr1", "Rl2 Rr1", "Rl2 Rr1 Rr2", "Rl2 Rr2", "Rl1 Rl2 Rr2"];
            let steps = &steps[..steps.len() - usize::from(mode == Mode::Ipvs)];
            for endpoints in steps {
                cluster.put_endpoints(endpoints);
                let there = counted(&cluster, family, Protocol::Tcp).endpoints;
                tally.retain(|at, _| there.contains_key(at));
                expect(&cluster, family, Protocol::Tcp, &tally, all);
                connect(&cluster, "pod", Protocol::Tcp, to, &mut tally);
                all += u64::try_from(CONNECTIONS).unwrap();
                // The total has those of endpoints that are gone, too.
                expect(&cluster, family, Protocol::Tcp, &tally, all);
            }
            cluster.put_endpoints("Rl1 Rl2 Rr1");
        }
        // The counts of a relay end with it.
        if mode.relays() {
            continue;
        }
        let before = Family::BOTH.map(|family| kept(&cluster, family));
        let commits = cluster.restart();
        for family in Family::BOTH {
            assert_eq!((commits.get(family).elements, commits.get(family).objects), (0, 0), "{family}");
        }
        let after = Family::BOTH.map(|family| kept(&cluster, family));
        assert_eq!(before, after, "a restart keeps the counts");
    }
}

/// Sends SYNs that are dropped, one for each probe or more on a slow machine, and returns what was counted.
fn dropped(cluster: &Cluster, at: At, count: u64) -> [Total; 2] {
    Family::BOTH.map(|family| {
        for _ in 0..count {
            let probe = Probe::new(Protocol::Tcp, at.socket(family)).expecting_silence();
            let result = cluster.sender("client").namespace.probe(probe).unwrap();
            assert_eq!(result, ProbeResult::TimedOut, "{family} {at:?}");
        }
        counted(cluster, family, Protocol::Tcp).total
    })
}

/// Connects as programs do, which takes one SYN for each attempt, and returns what was counted.
fn refused(cluster: &Cluster, sender: &str, at: At, count: u64) -> [Refused; 2] {
    Family::BOTH.map(|family| {
        let connect = || TcpStream::connect(at.socket(family)).map_err(|error| error.kind());
        for _ in 0..count {
            let outcome = cluster.sender(sender).namespace.run(connect).unwrap();
            assert_eq!(outcome.err(), Some(ErrorKind::ConnectionRefused), "{sender} {family} {at:?}");
        }
        counted(cluster, family, Protocol::Tcp).total.refused
    })
}

/// Sends datagrams that are refused, one for each probe or more on a slow machine, and returns what was counted.
fn refused_datagrams(cluster: &Cluster, sender: &str, at: At, count: u64) -> [Refused; 2] {
    Family::BOTH.map(|family| {
        for _ in 0..count {
            let probe = Probe::new(Protocol::Udp, at.socket(family));
            let result = cluster.sender(sender).namespace.probe(probe).unwrap();
            assert_eq!(result, ProbeResult::Refused, "{sender} {family} {at:?}");
        }
        counted(cluster, family, Protocol::Udp).total.refused
    })
}

/// Connects from the node to the node port at addresses that are not the Service's: those of another node, and loopback where
/// the mode has no node ports there. Returns what was counted.
fn refused_elsewhere(cluster: &Cluster, mode: Mode) -> [Refused; 2] {
    Family::BOTH.map(|family| {
        let port = At::NodePort.socket(family).port();
        let mut places = vec![SocketAddr::new(cluster.sender("remote-node").address(family), port)];
        if matches!(mode, Mode::Nftables | Mode::Userspace) {
            places.push(At::LoopbackNodePort.socket(family));
        }
        for to in places {
            let connect = || TcpStream::connect(to).map_err(|error| error.kind());
            let outcome = cluster.sender("node").namespace.run(connect).unwrap();
            assert_eq!(outcome.err(), Some(ErrorKind::ConnectionRefused), "{to}");
        }
        counted(cluster, family, Protocol::Tcp).total.refused
    })
}

fn refusals_are_counted_by_reason(mode: Mode) {
    // The iptables modes count a packet when it gets to the chains of the Service port. Only then it is dropped.
    let is_as_documented = |total: &Total| {
        let connections = total.passed.map_or(0, |passed| passed.connections);
        let is_exact = matches!(mode, Mode::Nftables | Mode::Ipvs) || mode.relays();
        if is_exact { connections == 0 } else { connections >= 3 }
    };
    let mut cluster = counting(mode, &service().external(), "");
    let (mut sent, mut datagrams) = (0, [0; 2]);
    for at in [At::ClusterIp, At::NodePort, At::LoadBalancerIp] {
        // The iptables mode, as kube-proxy's, does not refuse what the node sends to external addresses.
        let is_external = matches!(at, At::LoadBalancerIp);
        let senders = if is_external { &["client", "pod"][..] } else { &["client", "pod", "node"] };
        for sender in senders {
            sent += 5;
            for refused in refused(&cluster, sender, at, 5) {
                assert_eq!(refused.no_endpoint, Some(sent), "{sender} {at:?}");
                assert_eq!(refused.no_local_endpoint.unwrap_or_default(), 0, "{sender} {at:?}");
            }
            for (refused, before) in refused_datagrams(&cluster, sender, at, 3).iter().zip(&mut datagrams) {
                let counted = refused.no_endpoint.unwrap();
                assert!(counted >= *before + 3, "{sender} {at:?}: {counted} after {before}");
                *before = counted;
            }
        }
    }
    let others_refuse = refused_elsewhere(&cluster, mode);
    assert_eq!(
        others_refuse.map(|refused| refused.no_endpoint),
        [Some(sent); 2],
        "packets that are not for the Service"
    );
    cluster.put(&service().external_local(), "Rr1");
    for total in dropped(&cluster, At::LoadBalancerIp, 3) {
        let refused = total.refused;
        assert!(refused.no_local_endpoint >= Some(3), "{refused:?}");
        assert_eq!(refused.no_endpoint.unwrap_or_default(), 0);
        assert!(is_as_documented(&total), "{total:?}");
    }
    cluster.put(&service().source_ranges(&["192.0.2.240/32", "2001:db8:ffff::/48"]), "Rl1");
    for total in dropped(&cluster, At::LoadBalancerIp, 3) {
        let refused = total.refused;
        assert!(refused.source_range >= Some(3), "{refused:?}");
        assert!(is_as_documented(&total), "{total:?}");
    }
}

fn counters_are_switched_on_and_off_under_traffic(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external().affinity(600), "Rl1 Rl2 Rr1");
    let works = |cluster: &Cluster| {
        for family in Family::BOTH {
            connect(cluster, "pod", Protocol::Tcp, At::ClusterIp.socket(family), &mut Tally::new());
            connect(cluster, "client", Protocol::Tcp, At::NodePort.socket(family), &mut Tally::new());
        }
        assert_eq!(cluster.read_back(), [""; 0]);
    };
    works(&cluster);
    for is_on in [true, false, true, false] {
        cluster.configure(|settings| settings.counters = is_on);
        cluster.collect();
        works(&cluster);
        for family in Family::BOTH {
            let commit = cluster.resync();
            assert_eq!((commit.get(family).elements, commit.get(family).objects), (0, 0), "{is_on} {family}");
        }
        if mode == Mode::Nftables {
            let counts = counted(&cluster, Family::Ipv4, Protocol::Tcp).total.passed;
            assert_eq!(counts.is_some(), is_on);
            assert_eq!(cluster.ruleset().contains("counter"), is_on);
        }
    }
}
