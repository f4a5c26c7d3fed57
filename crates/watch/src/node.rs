//! Writes to this node's own Node object: removes a taint, sets a condition.
//!
//! Each call sends one or two requests and does not retry; the caller decides what to do about an error. The Node is
//! read by a list with a field selector, as the watch does, so that a role needs no `get`.

use std::time::{Duration, SystemTime};

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Collected, Limited};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use portolan_model::object::Kind;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time;

use crate::client::deadline::AnswerWithin;
use crate::content_type::JSON;
use crate::reflector::Query;
use crate::request::{Collection, path_segment};
use crate::status::ApiStatus;

/// Maximum time for an answer to begin, and again for its body.
const ANSWER: Duration = Duration::from_secs(30);

/// Maximum bytes of an answer's body. An object of Kubernetes has at most 1.5 MiB; JSON and a list need a bit more.
const BODY_MAX: usize = 8 << 20;

/// First and longest wait before a failed request is sent again.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

/// Why the Node could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is no answer.
    #[error("the API server does not answer: {0}")]
    Unanswered(#[from] kube::Error),
    /// The answer breaks off or is too long.
    #[error("the answer of the API server breaks off or is longer than {BODY_MAX} bytes")]
    Body,
    /// The server refused the request.
    #[error("the API server answered {0}")]
    Refused(ApiStatus),
    /// The answer is not a list of Nodes.
    #[error("the answer of the API server is not a list of Nodes: {0}")]
    NotAList(#[from] serde_json::Error),
    /// There is no Node of this name.
    #[error("the Node object does not exist")]
    NoNode,
    /// The request cannot be built.
    #[error("no request can be made for this node's name: {0}")]
    Request(#[from] http::Error),
}

impl NodeError {
    /// Returns true if the Node has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 409)
    }

    /// Returns how long to wait before the request is sent again, after this number of failures before this one: 1 s,
    /// doubled up to 60 s, or as long as the server asks. It varies by a tenth, so that the nodes of a cluster do not
    /// write together after an outage.
    pub fn wait(&self, failures: u32) -> Duration {
        let wait = FIRST_WAIT.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST_WAIT);
        let asked = match self {
            Self::Refused(status) => status.retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        wait.mul_f64(0.9 + fastrand::f64() / 5.0).max(asked)
    }
}

/// A condition that is to be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCondition {
    /// The type.
    pub kind: String,
    /// The status.
    pub status: bool,
    /// One machine-readable word.
    pub reason: &'static str,
    /// For people.
    pub message: &'static str,
}

/// A condition that the Node has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownCondition {
    /// The status: `True`, `False` or `Unknown`.
    pub status: String,
    /// The reason; empty if it is missing.
    pub reason: String,
    /// Since when it has the status. `None` if that is missing or not a time.
    pub since: Option<SystemTime>,
}

/// This node's Node object at the API server.
#[derive(Clone)]
pub struct OwnNode {
    client: kube::Client,
    name: Box<str>,
}

#[derive(Deserialize)]
struct NodeList {
    items: Vec<WireNode>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireNode {
    metadata: WireMetadata,
    spec: WireSpec,
    status: WireStatus,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct WireMetadata {
    name: String,
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireSpec {
    /// Whole objects, because those that stay are sent back as they are.
    taints: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct WireStatus {
    conditions: Option<Vec<WireCondition>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: Option<String>,
    last_transition_time: Option<String>,
}

impl OwnNode {
    /// Creates the access. The client must come from [`connect`](crate::connect).
    pub fn new(client: kube::Client, name: &str) -> Self {
        Self { client, name: name.into() }
    }

    /// Removes the taints with this key, and with this effect if one is given. All other taints stay: the patch has
    /// the version of the Node that was read, and the server refuses it if the Node has changed since. Returns false if
    /// there was none.
    ///
    /// # Errors
    /// The Node could not be read or written. Nothing was changed, or the answer was lost.
    pub async fn remove_taint(&self, key: &str, effect: Option<&str>) -> Result<bool, NodeError> {
        let WireNode { metadata, spec, .. } = self.read().await?;
        let is_it = |taint: &Value| {
            let has = |field: &str, wanted: &str| taint.get(field).and_then(Value::as_str) == Some(wanted);
            has("key", key) && effect.is_none_or(|effect| has("effect", effect))
        };
        let taints = spec.taints.unwrap_or_default();
        let rest: Vec<&Value> = taints.iter().filter(|taint| !is_it(taint)).collect();
        if rest.len() == taints.len() {
            return Ok(false);
        }
        let patch =
            json!({"metadata": {"resourceVersion": metadata.resource_version}, "spec": {"taints": rest}});
        self.patch("", MERGE_PATCH, &patch).await?;
        Ok(true)
    }

    /// Returns a condition of the Node, if it has it.
    ///
    /// # Errors
    /// The Node could not be read.
    pub async fn condition(&self, kind: &str) -> Result<Option<KnownCondition>, NodeError> {
        let conditions = self.read().await?.status.conditions.unwrap_or_default();
        let known = conditions.into_iter().find(|known| known.kind == kind);
        Ok(known.map(|WireCondition { status, reason, last_transition_time: since, .. }| KnownCondition {
            status,
            reason: reason.unwrap_or_default(),
            since: since.and_then(|text| text.parse::<Timestamp>().ok()).map(SystemTime::from),
        }))
    }

    /// Sets a condition whose status changes now, and leaves all others to their owners.
    ///
    /// # Errors
    /// The Node could not be written.
    pub async fn set_condition(&self, condition: &NodeCondition) -> Result<(), NodeError> {
        let status = if condition.status { "True" } else { "False" };
        let now = format!("{:.0}", Timestamp::try_from(SystemTime::now()).unwrap_or_default());
        let patch = json!({"status": {"conditions": [{
            "type": condition.kind,
            "status": status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }]}});
        self.patch("/status", STRATEGIC_MERGE_PATCH, &patch).await
    }

    async fn read(&self) -> Result<WireNode, NodeError> {
        let query = Query::Page { limit: None, token: "" };
        let request = Collection::new(Kind::Node, &self.name).request(&query, 0)?;
        let list: NodeList = serde_json::from_slice(&self.exchange(request).await?)?;
        list.items.into_iter().find(|node| *node.metadata.name == *self.name).ok_or(NodeError::NoNode)
    }

    async fn patch(&self, part: &str, media_type: &str, patch: &Value) -> Result<(), NodeError> {
        let uri = format!("/api/v1/nodes/{}{part}", path_segment(&self.name));
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(uri)
            .header(ACCEPT, JSON)
            .header(CONTENT_TYPE, media_type)
            .body(Body::from(patch.to_string().into_bytes()))?;
        self.exchange(request).await.map(drop)
    }

    async fn exchange(&self, mut request: Request<Body>) -> Result<Vec<u8>, NodeError> {
        request.extensions_mut().insert(AnswerWithin(ANSWER));
        let (parts, body) = self.client.send(request).await?.into_parts();
        let body = time::timeout(ANSWER, Limited::new(body, BODY_MAX).collect()).await;
        let body = body.ok().and_then(Result::ok).map(Collected::to_bytes);
        if !parts.status.is_success() {
            let body = body.unwrap_or_default();
            let status = ApiStatus::from_answer(parts.status.as_u16(), &parts.headers, &body);
            return Err(NodeError::Refused(status));
        }
        body.map(Vec::from).ok_or(NodeError::Body)
    }
}

#[cfg(test)]
mod tests;
