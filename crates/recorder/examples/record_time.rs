//! Measures a record of an object with 10 endpoints, of a change and of a commit, and how many fit. Run it with `--release`.

use std::time::{Duration, Instant};

use portolan_recorder::{Change, Commit, Entry, ObjectEvent, Recorder, Size};

const ROUNDS: u32 = 300_000;
const LIMIT: usize = 4 << 20;

fn main() {
    let endpoints: Vec<String> = (1..=10).map(|n| format!("10.244.1.{n} local")).collect();
    let object = Entry::Object(ObjectEvent {
        kind: "EndpointSlice".into(),
        namespace: "shop".into(),
        name: "web-x7k2p".into(),
        resource_version: "123456".into(),
        changed: true,
        kept: format!("of web; IPv4; ports http=8080/TCP; 10 endpoints: {}", endpoints.join(", ")),
        ..ObjectEvent::default()
    });
    let size = Some(Size { frontends: 2, cluster: 10, local: 10 });
    let change = Entry::Change(Change {
        family: "IPv4".into(),
        service_port: "shop/web:http".into(),
        protocol: "TCP".into(),
        before: size,
        after: size,
        difference: "+10.244.1.11:8080, -10.244.1.10:8080".into(),
    });
    let commit = Entry::Commit(Commit {
        family: "IPv4".into(),
        mode: "nftables".into(),
        step: "commit".into(),
        changed: 1,
        service_ports: vec!["shop/web:http".into()],
        elements: 2,
        bytes: 312,
        duration_us: 100,
        kernel_us: 4,
        ..Commit::default()
    });
    let recorder = Recorder::new(LIMIT);
    let started = Instant::now();
    for second in 0..u64::from(ROUNDS) {
        for entry in [&object, &change, &commit] {
            recorder.record(Duration::from_secs(second), || entry.clone());
        }
    }
    let each = started.elapsed().as_nanos() / u128::from(ROUNDS);
    let started = Instant::now();
    let history = recorder.history();
    let copied = started.elapsed();
    let count = history.records().count() / 3;
    println!("{each} ns to record a change of an EndpointSlice: object, change and commit");
    println!("{count} of them fit into {LIMIT} bytes; {} bytes each", history.bytes() / count.max(1));
    println!("{copied:?} to copy the history under the lock");
}
