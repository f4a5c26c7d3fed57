//! Tests when session affinity ends in the kernel: the timeout begins when the last entry of the client is gone.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use portolan_ipvs::{IpvsOptions, Timeouts};
use portolan_model::{Family, Forwarding, Protocol};

use super::example::{backends, put, settings};
use super::support::{in_namespace, open_with, options, run};

const SERVICE: &str = "172.30.30.1:53";
const ENDPOINTS: [&str; 2] = ["10.183.0.1:5353", "10.183.0.2:5353"];
/// Time in seconds for which a binding lasts.
const AFFINITY: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(120);

/// Endpoints that count datagrams.
struct Endpoints([UdpSocket; 2]);

impl Endpoints {
    fn new() -> Self {
        run("ip", "link add pods type dummy");
        run("ip", "link set pods up");
        Self(ENDPOINTS.map(|place| {
            let place: SocketAddr = place.parse().unwrap();
            run("ip", &format!("address add {}/32 dev pods", place.ip()));
            let socket = UdpSocket::bind(place).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        }))
    }

    /// Sends a datagram from a new port. Returns the number of the endpoint that gets it.
    fn ask(&self) -> usize {
        let client = UdpSocket::bind("192.168.0.2:0").unwrap();
        client.send_to(b"?", SERVICE).unwrap();
        let mut found = None;
        let received = || {
            found = self.0.iter().position(|socket| socket.recv(&mut [0]).is_ok());
            found.is_some()
        };
        portolan_testkit::eventually(PATIENCE, "a datagram", received).unwrap();
        found.unwrap()
    }
}

/// Returns the number of entries of clients that are still tracked, and of bindings.
fn entries() -> (usize, usize) {
    let listed = run("ipvsadm", "--list --numeric --connection");
    let (bindings, clients): (Vec<_>, Vec<_>) = listed
        .lines()
        .filter(|line| line.starts_with("UDP"))
        .partition(|line| line.contains(" 192.168.0.2:0 "));
    (clients.len(), bindings.len())
}

#[test]
fn a_client_stays_until_its_binding_has_expired() {
    in_namespace(|| {
        let endpoints = Endpoints::new();
        let timeouts = Timeouts { udp: 1, ..Timeouts::default() };
        let mut ipvs = open_with(settings(Family::Ipv4), IpvsOptions { timeouts, ..options() });
        let forwarding = Forwarding::plain(SERVICE.parse().unwrap(), Protocol::Udp, backends(&ENDPOINTS));
        let change = |affinity| put("dns", "", Forwarding { affinity, ..forwarding.clone() });
        ipvs.apply(&[change(Some(AFFINITY))]).unwrap();
        ipvs.resync().unwrap();
        let bound_for = Duration::from_secs(AFFINITY.into());
        for _ in 0..3 {
            // On a busy machine, the binding may end between two questions. Such a round shows nothing.
            let round = portolan_testkit::eventually_some(PATIENCE, "a round within the time", || {
                let start = Instant::now();
                let mut asked: Vec<usize> = (0..6).map(|_| endpoints.ask()).collect();
                let last = Instant::now();
                asked.push(endpoints.ask());
                let bindings = entries().1;
                (start.elapsed() < bound_for).then_some((asked, bindings, last))
            });
            let (asked, bindings, last) = round.unwrap();
            let bound = asked[0];
            assert!(asked.iter().all(|endpoint| *endpoint == bound), "a client has one endpoint: {asked:?}");
            assert_eq!(bindings, 1);
            portolan_testkit::eventually(PATIENCE, "the binding expires", || entries() == (0, 0)).unwrap();
            // The kernel counts ticks, and may count late while a processor of an emulated guest pauses. So only half of the time
            // is required. A binding that ends with the client's own entry, after a second, is still noticed.
            assert!(last.elapsed() >= bound_for / 2, "the binding has expired too soon");
            // The scheduler uses endpoints in turn.
            assert_ne!(endpoints.ask(), bound, "a client without a binding is a new one");
            portolan_testkit::eventually(PATIENCE, "the binding expires", || entries() == (0, 0)).unwrap();
        }
    });
}
