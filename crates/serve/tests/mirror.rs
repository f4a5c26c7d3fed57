//! Endpoints of Services without selectors, as proxies see them in EndpointSlices.
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
use portolan_serve::{Api, ApiConfig, Config, Server};
use serde_json::{Value, json};

const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

fn endpoints(name: &str, addresses: &[&str]) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name},
        "subsets": [{"addresses": addresses, "ports": [{"port": 8080}]}],
    })
}

/// Returns the name and the first address of every endpoint of each slice of a Service.
fn slices(address: SocketAddr, service: &str) -> Vec<(String, Vec<String>)> {
    let list = get(address, &format!("{SLICES}?labelSelector=kubernetes.io/service-name%3D{service}"));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let brief = |slice: &Value| {
        let endpoints = slice["endpoints"].as_array().unwrap().iter();
        (text(&slice["metadata"]["name"]), endpoints.map(|it| text(&it["addresses"][0])).collect())
    };
    list.expect(200)["items"].as_array().unwrap().iter().map(brief).collect()
}

fn addresses(address: SocketAddr, service: &str) -> Vec<String> {
    let mut all: Vec<String> = slices(address, service).into_iter().flat_map(|it| it.1).collect();
    all.sort();
    all
}

#[test]
fn endpoints_are_mirrored_while_they_should_be() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", ENDPOINTS, &endpoints("web", &["10.1.0.1", "fd00::1"])).expect(201);
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    until("both families are mirrored", || addresses(address, "web") == ["10.1.0.1", "fd00::1"]);
    let before = slices(address, "web");
    assert_eq!(before.len(), 2);
    let path = format!("{ENDPOINTS}/web");
    send_json(address, "PUT", &path, &endpoints("web", &["10.1.0.1", "fd00::1", "10.1.0.2"])).expect(200);
    until("the new address", || addresses(address, "web") == ["10.1.0.1", "10.1.0.2", "fd00::1"]);
    let names = |slices: &[(String, Vec<String>)]| slices.iter().map(|it| it.0.clone()).collect::<Vec<_>>();
    assert_eq!(names(&slices(address, "web")), names(&before), "changed in place");
    let skip = json!({"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}});
    send_json(address, "PATCH", &path, &skip).expect(200);
    until("skipped", || slices(address, "web").is_empty());
    let unskip = json!({"metadata": {"labels": null}});
    send_json(address, "PATCH", &path, &unskip).expect(200);
    until("mirrored again", || addresses(address, "web").len() == 3);
    let selector = |value: Value| json!({"spec": {"selector": value}});
    send_json(address, "PATCH", &format!("{SERVICES}/web"), &selector(json!({"app": "web"}))).expect(200);
    until("a selector ends it", || slices(address, "web").is_empty());
    send_json(address, "PATCH", &format!("{SERVICES}/web"), &selector(Value::Null)).expect(200);
    until("and begins it", || addresses(address, "web").len() == 3);
    delete(address, &path).expect(200);
    until("gone with the Endpoints", || slices(address, "web").is_empty());
}

#[test]
fn mirrored_slices_are_defended() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    send_json(address, "POST", ENDPOINTS, &endpoints("web", &["10.1.0.1"])).expect(201);
    until("mirrored", || addresses(address, "web") == ["10.1.0.1"]);
    let (name, _) = slices(address, "web").remove(0);
    let path = format!("{SLICES}/{name}");
    delete(address, &path).expect(200);
    until("made again", || addresses(address, "web") == ["10.1.0.1"]);
    let (name, _) = slices(address, "web").remove(0);
    let path = format!("{SLICES}/{name}");
    send_json(address, "PATCH", &path, &json!({"endpoints": []})).expect(200);
    until("put right", || addresses(address, "web") == ["10.1.0.1"]);
    let moved = json!({"metadata": {"labels": {"kubernetes.io/service-name": "other"}}});
    let (name, _) = slices(address, "web").remove(0);
    send_json(address, "PATCH", &format!("{SLICES}/{name}"), &moved).expect(200);
    until("one that was given away is made again", || {
        addresses(address, "web") == ["10.1.0.1"] && slices(address, "other").is_empty()
    });
    let mut own = slice("web-by-hand", 1);
    own["metadata"]["labels"] = json!({"kubernetes.io/service-name": "web"});
    send_json(address, "POST", SLICES, &own).expect(201);
    delete(address, &format!("{SERVICES}/web")).expect(200);
    until("gone with the Service", || slices(address, "web").len() == 1);
    assert_eq!(slices(address, "web")[0].0, "web-by-hand", "slices of others are theirs");
}

#[test]
fn addresses_that_cannot_be_mirrored_are_reported_in_events() {
    let server = start(Config::default());
    let address = server.local_addr();
    send_json(address, "POST", SERVICES, &service("web")).expect(201);
    let many: Vec<String> = (0..1001).map(|it| format!("10.1.{}.{}", it / 250, it % 250 + 1)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    send_json(address, "POST", ENDPOINTS, &endpoints("web", &many)).expect(201);
    until("a thousand are mirrored", || addresses(address, "web").len() == 1000);
    let events = || get(address, EVENTS).expect(200)["items"].as_array().unwrap().clone();
    until("the rest is reported", || events().iter().any(|it| it["reason"] == "TooManyAddressesToMirror"));
    let event = events().remove(0);
    assert_eq!((&event["regarding"]["kind"], &event["type"]), (&json!("Endpoints"), &json!("Warning")));
}

#[test]
fn several_servers_make_each_slice_once() {
    let first = start(Config::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // A second server that shares only the store.
    let api = block_on(Api::open(Arc::clone(first.store()), &ApiConfig::default())).unwrap();
    let second = Server::start_with(Arc::new(api), Config::default(), listener).unwrap();
    let address = second.local_addr();
    for number in 0..20 {
        let name = format!("web{number}");
        send_json(address, "POST", SERVICES, &service(&name)).expect(201);
        send_json(address, "POST", ENDPOINTS, &endpoints(&name, &["10.1.0.1", "10.1.0.2"])).expect(201);
    }
    until("all are mirrored", || {
        (0..20).all(|it| addresses(address, &format!("web{it}")) == ["10.1.0.1", "10.1.0.2"])
    });
}
