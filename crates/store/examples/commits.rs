//! Measures how many transactions a store carries out per second. A transaction resembles the creation of a Service:
//! it creates two objects of about 1 KiB each.
//!
//!     cargo run --release -p portolan-store --example commits -- memory
//!     cargo run --release -p portolan-store --example commits -- file DIR
//!     cargo run --release -p portolan-store --example commits -- etcd http://127.0.0.1:2379
//!
//! Without an address, `etcd` is started from `PATH`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    dead_code,
    reason = "an example stops at the first surprise"
)]
#![allow(clippy::cast_precision_loss, reason = "these figures are rounded when they are printed")]

#[path = "../tests/stores/support/etcd.rs"]
mod etcd;

use std::{
    env,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use portolan_schema::Resource;
use portolan_schema::json::json;
use portolan_store::{
    Draft, DurableStore, EtcdOptions, EtcdStore, History, MemoryStore, Step, Store, Transaction,
};

const MEASURE: Duration = Duration::from_secs(5);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut _server = None;
    let began = Instant::now();
    let store: Arc<dyn Store> = match arguments[..] {
        ["memory"] => Arc::new(MemoryStore::new(History::default())),
        ["file", dir] => Arc::new(DurableStore::open(Path::new(dir), History::default()).unwrap()),
        ["etcd", endpoint] => Arc::new(connect(endpoint).await),
        ["etcd"] => {
            let etcd = etcd::Etcd::start().expect("no etcd in PATH");
            let store = connect(&etcd.endpoint()).await;
            _server = Some(etcd);
            Arc::new(store)
        }
        _ => panic!("memory, file DIR, or etcd [ENDPOINT]"),
    };
    let objects: usize = store.metrics().objects.iter().map(|(_, count)| count).sum();
    println!("opened with {objects} objects in {:?}", began.elapsed());
    println!("clients   commits/s   median   99 %   transactions a group   fsync");
    let numbers = Arc::new(AtomicUsize::new(0));
    for clients in [1, 8, 64] {
        measure(&store, clients, &numbers).await;
    }
}

async fn connect(endpoint: &str) -> EtcdStore {
    let prefix = format!("/commits-{}", std::process::id());
    let options = EtcdOptions { endpoints: vec![endpoint.into()], prefix, ..EtcdOptions::default() };
    EtcdStore::connect(options, History::default()).await.unwrap()
}

async fn measure(store: &Arc<dyn Store>, clients: usize, numbers: &Arc<AtomicUsize>) {
    let before = store.metrics();
    let began = Instant::now();
    let tasks = (0..clients).map(|_| {
        let (store, numbers) = (Arc::clone(store), Arc::clone(numbers));
        tokio::spawn(async move {
            let mut times = Vec::new();
            while began.elapsed() < MEASURE {
                let transaction = transaction(numbers.fetch_add(1, Relaxed));
                let sent = Instant::now();
                store.commit(transaction).await.unwrap();
                times.push(sent.elapsed());
            }
            times
        })
    });
    let mut times = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        times.extend(task.await.unwrap());
    }
    let took = began.elapsed().as_secs_f64();
    times.sort_unstable();
    let after = store.metrics();
    let syncs = after.syncs - before.syncs;
    let (group, sync) = if syncs == 0 {
        (0.0, Duration::ZERO)
    } else {
        (
            times.len() as f64 / syncs as f64,
            after.sync_time.saturating_sub(before.sync_time) / u32::try_from(syncs).unwrap(),
        )
    };
    let part = |percent: usize| times[times.len() * percent / 100];
    let rate = times.len() as f64 / took;
    println!("{clients:7}   {rate:9.0}   {:?}   {:?}   {group:.1}   {sync:?}", part(50), part(99));
}

fn transaction(number: usize) -> Transaction {
    let filler = "x".repeat(800);
    let object = |name: String| {
        json!({
            "metadata": {"name": name, "namespace": "default", "annotations": {"filler": filler}},
            "spec": {"clusterIP": format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255)},
        })
    };
    let put = |resource, name| {
        let draft = Draft::new(resource, object(name).as_object().unwrap());
        Step::Put { resource, draft, expected: None }
    };
    Transaction {
        steps: vec![
            put(Resource::Service, format!("service-{number}")),
            put(Resource::EndpointSlice, format!("address-{number}")),
        ],
    }
}
