//! Watches: where they start, what they send, how they end.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::{collections::BTreeMap, thread};

use common::*;
use portolan_serve::{
    ApiConfig, Config, History, Limits, Preconditions, Resource, Scope, Target, WriteOptions,
};
use proptest::prelude::*;

fn remove(api: &portolan_serve::Api, name: &str) -> u64 {
    let target = Target { resource: Resource::Service, namespace: "default", name };
    api.blocking().delete(target, &Preconditions::default(), WriteOptions::default()).unwrap().revision
}

fn watch_path(query: &str) -> String {
    format!("{SERVICES}?watch=true&{query}")
}

#[test]
fn headers_come_before_any_event_and_events_at_once() {
    let server = start(Config::default());
    let revision = server.store().revision();
    let mut watch = Watch::start(server.local_addr(), &watch_path(&format!("resourceVersion={revision}")));
    let created = server.api().blocking().apply(service("a")).unwrap().revision;
    let event = watch.expect();
    assert_eq!((event.brief().as_str(), event.revision()), ("ADDED a", created));
    server.api().blocking().apply(labelled("a", "x")).unwrap();
    assert_eq!(watch.expect().brief(), "MODIFIED a");
    let gone = remove(server.api(), "a");
    let event = watch.expect();
    assert_eq!((event.brief().as_str(), event.revision()), ("DELETED a", gone));
    assert_eq!(event.0["object"]["metadata"]["labels"]["app"], "x");
}

#[test]
fn a_watch_resumes_without_loss_or_repetition() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut revision = server.store().revision();
    let api = server.api().clone();
    let writer = thread::spawn(move || {
        for number in 0..300 {
            api.blocking().apply(labelled(&format!("s{}", number % 7), &number.to_string())).unwrap();
        }
    });
    let mut labels = Vec::new();
    while labels.len() < 300 {
        let mut watch = Watch::start(address, &watch_path(&format!("resourceVersion={revision}")));
        for _ in 0..(300 - labels.len()).min(11) {
            let event = watch.expect();
            assert!(event.revision() > revision);
            revision = event.revision();
            labels.push(event.0["object"]["metadata"]["labels"]["app"].as_str().unwrap().to_owned());
        }
    }
    writer.join().unwrap();
    let expected: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    assert_eq!(labels, expected);
}

#[test]
fn initial_events_end_with_one_marked_bookmark() {
    let server = start(Config::default());
    let address = server.local_addr();
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut empty = Watch::start(address, &watch_path(query));
    let bookmark = empty.expect();
    assert_eq!(bookmark.kind(), "BOOKMARK");
    let object = &bookmark.0["object"];
    assert_eq!((&object["kind"], &object["apiVersion"]), (&"Service".into(), &"v1".into()));
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    server.api().blocking().apply(service("b")).unwrap();
    server.api().blocking().apply(service("a")).unwrap();
    assert_eq!(empty.brief(2), ["ADDED b", "ADDED a"]);
    let mut full = Watch::start(address, &watch_path(query));
    assert_eq!(full.brief(3), ["ADDED a", "ADDED b", "BOOKMARK"]);
    let mut resumed = Watch::start(address, &watch_path(&format!("resourceVersion={}", bookmark.revision())));
    assert_eq!(resumed.brief(2), ["ADDED b", "ADDED a"]);
    let mut unmarked = Watch::start(
        address,
        &watch_path("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name=b"),
    );
    assert_eq!(unmarked.brief(1), ["ADDED b"]);
    server.api().blocking().apply(labelled("a", "x")).unwrap();
    server.api().blocking().apply(labelled("b", "x")).unwrap();
    assert_eq!(unmarked.brief(1), ["MODIFIED b"]);
}

#[test]
fn beginnings_by_resource_version() {
    let server = start(Config::default());
    let address = server.local_addr();
    server.api().blocking().apply(service("old")).unwrap();
    let mut legacy = Watch::start(address, &watch_path("resourceVersion=0"));
    let mut unset = Watch::start(address, &watch_path(""));
    let mut from_now =
        Watch::start(address, &watch_path("sendInitialEvents=false&resourceVersionMatch=NotOlderThan"));
    server.api().blocking().apply(service("new")).unwrap();
    assert_eq!(legacy.brief(2), ["ADDED old", "ADDED new"]);
    assert_eq!(unset.brief(2), ["ADDED old", "ADDED new"]);
    assert_eq!(from_now.brief(1), ["ADDED new"]);
    for query in ["sendInitialEvents=true", "resourceVersionMatch=NotOlderThan"] {
        get(address, &watch_path(query)).refused(422, "Invalid");
    }
    get(address, &watch_path("resourceVersion=x")).refused(400, "BadRequest");
    get(address, &watch_path("labelSelector=a%20b")).refused(400, "BadRequest");
    let query =
        format!("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={}", u64::MAX);
    let mut future = Watch::start(address, &watch_path(&query));
    let event = future.expect();
    assert_eq!((event.kind(), &event.0["object"]["code"]), ("ERROR", &504.into()));
}

#[test]
fn selectors_turn_changes_into_coming_and_going() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut watch = Watch::start(address, &watch_path("labelSelector=app%3Dx"));
    let mut other = Watch::start(address, "/api/v1/namespaces/other/services?watch=1");
    for label in ["y", "x", "x", "y", "x"] {
        server.api().blocking().apply(labelled("a", label)).unwrap();
    }
    // The third write changed nothing and caused no event.
    assert_eq!(watch.expect().brief(), "ADDED a");
    let left = watch.expect();
    assert_eq!(left.brief(), "DELETED a");
    assert_eq!(left.0["object"]["metadata"]["labels"]["app"], "x", "the content that the client knew");
    let added = watch.expect();
    assert_eq!(added.brief(), "ADDED a");
    assert!(left.revision() < added.revision());
    let gone = remove(server.api(), "a");
    assert_eq!(watch.expect().revision(), gone);
    let mut elsewhere = service("b");
    elsewhere["metadata"]["namespace"] = "other".into();
    server.api().blocking().apply(elsewhere).unwrap();
    assert_eq!(other.expect().brief(), "ADDED b");
}

#[test]
fn a_named_path_watches_that_name_even_before_it_exists() {
    let server = start(Config::default());
    let mut watch = Watch::start(server.local_addr(), &format!("{SERVICES}/b?watch=true"));
    server.api().blocking().apply(service("a")).unwrap();
    server.api().blocking().apply(service("b")).unwrap();
    assert_eq!(watch.expect().brief(), "ADDED b");
}

#[test]
fn too_old_is_an_error_event_with_a_status() {
    let history = History { max_changes: 2, ..History::default() };
    let server = start(Config { api: ApiConfig { history, ..ApiConfig::default() }, ..Config::default() });
    let start = server.store().revision();
    for name in ["a", "b", "c", "d"] {
        server.api().blocking().apply(service(name)).unwrap();
    }
    for revision in [1, start, u64::MAX] {
        let mut watch =
            Watch::start(server.local_addr(), &watch_path(&format!("resourceVersion={revision}")));
        let event = watch.expect();
        let status = &event.0["object"];
        assert_eq!(event.kind(), "ERROR");
        assert_eq!(
            (&status["kind"], &status["code"], &status["reason"]),
            (&"Status".into(), &410.into(), &"Expired".into())
        );
        assert!(watch.next().is_none(), "the stream ends after an error");
    }
}

#[test]
fn time_outs_end_cleanly_after_a_last_bookmark() {
    let server = start(Config::default());
    let address = server.local_addr();
    let before = server.store().revision();
    let query = format!("resourceVersion={before}&allowWatchBookmarks=true&timeoutSeconds=3");
    let mut watch = Watch::start(address, &watch_path(&query));
    server.api().blocking().apply(slice("other-kind", 1)).unwrap();
    let bookmark = watch.expect();
    assert_eq!(bookmark.kind(), "BOOKMARK");
    assert!(bookmark.revision() >= before);
    assert!(watch.next().is_none());
    let mut silent =
        Watch::start(address, &watch_path(&format!("resourceVersion={before}&timeoutSeconds=1")));
    assert!(silent.next().is_none());
}

#[test]
fn a_slow_watcher_is_closed_and_never_holds_up_writers() {
    let history = History { max_superseded_bytes: 1 << 20, ..History::default() };
    // It is closed because it is behind, not because it does not read for a while.
    let limits = Limits { stall_time: DEADLINE * 10, ..Limits::default() };
    let api = ApiConfig { history, ..ApiConfig::default() };
    let server = start(Config { api, limits, ..Config::default() });
    let path = format!("{SLICES}?watch=true&resourceVersion={}", server.store().revision());
    let mut watch = Watch::start(server.local_addr(), &path);
    // Far more than the sockets hold. The history keeps 1 MiB of it.
    let mut big = slice("big", 1000);
    for number in 0..400 {
        big["metadata"]["labels"]["n"] = number.to_string().into();
        server.api().blocking().apply(big.clone()).unwrap();
    }
    let mut last = None;
    let mut count = 0;
    while let Some(event) = watch.next() {
        count += 1;
        last = Some(event);
    }
    let last = last.unwrap();
    assert_eq!((last.kind(), &last.0["object"]["reason"]), ("ERROR", &"Expired".into()));
    assert!(count < 400, "{count}");
}

#[test]
fn a_stop_ends_watches() {
    let server = start(Config::default());
    let mut watch = Watch::start(server.local_addr(), &watch_path(""));
    server.stop().unwrap();
    assert!(watch.next().is_none());
}

#[derive(Debug, Clone)]
enum Op {
    Apply(u8, u8),
    Remove(u8),
    Watch,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (0..5_u8, 0..3_u8).prop_map(|(name, label)| Op::Apply(name, label)),
        2 => (0..5_u8).prop_map(Op::Remove),
        1 => Just(Op::Watch),
    ]
}

type Objects = BTreeMap<String, u64>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every client ends with the objects of the store, for each selector, whatever is written and whenever the
    /// client starts (by list and watch, or by initial events).
    #[test]
    fn list_and_watch_follow_the_store(ops in prop::collection::vec(op(), 1..40)) {
        let server = start(Config::default());
        let (address, api) = (server.local_addr(), server.api());
        let mut clients: Vec<(Watch, Objects, &str)> = Vec::new();
        for op in ops {
            match op {
                Op::Apply(name, label) => {
                    api.blocking().apply(labelled(&format!("s{name}"), &format!("l{label}"))).unwrap();
                }
                Op::Remove(name) => {
                    let target = Target { resource: Resource::Service, namespace: "default", name: &format!("s{name}") };
                    let _ = api.blocking().delete(target, &Preconditions::default(), WriteOptions::default());
                }
                Op::Watch => {
                    for selector in ["", "labelSelector=app%3Dl1", "fieldSelector=metadata.name!=s0"] {
                        clients.push(by_list(address, selector));
                        let watch = Watch::start(address, &watch_path(selector));
                        clients.push((watch, Objects::new(), selector));
                    }
                }
            }
        }
        // Every selector matches a last object, which shows each client that it has seen all changes.
        let end = api.blocking().apply(labelled("end", "l1")).unwrap().revision;
        let snapshot = server.store().snapshot(Resource::Service, &Scope::default(), None).unwrap();
        for (mut watch, mut objects, selector) in clients {
            while !objects.values().any(|revision| *revision == end) {
                let event = watch.expect();
                match event.kind() {
                    "ADDED" | "MODIFIED" => objects.insert(event.name().to_owned(), event.revision()),
                    "DELETED" => objects.remove(event.name()),
                    other => panic!("{other}"),
                };
            }
            let expected: Objects = snapshot.objects.iter()
                .filter(|object| match selector {
                    "" => true,
                    "labelSelector=app%3Dl1" => object.labels().get("app") == Some("l1"),
                    _ => object.name() != "s0",
                })
                .map(|object| (object.name().to_owned(), object.revision()))
                .collect();
            prop_assert_eq!(objects, expected, "{}", selector);
        }
    }
}

fn by_list(address: std::net::SocketAddr, selector: &str) -> (Watch, Objects, &str) {
    let list = get(address, &format!("{SERVICES}?{selector}")).expect(200);
    let items = list["items"].as_array().unwrap();
    let name = |item: &serde_json::Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    let objects = items.iter().map(|item| (name(item), revision(item))).collect();
    let query = format!("{selector}&resourceVersion={}", revision(&list));
    (Watch::start(address, &watch_path(&query)), objects, selector)
}
