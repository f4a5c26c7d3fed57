//! Measures creates of Services with allocation, through the write path, from one thread and from eight, over the store
//! in memory and the one in a file.
//!
//! `cargo run --release -p portolan-serve --example creates`
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "an example stops at the first surprise"
)]

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use portolan_schema::json::json;
use portolan_serve::{Api, ApiConfig, Resource, Store, WriteOptions};
use portolan_store::{DurableStore, History, MemoryStore};

const SERVICES: usize = 20_000;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
    let headless = json!({"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    let memory = || Arc::new(MemoryStore::new(History::default())) as Arc<dyn Store>;
    for (what, spec) in [("cluster IP", &spec), ("headless", &headless)] {
        let time = creates(memory(), 1, SERVICES, spec);
        report(&format!("in memory, 1 thread, {what}"), SERVICES, time);
    }
    report("in memory, 8 threads, cluster IP", SERVICES, creates(memory(), 8, SERVICES, &spec));
    for threads in [1, 8, 64] {
        let dir = folder.path().join(threads.to_string());
        let store = Arc::new(DurableStore::open(&dir, History::default()).unwrap());
        let number = SERVICES / 10 * threads.min(8);
        report(
            &format!("in a file, {threads} threads, cluster IP"),
            number,
            creates(store, threads, number, &spec),
        );
    }
}

fn report(what: &str, number: usize, time: Duration) {
    let each = time.as_secs_f64() / number as f64;
    println!("{what}: {:.0} a second, {:.1} us each", 1.0 / each, each * 1e6);
}

fn creates(
    store: Arc<dyn Store>,
    threads: usize,
    number: usize,
    spec: &portolan_schema::json::Value,
) -> Duration {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let api = Arc::new(runtime.block_on(Api::open(store, &ApiConfig::default())).unwrap());
    let start = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            let api = &api;
            scope.spawn(move || {
                for index in (thread..number).step_by(threads) {
                    let object = json!({"metadata": {"name": format!("s{index}")}, "spec": spec});
                    let object = object.as_object().unwrap().clone();
                    api.blocking()
                        .create(Resource::Service, "default", object, WriteOptions::default())
                        .unwrap();
                }
            });
        }
    });
    start.elapsed()
}
