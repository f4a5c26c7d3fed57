//! Lists: selectors, revisions, pages.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::{collections::BTreeSet, sync::Arc};

use common::*;
use futures::executor::block_on;
use portolan_serve::{Api, ApiConfig, Config, ControllersConfig, History, RunningServer, Server, Store};
use portolan_store::faulty::FaultyStore;
use serde_json::{Value, json};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn selectors() {
    let server = start(Config::default());
    let address = server.local_addr();
    server.api().blocking().apply(labelled("a", "x")).unwrap();
    server.api().blocking().apply(labelled("b", "y")).unwrap();
    let mut headless = service("c");
    headless["spec"]["clusterIP"] = "None".into();
    server.api().blocking().apply(headless).unwrap();
    let mut elsewhere = labelled("a", "x");
    elsewhere["metadata"]["namespace"] = "other".into();
    server.api().blocking().apply(elsewhere).unwrap();
    let list = |path: &str| {
        let list = get(address, path).expect(200);
        assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ServiceList"), &json!("v1")));
        names(&list)
    };
    let all = "/api/v1/services";
    assert_eq!(list(all), ["a", "b", "c", "a"]);
    assert_eq!(list(SERVICES), ["a", "b", "c"]);
    assert_eq!(list(&format!("{all}?labelSelector=app%20in%20(x,z)")), ["a", "a"]);
    assert_eq!(list(&format!("{all}?labelSelector=!app")), ["c"]);
    assert_eq!(
        list(&format!("{all}?fieldSelector=spec.clusterIP!=None,metadata.namespace=default")),
        ["a", "b"]
    );
    assert_eq!(list(&format!("{SERVICES}?fieldSelector=metadata.name=b")), ["b"]);
    assert_eq!(list(&format!("{SERVICES}?fieldSelector=metadata.namespace=other")), Vec::<String>::new());
}

#[test]
fn revisions_of_lists() {
    let server = start(Config::default());
    let address = server.local_addr();
    let first = revision(&get(address, SERVICES).expect(200));
    assert!(first > 0);
    server.api().blocking().apply(service("a")).unwrap();
    let list = |query: String| get(address, &format!("{SERVICES}?{query}"));
    let exact = list(format!("resourceVersion={first}&resourceVersionMatch=Exact")).expect(200);
    assert_eq!((names(&exact).len(), revision(&exact)), (0, first));
    let newer = list(format!("resourceVersion={first}&resourceVersionMatch=NotOlderThan")).expect(200);
    assert_eq!(names(&newer), ["a"]);
    assert_eq!(names(&list("resourceVersion=0".to_owned()).expect(200)), ["a"]);
    list("resourceVersion=0&resourceVersionMatch=Exact".to_owned()).refused(422, "Invalid");
    list("resourceVersionMatch=Exact".to_owned()).refused(422, "Invalid");
    list("resourceVersion=5&resourceVersionMatch=Exact".to_owned()).refused(410, "Expired");
    let future = list(format!("resourceVersion={}", u64::MAX));
    future.refused(504, "Timeout");
    assert_eq!(future.json()["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    assert_eq!(future.header("retry-after"), Some("1"));
}

#[test]
fn pages_show_one_revision_while_writes_go_on() {
    let server = start(Config::default());
    let address = server.local_addr();
    for number in 0..25 {
        server.api().blocking().apply(service(&format!("s{number:02}"))).unwrap();
    }
    let mut token = String::new();
    let mut seen = Vec::new();
    let mut revisions = BTreeSet::new();
    let mut remaining = Vec::new();
    for page in 0.. {
        let list = get(address, &format!("{SERVICES}?limit=10&continue={token}")).expect(200);
        revisions.insert(revision(&list));
        seen.extend(names(&list));
        remaining.push(list["metadata"].get("remainingItemCount").cloned());
        // Between two pages, one object is deleted, one created and one changed.
        delete(address, &format!("{SERVICES}/s2{page}")).expect(200);
        server.api().blocking().apply(service(&format!("s1{page}-new"))).unwrap();
        server.api().blocking().apply(labelled("s24", &format!("v{page}"))).unwrap();
        match list["metadata"].get("continue") {
            Some(next) => token = next.as_str().unwrap().to_owned(),
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).map(|number| format!("s{number:02}")).collect();
    assert_eq!(seen, expected);
    assert_eq!(revisions.len(), 1);
    assert_eq!(remaining, [Some(json!(15)), Some(json!(5)), None]);
    get(address, &format!("{SERVICES}?continue=xyz")).refused(400, "BadRequest");
}

#[test]
fn a_list_of_any_state_comes_whole() {
    let server = start(Config::default());
    let address = server.local_addr();
    for name in ["a", "b", "c"] {
        server.api().blocking().apply(service(name)).unwrap();
    }
    for query in ["resourceVersion=0", "resourceVersion=0&resourceVersionMatch=NotOlderThan"] {
        let list = get(address, &format!("{SERVICES}?limit=1&{query}")).expect(200);
        assert_eq!((names(&list).len(), list["metadata"].get("continue")), (3, None), "{query}");
    }
    let first = get(address, &format!("{SERVICES}?limit=1")).expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = get(address, &format!("{SERVICES}?limit=1&resourceVersion=0&continue={token}")).expect(200);
    assert_eq!(names(&second), ["b"]);
}

#[test]
fn a_page_that_is_too_late_may_go_on_at_the_present() {
    let history = History { max_changes: 4, ..History::default() };
    let server = start(Config { api: ApiConfig { history, ..ApiConfig::default() }, ..Config::default() });
    let address = server.local_addr();
    for name in ["a", "b", "c"] {
        server.api().blocking().apply(service(name)).unwrap();
    }
    let first = get(address, &format!("{SERVICES}?limit=1")).expect(200);
    for number in 0..6 {
        server.api().blocking().apply(labelled("c", &number.to_string())).unwrap();
    }
    let token = first["metadata"]["continue"].as_str().unwrap();
    let expired = get(address, &format!("{SERVICES}?limit=5&continue={token}"));
    expired.refused(410, "Expired");
    let fresh = expired.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let rest = get(address, &format!("{SERVICES}?limit=5&continue={fresh}")).expect(200);
    assert_eq!(names(&rest), ["b", "c"]);
}

#[test]
fn a_large_list_arrives_whole() {
    let server = start(Config::default());
    let address = server.local_addr();
    for number in 0..300 {
        server.api().blocking().apply(slice(&format!("s{number:03}"), 100)).unwrap();
    }
    let list = get(address, SLICES);
    assert!(list.body.len() > 1_000_000);
    let list = list.expect(200);
    assert_eq!(names(&list).len(), 300);
    assert_eq!(list["items"][299]["endpoints"].as_array().unwrap().len(), 100);
}

/// Returns a server whose store a test can hinder.
fn with_faults() -> (RunningServer, Arc<FaultyStore>) {
    let store = Arc::new(FaultyStore::new(History::default()));
    let api = block_on(Api::open(Arc::clone(&store) as Arc<dyn Store>, &ApiConfig::default())).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config {
        controllers: ControllersConfig { housekeeping: false, ..ControllersConfig::default() },
        ..Config::default()
    };
    let server = Server::start_with(Arc::new(api), config, listener).unwrap();
    (server, store)
}

#[test]
fn reads_do_not_wait_for_writes_in_progress() {
    let (server, store) = with_faults();
    server.api().blocking().apply(service("a")).unwrap();
    store.hang();
    assert_eq!(names(&get(server.local_addr(), SERVICES).expect(200)), ["a"]);
}

#[test]
fn writes_of_another_server_are_visible_after_a_refresh() {
    let (server, store) = with_faults();
    let address = server.local_addr();
    get(address, SERVICES).expect(200);
    for name in ["a", "b"] {
        server.api().blocking().apply(service(name)).unwrap();
    }
    let first = get(address, &format!("{SERVICES}?limit=1")).expect(200);
    let (token, at) = (first["metadata"]["continue"].as_str().unwrap(), revision(&first));
    // The last change was one of another resource.
    let query = |query: String| {
        store.fall_behind();
        let list = get(address, &format!("{SERVICES}?{query}")).expect(200);
        assert!(!store.was_subscribed_to_behind(), "{query}: waits for a signal of a change of Services");
        names(&list)
    };
    assert_eq!(query(format!("limit=1&continue={token}")), ["b"]);
    assert_eq!(query(format!("resourceVersion={at}&resourceVersionMatch=Exact")), ["a", "b"]);
    assert_eq!(query(format!("resourceVersion={at}")), ["a", "b"]);
}
