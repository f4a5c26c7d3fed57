//! Many clients write the same Services at random while processes are killed and watchers follow. Afterwards the test
//! checks the invariants of everything that was acknowledged, was seen and exists at the end.
//!
//! - [`actor`]: the clients that write, and the log of the responses
//! - [`specs`]: the Services that they write, from ranges so small that they collide
//! - [`watcher`]: the clients that watch
//! - [`judge`], [`replay`]: the invariants
//!
//! `PORTOLAN_SEED` repeats the same choices (not the same order of events), `PORTOLAN_MODEL_SECONDS` sets the length
//! of each run.

mod actor;
mod judge;
mod replay;
mod specs;
mod watcher;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portolan_testkit::HttpClient;
use serde_json::{Value, json};

use self::actor::Write;
use self::watcher::History;
use crate::site::{Backing, PATIENCE, Site};

pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
/// The name of the last write of a run. A watcher that has seen it has seen everything.
pub(crate) const LAST: &str = "the-last";
const WRITERS: u64 = 8;
const ARGUMENTS: [&str; 6] = [
    "--service-cluster-ip-range",
    "10.96.0.0/24,fd00:96::/120",
    "--service-node-port-range",
    "30000-30127",
    // More addresses than Services: the server never writes a Service by itself.
    "--load-balancer-ip-range",
    "192.0.2.0/25,2001:db8::/121",
];

/// The state that the clients of one run share.
pub(crate) struct Run {
    pub(crate) site: Site,
    pub(crate) seed: u64,
    /// Set when no more writes are to start.
    is_over: AtomicBool,
    /// When each server began to respond. `None` while it restarts.
    up_since: Mutex<Vec<Option<Instant>>>,
    pub(crate) log: Log,
}

/// The responses to the writers.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) writes: Mutex<Vec<Write>>,
    /// The highest acknowledged revision.
    pub(crate) highest: AtomicU64,
    /// The highest acknowledged revision of each object, and whether it was a deletion.
    pub(crate) by_key: Mutex<HashMap<String, (u64, bool)>>,
    /// Number of each response.
    pub(crate) answers: Mutex<HashMap<String, u64>>,
    /// Reads that did not show what had been acknowledged before they began.
    pub(crate) stale: Mutex<Vec<String>>,
}

impl Run {
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Returns when a server began to respond, or `None` while it restarts.
    pub(crate) fn up_since(&self, index: usize) -> Option<Instant> {
        self.up_since.lock().unwrap()[index]
    }

    pub(crate) fn rng(&self, role: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(role))
    }
}

#[test]
fn on_the_embedded_store_nothing_is_lost_or_given_twice_whenever_the_server_dies() {
    run(Backing::File, seconds(8));
}

#[test]
fn on_etcd_nothing_is_lost_or_given_twice_whichever_process_dies() {
    run(Backing::Etcd(3), seconds(10));
}

fn seconds(default: u64) -> Duration {
    let given = std::env::var("PORTOLAN_MODEL_SECONDS").ok().map(|text| text.parse().unwrap());
    Duration::from_secs(given.unwrap_or(default))
}

fn run(backing: Backing, length: Duration) {
    let Some(site) = Site::start(backing, &ARGUMENTS) else { return };
    let seed =
        std::env::var("PORTOLAN_SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("PORTOLAN_SEED={seed} on {backing:?} for {length:?}");
    let count = site.addresses().len();
    let up_since = Mutex::new(vec![Some(Instant::now()); count]);
    let run = Arc::new(Run { site, seed, is_over: AtomicBool::new(false), up_since, log: Log::default() });
    specs::make_namespaces(&run);

    let watchers = watchers(&run);
    let writers: Vec<_> =
        (0..WRITERS).map(|number| spawn(&run, move |run| actor::write(run, number))).collect();
    let lister = spawn(&run, watcher::list_again_and_again);
    let begin = Instant::now();
    let crashes = crash_until(&run, begin + length);
    run.is_over.store(true, Ordering::SeqCst);
    writers.into_iter().for_each(join);
    let lists = join(lister);
    // What was killed last may be etcd. Each server then needs a while to follow it again.
    (0..count).for_each(|index| run.site.wait_for(index));
    actor::last_write(&run);
    let histories: Vec<History> = watchers.into_iter().map(join).collect();

    println!("{crashes} crashes");
    for (answer, count) in sorted(&run.log.answers.lock().unwrap()) {
        println!("{count:6} {answer}");
    }
    let after = After::read(&run);
    judge::judge(&run, &histories, &lists, &after);
    judge::judge_reuse(&run);
}

/// The objects at the end, as each server lists them.
pub(crate) struct After {
    pub(crate) services: Vec<Value>,
    pub(crate) addresses: Vec<Value>,
}

impl After {
    fn read(run: &Run) -> Self {
        let read = |path: &str| -> Vec<Value> {
            run.site.addresses().into_iter().map(|address| get(run, address, path)).collect()
        };
        Self { services: read(SERVICES), addresses: read(ADDRESSES) }
    }
}

fn watchers(run: &Arc<Run>) -> Vec<thread::JoinHandle<History>> {
    let roles =
        [(SERVICES, true), (SERVICES, false), (SERVICES, false), (ADDRESSES, true), (ADDRESSES, false)];
    let started = roles.into_iter().zip(100..).map(|((path, is_recorder), role)| {
        spawn(run, move |run| watcher::follow(run, path, is_recorder, role))
    });
    started.collect()
}

/// Kills one process after the other until `end`. Returns how many.
fn crash_until(run: &Run, end: Instant) -> usize {
    let mut rng = run.rng(99);
    let mut crashes = 0;
    loop {
        let pause = Duration::from_millis(rng.u64(100..900));
        if Instant::now() + pause > end {
            thread::sleep(end.saturating_duration_since(Instant::now()));
            return crashes;
        }
        thread::sleep(pause);
        let count = run.site.addresses().len();
        let index = rng.usize(..count);
        if run.site.has_etcd() && rng.u8(..3) == 0 {
            run.site.crash_etcd();
        } else {
            run.up_since.lock().unwrap()[index] = None;
            run.site.crash(index);
            run.site.wait_for(index);
            run.up_since.lock().unwrap()[index] = Some(Instant::now());
        }
        crashes += 1;
    }
}

fn spawn<T: Send + 'static>(
    run: &Arc<Run>,
    work: impl FnOnce(&Run) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let shared = Arc::clone(run);
    let thread = run.site.namespace.spawn_thread("client", move || work(&shared)).unwrap();
    thread::spawn(move || match thread.join() {
        Ok(value) => value.unwrap(),
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn join<T>(thread: thread::JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Sends a GET request from outside of the namespace.
pub(crate) fn get(run: &Run, address: SocketAddr, path: &str) -> Value {
    request(run, address, "GET", path, &json!(null)).1
}

/// Sends any request from outside of the namespace.
pub(crate) fn request(
    run: &Run,
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = run.site.namespace.run(|| {
        HttpClient::new(address, PATIENCE).request(
            method,
            path,
            &[("content-type", "application/json")],
            body.as_bytes(),
        )
    });
    let answer = answer.unwrap().unwrap();
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

pub(crate) fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

pub(crate) fn key(object: &Value) -> String {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}

fn sorted(answers: &HashMap<String, u64>) -> Vec<(&String, &u64)> {
    let mut all: Vec<_> = answers.iter().collect();
    all.sort();
    all
}
