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

/// A line of a watch, in the form of Go's encoder.
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

/// A complete streamed list of one Service, read at version 10, that goes on as a watch.
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

/// What of a request tells one query from another.
fn brief(uri: &str) -> String {
    let skip = ["allowWatchBookmarks", "fieldSelector", "labelSelector", "timeoutSeconds", "watch"];
    let query = uri.split_once('?').map_or("", |(_, query)| query).split('&');
    query.filter(|pair| !skip.contains(&pair.split('=').next().unwrap())).collect::<Vec<_>>().join("&")
}

impl Log {
    fn queries(&self) -> Vec<String> {
        self.requests.iter().map(|uri| brief(uri)).collect()
    }

    /// Asserts that the request of this index followed at once, but for a little jitter.
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
async fn watches_that_end_at_once_are_backed_off() {
    let log = services([ok(listed()), ok(""), ok(""), ok("")]).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 4]);
    log.assert_at_once(1);
    for (request, low) in [(2, 500), (3, 1000), (4, 2000)] {
        log.assert_backed_off(request, low);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_stream_becomes_pages() {
    let second = [service("c", "4")];
    let log = services([
        status(400),
        ok(page(&[service("a", "1"), service("b", "2")], "50", "t/1=")),
        ok(page(&second, "50", "")),
        ok(added("d", "51")),
    ])
    .await;
    assert_eq!(
        log.queries(),
        [STREAM, "limit=500", "continue=t%2F1%3D&limit=500", "resourceVersion=50", "resourceVersion=51"]
    );
    assert_eq!(log.events[..6], ["start", "+ns/a@1", "+ns/b@2", "+ns/c@4", "end", "+ns/d@51"]);
    assert_eq!(log.times[3], Duration::ZERO, "nothing to wait for");
}

#[tokio::test(start_paused = true)]
async fn pages_that_expire_begin_anew_in_one_piece() {
    let log = services([
        status(422),
        ok(page(&[service("a", "1")], "50", "t")),
        status(410),
        ok(page(&[service("b", "2")], "60", "")),
    ])
    .await;
    assert_eq!(log.queries(), [STREAM, "limit=500", "continue=t&limit=500", "", "resourceVersion=60"]);
    assert_eq!(
        log.events,
        ["start", "+ns/a@1", "relist: the API server answered 410", "start", "+ns/b@2", "end"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_expired_list_is_asked_for_again() {
    let log = services([status(410), status(410), ok(listed())]).await;
    assert_eq!(log.queries()[..3], [STREAM, "limit=500", STREAM]);
    assert_eq!(log.events[1..], ["start", "+ns/a@3", "end", "resume: the API server closed the watch early"]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_is_listed_again_and_nothing_is_deleted_before_the_end() {
    let expired = error_event(410, "Expired");
    let log = services([
        ok(listed() + &expired),
        steps([
            Step::Send(added("b", "90").into()),
            Step::Wait(Duration::from_secs(5)),
            Step::Send(end_mark("95").into()),
            Step::Wait(Duration::from_secs(5)),
        ]),
    ])
    .await;
    assert_eq!(
        log.events,
        [
            "start",
            "+ns/a@3",
            "end",
            "relist: the API server ended the watch with 410 Expired",
            "start",
            "+ns/b@90",
            "end"
        ]
    );
    assert_eq!(log.queries(), [STREAM, STREAM, "resourceVersion=95"]);
    log.assert_at_once(1);
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
async fn half_a_page() {
    let whole = page(&[service("a", "1"), service("b", "2")], "50", "");
    let log = services([status(400), ok(&whole.as_bytes()[..whole.len() - 40]), ok(whole.clone())]).await;
    assert_eq!(log.queries()[1..4], ["limit=500", "limit=500", "resourceVersion=50"]);
    assert_eq!(log.events.iter().filter(|event| *event == "end").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_resumes() {
    let body = [Step::Send(listed().into()), Step::Wait(Duration::from_secs(9)), Step::Break];
    let log = services([steps(body), Answer::Refuse, Answer::Refuse]).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 3]);
    (2..=3).for_each(|request| log.assert_backed_off(request, 500));
    assert_eq!(log.restarts, 3);
}

#[tokio::test(start_paused = true)]
async fn watches_cut_every_five_seconds_are_opened_again_at_once() {
    let cut = || steps([Step::Wait(Duration::from_secs(5)), Step::Break]);
    let first = steps([Step::Send(listed().into()), Step::Wait(Duration::from_secs(5)), Step::Break]);
    let log = services([first].into_iter().chain((0..50).map(|_| cut()))).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 51]);
    for pair in log.times.windows(2) {
        let away = pair[1].checked_sub(pair[0] + Duration::from_secs(5)).unwrap();
        assert!(away <= Duration::from_millis(252), "{away:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_asked_every_second_however_long_it_is_away() {
    let log = services((0..60).map(|_| Answer::Refuse)).await;
    assert_eq!(log.queries(), [STREAM; 61]);
    (1..=60).for_each(|request| log.assert_backed_off(request, 500));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_worked_for_some_seconds_ends_the_back_off() {
    let worked = || steps([Step::Wait(Duration::from_secs(3)), Step::Break]);
    let log =
        services([ok(listed()), status(500), status(500), status(500), worked(), status(500), status(500)])
            .await;
    log.assert_backed_off(4, 3200);
    log.assert_backed_off(6, 800);
    log.assert_backed_off(7, 1600);
}

#[tokio::test(start_paused = true)]
async fn server_errors_in_a_watch_keep_its_place() {
    let log = services([ok(listed()), status(500), status(501), status(429)]).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 4]);
    for (request, low) in [(2, 800), (3, 1600), (4, 3200)] {
        log.assert_backed_off(request, low);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_says_when() {
    let busy = |code| Answer::Say(code, Some("20"), Vec::new());
    let log = services([busy(429), busy(503), ok(listed())]).await;
    for pair in log.times[..3].windows(2) {
        let wait = pair[1].checked_sub(pair[0]).unwrap();
        assert!((20..=30).contains(&wait.as_secs()), "{wait:?}");
    }
    assert_eq!(log.queries()[..3], [STREAM; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_given_up_after_its_length_and_half_a_minute() {
    let patient = Timing { bookmark_silence: Duration::from_secs(3600), ..Timing::default() };
    let answers = [steps([Step::Send(listed().into()), Step::Hang]), ok("")];
    let log = play_with(patient, Kind::Service, answers).await;
    let seconds = log.requests[0].split("timeoutSeconds=").nth(1).unwrap();
    let seconds: u64 = seconds.split('&').next().unwrap().parse().unwrap();
    assert!((300..600).contains(&seconds), "{seconds}");
    let silence = log.times[1].as_millis() - u128::from(seconds) * 1000;
    assert!((30_000..=30_252).contains(&silence), "{silence}");
    assert_eq!(log.queries()[1], "resourceVersion=10");
}

/// A healthy server sends one a minute, up to a second and a quarter late.
#[tokio::test(start_paused = true)]
async fn an_idle_watch_with_bookmarks_is_left_alone() {
    let bookmark = |_| [Step::Wait(Duration::from_millis(61_250)), Step::Send(bookmark("10").into())];
    let body = [Step::Send(listed().into())].into_iter().chain((0..9).flat_map(bookmark));
    let log = services([steps(body.collect::<Vec<_>>())]).await;
    assert_eq!((log.lists, log.restarts, log.heard), (1, 0, 10));
    assert_eq!(log.queries()[1], "resourceVersion=10");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lost_its_history_is_listed_when_bookmarks_stay_away() {
    let silent = steps([Step::Send(listed().into()), Step::Hang]);
    let log = services([silent, ok(added("b", "2") + &end_mark("3"))]).await;
    assert_eq!(log.queries(), [STREAM, STREAM, "resourceVersion=3"]);
    let silence = log.times[1].as_millis();
    assert!((90_000..=90_252).contains(&silence), "{silence}");
    assert!(
        log.events[3].starts_with("relist: neither an event nor a bookmark came for 90 s"),
        "{:?}",
        log.events
    );
    assert_eq!(log.events[4..7], ["start", "+ns/b@2", "end"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_goes_back_is_listed_at_once() {
    for back in [bookmark("9"), added("b", "9")] {
        let log = services([ok(listed() + &back)]).await;
        assert_eq!(log.queries(), [STREAM, STREAM]);
        log.assert_at_once(1);
        assert!(log.events[3].starts_with("relist: resource version 9 came after 10"), "{:?}", log.events);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers() {
    let log = services([Answer::Never, Answer::Never]).await;
    assert_eq!(log.queries(), [STREAM, "limit=500", "limit=500"]);
    assert!(log.times[1] >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_without_an_end_mark_is_replaced_by_pages() {
    let endless = steps([Step::Send(added("a", "3").into()), Step::Hang]);
    let log = services([endless, ok(page(&[service("a", "3")], "9", ""))]).await;
    assert_eq!(log.queries(), [STREAM, "limit=500", "resourceVersion=9"]);
    assert_eq!(log.events[2..], ["relist: the API server was silent for 30 s", "start", "+ns/a@3", "end"]);
    let wait = log.times[1].checked_sub(Duration::from_secs(30)).unwrap();
    assert!(wait <= Duration::from_millis(252), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_stream_lists_is_asked_for_pages_at_once_and_ever_after() {
    let message = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled";
    let body = json!({"kind": "Status", "code": 500, "reason": "InternalError", "message": message});
    let by_status = Answer::Say(500, None, vec![Step::Send(body.to_string().into())]);
    for cannot in [by_status, ok(frame("ERROR", &body))] {
        let log = services([cannot, ok(page(&[service("a", "3")], "9", "")), status(410)]).await;
        assert_eq!(log.queries(), [STREAM, "limit=500", "resourceVersion=9", "limit=500"]);
        log.assert_at_once(1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_another_kind_ends_no_list() {
    let pods = page(&[], "50", "").replace("ServiceList", "PodList");
    let null = page(&[], "50", "").replace("[]", "null");
    let stream = end_mark("50").replace(r#""kind":"Service""#, r#""kind":"Pod""#);
    for (wrong, reason) in [(pods, "kind \"PodList\""), (null, "a list without items")] {
        let log = services([ok(listed()), status(410), status(400), ok(wrong)]).await;
        assert_eq!(log.events.iter().filter(|event| *event == "end").count(), 1, "{:?}", log.events);
        assert!(log.events.last().unwrap().starts_with(&format!("relist: {reason}")), "{:?}", log.events);
    }
    let log = services([ok(listed()), status(410), ok(stream)]).await;
    assert_eq!(log.events.iter().filter(|event| *event == "end").count(), 1, "{:?}", log.events);
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_where_services_were_known_waits_for_another_one() {
    let many = || ok(added("a", "3") + &added("b", "4") + &end_mark("10"));
    let empty = || ok(page(&[], "20", ""));
    let log =
        services([many(), status(410), ok(end_mark("20")), ok(page(&[service("a", "3")], "21", ""))]).await;
    let doubt = "relist: the list is empty, where 2 objects are known: it is not believed yet";
    assert_eq!(log.events[6..], ["start", "held: 2", doubt, "start", "+ns/a@3", "end"]);
    assert_eq!(log.queries()[2..], [STREAM, "limit=500", "resourceVersion=21"]);
    log.assert_backed_off(3, 5000);

    let answers = [many(), status(410), ok(end_mark("20"))];
    let log = services(answers.into_iter().chain((0..9).map(|_| empty()))).await;
    let believed = log.events.iter().rposition(|event| event == "end").unwrap();
    assert!(log.events[..believed].iter().filter(|event| *event == doubt).count() >= 3, "{:?}", log.events);
    assert_eq!(log.events.iter().filter(|event| event.starts_with("held")).count(), 1, "told once");
    let watched = log.queries().iter().position(|query| query == "resourceVersion=20").unwrap();
    let held = log.times[watched].checked_sub(log.times[2]).unwrap().as_secs();
    assert!((30..=40).contains(&held), "{held} s");
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
async fn an_item_that_makes_no_sense_harms_only_itself() {
    let items = [json!(7), service("a", "1"), json!({}), json!(null), service("b", "2")];
    let log = services([status(400), ok(page(&items, "50", ""))]).await;
    let kept: Vec<_> = log.events.iter().filter(|event| !event.starts_with("fault")).collect();
    assert_eq!(kept, ["start", "+ns/a@1", "+ns/b@2", "end"]);
    assert_eq!(log.events.len() - kept.len(), 3);
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
async fn a_page_that_is_no_list_ends_no_list() {
    let broken_item = r#"{"kind":"ServiceList","metadata":{"resourceVersion":"5"},"items":[{"metadata":}]}"#;
    for body in [
        "<html>",
        r#"{"kind":"Status","code":500}"#,
        r#"{"kind":"ServiceList","items":[]}"#,
        "[]",
        broken_item,
    ] {
        let log = services([status(400), ok(body)]).await;
        assert!(!log.events.contains(&"end".to_owned()), "{body}: {:?}", log.events);
        assert!(log.events[1].starts_with("relist: "), "{body}: {:?}", log.events);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_service_cidrs() {
    let log = play(Kind::ServiceCidr, [status(404), status(404), status(404)]).await;
    assert_eq!(log.events, ["unavailable"]);
    log.assert_backed_off(2, 60_000);
    assert_eq!(log.queries(), [STREAM, "limit=500", STREAM, "limit=500"]);
    assert_eq!(log.restarts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_has_older_versions() {
    let too_large = json!({"code": 504, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}});
    let refusal = Answer::Say(504, None, vec![Step::Send(too_large.to_string().into())]);
    let log = services([ok(listed()), refusal]).await;
    assert_eq!(log.queries(), [STREAM, "resourceVersion=10", STREAM]);
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
