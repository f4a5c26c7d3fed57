//! Measures the server: answers a second of one thread with 10,000 Services, and how soon a change is answered.
//!
//! `cargo run --release -p portolan-dns --example dns_load -- [SECONDS]`. The load comes from another thread over loopback.
//! Fails if a figure misses its bar.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a measurement stops at the first surprise"
)]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::{Arc, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use portolan_dns::object::{Kind, ObjectName, Port, Protocol};
use portolan_dns::server::Sockets;
use portolan_dns::{Limits, Server, Service, Settings, Zone};
use rustix::time::{ClockId, clock_gettime};

const SERVICES: u32 = 10_000;
/// Requests that are sent before their answers are read.
const WINDOW: usize = 64;
const CHANGES: u32 = 2_000;
/// The bars of SPECIFICATION.md: answers for each second of processor time, and the time until a change is answered.
const LEAST_ANSWERS: f64 = 50_000.0;
const LONGEST_CHANGE: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let seconds = std::env::args().nth(1).map_or(5, |text| text.parse().expect("a number of seconds"));
    let zone = Arc::new(RwLock::new(zone()));
    let (address, stop, server) = start(&zone);
    println!("{:22} {:>10} {:>14} {:>10}", "requests", "answers/s", "per CPU second", "us each");
    let mut least = f64::INFINITY;
    for (label, requests) in [("A of Services", addresses()), ("of all types", mixed())] {
        let (cpu_before, start) = (server.cpu(), Instant::now());
        let answers = flood(address, &requests, Duration::from_secs(seconds));
        let (cpu, wall) =
            (server.cpu().saturating_sub(cpu_before).as_secs_f64(), start.elapsed().as_secs_f64());
        let answers = f64::from(answers);
        println!("{label:22} {:>10.0} {:>14.0} {:>10.2}", answers / wall, answers / cpu, cpu / answers * 1e6);
        least = least.min(answers / cpu);
    }
    let mut delays = changes(&zone, address);
    delays.sort_unstable();
    let (median, longest) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    println!("a change is answered after {median:?} (median), {longest:?} (longest of {CHANGES})");
    stop.send(()).unwrap();
    let (is_quick, is_soon) = (least >= LEAST_ANSWERS, longest <= LONGEST_CHANGE);
    let word = |is_met: bool| if is_met { "pass" } else { "FAIL" };
    println!(
        "{}  answers for a second of processor time: {least:.0} (bar: at least {LEAST_ANSWERS})",
        word(is_quick)
    );
    println!("{}  a change is answered, longest: {longest:?} (bar: {LONGEST_CHANGE:?})", word(is_soon));
    ExitCode::from(u8::from(!is_quick || !is_soon))
}

fn service(index: u32) -> Service {
    Service {
        name: ObjectName::new(&format!("namespace-{}", index % 100), &format!("service-{index}")),
        kind: Kind::ClusterIps(Box::new([cluster_ip(index).into()])),
        ports: Box::new([Port { name: "http".into(), protocol: Protocol::Tcp, number: 80 }]),
        publish_not_ready: false,
    }
}

fn cluster_ip(index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + index + 1)
}

fn zone() -> Zone {
    let settings = Settings::new("cluster.local").unwrap();
    let mut zone = Zone::new(Settings { ranges: vec!["10.96.0.0/12".parse().unwrap()], ..settings }, 1);
    let start = Instant::now();
    (0..SERVICES).for_each(|index| zone.set_service(service(index)));
    println!("{SERVICES} Services are loaded in {:?}", start.elapsed());
    zone.set_in_sync(true);
    zone
}

/// The processor time of the server's thread, on request.
struct ServerThread {
    ask: mpsc::Sender<mpsc::Sender<Duration>>,
}

impl ServerThread {
    fn cpu(&self) -> Duration {
        let (answer, answers) = mpsc::channel();
        self.ask.send(answer).unwrap();
        answers.recv().unwrap()
    }
}

fn start(zone: &Arc<RwLock<Zone>>) -> (SocketAddr, mpsc::Sender<()>, ServerThread) {
    let server = Arc::new(Server::new(Arc::clone(zone), None, Limits::default()));
    let (found, address) = mpsc::channel();
    let (stop, stopped) = mpsc::channel();
    let (ask, asked) = mpsc::channel::<mpsc::Sender<Duration>>();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let sockets = Sockets::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            found.send(sockets.address().unwrap()).unwrap();
            let mut serving = std::pin::pin!(server.serve(sockets));
            while stopped.try_recv().is_err() {
                let _ = tokio::time::timeout(Duration::from_millis(50), &mut serving).await;
                for answer in asked.try_iter() {
                    let time = clock_gettime(ClockId::ThreadCPUTime);
                    let nanoseconds = u32::try_from(time.tv_nsec).unwrap();
                    answer.send(Duration::new(u64::try_from(time.tv_sec).unwrap(), nanoseconds)).unwrap();
                }
            }
        });
    });
    (address.recv().unwrap(), stop, ServerThread { ask })
}

fn request(name: &str, kind: RecordType) -> Vec<u8> {
    let mut message = Message::new(1, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message.to_vec().unwrap()
}

fn name(index: u32) -> String {
    format!("service-{index}.namespace-{}.svc.cluster.local.", index % 100)
}

fn addresses() -> Vec<Vec<u8>> {
    (0..SERVICES).map(|index| request(&name(index), RecordType::A)).collect()
}

/// A quarter each of A, SRV, PTR, and names that do not exist.
fn mixed() -> Vec<Vec<u8>> {
    let one = |index: u32| match index % 4 {
        0 => request(&name(index), RecordType::A),
        1 => request(&format!("_http._tcp.{}", name(index)), RecordType::SRV),
        2 => request(&Name::from(cluster_ip(index)).to_ascii(), RecordType::PTR),
        _ => request(&format!("none.{}", name(index)), RecordType::AAAA),
    };
    (0..SERVICES).map(one).collect()
}

fn client(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// Returns the number of answers in a time.
fn flood(address: SocketAddr, requests: &[Vec<u8>], time: Duration) -> u32 {
    let socket = client(address);
    let (mut answers, mut bytes, start) = (0, [0; 1500], Instant::now());
    for window in requests.chunks(WINDOW).cycle() {
        for request in window {
            // A request that is lost has no answer, and is not counted.
            let _ = socket.send(request);
        }
        answers += window.iter().map_while(|_| socket.recv(&mut bytes).ok()).map(|_| 1).sum::<u32>();
        if start.elapsed() > time {
            break;
        }
    }
    answers
}

/// Changes Services one by one, and returns how long it takes until the change is answered.
fn changes(zone: &Arc<RwLock<Zone>>, address: SocketAddr) -> Vec<Duration> {
    let socket = client(address);
    let one = |index: u32| {
        let request = request(&name(index), RecordType::A);
        let expected = Ipv4Addr::from_bits(cluster_ip(index).to_bits() + SERVICES);
        let changed = Service { kind: Kind::ClusterIps(Box::new([expected.into()])), ..service(index) };
        let start = Instant::now();
        zone.write().unwrap().set_service(changed);
        socket.send(&request).unwrap();
        let mut bytes = [0; 1500];
        let length = socket.recv(&mut bytes).unwrap();
        let delay = start.elapsed();
        let answer = Message::from_vec(&bytes[..length]).unwrap();
        assert_eq!(answer.answers[0].data.to_string(), expected.to_string());
        delay
    };
    (0..CHANGES).map(one).collect()
}
