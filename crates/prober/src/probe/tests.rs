//! Probes of real servers on loopback.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::annotations::{Wish, parse};

/// Returns the check of some annotations. Its time is long enough for a busy machine, unless an annotation sets another one.
fn check(annotations: &[(&str, &str)]) -> Arc<HealthCheck> {
    let patient = [("-interval", "1h"), ("-timeout", "5m")];
    let all = patient
        .iter()
        .chain(annotations)
        .map(|(name, value)| (format!("portolan.dev/health-check{name}"), (*value).to_owned()));
    let parsed = parse(Some(&all.collect()));
    let Wish::Valid(check) = parsed.wish else { panic!("{parsed:?}") };
    Arc::new(check)
}

async fn probe(address: SocketAddr, annotations: &[(&str, &str)]) -> ProbeOutcome {
    Client::new().unwrap().probe(address, &check(annotations)).await
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns a socket that holds a port and does not listen.
fn closed() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Reads the head of a request.
async fn head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

/// Starts a server that gives each request its answer and closes the connection.
async fn serve(answer: impl Fn(&str) -> String + Send + 'static) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let request = head(&mut stream).await;
            let _ = stream.write_all(answer(&request).as_bytes()).await;
        }
    });
    address
}

fn status(status: u16) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\nok")
}

fn answer_failure(outcome: ProbeOutcome) -> String {
    let ProbeOutcome::Failed(Failure::Answer(why)) = outcome else { panic!("{outcome:?}") };
    why
}

const HTTP: (&str, &str) = ("", "http /healthz?x=y");

/// Returns the outcome of a probe that has begun.
async fn end(begun: Begun) -> ProbeOutcome {
    match begun {
        Begun::Ended(outcome) => outcome,
        Begun::Waits(rest) => rest.await,
    }
}

fn wanted(address: SocketAddr, annotations: &[(&str, &str)]) -> Wanted {
    Wanted { endpoint: 0, address, check: check(annotations) }
}

/// Probes endpoints that begin together.
async fn together(client: &mut Client, wanted: &[Wanted]) -> Vec<ProbeOutcome> {
    let mut outcomes = Vec::new();
    for begun in client.begin(wanted, wanted.len()) {
        outcomes.push(end(begun).await);
    }
    outcomes
}

/// State of a socket in `/proc/net/tcp` (kernel, `net/tcp_states.h`).
const LISTEN: &str = "0A";
const TIME_WAIT: &str = "06";

/// Returns the sockets of this host that have this port of 127.0.0.1 at one end, besides the listener: the addresses of both
/// ends, and the state (`/proc/net/tcp`).
fn sockets_of(port: u16) -> Vec<[String; 3]> {
    let at = format!("{:08X}:{port:04X}", u32::from_ne_bytes([127, 0, 0, 1]));
    let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = all.lines().skip(1).map(|line| {
        let mut fields = line.split_whitespace().skip(1).map(str::to_owned);
        std::array::from_fn(|_| fields.next().unwrap())
    });
    ends.filter(|[own, peer, state]| (*own == at || *peer == at) && state != LISTEN).collect()
}

#[tokio::test]
async fn an_open_port_passes_and_the_endpoint_sees_no_connection() {
    let (listener, address) = listen().await;
    let listener = listener.into_std().unwrap();
    // An earlier user of the port may have left some.
    let before = sockets_of(address.port());
    let mut client = Client::new().unwrap();
    // A probe that the scheduler holds up for longer than the kernel waits with the last packet of the handshake is seen.
    let is_unseen = |outcome: ProbeOutcome| {
        assert_eq!(outcome, ProbeOutcome::Passed);
        listener.accept().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    let (mut alone, mut in_a_batch) = (false, false);
    for _ in 0..20 {
        alone |= is_unseen(probe(address, &[("", "tcp")]).await);
        let outcomes = together(&mut client, &[wanted(address, &[("", "tcp")])]).await;
        in_a_batch |= is_unseen(outcomes[0].clone());
    }
    assert!(alone && in_a_batch);
    // The reset reaches the endpoint's side of the connection a moment later.
    loop {
        let mut left = sockets_of(address.port());
        left.retain(|one| !before.iter().any(|former| former[..2] == one[..2]));
        if left.is_empty() {
            break;
        }
        assert!(left.iter().all(|[.., state]| state != TIME_WAIT), "{left:?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn probes_that_begin_together_have_the_outcomes_of_probes_that_begin_alone() {
    let (_open, open) = listen().await;
    let open_v6 = TcpListener::bind("[::1]:0").await.unwrap();
    let (_closed, closed_at) = closed();
    let (_listener, _held, silent) = silent().await;
    let web = serve(|_| status(503)).await;
    let (tcp, short) = ([("", "tcp")], [("", "tcp"), ("-timeout", "100ms")]);
    let all = [
        wanted(silent, &short),
        wanted(open, &tcp),
        wanted(web, &[HTTP]),
        wanted(closed_at, &tcp),
        wanted(open_v6.local_addr().unwrap(), &tcp),
        wanted(open, &tcp),
    ];
    let expected = [
        ProbeOutcome::Failed(Failure::TimedOut),
        ProbeOutcome::Passed,
        ProbeOutcome::Failed(Failure::Status(503)),
        ProbeOutcome::Failed(Failure::Refused),
        ProbeOutcome::Passed,
        ProbeOutcome::Passed,
    ];
    let mut client = Client::new().unwrap();
    for _ in 0..3 {
        assert_eq!(together(&mut client, &all).await, expected);
    }
}

#[tokio::test]
async fn sockets_that_are_kept_count_as_open_files() {
    let (_open, open) = listen().await;
    let (_listener, _held, silent) = silent().await;
    let tcp = [("", "tcp"), ("-timeout", "100ms")];
    let mut client = Client::new().unwrap();
    let passing = vec![wanted(open, &tcp); 8];
    client.begin(&passing, 8).clear();
    assert!(client.sockets.kept() <= 8);
    let mut mixed = vec![wanted(silent, &tcp); 5];
    mixed.extend(passing);
    let waiting = client.begin(&mixed, 8);
    let waits = waiting.iter().filter(|begun| matches!(begun, Begun::Waits(_))).count();
    assert!(waits >= 5 && client.sockets.kept() <= 8_usize.saturating_sub(waits));
}

#[tokio::test]
async fn a_closed_port_is_refused() {
    let (_closed, address) = closed();
    assert_eq!(probe(address, &[("", "tcp")]).await, ProbeOutcome::Failed(Failure::Refused));
    assert_eq!(probe(address, &[HTTP]).await, ProbeOutcome::Failed(Failure::Refused));
}

/// Returns a listener whose queue is full, so that it answers no SYN.
async fn silent() -> (TcpListener, Vec<TcpStream>, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    loop {
        match tokio::time::timeout(std::time::Duration::from_millis(300), TcpStream::connect(address)).await {
            Ok(stream) => held.push(stream.unwrap()),
            Err(_) => return (listener, held, address),
        }
    }
}

#[tokio::test]
async fn a_silent_port_fails_after_the_timeout() {
    let (_listener, _held, address) = silent().await;
    assert_eq!(
        probe(address, &[("", "tcp"), ("-timeout", "100ms")]).await,
        ProbeOutcome::Failed(Failure::TimedOut)
    );
}

#[tokio::test]
async fn an_answer_that_comes_too_late_or_stops_in_the_middle_fails_after_the_timeout() {
    for answer in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab"] {
        let (listener, address) = listen().await;
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
        };
        let annotations = [HTTP, ("-timeout", "100ms")];
        tokio::select! {
            outcome = probe(address, &annotations) => assert_eq!(outcome, ProbeOutcome::Failed(Failure::TimedOut), "{answer}"),
            () = server => {}
        }
    }
}

#[tokio::test]
async fn the_request_says_who_asks_and_for_what() {
    let (listener, address) = listen().await;
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = head(&mut stream).await;
        stream.write_all(status(200).as_bytes()).await.unwrap();
        request
    };
    let (request, outcome) = tokio::join!(server, probe(address, &[HTTP]));
    assert_eq!(outcome, ProbeOutcome::Passed);
    let request =
        request.replace(&address.to_string(), "ADDRESS").replace(env!("CARGO_PKG_VERSION"), "VERSION");
    insta::assert_snapshot!(request, @r##"
    GET /healthz?x=y HTTP/1.1
    host: ADDRESS
    user-agent: portolan-probe/VERSION
    accept: */*
    connection: close
    "##);
}

#[tokio::test]
async fn the_status_decides() {
    for (code, outcome) in [
        (200, ProbeOutcome::Passed),
        (302, ProbeOutcome::Passed),
        (404, ProbeOutcome::Failed(Failure::Status(404))),
        (503, ProbeOutcome::Failed(Failure::Status(503))),
    ] {
        assert_eq!(probe(serve(move |_| status(code)).await, &[HTTP]).await, outcome);
    }
    let address = serve(|_| status(401)).await;
    assert_eq!(probe(address, &[HTTP, ("-statuses", "401")]).await, ProbeOutcome::Passed);
    assert_eq!(
        probe(address, &[HTTP, ("-statuses", "200,204")]).await,
        ProbeOutcome::Failed(Failure::Status(401))
    );
}

#[tokio::test]
async fn the_host_can_be_set() {
    let address =
        serve(|request| status(if request.contains("host: shop.example.com\r\n") { 200 } else { 404 })).await;
    assert_eq!(probe(address, &[HTTP, ("-host", "shop.example.com")]).await, ProbeOutcome::Passed);
    assert_eq!(probe(address, &[HTTP]).await, ProbeOutcome::Failed(Failure::Status(404)));
}

#[tokio::test]
async fn redirects_to_the_endpoint_are_followed_and_others_are_not() {
    let redirect =
        |location: &str| format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    let moved =
        serve(move |request| if request.starts_with("GET /new ") { status(503) } else { redirect("/new") })
            .await;
    assert_eq!(probe(moved, &[HTTP]).await, ProbeOutcome::Failed(Failure::Status(503)));
    assert_eq!(
        probe(moved, &[HTTP, ("-statuses", "302")]).await,
        ProbeOutcome::Passed,
        "a listed redirect decides"
    );
    let (listener, _) = listen().await;
    // Another address of this node: a probe that followed the redirect would find the listener silent.
    let elsewhere = format!("http://127.0.0.2:{}/", listener.local_addr().unwrap().port());
    let away = serve(move |_| redirect(&elsewhere)).await;
    assert_eq!(probe(away, &[HTTP]).await, ProbeOutcome::Passed, "302 passes by itself");
    assert_eq!(probe(away, &[HTTP, ("-statuses", "200")]).await, ProbeOutcome::Failed(Failure::Status(302)));
    let circle = serve(move |_| redirect("/again")).await;
    assert_eq!(answer_failure(probe(circle, &[HTTP]).await), "too many redirects");
}

#[tokio::test]
async fn a_redirect_to_the_name_at_another_port_decides_by_its_status() {
    let redirect = |_: &str| {
        "HTTP/1.1 301 Moved\r\nlocation: https://shop.example.com/x\r\ncontent-length: 0\r\n\r\n".to_owned()
    };
    let address = serve(redirect).await;
    let host = ("-host", "shop.example.com");
    assert_eq!(probe(address, &[HTTP, host]).await, ProbeOutcome::Passed, "301 passes by itself");
    assert_eq!(
        probe(address, &[HTTP, host, ("-statuses", "200")]).await,
        ProbeOutcome::Failed(Failure::Status(301))
    );
}

#[tokio::test]
async fn a_failure_at_another_port_names_the_address() {
    let moved = async |to: SocketAddr, timeout: &str| {
        let answer = format!("HTTP/1.1 302 X\r\nlocation: http://{to}/x\r\ncontent-length: 0\r\n\r\n");
        let outcome = probe(serve(move |_| answer.clone()).await, &[HTTP, ("-timeout", timeout)]).await;
        let ProbeOutcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
        (failure.to_string(), failure.index())
    };
    let (_closed, closed) = closed();
    assert_eq!(moved(closed, "5m").await, (format!("redirected to {closed}: connection refused"), 1));
    let broken = serve(|_| status(503)).await;
    assert_eq!(moved(broken, "5m").await, (format!("redirected to {broken}: HTTP status 503"), 4));
    // On a busy machine the redirect may come after a short time.
    let (_listener, _held, silent) = silent().await;
    let mut failures = Vec::new();
    for timeout in ["300ms", "5s", "5m"] {
        failures.push(moved(silent, timeout).await);
        if failures.contains(&(format!("redirected to {silent}: no answer in time"), 0)) {
            return;
        }
    }
    panic!("{failures:?}");
}

/// Starts a server that begins an answer and goes on with it for ever.
async fn endless(begin: &'static str, more: &'static str) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            head(&mut stream).await;
            let _ = stream.write_all(begin.as_bytes()).await;
            while stream.write_all(more.as_bytes()).await.is_ok() {}
        }
    });
    address
}

#[tokio::test]
async fn answers_without_an_end_are_bounded() {
    let long = [HTTP, ("-interval", "1h"), ("-timeout", "1h")];
    let body = endless("HTTP/1.1 200 OK\r\n\r\n", "0123456789abcdef").await;
    assert_eq!(probe(body, &long).await, ProbeOutcome::Passed);
    let chunks = endless("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "5\r\nhello\r\n").await;
    assert_eq!(probe(chunks, &long).await, ProbeOutcome::Passed);
    let names = endless("HTTP/1.1 200 OK\r\n", "a: b\r\n").await;
    answer_failure(probe(names, &long).await);
    let line = endless("HTTP/1.1 200 ", "x").await;
    answer_failure(probe(line, &long).await);
    let one = endless("HTTP/1.1 200 OK\r\na: ", "b").await;
    answer_failure(probe(one, &long).await);
}

#[tokio::test]
async fn what_is_not_http_fails() {
    for answer in ["SSH-2.0-x\r\n", "", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", "\0\0\0\0"] {
        answer_failure(probe(serve(|_| answer.to_owned()).await, &[HTTP]).await);
    }
}

/// Starts an HTTPS server with a self-signed certificate of another name.
async fn serve_tls() -> SocketAddr {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["unrelated.example.com".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            head(&mut stream).await;
            let _ = stream.write_all(status(200).as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    address
}

#[tokio::test]
async fn a_self_signed_certificate_passes_unless_certificates_are_verified() {
    let address = serve_tls().await;
    assert_eq!(probe(address, &[("", "https /")]).await, ProbeOutcome::Passed);
    assert_eq!(probe(address, &[("", "https /"), ("-host", "shop.example.com")]).await, ProbeOutcome::Passed);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    let outcome = Client::with_tls(Arc::new(config)).probe(address, &check(&[("", "https /")])).await;
    assert!(matches!(outcome, ProbeOutcome::Failed(Failure::Tls(_))), "{outcome:?}");
}

#[tokio::test]
async fn plain_http_on_a_tls_port_and_tls_on_a_plain_port_fail() {
    answer_failure(probe(serve_tls().await, &[HTTP]).await);
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let outcome = probe(address, &[("", "https /")]).await;
    assert!(matches!(outcome, ProbeOutcome::Failed(Failure::Tls(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_connection_that_the_endpoint_closes_first_gets_no_reset() {
    let (listener, address) = listen().await;
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nok").await.unwrap();
        stream.shutdown().await.unwrap();
        stream.read_u8().await.unwrap_err().kind()
    };
    // Without a length the end of the body is the end of the connection.
    let (kind, outcome) = tokio::join!(server, probe(address, &[HTTP]));
    assert_eq!((outcome, kind), (ProbeOutcome::Passed, io::ErrorKind::UnexpectedEof));
}

#[test]
fn errors_of_calls_of_this_node_decide_nothing_and_those_of_the_network_do() {
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::ADDRNOTAVAIL, Errno::PERM] {
        assert!(matches!(of_call(&errno.into()), ProbeOutcome::Unable(_)), "{errno:?}");
    }
    for errno in [Errno::ACCESS, Errno::PERM, Errno::NOPROTOOPT, Errno::HOSTUNREACH, Errno::NETUNREACH] {
        let outcome = of_answer(&errno.into());
        assert!(matches!(outcome, ProbeOutcome::Failed(Failure::Unreachable(_))), "{errno:?}");
    }
    for outcome in [of_call, of_answer] {
        let outcome = |errno: Errno| outcome(&errno.into());
        assert_eq!(outcome(Errno::TIMEDOUT), ProbeOutcome::Failed(Failure::TimedOut));
        assert_eq!(outcome(Errno::CONNREFUSED), ProbeOutcome::Failed(Failure::Refused));
        assert!(matches!(outcome(Errno::NETUNREACH), ProbeOutcome::Failed(Failure::Unreachable(_))));
    }
}

#[test]
fn every_failure_has_its_place_among_the_reasons() {
    let text = String::new;
    let all = [
        Failure::TimedOut,
        Failure::Refused,
        Failure::Unreachable(text()),
        Failure::Tls(text()),
        Failure::Status(503),
        Failure::Answer(text()),
    ];
    let indices: Vec<usize> = all.iter().map(Failure::index).collect();
    assert_eq!(indices, (0..REASONS.len()).collect::<Vec<_>>());
}
