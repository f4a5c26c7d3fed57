use std::io::Write;
use std::time::Duration;

use portolan_serve::{Limits, Role};

use crate::client::{SERVICES, Secure, read_answer, read_chunk, service, start, start_with, until};

/// Stops the server and waits until it has stopped.
fn stops(secure: Secure) {
    let stopping = std::thread::spawn(move || secure.server.stop().unwrap());
    until("the server has stopped", || stopping.is_finished());
    stopping.join().unwrap();
}

#[test]
fn watches_end_cleanly_and_writes_are_finished() {
    let secure = start();
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
    let limits = Limits { shutdown_grace: Duration::from_millis(200), ..Limits::default() };
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
    let limits = Limits { shutdown_grace: Duration::from_secs(3600), ..Limits::default() };
    let secure = start_with(|config, _, _| config.limits = limits);
    let admin = secure.client(Role::Admin);
    let mut used = admin.connect().unwrap();
    assert_eq!(admin.ask_on(&mut used, "GET", SERVICES, "").code, 200);
    let _open = [used, admin.connect().unwrap()];
    // In the middle of its handshake.
    let _socket = std::net::TcpStream::connect(secure.address).unwrap();
    stops(secure);
}

#[test]
fn readyz_fails_before_the_server_stops() {
    let limits = Limits { shutdown_delay: Duration::from_secs(2), ..Limits::default() };
    let secure = start_with(|config, _, _| config.limits = limits);
    let (admin, anonymous) = (secure.client(Role::Admin), secure.anonymous());
    assert_eq!(anonymous.get("/readyz").code, 200);
    let server = secure.server;
    let stopping = std::thread::spawn(move || server.stop().unwrap());
    let mut said = String::new();
    until("it says that it stops", || {
        let answer = anonymous.get("/readyz");
        said = answer.body;
        answer.code == 503
    });
    assert_eq!(said, "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n");
    assert_eq!(anonymous.get("/livez").code, 200);
    assert_eq!(admin.create("web").code, 201);
    stopping.join().unwrap();
    assert!(std::net::TcpStream::connect(secure.address).is_err());
}
