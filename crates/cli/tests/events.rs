//! What the node tells the cluster as Events. Needs root and nft, and fails without.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

mod common;

use std::net::TcpListener;

use portolan_testkit::eventually;
use serde_json::{Value, json};

use common::{Cluster, NODE, PATIENCE, http, objects};

/// The Events that the API server holds.
fn events(cluster: &Cluster) -> Vec<Value> {
    let node = cluster.world.node().namespace();
    let answer = http::get(node, cluster.address, "/apis/events.k8s.io/v1/events").unwrap();
    let list: Value = serde_json::from_str(&answer.body).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Waits for an Event with this reason.
fn told(cluster: &Cluster, reason: &str) -> Value {
    let found = || events(cluster).into_iter().find(|event| event["reason"] == reason);
    let outcome = eventually(PATIENCE, "the Event", || found().is_some());
    assert!(outcome.is_ok(), "{reason}: {:?}", events(cluster));
    found().unwrap()
}

#[test]
fn a_start_is_told() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    let event = told(&cluster, "Starting");
    assert_eq!(event["regarding"], json!({"apiVersion": "v1", "kind": "Node", "name": NODE}));
    assert_eq!((&event["type"], &event["action"]), (&json!("Normal"), &json!("StartKubeProxy")));
    assert_eq!(event["reportingController"], "kube-proxy");
    assert_eq!(event["metadata"]["namespace"], "default");
}

#[test]
fn changed_configurations_are_told() {
    let cluster = Cluster::new();
    let _proxy = cluster.proxy();
    cluster.configure("nftables: {masqueradeBit: 32}\n");
    let event = told(&cluster, "ConfigurationRefused");
    assert_eq!(event["type"], "Warning");
    assert!(event["note"].as_str().unwrap().contains("nftables.masqueradeBit"), "{event}");
    cluster.configure("nftables: {masqueradeBit: 7}\n");
    let event = told(&cluster, "ConfigurationReloaded");
    assert_eq!((&event["type"], &event["note"]), (&json!("Normal"), &json!("changed: nftables")));
    let page =
        http::get(cluster.world.node().namespace(), common::at("127.0.0.1:10249"), "/metrics").unwrap();
    for line in [
        "portolan_config_reloads_total{result=\"ok\"} 1",
        "portolan_config_reloads_total{result=\"refused\"} 1",
        "portolan_config_last_reload_successful 1",
    ] {
        assert!(page.body.lines().any(|found| found == line), "{line} in {}", page.body);
    }
}

#[test]
fn a_health_check_node_port_that_cannot_be_opened_is_told() {
    let cluster = Cluster::new();
    let pod = &cluster.world.pods()[0];
    let _others =
        cluster.world.node().namespace().run(|| TcpListener::bind("0.0.0.0:32000").unwrap()).unwrap();
    let mut service = objects::load_balancer("web", "10.96.0.10", 30_080, "198.51.100.7");
    service["spec"]["externalTrafficPolicy"] = json!("Local");
    service["spec"]["healthCheckNodePort"] = json!(32_000);
    cluster.service(service, &[pod]);
    let _proxy = cluster.proxy();
    let event = told(&cluster, "FailedToStartServiceHealthcheck");
    assert_eq!(event["regarding"]["kind"], "Service");
    assert_eq!((&event["regarding"]["name"], &event["action"]), (&json!("web"), &json!("Listen")));
    let note = event["note"].as_str().unwrap();
    assert!(
        note.starts_with(&format!("node {NODE} failed to start healthcheck \"default/web\" on port 32000: ")),
        "{note}"
    );
}

#[test]
fn a_server_that_must_listen_and_cannot_is_told_before_the_end() {
    let cluster = Cluster::new();
    let _others =
        cluster.world.node().namespace().run(|| TcpListener::bind("127.0.0.1:19999").unwrap()).unwrap();
    for (field, reason) in [
        ("metricsBindAddress", "FailedToStartMetricServer"),
        ("healthzBindAddress", "FailedToStartProxierHealthcheck"),
    ] {
        let yaml = format!("bindAddressHardFail: true\n{field}: 127.0.0.1:19999\n");
        let mut proxy = cluster.start_proxy(&yaml);
        assert_eq!(proxy.wait_for_end(PATIENCE).unwrap().code(), Some(1), "{}", proxy.output());
        assert_eq!(told(&cluster, reason)["type"], "Warning");
    }
}
