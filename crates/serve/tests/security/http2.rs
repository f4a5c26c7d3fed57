//! HTTP/2, which Go's clients prefer.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_serve::{Limits, Role};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use crate::client::{Client, DEADLINE, SERVICES, patient, service, start, start_with, until};

const WINDOW: u32 = 64 << 10;

/// Connects, and returns the sender of requests and the task that runs the connection.
async fn connect(client: &Client) -> (SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let mut config = client.config();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(client.address).await.unwrap();
    let name = ServerName::try_from(client.name.clone()).unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    // A window that a response in these tests can fill.
    let builder = Builder::new(TokioExecutor::new()).initial_stream_window_size(WINDOW).clone();
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

fn request(method: &str, path: &str, body: String) -> Request<Full<Bytes>> {
    let uri = format!("https://localhost{path}");
    Request::builder().method(method).uri(uri).body(Full::new(body.into())).unwrap()
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await.unwrap() });
}

#[test]
fn a_watch_and_writes_share_a_connection() {
    let secure = start();
    run(async {
        let (mut sender, _) = connect(&secure.client(Role::Admin)).await;
        let watch = sender.send_request(request("GET", &format!("{SERVICES}?watch=true"), String::new()));
        let mut watch = watch.await.unwrap();
        assert_eq!(watch.status(), StatusCode::OK);
        for name in ["one", "two"] {
            let written = sender.send_request(request("POST", SERVICES, service(name))).await.unwrap();
            assert_eq!(written.status(), StatusCode::CREATED);
            let frame = watch.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
            let event: serde_json::Value = serde_json::from_slice(&frame).unwrap();
            assert_eq!(
                (&event["type"], &event["object"]["metadata"]["name"]),
                (&"ADDED".into(), &name.into())
            );
        }
        let refused = sender.send_request(request("GET", "/nothing", String::new())).await.unwrap();
        assert_eq!(refused.status(), StatusCode::NOT_FOUND);
        let stopping = tokio::task::spawn_blocking(move || secure.server.stop().unwrap());
        // The end of the response, not of the connection.
        assert!(watch.into_body().collect().await.unwrap().to_bytes().is_empty());
        stopping.await.unwrap();
    });
}

#[test]
fn a_head_has_no_body() {
    let secure = start();
    run(async {
        let (mut sender, _) = connect(&secure.client(Role::Admin)).await;
        for (path, code, length) in [("/readyz", 200, Some("2")), (SERVICES, 405, None)] {
            let answer = sender.send_request(request("HEAD", path, String::new())).await.unwrap();
            assert_eq!(answer.status(), code, "{path}");
            let said = answer.headers().get("content-length").map(|value| value.to_str().unwrap().to_owned());
            assert!(length.is_none_or(|length| said.as_deref() == Some(length)), "{said:?}");
            assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty());
        }
    });
}

#[test]
fn a_head_without_end_is_refused() {
    let secure = start();
    run(async {
        let (mut sender, _) = connect(&secure.client(Role::Admin)).await;
        let mut long = request("GET", "/api", String::new());
        long.headers_mut().insert("x-long", "x".repeat(80 << 10).parse().unwrap());
        match sender.send_request(long).await {
            Ok(answer) => assert_eq!(answer.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE),
            Err(error) => assert!(!error.is_timeout(), "{error}"),
        }
        let (mut sender, _) = connect(&secure.client(Role::Admin)).await;
        assert_eq!(
            sender.send_request(request("GET", "/api", String::new())).await.unwrap().status(),
            StatusCode::OK
        );
    });
}

#[test]
fn connections_of_unauthenticated_clients_are_closed_after_a_response() {
    let secure = start();
    run(async {
        // The whole response arrives, then the connection ends in order.
        for (path, code) in [("/api", 401), ("/livez", 200), ("/version", 200)] {
            let (mut sender, connection) = connect(&secure.anonymous()).await;
            let answer = sender.send_request(request("GET", path, String::new())).await.unwrap();
            assert_eq!(answer.status(), code, "{path}");
            assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());
            connection.await.unwrap().unwrap();
        }
        let (mut sender, connection) = connect(&secure.client(Role::Admin)).await;
        for (path, code) in [("/livez", 200), ("/api", 200), ("/version", 200), (SERVICES, 200)] {
            let answer = sender.send_request(request("GET", path, String::new())).await.unwrap();
            assert_eq!(answer.status(), code, "{path}");
        }
        assert!(!connection.is_finished());
    });
}

#[test]
fn a_connection_without_requests_is_closed() {
    let limits = Limits { idle_time: Duration::from_millis(300), ..patient() };
    let secure = start_with(|config, _, _| config.limits = limits);
    run(async {
        let (mut sender, connection) = connect(&secure.client(Role::Admin)).await;
        let watch = sender.send_request(request(
            "GET",
            &format!("{SERVICES}?watch=true&timeoutSeconds=2"),
            String::new(),
        ));
        let watch = watch.await.unwrap();
        // Longer than the limit: an open watch counts as a request.
        assert!(watch.into_body().collect().await.is_ok());
        connection.await.unwrap().unwrap();
    });
}

#[test]
fn a_client_that_keeps_one_answer_waiting_is_disconnected() {
    let limits = Limits { stall_time: Duration::from_millis(500), ..patient() };
    let secure = start_with(|config, _, _| config.limits = limits);
    let admin = secure.client(Role::Admin);
    // More than the window and the buffer of a stream hold.
    let note = "x".repeat(200_000);
    for name in ["one", "two", "three", "four", "five"] {
        let mut service: serde_json::Value = serde_json::from_str(&service(name)).unwrap();
        service["metadata"]["annotations"] = serde_json::json!({"note": note});
        assert_eq!(admin.ask("POST", SERVICES, &service.to_string()).code, 201);
    }
    run(async {
        let (mut sender, connection) = connect(&admin).await;
        let watch = sender.send_request(request("GET", "/api/v1/nodes?watch=true", String::new()));
        let watch = watch.await.unwrap();
        let list = sender.send_request(request("GET", SERVICES, String::new())).await.unwrap();
        assert_eq!(list.status(), StatusCode::OK);
        // The client answers pings and reads other responses, but not this one.
        assert!(watch.into_body().collect().await.is_err());
        drop(list);
        let _ = connection.await.unwrap();
    });
}

/// Returns an HTTP/2 frame of the connection or of a stream (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [.., high, low] = payload.len().to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Returns a header field that names its entry of the static table, with a literal value (RFC 7541, 6.2.2).
fn field(name: &[u8], value: &str) -> Vec<u8> {
    [name, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat()
}

#[test]
fn a_client_that_is_known_needs_no_place_for_the_rest_of_its_request() {
    let secure = start();
    // More heads than there are places: this client's share of the places is used up.
    let head = format!("GET /api HTTP/1.1\r\nx-a: {}", "x".repeat(6000));
    let begun = |_| {
        let mut stream = secure.anonymous().connect().unwrap();
        stream.get_mut().write_all(head.as_bytes()).unwrap();
        stream
    };
    let taken: Vec<_> = (0..20).map(begun).collect();

    let admin = secure.client(Role::Admin);
    let body = format!("{}{}", service("web"), " ".repeat(8000));
    let fields = [
        vec![0x83, 0x87],
        field(&[0x04], SERVICES),
        field(&[0x01], "localhost"),
        field(&[0x0f, 0x10], "application/json"),
    ];
    let data = frame(0, 1, 1, body.as_bytes());
    let (part, rest) = data.split_at(100);
    let first = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &fields.concat()),
        part.to_vec(),
    ];
    let mut config = admin.config();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(admin.name.clone()).unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = std::net::TcpStream::connect(admin.address).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut socket).unwrap();
    }
    // A record with the whole head, and one too long to be read without a place, sent together.
    let mut records = Vec::new();
    for bytes in [&first.concat()[..], rest] {
        connection.writer().write_all(bytes).unwrap();
        while connection.wants_write() {
            connection.write_tls(&mut records).unwrap();
        }
    }
    socket.write_all(&records).unwrap();
    until("the request is carried out", || admin.get(&format!("{SERVICES}/web")).code == 200);
    drop(taken);
}
