use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use portolan_serve::{Limits, Role};

use crate::client::{
    Client, DEADLINE, SERVICES, Secure, metric, patient, read_answer, service, start, start_with, try_metric,
    until,
};

const SHORT: Duration = Duration::from_millis(300);
const WATCH: &str = "/api/v1/services?watch=true";

fn limited(limits: Limits) -> Secure {
    start_with(|config, _, _| config.limits = limits)
}

/// Returns true if the server has closed the connection.
fn is_closed(stream: &mut impl Read) -> bool {
    match stream.read(&mut [0; 1024]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut),
    }
}

fn socket(secure: &Secure) -> TcpStream {
    let socket = TcpStream::connect(secure.address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Waits until the server has no connection but the one that asks. Its limits may be too short for that one, too.
fn none_is_left(admin: &Client) {
    until("no connection is left but the one that asks", || {
        try_metric(admin, "portolan_server_connections").is_some_and(|count| count < 1.5)
    });
}

#[test]
fn a_client_that_never_finishes_its_handshake_is_disconnected() {
    let secure = limited(Limits { handshake_time: SHORT, ..patient() });
    // No bytes, half a handshake, plain HTTP.
    for bytes in [&b""[..], b"\x16\x03\x01", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let mut socket = socket(&secure);
        socket.write_all(bytes).unwrap();
        until("the socket is closed", || is_closed(&mut socket));
    }
    let admin = secure.client(Role::Admin);
    until("the failures are counted", || {
        try_metric(&admin, "apiserver_tls_handshake_errors_total").is_some_and(|count| count >= 3.0)
    });
    none_is_left(&admin);
}

#[test]
fn a_client_that_never_finishes_its_request_is_disconnected() {
    let secure = limited(Limits { header_time: SHORT, ..patient() });
    let admin = secure.client(Role::Admin);
    // No request, and half a head.
    for text in ["", "GET /api HTTP/1.1\r\nhost: localhost\r\nx-a: "] {
        let mut stream = admin.connect().unwrap();
        // On a busy machine, the connection may be closed by now.
        let _ = stream.get_mut().write_all(text.as_bytes());
        until("the connection is closed", || is_closed(&mut stream));
    }
    none_is_left(&admin);
}

#[test]
fn a_head_without_end_is_refused() {
    let secure = start();
    let admin = secure.client(Role::Admin).with_header("x-long", &"x".repeat(80 << 10));
    assert_eq!(admin.get("/api").code, 431);
}

#[test]
fn one_client_cannot_take_all_connections() {
    let secure = limited(Limits { connections_of_one_client: 3, ..patient() });
    let admin = secure.client(Role::Admin);
    let mut open: Vec<_> = (0..3).map(|_| admin.connect().unwrap()).collect();
    for _ in 0..20 {
        assert!(admin.connect().is_err());
    }
    assert_eq!(admin.ask_on(&mut open[0], "GET", SERVICES, "").code, 200);
    open.truncate(1);
    until("a place is free", || admin.connect().is_ok());
    until("the refused ones are counted", || {
        // The place of a former connection may not be free yet.
        try_metric(&admin, "portolan_server_connections_refused_total").is_some_and(|count| count >= 20.0)
    });
}

/// Connects to the server from this loopback address.
fn socket_from(source: &str, secure: &Secure) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{source}:0").parse().unwrap()).unwrap();
        socket.connect(secure.address).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn a_flood_of_one_client_leaves_room_for_another() {
    let limits = Limits { connections: 24, connections_of_one_client: 20, ..patient() };
    let secure = limited(limits);
    let admin = secure.client(Role::Admin);
    let flood: Vec<_> = (0..300).map(|_| socket(&secure)).collect();
    let mut stream = admin.connect_over(socket_from("127.0.0.2", &secure)).unwrap();
    assert_eq!(admin.ask_on(&mut stream, "GET", SERVICES, "").code, 200);
    assert!(admin.connect().is_err());
    drop(flood);
    until("the first client is let in again", || admin.connect().is_ok());
}

/// Returns an unfinished head, longer than an unauthenticated client may send.
fn long_head() -> String {
    format!("GET /api HTTP/1.1\r\nhost: localhost\r\nx-a: {}", "x".repeat(6000))
}

#[test]
fn long_heads_of_one_client_leave_places_for_another() {
    let secure = start();
    let anonymous = secure.anonymous();
    let begun = |_| {
        let mut stream = anonymous.connect_over(socket_from("127.0.0.2", &secure)).unwrap();
        stream.get_mut().write_all(long_head().as_bytes()).unwrap();
        stream
    };
    let flood: Vec<_> = (0..40).map(begun).collect();
    let admin = secure.client(Role::Admin).with_header("x-long", &"x".repeat(20 << 10));
    assert_eq!(admin.get("/api").code, 200);
    drop(flood);
}

#[test]
fn a_long_head_that_does_not_go_on_gives_its_place_back() {
    let secure = limited(Limits { place_time: SHORT, ..patient() });
    let anonymous = secure.anonymous();
    let begun = |_| {
        let mut stream = anonymous.connect().unwrap();
        stream.get_mut().write_all(long_head().as_bytes()).unwrap();
        stream
    };
    let mut flood: Vec<_> = (0..6).map(begun).collect();
    for stream in &mut flood {
        until("the connection is closed", || is_closed(stream));
    }
    let admin = secure.client(Role::Admin).with_header("x-long", &"x".repeat(20 << 10));
    // This client has as little time for its head.
    until("a place is free", || admin.try_ask("GET", "/api", "").is_some_and(|answer| answer.code == 200));
}

#[test]
fn a_malformed_request_line_is_refused_at_once() {
    let secure = start();
    for text in ["\u{1}garbage\r\n", "GET /\r\n", "GET / HTTP/1.1 \r\n"] {
        let mut stream = secure.anonymous().connect().unwrap();
        stream.get_mut().write_all(text.as_bytes()).unwrap();
        assert_eq!(read_answer(&mut stream).code, 400, "{text:?}");
    }
}

#[test]
fn a_head_that_comes_in_drops_has_its_time() {
    let secure = limited(Limits { header_time: SHORT, ..patient() });
    let mut stream = secure.client(Role::Admin).connect().unwrap();
    stream.get_mut().sock.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    stream.get_mut().write_all(b"GET /api HTTP/1.1\r\nx-slow: ").unwrap();
    until("the connection is closed", || {
        let is_gone = stream.get_mut().write_all(b"x").is_err();
        is_gone || is_closed(&mut stream)
    });
}

#[test]
fn with_all_connections_taken_others_wait() {
    let secure = limited(Limits { connections: 2, ..patient() });
    let admin = secure.client(Role::Admin);
    let open: Vec<_> = (0..2).map(|_| admin.connect().unwrap()).collect();
    let waiting = admin.clone();
    let waiting = std::thread::spawn(move || waiting.get(SERVICES).code);
    let mut third = socket(&secure);
    third.set_read_timeout(Some(SHORT)).unwrap();
    third.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // The server does not even respond that this is not TLS.
    assert!(third.read(&mut [0; 16]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    assert!(!waiting.is_finished());
    drop((open, third));
    assert_eq!(waiting.join().unwrap(), 200);
}

#[test]
fn excess_requests_get_retry_after() {
    for (limits, reads, writes) in
        [(Limits { reading: 0, ..patient() }, 429, 201), (Limits { mutating: 0, ..patient() }, 200, 429)]
    {
        let secure = limited(limits);
        let admin = secure.client(Role::Admin);
        let answers = [admin.get(SERVICES), admin.create("web")];
        assert_eq!([answers[0].code, answers[1].code], [reads, writes]);
        let refused = answers.iter().find(|answer| answer.code == 429).unwrap();
        refused.refused(429, "TooManyRequests");
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(refused.json()["details"]["retryAfterSeconds"], 1);
        // Watches and health checks have their own limits.
        assert_eq!(secure.anonymous().get("/readyz").code, 200);
        drop(admin.watch(WATCH));
        if reads == 200 {
            assert!(admin.get(SERVICES).json()["items"].as_array().unwrap().is_empty(), "refused, yet done");
        }
    }
}

#[test]
fn watches_have_places_of_their_own() {
    let secure = limited(Limits { watches: 2, reading: 1, ..patient() });
    let admin = secure.client(Role::Admin);
    let first = admin.watch(WATCH);
    let _second = admin.watch(WATCH);
    admin.get(WATCH).refused(429, "TooManyRequests");
    assert_eq!(admin.get(SERVICES).code, 200);
    let name = "apiserver_longrunning_requests{verb=\"WATCH\",group=\"\",resource=\"services\"}";
    assert!((metric(&admin, name) - 2.0).abs() < f64::EPSILON);
    drop(first);
    until("the place is free", || (metric(&admin, name) - 1.0).abs() < f64::EPSILON);
    drop(admin.watch(WATCH));
}

/// Sends the head of a request without its body.
fn unfinished(client: &Client, length: usize) -> crate::client::Stream {
    let mut stream = client.connect().unwrap();
    let head = format!("POST {SERVICES} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    stream.get_mut().write_all(head.as_bytes()).unwrap();
    stream
}

#[test]
fn a_request_has_its_time() {
    let secure = limited(Limits { request_time: SHORT, mutating: 1, ..patient() });
    let admin = secure.client(Role::Admin);
    let mut slow = unfinished(&admin, service("web").len());
    read_answer(&mut slow).refused(504, "Timeout");
    // This request has as little time: an attempt may be answered with 504, whether it is carried out or not.
    until("the request's slot is free again", || [201, 409].contains(&admin.create("web").code));
}

#[test]
fn a_body_has_its_size() {
    let secure = start();
    let admin = secure.client(Role::Admin);
    let mut huge = unfinished(&admin, (3 << 20) + 1);
    read_answer(&mut huge).refused(413, "RequestEntityTooLarge");
}

#[test]
fn bodies_have_their_memory_together() {
    let secure = limited(Limits { body_bytes: 256 << 10, ..patient() });
    let admin = secure.client(Role::Admin);
    // Announced bytes that have not arrived take no memory.
    let mut announced: Vec<_> = (0..3).map(|_| unfinished(&admin, 3 << 20)).collect();
    assert_eq!(admin.create("first").code, 201);
    announced[0].get_mut().write_all(&vec![b' '; (256 << 10) - 64]).unwrap();
    let mut last = None;
    until("there is no memory left", || {
        let answer = last.insert(admin.create("second"));
        answer.code == 429
    });
    let refused = last.unwrap();
    refused.refused(429, "TooManyRequests");
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["details"]["retryAfterSeconds"], 1);
    assert_eq!(admin.get(SERVICES).code, 200);
    drop(announced);
    until("the memory is given back", || admin.create("third").code == 201);
    // The memory is returned after every request, successful or refused.
    let large = format!("{{\"metadata\": {{\"name\": \"x\"}}, \"more\": \"{}\"}}", "x".repeat(100 << 10));
    for _ in 0..5 {
        admin.ask("POST", SERVICES, &large).refused(422, "Invalid");
        assert_eq!(admin.create("third").code, 409);
    }
    admin
        .ask("POST", SERVICES, &large.replace("more\": \"", &format!("more\": \"{}", "x".repeat(100 << 10))))
        .refused(429, "TooManyRequests");
}

#[test]
fn a_body_of_many_values_is_too_large() {
    let secure = start();
    let admin = secure.client(Role::Admin);
    let many = |value: &str| {
        let values = vec![value; 400_000].join(",");
        format!("{{\"metadata\":{{\"name\":\"x\"}},\"spec\":{{\"ports\":[{values}]}}}}")
    };
    for body in [many("0"), many("{}"), many("[]")] {
        let said = admin.ask("POST", SERVICES, &body).refused(413, "RequestEntityTooLarge");
        assert!(said.contains("6291456 bytes of memory"), "{said}");
    }
    let merge = admin.with_header("content-type", "application/merge-patch+json");
    merge.ask("PATCH", &format!("{SERVICES}/kubernetes"), &many("0")).refused(413, "RequestEntityTooLarge");
}
