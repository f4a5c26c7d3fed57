//! Many connections, up to the limit and beyond.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portolan_model::Protocol;
use portolan_relay::{RelayOptions, raise_descriptors};
use portolan_testkit::eventually;
use rustix::net::{AddressFamily, SocketType};

use crate::support::{Bed, PATIENCE, admitted, echo, name};

/// The length of the backend's accept queue.
const QUEUE: &str = "20000";

/// Holds the connections of the backend or of the clients: one process has too few descriptors for both and the relay.
#[test]
#[ignore = "the other processes of ten_thousand_connections_at_once"]
fn holder() {
    let Ok(order) = std::env::var("HOLD") else { return };
    let (role, rest) = order.split_once(' ').unwrap();
    let (address, many) = rest.split_once(' ').unwrap();
    raise_descriptors();
    let mut held: Vec<TcpStream> = Vec::new();
    if role == "backend" {
        let listener = std::net::TcpListener::bind(address).unwrap();
        rustix::net::listen(&listener, QUEUE.parse().unwrap()).unwrap();
        for mut stream in listener.incoming().map_while(Result::ok) {
            stream.write_all(b"h").unwrap();
            held.push(stream);
        }
    }
    for _ in 0..many.parse().unwrap() {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        held.push(stream);
    }
    for stream in &mut held {
        assert_eq!(name(stream).unwrap(), b'h');
    }
    println!("held");
    // Until the parent closes the pipe.
    let _ = std::io::stdin().read(&mut [0]);
}

fn hold(bed: &Bed, order: &str) -> Child {
    let mut command = bed.namespace.command(std::env::current_exe().unwrap());
    command.args(["--exact", "limits::holder", "--ignored", "--nocapture"]).env("HOLD", order);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn ten_thousand_connections_at_once() {
    // Fewer than 10,000 if this process may not have as many descriptors. A fifth of these is left to concurrent tests.
    let many = 10_000.min((raise_descriptors() / 5 * 4).saturating_sub(600) / 2);
    let limits = vec![PATIENCE];
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions { connect_limits: limits, ..RelayOptions::default() });
    // If the backend's accept queue were full, a connection would wait for TCP to repeat its first packet: after 1, 3, 7 s and
    // so on, at last after two minutes. With SYN cookies, the backend's kernel would forget connections whose last packet of
    // the handshake finds it full.
    let settings = [
        ("net/core/somaxconn", QUEUE),
        ("net/ipv4/tcp_max_syn_backlog", QUEUE),
        ("net/ipv4/tcp_syncookies", "0"),
    ];
    bed.namespace.write_sysctls(&settings.map(|(name, value)| (name.to_owned(), value))).unwrap();
    let address = "127.0.0.1:8000";
    let mut backend = hold(&bed, &format!("backend {address} 0"));
    bed.backends(&[address.parse().unwrap()]);
    let up = || bed.namespace.run(|| TcpStream::connect(address)).unwrap().is_ok();
    eventually(PATIENCE, "a backend", up).unwrap();
    let mut clients = hold(&bed, &format!("clients {} {many}", bed.frontend));
    let lines = BufReader::new(clients.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("held")), "all are served");
    assert_eq!(bed.counters().open.load(Ordering::Relaxed), many as u64);
    drop(clients.stdin.take());
    clients.wait().unwrap();
    backend.kill().unwrap();
    backend.wait().unwrap();
    bed.wait_for("all closed", |counters| &counters.open, 0);
}

/// Opens a connection to the frontend from a port.
fn connect_from(bed: &Bed, port: u16) -> io::Result<TcpStream> {
    let connect = || {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
        rustix::net::connect(&socket, &bed.frontend)?;
        Ok::<_, rustix::io::Errno>(TcpStream::from(socket))
    };
    let stream = bed.namespace.run(connect).unwrap()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// For a minute after a connection that the relay closed first, its port is in use (`TIME_WAIT`). With a thousand short
/// connections a second, none may be left.
#[test]
fn an_endpoint_to_which_no_port_is_free_is_not_set_aside() {
    const PORTS: u16 = 10;
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    let first = echo(bed.listen(), b'a');
    let second = echo(bed.listen(), b'b');
    let range = [("net/ipv4/ip_local_port_range".to_owned(), "20000 20009")];
    bed.namespace.write_sysctls(&range).unwrap();
    bed.backends(&[first]);
    // Neither the backends nor the clients have one of these ports.
    let mut ports = 21_000..;
    let mut connect = |bed: &Bed| connect_from(bed, ports.next().unwrap());
    let mut held: Vec<TcpStream> = (0..PORTS).map(|_| connect(&bed).unwrap()).collect();
    assert!(held.iter_mut().all(|stream| name(stream).unwrap() == b'a'));
    // A reset may come during the handshake or later.
    let reset = connect(&bed).and_then(|mut stream| name(&mut stream)).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
    bed.wait_for("one without a port", |counters| &counters.no_room, 1);
    bed.backends(&[first, second]);
    for _ in 0..PORTS {
        let mut stream = connect(&bed).unwrap();
        assert_eq!(name(&mut stream).unwrap(), b'b', "the other endpoint is tried");
        held.push(stream);
    }
    assert_eq!(bed.counters().failing.load(Ordering::Relaxed), 0);
    assert_eq!(bed.counters().attempts_failed.load(Ordering::Relaxed), 0);
}

#[test]
fn at_the_limit_new_ones_are_refused_and_old_ones_go_on() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions { connections_max: 100, ..RelayOptions::default() });
    bed.backends(&[echo(bed.listen(), b'a')]);
    let mut held: Vec<TcpStream> = Vec::new();
    let refused = loop {
        match admitted(&bed) {
            Ok(stream) => held.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
    assert_eq!(held.len(), 80, "one Service leaves a fifth to others");
    assert_eq!(bed.counters().no_room.load(Ordering::Relaxed), 1);
    // New clients are refused, again and again.
    for _ in 0..1000 {
        assert!(admitted(&bed).is_err());
    }
    for stream in &mut held {
        stream.write_all(b"x").unwrap();
        assert_eq!(name(stream).unwrap(), b'x');
    }
    drop(held.pop());
    bed.wait_for("one closed", |counters| &counters.open, 79);
    admitted(&bed).unwrap();
}

/// Clients of one Service hold its whole share by sending a byte now and then, while others try to connect all the time.
#[test]
fn slow_clients_at_the_limit_starve_no_other_service() {
    const SERVED: u32 = 320;
    const REFUSED: u64 = 200;
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions { connections_max: 100, ..RelayOptions::default() });
    bed.backends(&[echo(bed.listen(), b'a')]);
    let other = bed.other_service(&[echo(bed.listen(), b'b')]);
    let mut held: Vec<TcpStream> = std::iter::from_fn(|| admitted(&bed).ok()).collect();
    assert_eq!(held.len(), 80);
    let (bed, over) = (&bed, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(admitted(bed).is_err(), "there is no room for more");
                }
            });
        }
        let mut served = 0;
        while served < SERVED {
            // Sixteen connections: with 20 free places, the other Service may hold up to four times what remains free.
            let mut streams: Vec<TcpStream> = (0..16).map(|_| bed.connect_to(other)).collect();
            for stream in &mut streams {
                assert_eq!(name(stream).unwrap(), b'b', "after {served}");
                served += 1;
            }
            for stream in &mut held {
                stream.write_all(b"x").unwrap();
                assert_eq!(name(stream).unwrap(), b'x', "those that are in stay in");
            }
            drop(streams);
            bed.wait_for("the others have closed", |counters| &counters.open, 80);
        }
        let refused = || bed.counters().no_room.load(Ordering::Relaxed) >= REFUSED;
        eventually(PATIENCE, "refused connections", refused).unwrap();
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn slow_clients_delay_no_other_client() {
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions::default());
    bed.backends(&[echo(bed.listen(), b'a')]);
    // Each sends without reading until no more data is accepted.
    let mut slow: Vec<TcpStream> = (0..100).map(|_| bed.connect()).collect();
    let data = vec![7; 256 << 10];
    for stream in &mut slow {
        stream.set_nonblocking(true).unwrap();
        while stream.write(&data).is_ok() {}
    }
    // A relay that waited for a slow client would let these reads time out.
    for _ in 0..200 {
        let mut stream = bed.connect();
        assert_eq!(name(&mut stream).unwrap(), b'a');
        stream.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
    }
    for stream in &mut slow {
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(name(stream).unwrap(), b'a', "and they still can read");
    }
}
