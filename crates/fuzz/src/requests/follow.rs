//! Clients that list objects and follow them by a watch, as informers do. Whatever has changed, each of them has the objects that
//! a list has, and each event changes what it has.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use portolan_http::Handler;
use serde_json::Value;

use super::{connect, send, with_body};

/// What is followed: a path, and a selector.
const FOLLOWED: [(&str, &str); 10] = [
    ("/api/v1/services", ""),
    ("/api/v1/namespaces/default/services", "fieldSelector=spec.type%21%3DClusterIP"),
    ("/api/v1/services", "fieldSelector=metadata.name%3Dsvc-1"),
    ("/api/v1/services", "fieldSelector=spec.type%3DNodePort"),
    ("/api/v1/services", "labelSelector=%21service.kubernetes.io/headless"),
    ("/apis/networking.k8s.io/v1/ipaddresses", ""),
    ("/apis/discovery.k8s.io/v1/endpointslices", ""),
    ("/apis/discovery.k8s.io/v1/endpointslices", "labelSelector=kubernetes.io/service-name"),
    ("/api/v1/endpoints", ""),
    ("/api/v1/nodes", "labelSelector=a"),
];
/// Types of events.
const TYPES: [&str; 5] = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"];
/// Seconds after which a watch ends. The paused clock passes them when another request waits as long.
const TIMEOUTS: [&str; 3] = ["1", "60", "3600"];
/// The server sends at most this many bytes that the client has not read.
const BUFFER: usize = 2 << 10;
/// The number of watches that ended, beside those of events.
pub(super) const ENDED: &str = "ended";
/// How long a client waits for the next event. The paused clock does not advance while the server has something to do.
const PATIENCE: Duration = Duration::from_millis(1);
/// Annotation of the bookmark after the first objects of a watch (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// A client that follows objects.
pub(super) struct Follower {
    handler: Rc<Handler>,
    path: &'static str,
    selector: &'static str,
    timeout: &'static str,
    /// The first objects are those of the watch, without a list.
    streams_list: bool,
    objects: BTreeMap<(String, String), Value>,
    /// The revision of the list or of the last event. `None` before the first list, and after the history has passed it.
    revision: Option<u64>,
    watch: Option<Watch>,
    /// How many events were taken, by type.
    pub(super) taken: BTreeMap<&'static str, usize>,
}

struct Watch {
    body: Incoming,
    /// The beginning of a line whose rest has not arrived yet.
    rest: Vec<u8>,
    /// The first objects are still arriving.
    is_initial: bool,
}

impl Follower {
    /// Returns the client with this number. Numbers far apart give different clients.
    pub(super) fn new(handler: &Rc<Handler>, number: usize) -> Self {
        let (path, selector) = FOLLOWED[number % FOLLOWED.len()];
        Self {
            handler: Rc::clone(handler),
            path,
            selector,
            timeout: TIMEOUTS[number / FOLLOWED.len() % TIMEOUTS.len()],
            streams_list: number / FOLLOWED.len() / TIMEOUTS.len() % 2 == 1,
            objects: BTreeMap::new(),
            revision: None,
            watch: None,
            taken: BTreeMap::new(),
        }
    }

    /// Takes all events until no more arrive.
    pub(super) async fn catch_up(&mut self) {
        loop {
            let mut watch = match self.watch.take() {
                Some(watch) => watch,
                None => self.begin().await,
            };
            loop {
                match tokio::time::timeout(PATIENCE, watch.body.frame()).await {
                    Ok(Some(frame)) => {
                        let data = frame.expect("a frame").into_data().unwrap_or_default();
                        watch.rest.extend_from_slice(&data);
                        self.take_lines(&mut watch);
                    }
                    // The next watch continues where this one was.
                    Ok(None) => break,
                    Err(_) => {
                        assert!(!watch.is_initial, "{}: the first objects are complete", self.path);
                        self.watch = Some(watch);
                        return;
                    }
                }
            }
            assert!(watch.rest.is_empty(), "{}: a watch ends after a line", self.path);
            *self.taken.entry(ENDED).or_default() += 1;
        }
    }

    /// Compares the objects with those of a list.
    pub(super) async fn check(&mut self) {
        let (listed, _) = self.list().await;
        assert_eq!(self.objects, listed, "{}?{}: followed and listed objects", self.path, self.selector);
    }

    async fn begin(&mut self) -> Watch {
        let is_initial = self.revision.is_none() && self.streams_list;
        if self.revision.is_none() {
            self.objects.clear();
            if !is_initial {
                let (objects, revision) = self.list().await;
                (self.objects, self.revision) = (objects, Some(revision));
            }
        }
        let from = match self.revision {
            Some(revision) => format!("resourceVersion={revision}"),
            None => "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
        };
        let options = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={}", self.timeout);
        let uri = format!("{}?{}&{options}&{from}", self.path, self.selector);
        let mut sender = connect(&self.handler, BUFFER).await;
        let answer = sender.send_request(get(&uri)).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK, "{uri}");
        Watch { body: answer.into_body(), rest: Vec::new(), is_initial }
    }

    async fn list(&self) -> (BTreeMap<(String, String), Value>, u64) {
        let uri = format!("{}?{}", self.path, self.selector);
        let request =
            with_body(&Method::GET, &uri, "application/json", bytes::Bytes::new()).expect("a request");
        let (status, body) = send(&self.handler, request).await;
        assert_eq!(status, StatusCode::OK, "{uri}: {body}");
        let mut list: Value = serde_json::from_str(&body).expect("a list");
        let revision = revision(&list);
        let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        (items.into_iter().map(|item| (key(&item), plain(item))).collect(), revision)
    }

    fn take_lines(&mut self, watch: &mut Watch) {
        while let Some(end) = watch.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = watch.rest.drain(..=end).collect();
            let mut event: Value = serde_json::from_slice(&line).expect("an event");
            let object = event["object"].take();
            let kind = TYPES.iter().find(|known| event["type"] == **known).expect("a type of events");
            *self.taken.entry(kind).or_default() += 1;
            self.take_event(kind, object, watch);
        }
    }

    fn take_event(&mut self, kind: &str, object: Value, watch: &mut Watch) {
        let place = || format!("{}?{}: {kind} {object}", self.path, self.selector);
        if kind == "ERROR" {
            assert_eq!(object["code"], 410, "{}", place());
            self.revision = None;
            return;
        }
        let (key, revision) = (key(&object), revision(&object));
        if kind == "BOOKMARK" {
            assert!(Some(revision) >= self.revision, "{}", place());
            let ends = object["metadata"]["annotations"][INITIAL_END] == "true";
            assert_eq!(ends, watch.is_initial, "{}", place());
            watch.is_initial = false;
            self.revision = Some(revision);
            return;
        }
        // The first objects are in the order of their names.
        if !watch.is_initial {
            assert!(Some(revision) > self.revision, "{}, after {:?}", place(), self.revision);
            self.revision = Some(revision);
        }
        let known = match kind {
            "DELETED" => self.objects.remove(&key),
            _ => self.objects.insert(key, plain(object)),
        };
        assert_eq!(
            known.is_some(),
            kind != "ADDED",
            "{}?{}: {kind} after {known:?}",
            self.path,
            self.selector
        );
    }
}

fn get(uri: &str) -> Request<Full<Bytes>> {
    with_body(&Method::GET, uri, "application/json", Bytes::new()).expect("a request")
}

/// Returns an object as it is in a list, without its kind.
fn plain(mut object: Value) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    object
}

fn key(object: &Value) -> (String, String) {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn revision(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    text.parse().expect("a revision")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_api::Api;

    use super::*;
    use crate::requests::{CHANGES, config, in_paused_time};

    #[test]
    fn a_client_that_was_away_for_long_lists_again() {
        // All Services, with a watch of a second. The second client has no list but the events of its watch.
        for number in [0, FOLLOWED.len() * TIMEOUTS.len()] {
            let (_stop, stopping) = tokio::sync::watch::channel(false);
            let handler = Rc::new(Handler::new(Arc::new(Api::new(&config())), stopping, 64 << 20));
            in_paused_time(async {
                let mut follower = Follower::new(&handler, number);
                follower.catch_up().await;
                tokio::time::sleep(Duration::from_secs(2)).await;
                for label in 0..=CHANGES {
                    let service = serde_json::json!({
                        "apiVersion": "v1",
                        "kind": "Service",
                        "metadata": { "name": "a", "labels": { "a": label.to_string() } },
                        "spec": { "ports": [{ "port": 1 }] },
                    });
                    let uri = "/api/v1/namespaces/default/services/a?fieldManager=a&force=true";
                    let body = service.to_string().into();
                    let request = with_body(&Method::PATCH, uri, "application/apply-patch+yaml", body);
                    let (status, body) = send(&handler, request.expect("a request")).await;
                    assert!(status.is_success(), "{body}");
                }
                follower.catch_up().await;
                follower.check().await;
                assert_eq!(follower.taken.get("ERROR"), Some(&1), "{:?}", follower.taken);
                assert_eq!(follower.objects.len(), 1);
            });
        }
    }
}
