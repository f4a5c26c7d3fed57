//! Many clients begin at the same moment: the first datagram of each reaches an endpoint. `PORTOLAN_ROUNDS` sets how often all
//! addresses of the Service get such a burst. One round shows a loss of one datagram in 10,000 in half of the runs, 40 rounds
//! always.
#![allow(clippy::unwrap_used, reason = "a test program: its helpers fail the test, too")]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use portolan_model::Family;
use portolan_tests::{At, Cluster, Mode, in_every_mode, service};
use serde_json::json;

in_every_mode! {
    the_first_datagrams_of_many_clients_reach_endpoints,
}

/// External IPs of the Service in each family.
const ADDRESSES: u16 = 200;
/// Clients of a burst.
const CLIENTS: usize = 16;
/// The ports of clients begin here. They are used in turn: the number of ports is not a multiple of that of a round's clients.
const FIRST_PORT: u16 = 15_536;
/// Deadline of any answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// A burst begins new flows. In the userspace mode, the relay has no flow after the restart. IPVS keeps those of former
/// rounds, so no address gets datagrams from one port twice.
fn the_first_datagrams_of_many_clients_reach_endpoints(mode: Mode) {
    let rounds = std::env::var("PORTOLAN_ROUNDS").map_or(1, |text| text.parse().unwrap());
    let addresses: Vec<IpAddr> = (1..=ADDRESSES)
        .flat_map(|number| {
            [format!("198.51.100.{number}"), format!("2001:db8:51::{number:x}")]
                .map(|text| text.parse().unwrap())
        })
        .collect();
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external().with("/spec/externalIPs", json!(addresses)), "Rl1 Rl2");
    let port = At::ExternalIp.socket(Family::Ipv4).port();
    let mut ports = (FIRST_PORT..=u16::MAX).cycle();
    for round in 0..rounds {
        for address in &addresses {
            let to = SocketAddr::new(*address, port);
            let lost = cluster.sender("client").namespace.run(|| burst(to, &mut ports)).unwrap();
            assert_eq!(
                lost,
                0,
                "of {CLIENTS} datagrams to {to} in round {round}{}",
                cluster.relay_counters(Family::of(*address))
            );
        }
        if round + 1 < rounds {
            cluster.restart();
            // Otherwise the kernel's table of connections would be full in the end.
            cluster.world().node().namespace().output("conntrack", &["-F"]).unwrap();
        }
    }
}

/// Sends a datagram from each of new sockets. Returns how many are not answered.
fn burst(to: SocketAddr, ports: &mut impl Iterator<Item = u16>) -> usize {
    let any: IpAddr = if to.is_ipv4() { "0.0.0.0" } else { "::" }.parse().unwrap();
    let clients: Vec<UdpSocket> = (0..CLIENTS)
        .map(|_| {
            // A child of another test may have a copy of a former socket for a moment.
            let mut some = ports.by_ref().take(CLIENTS);
            let client = some.find_map(|port| UdpSocket::bind((any, port)).ok()).unwrap();
            client.connect(to).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client
        })
        .collect();
    for client in &clients {
        client.send(b"hello").unwrap();
    }
    clients.iter().filter(|client| client.recv(&mut [0; 256]).is_err()).count()
}
