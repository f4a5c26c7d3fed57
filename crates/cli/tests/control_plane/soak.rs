//! Days of a cluster's ordinary controllers, as fast as the server answers: leader election with competing clients,
//! Endpoints that are mirrored, rolling EndpointSlices, Events, and watches that begin again. Afterwards every watch has
//! what a list has, no lease had two holders, and the server's memory and file have not grown with the number of writes.
//!
//! The leases are the cluster's clock. A component of a cluster renews its lease every two seconds, so a day has passed
//! when each lease has been renewed 43,200 times. The other clients wait for this clock before each of their writes.
//!
//! `PORTOLAN_SOAK_DAYS` sets the number of days, and `PORTOLAN_SERVER` names another server, such as a release build.

mod election;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_testkit::{HttpClient, eventually};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::site::{Backing, PATIENCE, Site};
use election::{Candidate, Term, one_leader_at_a_time};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
/// Days of the cluster, unless `PORTOLAN_SOAK_DAYS` sets them.
const DAYS: f64 = 0.01;
const DAY: f64 = 86_400.0;
/// The components that elect a leader, and the candidates for each.
const ELECTIONS: usize = 3;
const CANDIDATES: usize = 2;
/// Seconds between two renewals of a lease in a cluster: `--leader-elect-retry-period` of Kubernetes' components.
const RENEWED_EVERY: u64 = 2;
/// Seconds of the cluster between two changes of the Endpoints that are mirrored, and of the rolling EndpointSlices.
const ENDPOINTS_EVERY: u64 = 30;
/// Seconds of the cluster between two Events.
const EVENT_EVERY: u64 = 10;
/// Seconds of the cluster that pass within [`PATIENCE`] on any machine. So many writes are sent, too.
const STEP: u64 = 600;
/// Services whose endpoints change.
const WORKLOADS: usize = 8;
/// Growth that the histories of watches may cause, of five kinds: up to 65,536 changes and 8 MiB of replaced objects each
/// (docs/storage.md). Nothing else may grow with the number of writes.
const GROWTH: u64 = 5 * (16 << 20);
/// Growth that the histories may cause with each write, until they are full: four times what is measured.
const GROWTH_OF_A_WRITE: u64 = 6 << 10;
/// Growth that has nothing to do with the number of writes, such as memory that the allocator keeps.
const GROWTH_OF_A_PROCESS: u64 = 16 << 20;

#[test]
fn the_ordinary_controllers_leave_nothing_behind() {
    let days = std::env::var("PORTOLAN_SOAK_DAYS").map_or(DAYS, |text| text.parse().unwrap());
    let site = Arc::new(Site::start(Backing::File, &["--event-ttl", "5s"]).unwrap());
    let soak = Soak::new(Arc::clone(&site), Duration::from_secs_f64(days * DAY).as_secs());
    let _failure = Failure(&soak);
    soak.prepare();

    let begin = Instant::now();
    let elections: Vec<_> = (0..ELECTIONS * CANDIDATES)
        .map(|number| {
            let (lease, own) = (number / CANDIDATES, number % CANDIDATES);
            soak.spawn(move |soak| Candidate::new(soak, lease, own).stand())
        })
        .collect();
    let workers = [
        soak.spawn(|soak| soak.move_endpoints("mirrored", ENDPOINTS, endpoints)),
        soak.spawn(|soak| soak.move_endpoints("rolling", SLICES, slice)),
        soak.spawn(Soak::record_events),
    ];
    let watches: Vec<_> =
        [LEASES, SLICES, ENDPOINTS].map(|path| (path, soak.spawn(move |soak| soak.follow(path)))).into();

    let file = site.folder().join("data");
    let measured = || {
        let writes = soak.writes.load(Ordering::SeqCst);
        (writes, site.server(0).resident().unwrap(), bytes_below(&file))
    };
    soak.wait_for_writes(soak.fewest_writes() / 3);
    let (before, memory, disk) = measured();
    soak.wait_until(soak.length);
    let terms: Vec<Term> = elections.into_iter().flat_map(join).collect();
    workers.into_iter().for_each(join);
    let took = begin.elapsed();

    one_leader_at_a_time(&terms);
    soak.mirrors_are_right();
    soak.quiet.store(true, Ordering::SeqCst);
    for (path, watch) in watches {
        let (seen, now) = (join(watch), soak.list(path));
        assert_eq!(seen, now, "{path}");
    }
    let late = measured();
    let lost = terms.iter().filter(|term| term.is_lost).count();
    println!(
        "{days} days of a cluster in {took:?}: {} writes, at least {} renewals of each lease, {} terms, {lost} of them lost; memory {memory} -> {}, file {disk} -> {} with {} writes",
        late.0,
        soak.now() / RENEWED_EVERY,
        terms.len(),
        late.1,
        late.2,
        late.0 - before
    );
    assert!(lost > 0, "a holder hung, and no lease was lost");
    let growth = GROWTH.min(GROWTH_OF_A_PROCESS + (late.0 - before) * GROWTH_OF_A_WRITE);
    assert!(
        late.1 <= memory + growth && late.2 <= disk + growth,
        "{memory} {disk} and {growth}, but {late:?}"
    );
}

/// The state that all clients share.
#[derive(Clone)]
struct Soak {
    site: Arc<Site>,
    /// Seconds of the cluster.
    length: u64,
    /// Renewals of each lease so far.
    renewals: Arc<[AtomicU64; ELECTIONS]>,
    writes: Arc<AtomicU64>,
    /// Nothing is written any more, and the server's own controllers have followed.
    quiet: Arc<AtomicBool>,
    /// A thread of the test has failed. The others end.
    failed: Arc<AtomicBool>,
}

/// Ends the threads if the current one fails.
struct Failure<'a>(&'a Soak);

/// What the clients read of an object.
#[derive(Debug, Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

/// What the clients read of the metadata of objects, lists and bookmarks. That of an error has neither.
#[derive(Debug, Deserialize)]
struct Metadata<'a> {
    #[serde(default)]
    name: &'a str,
    #[serde(default, rename = "resourceVersion")]
    resource_version: &'a str,
}

#[derive(Debug, Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
    #[serde(borrow)]
    items: Vec<Object<'a>>,
}

#[derive(Debug, Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: Object<'a>,
}

impl Soak {
    fn new(site: Arc<Site>, length: u64) -> Self {
        Self {
            site,
            length,
            renewals: Arc::default(),
            writes: Arc::default(),
            quiet: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// Returns the time of the cluster in seconds: that of the lease with the fewest renewals.
    fn now(&self) -> u64 {
        let renewals = self.renewals.iter().map(|count| count.load(Ordering::SeqCst));
        RENEWED_EVERY * renewals.min().unwrap()
    }

    /// Waits until the cluster's clock shows this time. Fails if the clock stands still.
    fn wait_until(&self, seconds: u64) {
        self.wait("the time of the cluster", seconds, Self::now);
    }

    /// Waits until this many writes were sent. Fails if none is sent any more.
    fn wait_for_writes(&self, writes: u64) {
        self.wait("writes", writes, |soak| soak.writes.load(Ordering::SeqCst));
    }

    /// Waits until a value is this high. Fails if it stands still.
    fn wait(&self, what: &str, target: u64, value: impl Fn(&Self) -> u64) {
        while value(self) < target && !self.has_failed() {
            let next = target.min(value(self) + STEP);
            let came = eventually(PATIENCE, what, || value(self) >= next || self.has_failed());
            came.unwrap();
        }
    }

    /// Calls `work` each time that so many seconds of the cluster have passed.
    fn every(&self, period: u64, mut work: impl FnMut(u64)) {
        for number in 1..=self.length / period {
            self.wait_until(number * period);
            if self.has_failed() {
                return;
            }
            work(number);
        }
    }

    /// Returns the renewals that each lease gets.
    fn target(&self) -> u64 {
        self.length.div_ceil(RENEWED_EVERY)
    }

    /// Returns the number of writes that the renewals alone take.
    fn fewest_writes(&self) -> u64 {
        self.target() * ELECTIONS as u64
    }

    /// Returns true if the lease has been renewed often enough.
    fn is_done(&self, lease: usize) -> bool {
        self.renewals[lease].load(Ordering::SeqCst) >= self.target() || self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    fn client(&self) -> HttpClient {
        HttpClient::new(self.address(), PATIENCE)
    }

    fn address(&self) -> SocketAddr {
        self.site.addresses()[0]
    }

    fn spawn<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> T + Send + 'static) -> JoinHandle<T> {
        let shared = self.clone();
        let work = move || {
            let _failure = Failure(&shared);
            work(&shared)
        };
        let thread = self.site.namespace.spawn_thread("client", work).unwrap();
        std::thread::spawn(move || {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).unwrap()
        })
    }

    /// Runs requests in the namespace of the server.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.site.namespace.run(work).unwrap()
    }

    /// Sends a write. Returns the object's version, or the refusal's status.
    fn write(&self, client: &mut HttpClient, method: &str, path: &str, body: &str) -> Result<u64, u16> {
        let json = [("content-type", "application/json")];
        let answer = client.request(method, path, &json, body.as_bytes()).unwrap();
        self.writes.fetch_add(1, Ordering::SeqCst);
        if answer.status < 300 { Ok(version(&answer.body)) } else { Err(answer.status) }
    }

    fn prepare(&self) {
        let mut client = self.client();
        self.inside(|| {
            let mut create = |path: &str, object: &Value| {
                self.write(&mut client, "POST", path, &object.to_string())
            };
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}});
            let made = create("/api/v1/namespaces", &namespace);
            assert!(matches!(made, Ok(_) | Err(409)), "{made:?}");
            for lease in 0..ELECTIONS {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": election::name_of(lease)}, "spec": {"leaseDurationSeconds": 15}});
                create(LEASES, &lease).unwrap();
            }
            for workload in 0..WORKLOADS {
                for kind in ["mirrored", "rolling"] {
                    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("{kind}-{workload}")},
                        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
                    create(SERVICES, &service).unwrap();
                }
            }
        });
    }

    /// Gives the Services of a kind other endpoints, one after the other.
    fn move_endpoints(&self, kind: &str, path: &str, object: fn(&str, &[u8]) -> Value) {
        let (mut client, mut rng) = (self.client(), fastrand::Rng::new());
        self.every(ENDPOINTS_EVERY, |number| {
            // On a slow machine, the server has closed a connection that was idle until now.
            client.close();
            let name = format!("{kind}-{}", rng.usize(..WORKLOADS));
            // Each change differs from the one before.
            let before = u8::try_from(number % 240).unwrap();
            let addresses: Vec<u8> = (1..=rng.u8(1..9)).map(|last| before + last).collect();
            let object = object(&name, &addresses).to_string();
            let put = self.write(&mut client, "PUT", &format!("{path}/{name}"), &object);
            let written = if put == Err(404) { self.write(&mut client, "POST", path, &object) } else { put };
            written.unwrap();
        });
    }

    fn record_events(&self) {
        let mut client = self.client();
        self.every(EVENT_EVERY, |number| {
            client.close();
            let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
                "metadata": {"name": format!("event-{number}")}, "eventTime": "2026-01-02T03:04:05.000000Z",
                "reportingController": "example.com/soak", "reportingInstance": "one", "action": "Write", "reason": "Soak",
                "regarding": {"kind": "Service", "namespace": "default", "name": "rolling-0"}, "type": "Normal"});
            self.write(&mut client, "POST", EVENTS, &event.to_string()).unwrap();
        });
    }

    /// Follows a collection as an informer does: a list, and watches that end after a second. Ends once it has what a list
    /// has after the last write. Returns the revision of each object.
    fn follow(&self, path: &str) -> BTreeMap<String, u64> {
        let mut client = self.client();
        let (mut seen, mut from) = listed(&mut client, path);
        loop {
            let target = self.quiet.load(Ordering::SeqCst).then(|| listed(&mut client, path).0);
            if target.as_ref() == Some(&seen) || self.has_failed() {
                return seen;
            }
            let watch =
                format!("{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={from}");
            let mut lines = client.lines(&watch).unwrap();
            assert_eq!(lines.status, 200, "{watch}");
            while let Some(line) = lines.next_line().unwrap() {
                let event: Event<'_> = serde_json::from_slice(&line).unwrap();
                if event.kind == "ERROR" {
                    // The history of the server is bounded. An informer then lists again.
                    let status: Value = serde_json::from_slice(&line).unwrap();
                    assert_eq!(status["object"]["code"], 410, "{status}");
                    (seen, from) = listed(&mut client, path);
                    break;
                }
                let metadata = event.object.metadata;
                let revision = metadata.version();
                assert!(revision >= from, "{revision} after {from}: {}", String::from_utf8_lossy(&line));
                from = revision;
                match event.kind {
                    "BOOKMARK" => {}
                    "DELETED" => {
                        seen.remove(metadata.name);
                    }
                    _ => {
                        seen.insert(metadata.name.to_owned(), revision);
                    }
                }
            }
        }
    }

    fn list(&self, path: &str) -> BTreeMap<String, u64> {
        self.inside(|| listed(&mut self.client(), path).0)
    }

    /// Waits until the slices that mirror Endpoints have their addresses.
    fn mirrors_are_right(&self) {
        let addresses = |list: &Value, of: fn(&Value) -> Vec<Value>| -> BTreeMap<String, Vec<Value>> {
            let items = list["items"].as_array().unwrap().iter();
            items.map(|item| (service_of(item), of(item))).collect()
        };
        let of_endpoints = |item: &Value| {
            item["subsets"][0]["addresses"]
                .as_array()
                .unwrap()
                .iter()
                .map(|address| address["ip"].clone())
                .collect()
        };
        let of_slice = |item: &Value| {
            item["endpoints"]
                .as_array()
                .unwrap()
                .iter()
                .map(|endpoint| endpoint["addresses"][0].clone())
                .collect()
        };
        let mut last = Value::Null;
        let right = eventually(PATIENCE, "mirrored slices", || {
            self.inside(|| {
                let mut client = self.client();
                let mut get = |path: &str| -> Value { serde_json::from_slice(&client.request("GET", path, &[], b"").unwrap().body).unwrap() };
                let mut wanted = addresses(&get(ENDPOINTS), of_endpoints);
                wanted.retain(|name, _| name.starts_with("mirrored-"));
                last = get(&format!("{SLICES}?labelSelector=endpointslice.kubernetes.io/managed-by%3Dendpointslicemirroring-controller.k8s.io"));
                let mut there = addresses(&last, of_slice);
                there.retain(|name, _| name.starts_with("mirrored-"));
                for list in wanted.values_mut().chain(there.values_mut()) {
                    list.sort_by_key(Value::to_string);
                }
                wanted == there
            })
        });
        assert!(right.is_ok(), "{last}");
    }
}

impl Drop for Failure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::SeqCst);
        }
    }
}

impl Metadata<'_> {
    fn version(&self) -> u64 {
        self.resource_version.parse().unwrap()
    }
}

fn endpoints(name: &str, addresses: &[u8]) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|last| json!({"ip": format!("10.1.0.{last}")})).collect();
    json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name},
        "subsets": [{"addresses": addresses, "ports": [{"name": "http", "port": 8080}]}]})
}

fn slice(name: &str, addresses: &[u8]) -> Value {
    let endpoints: Vec<Value> =
        addresses.iter().map(|last| json!({"addresses": [format!("10.2.0.{last}")]})).collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints})
}

/// Returns the version of an object.
fn version(body: &[u8]) -> u64 {
    let object: Object<'_> = serde_json::from_slice(body).unwrap();
    object.metadata.version()
}

/// Returns the revision of each object, and that of the list.
fn listed(client: &mut HttpClient, path: &str) -> (BTreeMap<String, u64>, u64) {
    let answer = client.request("GET", path, &[], b"").unwrap();
    let list: List<'_> = serde_json::from_slice(&answer.body).unwrap();
    let items = list.items.iter().map(|item| &item.metadata);
    (items.map(|item| (item.name.to_owned(), item.version())).collect(), list.metadata.version())
}

/// Returns the name of the Service of a slice, or of Endpoints, which have the name of their Service.
fn service_of(object: &Value) -> String {
    object["metadata"]["labels"]["kubernetes.io/service-name"]
        .as_str()
        .unwrap_or_else(|| object["metadata"]["name"].as_str().unwrap())
        .to_owned()
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                bytes_below(&entry.path())
            } else {
                entry.metadata().map_or(0, |data| data.len())
            }
        })
        .sum()
}

fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
