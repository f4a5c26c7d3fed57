//! Measures Services created by several clients at once. Each client has its own connection and waits for each response.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_testkit::HttpClient;
use serde_json::json;

use super::process::Host;
use crate::statistics::Sample;

/// The figures of creates with a number of clients.
#[derive(Debug)]
pub(super) struct Creates {
    pub(super) clients: usize,
    pub(super) per_second: f64,
    pub(super) latencies: Sample,
    /// Processor time of the server for each create, user and system, in microseconds.
    pub(super) processor_micros: f64,
}

/// Measures the embedded store, which responds after the write is on the disk.
pub(super) fn embedded(binary: &Path) -> anyhow::Result<Vec<Creates>> {
    [(1, 2_000), (8, 12_000), (64, 40_000)]
        .into_iter()
        .map(|(clients, count)| measure(&Host::embedded(binary)?, clients, count))
        .collect()
}

/// Measures etcd.
pub(super) fn on_etcd(binary: &Path, etcd: &Path) -> anyhow::Result<Vec<Creates>> {
    [(8, 8_000), (64, 12_000)]
        .into_iter()
        .map(|(clients, count)| measure(&Host::on_etcd(binary, etcd)?, clients, count))
        .collect()
}

fn measure(host: &Host, clients: usize, count: usize) -> anyhow::Result<Creates> {
    let each = count.div_ceil(clients);
    let start = Arc::new(Barrier::new(clients.saturating_add(1)));
    let mut threads = Vec::new();
    for client in 0..clients {
        let requests: Vec<Vec<u8>> = (0..each).map(|number| request(client, number)).collect();
        let start = Arc::clone(&start);
        threads.push(host.namespace.spawn_thread("client", move || send(&start, &requests))?);
    }
    start.wait();
    let begin = Instant::now();
    let before = host.server.processor_time().unwrap_or_default();
    let mut latencies = Vec::new();
    for thread in threads {
        latencies.extend(thread.join().ok().context("a client")???);
    }
    let (seconds, sent) = (begin.elapsed().as_secs_f64(), u32::try_from(latencies.len())?);
    let used = host.server.processor_time().unwrap_or_default().saturating_sub(before);
    Ok(Creates {
        clients,
        per_second: f64::from(sent) / seconds,
        processor_micros: used.as_secs_f64() * 1e6 / f64::from(sent),
        latencies: latencies.into_iter().collect(),
    })
}

fn send(start: &Barrier, requests: &[Vec<u8>]) -> anyhow::Result<Vec<Duration>> {
    let mut client = Host::client();
    // The connection is open before the clock starts.
    let connected = client.request("GET", "/readyz", &[], b"");
    start.wait();
    connected?;
    let mut latencies = Vec::with_capacity(requests.len());
    for request in requests {
        let begin = Instant::now();
        let answer = client.send(request)?;
        latencies.push(begin.elapsed());
        ensure!(answer.status == 201, "a create was answered with {}", String::from_utf8_lossy(&answer.body));
    }
    Ok(latencies)
}

/// Returns a request to create a Service that needs an address.
fn request(client: usize, number: usize) -> Vec<u8> {
    let name = format!("service-{client}-{number}");
    let body = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shop"}},
        "spec": {"selector": {"app.kubernetes.io/name": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    let headers = [("content-type", "application/json")];
    HttpClient::prepare("POST", "/api/v1/namespaces/default/services", &headers, body.to_string().as_bytes())
}
