//! Namespaces from creation to deletion.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::SocketAddr;

use common::*;
use portolan_serve::{Config, ControllersConfig};
use serde_json::{Value, json};

const NAMESPACES: &str = "/api/v1/namespaces";

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn make(address: SocketAddr, name: &str) -> Value {
    send_json(address, "POST", NAMESPACES, &namespace(name)).expect(201)
}

fn services(name: &str) -> String {
    format!("{NAMESPACES}/{name}/services")
}

fn exists(address: SocketAddr, name: &str) -> bool {
    get(address, &format!("{NAMESPACES}/{name}")).code == 200
}

#[test]
fn a_new_namespace_is_active_and_labelled() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut asked = namespace("shop");
    asked["status"] = json!({"phase": "Terminating"});
    let made = send_json(address, "POST", NAMESPACES, &asked).expect(201);
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    assert_eq!(made["status"], json!({"phase": "Active"}));
    let label = json!({"kubernetes.io/metadata.name": "shop"});
    assert_eq!(made["metadata"]["labels"], label);
    let path = format!("{NAMESPACES}/shop");
    let edit = json!({"metadata": {"labels": null}, "spec": {"finalizers": null}, "status": null});
    let same = send_json(address, "PATCH", &path, &edit).expect(200);
    assert_eq!((&same["metadata"]["labels"], &same["spec"]), (&label, &made["spec"]), "these are kept");
    assert_eq!(same["status"], made["status"]);
    send_json(address, "POST", NAMESPACES, &namespace("shop")).refused(409, "AlreadyExists");
    send_json(address, "POST", NAMESPACES, &namespace("not.a.label")).refused(422, "Invalid");
}

#[test]
fn clients_need_the_namespace_first() {
    let server = start(Config::default());
    let address = server.local_addr();
    let missing = send_json(address, "POST", &services("shop"), &service("a"));
    assert_eq!(missing.refused(404, "NotFound"), "namespaces \"shop\" not found");
    let slice = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "a"}});
    let put = send_json(address, "PUT", &format!("{NAMESPACES}/shop/endpoints/a"), &slice);
    put.refused(404, "NotFound");
    make(address, "shop");
    send_json(address, "POST", &services("shop"), &service("a")).expect(201);
    let mut inside = service("b");
    inside["metadata"]["namespace"] = "made-for-it".into();
    server.api().blocking().apply(inside).unwrap();
    assert!(exists(address, "made-for-it"), "the process itself makes what it needs");
}

#[test]
fn a_deleted_namespace_is_emptied_first() {
    let server = start(Config::default());
    let address = server.local_addr();
    make(address, "shop");
    for number in 0..30 {
        send_json(address, "POST", &services("shop"), &service(&format!("s{number}"))).expect(201);
    }
    send_json(address, "POST", SERVICES, &service("elsewhere")).expect(201);
    let answer = delete(address, &format!("{NAMESPACES}/shop")).expect(200);
    assert_eq!((&answer["kind"], &answer["status"]["phase"]), (&json!("Namespace"), &json!("Terminating")));
    assert!(answer["metadata"]["deletionTimestamp"].is_string());
    until("it goes", || !exists(address, "shop"));
    let left = get(address, "/api/v1/services").expect(200);
    assert_eq!(left["items"].as_array().unwrap().len(), 1);
    make(address, "shop");
    send_json(address, "POST", &services("shop"), &service("a")).expect(201);
}

#[test]
fn objects_with_finalizers_keep_their_namespace() {
    let server = start(Config::default());
    let address = server.local_addr();
    make(address, "shop");
    let mut held = service("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    send_json(address, "POST", &services("shop"), &held).expect(201);
    send_json(address, "POST", &services("shop"), &service("free")).expect(201);
    delete(address, &format!("{NAMESPACES}/shop")).expect(200);
    let condition = |kind: &str| {
        let namespace = get(address, &format!("{NAMESPACES}/shop")).expect(200);
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|it| it["type"] == kind).unwrap_or_default()
    };
    until("what is left is reported", || condition("NamespaceContentRemaining")["status"] == "True");
    let message = condition("NamespaceContentRemaining")["message"].to_string();
    assert!(message.contains("services. has 1 resource instances"), "{message}");
    let message = condition("NamespaceFinalizersRemaining")["message"].to_string();
    assert!(message.contains("example.com/hold in 1 resource instances"), "{message}");
    assert_eq!(get(address, &services("shop")).expect(200)["items"].as_array().unwrap().len(), 1);
    let refused = send_json(address, "POST", &services("shop"), &service("new"));
    let message = refused.refused(403, "Forbidden");
    assert_eq!(
        message,
        "services \"new\" is forbidden: unable to create new content in namespace shop because it is being terminated"
    );
    assert_eq!(refused.json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    delete(address, &format!("{NAMESPACES}/shop")).expect(200);
    let patch = json!({"metadata": {"finalizers": null}});
    send_json(address, "PATCH", &format!("{}/held", services("shop")), &patch).expect(200);
    until("it goes", || !exists(address, "shop"));
}

#[test]
fn other_finalizers_are_removed_through_finalize() {
    let server = start(Config::default());
    let address = server.local_addr();
    let mut asked = namespace("shop");
    asked["spec"] = json!({"finalizers": ["example.com/hold"]});
    let made = send_json(address, "POST", NAMESPACES, &asked).expect(201);
    assert_eq!(made["spec"]["finalizers"], json!(["example.com/hold", "kubernetes"]));
    let path = format!("{NAMESPACES}/shop");
    delete(address, &path).expect(200);
    let finalizers = || get(address, &path).expect(200)["spec"]["finalizers"].clone();
    until("the server's own is removed", || finalizers() == json!(["example.com/hold"]));
    let mut last = get(address, &path).expect(200);
    last["spec"]["finalizers"] = json!([]);
    send_json(address, "PUT", &format!("{path}/finalize"), &last).expect(200);
    assert!(!exists(address, "shop"));
}

#[test]
fn some_namespaces_are_always_there() {
    let server = start(Config::default());
    let address = server.local_addr();
    for name in ["default", "kube-system", "kube-public"] {
        let message = delete(address, &format!("{NAMESPACES}/{name}")).refused(403, "Forbidden");
        assert_eq!(message, format!("namespaces \"{name}\" is forbidden: this namespace may not be deleted"));
    }
    let uid = |name: &str| get(address, &format!("{NAMESPACES}/{name}")).json()["metadata"]["uid"].clone();
    let before = uid("kube-node-lease");
    delete(address, &format!("{NAMESPACES}/kube-node-lease")).expect(200);
    until("it is made anew", || uid("kube-node-lease") != before && uid("kube-node-lease").is_string());
}

#[test]
fn a_namespace_left_half_deleted_is_finished_after_a_restart() {
    let server = start(Config {
        controllers: ControllersConfig { housekeeping: false, ..ControllersConfig::default() },
        ..Config::default()
    });
    let address = server.local_addr();
    make(address, "shop");
    send_json(address, "POST", &services("shop"), &service("a")).expect(201);
    delete(address, &format!("{NAMESPACES}/shop")).expect(200);
    let api = server.stop().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = portolan_serve::Server::start_with(api, Config::default(), listener).unwrap();
    until("it goes", || !exists(server.local_addr(), "shop"));
}
