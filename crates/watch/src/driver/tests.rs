mod lists;
mod messages;
mod reopened;

use std::time::Duration;

use portolan_model::object::Kind;
use serde_json::{Value, json};

use super::fake::{Answer, Log, Step, ok, play, play_with, status, steps};
use crate::timing::Timing;

fn service(name: &str, version: &str) -> Value {
    json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": version},
        "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}]}})
}

/// Returns a line of a watch in the form of Go's encoder.
fn frame(event: &str, object: &Value) -> String {
    format!("{{\"type\":\"{event}\",\"object\":{object}}}\n")
}

fn added(name: &str, version: &str) -> String {
    frame("ADDED", &service(name, version))
}

fn bookmark(version: &str) -> String {
    frame("BOOKMARK", &json!({"kind": "Service", "metadata": {"resourceVersion": version}}))
}

fn end_mark(version: &str) -> String {
    let metadata = json!({"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}});
    frame("BOOKMARK", &json!({"kind": "Service", "metadata": metadata}))
}

fn error_event(code: u16, reason: &str) -> String {
    frame("ERROR", &json!({"kind": "Status", "code": code, "reason": reason}))
}

/// Returns a complete streamed list of one Service, read at version 10, that continues as a watch.
fn listed() -> String {
    added("a", "3") + &end_mark("10")
}

fn page(items: &[Value], version: &str, next: &str) -> String {
    json!({"kind": "ServiceList", "metadata": {"resourceVersion": version, "continue": next}, "items": items})
        .to_string()
}

async fn services(answers: impl IntoIterator<Item = Answer>) -> Log {
    play(Kind::Service, answers).await
}

/// Returns the parts of a request's URI that differ between queries.
fn brief(uri: &str) -> String {
    let skip = ["allowWatchBookmarks", "fieldSelector", "labelSelector", "timeoutSeconds", "watch"];
    let query = uri.split_once('?').map_or("", |(_, query)| query).split('&');
    query.filter(|pair| !skip.contains(&pair.split('=').next().unwrap())).collect::<Vec<_>>().join("&")
}

impl Log {
    fn queries(&self) -> Vec<String> {
        self.requests.iter().map(|uri| brief(uri)).collect()
    }

    /// Asserts that the request of this index followed at once, apart from jitter.
    fn assert_at_once(&self, request: usize) {
        let wait = self.times[request].checked_sub(self.times[request - 1]).unwrap();
        assert!(wait <= Duration::from_millis(252), "waited {wait:?} before request {request}");
    }

    /// Asserts that the wait before the request of this index was in `low..=2 * low` milliseconds.
    fn assert_backed_off(&self, request: usize, low: u64) {
        let wait = self.times[request].checked_sub(self.times[request - 1]).unwrap().as_millis();
        let range = u128::from(low)..=u128::from(2 * low + 2);
        assert!(range.contains(&wait), "waited {wait} ms before request {request}, not {range:?}");
    }
}

const STREAM: &str = "resourceVersionMatch=NotOlderThan&sendInitialEvents=true";

#[tokio::test(start_paused = true)]
async fn a_streamed_list_then_changes() {
    let gone = frame("DELETED", &service("a", "12"));
    let changed = frame("MODIFIED", &service("b", "11"));
    let log = services([ok(listed() + &changed + &gone)]).await;
    assert_eq!(log.events[..5], ["start", "+ns/a@3", "end", "+ns/b@11", "-ns/a"]);
    assert_eq!(log.queries(), [STREAM, "resourceVersion=12"]);
    assert_eq!(log.lists, 1);
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_one_batch() {
    let chunks = (0..20).map(|n| Step::Send(added("a", &(20 + n).to_string()).into()));
    let body = [Step::Send(listed().into())].into_iter().chain(chunks).chain([Step::Hang]);
    let log = services([steps(body.collect::<Vec<_>>()), status(500)]).await;
    assert_eq!(log.batches, [23]);
}

#[tokio::test(start_paused = true)]
async fn a_lone_event_is_not_held_back() {
    let body = [
        Step::Send(listed().into()),
        Step::Wait(Duration::from_millis(1)),
        Step::Send(added("b", "11").into()),
        Step::Wait(Duration::from_millis(1)),
        Step::Send(added("c", "12").into()),
        Step::Wait(Duration::from_secs(1)),
    ];
    let log = services([steps(body)]).await;
    assert_eq!(log.batches, [3, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_big_list_comes_in_bounded_batches() {
    let chunks = (0..600).map(|_| Step::Send(added("a", "3").into()));
    let body = chunks.chain([Step::Send(end_mark("10").into()), Step::Wait(Duration::from_secs(2))]);
    let log = services([steps(body.collect::<Vec<_>>())]).await;
    assert_eq!(log.batches, [256, 256, 90]);
}

#[tokio::test(start_paused = true)]
async fn an_ordinary_close_resumes_at_the_bookmark_at_once() {
    let minute = |_| [Step::Wait(Duration::from_secs(60)), Step::Send(bookmark("77").into())];
    let body = [Step::Send(listed().into())].into_iter().chain((0..5).flat_map(minute));
    let log = services([steps(body.collect::<Vec<_>>())]).await;
    assert_eq!(log.queries(), [STREAM, "resourceVersion=77"]);
    let jitter = log.times[1].checked_sub(Duration::from_secs(300)).unwrap();
    assert!(jitter <= Duration::from_millis(252), "{jitter:?}");
    assert_eq!((log.restarts, log.events.len()), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_by_status_line() {
    let log = services([ok(listed()), status(410)]).await;
    assert_eq!(log.queries(), [STREAM, "resourceVersion=10", STREAM]);
}

#[tokio::test(start_paused = true)]
async fn half_an_object_and_a_close() {
    let whole = added("b", "11");
    let half = &whole[..whole.len() / 2];
    let log = services([ok(listed() + half), ok(whole.clone())]).await;
    assert_eq!(log.queries()[1], "resourceVersion=10", "the half object did not count");
    assert_eq!(log.events[3..5], ["resume: the answer ended in the middle of an object", "+ns/b@11"]);
}

#[tokio::test(start_paused = true)]
async fn a_last_line_without_a_break_counts() {
    let log = services([ok(listed() + added("b", "11").trim_end())]).await;
    assert_eq!(log.queries()[1], "resourceVersion=11");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_makes_no_sense_harms_only_itself() {
    let nameless = frame("ADDED", &json!({"metadata": {"namespace": "ns"}}));
    let number = frame("MODIFIED", &json!(7));
    let unknown = frame("RENAMED", &service("x", "12"));
    let gone = frame("DELETED", &json!({"metadata": {"name": 5}}));
    let body = listed() + &nameless + &number + &unknown + &gone + "[]\n42\n\n" + &added("b", "13");
    let log = services([ok(body)]).await;
    assert_eq!(log.queries()[1], "resourceVersion=13");
    let faults = log.events.iter().filter(|event| event.starts_with("fault: ")).count();
    assert_eq!((faults, log.restarts), (6, 1), "{:?}", log.events);
    assert!(log.events.contains(&"+ns/b@13".to_owned()));
    assert!(log.events.contains(&"fault: watch event of unknown type \"RENAMED\"".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn objects_that_make_no_sense_are_counted_until_the_next_list() {
    let nameless = frame("ADDED", &json!({"metadata": {"namespace": "ns"}}));
    let ill = listed() + &nameless + &frame("MODIFIED", &json!(7)) + &frame("RENAMED", &json!({}));
    let first = ill + &error_event(410, "Expired");
    assert_eq!(services([ok(&*first)]).await.unreadable, 2, "what is no object does not count");
    assert_eq!(services([ok(first), ok(listed() + &nameless)]).await.unreadable, 1);
}

#[tokio::test(start_paused = true)]
async fn garbage_in_a_watch_is_one_error_and_a_relist() {
    for garbage in
        ["<html>\n".to_owned(), "{\"type\":\"ADDED\",\"object\":{\n".to_owned(), "\u{0}\n".to_owned()]
    {
        let log = services([ok(listed() + &added("b", "11") + &garbage + &added("c", "12"))]).await;
        assert_eq!(log.events[..4], ["start", "+ns/a@3", "end", "+ns/b@11"]);
        assert!(log.events[4].starts_with("relist: not JSON"), "{:?}", log.events);
        assert_eq!((log.events.len(), log.queries()[1].as_str()), (5, STREAM));
    }
}

#[tokio::test(start_paused = true)]
async fn an_endless_line_is_cut_off() {
    let chunks = (0..64).map(|_| Step::Send(vec![b'x'; 1 << 20]));
    let body = [Step::Send(listed().into())].into_iter().chain(chunks);
    let log = services([steps(body.collect::<Vec<_>>())]).await;
    assert!(log.events[3].starts_with("relist: a value of more than 8388608 bytes"), "{:?}", log.events);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_service_cidrs() {
    let log = play(Kind::ServiceCidr, [status(404), status(404), status(404)]).await;
    assert_eq!(log.events, ["unavailable"; 3]);
    log.assert_backed_off(1, 60_000);
    log.assert_backed_off(2, 120_000);
    assert_eq!(log.queries(), [STREAM; 4]);
    assert_eq!(log.restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn an_endless_refusal_is_not_read_to_its_end() {
    let body = vec![Step::Send(vec![b'x'; 1 << 20]), Step::Hang];
    let log = services([Answer::Say(500, None, body), ok(page(&[], "5", ""))]).await;
    assert_eq!(log.queries()[1], "limit=500");
    assert!(log.times[1] < Duration::from_secs(7), "{:?}", log.times);
}

#[tokio::test(start_paused = true)]
async fn every_kind_is_decoded() {
    let object = |metadata: &Value| frame("ADDED", &json!({"metadata": metadata}));
    let namespaced = object(&json!({"name": "a", "namespace": "ns", "resourceVersion": "3"}));
    let cluster = object(&json!({"name": "a", "resourceVersion": "3"}));
    for (kind, body, expected) in [
        (Kind::Service, &namespaced, "+ns/a@3"),
        (Kind::EndpointSlice, &namespaced, "+ns/a@3"),
        (Kind::Node, &cluster, "+a@3"),
        (Kind::ServiceCidr, &cluster, "+a@3"),
    ] {
        let gone = body.replace("ADDED", "DELETED");
        let end_mark = end_mark("9").replace("\"Service\"", &format!("\"{}\"", kind.name()));
        let log = play(kind, [ok(body.clone() + &end_mark + &gone)]).await;
        let deleted = expected.replace('+', "-").replace("@3", "");
        assert_eq!(log.events[..4], ["start", expected, "end", &deleted], "{kind}");
    }
}
