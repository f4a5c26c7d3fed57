use std::sync::{Arc, Mutex};

use http::Response;
use tower::BoxError;

use super::*;

/// An API server without sockets: one Node, and a status for every patch.
#[derive(Clone)]
struct Api {
    node: Value,
    patched: u16,
    /// Method, path and media type of each request, with its body.
    sent: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Api {
    fn new(node: Value, patched: u16) -> Self {
        Self { node, patched, sent: Arc::default() }
    }

    fn node(&self) -> OwnNode {
        let api = self.clone();
        let service = tower::service_fn(move |request| api.clone().take(request));
        OwnNode::new(kube::Client::new(service, "default"), "node 1")
    }

    async fn take(self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let media_type = parts.headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap());
        let line = format!("{} {} {media_type}", parts.method, parts.uri);
        self.sent.lock().unwrap().push((line, serde_json::from_slice(&body).unwrap_or_default()));
        let (status, body) = match parts.method {
            Method::GET => (200, json!({"kind": "NodeList", "items": [self.node]})),
            _ => (self.patched, json!({"kind": "Status", "reason": "Conflict"})),
        };
        Ok(Response::builder().status(status).body(Body::from(body.to_string().into_bytes()))?)
    }

    /// Returns the patch and its line. There must have been one read before it.
    fn patch(&self) -> (String, Value) {
        let sent = self.sent.lock().unwrap();
        let [(read, _), patch] = &**sent else { panic!("{sent:?}") };
        assert_eq!(read, "GET /api/v1/nodes?fieldSelector=metadata.name%3Dnode%201 ");
        patch.clone()
    }
}

fn node(taints: &Value) -> Value {
    json!({"metadata": {"name": "node 1", "resourceVersion": "42"}, "spec": {"taints": taints}})
}

#[tokio::test]
async fn the_patch_has_the_version_that_was_read_and_all_other_taints() {
    let others =
        json!([{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-31T12:00:00Z"}, {"key": "b"}]);
    let mut taints = others.clone();
    taints.as_array_mut().unwrap().insert(1, json!({"key": "a", "effect": "NoSchedule"}));
    let api = Api::new(node(&taints), 200);
    assert!(api.node().remove_taint("a", Some("NoSchedule")).await.unwrap());
    let (line, body) = api.patch();
    assert_eq!(line, "PATCH /api/v1/nodes/node%201 application/merge-patch+json");
    assert_eq!(body, json!({"metadata": {"resourceVersion": "42"}, "spec": {"taints": others}}));
    // Without an effect, the key counts.
    let api = Api::new(node(&taints), 200);
    assert!(api.node().remove_taint("a", None).await.unwrap());
    assert_eq!(api.patch().1["spec"]["taints"], json!([{"key": "b"}]));
}

#[tokio::test]
async fn without_the_taint_nothing_is_written() {
    for taints in [json!(null), json!([]), json!([{"key": "b"}, "no taint", {"effect": "NoSchedule"}])] {
        let api = Api::new(node(&taints), 200);
        assert!(!api.node().remove_taint("a", None).await.unwrap());
        assert_eq!(api.sent.lock().unwrap().len(), 1, "{taints}");
    }
}

#[tokio::test]
async fn a_node_that_changed_meanwhile_is_a_conflict() {
    let api = Api::new(node(&json!([{"key": "a"}])), 409);
    let error = api.node().remove_taint("a", None).await.unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("409 Conflict"), "{error}");
}

#[tokio::test]
async fn a_missing_node_is_an_error() {
    let api = Api::new(json!({"metadata": {"name": "other"}}), 200);
    let error = api.node().remove_taint("a", None).await.unwrap_err();
    assert!(matches!(error, NodeError::NoNode) && !error.is_conflict());
}

#[tokio::test]
async fn a_condition_is_read_and_set_by_its_type() {
    let mut stored = node(&json!(null));
    stored["status"] = json!({"conditions": [{"type": "Ready", "status": "True"},
        {"type": "x", "status": "False", "reason": "r", "lastTransitionTime": "1970-01-01T00:00:07Z"}]});
    let api = Api::new(stored, 200);
    assert_eq!(api.node().condition("y").await.unwrap(), None);
    let known = api.node().condition("x").await.unwrap().unwrap();
    let since = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(7));
    assert_eq!(known, KnownCondition { status: "False".into(), reason: "r".into(), since });
    api.sent.lock().unwrap().drain(1..);
    let condition = NodeCondition { kind: "x".into(), status: true, reason: "r", message: "m" };
    api.node().set_condition(&condition).await.unwrap();
    let (line, body) = api.patch();
    assert_eq!(line, "PATCH /api/v1/nodes/node%201/status application/strategic-merge-patch+json");
    let [set] = &**body["status"]["conditions"].as_array().unwrap() else { panic!("{body}") };
    assert_eq!((&set["type"], &set["status"], &set["reason"]), (&json!("x"), &json!("True"), &json!("r")));
    assert_eq!(set["lastTransitionTime"], set["lastHeartbeatTime"]);
    let time = set["lastTransitionTime"].as_str().unwrap();
    assert!(
        time.ends_with('Z') && time.len() == "1970-01-01T00:00:07Z".len(),
        "metav1.Time has seconds: {time}"
    );
}

#[test]
fn the_wait_doubles_up_to_a_minute_and_follows_the_server() {
    for (failures, seconds) in [(0, 1.0), (1, 2.0), (5, 32.0), (6, 60.0), (u32::MAX, 60.0)] {
        let wait = NodeError::NoNode.wait(failures).as_secs_f64();
        assert!((seconds * 0.9..=seconds * 1.1).contains(&wait), "{failures}: {wait}");
    }
    let busy = ApiStatus { code: 429, retry_after: Some(Duration::from_secs(20)), ..ApiStatus::default() };
    assert_eq!(NodeError::Refused(busy).wait(0), Duration::from_secs(20));
}
