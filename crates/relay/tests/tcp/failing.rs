//! Backends that fail: another one gets the connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_model::{Family, Protocol};
use portolan_relay::RelayOptions;
use portolan_testkit::eventually;

use crate::support::{Bed, NOWHERE, PATIENCE, admitted, echo, name, serve};

/// Options with shorter time limits.
fn quick() -> RelayOptions {
    RelayOptions {
        connect_limits: [50, 100, 200].map(Duration::from_millis).to_vec(),
        ..RelayOptions::default()
    }
}

/// Backends that refuse. All of them listen before the first one ends, since the kernel could give its port to the next one.
fn refusing<const COUNT: usize>(bed: &Bed) -> [SocketAddr; COUNT] {
    let listeners = [(); COUNT].map(|()| bed.listen());
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    for listener in &listeners {
        portolan_testkit::close(listener).unwrap();
    }
    addresses
}

/// A backend that accepts and resets at once.
fn resetting(listener: TcpListener) -> SocketAddr {
    serve(listener, |stream| {
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    })
}

#[test]
fn the_next_backend_gets_a_refused_connection() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    let alive = echo(bed.listen(), b'a');
    let [first, second, third] = refusing(&bed);
    bed.backends(&[first, second, alive, third]);
    for _ in 0..50 {
        assert_eq!(name(&mut bed.connect()).unwrap(), b'a');
    }
    let failed = bed.counters().attempts_failed.load(Ordering::Relaxed);
    assert!((1..=30).contains(&failed), "who refuses is set aside: {failed} attempts");
    bed.wait_for("those set aside", |counters| &counters.failing, 3);
    bed.wait_for("all closed", |counters| &counters.open, 0);
}

#[test]
fn a_silent_backend_costs_the_first_time_limit() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    bed.backends(&[NOWHERE, echo(bed.listen(), b'a')]);
    for _ in 0..20 {
        assert_eq!(name(&mut bed.connect()).unwrap(), b'a');
    }
    let failed = bed.counters().attempts_failed.load(Ordering::Relaxed);
    assert!((1..=10).contains(&failed), "the silent backend is set aside: {failed} attempts");
}

#[test]
fn data_sent_meanwhile_is_not_lost() {
    // So many attempts that the relay does not give up before it knows the second backend.
    let limits = vec![Duration::from_millis(50); 2000];
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions { connect_limits: limits, ..RelayOptions::default() });
    bed.backends(&[NOWHERE]);
    let mut stream = bed.connect();
    stream.write_all(b"hello").unwrap();
    bed.backends(&[NOWHERE, echo(bed.listen(), b'a')]);
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ahello");
}

#[test]
fn a_backend_that_accepts_and_resets_counts_as_refusing() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    bed.backends(&[resetting(bed.listen()), echo(bed.listen(), b'a'), resetting(bed.listen())]);
    for _ in 0..50 {
        assert_eq!(name(&mut bed.connect()).unwrap(), b'a');
    }
}

#[test]
fn a_backend_that_resets_after_client_data_is_set_aside() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    let dying = serve(bed.listen(), |mut stream| {
        let _ = stream.read(&mut [0; 1]);
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    let answering = serve(bed.listen(), |mut stream| {
        let mut byte = [0];
        let _ = stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte));
    });
    bed.backends(&[dying, answering]);
    let lost = |bed: &Bed| {
        let mut stream = bed.connect();
        stream.write_all(b"x").unwrap();
        name(&mut stream).is_err()
    };
    // One connection is lost each time the backend is tried again. Each time it is set aside for twice as long.
    let count = (0..100).filter(|_| lost(&bed)).count();
    assert!((1..=10).contains(&count), "{count} of 100");
}

#[test]
fn a_backend_that_closes_at_once_is_skipped_unless_all_do() {
    // A backend whose thread starts late closes late, and is to be skipped all the same.
    let limits = vec![PATIENCE];
    let mut bed = Bed::new(Protocol::Tcp, RelayOptions { connect_limits: limits, ..RelayOptions::default() });
    let closing = [serve(bed.listen(), drop), serve(bed.listen(), drop)];
    bed.backends(&[closing[0], echo(bed.listen(), b'a'), closing[1]]);
    for _ in 0..50 {
        assert_eq!(name(&mut bed.connect()).unwrap(), b'a');
    }
    bed.backends(&closing);
    assert_eq!(name(&mut bed.connect()).unwrap_err().kind(), ErrorKind::UnexpectedEof, "an end is an end");
}

#[test]
fn a_backend_that_ends_an_idle_connection_has_not_failed() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    let impatient = bed.listen();
    bed.backends(&[impatient.local_addr().unwrap(), echo(bed.listen(), b'a')]);
    let mut clients: Vec<TcpStream> = (0..4).map(|_| bed.connect()).collect();
    let idle = [impatient.accept().unwrap(), impatient.accept().unwrap()];
    let all_open = || bed.relay.snapshot(Family::Ipv4).is_some_and(|entries| entries[0].connections == 4);
    eventually(PATIENCE, "the relay knows that all are open", all_open).unwrap();
    // A close counts as deliberate after the time of the longest attempt.
    let (open, longer) = (Instant::now(), Duration::from_millis(500));
    eventually(PATIENCE, "more than this time", || open.elapsed() >= longer).unwrap();
    drop(idle);
    let mut names: Vec<Option<u8>> = clients.iter_mut().map(|client| name(client).ok()).collect();
    names.sort_unstable();
    assert_eq!(names, [None, None, Some(b'a'), Some(b'a')], "in turns, and an end is an end");
    assert_eq!(bed.counters().attempts_failed.load(Ordering::Relaxed), 0);
    serve(impatient, |mut stream| {
        let _ = stream.read(&mut [0]).and_then(|_| stream.write_all(b"i"));
    });
    let mut served: Vec<u8> = (0..4)
        .map(|_| {
            let mut stream = bed.connect();
            stream.write_all(b"x").unwrap();
            name(&mut stream).unwrap()
        })
        .collect();
    served.sort_unstable();
    assert_eq!(served, *b"aaii", "no endpoint is set aside");
}

#[test]
fn the_client_is_reset_when_all_have_failed() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    let [gone] = refusing(&bed);
    bed.backends(&[gone, NOWHERE]);
    assert_eq!(admitted(&bed).unwrap_err().kind(), ErrorKind::ConnectionReset);
    bed.wait_for("one without backend", |counters| &counters.all_failed, 1);
    bed.backends(&[]);
    assert_eq!(admitted(&bed).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_backend_that_comes_back_is_used_again() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    let listener = bed.listen();
    let address = listener.local_addr().unwrap();
    portolan_testkit::close(&listener).unwrap();
    bed.backends(&[address, echo(bed.listen(), b'a')]);
    for _ in 0..4 {
        assert_eq!(name(&mut bed.connect()).unwrap(), b'a');
    }
    echo(bed.namespace.run(|| TcpListener::bind(address)).unwrap().unwrap(), b'b');
    eventually(PATIENCE, "the other one", || name(&mut bed.connect()).unwrap() == b'b').unwrap();
}

#[test]
fn affinity_moves_with_a_failure_and_stays_there() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    let (mut first, mut second) = (bed.listen(), bed.listen());
    if first.local_addr().unwrap().port() > second.local_addr().unwrap().port() {
        std::mem::swap(&mut first, &mut second);
    }
    let addresses = [first.local_addr().unwrap(), second.local_addr().unwrap()];
    portolan_testkit::close(&first).unwrap();
    bed.service(&addresses, Some(60));
    echo(second, b'b');
    assert_eq!(name(&mut bed.connect()).unwrap(), b'b');
    echo(bed.namespace.run(|| TcpListener::bind(addresses[0])).unwrap().unwrap(), b'a');
    // Longer than the first backend is set aside.
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        assert_eq!(name(&mut bed.connect()).unwrap(), b'b');
    }
}
