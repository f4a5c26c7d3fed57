//! The ordinary controllers of a cluster, as fast as the server answers: leader election with competing clients, Endpoints
//! that are mirrored, rolling EndpointSlices, Events, and watches that begin again. Afterwards every watch has what a list
//! has, no lease had two holders, and the server's memory and file have not grown with the number of writes.
//!
//! `PORTOLAN_SOAK_SECONDS` sets the length, and `PORTOLAN_SERVER` names another server, such as a release build. A
//! component of a cluster renews its lease every two seconds. The test counts the renewals of each lease, and prints how many
//! days of a cluster the lease with the fewest renewals has seen.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_testkit::{HttpAnswer, HttpClient, eventually};
use serde_json::{Value, json};

use crate::site::{Backing, PATIENCE, Site};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
/// The components that elect a leader, and the candidates for each.
const ELECTIONS: usize = 3;
const CANDIDATES: usize = 2;
/// Seconds between two renewals of a lease in a cluster: `--leader-elect-retry-period` of Kubernetes' components.
const RENEWED_EVERY: u64 = 2;
/// Renewals after which a holder gives up its lease at the latest.
const MOST_RENEWALS: usize = 200;
/// Time after which a candidate looks again whether the lease has a holder.
const LOOKS_AGAIN: Duration = Duration::from_millis(5);
/// Services whose endpoints change.
const WORKLOADS: usize = 8;
/// Growth that the histories of watches may cause, of five kinds: up to 65,536 changes and 8 MiB of replaced objects each
/// (docs/storage.md). Nothing else may grow with the number of writes.
const GROWTH: u64 = 5 * (16 << 20);

#[test]
fn the_ordinary_controllers_leave_nothing_behind() {
    let seconds = std::env::var("PORTOLAN_SOAK_SECONDS").ok().map(|text| text.parse().unwrap());
    let length = Duration::from_secs(seconds.unwrap_or(12));
    let site = Arc::new(Site::start(Backing::File, &["--event-ttl", "5s"]).unwrap());
    let soak =
        Soak { site: Arc::clone(&site), over: Arc::default(), quiet: Arc::default(), writes: Arc::default() };
    soak.prepare();

    let elections: Vec<_> = (0..ELECTIONS * CANDIDATES)
        .map(|number| {
            soak.spawn(move |soak| soak.stand_for_election(number / CANDIDATES, number % CANDIDATES))
        })
        .collect();
    let workers = [
        soak.spawn(|soak| soak.move_endpoints("mirrored", ENDPOINTS, endpoints)),
        soak.spawn(|soak| soak.move_endpoints("rolling", SLICES, slice)),
        soak.spawn(Soak::record_events),
    ];
    let watches: Vec<_> =
        [LEASES, SLICES, ENDPOINTS].map(|path| (path, soak.spawn(move |soak| soak.follow(path)))).into();

    let begin = Instant::now();
    let file = site.folder().join("data");
    let mut early = None;
    while begin.elapsed() < length {
        std::thread::sleep(Duration::from_millis(200));
        if begin.elapsed() > length / 3 && early.is_none() {
            early = Some((site.server(0).resident().unwrap(), bytes_below(&file)));
        }
    }
    soak.over.store(true, Ordering::SeqCst);
    let terms: Vec<Vec<Term>> = elections.into_iter().map(join).collect();
    workers.into_iter().for_each(join);
    let quiet = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        one_leader_at_a_time(&terms);
        soak.mirrors_are_right();
    }));
    // The threads that follow end, also after a failure.
    soak.quiet.store(true, Ordering::SeqCst);
    quiet.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    for (path, watch) in watches {
        let (seen, now) = (join(watch), soak.list(path));
        assert_eq!(seen, now, "{path}");
    }
    let (memory, disk) = early.unwrap();
    let late = (site.server(0).resident().unwrap(), bytes_below(&file));
    let fewest = renewals_of_each(&terms).into_iter().min().unwrap();
    println!(
        "{} writes in {length:?}: memory {memory} -> {}, file {disk} -> {}; at least {fewest} renewals of each lease, as in {:.2} days",
        soak.writes.load(Ordering::SeqCst),
        late.0,
        late.1,
        days(fewest)
    );
    assert!(late.0 <= memory + GROWTH && late.1 <= disk + GROWTH, "{memory} {disk} {late:?}");
}

/// The state that all clients share.
#[derive(Clone)]
struct Soak {
    site: Arc<Site>,
    over: Arc<AtomicBool>,
    /// Nothing is written any more, and the server's own controllers have followed.
    quiet: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
}

/// Time during which a client held a lease, by the lease's revisions: from the write that took it to the last renewal.
#[derive(Debug, Clone)]
struct Term {
    lease: usize,
    holder: usize,
    first: u64,
    last: u64,
    /// Writes that renewed the lease, without the one that took it.
    renewals: u64,
}

impl Soak {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn client(&self) -> HttpClient {
        HttpClient::new(self.address(), PATIENCE)
    }

    fn address(&self) -> SocketAddr {
        self.site.addresses()[0]
    }

    fn spawn<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> T + Send + 'static) -> JoinHandle<T> {
        let shared = self.clone();
        let thread = self.site.namespace.spawn_thread("client", move || work(&shared)).unwrap();
        std::thread::spawn(move || {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).unwrap()
        })
    }

    /// Runs requests in the namespace of the server.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.site.namespace.run(work).unwrap()
    }

    /// Sends a write. Returns the object, or the refusal's status.
    fn write(&self, client: &mut HttpClient, method: &str, path: &str, body: &Value) -> Result<Value, u16> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let answer = client.request(method, path, &[("content-type", kind)], body.to_string().as_bytes());
        let answer: HttpAnswer = answer.unwrap();
        self.writes.fetch_add(1, Ordering::SeqCst);
        if answer.status < 300 {
            Ok(serde_json::from_slice(&answer.body).unwrap())
        } else {
            Err(answer.status)
        }
    }

    fn prepare(&self) {
        let mut client = self.client();
        self.inside(|| {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}});
            let made = self.write(&mut client, "POST", "/api/v1/namespaces", &namespace);
            assert!(matches!(made, Ok(_) | Err(409)), "{made:?}");
            for lease in 0..ELECTIONS {
                let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                    "metadata": {"name": name_of_lease(lease)}, "spec": {"leaseDurationSeconds": 15}});
                self.write(&mut client, "POST", LEASES, &lease).unwrap();
            }
            for workload in 0..WORKLOADS {
                for kind in ["mirrored", "rolling"] {
                    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("{kind}-{workload}")},
                        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
                    self.write(&mut client, "POST", SERVICES, &service).unwrap();
                }
            }
        });
    }

    /// Takes the lease if it has no holder, renews it some times, and gives it up, as a component does that ends.
    fn stand_for_election(&self, lease: usize, own: usize) -> Vec<Term> {
        let (mut client, mut terms, mut rng) = (self.client(), Vec::new(), fastrand::Rng::new());
        let path = format!("{LEASES}/{}", name_of_lease(lease));
        while !self.is_over() {
            let mut object: Value =
                serde_json::from_slice(&client.request("GET", &path, &[], b"").unwrap().body).unwrap();
            if !object["spec"]["holderIdentity"].is_null() {
                std::thread::sleep(LOOKS_AGAIN);
                continue;
            }
            let mut term: Option<Term> = None;
            for _ in 0..rng.usize(1..=MOST_RENEWALS) {
                let spec = &mut object["spec"];
                spec["holderIdentity"] = json!(format!("candidate-{own}"));
                spec["renewTime"] = json!("2026-01-02T03:04:05.000000Z");
                // An update names the revision that it is based on. A candidate that was late gets a conflict.
                match self.write(&mut client, "PUT", &path, &object) {
                    Ok(stored) => object = stored,
                    Err(status) => {
                        assert!(status == 409 && term.is_none(), "{status} for {term:?}");
                        break;
                    }
                }
                let revision = revision(&object);
                let (first, renewals) =
                    term.as_ref().map_or((revision, 0), |term| (term.first, term.renewals + 1));
                term = Some(Term { lease, holder: own, first, last: revision, renewals });
            }
            if let Some(term) = term {
                object["spec"].as_object_mut().unwrap().remove("holderIdentity");
                self.write(&mut client, "PUT", &path, &object).unwrap();
                terms.push(term);
            }
        }
        terms
    }

    /// Gives the Services of a kind other endpoints, again and again.
    fn move_endpoints(&self, kind: &str, path: &str, object: fn(&str, &[u8]) -> Value) {
        let (mut client, mut rng) = (self.client(), fastrand::Rng::new());
        while !self.is_over() {
            let name = format!("{kind}-{}", rng.usize(..WORKLOADS));
            let addresses: Vec<u8> = (1..=rng.u8(1..9)).collect();
            let object = object(&name, &addresses);
            if self.write(&mut client, "PUT", &format!("{path}/{name}"), &object) == Err(404) {
                self.write(&mut client, "POST", path, &object).unwrap();
            }
        }
    }

    fn record_events(&self) {
        let mut client = self.client();
        for number in 0_u64.. {
            if self.is_over() {
                return;
            }
            let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
                "metadata": {"name": format!("event-{number}")}, "eventTime": "2026-01-02T03:04:05.000000Z",
                "reportingController": "example.com/soak", "reportingInstance": "one", "action": "Write", "reason": "Soak",
                "regarding": {"kind": "Service", "namespace": "default", "name": "rolling-0"}, "type": "Normal"});
            self.write(&mut client, "POST", EVENTS, &event).unwrap();
        }
    }

    /// Follows a collection as an informer does: a list, and watches that end after a second. Ends once it has what a list
    /// has after the last write. Returns the revision of each object.
    fn follow(&self, path: &str) -> BTreeMap<String, u64> {
        let mut client = self.client();
        let (mut seen, mut from) = listed(&mut client, path);
        loop {
            let target = self.quiet.load(Ordering::SeqCst).then(|| listed(&mut client, path).0);
            if target.as_ref() == Some(&seen) {
                return seen;
            }
            let watch =
                format!("{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={from}");
            let mut lines = client.lines(&watch).unwrap();
            assert_eq!(lines.status, 200, "{watch}");
            while let Some(line) = lines.next_line().unwrap() {
                let event: Value = serde_json::from_slice(&line).unwrap();
                let object = &event["object"];
                if event["type"] == "ERROR" {
                    // The history of the server is bounded. An informer then lists again.
                    assert_eq!(object["code"], 410, "{event}");
                    (seen, from) = listed(&mut client, path);
                    break;
                }
                let revision = revision(object);
                assert!(revision >= from, "{revision} after {from}: {event}");
                from = revision;
                match event["type"].as_str().unwrap() {
                    "BOOKMARK" => {}
                    "DELETED" => {
                        seen.remove(name(object));
                    }
                    _ => {
                        seen.insert(name(object).to_owned(), revision);
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

fn name_of_lease(number: usize) -> String {
    format!("component-{number}")
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

/// Returns the revision of each object, and that of the list.
fn listed(client: &mut HttpClient, path: &str) -> (BTreeMap<String, u64>, u64) {
    let answer = client.request("GET", path, &[], b"").unwrap();
    let list: Value = serde_json::from_slice(&answer.body).unwrap();
    let items = list["items"].as_array().unwrap().iter();
    (items.map(|item| (name(item).to_owned(), revision(item))).collect(), revision(&list))
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// Returns the name of the Service of a slice, or of Endpoints, which have the name of their Service.
fn service_of(object: &Value) -> String {
    object["metadata"]["labels"]["kubernetes.io/service-name"]
        .as_str()
        .unwrap_or_else(|| name(object))
        .to_owned()
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// No two terms of a lease overlap.
fn one_leader_at_a_time(terms: &[Vec<Term>]) {
    for lease in 0..ELECTIONS {
        let mut own: Vec<Term> = terms.iter().flatten().filter(|term| term.lease == lease).cloned().collect();
        assert!(!own.is_empty(), "lease {lease} had no holder");
        own.sort_unstable_by_key(|term| term.first);
        for pair in own.windows(2) {
            assert!(
                pair[0].last < pair[1].first,
                "two holders: {pair:?} (candidates {} and {})",
                pair[0].holder,
                pair[1].holder
            );
        }
    }
}

/// Returns the number of renewals of each lease.
fn renewals_of_each(terms: &[Vec<Term>]) -> [u64; ELECTIONS] {
    let mut renewals = [0; ELECTIONS];
    for term in terms.iter().flatten() {
        renewals[term.lease] += term.renewals;
    }
    renewals
}

/// Returns the days in which a component of a cluster renews its lease this often.
fn days(renewals: u64) -> f64 {
    Duration::from_secs(renewals * RENEWED_EVERY).as_secs_f64() / 86_400.0
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
