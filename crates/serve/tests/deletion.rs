//! DELETE with its options, and its effect on the dependents of the deleted object.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
};

use common::*;
use futures::executor::block_on;
use portolan_serve::{Api, ApiConfig, Config, ControllersConfig, Server};
use serde_json::{Value, json};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

fn post(address: SocketAddr, path: &str, object: &Value) -> Value {
    send_json(address, "POST", path, object).expect(201)
}

fn lease(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}})
}

/// Returns a slice owned by `owners`, which are objects as the server returned them.
fn owned(name: &str, owners: &[&Value]) -> Value {
    let mut slice = slice(name, 1);
    let reference = |owner: &&Value| {
        json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true})
    };
    slice["metadata"]["ownerReferences"] = owners.iter().map(reference).collect::<Vec<_>>().into();
    slice
}

fn delete_with(address: SocketAddr, path: &str, options: &Value) -> Response {
    send_json(address, "DELETE", path, options)
}

fn exists(address: SocketAddr, path: &str) -> bool {
    get(address, path).code == 200
}

fn names(address: SocketAddr, path: &str) -> Vec<String> {
    let list = get(address, path).expect(200);
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn answers_by_kind() {
    let server = start(Config::default());
    let address = server.local_addr();
    post(address, SERVICES, &service("a"));
    let gone = delete(address, &format!("{SERVICES}/a")).expect(200);
    assert_eq!(gone["kind"], "Service");
    let made = post(address, LEASES, &lease("l"));
    let gone = delete(address, &format!("{LEASES}/l")).expect(200);
    let details = json!({"name": "l", "group": "coordination.k8s.io", "kind": "leases", "uid": made["metadata"]["uid"]});
    assert_eq!((&gone["status"], &gone["details"]), (&json!("Success"), &details));
    delete(address, &format!("{SERVICES}/a")).refused(404, "NotFound");
}

#[test]
fn options_are_checked() {
    let server = start(Config::default());
    let address = server.local_addr();
    let made = post(address, SERVICES, &service("a"));
    let path = format!("{SERVICES}/a");
    for options in [
        json!({"propagationPolicy": "Sometimes"}),
        json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        json!({"dryRun": ["Some"]}),
    ] {
        delete_with(address, &path, &options).refused(422, "Invalid");
    }
    delete(address, &format!("{path}?propagationPolicy=Sometimes")).refused(422, "Invalid");
    delete_with(address, &path, &json!({"kind": "Service"})).refused(400, "BadRequest");
    delete_with(address, &path, &json!({"orphanDependents": "yes"})).refused(400, "BadRequest");
    delete(address, &format!("{path}?gracePeriodSeconds=soon")).refused(400, "BadRequest");
    let other = json!({"preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}});
    let message = delete_with(address, &path, &other).refused(409, "Conflict");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    assert!(message.contains(uid) && message.contains("11111111-1111"), "{message}");
    let stale = json!({"preconditions": {"resourceVersion": "1"}});
    delete_with(address, &path, &stale).refused(409, "Conflict");
    delete_with(address, &path, &json!({"dryRun": ["All"], "propagationPolicy": "Foreground"})).expect(200);
    delete(address, &format!("{path}?dryRun=All")).expect(200);
    assert_eq!(get(address, &path).expect(200), made, "a dry run changes nothing");
    let exact = json!({
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
        "preconditions": {"uid": uid, "resourceVersion": made["metadata"]["resourceVersion"]},
    });
    delete_with(address, &path, &exact).expect(200);
    assert!(!exists(address, &path));
}

#[test]
fn finalizers_keep_an_object() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut kept = slice("s", 1);
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = post(address, SLICES, &kept);
    let path = format!("{SLICES}/s");
    let marked = delete(address, &path).expect(200);
    assert_eq!(marked["kind"], "EndpointSlice");
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!((&made["metadata"]["generation"], &marked["metadata"]["generation"]), (&json!(1), &json!(2)));
    assert_eq!(delete(address, &path).expect(200), marked, "once is enough");
    let pending = delete_with(address, &path, &json!({"orphanDependents": false}));
    assert_eq!(pending.code, 202, "as the old option is answered");
    let mut watch = Watch::start(address, &format!("{SLICES}?watch=1&resourceVersion={}", revision(&marked)));
    let edit = json!({"metadata": {"finalizers": null, "labels": {"lost": "edit"}}});
    send_json(address, "PATCH", &path, &edit).expect(200);
    let event = watch.expect();
    assert_eq!(event.brief(), "DELETED s");
    assert_eq!(
        event.0["object"]["metadata"]["finalizers"],
        json!(["example.com/hold"]),
        "the last stored state"
    );
    assert_eq!(event.0["object"]["metadata"]["labels"]["lost"], Value::Null);
    assert!(!exists(address, &path));
    let mut both = slice("t", 1);
    both["metadata"]["finalizers"] = json!(["orphan", "foregroundDeletion"]);
    send_json(address, "POST", SLICES, &both).refused(422, "Invalid");
}

#[test]
fn dependents_are_deleted_after_their_owner() {
    let server = start(Config::default());
    let address = server.local_addr();
    let (a, b) = (post(address, SERVICES, &service("a")), post(address, SERVICES, &service("b")));
    post(address, SLICES, &owned("of-a", &[&a]));
    post(address, SLICES, &owned("of-both", &[&a, &b]));
    post(address, SLICES, &slice("of-none", 1));
    delete(address, &format!("{SERVICES}/a")).expect(200);
    until("the slice of a goes", || names(address, SLICES) == ["of-both", "of-none"]);
    let owners = || {
        let slice = get(address, &format!("{SLICES}/of-both")).expect(200);
        slice["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len)
    };
    until("the other slice is left with one owner", || owners() == 1);
    delete(address, &format!("{SERVICES}/b")).expect(200);
    post(address, SERVICES, &service("b"));
    until("an owner of the same name is not the owner", || names(address, SLICES) == ["of-none"]);
}

#[test]
fn an_object_with_a_missing_owner_is_deleted() {
    let server = start(Config::default());
    let address = server.local_addr();
    let a = post(address, SERVICES, &service("a"));
    let mut absent = a.clone();
    absent["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111".into();
    let mut unknown = absent.clone();
    unknown["kind"] = "Pod".into();
    post(address, SLICES, &owned("unknown-kind", &[&unknown]));
    post(address, SLICES, &owned("absent", &[&absent]));
    post(address, SLICES, &owned("present", &[&a]));
    until("the absent owner is noticed", || names(address, SLICES) == ["present", "unknown-kind"]);
}

#[test]
fn owners_in_another_namespace_are_none() {
    let server = start(Config::default());
    let address = server.local_addr();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    post(address, "/api/v1/namespaces", &namespace);
    let elsewhere = post(address, "/api/v1/namespaces/other/services", &service("a"));
    post(address, SLICES, &owned("s", &[&elsewhere]));
    let mut node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    node["metadata"]["ownerReferences"] = owned("x", &[&elsewhere])["metadata"]["ownerReferences"].clone();
    post(address, "/api/v1/nodes", &node);
    until("it is collected", || names(address, SLICES).is_empty());
    let reports = || {
        let events = get(address, EVENTS).expect(200);
        let mut kinds: Vec<Value> =
            events["items"].as_array().unwrap().iter().map(|it| it["regarding"]["kind"].clone()).collect();
        kinds.sort_by_key(Value::to_string);
        assert!(
            events["items"].as_array().unwrap().iter().all(|it| it["reason"] == "OwnerRefInvalidNamespace")
        );
        kinds
    };
    until("both are reported", || reports() == ["EndpointSlice", "Node"]);
    assert!(exists(address, "/api/v1/nodes/n"), "where nothing can be owned, nothing is collected");
}

#[test]
fn foreground_waits_for_those_that_block() {
    let server = start(Config::default());
    let address = server.local_addr();
    let a = post(address, SERVICES, &service("a"));
    let mut held = owned("held", &[&a]);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    post(address, SLICES, &held);
    post(address, SLICES, &owned("free", &[&a]));
    let path = format!("{SERVICES}/a");
    let pending = delete_with(address, &path, &json!({"propagationPolicy": "Foreground"})).expect(200);
    assert_eq!(pending["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    until("the free one goes", || names(address, SLICES) == ["held"]);
    let is_going =
        || get(address, &format!("{SLICES}/held")).expect(200)["metadata"]["deletionTimestamp"].is_string();
    until("the held one is marked", is_going);
    assert!(exists(address, &path), "the owner waits");
    send_json(address, "PATCH", &format!("{SLICES}/held"), &json!({"metadata": {"finalizers": null}}))
        .expect(200);
    until("the owner goes", || !exists(address, &path));
}

#[test]
fn foreground_goes_down_the_tree_and_round_a_circle() {
    let server = start(Config::default());
    let address = server.local_addr();
    let root = post(address, SERVICES, &service("root"));
    let child = post(address, SLICES, &owned("child", &[&root]));
    post(address, SLICES, &owned("grandchild", &[&child]));
    delete(address, &format!("{SERVICES}/root?propagationPolicy=Foreground")).expect(200);
    until("all go", || names(address, SLICES).is_empty() && names(address, SERVICES).is_empty());
    let one = post(address, SLICES, &slice("one", 1));
    let two = post(address, SLICES, &owned("two", &[&one]));
    let patch =
        json!({"metadata": {"ownerReferences": owned("one", &[&two])["metadata"]["ownerReferences"]}});
    send_json(address, "PATCH", &format!("{SLICES}/one"), &patch).expect(200);
    delete(address, &format!("{SLICES}/one?propagationPolicy=Foreground")).expect(200);
    until("the circle goes", || names(address, SLICES).is_empty());
}

#[test]
fn orphans_stay_without_their_owner() {
    let server = start(Config::default());
    let address = server.local_addr();
    for (name, query) in [("a", "propagationPolicy=Orphan"), ("b", "orphanDependents=true")] {
        let owner = post(address, SERVICES, &service(name));
        let orphan = format!("of-{name}");
        post(address, SLICES, &owned(&orphan, &[&owner]));
        let path = format!("{SERVICES}/{name}");
        let pending = delete(address, &format!("{path}?{query}")).expect(200);
        assert_eq!(pending["metadata"]["finalizers"], json!(["orphan"]));
        until("the owner goes", || !exists(address, &path));
        let left = get(address, &format!("{SLICES}/{orphan}")).expect(200);
        assert_eq!(left["metadata"]["ownerReferences"], Value::Null);
    }
}

#[test]
fn collections_go_by_selector_and_by_page() {
    let server = start(Config::default());
    let address = server.local_addr();
    for name in ["a", "b", "c", "d"] {
        post(address, SERVICES, &labelled(name, if name < "d" { "web" } else { "other" }));
    }
    let gone = delete(address, &format!("{SERVICES}?labelSelector=app%3Dweb&limit=2")).expect(200);
    assert_eq!(gone["kind"], "ServiceList");
    assert_eq!(gone["items"].as_array().unwrap().len(), 2);
    assert_eq!(names(address, SERVICES), ["c", "d"]);
    delete(address, &format!("{SERVICES}?labelSelector=app%3Dweb&dryRun=All")).expect(200);
    assert_eq!(names(address, SERVICES), ["c", "d"]);
    delete(address, &format!("{SERVICES}?labelSelector=app%3Dweb")).expect(200);
    assert_eq!(names(address, SERVICES), ["d"]);
    delete_with(address, SERVICES, &json!({"preconditions": {"resourceVersion": "1"}}))
        .refused(409, "Conflict");
    assert_eq!(names(address, SERVICES), ["d"]);
    delete(address, "/api/v1/namespaces").refused(405, "MethodNotAllowed");
}

#[test]
fn a_service_takes_its_endpoints_along() {
    let server = start(Config::default());
    let address = server.local_addr();
    post(address, SERVICES, &service("a"));
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "a"}});
    post(address, "/api/v1/namespaces/default/endpoints", &endpoints);
    delete(address, &format!("{SERVICES}/a")).expect(200);
    assert!(!exists(address, "/api/v1/namespaces/default/endpoints/a"));
}

#[test]
fn garbage_left_while_no_server_ran_is_collected() {
    let server = start(Config {
        controllers: ControllersConfig { housekeeping: false, ..ControllersConfig::default() },
        ..Config::default()
    });
    let address = server.local_addr();
    let a = post(address, SERVICES, &service("a"));
    post(address, SLICES, &owned("of-a", &[&a]));
    delete(address, &format!("{SERVICES}/a")).expect(200);
    post(address, SERVICES, &service("b"));
    delete(address, &format!("{SERVICES}/b?propagationPolicy=Foreground")).expect(200);
    let api = server.stop().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start_with(api, Config::default(), listener).unwrap();
    let address = server.local_addr();
    until("the rest is collected", || {
        names(address, SLICES).is_empty() && names(address, SERVICES).is_empty()
    });
}

#[test]
fn several_servers_collect_at_once() {
    let first = start(Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // A second server that shares only the store.
    let api = block_on(Api::open(Arc::clone(first.store()), &ApiConfig::default())).unwrap();
    let second = Server::start_with(Arc::new(api), Config::default(), listener).unwrap();
    let address = second.local_addr();
    let a = post(address, SERVICES, &service("a"));
    for number in 0..50 {
        post(address, SLICES, &owned(&format!("s{number}"), &[&a]));
    }
    post(address, SLICES, &slice("free", 1));
    delete(address, &format!("{SERVICES}/a?propagationPolicy=Foreground")).expect(200);
    until("all go", || names(address, SERVICES).is_empty() && names(address, SLICES) == ["free"]);
}
