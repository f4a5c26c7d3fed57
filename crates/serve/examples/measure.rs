//! Measures the server alone: list and initial-events throughput, time from a write to its watcher and to a thousand of
//! them, memory.
//!
//! `cargo run --release -p portolan-serve --example measure`
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_precision_loss,
    reason = "an example stops at the first surprise"
)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use portolan_serve::{Api, Config, Resource, Scope, Server};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const OBJECTS: usize = 10_000;
const CHANGES: usize = 2_000;
const WATCHERS: usize = 1_000;

fn main() {
    let server = Server::start(Config::default()).unwrap();
    let empty = resident_kib();
    let start = Instant::now();
    fill(server.api());
    println!("{OBJECTS} Services and {OBJECTS} EndpointSlices x 10 written in {:?}", start.elapsed());
    let json: usize =
        [Resource::Service, Resource::EndpointSlice].map(|it| stored_bytes(server.api(), it)).iter().sum();
    let used = (resident_kib() - empty) * 1024;
    println!(
        "JSON {} KiB, resident +{} KiB, ratio {:.2}",
        json / 1024,
        used / 1024,
        used as f64 / json as f64
    );

    let address = server.local_addr();
    let slices = "/apis/discovery.k8s.io/v1/endpointslices";
    let initial = format!(
        "{slices}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    for (name, path, accept) in [
        ("list of slices", slices, JSON),
        ("list of slices, protobuf", slices, PROTOBUF),
        ("list of Services", "/api/v1/services", JSON),
        ("list of Services, protobuf", "/api/v1/services", PROTOBUF),
        ("initial events of slices", &initial, JSON),
        ("initial events of slices, protobuf", &initial, PROTOBUF),
    ] {
        let runs: Vec<(usize, Duration)> = (0..5).map(|_| download(address, path, accept)).collect();
        let (bytes, best) = runs.iter().min_by_key(|(_, time)| *time).unwrap();
        println!(
            "{name}: {} KiB in {best:?}, {:.0} MB/s",
            bytes / 1024,
            *bytes as f64 / best.as_secs_f64() / 1e6
        );
    }
    latency(&server);
    for (name, accept) in
        [("JSON", JSON), ("protobuf", PROTOBUF), ("Table", "application/json;as=Table;g=meta.k8s.io;v=v1")]
    {
        fan_out(&server, name, accept);
    }
    println!("resident after all: {} KiB", resident_kib());
}

fn fill(api: &Api) {
    for number in 0..OBJECTS {
        let name = format!("service-{number}");
        api.blocking().apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}))
        .unwrap();
        api.blocking().apply(slice(number, true)).unwrap();
    }
}

fn slice(number: usize, ready: bool) -> Value {
    let endpoints: Vec<Value> = (0..10)
        .map(|index| {
            let host = number * 10 + index;
            json!({"addresses": [format!("10.{}.{}.{}", host >> 16 & 255, host >> 8 & 255, host & 255)],
                "conditions": {"ready": ready || index > 0, "serving": true, "terminating": false},
                "nodeName": format!("node-{}", host % 100),
                "targetRef": {"kind": "Pod", "namespace": "default", "name": format!("pod-{host}")}})
        })
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("service-{number}-abcde"), "labels": {
            "kubernetes.io/service-name": format!("service-{number}"),
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
        "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
}

fn stored_bytes(api: &Api, resource: Resource) -> usize {
    let snapshot = api.store().snapshot(resource, &Scope::default(), None).unwrap();
    snapshot.objects.iter().map(|object| object.body().len()).sum()
}

fn connect(address: SocketAddr, path: &str, accept: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// Bytes and time until the list, or the bookmark after the initial events, has arrived.
fn download(address: SocketAddr, path: &str, accept: &str) -> (usize, Duration) {
    let start = Instant::now();
    let mut stream = connect(address, path, accept);
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        let count = stream.read(&mut buffer).unwrap();
        bytes += count;
        let tail = &buffer[..count];
        if count == 0 || tail.windows(18).rev().take(400).any(|window| window == b"initial-events-end") {
            return (bytes, start.elapsed());
        }
    }
}

/// From just before a write in this process until its event has been read from a socket by another thread.
fn latency(server: &portolan_serve::RunningServer) {
    let revision = server.store().revision();
    let path = format!("/apis/discovery.k8s.io/v1/endpointslices?watch=1&resourceVersion={revision}");
    let stream = connect(server.local_addr(), &path, JSON);
    let (seen, events) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if line.contains(r#""type":"MODIFIED""#) && seen.send(Instant::now()).is_err() {
                return;
            }
        }
    });
    let mut written = Vec::new();
    let mut stored = Vec::new();
    for change in 0..CHANGES {
        let object = slice(change % OBJECTS, change >= OBJECTS);
        let start = Instant::now();
        server.api().blocking().apply(object).unwrap();
        stored.push(start.elapsed());
        written.push(events.recv().unwrap() - start);
    }
    for (name, mut times) in [("write alone", stored), ("write to watcher, write included", written)] {
        times.sort();
        println!(
            "{name}: median {:?}, p99 {:?}, max {:?}",
            times[CHANGES / 2],
            times[CHANGES * 99 / 100],
            times[CHANGES - 1]
        );
    }
}

/// From just before a write until every one of many watchers has its event.
fn fan_out(server: &portolan_serve::RunningServer, name: &str, accept: &str) {
    let path = format!("/api/v1/services?watch=1&resourceVersion={}", server.store().revision());
    let mut watchers: Vec<TcpStream> = (0..WATCHERS)
        .map(|_| {
            let mut stream = TcpStream::connect(server.local_addr()).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n").unwrap();
            let mut head = [0; 4096];
            assert!(stream.read(&mut head).unwrap() > 0);
            stream
        })
        .collect();
    let mut buffer = vec![0; 64 << 10];
    let mut times: Vec<(Duration, Duration)> = (0..20)
        .map(|round| {
            let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "service-1"},
                "spec": {"selector": {"round": format!("{name}{round}")}, "ports": [{"port": 80}]}});
            let start = Instant::now();
            server.api().blocking().apply(service).unwrap();
            let written = start.elapsed();
            for watcher in &mut watchers {
                assert!(watcher.read(&mut buffer).unwrap() > 0);
            }
            (start.elapsed(), written)
        })
        .collect();
    times.sort();
    let (median, max) = (times[times.len() / 2], times[times.len() - 1]);
    println!("one change to {WATCHERS} watchers in {name}, write included: median {median:?}, max {max:?}");
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
