//! Datagrams through the relay, in network namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test program"
)]
#![allow(dead_code, reason = "the support is shared with other tests")]

mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_model::{Family, Protocol};
use portolan_relay::RelayOptions;
use portolan_testkit::{Namespace, eventually, eventually_some};

use support::{Bed, PATIENCE};

/// Answers each datagram with its name and the datagram.
fn echo(bed: &Bed, name: u8) -> SocketAddr {
    echo_at(socket(bed), name)
}

fn echo_at(socket: UdpSocket, name: u8) -> SocketAddr {
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((count, client)) = socket.recv_from(&mut buffer[1..]) {
            buffer[0] = name;
            let _ = socket.send_to(&buffer[..=count], client);
        }
    });
    address
}

fn socket(bed: &Bed) -> UdpSocket {
    bed.namespace.run(|| UdpSocket::bind((bed.frontend.ip(), 0))).unwrap().unwrap()
}

/// Frees the address of a socket, and returns it. Closing alone has no effect while another test's child has a copy (see
/// [`portolan_testkit::close`]).
fn abandon(socket: UdpSocket) -> SocketAddr {
    let address = socket.local_addr().unwrap();
    rustix::net::connect_unspec(&socket).unwrap();
    drop(socket);
    address
}

fn client(bed: &Bed) -> UdpSocket {
    let socket = socket(bed);
    // The client accepts answers from the frontend's address only.
    socket.connect(bed.frontend).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn ask(client: &UdpSocket, text: &[u8]) -> Vec<u8> {
    client.send(text).unwrap();
    let mut buffer = vec![0; 65_536];
    let count = client.recv(&mut buffer).unwrap();
    buffer[..count].to_vec()
}

/// Like [`ask`], but answers to earlier questions, which come late, are skipped.
fn ask_anew(client: &UdpSocket, text: &[u8]) -> std::io::Result<Vec<u8>> {
    client.send(text)?;
    let mut buffer = vec![0; 65_536];
    loop {
        let count = client.recv(&mut buffer)?;
        if buffer[..count].get(1..) == Some(text) {
            return Ok(buffer[..count].to_vec());
        }
    }
}

/// Asks until a question is answered, and returns who answers. An endpoint that was set aside gets a question after its time,
/// and loses it. Since questions keep their order, none is on its way after the return.
fn who_answers(client: &UdpSocket) -> u8 {
    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut number = 0_u8;
    let answer = eventually_some(PATIENCE, "an answer", || {
        number = number.wrapping_add(1);
        ask_anew(client, &[number]).ok()
    });
    answer.unwrap()[0]
}

/// Receives an answer of this length. Returns its last byte.
fn receive(client: &UdpSocket, length: usize) -> u8 {
    let mut buffer = vec![0; 65_536];
    assert_eq!(client.recv(&mut buffer).unwrap(), length);
    buffer[length - 1]
}

#[test]
fn datagrams_that_arrive_before_the_table_wait_for_it() {
    let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
    let backend = echo(&bed, b'a');
    let client = client(&bed);
    for number in 0..20 {
        client.send(&[number]).unwrap();
    }
    bed.backends(&[backend]);
    for number in 0..20 {
        let mut answer = [0; 2];
        client.recv(&mut answer).unwrap();
        assert_eq!(answer, [b'a', number]);
    }
}

#[test]
fn bursts_of_any_lengths_come_through_in_order() {
    let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
    let backend = echo(&bed, b'a');
    let clients = [client(&bed), client(&bed)];
    // Several of one length, a shorter one, empty ones, long ones: all wait for the table, those of both clients mixed. All of
    // them fit into the receive buffer of the backend.
    let lengths = [100, 100, 100, 40, 40, 1, 0, 0, 1200, 1200, 1200, 7, 20_000, 10_000, 10_000, 3];
    let datagrams: Vec<Vec<u8>> =
        (0_u8..).zip(lengths).map(|(number, length)| vec![number; length]).collect();
    for datagram in &datagrams {
        for client in &clients {
            client.send(datagram).unwrap();
        }
    }
    bed.backends(&[backend]);
    let mut answer = vec![0; 65_536];
    for client in &clients {
        for datagram in &datagrams {
            let count = client.recv(&mut answer).unwrap();
            assert_eq!(answer[..count], [b"a", &datagram[..]].concat());
        }
    }
    bed.wait_for("two flows", |counters| &counters.flows, 2);
    bed.wait_for("nothing is lost", |counters| &counters.datagrams_lost, 0);
}

#[test]
fn of_a_burst_an_endpoint_that_refuses_costs_one_datagram() {
    const MANY: usize = 30;
    for gone_first in [true, false] {
        let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
        let (one, other) = (socket(&bed), socket(&bed));
        // The first flow gets the endpoint with the lower port.
        let is_lower = one.local_addr().unwrap().port() < other.local_addr().unwrap().port();
        let (gone, good) = if is_lower == gone_first { (one, other) } else { (other, one) };
        let backends = [abandon(gone), echo_at(good, b'a')];
        let client = client(&bed);
        for number in 0..MANY {
            client.send(&[u8::try_from(number).unwrap(); 50]).unwrap();
        }
        bed.backends(&backends);
        let mut last = 0;
        for _ in 1..MANY {
            last = receive(&client, 51);
        }
        assert!(usize::from(last) + 2 >= MANY, "{last}");
    }
}

#[test]
fn a_flow_keeps_its_backend_and_the_next_flow_gets_the_next_one() {
    let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
    let mut backends = [echo(&bed, b'a'), echo(&bed, b'b')];
    backends.sort_unstable();
    bed.backends(&backends);
    let clients = [client(&bed), client(&bed)];
    let names = clients.each_ref().map(|client| ask(client, b"1")[0]);
    assert_ne!(names[0], names[1]);
    for _ in 0..10 {
        for (client, name) in clients.iter().zip(names) {
            assert_eq!(ask(client, b"hello"), [&[name][..], b"hello"].concat());
        }
    }
    let long = vec![1; 60_000];
    assert_eq!(ask(&clients[0], &long).len(), 60_001);
    assert_eq!(ask(&clients[0], b"").len(), 1, "an empty datagram is one, too");
    bed.wait_for("two flows", |counters| &counters.flows, 2);
    let carried = bed.counters().bytes_to_backends.load(Ordering::Relaxed);
    assert_eq!(carried, 2 + 20 * 5 + long.len() as u64);
    bed.wait_for("answers", |counters| &counters.bytes_to_clients, carried + 24);
}

/// Another socket there would receive datagrams of clients before it is connected, and the relay would not read them.
#[test]
fn only_the_listener_is_bound_to_the_frontend() {
    for family in Family::BOTH {
        let mut bed = Bed::with(family, Protocol::Udp, RelayOptions::default());
        bed.backends(&[echo(&bed, b'a')]);
        let client = client(&bed);
        assert_eq!(ask(&client, b"x"), b"ax");
        bed.wait_for("a flow", |counters| &counters.flows_open, 1);
        let name = if family == Family::Ipv4 { "udp" } else { "udp6" };
        let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
        let sockets = bed.namespace.run(read).unwrap();
        let bound = sockets.lines().filter_map(|line| line.split_whitespace().nth(1));
        assert_eq!(bound.filter(|local| *local == in_proc(bed.frontend)).count(), 1, "{sockets}");
    }
}

/// Returns an address as `/proc/net/udp` and `/proc/net/udp6` have it (`proc(5)`).
fn in_proc(address: SocketAddr) -> String {
    let word = |word: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(word));
    let words: String = match address.ip() {
        IpAddr::V4(ip) => word(ip.octets()),
        IpAddr::V6(ip) => ip.octets().as_chunks().0.iter().copied().map(word).collect(),
    };
    format!("{words}:{:04X}", address.port())
}

/// Such as one that collects logs.
#[test]
fn a_backend_that_never_answers_is_no_longer_set_aside_when_a_flow_has_lasted() {
    let options = RelayOptions {
        udp_idle: Duration::from_secs(1),
        connect_limits: vec![Duration::from_millis(500)],
        ..RelayOptions::default()
    };
    for is_steady in [false, true] {
        let mut bed = Bed::new(Protocol::Udp, options.clone());
        let gone = abandon(socket(&bed));
        bed.backends(&[gone]);
        let client = client(&bed);
        client.send(b"lost").unwrap();
        bed.wait_for("it is set aside", |counters| &counters.failing, 1);
        bed.wait_for("no flow", |counters| &counters.flows_open, 0);
        let _sink = bed.namespace.run(|| UdpSocket::bind(gone)).unwrap().unwrap();
        let sound = eventually(PATIENCE, "it is sound", || {
            if is_steady || bed.counters().flows_open.load(Ordering::Relaxed) == 0 {
                client.send(b"log").unwrap();
            }
            bed.counters().failing.load(Ordering::Relaxed) == 0
        });
        assert!(sound.is_ok(), "steady: {is_steady}");
    }
}

#[test]
fn an_icmp_error_ends_a_flow_and_another_backend_gets_the_next_datagram() {
    let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
    let spare = echo(&bed, b'a');
    let gone = abandon(socket(&bed));
    bed.backends(&[gone]);
    let client = client(&bed);
    client.send(b"lost").unwrap();
    bed.wait_for("a flow", |counters| &counters.flows, 1);
    bed.wait_for("no flow", |counters| &counters.flows_open, 0);
    bed.wait_for("it is set aside", |counters| &counters.failing, 1);
    bed.backends(&[gone, spare]);
    assert_eq!(who_answers(&client), b'a');
}

#[test]
fn every_way_of_being_unreachable_ends_a_flow() {
    const WAYS: [(Family, &str, &[&str]); 2] = [
        (
            Family::Ipv4,
            "ip",
            &[
                "net-unreachable",
                "host-unreachable",
                "port-unreachable",
                "host-prohibited",
                "admin-prohibited",
            ],
        ),
        (Family::Ipv6, "ip6", &["no-route", "addr-unreachable", "port-unreachable", "admin-prohibited"]),
    ];
    for (family, table, ways) in WAYS {
        let mut bed = Bed::with(family, Protocol::Udp, RelayOptions::default());
        bed.namespace.output("nft", &[&format!("add table {table} t")]).unwrap();
        let chain = format!("add chain {table} t c {{ type filter hook input priority 0; }}");
        bed.namespace.output("nft", &[&chain]).unwrap();
        let icmp = if family == Family::Ipv4 { "icmp" } else { "icmpv6" };
        for way in ways {
            // A server listens, but a rule rejects its datagrams.
            let (hidden, spare) = (echo(&bed, b'h'), echo(&bed, b'a'));
            let rule = format!("add rule {table} t c udp dport {} reject with {icmp} {way}", hidden.port());
            bed.namespace.output("nft", &[&rule]).unwrap();
            bed.backends(&[hidden]);
            let client = client(&bed);
            let flows = bed.counters().flows.load(Ordering::Relaxed);
            client.send(b"lost").unwrap();
            bed.wait_for(way, |counters| &counters.flows, flows + 1);
            bed.wait_for(way, |counters| &counters.flows_open, 0);
            bed.wait_for(way, |counters| &counters.failing, 1);
            bed.backends(&[hidden, spare]);
            assert_eq!(who_answers(&client), b'a', "{way}: the one that cannot be reached is set aside");
            bed.backends(&[]);
            client.send(b"unanswered").unwrap();
            bed.wait_for(way, |counters| &counters.flows_open, 0);
        }
    }
}

#[test]
fn a_datagram_longer_than_the_path_mtu_ends_no_flow() {
    let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
    let [router, far] = ["router", "far"].map(|name| Namespace::new(name).unwrap());
    let (to_relay, to_far) = (bed.namespace.path(), far.path());
    let links = format!(
        "link add near address 02:00:00:00:00:01 type veth peer name out netns {to_relay}\n\
         link add narrow mtu 1300 type veth peer name eth0 mtu 1300 netns {to_far}\n\
         addr add 10.98.0.2/24 dev near\nlink set near up\naddr add 10.98.1.1/24 dev narrow\nlink set narrow up"
    );
    router.ip(&links).unwrap();
    router.write_sysctls(&[("net/ipv4/ip_forward".to_owned(), "1")]).unwrap();
    bed.namespace
        .ip("addr add 10.98.0.1/24 dev out\nlink set out up\nroute add 10.98.1.0/24 via 10.98.0.2")
        .unwrap();
    far.ip("addr add 10.98.1.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.98.1.1").unwrap();
    let socket = far.run(|| UdpSocket::bind("10.98.1.2:7000")).unwrap().unwrap();
    bed.backends(&[echo_at(socket, b'a')]);
    let client = client(&bed);
    assert_eq!(ask(&client, b"short"), b"ashort");
    client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let long = [1; 1400];
    let mut lost = 0;
    eventually(PATIENCE, "a long one comes through", || {
        client.send(&long).unwrap();
        let came = client.recv(&mut [0; 2000]).is_ok_and(|count| count == long.len() + 1);
        lost += usize::from(!came);
        came
    })
    .unwrap();
    assert!(lost > 0, "the way is as wide as any");
    bed.wait_for("the same flow all the time", |counters| &counters.flows, 1);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    for length in (1000..2000).step_by(100) {
        assert_eq!(ask_anew(&client, &vec![7; length]).unwrap().len(), length + 1);
    }
    for length in [1250, 1400] {
        for number in 0..30 {
            client.send(&vec![number; length]).unwrap();
        }
        let mut answers: Vec<u8> = (0..30).map(|_| receive(&client, length + 1)).collect();
        answers.sort_unstable();
        assert_eq!(answers, (0..30).collect::<Vec<u8>>(), "{length} bytes each");
    }
    bed.wait_for("and it is still there", |counters| &counters.flows, 1);
}

#[test]
fn a_removed_endpoint_gets_no_more_datagrams() {
    let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
    bed.backends(&[echo(&bed, b'a')]);
    let client = client(&bed);
    assert_eq!(ask(&client, b"x"), b"ax");
    bed.backends(&[echo(&bed, b'b')]);
    assert_eq!(ask(&client, b"x"), b"bx");
}

#[test]
fn a_flow_ends_when_another_service_gets_its_frontend() {
    let mut bed = Bed::new(Protocol::Udp, RelayOptions::default());
    bed.backends(&[echo(&bed, b'a')]);
    let client = client(&bed);
    assert_eq!(ask(&client, b"x"), b"ax");
    bed.hand_over(&[echo(&bed, b'b')]);
    assert_eq!(ask(&client, b"x"), b"bx");
    assert_eq!(ask(&client, b"y"), b"by");
    bed.wait_for("one flow each", |counters| &counters.flows, 2);
    bed.wait_for("the first one has ended", |counters| &counters.flows_open, 1);
}

/// Asks, and begins to drain the relay. Returns the client, the backend, the address to answer to, and the draining thread,
/// when the relay receives no more datagrams.
fn drain_before_the_answer(bed: &mut Bed) -> (UdpSocket, UdpSocket, SocketAddr, JoinHandle<()>) {
    let backend = socket(bed);
    backend.set_read_timeout(Some(PATIENCE)).unwrap();
    bed.backends(&[backend.local_addr().unwrap()]);
    let client = client(bed);
    client.send(b"x").unwrap();
    let (_, flow) = backend.recv_from(&mut [0]).unwrap();
    let relay = bed.relay.clone();
    let draining = std::thread::spawn(move || relay.drain(PATIENCE * 10));
    let listener = in_proc(bed.frontend);
    let read = || std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    let is_listener = |line: &str| line.split_whitespace().nth(1) == Some(&listener);
    let closed = || !bed.namespace.run(read).unwrap().lines().any(is_listener);
    eventually(PATIENCE, "a closed listener", closed).unwrap();
    (client, backend, flow, draining)
}

#[test]
fn a_draining_relay_passes_on_late_answers() {
    let options = RelayOptions { udp_answers: PATIENCE * 10, udp_idle: PATIENCE, ..RelayOptions::default() };
    let mut bed = Bed::new(Protocol::Udp, options);
    let (client, backend, flow, draining) = drain_before_the_answer(&mut bed);
    for answer in [b"1", b"2"] {
        backend.send_to(answer, flow).unwrap();
        let mut received = [0];
        client.recv(&mut received).unwrap();
        assert_eq!(&received, answer);
    }
    assert!(!draining.is_finished());
}

#[test]
fn an_idle_flow_does_not_keep_a_draining_relay() {
    let (udp_answers, udp_idle) = (Duration::from_secs(2), PATIENCE * 10);
    let mut bed = Bed::new(Protocol::Udp, RelayOptions { udp_answers, udp_idle, ..RelayOptions::default() });
    let (.., draining) = drain_before_the_answer(&mut bed);
    eventually(PATIENCE, "the end of the relay", || draining.is_finished()).unwrap();
    draining.join().unwrap();
}

#[test]
fn ten_thousand_clients_and_then_none() {
    const MANY: usize = 10_000;
    let options = RelayOptions { udp_idle: Duration::from_secs(15), ..RelayOptions::default() };
    let mut bed = Bed::new(Protocol::Udp, options);
    bed.backends(&[echo(&bed, b'a'), echo(&bed, b'b'), echo(&bed, b'c')]);
    // The clients run one after the other, each with a socket of its own. For the relay, their flows exist at the same
    // time.
    for number in 0..MANY {
        let [.., high, low] = number.to_be_bytes();
        let client =
            bed.namespace.run(|| UdpSocket::bind((Ipv4Addr::new(127, 1, high, low), 0))).unwrap().unwrap();
        client.connect(bed.frontend).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        for round in 0..2_u8 {
            let text = [&[round][..], &number.to_ne_bytes()].concat();
            assert_eq!(ask(&client, &text)[1..], text);
        }
    }
    let flows = bed.counters().flows.load(Ordering::Relaxed);
    // A client whose questions are further apart than the idle time needs a second flow.
    assert!((MANY..MANY + 20).contains(&usize::try_from(flows).unwrap()), "{flows}");
    bed.wait_for("all flows are idle", |counters| &counters.flows_open, 0);
}

#[test]
fn flows_are_bounded_and_those_that_wait_for_an_answer_stay() {
    let options = RelayOptions { flows_max: 10, udp_idle: PATIENCE * 10, ..RelayOptions::default() };
    let mut bed = Bed::new(Protocol::Udp, options);
    let backend = socket(&bed);
    backend.set_read_timeout(Some(PATIENCE)).unwrap();
    bed.backends(&[backend.local_addr().unwrap()]);
    let clients: Vec<UdpSocket> = (0..20).map(|_| client(&bed)).collect();
    for client in &clients {
        client.send(b"x").unwrap();
    }
    bed.wait_for("refused", |counters| &counters.no_room, 12);
    let (in_time, late) = clients.split_at(8);
    for _ in in_time {
        let (_, flow) = backend.recv_from(&mut [0]).unwrap();
        backend.send_to(b"a", flow).unwrap();
    }
    for client in in_time {
        assert_eq!(receive(client, 1), b'a', "those that are in stay in");
    }
    eventually(PATIENCE, "a place of one that was answered", || {
        late[0].send(b"x").unwrap();
        bed.counters().flows_replaced.load(Ordering::Relaxed) > 0
    })
    .unwrap();
    bed.wait_for("as many flows as before", |counters| &counters.flows_open, 8);
}

/// As programs look up names: each question comes from another port, and gets one answer.
#[test]
fn flows_that_were_answered_make_room_for_others() {
    const PLACES: u64 = 8;
    let options = RelayOptions { flows_max: 10, udp_idle: PATIENCE * 10, ..RelayOptions::default() };
    let mut bed = Bed::new(Protocol::Udp, options);
    bed.backends(&[echo(&bed, b'a')]);
    for _ in 0..5 * PLACES {
        // A flow that was used a moment ago makes no room yet, so a question may have to be repeated.
        assert_eq!(who_answers(&client(&bed)), b'a');
    }
    bed.wait_for("all places of the Service are taken", |counters| &counters.flows_open, PLACES);
    bed.wait_for("the others have ended early", |counters| &counters.flows_replaced, 4 * PLACES);
}
