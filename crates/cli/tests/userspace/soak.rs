//! Memory under continuous load: connections and flows of all kinds come and go, and endpoints fail, disappear and
//! return. Every test run includes some seconds of it. `PORTOLAN_SOAK_SECONDS=300` makes it longer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use portolan_testkit::{Family, Namespace, PortolanProcess, Protocol, eventually};
use rustix::net::sockopt::set_socket_linger;
use serde_json::json;

use super::{REDIRECT, TPROXY, metric};
use crate::common::{BACKEND_PORT, Cluster, PATIENCE, at, objects};

const SHORT: u64 = 15;
/// Idle flows expire soon, so their number is constant after some seconds.
const CONFIGURATION: &str = "mode: userspace\nudpIdleTimeout: 2s\n";
/// Memory is measured after one in this many parts of the run.
const WARM: u32 = 5;
/// Growth that is allowed from then on, in bytes, for the allocator.
const GROWTH: u64 = 2 << 20;
/// Interval between two connections, or datagrams, of one client.
const PACE: Duration = Duration::from_millis(5);
/// Connections that a client keeps open at any time.
const HELD: usize = 50;
/// Enough bytes to make the relay switch to splice.
const BULK: usize = 32 << 10;
/// Pipes that the relay keeps, and other descriptors that are opened once.
const DESCRIPTORS: usize = 64 * 2 + 16;

/// Results of the load.
#[derive(Default)]
struct Score {
    over: AtomicBool,
    served: AtomicU64,
    failed: AtomicU64,
    answered: AtomicU64,
}

/// Creates Services with working endpoints on both nodes, and with endpoints that refuse or do not exist. The relay
/// finds the working ones.
fn services(cluster: &Cluster) {
    let living = [&cluster.world.pods()[0], &cluster.world.remote_pods()[0]];
    for (name, address, affinity) in [("mixed", "10.96.0.10", "None"), ("sticky", "10.96.0.11", "ClientIP")] {
        let mut service = objects::cluster_ip(name, address);
        service["spec"]["sessionAffinity"] = affinity.into();
        cluster.apply(service);
        let ports = ["tcp", "udp"].map(|port| (port.to_owned(), Family::Ipv4));
        let mut slice = objects::slice(name, &living, &ports);
        for address in ["192.168.100.1", "10.244.1.99"] {
            slice["endpoints"].as_array_mut().unwrap().push(json!({"addresses": [address]}));
        }
        cluster.apply(slice);
    }
    change(cluster, 0);
}

/// Changes the endpoints of a third Service. One of them stops and restarts without an update of the API.
fn change(cluster: &Cluster, round: usize) {
    let pods: Vec<_> = cluster.world.pods().iter().chain(cluster.world.remote_pods()).collect();
    cluster.service(objects::cluster_ip("changing", "10.96.0.12"), &pods[round % 2..]);
    let (dying, echo) = (pods[1], cluster.world.echo());
    let address = SocketAddr::new(dying.address(Family::Ipv4), BACKEND_PORT);
    match round % 4 {
        1 => echo.close(dying.namespace(), Protocol::Tcp, address).unwrap(),
        3 => echo.listen(dying.namespace(), Protocol::Tcp, address).unwrap(),
        _ => {}
    }
}

/// Opens one connection after the other: short ones, bulk data, resets, and some that stay open.
fn connections(to: SocketAddr, score: &Score) {
    let mut held = Vec::new();
    for number in 0.. {
        if score.over.load(Ordering::Relaxed) {
            return;
        }
        match connection(to, number) {
            Ok(stream) => {
                held.extend(stream);
                score.served.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => drop(score.failed.fetch_add(1, Ordering::Relaxed)),
        }
        if held.len() > HELD {
            held.remove(0);
        }
        sleep(PACE);
    }
}

/// Uses one connection. Returns it if it is to stay open.
fn connection(to: SocketAddr, number: usize) -> std::io::Result<Option<TcpStream>> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The line that an endpoint sends first.
    if stream.read(&mut [0; 256])? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    match number % 8 {
        0 => return Ok(Some(stream)),
        1 => set_socket_linger(&stream, Some(Duration::ZERO))?,
        2 => {
            for _ in 0..10 {
                stream.write_all(&vec![7; BULK])?;
                stream.read_exact(&mut vec![0; BULK])?;
            }
        }
        _ => {
            stream.write_all(&[7; 100])?;
            stream.read_exact(&mut [0; 100])?;
        }
    }
    Ok(None)
}

/// Starts one flow after the other. Those to missing endpoints get no reply.
fn flows(to: SocketAddr, score: &Score) {
    while !score.over.load(Ordering::Relaxed) {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(PACE * 10)).unwrap();
        for _ in 0..3 {
            let answer = socket.send_to(b"question", to).and_then(|_| socket.recv(&mut [0; 256]));
            score.answered.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
        }
        sleep(PACE);
    }
}

fn descriptors(proxy: &PortolanProcess) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", proxy.id())).unwrap().count()
}

#[test]
fn memory_is_flat_whatever_comes_and_goes() {
    stays_flat(TPROXY);
}

#[test]
fn memory_is_flat_with_redirected_packets_as_well() {
    stays_flat(REDIRECT);
}

fn stays_flat(capture: &str) {
    let seconds = std::env::var("PORTOLAN_SOAK_SECONDS").map_or(SHORT, |text| text.parse().unwrap());
    let whole = Duration::from_secs(seconds);
    let cluster = Cluster::new();
    services(&cluster);
    let (pod, client) = (cluster.world.pods()[0].namespace(), cluster.world.client().namespace());
    let node = cluster.world.node().namespace();
    for namespace in [pod, client] {
        // Without this, the ports of closed connections run out after a minute.
        namespace.write_sysctls(&[("net/ipv4/tcp_tw_reuse".to_owned(), "1")]).unwrap();
    }
    let proxy = cluster.proxy_with_arguments(CONFIGURATION, &[capture]);
    assert_eq!(metric(&cluster, "portolan_relay_redirected"), u64::from(capture == REDIRECT));
    let before = descriptors(&proxy);
    let score = Arc::new(Score::default());
    let start = |namespace: &Namespace, to: &str, work: fn(SocketAddr, &Score)| {
        let (to, score) = (at(to), score.clone());
        namespace.spawn_thread("soak", move || work(to, &score)).unwrap()
    };
    let threads = [
        start(client, "10.96.0.10:80", connections),
        start(pod, "10.96.0.11:80", connections),
        start(node, "10.96.0.12:80", connections),
        start(client, "10.96.0.10:80", flows),
        start(node, "10.96.0.11:80", flows),
    ];
    let (started, mut warm, mut round) = (Instant::now(), None, 0);
    let resident = || proxy.resident().unwrap();
    let is_used = || {
        [&score.served, &score.answered].iter().all(|number| number.load(Ordering::Relaxed) > 20 * seconds)
    };
    // On a slow machine it takes longer until there was enough load.
    while started.elapsed() < whole || (!is_used() && started.elapsed() < whole + PATIENCE) {
        round += 1;
        change(&cluster, round);
        if warm.is_none() && started.elapsed() >= whole / WARM {
            warm = Some(resident());
        }
        if round % 20 == 0 {
            eprintln!("{capture} after {:.0?}: {} KiB", started.elapsed(), resident() >> 10);
        }
        sleep(Duration::from_millis(500));
    }
    let (warm, last) = (warm.unwrap(), resident());
    score.over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    let [served, failed, answered] =
        [&score.served, &score.failed, &score.answered].map(|number| number.load(Ordering::Relaxed));
    eprintln!("{capture}: {served} connections served, {failed} failed, {answered} datagrams answered");
    eprintln!(
        "{capture}: resident {} KiB after {:.0?}, {} KiB after {whole:.0?}",
        warm >> 10,
        whole / WARM,
        last >> 10
    );
    // Connections in progress may break with their endpoint. Each round in four ends one, which one client uses.
    let ended = round.div_ceil(4) as u64;
    assert!(failed <= served / 100 + ended, "{failed} failed, {served} served");
    assert!(is_used(), "{}", proxy.output());
    assert!(last <= warm + GROWTH, "from {warm} to {last} bytes");
    let gone = || {
        metric(&cluster, "portolan_relay_connections") == 0
            && metric(&cluster, "portolan_relay_udp_flows") == 0
    };
    eventually(PATIENCE, "the end of everything", gone).unwrap();
    assert!(metric(&cluster, "portolan_relay_failed_attempts_total") > 0);
    let after = descriptors(&proxy);
    assert!(after <= before + DESCRIPTORS, "from {before} to {after} descriptors");
}
