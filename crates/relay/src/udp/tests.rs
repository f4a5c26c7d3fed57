use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan_model::{Backend, Change, Forwarding, ServicePortName};
use portolan_testkit::{Namespace, eventually};

use super::*;

const PATIENCE: Duration = Duration::from_secs(120);
const SECOND: Duration = Duration::from_secs(1);
/// With five places, one Service gets four.
const PLACES: usize = 4;

/// The flows of one Service with one backend. The time is the test's.
struct Flowing {
    udp: Udp,
    table: RelayTable,
    destinations: Destinations,
    poller: Poller,
    options: RelayOptions,
    counters: Counters,
    frontend: SocketAddr,
    backend: UdpSocket,
    now: Instant,
}

/// Runs a test of the flows in a namespace of its own.
fn flowing(check: impl FnOnce(Flowing) + Send) {
    let namespace = Namespace::new("flows").expect("this test needs root");
    namespace.ip("link set lo up").unwrap();
    namespace.run(|| check(Flowing::new())).unwrap();
}

fn local_socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

impl Flowing {
    fn new() -> Self {
        let (backend, frontend) = (local_socket(), "127.0.0.9:53".parse().unwrap());
        let at = backend.local_addr().unwrap();
        let backends = Box::new([Backend { address: at.ip(), port: at.port(), may_hairpin: false }]);
        let [namespace, service, port] = ["kube-system", "dns", ""].map(Arc::from);
        let name = Arc::new(ServicePortName { namespace, service, port, protocol: Protocol::Udp });
        let new = Some(Arc::new(Forwarding::plain(frontend, Protocol::Udp, backends)));
        let mut table = RelayTable::default();
        table.apply(&Change { name, family: Family::Ipv4, old: None, new });
        let options = RelayOptions { flows_max: PLACES + 1, ..RelayOptions::default() };
        Self {
            udp: Udp::new(&options),
            table,
            destinations: Destinations::new(Capture::Tproxy, None),
            poller: Poller::new().unwrap(),
            options,
            counters: Counters::default(),
            frontend,
            backend,
            now: Instant::now(),
        }
    }

    fn parts(&mut self) -> (&mut Udp, Context<'_>) {
        let Self { udp, table, destinations, poller, options, counters, now, .. } = self;
        (udp, Context { table, destinations, poller, options, counters, now: *now })
    }

    /// Passes on a question of a client. Returns the relay's address towards the backend, or `None` if the question is lost.
    fn ask(&mut self, client: &UdpSocket) -> Option<SocketAddr> {
        let key = (client.local_addr().unwrap(), self.frontend);
        let (udp, mut context) = self.parts();
        let lost = udp.flows.pass_on(key, &[IoSlice::new(b"question")], Scope::Cluster, &mut context);
        (lost == 0).then(|| self.backend.recv_from(&mut [0; 8]).unwrap().1)
    }

    /// Answers a question.
    fn answer(&mut self, client: &UdpSocket, relay: SocketAddr) {
        self.backend.send_to(b"answer", relay).unwrap();
        let mut events = Vec::new();
        self.poller.wait(Some(PATIENCE), &mut events).unwrap();
        for (token, readiness) in events {
            let Token::Flow(slot) = token else { panic!("{token:?}") };
            let (udp, mut context) = self.parts();
            udp.answer(slot, readiness, &[], &mut context);
        }
        let mut answer = [0; 6];
        assert_eq!(client.recv_from(&mut answer).unwrap(), (6, self.frontend));
        assert_eq!(&answer, b"answer");
    }

    /// Checks how many flows there are, in every place that counts them, and how many have ended in favour of others.
    fn has(&self, flows: usize, replaced: u64) {
        let service = self.table.find(Protocol::Udp, self.frontend).unwrap();
        let counts = [self.udp.flows.flows.len(), self.udp.flows.share.taken(), self.table.held(service)];
        assert_eq!(counts, [flows; 3]);
        assert_eq!(self.counters.flows_open.load(Ordering::Relaxed), flows as u64);
        assert_eq!(self.counters.flows_replaced.load(Ordering::Relaxed), replaced);
        // A child of another test may have a copy of a socket for a moment.
        let port = format!(":{:04X} ", self.backend.local_addr().unwrap().port());
        let sockets = || {
            let all = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
            let to_backend = all.lines().filter_map(|line| line.split_once(": ")?.1.split_once(' '));
            to_backend.filter(|(_, rest)| rest.get(8..14) == Some(&port)).count()
        };
        eventually(PATIENCE, "one socket for each flow", || sockets() == flows).unwrap();
    }

    fn refused(&self) -> u64 {
        self.counters.no_room.load(Ordering::Relaxed)
    }
}

#[test]
fn an_answered_flow_ends_in_favour_of_a_new_one() {
    flowing(|mut flowing| {
        let clients: Vec<UdpSocket> = (0..2 * PLACES).map(|_| local_socket()).collect();
        let (first, others) = clients.split_at(PLACES);
        for client in first {
            let relay = flowing.ask(client).unwrap();
            flowing.answer(client, relay);
        }
        flowing.has(PLACES, 0);
        flowing.now += SECOND / 2;
        assert_eq!(flowing.ask(&others[0]), None, "all were used a moment ago");
        assert_eq!(flowing.refused(), 1);
        flowing.has(PLACES, 0);
        flowing.now += SECOND / 2;
        for (client, replaced) in others.iter().zip(1..) {
            let relay = flowing.ask(client).unwrap();
            flowing.answer(client, relay);
            flowing.has(PLACES, replaced);
        }
        assert_eq!(flowing.refused(), 1);
        flowing.now += flowing.options.udp_idle;
        let (udp, Context { table, counters, now, .. }) = flowing.parts();
        udp.expire(table, counters, now);
        flowing.has(0, PLACES as u64);
    });
}

#[test]
fn flows_that_wait_for_an_answer_stay_and_the_log_says_that_others_are_lost() {
    flowing(|mut flowing| {
        let clients: Vec<UdpSocket> = (0..PLACES).map(|_| local_socket()).collect();
        let other = local_socket();
        let relays: Vec<SocketAddr> = clients.iter().map(|client| flowing.ask(client).unwrap()).collect();
        flowing.now += flowing.options.udp_idle / 2;
        for refused in 1..=3 {
            assert_eq!(flowing.ask(&other), None);
            assert_eq!(flowing.refused(), refused);
        }
        let now = flowing.now;
        assert!(!flowing.udp.flows.refusal_log.is_due(now), "it has been logged");
        flowing.has(PLACES, 0);
        for (client, relay) in clients.iter().zip(relays) {
            flowing.answer(client, relay);
        }
        flowing.now += SECOND;
        assert!(flowing.ask(&other).is_some());
        flowing.has(PLACES, 1);
    });
}

#[test]
fn no_flow_ends_in_vain() {
    flowing(|mut flowing| {
        let clients: Vec<UdpSocket> = (0..PLACES).map(|_| local_socket()).collect();
        for client in &clients {
            let relay = flowing.ask(client).unwrap();
            flowing.answer(client, relay);
        }
        flowing.now += SECOND;
        // No endpoint is left for the other scope.
        let key = (local_socket().local_addr().unwrap(), flowing.frontend);
        let (udp, mut context) = flowing.parts();
        let lost = udp.flows.pass_on(key, &[IoSlice::new(b"question")], Scope::Local, &mut context);
        assert_eq!((lost, flowing.refused()), (1, 0));
        flowing.has(PLACES, 0);
    });
}

#[test]
fn an_answered_flow_ends_if_no_source_port_is_free() {
    flowing(|mut flowing| {
        let clients: Vec<UdpSocket> = (0..3).map(|_| local_socket()).collect();
        let other = local_socket();
        // Two ports are left for flows.
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "20000 20001").unwrap();
        let relays: Vec<Option<SocketAddr>> = clients.iter().map(|client| flowing.ask(client)).collect();
        assert!(relays[0].is_some() && relays[1].is_some() && relays[2].is_none(), "{relays:?}");
        flowing.has(2, 0);
        flowing.now += SECOND;
        assert_eq!((flowing.ask(&other), flowing.refused()), (None, 2), "both wait for their answers");
        for (client, relay) in clients.iter().zip(relays.into_iter().flatten()) {
            flowing.answer(client, relay);
        }
        flowing.now += SECOND;
        let relay = flowing.ask(&other).unwrap();
        flowing.answer(&other, relay);
        flowing.has(2, 1);
        assert_eq!(flowing.refused(), 2);
    });
}
