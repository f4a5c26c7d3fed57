//! Writes objects to any API server, from the namespace in which it listens.

use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use portolan_testkit::{Namespace, eventually};
use portolan_watch::{Client, ClientSettings};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Maximum time until a server that has just started accepts the first object.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// Maximum time to wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Objects that are written at the same time while many are loaded.
const AT_ONCE: usize = 16;

/// A blocking client of an API server.
pub(crate) struct Writer {
    client: Client,
    requests: Requests,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    /// Creates a client whose connections begin in the namespace. Sends nothing.
    pub(crate) fn new(namespace: &Namespace, settings: ClientSettings) -> anyhow::Result<Self> {
        let requests = Requests::start(namespace)?;
        let client = requests.run(async move { Ok(portolan_watch::connect(&settings).await?) })?;
        Ok(Self { client, requests })
    }

    /// Returns the body of a path.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<String> {
        let (client, request) = (self.client.clone(), http::Request::get(path).body(Vec::new())?);
        self.requests.run(async move { send(&client, request).await?.map_err(anyhow::Error::from) })
    }

    /// Writes an object: replaces it, or creates it if it does not exist.
    pub(crate) fn apply(&self, object: Value) -> anyhow::Result<()> {
        let client = self.client.clone();
        self.requests.run(async move { apply(&client, &object).await })
    }

    /// Writes many objects, several at a time, after their namespaces.
    pub(crate) fn load(&self, objects: Vec<Value>, namespaces: &[&str]) -> anyhow::Result<()> {
        for name in namespaces {
            let namespace = || json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            // The first objects may be refused until the server has its own.
            eventually(READY_WITHIN, "a namespace", || self.apply(namespace()).is_ok())?;
        }
        let client = self.client.clone();
        self.requests.run(async move {
            let mut objects = objects.into_iter();
            let mut running = JoinSet::new();
            loop {
                while running.len() < AT_ONCE
                    && let Some(object) = objects.next()
                {
                    let client = client.clone();
                    running.spawn(async move { apply(&client, &object).await });
                }
                let Some(done) = running.join_next().await else { return Ok(()) };
                done.context("a task that writes an object")??;
            }
        })
    }
}

/// A thread in the server's namespace, on which requests run. It ends when dropped.
#[derive(Debug)]
struct Requests {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl Requests {
    fn start(namespace: &Namespace) -> anyhow::Result<Self> {
        let (started, handle) = mpsc::sync_channel(1);
        let (end, ended) = oneshot::channel::<()>();
        namespace.spawn_thread("requests", move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let is_started =
                started.send(runtime.as_ref().map(|it| it.handle().clone()).map_err(std::io::Error::kind));
            if let (Ok(runtime), Ok(())) = (runtime, is_started) {
                // An error means that the other half was dropped.
                let _ = runtime.block_on(ended);
            }
        })?;
        Ok(Self { runtime: handle.recv()?.map_err(std::io::Error::from)?, _end: end })
    }

    /// Runs a future on the thread and waits for its result.
    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (send, receive) = mpsc::sync_channel(1);
        self.runtime.spawn(async move { send.send(work.await) });
        receive.recv().context("the thread for requests has ended")?
    }
}

/// Sends a request and reads its answer. The outer error means that there was none in time.
async fn send(client: &Client, request: http::Request<Vec<u8>>) -> anyhow::Result<kube::Result<String>> {
    let text = tokio::time::timeout(ANSWER_WITHIN, client.request_text(request)).await;
    text.with_context(|| format!("no answer within {ANSWER_WITHIN:?}"))
}

async fn apply(client: &Client, object: &Value) -> anyhow::Result<()> {
    let place = Place::of(object).with_context(|| format!("no object that this stage writes: {object}"))?;
    let body = serde_json::to_vec(object)?;
    let request = |method: &str, path: String, body: Vec<u8>| {
        http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", "application/json")
            .body(body)
            .map_err(anyhow::Error::from)
    };
    let put = request("PUT", format!("{}/{}", place.collection, place.name), body.clone())?;
    match send(client, put).await? {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let post = request("POST", place.collection.clone(), body)?;
            let created = send(client, post).await?;
            created.map(drop).with_context(|| format!("create {} {}", place.collection, place.name))
        }
        Err(error) => Err(anyhow!(error).context(format!("replace {} {}", place.collection, place.name))),
    }
}

/// Where an object is in the API.
struct Place {
    /// The path of the collection.
    collection: String,
    name: String,
}

impl Place {
    fn of(object: &Value) -> Option<Self> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let name = text("/metadata/name")?.to_owned();
        let (root, plural) = match text("/kind")? {
            "Service" => ("/api/v1", "services"),
            "EndpointSlice" => ("/apis/discovery.k8s.io/v1", "endpointslices"),
            "Node" => ("/api/v1", "nodes"),
            "Namespace" => ("/api/v1", "namespaces"),
            _ => return None,
        };
        let collection = match text("/metadata/namespace") {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
            None => format!("{root}/{plural}"),
        };
        Some(Self { collection, name })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::workload;

    #[test]
    fn each_object_of_a_stage_has_its_path() {
        let path =
            |object: &Value| Place::of(object).map(|place| format!("{}/{}", place.collection, place.name));
        let service = workload::service(workload::OWN, "moving", Ipv4Addr::LOCALHOST);
        assert_eq!(path(&service).as_deref(), Some("/api/v1/namespaces/bench/services/moving"));
        let slice = workload::slice(workload::OWN, "moving", 0, &[]);
        assert_eq!(
            path(&slice).as_deref(),
            Some("/apis/discovery.k8s.io/v1/namespaces/bench/endpointslices/moving-x0000")
        );
        let node = workload::node(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(path(&node).as_deref(), Some("/api/v1/nodes/node-0000"));
        assert_eq!(path(&json!({"kind": "Pod", "metadata": {"name": "pod"}})), None);
    }
}
