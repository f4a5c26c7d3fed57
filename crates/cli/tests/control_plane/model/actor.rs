//! A client that writes: creates, updates, patches and deletes at random, at any server that responds.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use portolan_testkit::{HttpAnswer, HttpClient, eventually};
use serde_json::{Value, json};

use super::{LAST, Run, key, request, revision, specs};
use crate::site::PATIENCE;

/// Annotation that identifies each write.
pub(crate) const MARKER: &str = "test/marker";

/// One write and its outcome.
pub(crate) struct Write {
    pub(crate) key: String,
    /// The marker that it wrote. `None` for a deletion.
    pub(crate) marker: Option<String>,
    /// The revision that the object must have. `None` if any.
    pub(crate) expected: Option<u64>,
    pub(crate) is_create: bool,
    /// The highest acknowledged revision when it began.
    pub(crate) floor: u64,
    pub(crate) outcome: ActionResult,
}

#[derive(Debug, Clone)]
pub(crate) enum ActionResult {
    /// Acknowledged, with the object of the response.
    Done(Value),
    /// No response: it may have happened.
    Unknown,
    /// Refused: it must not have happened.
    Refused,
}

struct Actor<'a> {
    run: &'a Run,
    rng: Rng,
    number: u64,
    count: u64,
    clients: Vec<HttpClient>,
    current: usize,
    /// Whether the last request could not connect to a server.
    is_unsent: bool,
}

/// Writes until the run is over.
pub(crate) fn write(run: &Run, number: u64) {
    let clients = run.site.addresses().into_iter().map(|address| HttpClient::new(address, PATIENCE));
    let current = usize::try_from(number).unwrap() % run.site.addresses().len();
    let mut actor = Actor {
        run,
        rng: run.rng(number),
        number,
        count: 0,
        clients: clients.collect(),
        current,
        is_unsent: false,
    };
    while !run.is_over() {
        actor.step();
    }
}

/// Writes a Service with an address, so that watchers of both kinds see it.
pub(crate) fn last_write(run: &Run) {
    let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": LAST}, "spec": {
        "ports": [{"port": 80}]}});
    let path = "/api/v1/namespaces/one/services";
    let address = run.site.addresses()[0];
    // While etcd does not write yet, the server refuses. The Service exists when it cannot be created any more.
    let exists = || request(run, address, "POST", path, &body).0 == 409;
    eventually(PATIENCE, "the last write", exists).unwrap();
}

impl Actor<'_> {
    fn step(&mut self) {
        if self.rng.u8(..4) == 0 {
            self.current = self.rng.usize(..self.clients.len());
        }
        let (namespace, name) = specs::target(&mut self.rng);
        match self.rng.u8(..10) {
            0..4 => self.create(namespace, &name),
            4..7 => self.update(namespace, &name),
            7 if self.rng.bool() => self.patch(namespace, &name),
            7 => self.patch_status(namespace, &name),
            _ => self.delete(namespace, &name),
        }
    }

    fn create(&mut self, namespace: &str, name: &str) {
        let marker = self.marker();
        let body = json!({"apiVersion": "v1", "kind": "Service", "spec": specs::spec(&mut self.rng),
            "metadata": {"name": name, "annotations": {MARKER: marker}}});
        let write = self.begin(namespace, name, Some(marker), None, true);
        self.send(write, "POST", &format!("/api/v1/namespaces/{namespace}/services"), &body);
    }

    fn update(&mut self, namespace: &str, name: &str) {
        let Some(mut object) = self.read(namespace, name) else { return };
        let marker = self.marker();
        object["spec"] = specs::change(&mut self.rng, &object["spec"]);
        object["metadata"]["annotations"] = json!({MARKER: marker});
        let mut expected = Some(revision(&object));
        if self.rng.u8(..5) == 0 {
            // An unconditional update overwrites any version of the object.
            expected = None;
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("resourceVersion");
            metadata.remove("uid");
        }
        let write = self.begin(namespace, name, Some(marker), expected, false);
        self.send(write, "PUT", &path(namespace, name), &object);
    }

    fn patch(&mut self, namespace: &str, name: &str) {
        let marker = self.marker();
        let body =
            json!({"metadata": {"annotations": {MARKER: marker}}, "spec": specs::patch(&mut self.rng)});
        let write = self.begin(namespace, name, Some(marker), None, false);
        self.send(write, "PATCH", &path(namespace, name), &body);
    }

    fn patch_status(&mut self, namespace: &str, name: &str) {
        let marker = self.marker();
        let body =
            json!({"metadata": {"annotations": {MARKER: marker}}, "status": specs::status(&mut self.rng)});
        let write = self.begin(namespace, name, Some(marker), None, false);
        self.send(write, "PATCH", &format!("{}/status", path(namespace, name)), &body);
    }

    fn delete(&mut self, namespace: &str, name: &str) {
        let (mut expected, mut body) = (None, json!({}));
        if self.rng.bool() {
            let Some(object) = self.read(namespace, name) else { return };
            expected = Some(revision(&object));
            body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {
                "resourceVersion": object["metadata"]["resourceVersion"], "uid": object["metadata"]["uid"]}});
        }
        let write = self.begin(namespace, name, None, expected, false);
        self.send(write, "DELETE", &path(namespace, name), &body);
    }

    /// Reads an object. A GET without a resourceVersion must show everything that was acknowledged before.
    fn read(&mut self, namespace: &str, name: &str) -> Option<Value> {
        let key = format!("{namespace}/{name}");
        let before = self.run.log.by_key.lock().unwrap().get(&key).copied();
        let answer = self.exchange("GET", &path(namespace, name), &json!({}))?;
        let object = (answer.status == 200).then(|| serde_json::from_slice::<Value>(&answer.body).unwrap());
        if let (Some(object), Some((acknowledged, _))) = (&object, before)
            && revision(object) < acknowledged
        {
            let seen = revision(object);
            let server = self.current;
            let line = format!("{key} at server {server}: {seen} though {acknowledged} was acknowledged");
            self.run.log.stale.lock().unwrap().push(line);
        }
        object
    }

    fn marker(&mut self) -> String {
        self.count += 1;
        format!("{}-{}", self.number, self.count)
    }

    fn begin(
        &self,
        namespace: &str,
        name: &str,
        marker: Option<String>,
        expected: Option<u64>,
        is_create: bool,
    ) -> Write {
        let floor = self.run.log.highest.load(Ordering::SeqCst);
        let key = format!("{namespace}/{name}");
        Write { key, marker, expected, is_create, floor, outcome: ActionResult::Unknown }
    }

    fn send(&mut self, mut write: Write, method: &str, path: &str, body: &Value) {
        let answer = self.exchange(method, path, body);
        let log = &self.run.log;
        let message = answer.as_ref().map_or("no answer".to_owned(), message);
        *log.answers.lock().unwrap().entry(format!("{method} {message}")).or_default() += 1;
        write.outcome = match answer {
            Some(HttpAnswer { status: 200 | 201, body, .. }) => {
                let object: Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(key(&object), write.key, "{object}");
                let revision = revision(&object);
                log.highest.fetch_max(revision, Ordering::SeqCst);
                let mut by_key = log.by_key.lock().unwrap();
                let last = by_key.entry(write.key.clone()).or_insert((0, false));
                if last.0 < revision {
                    *last = (revision, write.marker.is_none());
                }
                ActionResult::Done(object)
            }
            // Clients of Kubernetes repeat a write after these.
            Some(HttpAnswer { status: 429 | 503, .. }) => ActionResult::Refused,
            // Upstream has this response, too, for an allocated health-check node port.
            Some(HttpAnswer { status: 500, .. }) if message.contains("already allocated") => {
                ActionResult::Refused
            }
            None if self.is_unsent => return,
            Some(HttpAnswer { status: 500.., .. }) | None => ActionResult::Unknown,
            Some(_) => ActionResult::Refused,
        };
        log.writes.lock().unwrap().push(write);
    }

    /// Returns the response, or `None` if the connection broke. The next request then goes to another server.
    fn exchange(&mut self, method: &str, path: &str, body: &Value) -> Option<HttpAnswer> {
        let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let body = if method == "GET" { String::new() } else { body.to_string() };
        let client = &mut self.clients[self.current];
        let answer = client.request(method, path, &[("content-type", media_type)], body.as_bytes());
        if let Err(error) = &answer {
            self.is_unsent = error.kind() == std::io::ErrorKind::ConnectionRefused;
            self.current = (self.current + 1) % self.clients.len();
            // The server may be starting.
            thread::sleep(Duration::from_millis(2));
        }
        answer.ok()
    }
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services/{name}")
}

fn message(answer: &HttpAnswer) -> String {
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    let reason = body["reason"].as_str().unwrap_or_default();
    let message = body["message"].as_str().unwrap_or_default();
    let detail =
        ["already allocated", "range is full", "not in the valid range", "may not change", "modified"]
            .into_iter()
            .find(|part| message.contains(part));
    let detail = detail.unwrap_or(if answer.status == 422 {
        message.split(": ").nth(1).unwrap_or_default()
    } else {
        ""
    });
    format!("{} {reason} {detail}", answer.status).trim().to_owned()
}
