use std::io::Write;
use std::time::{Duration, Instant};

use portolan_serve::{Limits, Role};

use crate::client::{Client, SERVICES, Secure, patient, read_answer, read_chunk, service, start_with, until};

/// Stops the server and waits until it has stopped.
fn stops(secure: Secure) {
    let stopping = std::thread::spawn(move || secure.server.stop().unwrap());
    until("the server has stopped", || stopping.is_finished());
    stopping.join().unwrap();
}

#[test]
fn watches_end_cleanly_and_writes_are_finished() {
    // An address of its own: no other test gets its port when the listener is closed.
    let secure = start_with(|config, _, _| config.listen = ([127, 9, 9, 2], 0).into());
    let admin = secure.client(Role::Admin);
    let mut watch = admin.watch("/api/v1/services?watch=true&timeoutSeconds=600");
    let body = service("web");
    let (begin, rest) = body.split_at(10);
    let mut write = admin.connect().unwrap();
    let head =
        format!("POST {SERVICES} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    write.get_mut().write_all(format!("{head}{begin}").as_bytes()).unwrap();
    let in_flight = "apiserver_current_inflight_requests{request_kind=\"mutating\"} 1\n";
    until("the write is under way", || admin.get("/metrics").body.contains(in_flight));

    let address = secure.address;
    let server = secure.server;
    let stopping = std::thread::spawn(move || server.stop().unwrap());
    assert!(read_chunk(&mut watch).is_none());
    until("the listener is closed", || std::net::TcpStream::connect(address).is_err());
    assert!(!stopping.is_finished(), "the write is waited for");
    write.get_mut().write_all(rest.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut write).code, 201);
    stopping.join().unwrap();
}

#[test]
fn a_write_that_does_not_end_is_not_waited_for_for_ever() {
    let limits = Limits { shutdown_grace: Duration::from_millis(200), ..patient() };
    let secure = start_with(|config, _, _| config.limits = limits);
    let admin = secure.client(Role::Admin);
    let mut write = admin.connect().unwrap();
    let head = format!("POST {SERVICES} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n");
    write.get_mut().write_all(head.as_bytes()).unwrap();
    stops(secure);
}

#[test]
fn connections_without_a_request_are_not_waited_for() {
    // Longer than the test may take.
    let limits = Limits { shutdown_grace: Duration::from_secs(3600), ..patient() };
    let secure = start_with(|config, _, _| config.limits = limits);
    let admin = secure.client(Role::Admin);
    let mut used = admin.connect().unwrap();
    assert_eq!(admin.ask_on(&mut used, "GET", SERVICES, "").code, 200);
    let _open = [used, admin.connect().unwrap()];
    // In the middle of its handshake.
    let _socket = std::net::TcpStream::connect(secure.address).unwrap();
    stops(secure);
}

/// Returns what a server that has been told to stop says of its readiness, and the codes of two other answers; `None`
/// if it stops before it has given them all.
fn answers_while_stopping(admin: &Client, anonymous: &Client) -> Option<(String, [u16; 2])> {
    let mut ready = None;
    until("it says that it stops", || {
        ready = anonymous.try_ask("GET", "/readyz", "");
        ready.as_ref().is_none_or(|answer| answer.code == 503)
    });
    let alive = anonymous.try_ask("GET", "/livez", "");
    let created = admin.try_ask("POST", SERVICES, &service("web"));
    Some((ready?.body, [alive?.code, created?.code]))
}

#[test]
fn readyz_fails_before_the_server_stops() {
    // On a busy machine, the answers may take longer than a delay. They then have a longer one.
    for delay in [2, 8, 32, 128].map(Duration::from_secs) {
        let limits = Limits { shutdown_delay: delay, ..patient() };
        let secure = start_with(|config, _, _| {
            config.limits = limits;
            config.listen = ([127, 9, 9, 3], 0).into();
        });
        let (admin, anonymous) = (secure.client(Role::Admin), secure.anonymous());
        assert_eq!(anonymous.get("/readyz").code, 200);
        let server = secure.server;
        let begin = Instant::now();
        let stopping = std::thread::spawn(move || server.stop().unwrap());
        let answers = answers_while_stopping(&admin, &anonymous);
        let is_over = begin.elapsed() >= delay;
        stopping.join().unwrap();
        assert!(std::net::TcpStream::connect(secure.address).is_err());
        if let Some((said, codes)) = answers {
            assert_eq!(said, "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n");
            assert_eq!(codes, [200, 201]);
            return;
        }
        assert!(is_over, "stopped before {delay:?} were over");
    }
    panic!("no delay was long enough");
}
