//! Backends that fail: another one gets the connection.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_model::Protocol;
use portolan_relay::RelayOptions;

use crate::support::{Bed, NOWHERE, echo, name, serve};

/// Options with shorter time limits.
fn quick() -> RelayOptions {
    RelayOptions {
        connect_limits: [50, 100, 200].map(Duration::from_millis).to_vec(),
        ..RelayOptions::default()
    }
}

fn refusing(bed: &Bed) -> std::net::SocketAddr {
    bed.listen().local_addr().unwrap()
}

/// A backend that accepts and resets at once.
fn resetting(listener: TcpListener) -> std::net::SocketAddr {
    serve(listener, |stream| {
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    })
}

#[test]
fn the_next_backend_gets_a_refused_connection() {
    let mut bed = Bed::new(Protocol::Tcp, quick());
    let alive = echo(bed.listen(), b'a');
    bed.backends(&[refusing(&bed), refusing(&bed), alive, refusing(&bed)]);
    for _ in 0..50 {
        assert_eq!(name(&mut bed.connect()).unwrap(), b'a');
    }
    let failed = bed.counters().attempts_failed.load(Ordering::Relaxed);
    assert!((1..=12).contains(&failed), "who refuses is set aside: {failed} attempts");
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
    let mut bed = Bed::new(Protocol::Tcp, quick());
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
    let mut bed = Bed::new(Protocol::Tcp, quick());
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
    // Longer than the longest attempt. A client that has sent nothing by then sees the end.
    let idle = Duration::from_millis(500);
    let impatient = serve(bed.listen(), move |mut stream| {
        stream.set_read_timeout(Some(idle)).unwrap();
        if stream.read(&mut [0]).is_ok_and(|count| count > 0) {
            let _ = stream.write_all(b"i");
        }
    });
    bed.backends(&[impatient, echo(bed.listen(), b'a')]);
    let mut names: Vec<Option<u8>> = (0..4).map(|_| name(&mut bed.connect()).ok()).collect();
    names.sort_unstable();
    assert_eq!(names, [None, None, Some(b'a'), Some(b'a')], "in turns, and an end is an end");
    assert_eq!(bed.counters().attempts_failed.load(Ordering::Relaxed), 0);
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
    bed.backends(&[refusing(&bed), NOWHERE]);
    let error = name(&mut bed.connect()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    bed.wait_for("one without backend", |counters| &counters.all_failed, 1);
    bed.backends(&[]);
    assert_eq!(name(&mut bed.connect()).unwrap_err().kind(), ErrorKind::ConnectionReset);
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
    portolan_testkit::eventually(crate::support::PATIENCE, "the other one", || {
        name(&mut bed.connect()).unwrap() == b'b'
    })
    .unwrap();
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
