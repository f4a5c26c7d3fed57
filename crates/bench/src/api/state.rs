//! Measures a server with many objects: the time of a list, the memory, and the time of a restart.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_testkit::HttpClient;
use serde_json::{Value, json};

use super::process::Host;
use super::watchers;
use crate::statistics::Sample;
use crate::workload::Size;

const SIZE: Size = Size::new(10_000, 10);
const LISTS: usize = 101;
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The figures. Memory is in bytes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) json: Lists,
    pub(super) protobuf: Lists,
    pub(super) watchers: Sample,
    pub(super) resident: u64,
    pub(super) high_water: u64,
    pub(super) restart: Duration,
    pub(super) resident_after_restart: u64,
}

/// Lists of all objects.
#[derive(Debug)]
pub(super) struct Lists {
    /// The first list of this kind since the objects were written. The server keeps nothing for it yet.
    pub(super) first: Duration,
    /// All of them.
    pub(super) time: Sample,
    pub(super) bytes: u64,
}

/// Loads the objects over HTTP and measures.
pub(super) fn measure(binary: &Path) -> anyhow::Result<State> {
    let mut host = Host::embedded(binary)?;
    let namespaces: std::collections::BTreeSet<String> =
        SIZE.services().filter_map(|it| namespace(&it)).collect();
    let namespaces = namespaces
        .into_iter()
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    host.create(namespaces.map(|body| create("/api/v1/namespaces", &body)).collect())?;
    let services = SIZE.services().map(|it| create(&collection("/api/v1", &it, "services"), &it));
    host.create(services.collect())?;
    let slices = SIZE
        .slices()
        .map(ownerless)
        .map(|it| create(&collection("/apis/discovery.k8s.io/v1", &it, "endpointslices"), &it));
    host.create(slices.collect())?;
    let memory = |host: &Host| host.server.resident().context("its memory");
    let resident = memory(&host)?;
    let (json, protobuf) = (lists(&host, JSON)?, lists(&host, PROTOBUF)?);
    let first = SIZE.slices().next().context("a slice")?;
    let name = first.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let slice = format!("namespaces/{}/endpointslices/{name}", namespace(&first).unwrap_or_default());
    let watchers = watchers::measure(&host, &slice)?;
    let high_water = host.server.resident_high_water().context("its memory")?;
    let restart = host.restart()?;
    let resident_after_restart = memory(&host)?;
    let again = lists(&host, JSON)?;
    // Only the lengths of revisions may differ, by a few bytes.
    ensure!(again.bytes.abs_diff(json.bytes) < 1024, "the list after the restart is another one");
    Ok(State { json, protobuf, watchers, resident, high_water, restart, resident_after_restart })
}

fn lists(host: &Host, media_type: &str) -> anyhow::Result<Lists> {
    host.namespace.run(|| {
        let mut client = Host::client();
        let mut bytes = 0;
        let mut times = Vec::new();
        for _ in 0..LISTS {
            let begin = Instant::now();
            let answer = client.request("GET", "/api/v1/services", &[("accept", media_type)], b"")?;
            times.push(begin.elapsed());
            ensure!(answer.status == 200, "a list was answered with {}", answer.status);
            bytes = answer.body.len() as u64;
            client.reuse(answer.body);
        }
        let first = times.first().copied().unwrap_or_default();
        Ok(Lists { first, time: times.into_iter().collect(), bytes })
    })?
}

fn create(path: &str, object: &Value) -> Vec<u8> {
    HttpClient::prepare("POST", path, &[("content-type", JSON)], object.to_string().as_bytes())
}

fn collection(group: &str, object: &Value, plural: &str) -> String {
    format!("{group}/namespaces/{}/{plural}", namespace(object).unwrap_or_default())
}

/// Removes the owner references. The owner does not exist, so that the slice would be collected as garbage.
fn ownerless(mut slice: Value) -> Value {
    if let Some(metadata) = slice.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.remove("ownerReferences");
    }
    slice
}

fn namespace(object: &Value) -> Option<String> {
    Some(object.pointer("/metadata/namespace")?.as_str()?.to_owned())
}
