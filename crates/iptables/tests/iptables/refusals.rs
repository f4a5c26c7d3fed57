//! Tests that clients are refused or served at every moment while the endpoints of a Service go and come.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use portolan_iptables::Variant;
use portolan_model::Change;
use portolan_testkit::{Namespace, eventually};

use super::example::{cluster_ip, put};
use super::load::{ENDPOINTS, data_plane, programs, world};

/// How often the endpoints go and come.
const TURNS: usize = 12;
/// How long a client waits for an answer. No answer takes so long, not even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer than any number of turns takes.
const DEADLINE: Duration = Duration::from_secs(180);
/// Between two attempts of a client. A client must not run out of ports.
const PAUSE: Duration = Duration::from_millis(5);
const TO: &str = "10.96.0.20:80";

/// What a client has met.
#[derive(Debug, Default)]
struct Met {
    served: AtomicUsize,
    refused: AtomicUsize,
    other: Mutex<Vec<String>>,
}

impl Met {
    /// Connects again and again, until it is told to stop or something else happens than a connection or a refusal.
    fn connect(&self, name: &str, stop: &AtomicBool) {
        let to: SocketAddr = TO.parse().unwrap();
        while !stop.load(Ordering::Relaxed) && !self.is_over() {
            match TcpStream::connect_timeout(&to, PATIENCE) {
                Ok(_) => self.served.fetch_add(1, Ordering::Relaxed),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    self.refused.fetch_add(1, Ordering::Relaxed)
                }
                Err(error) => {
                    self.other.lock().unwrap().push(format!("{name}: {error}"));
                    break;
                }
            };
            thread::sleep(PAUSE);
        }
    }

    fn is_over(&self) -> bool {
        !self.other.lock().unwrap().is_empty()
    }
}

fn service(places: &[&str]) -> Change {
    put("turning", "http", cluster_ip("10.96.0.20", 80, places))
}

/// A pod, the outside client and the node itself connect while changes are written, and then while full loads are written.
fn clients_are_refused_or_served(variant: Variant) {
    let world = world();
    let node = world.node().namespace();
    let mut data_plane = data_plane(programs(variant));
    node.run(|| {
        data_plane.apply(&[service(&[])]).unwrap();
        data_plane.resync().unwrap();
    })
    .unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let senders: [(&str, &Namespace); 3] =
        [("pod", world.pods()[0].namespace()), ("client", world.client().namespace()), ("node", node)];
    let clients = senders.map(|(name, namespace)| {
        let (met, stop) = (Arc::new(Met::default()), stop.clone());
        let of_thread = met.clone();
        (met, namespace.spawn_thread(name, move || of_thread.connect(name, &stop)).unwrap())
    });
    let is_over = || clients.iter().any(|(met, _)| met.is_over());
    // Waits until each client has met what there is now. So each turn meets attempts of every client.
    let all_meet = |count: fn(&Met) -> &AtomicUsize| {
        let before = clients.each_ref().map(|(met, _)| count(met).load(Ordering::Relaxed));
        let has_met = || {
            let mut clients = clients.iter().zip(before);
            is_over() || clients.all(|((met, _), before)| count(met).load(Ordering::Relaxed) > before + 2)
        };
        eventually(DEADLINE, "all clients connect", has_met).unwrap();
    };
    'all: for is_full in [false, true] {
        for _ in 0..TURNS {
            for places in [&ENDPOINTS[..], &[]] {
                let change = [service(places)];
                node.run(|| {
                    let commit =
                        if is_full { data_plane.compare(&change) } else { data_plane.apply(&change) };
                    assert_eq!(commit.unwrap().full, is_full);
                })
                .unwrap();
                all_meet(if places.is_empty() { |met| &met.refused } else { |met| &met.served });
                if is_over() {
                    break 'all;
                }
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    for (met, thread) in clients {
        thread.join().unwrap().unwrap();
        assert!(!met.is_over(), "{variant:?}: {met:?}");
    }
}

#[test]
fn clients_are_refused_or_served_while_endpoints_go_and_come_nft() {
    clients_are_refused_or_served(Variant::Nft);
}

#[test]
fn clients_are_refused_or_served_while_endpoints_go_and_come_legacy() {
    clients_are_refused_or_served(Variant::Legacy);
}
