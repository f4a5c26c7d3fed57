//! The watcher over real sockets, against a scripted API server that speaks raw HTTP/1.1.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_model::Event;
use portolan_model::object::Kind;
use portolan_watch::{BackoffLimits, ClientSettings, RestartReason, Timing, WatchEvent, Watcher, connect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time;

/// Bytes for the socket, or its end.
enum Act {
    Send(Vec<u8>),
    /// Close the connection.
    Close,
}

/// Answers by path, in order. When none is left the connection stays silent.
#[derive(Default)]
struct Script {
    answers: HashMap<&'static str, VecDeque<Vec<Act>>>,
    requests: Vec<String>,
    connections: usize,
}

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const NODES: &str = "/api/v1/nodes";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
const LAST_CHUNK: &str = "0\r\n\r\n";

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn send(parts: &[String]) -> Act {
    Act::Send(parts.concat().into())
}

fn object(event: &str, name: &str, version: u32) -> String {
    format!(
        r#"{{"type":"{event}","object":{{"metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"{version}"}}}}}}
"#
    )
}

fn end_mark(version: u32) -> String {
    end_mark_of(Kind::Service, version)
}

fn end_mark_of(kind: Kind, version: u32) -> String {
    format!(
        r#"{{"type":"BOOKMARK","object":{{"kind":"{kind}","metadata":{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}
"#
    )
}

/// Returns an empty streamed list that stays open.
fn empty(kind: Kind) -> Vec<Act> {
    vec![send(&[CHUNKED.into(), chunk(&end_mark_of(kind, 1))])]
}

struct Server {
    url: String,
    script: Arc<Mutex<Script>>,
}

impl Server {
    async fn start(answers: impl IntoIterator<Item = (&'static str, Vec<Vec<Act>>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = answers.into_iter().map(|(path, answers)| (path, answers.into())).collect();
        let script = Arc::new(Mutex::new(Script { answers, ..Script::default() }));
        let shared = Arc::clone(&script);
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                shared.lock().unwrap().connections += 1;
                tokio::spawn(serve(socket, Arc::clone(&shared)));
            }
        });
        Self { url, script }
    }

    fn requests(&self, path: &str) -> Vec<String> {
        let script = self.script.lock().unwrap();
        let wanted = format!("GET {path}?");
        script.requests.iter().filter(|request| request.starts_with(&wanted)).cloned().collect()
    }

    async fn watcher(&self) -> Watcher {
        let settings = ClientSettings { master: Some(self.url.clone()), ..ClientSettings::default() };
        let soon = Duration::from_millis(1);
        let fast =
            BackoffLimits { initial: soon, other_initial: soon, refused: soon, ..BackoffLimits::default() };
        let timing = Timing { backoff: fast, ..Timing::default() };
        Watcher::new(connect(&settings).await.unwrap(), "node-1").with_timing(timing)
    }

    /// Runs the watcher until `done` returns true for an event.
    async fn watch_until(&self, mut done: impl FnMut(&WatchEvent) -> bool) -> Vec<WatchEvent> {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let watcher = self.watcher().await;
        let mut seen = Vec::new();
        let run = watcher.run(reported(move |event| sender.send(event).unwrap()));
        let collect = async {
            while let Some(event) = receiver.recv().await {
                let stop = done(&event);
                seen.push(event);
                if stop {
                    break;
                }
            }
        };
        tokio::select! {
            never = run => match never {},
            outcome = time::timeout(Duration::from_secs(120), collect) => outcome.expect("the event never came"),
        }
        seen
    }
}

/// Leaves out `WatchEvent::Heard`, which follows the events.
fn reported(mut sink: impl FnMut(WatchEvent)) -> impl FnMut(WatchEvent) {
    move |event| {
        if !matches!(event, WatchEvent::Heard(_)) {
            sink(event);
        }
    }
}

async fn serve(mut socket: TcpStream, script: Arc<Mutex<Script>>) {
    socket.set_nodelay(true).unwrap();
    while let Some(request) = head(&mut socket).await {
        let answer = {
            let mut script = script.lock().unwrap();
            let path = request.split(['?', ' ']).nth(1).unwrap().to_owned();
            script.requests.push(request);
            script.answers.get_mut(path.as_str()).and_then(VecDeque::pop_front)
        };
        for act in answer.unwrap_or_default() {
            match act {
                Act::Send(bytes) => socket.write_all(&bytes).await.unwrap(),
                Act::Close => return,
            }
        }
    }
}

/// Reads the head of a request, or returns `None` if the client closed the connection.
async fn head(socket: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

fn list_end(event: &WatchEvent, kind: Kind) -> bool {
    matches!(event, WatchEvent::Objects(events) if events.contains(&Event::ListEnd(kind)))
}

#[tokio::test]
async fn all_four_collections() {
    let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::ServiceCidr];
    let answers = [SERVICES, SLICES, NODES, CIDRS].into_iter().zip(kinds);
    let server = Server::start(answers.map(|(path, kind)| (path, vec![empty(kind)]))).await;
    let mut ends = 0;
    server
        .watch_until(|event| {
            ends += kinds.iter().filter(|kind| list_end(event, **kind)).count();
            ends == kinds.len()
        })
        .await;
    for path in [SERVICES, SLICES, NODES, CIDRS] {
        let requests = server.requests(path);
        assert_eq!(requests.len(), 1, "{path}");
        let request = requests[0].to_ascii_lowercase();
        assert!(request.contains("\r\naccept: application/json\r\n"), "{request}");
        let agent = format!("\r\nuser-agent: portolan/{} (linux/", env!("CARGO_PKG_VERSION"));
        assert!(request.contains(&agent), "{request}");
    }
    assert!(server.requests(NODES)[0].contains("fieldSelector=metadata.name%3Dnode-1&"));
}

#[tokio::test]
async fn pages_and_the_watch_after_them_share_a_connection() {
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_owned();
    let page = |name: &str, next: &str| {
        let body = format!(
            r#"{{"kind":"ServiceList","metadata":{{"resourceVersion":"9","continue":"{next}"}},"items":[{{"metadata":{{"name":"{name}","namespace":"ns"}}}}]}}"#
        );
        let (half, rest) = body.split_at(body.len() / 2);
        vec![send(&[CHUNKED.into(), chunk(half), chunk(rest), LAST_CHUNK.into()])]
    };
    let watch = vec![send(&[CHUNKED.into(), chunk(&object("DELETED", "a", 11))])];
    let server =
        Server::start([(SERVICES, vec![vec![send(&[refusal])], page("a", "t"), page("b", ""), watch])]).await;
    let seen = server
        .watch_until(|event| {
            matches!(event, WatchEvent::Objects(events) if matches!(events[..], [.., Event::ServiceDeleted(_)]))
        })
        .await;
    let events = seen.into_iter().flat_map(|event| match event {
        WatchEvent::Objects(events) => events,
        other => panic!("{other:?}"),
    });
    let shape = events.map(|event| match event {
        Event::ListStart(_) => "start".to_owned(),
        Event::ListEnd(_) => "end".to_owned(),
        Event::Service(object) => object.key.to_string(),
        Event::ServiceDeleted(key) => format!("-{key}"),
        other => panic!("{other:?}"),
    });
    assert_eq!(shape.collect::<Vec<_>>(), ["start", "ns/a", "ns/b", "end", "-ns/a"]);
    assert!(server.requests(SERVICES)[3].contains("resourceVersion=9&"));
    // One connection per collection, because the servers of the others send nothing on theirs.
    assert_eq!(server.script.lock().unwrap().connections, 4);
}

#[tokio::test]
async fn events_that_arrive_together_are_seen_together() {
    const EVENTS: u32 = 50;
    let events: Vec<_> = (0..EVENTS).map(|n| chunk(&object("ADDED", "a", 10 + n))).collect();
    let body = [CHUNKED.to_owned(), events.concat(), chunk(&end_mark(99))];
    let server = Server::start([(SERVICES, vec![vec![send(&body)]])]).await;
    let seen = server.watch_until(|event| list_end(event, Kind::Service)).await;
    // The kernel may split the one write in two, but 50 HTTP chunks must not become 50 batches.
    assert!(seen.len() <= 3, "{} batches", seen.len());
}

#[tokio::test]
async fn broken_http_is_survived() {
    let garbage = [
        "\u{0}\u{1}\u{2}\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_owned(),
        format!("{CHUNKED}ffffffff\r\nabc"),
        "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{".to_owned(),
        "HTTP/1.1 999 ?\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
        String::new(),
    ];
    let mut answers: Vec<_> = garbage.into_iter().map(|text| vec![send(&[text]), Act::Close]).collect();
    let attempts = answers.len();
    // The body is a streamed list. If a page is requested first, it fails, and the second copy serves the streamed
    // list that follows.
    let body = format!("{}{}", object("ADDED", "a", 3), end_mark(5));
    answers.extend((0..2).map(|_| vec![send(&[CHUNKED.into(), chunk(&body), LAST_CHUNK.into()])]));
    let server = Server::start([(SERVICES, answers)]).await;
    let seen = server.watch_until(|event| list_end(event, Kind::Service)).await;
    let restarts = seen.iter().filter(|event| matches!(event, WatchEvent::Restarted { .. })).count();
    assert!((attempts - 1..=attempts + 1).contains(&restarts), "{restarts}: {seen:?}");
}

#[tokio::test]
async fn counters_count() {
    let refusal = || vec![send(&["HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_owned()])];
    let nameless = r#"{"type":"ADDED","object":{}}"#.to_owned() + "\n";
    let list = vec![send(&[CHUNKED.into(), chunk(&nameless), chunk(&end_mark(5))])];
    let server = Server::start([(SERVICES, vec![refusal(), refusal(), list])]).await;
    let watcher = server.watcher().await;
    let counts = watcher.counts();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let run = watcher.run(move |event| sender.send(event).unwrap());
    let end = async {
        while let Some(event) = receiver.recv().await {
            if list_end(&event, Kind::Service) {
                return;
            }
        }
    };
    tokio::select! {
        never = run => match never {},
        outcome = time::timeout(Duration::from_secs(120), end) => outcome.unwrap(),
    }
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    let services = counts.of(Kind::Service);
    assert_eq!((load(&services.restarts), load(&services.lists), load(&services.faults)), (2, 1, 1));
    assert_eq!(load(&counts.of(Kind::Node).restarts), 0);
}

#[tokio::test]
async fn an_absent_server_is_distinguished_from_a_broken_connection() {
    let server = Server::start([("/api/v1/services", vec![vec![Act::Close]])]).await;
    let seen = server.watch_until(|event| matches!(event, WatchEvent::Restarted { .. })).await;
    assert!(
        matches!(seen.last(), Some(WatchEvent::Restarted { reason: RestartReason::Broken(_), .. })),
        "{seen:?}"
    );
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let absent = Server { url: format!("http://{unused}"), ..server };
    let seen = absent.watch_until(|event| matches!(event, WatchEvent::Restarted { .. })).await;
    assert!(
        matches!(seen.last(), Some(WatchEvent::Restarted { reason: RestartReason::Unreachable(_), .. })),
        "{seen:?}"
    );
}

/// Ten refused attempts of each of four watches give their tokens back. Otherwise they would wait for one.
#[tokio::test]
async fn refused_connections_do_not_count_against_the_rate() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let done = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&done);
    let settings = ClientSettings {
        master: Some(format!("http://{unused}")),
        qps: 0.001,
        burst: 4,
        on_request: Some(Arc::new(move |request| seen.lock().unwrap().push(request.throttled))),
        ..ClientSettings::default()
    };
    let soon = Duration::from_millis(1);
    let timing =
        Timing { backoff: BackoffLimits { refused: soon, ..BackoffLimits::default() }, ..Timing::default() };
    let watcher = Watcher::new(connect(&settings).await.unwrap(), "node-1").with_timing(timing);
    let enough = async {
        while done.lock().unwrap().len() < 40 {
            time::sleep(soon).await;
        }
    };
    tokio::select! {
        never = watcher.run(|_| ()) => match never {},
        outcome = time::timeout(Duration::from_secs(60), enough) => outcome.expect("a turn was waited for"),
    }
    assert_eq!(done.lock().unwrap().iter().max(), Some(&Duration::ZERO));
}

/// A list of many Services has many pages. With a token for each, most pages would wait.
#[tokio::test]
async fn the_pages_of_a_list_take_one_token() {
    let page = |name: &str, token: &str| {
        let body = format!(
            r#"{{"kind":"ServiceList","metadata":{{"resourceVersion":"9","continue":"{token}"}},"items":[{{"metadata":{{"name":"{name}","namespace":"ns","resourceVersion":"3"}}}}]}}"#
        );
        vec![Act::Send(
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .into(),
        )]
    };
    let refusal = vec![Act::Send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec())];
    let pages = vec![refusal, page("a", "2"), page("b", "3"), page("c", "4"), page("d", "")];
    let server = Server::start([(SERVICES, pages)]).await;
    let throttled = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&throttled);
    let settings = ClientSettings {
        master: Some(server.url.clone()),
        qps: 0.001,
        // The streamed lists of four collections, and the list of Services in pages.
        burst: 5,
        on_request: Some(Arc::new(move |request| seen.lock().unwrap().push(request.throttled))),
        ..ClientSettings::default()
    };
    let watcher = Watcher::new(connect(&settings).await.unwrap(), "node-1");
    let (send, mut ends) = mpsc::unbounded_channel();
    let sink = move |event| {
        if let WatchEvent::Objects(events) = event
            && events.iter().any(|event| matches!(event, Event::ListEnd(Kind::Service)))
        {
            send.send(()).unwrap();
        }
    };
    tokio::select! {
        never = watcher.run(sink) => match never {},
        ended = time::timeout(Duration::from_secs(60), ends.recv()) => ended.expect("the last page").unwrap(),
    }
    let throttled = throttled.lock().unwrap();
    assert!(throttled.len() > 4, "a request of each collection, and the pages: {throttled:?}");
    assert_eq!(throttled.iter().max(), Some(&Duration::ZERO), "no request waited for a token");
}
