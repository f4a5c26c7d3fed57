//! Refused packets: the first SYN of a TCP connection is refused, and so are later packets of a connection that the kernel no
//! longer tracks. A client that was refused is not refused again once there is an endpoint. With an endpoint, the first SYN is
//! answered.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test program: its helpers fail the test, too"
)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use portolan_model::oracle::{FlowState, Translation};
use portolan_model::verdict::Fate;
use portolan_model::{Backend, Family, Protocol};
use portolan_testkit::{Namespace, Probe, ProbeResult, eventually, probe_many};
use portolan_tests::{At, Attempt, Cluster, Mode, TARGET_PORTS, attempts_of, in_every_mode, service};
use serde_json::json;

in_every_mode! {
    a_blocking_connect_is_refused_by_the_answer_to_its_first_syn,
    a_blocking_connect_is_served_by_the_answer_to_its_first_syn,
    connections_outlive_their_endpoints_and_are_reset_once_forgotten,
    a_refused_client_reaches_new_endpoints_from_the_same_port,
}

/// The first source port of clients that connect again from the same port. The relay connects from ports above 32,767, and node
/// ports begin at 30,000.
const FIRST_SOURCE_PORT: u16 = 20_000;
/// Deadline of any response.
const PATIENCE: Duration = Duration::from_secs(20);
/// The senders of blocking connects.
const SENDERS: [&str; 5] = ["pod", "remote", "client", "node", "remote-node"];
/// The places at which the Service has a port.
const FRONTENDS: [At; 4] = [At::ClusterIp, At::ExternalIp, At::LoadBalancerIp, At::NodePort];

/// Returns the number of repeated SYNs that the kernel counts in this network namespace.
fn repeated_syns() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = counters.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|name| name == "TCPSynRetrans").unwrap();
    values.split(' ').nth(place).unwrap().parse().unwrap()
}

/// Connects like an ordinary program. Returns the error, if any, and the number of repeated SYNs.
fn connect(to: SocketAddr) -> (Option<ErrorKind>, u64) {
    let before = repeated_syns();
    let kind = TcpStream::connect(to).err().map(|error| error.kind());
    (kind, repeated_syns() - before)
}

fn a_blocking_connect_is_refused_by_the_answer_to_its_first_syn(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external(), "");
    let attempts = connects(&cluster, &[&FRONTENDS[..], &[At::WrongPort]].concat());
    let mut refused = 0;
    for (attempt, verdict) in attempts.iter().zip(cluster.judge(&attempts)) {
        if verdict.fate == Fate::Reject {
            let outcome = attempt.sender.namespace.run(|| connect(attempt.destination)).unwrap();
            assert_eq!(outcome, (Some(ErrorKind::ConnectionRefused), 0), "{attempt}");
            refused += 1;
        }
    }
    // Pods and outside senders at four frontends each, and the node at two of them at least.
    assert!(refused >= 2 * (4 * 4 + 2), "{refused} of {attempts:?}");
}

/// Returns TCP connections of all senders to these places, in both families.
fn connects(cluster: &Cluster, at: &[At]) -> Vec<Attempt> {
    let attempts = SENDERS.iter().flat_map(|sender| attempts_of(cluster.sender(sender), at));
    attempts.filter(|attempt| attempt.protocol == Protocol::Tcp).collect()
}

/// A SYN that a mode loses is repeated after a second, so the connection is served all the same. Only the counter of repeated
/// SYNs shows the loss. A relay connects to the endpoint from the node, so the node's counter must stay as it is, too.
fn a_blocking_connect_is_served_by_the_answer_to_its_first_syn(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    let node = cluster.world().node().namespace().clone();
    let mut served = 0;
    for endpoint in ["Rl1", "Rr1"] {
        cluster.put(&service().external(), endpoint);
        let attempts = connects(&cluster, &FRONTENDS);
        for (attempt, verdict) in attempts.iter().zip(cluster.judge(&attempts)) {
            assert!(matches!(verdict.fate, Fate::Backends { .. }), "{attempt} to {endpoint}: {verdict:?}");
            let repeated = || {
                let before = node.run(repeated_syns).unwrap();
                let of_sender = attempt.sender.namespace.run(|| greeted_after(attempt.destination)).unwrap();
                (of_sender, node.run(repeated_syns).unwrap() - before)
            };
            // A machine that pauses for a second repeats a SYN once. A mode that loses first SYNs loses each of them.
            let is_served = repeated() == (0, 0);
            let again = if is_served { (0, 0) } else { repeated() };
            assert_eq!(again, (0, 0), "{attempt} to {endpoint}: repeated SYNs of the sender and the node");
            served += 1;
        }
    }
    // Both families and both endpoints.
    assert_eq!(served, 2 * 2 * SENDERS.len() * FRONTENDS.len());
}

/// A Service that loses its endpoints keeps its connections and refuses new ones. To conntrack, a packet in the
/// middle of a connection without an entry starts a new connection.
fn connections_outlive_their_endpoints_and_are_reset_once_forgotten(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    for family in Family::BOTH {
        cluster.put(&service(), "Rl1");
        let to = At::ClusterIp.socket(family);
        let from = ["pod", "node"].map(|name| cluster.sender(name).namespace.clone());
        let mut streams = from.each_ref().map(|namespace| namespace.run(|| greeted(to)).unwrap());
        cluster.put_endpoints("");
        assert_established(&cluster, to);
        for (namespace, stream) in from.iter().zip(&mut streams) {
            assert_eq!(echoed(stream), Ok(true), "{family} {}", namespace.name());
            let outcome = namespace.run(|| connect(to)).unwrap();
            assert_eq!(outcome, (Some(ErrorKind::ConnectionRefused), 0), "{family} {}", namespace.name());
            assert_eq!(echoed(stream), Ok(true), "{family} {}", namespace.name());
        }
        // The relay and IPVS keep their own records of connections.
        if mode.relays() || mode == Mode::Ipvs {
            continue;
        }
        cluster.world().node().namespace().output("conntrack", &["-F"]).unwrap();
        for stream in &mut streams {
            assert_eq!(echoed(stream), Err(ErrorKind::ConnectionReset), "{family}");
        }
    }
}

/// A refused packet must leave no entry in connection tracking. A later packet from the same port would not be translated while the
/// entry exists: ten seconds for TCP.
fn a_refused_client_reaches_new_endpoints_from_the_same_port(mode: Mode) {
    let mut cluster = Cluster::new(mode);
    cluster.put(&service().external(), "");
    let wrong_port = At::WrongPort.socket(Family::Ipv4).port();
    let at = [
        At::ClusterIp,
        At::ExternalIp,
        At::LoadBalancerIp,
        At::NodePort,
        At::WrongPort,
        At::WrongExternalPort,
    ];
    let senders = ["pod", "remote", "client", "node", "gateway"];
    let mut attempts: Vec<Attempt> =
        senders.iter().flat_map(|sender| attempts_of(cluster.sender(sender), &at)).collect();
    attempts.retain(|attempt| mode.carries(attempt.protocol));
    let verdicts = cluster.judge(&attempts);
    let refused = attempts.iter().zip(verdicts).filter(|(_, verdict)| verdict.fate == Fate::Reject);
    let probes: Vec<(&Namespace, Probe)> = refused
        .zip(FIRST_SOURCE_PORT..)
        .map(|((attempt, _), port)| {
            let probe = Probe::new(attempt.protocol, attempt.destination);
            (&attempt.sender.namespace, probe.from(attempt.sender.address(attempt.family())).from_port(port))
        })
        .collect();
    assert!(probes.len() > attempts.len() / 2, "{probes:?}");
    let mut faults = Vec::new();
    for ((from, probe), result) in probes.iter().zip(probe_many(&probes).unwrap()) {
        if result != ProbeResult::Refused {
            faults.push(format!("{} {probe:?}: {result:?} without an endpoint", from.name()));
        }
    }
    let mut reach = |probes: &[(&Namespace, Probe)]| {
        for ((from, probe), result) in probes.iter().zip(probe_many(probes).unwrap()) {
            if result.backend().is_none() {
                faults.push(format!("{} {probe:?}: {result:?} with endpoints", from.name()));
            }
        }
    };
    let (wrong, right): (Vec<_>, Vec<_>) =
        probes.iter().partition(|(_, probe)| probe.destination.port() == wrong_port);
    let to_other_ports = attempts.iter().filter(|attempt| {
        other_ports(mode).iter().any(|at| at.socket(attempt.family()) == attempt.destination)
    });
    assert_eq!(wrong.len(), to_other_ports.count(), "{wrong:?}");
    cluster.put_endpoints("Rl1 Rr1");
    reach(&right);
    let moved = (0..3).fold(service().external(), |service, port| {
        service.with(&format!("/spec/ports/{port}/port"), json!(wrong_port))
    });
    cluster.put(&moved, "Rl1 Rr1");
    reach(&wrong);
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), probes.len(), faults.join("\n"));
}

/// Returns the places at which a mode refuses ports that no Service has.
fn other_ports(mode: Mode) -> &'static [At] {
    match mode {
        Mode::Nftables | Mode::Userspace => &[At::WrongPort],
        Mode::Ipvs => &[At::WrongPort, At::WrongExternalPort],
        Mode::IptablesNft | Mode::IptablesLegacy | Mode::RedirectNft | Mode::RedirectLegacy => &[],
    }
}

/// Checks that the oracle keeps connections to the former endpoint, and refuses new ones.
fn assert_established(cluster: &Cluster, to: SocketAddr) {
    let former = SocketAddr::new(cluster.world().pods()[0].address(Family::of(to.ip())), TARGET_PORTS[0]);
    let translation = Translation { endpoint: former, masqueraded: false };
    let attempt = Attempt { sender: cluster.sender("pod").clone(), protocol: Protocol::Tcp, destination: to };
    let attempts = [attempt];
    let established = &cluster.judge_in(&attempts, FlowState::Established(Some(translation)))[0];
    assert_eq!(established.codes().collect::<Vec<_>>(), ["established"]);
    let Fate::Backends { set, .. } = &established.fate else { panic!("{established:?}") };
    assert_eq!(set.iter().map(Backend::socket).collect::<Vec<_>>(), [former]);
    assert_eq!(cluster.judge(&attempts)[0].fate, Fate::Reject);
}

/// Returns a connection on which the responder has sent its first line.
fn greeted(to: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(stream.read(&mut [0; 256]).unwrap() > 0);
    stream
}

/// Returns how many SYNs were repeated until the responder has sent its first line.
fn greeted_after(to: SocketAddr) -> u64 {
    let before = repeated_syns();
    drop(greeted(to));
    repeated_syns() - before
}

/// Returns true if the responder echoes a word.
fn echoed(stream: &mut TcpStream) -> Result<bool, ErrorKind> {
    const WORD: &[u8] = b"still there";
    let mut answer = [0; WORD.len()];
    stream.write_all(WORD).and_then(|()| stream.read_exact(&mut answer)).map_err(|error| error.kind())?;
    Ok(answer == WORD)
}

/// Sends datagrams of one family from one socket of the client outside, and returns how many have arrived at a pod that never
/// answers.
struct OneWay<'a> {
    socket: UdpSocket,
    pod: &'a Namespace,
    /// The family of the table with the counter.
    table: &'static str,
}

impl<'a> OneWay<'a> {
    fn new(client: &Namespace, pod: &'a Namespace, family: Family) -> Self {
        let (table, any) = match family {
            Family::Ipv4 => ("ip", "0.0.0.0:0"),
            Family::Ipv6 => ("ip6", "[::]:0"),
        };
        let rules = format!(
            "table {table} silent {{
                counter arrived {{ }}
                chain input {{ type filter hook input priority 0; udp dport 8080 counter name arrived; }}
                chain output {{ type filter hook output priority 0; meta l4proto udp drop; }}
            }}"
        );
        pod.output_with_input("nft", &["-f", "-"], &rules).unwrap();
        Self { socket: client.run(|| UdpSocket::bind(any).unwrap()).unwrap(), pod, table }
    }

    fn arrived(&self) -> u64 {
        let text = self.pod.output("nft", &["list", "counter", self.table, "silent", "arrived"]).unwrap();
        let (_, rest) = text.split_once("packets ").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until this many datagrams have arrived.
    fn has(&self, count: u64) {
        let arrived = || self.arrived() >= count;
        assert!(eventually(PATIENCE, "datagrams", arrived).is_ok(), "{}", self.arrived());
    }
}

/// A flow without an answer stays new for connection tracking.
#[test]
fn one_way_datagrams_of_a_client_that_is_forbidden_later_are_dropped() {
    let mut cluster = Cluster::new(Mode::Nftables);
    let world = cluster.world();
    let (client, pod) = (world.client().namespace().clone(), world.pods()[0].namespace().clone());
    let open = service().external();
    for family in Family::BOTH {
        cluster.put(&open, "Rl1");
        let to = [At::LoadBalancerIp, At::ClusterIp].map(|at| at.socket(family));
        let flow = OneWay::new(&client, &pod, family);
        let send = |to: SocketAddr| flow.socket.send_to(b"x", to).unwrap();
        send(to[0]);
        flow.has(1);
        send(to[0]);
        flow.has(2);
        cluster.put(&open.clone().source_ranges(&["192.0.2.0/24", "2001:db8:2::/64"]), "Rl1");
        for _ in 0..3 {
            send(to[0]);
        }
        // Packets of this socket stay in their order, and the cluster IP has no ranges.
        send(to[1]);
        flow.has(3);
        assert_eq!(flow.arrived(), 3, "{family}: those to the load-balancer IP are dropped");
    }
}
