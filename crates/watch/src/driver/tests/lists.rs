//! Which lists are requested, and which are accepted.

use super::*;
use crate::counts::KindCounts;
use crate::driver::fake::play_counting;

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
async fn half_a_page_is_requested_again() {
    let whole = page(&[service("a", "1"), service("b", "2")], "50", "");
    let log = services([status(400), ok(&whole.as_bytes()[..whole.len() - 40]), ok(whole.clone())]).await;
    assert_eq!(log.queries()[1..4], ["limit=500", "limit=500", "resourceVersion=50"]);
    assert_eq!(log.events.iter().filter(|event| *event == "end").count(), 1);
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

/// Returns a streamed list of four objects, then an event every 20 s, and no end.
fn without_an_end(event: &str) -> Answer {
    let pair = || [Step::Wait(Duration::from_secs(20)), Step::Send(event.into())];
    let objects = [added("a", "3"), added("b", "4"), added("c", "5"), added("d", "6")];
    let objects = objects
        .into_iter()
        .flat_map(|object| [Step::Wait(Duration::from_secs(20)), Step::Send(object.into())]);
    steps(objects.chain((0..40).flat_map(|_| pair())).collect::<Vec<_>>())
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_with_changes_and_no_end_mark_is_replaced_by_pages_for_good() {
    let gone = frame("DELETED", &service("a", "12"));
    for event in [frame("MODIFIED", &service("a", "11")), gone, bookmark("11")] {
        let log =
            services([without_an_end(&event), ok(page(&[service("a", "3")], "9", "")), status(410)]).await;
        assert_eq!(log.queries(), [STREAM, "limit=500", "resourceVersion=9", "limit=500"], "{event}");
        let reason = "relist: the list did not end within 60 s of its first change: ";
        let reasons: Vec<_> = log.events.iter().filter(|event| event.starts_with("relist")).collect();
        assert!(reasons[0].starts_with(reason), "{reasons:?}");
        // The first change came after 100 s.
        let wait = log.times[1].checked_sub(Duration::from_secs(160)).unwrap();
        assert!(wait <= Duration::from_millis(252), "{wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_streamed_list_may_take_long_while_its_objects_come() {
    let objects = (0..30)
        .flat_map(|n| [Step::Send(added(&format!("s{n}"), "3").into()), Step::Wait(Duration::from_secs(20))]);
    let last = frame("MODIFIED", &service("s1", "9"));
    let rest =
        [Step::Send(last.into()), Step::Wait(Duration::from_secs(20)), Step::Send(end_mark("10").into())];
    let log = services([steps(objects.chain(rest).collect::<Vec<_>>())]).await;
    assert_eq!(log.events.iter().filter(|event| *event == "end").count(), 1, "{:?}", log.events);
    assert_eq!(log.queries(), [STREAM, "resourceVersion=10"]);
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
async fn an_empty_list_where_services_were_known_is_held_until_another_one() {
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
    assert_eq!(log.events.iter().filter(|event| event.starts_with("held")).count(), 1, "reported once");
    let watched = log.queries().iter().position(|query| query == "resourceVersion=20").unwrap();
    let held = log.times[watched].checked_sub(log.times[2]).unwrap().as_secs();
    assert!((30..=40).contains(&held), "{held} s");
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

/// A Pod has a namespace and a name, too. Decoded as a Service without ports, it would replace the real Service.
fn pod(name: &str, version: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "ns", "resourceVersion": version}})
}

#[tokio::test(start_paused = true)]
async fn objects_of_another_kind_are_not_applied() {
    let pod_list = |kind: Value| {
        json!({"kind": kind, "metadata": {"resourceVersion": "50"}, "items": [pod("a", "4")]}).to_string()
    };
    // The keys are sorted, so the items come before the kind.
    assert!(pod_list(json!("PodList")).find("items") < pod_list(json!("PodList")).find("PodList"));
    let first = pod_list(json!("PodList")).replacen('{', r#"{"kind":"PodList","#, 1);
    let stream = frame("ADDED", &pod("a", "4")) + &end_mark("50");
    let nameless = frame("ADDED", &pod("a", "4")).replace(r#""kind":"Pod","#, "") + &end_mark("50");
    for (wrong, applied) in [
        (vec![ok(stream)], false),
        (vec![status(400), ok(pod_list(json!("PodList")))], false),
        (vec![status(400), ok(first)], false),
        (vec![status(400), ok(pod_list(json!("ServiceList")))], false),
        (vec![ok(nameless)], true),
    ] {
        let log = services([ok(listed()), status(410)].into_iter().chain(wrong)).await;
        let came = log.events.iter().filter(|event| event.starts_with("+ns/a")).count();
        assert_eq!(came, 1 + usize::from(applied), "{:?}", log.events);
        if !applied {
            let said = log.events.iter().filter(|event| event.starts_with("relist: kind \"Pod")).count();
            assert_eq!(said, 1, "{:?}", log.events);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn changes_of_another_kind_are_not_applied_and_lead_to_a_list() {
    let mark = json!({"kind": "Pod", "metadata": {"resourceVersion": "70"}});
    for wrong in [
        frame("ADDED", &pod("a", "12")),
        frame("MODIFIED", &pod("a", "12")),
        frame("DELETED", &pod("a", "12")),
        frame("BOOKMARK", &mark),
        // Not in the form of Go's encoder.
        format!(r#" {{ "object": {}, "type": "ADDED" }}{}"#, pod("a", "12"), "\n"),
    ] {
        let log = services([ok(listed() + &wrong + &added("b", "13"))]).await;
        assert_eq!(log.events[..3], ["start", "+ns/a@3", "end"]);
        assert!(log.events[3].starts_with("relist: kind \"Pod\" where Service"), "{:?}", log.events);
        assert_eq!((log.events.len(), log.queries()[1].as_str()), (4, STREAM));
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_is_requested_every_few_seconds_while_an_empty_one_is_held() {
    let many = || ok(added("a", "3") + &added("b", "4") + &end_mark("10"));
    let patient = Timing { empty_list_hold: Duration::from_secs(3600), ..Timing::default() };
    let empty = (0..20).map(|_| ok(page(&[], "20", "")));
    let answers = [many(), status(410), ok(end_mark("20"))].into_iter().chain(empty);
    let log = play_with(patient, Kind::Service, answers).await;
    (3..=22).for_each(|request| log.assert_backed_off(request, 5000));
    let quick = Timing { empty_list_hold: Duration::from_millis(600), ..Timing::default() };
    let log = play_with(quick, Kind::Service, [many(), status(410), ok(end_mark("20"))]).await;
    log.assert_backed_off(3, 100);
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_that_began_before_the_hold_ended_is_not_accepted() {
    let many = || ok(added("a", "3") + &added("b", "4") + &end_mark("10"));
    let slow = page(&[], "20", "");
    let (head, tail) = slow.split_at(20);
    let slow = steps([Step::Send(head.into()), Step::Wait(Duration::from_secs(50)), Step::Send(tail.into())]);
    let log = services([many(), status(410), ok(end_mark("20")), slow, ok(page(&[], "21", ""))]).await;
    let doubts = log.events.iter().filter(|event| event.starts_with("relist: the list is empty")).count();
    assert_eq!(doubts, 2, "{:?}", log.events);
    assert_eq!(log.queries().last().unwrap(), "resourceVersion=21");
}

#[tokio::test(start_paused = true)]
async fn a_successor_holds_the_empty_lists_that_its_predecessor_would_hold() {
    let counts = KindCounts::default();
    let many = ok(added("a", "3") + &added("b", "4") + &end_mark("10") + &added("c", "11"));
    play_counting(&counts, Timing::default(), Kind::Service, [many]).await;
    let log = play_counting(&counts, Timing::default(), Kind::Service, [ok(end_mark("20"))]).await;
    let doubt = "relist: the list is empty, where 3 objects are known: it is not believed yet";
    assert_eq!(log.events, ["start", "held: 3", doubt]);
}
