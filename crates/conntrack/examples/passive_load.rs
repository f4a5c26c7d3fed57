//! Measures what passive health checks cost: the processor time of connections through a translated address, with and without
//! the thread that observes them, in rounds that alternate. Needs root.
//!
//! `cargo run --release -p portolan-conntrack --example passive_load`
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement stops at the first surprise")]

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use portolan_conntrack::passive::PassiveThread;
use portolan_testkit::Namespace;

const CONNECTIONS: u32 = 4_000;
const ROUNDS: usize = 9;
const FRONTEND: &str = "10.96.0.1:80";
const ENDPOINT: &str = "192.0.2.1:8080";
const SET_UP: &str = "link set lo up\naddr add 192.0.2.1/24 dev lo\nroute add local 10.0.0.0/8 dev lo\n";
const RULES: &str = "table ip load {
    chain translate {
        type nat hook output priority -100
        ip daddr 10.96.0.1 tcp dport 80 dnat to 192.0.2.1:8080
    }
}
";

fn main() {
    let namespace = Namespace::new("passive").expect("this needs root");
    namespace.ip(SET_UP).unwrap();
    namespace.output_with_input("nft", &["-f", "-"], RULES).unwrap();
    let rounds = namespace.run(measure).unwrap();
    let median = |pick: fn(&Round) -> Duration| {
        let mut all: Vec<Duration> = rounds.iter().map(pick).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default() / CONNECTIONS
    };
    println!(
        "processor time of a connection, client, server and kernel, median of {ROUNDS} rounds of {CONNECTIONS}:"
    );
    println!("  not observed          {:?}", median(|round| round.without));
    println!("  observed              {:?}", median(|round| round.with));
    println!("  thereof the observer  {:?}", median(|round| round.observer));
}

struct Round {
    without: Duration,
    with: Duration,
    observer: Duration,
}

fn measure() -> Vec<Round> {
    let endpoint: SocketAddr = ENDPOINT.parse().unwrap();
    let listener = TcpListener::bind(endpoint).unwrap();
    // The first round is slower: the kernel's tables grow.
    connect(&listener);
    let round = |_| {
        let without = connect(&listener);
        let observer = PassiveThread::spawn(|_| {}).unwrap();
        let beside_it = connect(&listener);
        let own = time_of("passive");
        drop(observer);
        Round { without, with: beside_it + own, observer: own }
    };
    (0..ROUNDS).map(round).collect()
}

/// Opens and closes connections. Returns the processor time of this thread.
fn connect(listener: &TcpListener) -> Duration {
    let frontend: SocketAddr = FRONTEND.parse().unwrap();
    let before = time_of_file("/proc/thread-self/schedstat");
    for _ in 0..CONNECTIONS {
        let client = TcpStream::connect(frontend).unwrap();
        let (server, _) = listener.accept().unwrap();
        // With a reset, no socket keeps its port for a minute.
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        drop(server);
    }
    time_of_file("/proc/thread-self/schedstat").saturating_sub(before)
}

/// Returns the processor time of the thread with a name.
fn time_of(name: &str) -> Duration {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_it = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let mut found = tasks.filter(is_it);
    found.next().map_or(Duration::ZERO, |task| time_of_file(task.join("schedstat").to_str().unwrap()))
}

fn time_of_file(path: &str) -> Duration {
    let text = fs::read_to_string(path).unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}
