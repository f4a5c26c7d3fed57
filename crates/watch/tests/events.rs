//! Events against the project's own API server, which validates and stores them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt as _;
use kube::client::Body;
use portolan_serve::{Config, Server};
use portolan_watch::events::{EventNote, Recorder};
use portolan_watch::{ClientSettings, RequestDone, connect};
use serde_json::{Value, json};
use tokio::time;

const DEADLINE: Duration = Duration::from_secs(120);

async fn get(client: &kube::Client, path: &str) -> Value {
    let request = http::Request::get(path).body(Body::empty()).unwrap();
    let answer = time::timeout(DEADLINE, client.send(request)).await.unwrap().unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

#[tokio::test]
async fn recorded_events_are_stored() {
    let server =
        Server::start(Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() }).unwrap();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "web"}});
    server.api().apply(namespace).await.unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front", "namespace": "web"},
        "spec": {"ports": [{"port": 80}]}});
    server.api().apply(service).await.unwrap();
    let done = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&done);
    let settings = ClientSettings {
        master: Some(server.url()),
        on_request: Some(Arc::new(move |done: &RequestDone| {
            log.lock().unwrap().push(format!("{} {}", done.verb, done.code_label()));
        })),
        ..ClientSettings::default()
    };
    let client = connect(&settings).await.unwrap();
    let (recorder, poster) = Recorder::new(client.clone(), "host");
    tokio::spawn(poster.run());
    recorder.event(EventNote::starting("node-1"));
    for _ in 0..3 {
        recorder.event(EventNote::configuration_refused("node-1", "mode: unknown \"x\""));
    }
    recorder.event(EventNote::failed_to_start_service_healthcheck(("web", "front"), "in use"));
    time::timeout(DEADLINE, recorder.flushed()).await.expect("events were not posted");
    assert_eq!(recorder.lost(), 0);
    assert_eq!(*done.lock().unwrap(), ["POST 201", "POST 201", "PATCH 200", "GET 200", "POST 201"]);

    let events = get(&client, "/apis/events.k8s.io/v1/namespaces/default/events").await;
    let events: Vec<_> = events["items"].as_array().unwrap().iter().map(brief).collect();
    assert_eq!(
        events,
        [json!(["Starting", null, null]), json!(["ConfigurationRefused", "mode: unknown \"x\"", 2])]
    );
    let events = get(&client, "/apis/events.k8s.io/v1/namespaces/web/events").await;
    let service = get(&client, "/api/v1/namespaces/web/services/front").await;
    let regarding = &events["items"][0]["regarding"];
    assert_eq!((&regarding["name"], &regarding["uid"]), (&json!("front"), &service["metadata"]["uid"]));
    assert_eq!(events["items"][0]["reportingInstance"], "kube-proxy-host");
}

fn brief(event: &Value) -> Value {
    json!([event["reason"], event["note"], event["series"]["count"]])
}
