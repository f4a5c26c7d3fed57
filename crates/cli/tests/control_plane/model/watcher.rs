//! A client that watches: lists once, then watches from its last revision, at any server that responds. It lists
//! again only if the server responds that its revision is too old.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use portolan_testkit::HttpClient;
use serde_json::Value;

use super::{LAST, Run, SERVICES, revision};

/// How long a watcher may take to see the last write.
const PATIENCE: Duration = Duration::from_secs(180);
/// How long a watcher that must see everything tries other servers before it lists again.
const TENACITY: Duration = Duration::from_secs(60);

/// Everything that one watcher received.
pub(crate) struct History {
    pub(crate) path: &'static str,
    pub(crate) is_recorder: bool,
    pub(crate) entries: Vec<Entry>,
    /// Number of watches that continued at another server.
    pub(crate) moves: usize,
    /// Revisions that were called too old by a server that had been up when they were new.
    pub(crate) unjustified: Vec<String>,
}

#[derive(Debug)]
pub(crate) enum Entry {
    /// All objects at one revision.
    List(List),
    /// One change.
    Event { kind: String, revision: u64, object: Value },
}

#[derive(Debug)]
pub(crate) struct List {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Value>,
}

struct Watcher<'a> {
    run: &'a Run,
    rng: Rng,
    addresses: Vec<SocketAddr>,
    server: usize,
    last_server: Option<usize>,
    /// The last revision, and when it was seen.
    at: Option<(u64, Instant)>,
    /// Since when every server has called the revision too old.
    expired_since: Option<Instant>,
    history: History,
}

/// Why a watch ended.
enum End {
    /// The connection broke. The next watch continues from the last revision.
    Broken,
    Expired(String),
    SeenAll,
}

/// Follows a collection until it has seen the last write of the run.
pub(crate) fn follow(run: &Run, path: &'static str, is_recorder: bool, role: u64) -> History {
    let addresses = run.site.addresses();
    let mut rng = run.rng(role);
    let server = rng.usize(..addresses.len());
    let history = History { path, is_recorder, entries: Vec::new(), moves: 0, unjustified: Vec::new() };
    let mut watcher =
        Watcher { run, rng, addresses, server, last_server: None, at: None, expired_since: None, history };
    let mut over_since = None;
    loop {
        if run.is_over() {
            let since = *over_since.get_or_insert_with(Instant::now);
            assert!(
                since.elapsed() < PATIENCE,
                "a watcher of {path} never saw the last write: {:?}",
                watcher.at
            );
        }
        match watcher.go_on() {
            End::Broken => {}
            End::Expired(message) => watcher.expired(&message),
            End::SeenAll => return watcher.history,
        }
        watcher.move_on();
    }
}

/// Lists Services, all at once or in pages, until the run is over.
pub(crate) fn list_again_and_again(run: &Run) -> Vec<List> {
    let mut rng = run.rng(98);
    let addresses = run.site.addresses();
    let mut lists = Vec::new();
    while !run.is_over() {
        let limit = [None, Some(7)][rng.usize(..2)];
        lists.extend(list(addresses[rng.usize(..addresses.len())], SERVICES, limit));
        thread::sleep(Duration::from_millis(20));
    }
    lists
}

impl Watcher<'_> {
    fn go_on(&mut self) -> End {
        let Some((at, _)) = self.at else {
            let limit = [None, Some(5)][self.rng.usize(..2)];
            if let Some(list) = list(self.addresses[self.server], self.history.path, limit) {
                self.at = Some((list.revision, Instant::now()));
                self.history.entries.push(Entry::List(list));
            }
            return End::Broken;
        };
        let seconds = self.rng.u8(1..4);
        let path = self.history.path;
        let path =
            format!("{path}?watch=1&allowWatchBookmarks=true&resourceVersion={at}&timeoutSeconds={seconds}");
        let Ok(mut lines) =
            HttpClient::new(self.addresses[self.server], Duration::from_secs(60)).lines(&path)
        else {
            return End::Broken;
        };
        if lines.status == 410 {
            return End::Expired(String::from_utf8_lossy(&lines.rest().unwrap_or_default()).into_owned());
        }
        if lines.status != 200 {
            assert!(
                lines.status >= 500 || lines.status == 429,
                "a watch from {at} is answered with {}",
                lines.status
            );
            return End::Broken;
        }
        if self.last_server.replace(self.server).is_some_and(|last| last != self.server) {
            self.history.moves += 1;
        }
        while let Ok(Some(line)) = lines.next_line() {
            let mut event: Value = serde_json::from_slice(&line).unwrap();
            let kind = event["type"].as_str().unwrap().to_owned();
            let object = event["object"].take();
            if kind == "ERROR" {
                if object["code"] == 410 {
                    return End::Expired(object["message"].to_string());
                }
                assert!(object["code"].as_u64() >= Some(500), "{object}");
                return End::Broken;
            }
            let revision = revision(&object);
            self.at = Some((revision, Instant::now()));
            self.expired_since = None;
            if kind == "BOOKMARK" {
                continue;
            }
            let name = object["metadata"]["name"].as_str();
            let is_last = name == Some(LAST) || object["spec"]["parentRef"]["name"] == LAST;
            self.history.entries.push(Entry::Event { kind, revision, object });
            if is_last {
                return End::SeenAll;
            }
            if self.rng.u8(..60) == 0 {
                // The client closes the connection.
                return End::Broken;
            }
        }
        End::Broken
    }

    fn expired(&mut self, message: &str) {
        let Some((at, seen)) = self.at else { return };
        let up_since = self.run.up_since(self.server);
        if up_since.is_some_and(|up_since| seen > up_since) || !self.run.site.has_etcd() {
            let server = self.server;
            let (age, up) = (seen.elapsed(), up_since.map(|since| since.elapsed()));
            let line = format!("{at}, seen {age:?} ago, at server {server}, up for {up:?}: {message}");
            self.history.unjustified.push(line);
        }
        let since = *self.expired_since.get_or_insert_with(Instant::now);
        if !self.history.is_recorder || since.elapsed() > TENACITY {
            self.at = None;
            self.expired_since = None;
        }
    }

    fn move_on(&mut self) {
        if self.rng.bool() {
            self.server = self.rng.usize(..self.addresses.len());
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Lists a collection, all at once or in pages. Returns `None` if the server went away or the pages are too old.
fn list(address: SocketAddr, path: &str, limit: Option<usize>) -> Option<List> {
    let mut client = HttpClient::new(address, Duration::from_secs(60));
    let mut objects = Vec::new();
    let mut revision = None;
    let mut next = String::new();
    loop {
        let query = match limit {
            Some(limit) => format!("{path}?limit={limit}&continue={next}"),
            None => path.to_owned(),
        };
        let answer = client.request("GET", &query, &[], b"").ok().filter(|answer| answer.status == 200)?;
        let mut page: Value = serde_json::from_slice(&answer.body).unwrap();
        let at = super::revision(&page);
        assert_eq!(*revision.get_or_insert(at), at, "the pages of one list are of one revision");
        let Value::Array(items) = page["items"].take() else { panic!("{page}") };
        objects.extend(items);
        page["metadata"]["continue"].as_str().unwrap_or_default().clone_into(&mut next);
        if next.is_empty() {
            return revision.map(|revision| List { revision, objects });
        }
    }
}
