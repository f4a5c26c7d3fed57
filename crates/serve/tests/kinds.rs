//! The particular rules of some kinds, as clients see them over HTTP.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use common::*;
use portolan_serve::Config;
use serde_json::{Value, json};

const NEW_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const CORE_EVENTS: &str = "/api/v1/namespaces/default/events";

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn an_event_of_one_api_is_seen_in_the_other() {
    let server = start(Config::default());
    let address = server.local_addr();
    let core = json!({"metadata": {"name": "old"}, "involvedObject": {"kind": "Service", "namespace": "default",
        "name": "web"}, "reason": "Full", "message": "no address is left", "source": {"component": "x"}, "count": 1});
    let created = send_json(address, "POST", CORE_EVENTS, &core).expect(201);
    assert_eq!((&created["apiVersion"], &created["message"]), (&json!("v1"), &core["message"]));
    let seen = get(address, &format!("{NEW_EVENTS}/old")).expect(200);
    assert_eq!((&seen["apiVersion"], &seen["note"]), (&json!("events.k8s.io/v1"), &core["message"]));
    assert_eq!((&seen["regarding"]["name"], &seen["deprecatedCount"]), (&json!("web"), &json!(1)));

    let new = json!({"metadata": {"name": "new"}, "eventTime": "2026-11-21T21:03:57Z", "type": "Normal",
        "reason": "Tested", "action": "Test", "note": "x", "reportingController": "portolan.example/test",
        "reportingInstance": "n1", "regarding": {"kind": "Node", "name": "n1"}});
    send_json(address, "POST", NEW_EVENTS, &new).expect(201);
    let seen = get(address, &format!("{CORE_EVENTS}/new")).expect(200);
    assert_eq!((&seen["message"], &seen["reportingComponent"]), (&new["note"], &new["reportingController"]));
    assert_eq!(seen["eventTime"], "2026-11-21T21:03:57.000000Z");

    for (path, expected) in [
        (CORE_EVENTS.to_owned(), vec!["new", "old"]),
        (format!("{CORE_EVENTS}?fieldSelector=involvedObject.name%3Dweb"), vec!["old"]),
        (format!("{CORE_EVENTS}?fieldSelector=source%3Dx"), vec!["old"]),
        (format!("{NEW_EVENTS}?fieldSelector=regarding.kind%3DNode,type%3DNormal"), vec!["new"]),
    ] {
        let list = get(address, &path).expect(200);
        assert_eq!(names(&list), expected, "{path}");
    }
    let item = &get(address, CORE_EVENTS).expect(200)["items"][1];
    assert_eq!((&item["apiVersion"], &item["message"]), (&json!("v1"), &core["message"]));
    delete(address, &format!("{CORE_EVENTS}/new")).expect(200);
    get(address, &format!("{NEW_EVENTS}/new")).refused(404, "NotFound");
}

#[test]
fn each_event_api_has_its_own_rules() {
    let server = start(Config::default());
    let address = server.local_addr();
    let core = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "count": 1});
    send_json(address, "POST", CORE_EVENTS, &core).expect(201);
    let counted = json!({"count": 2, "message": "again"});
    let patched = send_json(address, "PATCH", &format!("{CORE_EVENTS}/e"), &counted).expect(200);
    assert_eq!((&patched["count"], &patched["message"]), (&json!(2), &json!("again")));
    let path = format!("{NEW_EVENTS}/e");
    assert!(
        send_json(address, "PATCH", &path, &json!({"note": "x"})).refused(422, "Invalid").contains("message")
    );
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-11-21T21:03:57Z"}});
    assert_eq!(send_json(address, "PATCH", &path, &series).expect(200)["series"]["count"], 2);
    let bare = json!({"metadata": {"name": "bare"}, "regarding": {"namespace": "default"}});
    assert!(send_json(address, "POST", NEW_EVENTS, &bare).refused(422, "Invalid").contains("eventTime"));
}

#[test]
fn a_watch_of_core_events_sees_both() {
    let server = start(Config::default());
    let address = server.local_addr();
    let core = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "message": "m"});
    send_json(address, "POST", CORE_EVENTS, &core).expect(201);
    let answer = get(address, &format!("{CORE_EVENTS}?watch=true&timeoutSeconds=1"));
    let text = answer.text();
    let event: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&event["type"], &event["object"]["message"]), (&json!("ADDED"), &json!("m")));
}

#[test]
fn a_namespace_keeps_what_its_subresources_are_for() {
    let server = start(Config::default());
    let address = server.local_addr();
    let path = "/api/v1/namespaces/x";
    let sent = json!({"metadata": {"name": "x"}, "status": {"phase": "Terminating"}});
    let created = send_json(address, "POST", "/api/v1/namespaces", &sent).expect(201);
    assert_eq!(
        (&created["status"]["phase"], &created["spec"]["finalizers"]),
        (&json!("Active"), &json!(["kubernetes"]))
    );
    let sent = json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {"finalizers": []}});
    let updated = send_json(address, "PUT", path, &sent).expect(200);
    assert_eq!(updated["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(updated["metadata"]["labels"], json!({"a": "b", "kubernetes.io/metadata.name": "x"}));
    let metadata = json!({"name": "x", "labels": {"a": "c"}});
    let sent = json!({"metadata": metadata, "spec": {"finalizers": ["kubernetes", "example.com/a"]}});
    let finalized = send_json(address, "PUT", &format!("{path}/finalize"), &sent).expect(200);
    assert_eq!(finalized["spec"]["finalizers"], json!(["kubernetes", "example.com/a"]));
    assert_eq!(finalized["metadata"]["labels"]["a"], "c", "the metadata is stored, too");
    let sent = json!({"metadata": {"name": "x"}, "status": {"phase": "Terminating"}});
    send_json(address, "PUT", &format!("{path}/status"), &sent).refused(422, "Invalid");
    delete(address, "/api/v1/namespaces").refused(405, "MethodNotAllowed");
}

#[test]
fn a_lease_is_renewed_from_the_version_that_is_there() {
    let server = start(Config::default());
    let address = server.local_addr();
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader";
    let lease = json!({"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a", "leaseTransitions": 0,
        "renewTime": "2026-11-21T21:03:57Z"}});
    let mut stored = send_json(address, "PUT", path, &lease).expect(201);
    assert_eq!(stored["spec"]["renewTime"], "2026-11-21T21:03:57.000000Z");
    assert!(
        send_json(address, "PUT", path, &lease).refused(422, "Invalid").contains("metadata.resourceVersion")
    );
    stored["spec"]["holderIdentity"] = "b".into();
    let renewed = send_json(address, "PUT", path, &stored).expect(200);
    assert_eq!(renewed["spec"]["holderIdentity"], "b");
    send_json(address, "PUT", path, &stored).refused(409, "Conflict");
}

#[test]
fn endpoints_and_addresses_follow_their_rules() {
    let server = start(Config::default());
    let address = server.local_addr();
    let endpoints = json!({"metadata": {"name": "web"},
        "subsets": [{"addresses": [{"ip": "10.1.0.1"}], "ports": [{"port": 80}]}]});
    let path = "/api/v1/namespaces/default/endpoints";
    let created = send_json(address, "POST", path, &endpoints);
    assert!(created.header("warning").is_some_and(|text| text.contains("EndpointSlice")));
    assert_eq!(created.expect(201)["subsets"][0]["ports"][0]["protocol"], "TCP");
    let path = "/apis/networking.k8s.io/v1/ipaddresses";
    let parent = json!({"resource": "gateways", "group": "example.com", "name": "g", "namespace": "default"});
    let claim = |name: &str| json!({"metadata": {"name": name}, "spec": {"parentRef": parent}});
    send_json(address, "POST", path, &claim("192.0.2.1")).expect(201);
    send_json(address, "POST", path, &claim("192.0.2.01")).refused(422, "Invalid");
    send_json(address, "POST", path, &json!({"metadata": {"name": "192.0.2.2"}})).refused(422, "Invalid");
    let other = json!({"spec": {"parentRef": {"name": "h"}}});
    send_json(address, "PATCH", &format!("{path}/192.0.2.1"), &other).refused(422, "Invalid");
}

#[test]
fn internal_resources_are_hidden_from_clients() {
    let server = start(Config::default());
    let address = server.local_addr();
    get(address, "/apis/portolan.internal/v1/nodeports").refused(404, "NotFound");
    let groups = get(address, "/apis").expect(200).to_string();
    assert!(!groups.contains("portolan.internal"), "{groups}");
}
