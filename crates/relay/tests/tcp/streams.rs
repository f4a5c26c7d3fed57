//! The relay forwards everything unchanged, in both directions: data, ends, resets, urgent bytes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_model::Protocol;
use portolan_relay::RelayOptions;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

use crate::support::{Bed, NOWHERE, PATIENCE, echo, name};

/// A connection through the relay: the client's socket and the backend's.
fn pair(bed: &mut Bed) -> (TcpStream, TcpStream) {
    let listener = bed.listen();
    bed.backends(&[listener.local_addr().unwrap()]);
    let client = bed.connect();
    let (backend, _) = listener.accept().unwrap();
    backend.set_read_timeout(Some(PATIENCE)).unwrap();
    (client, backend)
}

/// Pseudo-random bytes.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_ne_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn connections_that_arrive_before_the_table_wait_for_it() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let backend = echo(bed.listen(), b'a');
    let mut streams = [bed.connect(), bed.connect()];
    bed.backends(&[backend]);
    for stream in &mut streams {
        assert_eq!(name(stream).unwrap(), b'a');
    }
}

#[test]
fn much_data_is_echoed_unchanged() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    bed.backends(&[echo(bed.listen(), b'a')]);
    let data = noise(64 << 20);
    let mut stream = bed.connect();
    assert_eq!(name(&mut stream).unwrap(), b'a');
    let mut writer = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Writes of all sizes, so that data goes through the buffer and through pipes.
            let mut rest = &data[..];
            for size in (0..).map(|n: usize| 1 + (n * 7919) % 200_000) {
                let (now, later) = rest.split_at(size.min(rest.len()));
                writer.write_all(now).unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer == data, "{} of {} bytes", answer.len(), data.len());
    });
    let counters = bed.counters();
    let carried =
        [&counters.bytes_to_backends, &counters.bytes_to_clients].map(|c| c.load(Ordering::Relaxed));
    assert_eq!(carried, [data.len() as u64, data.len() as u64 + 1], "with the name");
    bed.wait_for("all closed", |counters| &counters.open, 0);
}

#[test]
fn each_side_can_end_first() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let (mut client, mut backend) = pair(&mut bed);
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    backend.read_to_string(&mut text).unwrap();
    assert_eq!(text, "question");
    backend.write_all(b"answer").unwrap();
    drop(backend);
    text.clear();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "answer");

    let (mut client, mut backend) = pair(&mut bed);
    backend.write_all(b"greeting").unwrap();
    backend.shutdown(Shutdown::Write).unwrap();
    text.clear();
    client.read_to_string(&mut text).unwrap();
    client.write_all(b"thanks").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut thanks = String::new();
    backend.read_to_string(&mut thanks).unwrap();
    assert_eq!((text.as_str(), thanks.as_str()), ("greeting", "thanks"));
    bed.wait_for("all closed", |counters| &counters.open, 0);
}

#[test]
fn a_reset_stays_a_reset() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let reset = |stream: TcpStream| {
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    };
    let (mut client, mut backend) = pair(&mut bed);
    backend.write_all(b"x").unwrap();
    assert_eq!(name(&mut client).unwrap(), b'x');
    reset(client);
    assert_eq!(name(&mut backend).unwrap_err().kind(), ErrorKind::ConnectionReset);

    let (mut client, mut backend) = pair(&mut bed);
    client.write_all(b"x").unwrap();
    assert_eq!(name(&mut backend).unwrap(), b'x');
    reset(backend);
    assert_eq!(name(&mut client).unwrap_err().kind(), ErrorKind::ConnectionReset);
    bed.wait_for("all closed", |counters| &counters.open, 0);
}

/// Writes until no more data is accepted. Returns the number of bytes accepted, and the error of the last write.
fn fill(stream: &mut TcpStream) -> (usize, ErrorKind) {
    let data = noise(1 << 20);
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut total = 0;
    loop {
        match stream.write(&data[total % data.len()..]) {
            Ok(count) => total += count,
            Err(error) => return (total, error.kind()),
        }
        assert!(total < 1 << 30, "no end: the relay takes whatever it is given");
    }
}

#[test]
fn a_slow_reader_delays_the_writer_and_loses_nothing() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let (mut client, mut backend) = pair(&mut bed);
    let (taken, _) = fill(&mut client);
    let data = noise(1 << 20);
    let mut received = 0;
    client.shutdown(Shutdown::Write).unwrap();
    let mut buffer = vec![0; 100_000];
    loop {
        let count = backend.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        for byte in &buffer[..count] {
            assert_eq!(*byte, data[received % data.len()], "at {received}");
            received += 1;
        }
    }
    assert_eq!(received, taken);
}

#[test]
fn urgent_data_is_forwarded_and_blocks_nothing() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let (mut client, mut backend) = pair(&mut bed);
    // Little enough for a receive buffer, so that the urgent byte arrives before anything is read.
    let data = noise(40_000);
    client.write_all(&data[..20_000]).unwrap();
    rustix::net::send(&client, b"!", SendFlags::OOB).unwrap();
    client.write_all(&data[20_000..]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut urgent = [0];
    portolan_testkit::eventually(PATIENCE, "an urgent byte", || {
        matches!(rustix::net::recv(&backend, &mut urgent, RecvFlags::OOB), Ok((_, 1)))
    })
    .unwrap();
    assert_eq!(&urgent, b"!");
    let mut received = Vec::new();
    backend.read_to_end(&mut received).unwrap();
    assert!(received == data, "{} bytes", received.len());
}

/// The urgent byte arrives while the relay is still trying backends.
#[test]
fn an_urgent_byte_may_be_the_first() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let listener = bed.listen();
    bed.backends(&[NOWHERE, listener.local_addr().unwrap()]);
    for data in [&b""[..], b"rest", b"", b"rest"] {
        let mut client = bed.connect();
        rustix::net::send(&client, b"!", SendFlags::OOB).unwrap();
        client.write_all(data).unwrap();
        let (mut backend, _) = listener.accept().unwrap();
        let mut urgent = [0];
        portolan_testkit::eventually(PATIENCE, "an urgent byte", || {
            matches!(rustix::net::recv(&backend, &mut urgent, RecvFlags::OOB), Ok((_, 1)))
        })
        .unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        backend.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = Vec::new();
        backend.read_to_end(&mut received).unwrap();
        assert_eq!((&urgent, &received[..]), (b"!", data));
    }
}

/// Connects a client whose first data is sent with the last packet of its handshake, as the relay does.
fn connect_with(bed: &Bed, bytes: &[u8]) -> TcpStream {
    let socket = bed.namespace.run(|| rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None));
    let socket = socket.unwrap().unwrap();
    // The kernel then delays the acknowledgement until the first data (`tcp(7)`).
    rustix::net::sockopt::set_tcp_quickack(&socket, false).unwrap();
    rustix::net::connect(&socket, &bed.frontend).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.write_all(bytes).unwrap();
    stream
}

/// The first data of a client is sent with the last packet of the relay's handshake, so that no packet only acknowledges.
#[test]
fn first_data_needs_no_extra_packet() {
    const CLIENTS: usize = 100;
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let listener = bed.listen();
    let backend = listener.local_addr().unwrap();
    let rules = format!(
        "table ip t {{ counter acknowledged {{ }}; chain c {{ type filter hook output priority 0; \
         tcp dport {} tcp flags == ack counter name acknowledged; }}; }}",
        backend.port()
    );
    bed.namespace.output("nft", &[&rules]).unwrap();
    bed.backends(&[backend]);
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        // The data has arrived before the relay sees the connection, even on a busy machine.
        let client = connect_with(&bed, b"question");
        let (mut backend, _) = listener.accept().unwrap();
        backend.set_read_timeout(Some(PATIENCE)).unwrap();
        backend.read_exact(&mut [0; 8]).unwrap();
        held.push((client, backend));
    }
    let counter = bed.namespace.output("nft", &["list", "counter", "ip", "t", "acknowledged"]).unwrap();
    let packets = counter.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap();
    // The kernel sends a separate acknowledgement if the client or the relay gets no processor time for 40 ms in between.
    assert!(packets.parse::<usize>().unwrap() < CLIENTS / 2, "{counter}");
}

#[test]
fn an_idle_connection_ends_when_its_time_is_over() {
    let options = RelayOptions { idle: Duration::from_secs(20), ..RelayOptions::default() };
    let mut bed = Bed::new(Protocol::Tcp, options);
    let (mut client, mut backend) = pair(&mut bed);
    client.write_all(b"x").unwrap();
    assert_eq!(name(&mut backend).unwrap(), b'x');
    assert_eq!(name(&mut client).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(name(&mut backend).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(bed.counters().expired.load(Ordering::Relaxed), 1);
}

/// Returns true if a filled stream was reset. The kernel reports that once: to the last write, if this thread was held up for
/// as long as the relay waits, or else to the next read.
fn was_reset(ended: ErrorKind, stream: &mut TcpStream) -> bool {
    let reset = ErrorKind::ConnectionReset;
    ended == reset || name(stream).is_err_and(|error| error.kind() == reset)
}

#[test]
fn a_stalled_reader_is_disconnected_after_a_timeout() {
    let options = RelayOptions { stalled: Duration::from_millis(1500), ..RelayOptions::default() };
    let mut bed = Bed::new(Protocol::Tcp, options);
    let (client, mut backend) = pair(&mut bed);
    // Its window is zero after this, and it confirms that in answer to every probe.
    let (_, ended) = fill(&mut backend);
    bed.wait_for("the client is given up", |counters| &counters.open, 0);
    assert_eq!(bed.counters().expired.load(Ordering::Relaxed), 1);
    assert!(was_reset(ended, &mut backend));
    drop(client);

    let (mut client, backend) = pair(&mut bed);
    let (_, ended) = fill(&mut client);
    bed.wait_for("the backend is given up", |counters| &counters.open, 0);
    assert_eq!(bed.counters().expired.load(Ordering::Relaxed), 2);
    assert!(was_reset(ended, &mut client));
    drop(backend);
}

#[test]
fn connections_of_a_removed_endpoint_are_drained() {
    let mut bed =
        Bed::new(Protocol::Tcp, RelayOptions { drain: Duration::from_secs(20), ..RelayOptions::default() });
    let (mut client, mut backend) = pair(&mut bed);
    bed.backends(&[echo(bed.listen(), b'a')]);
    client.write_all(b"x").unwrap();
    assert_eq!(name(&mut backend).unwrap(), b'x', "it goes on");
    assert_eq!(name(&mut bed.connect()).unwrap(), b'a', "new ones go elsewhere");
    assert_eq!(name(&mut client).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_connection_that_another_endpoint_took_is_not_drained() {
    let options = RelayOptions {
        drain: Duration::from_secs(2),
        connect_limits: vec![Duration::from_secs(2); 5],
        ..RelayOptions::default()
    };
    let mut bed = Bed::new(Protocol::Tcp, options);
    bed.backends(&[NOWHERE]);
    let mut client = bed.connect();
    bed.wait_for("it is tried", |counters| &counters.open, 1);
    // The endpoint is removed while the connection to it is tried.
    bed.backends(&[echo(bed.listen(), b'a')]);
    assert_eq!(name(&mut client).unwrap(), b'a');
    let other = bed.other_service(&[echo(bed.listen(), b'b')]);
    let mut drained = bed.connect_to(other);
    assert_eq!(name(&mut drained).unwrap(), b'b');
    bed.other_service(&[]);
    assert_eq!(name(&mut drained).unwrap_err().kind(), ErrorKind::ConnectionReset, "its time is over");
    client.write_all(b"x").unwrap();
    assert_eq!(name(&mut client).unwrap(), b'x', "the time of its first endpoint is over, too");
}

#[test]
fn a_draining_relay_waits_for_connections() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let (mut client, mut backend) = pair(&mut bed);
    let relay = bed.relay.clone();
    let draining = std::thread::spawn(move || relay.drain(PATIENCE));
    let refused = || bed.namespace.run(|| TcpStream::connect(bed.frontend)).unwrap().is_err();
    portolan_testkit::eventually(PATIENCE, "listeners closed", refused).unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(name(&mut backend).unwrap(), b'x');
    assert!(!draining.is_finished());
    drop((client, backend));
    draining.join().unwrap();
    assert!(!bed.relay.is_running());
}

#[test]
fn two_relays_share_the_listeners() {
    let mut old = Bed::new(Protocol::Tcp, RelayOptions::default());
    let (mut client, mut backend) = pair(&mut old);
    let namespace = old.namespace.clone();
    let new = namespace
        .run(|| portolan_relay::spawn(&[portolan_model::Family::Ipv4], RelayOptions::default()))
        .unwrap()
        .unwrap();
    let old_relay = std::mem::replace(&mut old.relay, new);
    old.relay.follow([old_relay.clone()]);
    old.backends(&[echo(old.listen(), b'n')]);
    let mut made = 0;
    let takes_over = || {
        assert_eq!(name(&mut old.connect()).unwrap(), b'n', "both know the endpoints of now");
        made += 1;
        made >= 20 && old.counters().accepted.load(Ordering::Relaxed) >= 5
    };
    portolan_testkit::eventually(PATIENCE, "the new one takes over", takes_over).unwrap();
    let draining = std::thread::spawn(move || old_relay.drain(PATIENCE));
    client.write_all(b"x").unwrap();
    assert_eq!(name(&mut backend).unwrap(), b'x', "the old one goes on with what it has");
    drop((client, backend));
    let ends = || {
        assert_eq!(name(&mut old.connect()).unwrap(), b'n', "no connection is lost");
        draining.is_finished()
    };
    portolan_testkit::eventually(PATIENCE, "the old one ends", ends).unwrap();
    draining.join().unwrap();
}
