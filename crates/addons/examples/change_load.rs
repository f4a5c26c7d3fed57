//! Measures how soon a write to the API is answered by the DNS server, with 10,000 Services in the embedded store.
//!
//! `cargo run --release -p portolan-addons --example change_load`. Changes a Service and an EndpointSlice in turns, and asks over
//! UDP until the answer has changed. The time begins when the write returns: the client then knows that the change is stored.
//! Fails if the longest time misses its bar. The second line of times is that of the writes, which wait for the disk.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a measurement stops at the first surprise"
)]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use portolan_addons::{Addons, AddonsConfig, NamesConfig};
use portolan_api::{Api, ApiConfig};
use portolan_schema::json::{Value, json};
use portolan_store::{DurableStore, History};
use portolan_testkit::eventually;
use portolan_web::metrics::Sources;
use tokio::sync::watch;
use tokio::task::JoinSet;

const SERVICES: u16 = 10_000;
/// Threads that create the Services. Their writes share the waits for the disk.
const WRITERS: u16 = 64;
const CHANGES: u16 = 200;
/// The bar of SPECIFICATION.md.
const LONGEST: Duration = Duration::from_millis(10);
/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is changed, and how the change is seen.
struct Changed {
    label: &'static str,
    name: &'static str,
    kind: RecordType,
    /// Returns the object, and the record that is the answer after it is stored.
    object: fn(u16) -> (Value, String),
}

const CHANGED: [Changed; 2] = [
    Changed {
        label: "a Service",
        name: "_http._tcp.service-7.default.svc.cluster.local.",
        kind: RecordType::SRV,
        object: |number| {
            let port = 1000 + number;
            (service(7, port), format!("0 100 {port} service-7.default.svc.cluster.local."))
        },
    },
    Changed {
        label: "an EndpointSlice",
        name: "db.default.svc.cluster.local.",
        kind: RecordType::A,
        object: |number| {
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + u32::from(number) + 1);
            (slice(address), address.to_string())
        },
    },
];

fn main() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = DurableStore::open(folder.path(), History::default()).unwrap();
    let api = Arc::new(runtime.block_on(Api::open(Arc::new(store), &ApiConfig::default())).unwrap());
    create(&api);

    let names = NamesConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        domain: "cluster.local".to_owned(),
        forward: None,
        service: true,
    };
    let addons = Addons::prepare(&AddonsConfig { names: Some(names), health_checks: None }).unwrap();
    let address = addons.dns_endpoints()[0];
    let (stop, stopping) = watch::channel(false);
    let (mut tasks, metrics, loaded) = (JoinSet::new(), Sources::default(), watch::channel(true).1);
    let start = async { addons.start(&api, loaded, &stopping, &mut tasks, &metrics) };
    let readiness = runtime.block_on(start).unwrap().unwrap();
    eventually(PATIENCE, "all names", || readiness.check().is_ok()).unwrap();

    let mut is_met = true;
    for changed in &CHANGED {
        let (writes, answers) = measure(&api, address, changed);
        let longest = answers[answers.len() - 1];
        is_met &= longest <= LONGEST;
        let word = if longest <= LONGEST { "pass" } else { "FAIL" };
        let (label, median) = (changed.label, answers[answers.len() / 2]);
        println!(
            "{word}  a change of {label} is answered after {median:?} (median), {longest:?} (longest of {CHANGES}; bar: \
             {LONGEST:?})"
        );
        let (median, longest) = (writes[writes.len() / 2], writes[writes.len() - 1]);
        println!("      the write before it takes {median:?} (median), {longest:?} (longest)");
    }
    stop.send_replace(true);
    runtime.block_on(async { while tasks.join_next().await.is_some() {} });
    ExitCode::from(u8::from(!is_met))
}

/// Creates the Services and the EndpointSlice.
fn create(api: &Api) {
    let start = Instant::now();
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            scope.spawn(move || {
                for number in (writer..SERVICES).step_by(usize::from(WRITERS)) {
                    api.blocking().apply(service(number, 80)).unwrap();
                }
            });
        }
    });
    let headless = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
        "spec": {"clusterIP": "None", "ports": [{"port": 5432}]}});
    api.blocking().apply(headless).unwrap();
    api.blocking().apply(slice(Ipv4Addr::new(10, 1, 0, 0))).unwrap();
    println!("{SERVICES} Services are stored in {:?}", start.elapsed());
}

fn service(number: u16, port: u16) -> Value {
    let cluster_ip = Ipv4Addr::from_bits(Ipv4Addr::new(10, 97, 0, 0).to_bits() + u32::from(number));
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("service-{number}")},
        "spec": {"clusterIP": cluster_ip.to_string(), "ports": [{"name": "http", "port": port}]}})
}

fn slice(address: Ipv4Addr) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
        "endpoints": [{"addresses": [address.to_string()]}], "ports": [{"port": 5432}]})
}

/// Changes an object again and again. Returns how long the writes take, and how long it takes after each write until the answer
/// has changed; both sorted.
fn measure(api: &Api, address: SocketAddr, changed: &Changed) -> (Vec<Duration>, Vec<Duration>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut message = Message::new(1, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(changed.name).unwrap(), changed.kind));
    let request = message.to_vec().unwrap();
    let answer = || {
        let mut bytes = [0; 1500];
        socket.send(&request).unwrap();
        let length = socket.recv(&mut bytes).unwrap();
        let answer = Message::from_vec(&bytes[..length]).unwrap();
        answer.answers.first().map(|record| record.data.to_string())
    };
    let one = |number: u16| {
        let (object, expected) = (changed.object)(number);
        let begun = Instant::now();
        api.blocking().apply(object).unwrap();
        let stored = Instant::now();
        while answer().as_ref() != Some(&expected) {
            assert!(stored.elapsed() < PATIENCE, "the answer does not become {expected}");
        }
        (stored - begun, stored.elapsed())
    };
    let (mut writes, mut answers): (Vec<_>, Vec<_>) = (0..CHANGES).map(one).unzip();
    writes.sort_unstable();
    answers.sort_unstable();
    (writes, answers)
}
