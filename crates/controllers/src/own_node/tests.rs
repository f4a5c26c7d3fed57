//! The Node of the host in an API server in memory.

use std::sync::Arc;

use portolan_api::ApiConfig;

use super::*;

fn stored(api: &Api) -> Value {
    let node = api.store().get(Resource::Node, "host1").unwrap().decode();
    Value::Object(node)
}

fn addresses(api: &Api) -> Value {
    stored(api).pointer("/status/addresses").cloned().unwrap()
}

#[tokio::test]
async fn the_node_has_the_addresses_of_the_host() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    let (host, followed) = watch::channel(vec!["127.0.0.1".parse().unwrap()]);
    let node = OwnNode { name: "host1".to_owned(), addresses: followed, is_given: false };
    assert!(!node.sync(&api).await);
    assert_eq!(addresses(&api).pointer("/0/address"), Some(&json!("127.0.0.1")), "a new Node has loopback");
    host.send_replace(vec!["192.0.2.1".parse().unwrap()]);
    assert!(!node.sync(&api).await);
    let hostname = json!({"type": "Hostname", "address": "host1"});
    assert_eq!(addresses(&api), json!([{"type": "InternalIP", "address": "192.0.2.1"}, hostname.clone()]));
    let revision = api.store().revision();
    assert!(!node.sync(&api).await);
    assert_eq!(api.store().revision(), revision, "nothing is written if nothing changed");
    host.send_replace(vec!["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()]);
    assert!(!node.sync(&api).await);
    let both = json!([{"type": "InternalIP", "address": "192.0.2.2"},
        {"type": "InternalIP", "address": "2001:db8::2"}, hostname]);
    assert_eq!(addresses(&api), both.clone());
    for without in [Vec::new(), vec!["127.0.0.1".parse().unwrap()]] {
        host.send_replace(without);
        assert!(!node.sync(&api).await);
        assert_eq!(addresses(&api), both, "without addresses it keeps the last ones");
    }
    let given = OwnNode { is_given: true, ..node };
    assert!(!given.sync(&api).await);
    assert_eq!(addresses(&api).pointer("/0/address"), Some(&json!("127.0.0.1")), "the option decides");
}

#[tokio::test]
async fn a_node_that_was_made_without_an_address_gets_that_of_loopback() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    let (host, followed) = watch::channel(Vec::new());
    let node = OwnNode { name: "host1".to_owned(), addresses: followed, is_given: false };
    assert!(!node.sync(&api).await);
    assert!(!has_address(Some(&addresses(&api))));
    host.send_replace(vec!["127.0.0.1".parse().unwrap()]);
    assert!(!node.sync(&api).await);
    assert_eq!(addresses(&api).pointer("/0/address"), Some(&json!("127.0.0.1")), "the agent waits for one");
}

#[tokio::test]
async fn the_node_is_ready_and_its_heartbeat_goes_on() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    let (_host, followed) = watch::channel(vec!["192.0.2.1".parse().unwrap()]);
    let node = OwnNode { name: "host1".to_owned(), addresses: followed, is_given: false };
    let ready = |field: &str| {
        let conditions = stored(&api).pointer("/status/conditions").cloned().unwrap();
        let all = conditions.as_array().unwrap().clone();
        let ready = all.iter().find(|it| it["type"] == "Ready").unwrap();
        ready[field].as_str().unwrap().to_owned()
    };
    let start = "2026-03-01T10:00:00Z";
    assert!(!node.sync_at(&api, start).await);
    assert_eq!((ready("status"), ready("lastHeartbeatTime")), ("True".to_owned(), start.to_owned()));
    let revision = api.store().revision();
    assert!(!node.sync_at(&api, "2026-03-01T10:04:59Z").await);
    assert_eq!(api.store().revision(), revision, "nothing is written between heartbeats");
    let later = "2026-03-01T10:05:00Z";
    assert!(!node.sync_at(&api, later).await);
    assert_eq!(
        (ready("lastTransitionTime"), ready("lastHeartbeatTime")),
        (start.to_owned(), later.to_owned())
    );
    // A Node without the condition, as earlier versions made it, gets it.
    let patch = json!({"status": {"conditions": null}}).as_object().cloned().unwrap();
    api.merge_patch(node.target(), Part::Status, patch, WriteOptions::default()).await.unwrap();
    assert!(!node.sync_at(&api, later).await);
    assert_eq!(ready("status"), "True");
    assert_eq!(addresses(&api).pointer("/0/address"), Some(&json!("192.0.2.1")));
}

#[tokio::test]
async fn a_node_of_others_stays() {
    let api = Arc::new(Api::new(&ApiConfig::default()));
    let (_host, followed) = watch::channel(vec!["192.0.2.1".parse().unwrap()]);
    let node = OwnNode { name: "host1".to_owned(), addresses: followed, is_given: false };
    let given = |annotations: Value| {
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host1", "annotations": annotations},
            "status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.7"}]}})
    };
    let of_manifest = json!({MARKER: "Node host1 in /a/b.yaml", REGISTERED: BY});
    for annotations in [json!({}), of_manifest] {
        api.apply(given(annotations)).await.unwrap();
        assert!(node.sync(&api).await);
        assert_eq!(addresses(&api), json!([{"type": "InternalIP", "address": "198.51.100.7"}]));
    }
    // Without it the host gets a Node again.
    let target = node.target();
    api.delete(target, &portolan_api::Preconditions::default(), WriteOptions::default()).await.unwrap();
    assert!(!node.sync(&api).await);
    assert_eq!(stored(&api).pointer("/metadata/annotations").cloned(), Some(json!({REGISTERED: BY})));
}
