use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::connections::MAX_CONNECTIONS;
use super::testing::{loopback, request, request_with, start, taken};
use super::*;

fn hello(address: SocketAddr, hard_fail: bool) -> Server {
    let handler = |_: &Request<Bytes>| answer(StatusCode::OK, PLAIN, "hello").into();
    Server::new("test", "testBindAddress", address, hard_fail, Arc::new(handler))
}

#[tokio::test]
async fn both_wildcards_serve_both_families() {
    for any in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
        let port = start(hello(SocketAddr::new(any, 0), true)).await.port();
        for loopback in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let got = request(SocketAddr::new(loopback, port), "GET", "/").await.expect("an answer");
            assert_eq!((got.status, got.body.as_str()), (200, "hello"), "{any} asked at {loopback}");
        }
    }
}

#[tokio::test]
async fn a_wildcard_of_one_family_leaves_the_other_alone() {
    let v6 = listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0), Wildcard::OneFamily).expect("a port");
    let port = v6.local_addr().expect("bound").port();
    let v4 = listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), Wildcard::OneFamily);
    v4.expect("the same port of the other family is free");
}

#[tokio::test]
async fn headers_are_spelled_as_go_spells_them() {
    let address = start(hello(loopback(), true)).await;
    let got = request(address, "POST", "/").await.expect("an answer");
    let want =
        ["Content-Length: 5", "Content-Type: text/plain; charset=utf-8", "X-Content-Type-Options: nosniff"];
    assert_eq!(got.headers, want);
}

#[tokio::test(start_paused = true)]
async fn a_taken_port_is_tried_every_five_seconds() {
    let (holder, address) = taken();
    let server = hello(address, false);
    let mut bound = server.bound();
    let run = server.run();
    tokio::pin!(run);
    // Two attempts fail and do not end the server. Time advances only in this test.
    tokio::time::timeout(Duration::from_secs(7), &mut run).await.expect_err("it keeps trying");
    assert_eq!(*bound.borrow(), None);
    drop(holder);
    tokio::time::timeout(Duration::from_secs(2), &mut run).await.expect_err("the third try is not due yet");
    assert_eq!(*bound.borrow(), None);
    tokio::time::timeout(Duration::from_secs(2), &mut run).await.expect_err("it serves");
    assert_eq!(*bound.borrow_and_update(), Some(address));
}

#[tokio::test(start_paused = true)]
async fn a_patient_server_retries_until_it_listens() {
    let (holder, address) = taken();
    let server = hello(address, true).patient();
    let mut bound = server.bound();
    let run = server.run();
    tokio::pin!(run);
    tokio::time::timeout(Duration::from_secs(7), &mut run).await.expect_err("it keeps trying");
    drop(holder);
    tokio::time::timeout(Duration::from_secs(4), &mut run).await.expect_err("it serves");
    assert_eq!(*bound.borrow_and_update(), Some(address));
}

#[tokio::test]
async fn an_open_socket_is_served_and_hard_fail_can_be_set_later() {
    let opened = Opened::open(loopback()).unwrap();
    let address = opened.0.local_addr().unwrap();
    let server = hello(address, false);
    let (hard_fail, mut bound) = (server.hard_fail(), server.bound());
    let handed = tokio::spawn(server.on(opened).run());
    bound.wait_for(|bound| *bound == Some(address)).await.unwrap();
    let late = hello(address, false);
    late.hard_fail().set(true);
    assert_eq!(late.run().await.source.kind(), io::ErrorKind::AddrInUse);
    assert!(!hard_fail.get() && !handed.is_finished());
    handed.abort();
}

#[tokio::test]
async fn hard_fail_ends_with_the_reason() {
    let (_holder, address) = taken();
    let error = hello(address, true).run().await;
    assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
    assert_eq!(
        error.to_string(),
        format!(
            "the test server cannot listen on {address}: Address already in use (os error 98); free the \
             port, or set testBindAddress"
        )
    );
}

#[tokio::test]
async fn bad_requests_and_silent_clients_do_not_stop_a_server() {
    let address = start(hello(loopback(), true)).await;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS / 2 {
        silent.push(TcpStream::connect(address).await.expect("accepted"));
    }
    let mut rude = TcpStream::connect(address).await.expect("accepted");
    rude.write_all(b"\x16\x03\x01 not HTTP\r\n\r\n").await.expect("sent");
    let mut refusal = Vec::new();
    // Closed, with or without a last response.
    let _ = rude.read_to_end(&mut refusal).await;
    assert_eq!(request(address, "GET", "/").await.expect("an answer").status, 200);
}

#[tokio::test]
async fn the_oldest_of_too_many_connections_is_closed() {
    let address = start(hello(loopback(), true)).await;
    let mut idle = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        idle.push(TcpStream::connect(address).await.expect("accepted"));
    }
    // Each request is served, although silent clients hold every place.
    for _ in 0..3 {
        assert_eq!(request(address, "GET", "/").await.expect("an answer").status, 200);
    }
    let mut byte = [0];
    let oldest = idle.first_mut().expect("many").read(&mut byte);
    let closed = tokio::time::timeout(Duration::from_secs(60), oldest).await.expect("it was closed");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn too_large_requests_are_rejected() {
    let address = start(hello(loopback(), true)).await;
    let body = "x".repeat(17 * 1024);
    assert_eq!(request_with(address, "PUT", "/", &[], &body).await.expect("an answer").status, 413);
    let small = "x".repeat(1024);
    assert_eq!(request_with(address, "PUT", "/", &[], &small).await.expect("an answer").status, 200);
    let header = format!("X-Long: {}", "x".repeat(40 * 1024));
    let refused = request_with(address, "GET", "/", &[&header], "").await;
    assert!(refused.map_or(true, |got| got.status == 431), "a head of 40 KiB");
}

#[tokio::test]
async fn a_long_answer_arrives_whole() {
    let long = "x".repeat(1024 * 1024);
    let body = long.clone();
    let handler = move |_: &Request<Bytes>| answer(StatusCode::OK, PLAIN, body.clone()).into();
    let server = Server::new("test", "testBindAddress", loopback(), true, Arc::new(handler));
    let got = request(start(server).await, "GET", "/").await.expect("an answer");
    assert!(got.body == long, "{} bytes", got.body.len());
}

#[tokio::test]
async fn head_has_the_headers_and_no_body() {
    let address = start(hello(loopback(), true)).await;
    let got = request(address, "HEAD", "/").await.expect("an answer");
    assert_eq!((got.status, got.body.as_str()), (200, ""));
    assert!(got.headers.contains(&"Content-Length: 5".to_owned()), "{:?}", got.headers);
}

#[tokio::test]
async fn a_missing_body_times_out() {
    let address = start(hello(loopback(), true)).await;
    let mut stream = TcpStream::connect(address).await.expect("accepted");
    let head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head).await.expect("sent");
    // The server asks for the body when it waits for it. If the time jumped before, the head would be late.
    let mut asked = [0; 25];
    stream.read_exact(&mut asked).await.expect("asked for the body");
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"ab").await.expect("sent");
    tokio::time::pause();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 408");
}

#[tokio::test]
async fn an_answer_may_follow_while_others_are_served() {
    let (open, gate) = tokio::sync::watch::channel(false);
    let handler = move |request: &Request<Bytes>| -> Reply {
        if request.uri().path() != "/later" {
            return answer(StatusCode::OK, PLAIN, "now").into();
        }
        let mut gate = gate.clone();
        Reply::Later(Box::pin(async move {
            let _ = gate.wait_for(|open| *open).await;
            answer(StatusCode::OK, PLAIN, "later")
        }))
    };
    let address = start(Server::new("test", "testBindAddress", loopback(), true, Arc::new(handler))).await;
    let later = tokio::spawn(async move { request(address, "GET", "/later").await });
    assert_eq!(request(address, "GET", "/").await.expect("an answer").body, "now");
    assert!(!later.is_finished());
    open.send_replace(true);
    assert_eq!(later.await.expect("no panic").expect("an answer").body, "later");
}

#[tokio::test]
async fn a_unix_socket_is_served_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let place = ServerAddress::Unix(folder.path().join("s"));
    let ServerAddress::Unix(path) = &place else { unreachable!() };
    let socket = UnixSocket::open(path, None).unwrap();
    let handler: Handler = Arc::new(|request: &Request<Bytes>| {
        let text = format!("{} {} {}", request.method(), request.uri(), request.body().len());
        answer(StatusCode::ACCEPTED, PLAIN, text).into()
    });
    let served = tokio::spawn(async move { serve(Listener::Unix(socket.listener()), &handler).await });
    let of_client = place.clone();
    let asked = tokio::task::spawn_blocking(move || ask(&of_client, "POST", "/a?b=c", b"{}"));
    let got = asked.await.expect("no panic").expect("an answer");
    assert_eq!((got.status, got.body.as_slice()), (202, &b"POST /a?b=c 2"[..]));
    served.abort();
    let _ = served.await;
    assert!(!path.exists());
    let error = ask(&place, "GET", "/", b"").expect_err("no server");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}
