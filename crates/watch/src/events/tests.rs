use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{self, Instant};
use tower::BoxError;

use super::series::{Count, QUIET, REFRESH, Recorded};
use super::*;
use crate::client::deadline;

/// How the API server answers a request.
#[derive(Clone, Copy)]
enum Reply {
    Code(u16),
    /// 429 with `Retry-After` in seconds.
    Busy(u16),
    NoConnection,
    Silence,
}

/// A request as received.
#[derive(Debug, Clone)]
struct Sent {
    line: String,
    content_type: String,
    body: Value,
    at: Instant,
}

/// An API server without sockets. Sends the replies in order, then 201.
#[derive(Clone, Default)]
struct Api {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
    /// The replies to lists of Services, then 200.
    of_lists: Arc<Mutex<VecDeque<Reply>>>,
    /// The Services of each list.
    services: Value,
    lists: Arc<Mutex<Vec<String>>>,
}

impl Api {
    fn replies(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self { replies: Arc::new(Mutex::new(replies.into_iter().collect())), ..Self::default() }
    }

    /// Returns a recorder whose events arrive here.
    fn recorder(&self) -> Recorder {
        let (recorder, poster) = self.stopped();
        tokio::spawn(poster.run());
        recorder
    }

    fn stopped(&self) -> (Recorder, Poster) {
        let api = self.clone();
        let service = tower::service_fn(move |request| api.clone().take(request));
        Recorder::new(kube::Client::new(service, "default"), "node-1.example")
    }

    async fn take(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        if parts.method == "GET" {
            self.lists.lock().unwrap().push(parts.uri.to_string());
            let reply = self.of_lists.lock().unwrap().pop_front().unwrap_or(Reply::Code(200));
            let list = json!({"kind": "ServiceList", "apiVersion": "v1", "items": self.services});
            return answer(reply, &parts, Body::from(list.to_string().into_bytes())).await;
        }
        let body = body.collect().await?.to_bytes();
        self.sent.lock().unwrap().push(Sent {
            line: format!("{} {}", parts.method, parts.uri),
            content_type: parts.headers["content-type"].to_str()?.to_owned(),
            body: serde_json::from_slice(&body)?,
            at: Instant::now(),
        });
        let reply = self.replies.lock().unwrap().pop_front();
        answer(reply.unwrap_or(Reply::Code(201)), &parts, Body::empty()).await
    }

    fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    /// Returns method and count of each request.
    fn brief(&self) -> Vec<String> {
        let brief = |sent: &Sent| {
            let method = sent.line.split(' ').next().unwrap();
            format!("{method} {}", sent.body["series"]["count"].as_u64().unwrap_or(1))
        };
        self.sent().iter().map(brief).collect()
    }
}

async fn answer(reply: Reply, asked: &Parts, body: Body) -> Result<Response<Body>, BoxError> {
    let answer = match reply {
        Reply::Code(code) => Response::builder().status(StatusCode::from_u16(code)?),
        Reply::Busy(seconds) => Response::builder().status(429).header("Retry-After", seconds),
        Reply::NoConnection => return Err("connection refused".into()),
        Reply::Silence => {
            let within = deadline::of(&asked.extensions);
            return deadline::in_time(within, std::future::pending::<Result<_, BoxError>>()).await;
        }
    };
    Ok(answer.body(body)?)
}

fn failed(text: &str) -> EventNote {
    EventNote::failed_to_start_service_healthcheck(("ns", "web"), text)
}

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces";

#[tokio::test(start_paused = true)]
async fn an_event_about_the_node() {
    let api = Api::default();
    let recorder = api.recorder();
    recorder.event(EventNote::starting("node-1"));
    recorder.flushed().await;
    let mut sent = api.sent().remove(0);
    assert_eq!(
        (&*sent.line, &*sent.content_type),
        (&*format!("POST {EVENTS}/default/events"), "application/json")
    );
    let name = sent.body["metadata"]["name"].take();
    let nanos = u64::from_str_radix(name.as_str().unwrap().strip_prefix("node-1.").unwrap(), 16).unwrap();
    let time = sent.body["eventTime"].take();
    let time: k8s_openapi::jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    assert_eq!(time.as_microsecond(), i64::try_from(nanos / 1000).unwrap());
    assert_eq!(
        sent.body,
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "eventTime": null,
            "metadata": {"name": null, "namespace": "default"},
            "reportingController": "kube-proxy", "reportingInstance": "kube-proxy-node-1.example",
            "action": "StartKubeProxy", "reason": "Starting", "type": "Normal",
            "regarding": {"kind": "Node", "apiVersion": "v1", "name": "node-1", "uid": "node-1"}})
    );
}

#[tokio::test(start_paused = true)]
async fn every_event_has_upstream_s_words() {
    let api = Api::default();
    let recorder = api.recorder();
    let table = [
        (
            EventNote::failed_to_start_proxier_healthcheck("n", "x"),
            "Warning",
            "FailedToStartProxierHealthcheck",
            "StartKubeProxy",
        ),
        (
            EventNote::failed_to_start_metric_server("n", "x"),
            "Warning",
            "FailedToStartMetricServer",
            "StartKubeProxy",
        ),
        (failed("x"), "Warning", "FailedToStartServiceHealthcheck", "Listen"),
        (
            EventNote::configuration_reloaded("n", "x"),
            "Normal",
            "ConfigurationReloaded",
            "ReloadConfiguration",
        ),
        (
            EventNote::configuration_refused("n", "x"),
            "Warning",
            "ConfigurationRefused",
            "ReloadConfiguration",
        ),
    ];
    for (note, ..) in &table {
        recorder.event(note.clone());
    }
    recorder.flushed().await;
    let sent = api.sent();
    assert_eq!(sent.len(), table.len());
    for (sent, (_, kind, reason, action)) in sent.iter().zip(table) {
        let body = &sent.body;
        assert_eq!(
            (&body["type"], &body["reason"], &body["action"]),
            (&json!(kind), &json!(reason), &json!(action))
        );
        assert_eq!(body["note"], "x");
    }
    assert_eq!(sent[2].line, format!("POST {EVENTS}/ns/events"));
    let service = json!({"kind": "Service", "apiVersion": "v1", "name": "web", "namespace": "ns"});
    assert_eq!(sent[2].body["regarding"], service);
    let names: std::collections::HashSet<_> =
        sent.iter().map(|sent| sent.body["metadata"]["name"].as_str()).collect();
    assert_eq!(names.len(), sent.len(), "no two events share a name");
}

/// `kubectl describe` looks for events by the UID of the object.
#[tokio::test(start_paused = true)]
async fn an_event_about_a_service_has_its_uid() {
    let api = Api { services: json!([{"metadata": {"name": "web", "uid": "7ad1"}}]), ..Api::default() };
    let recorder = api.recorder();
    recorder.event(failed("x"));
    recorder.event(failed("x"));
    recorder.flushed().await;
    assert_eq!(api.brief(), ["POST 1", "PATCH 2"]);
    assert_eq!(api.sent()[0].body["regarding"]["uid"], "7ad1");
    let list = "/api/v1/namespaces/ns/services?fieldSelector=metadata.name%3Dweb&resourceVersion=0";
    assert_eq!(*api.lists.lock().unwrap(), [list]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_be_found_delays_no_event() {
    for (of_lists, lists) in [
        (vec![], 1),
        (vec![Reply::Code(403)], 1),
        (vec![Reply::NoConnection, Reply::Busy(17), Reply::Silence], 4),
    ] {
        let api = Api::default();
        api.of_lists.lock().unwrap().extend(of_lists);
        let recorder = api.recorder();
        recorder.event(failed("x"));
        recorder.flushed().await;
        assert_eq!((api.lists.lock().unwrap().len(), recorder.lost()), (lists, 0));
        assert_eq!(api.sent()[0].body["regarding"].get("uid"), None);
    }
    let api = Api::default();
    api.of_lists.lock().unwrap().extend([Reply::NoConnection; 12]);
    let recorder = api.recorder();
    recorder.event(failed("x"));
    recorder.flushed().await;
    assert_eq!((api.sent().len(), recorder.lost()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn equal_events_become_a_series() {
    let api = Api::default();
    let recorder = api.recorder();
    for _ in 0..4 {
        recorder.event(failed("x"));
    }
    recorder.event(failed("y"));
    recorder.flushed().await;
    assert_eq!(api.brief(), ["POST 1", "PATCH 2", "POST 1"]);
    let sent = api.sent();
    assert_eq!(sent[1].content_type, "application/merge-patch+json");
    let name = sent[0].body["metadata"]["name"].as_str().unwrap();
    assert_eq!(sent[1].line, format!("PATCH {EVENTS}/ns/events/{name}"));
    assert!(sent[1].body["series"]["lastObservedTime"].is_string());

    time::sleep(QUIET + Duration::from_secs(1)).await;
    assert_eq!(api.brief()[3..], ["PATCH 4"], "what was only counted is posted when it has been quiet");
    assert!((QUIET..QUIET + Duration::from_secs(1)).contains(&(api.sent()[3].at - sent[0].at)));
    recorder.event(failed("x"));
    recorder.flushed().await;
    assert_eq!(api.brief()[4..], ["POST 1"], "it was forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_long_series_is_posted_now_and_then() {
    let api = Api::default();
    let recorder = api.recorder();
    let start = Instant::now();
    for _ in 0..=35 {
        recorder.event(failed("x"));
        recorder.flushed().await;
        time::sleep(Duration::from_secs(61)).await;
    }
    assert_eq!(api.brief(), ["POST 1", "PATCH 2", "PATCH 31"]);
    assert_eq!((api.sent()[2].at - start).as_secs(), 61 + REFRESH.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_series_whose_object_is_gone_is_created_anew() {
    let api = Api::replies([Reply::Code(201), Reply::Code(404)]);
    let recorder = api.recorder();
    recorder.event(failed("x"));
    recorder.event(failed("x"));
    recorder.flushed().await;
    assert_eq!(api.brief(), ["POST 1", "PATCH 2", "POST 2"]);
    assert_eq!(recorder.lost(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_tried_twelve_times() {
    let api = Api::replies([Reply::NoConnection; 12]);
    let recorder = api.recorder();
    recorder.event(failed("x"));
    recorder.event(failed("y"));
    recorder.flushed().await;
    let sent = api.sent();
    assert_eq!((sent.len(), recorder.lost()), (13, 1), "the next event gets through");
    for pair in sent[..12].windows(2) {
        let pause = (pair[1].at - pair[0].at).as_millis();
        assert!((9_000..=11_002).contains(&pause), "{pause} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_no_answer() {
    let api = Api::replies([Reply::Silence]);
    let recorder = api.recorder();
    recorder.event(failed("x"));
    recorder.flushed().await;
    let sent = api.sent();
    let pause = (sent[1].at - sent[0].at).as_secs();
    assert!((39..=41).contains(&pause), "{pause} s");
    assert_eq!(recorder.lost(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_unless_it_says_when_to_come_back() {
    let api = Api::replies([Reply::Code(403), Reply::Busy(17), Reply::Code(409)]);
    let recorder = api.recorder();
    recorder.event(failed("forbidden"));
    recorder.event(failed("busy"));
    recorder.flushed().await;
    assert_eq!((api.sent().len(), recorder.lost()), (3, 1));
    let sent = api.sent();
    assert_eq!((sent[2].at - sent[1].at).as_secs(), 17);
    assert_eq!(sent[1].body, sent[2].body, "the same event, which was there already");
}

#[tokio::test(start_paused = true)]
async fn of_too_many_events_the_oldest_are_dropped() {
    let api = Api::default();
    let (recorder, poster) = api.stopped();
    for number in 0..QUEUE + 3 {
        recorder.event(failed(&number.to_string()));
    }
    assert_eq!(recorder.lost(), 3);
    let early = time::timeout(Duration::from_secs(1), recorder.flushed()).await;
    assert!(early.is_err(), "nothing was posted yet");
    tokio::spawn(poster.run());
    recorder.flushed().await;
    let sent = api.sent();
    assert_eq!((sent.len(), &sent[0].body["note"]), (QUEUE, &json!("3")));
}

#[test]
fn the_number_of_remembered_events_is_bounded() {
    let mut series = series::Series::default();
    let start = std::time::Instant::now();
    let mut observe = |number: u64| {
        let now = start + Duration::from_secs(number);
        series.observe(failed(&(number % 300).to_string()), SystemTime::now(), now)
    };
    for number in 0..600 {
        let step = observe(number);
        assert!(matches!(step, Some(series::Step::Create(_))), "{number}: {step:?}");
    }
}

#[tokio::test]
async fn long_texts_are_cut_to_the_api_s_limits() {
    let long = "\u{e9}".repeat(600);
    let mut note = failed(&long);
    note.regarding.name = "n".repeat(253).into();
    let at = SystemTime::now();
    let event = Recorded { note, nanos: 0x17f0_0000_0000_0000, at };
    let request =
        wire::create(&event, None, Some(Count { count: 2, last: at }), &wire::instance(&"h".repeat(200)));
    let body = request.unwrap().into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    let length = |value: &Value| value.as_str().unwrap().len();
    assert_eq!(length(&body["note"]), 1024);
    assert_eq!(length(&body["reportingInstance"]), 128);
    assert_eq!(length(&body["metadata"]["name"]), 253);
    assert_eq!(body["series"]["count"], 2);
}
