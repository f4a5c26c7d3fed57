//! Probes many endpoints and prints the processor time of the prober: `load [tcp|http|https] [ENDPOINTS] [SECONDS]`. Fails if
//! `tcp` probes miss the bar of SPECIFICATION.md.
//!
//! The endpoints are loopback addresses with one server, which is a process of its own: its time does not count. On
//! loopback the kernel does the receiving side's work within the sender's system calls. The last two lines say what the
//! kernel alone costs at the same rate: of whole connections, which are opened and reset with blocking calls, and of the
//! calls that a `tcp` probe makes, in a loop that does nothing else.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a tool: it stops at the first error"
)]

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portolan_prober::client::NoLease;
use portolan_prober::plan::SliceWrite;
use portolan_prober::probe::Client;
use portolan_prober::{Events, Input, Prober, ProberOptions, Report, WriteError, Writer};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// Endpoints of one slice.
const IN_SLICE: usize = 1000;
/// The bar: percent of a core that `tcp` probes of 10,000 endpoints may take, every 5 s.
const MOST_OF_A_CORE: f64 = 5.0;
/// For how many endpoints the bar holds.
const OF_THE_BAR: usize = 10_000;
/// Clock ticks in a second, the unit of `/proc/self/stat` (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Counts writes and Events.
#[derive(Clone, Default)]
struct Sink(Arc<AtomicUsize>);

impl Writer for Sink {
    async fn write(&self, write: &SliceWrite) -> Result<String, WriteError> {
        let version: usize = write.resource_version.parse().unwrap();
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok((version + 1).to_string())
    }
}

impl Events for Sink {
    fn event(&self, _: Report) {}
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let argument =
        |index: usize, default: &str| arguments.get(index).map_or(default, String::as_str).to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if argument(1, "") == "serve" {
        runtime.block_on(serve(&argument(2, "tcp")));
        return ExitCode::SUCCESS;
    }
    let (kind, count, seconds) = (argument(1, "tcp"), argument(2, "10000"), argument(3, "30"));
    let count: usize = count.parse().unwrap();
    let core = runtime.block_on(measure(&kind, count, seconds.parse().unwrap()));
    if kind != "tcp" || count != OF_THE_BAR {
        return ExitCode::SUCCESS;
    }
    let is_met = core <= MOST_OF_A_CORE;
    let word = if is_met { "pass" } else { "FAIL" };
    println!(
        "{word}  probes of {count} endpoints every 5 s: {core:.1} % of a core (bar: {MOST_OF_A_CORE} %)"
    );
    ExitCode::from(u8::from(!is_met))
}

/// Accepts connections on a port of all addresses, and prints the port.
async fn serve(kind: &str) {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    let acceptor = (kind == "https").then(acceptor);
    while let Ok((stream, _)) = listener.accept().await {
        match (&acceptor, kind) {
            (Some(acceptor), _) => {
                let accept = acceptor.accept(stream);
                tokio::spawn(async move {
                    if let Ok(stream) = accept.await {
                        answer(stream).await;
                    }
                });
            }
            (None, "http") => drop(tokio::spawn(answer(stream))),
            _ => {}
        }
    }
}

fn acceptor() -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(vec!["example.com".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsAcceptor::from(Arc::new(
        config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap(),
    ))
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut request = [0; 1024];
    if stream.read(&mut request).await.is_ok() {
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok").await;
    }
}

/// Prints the figures. Returns the percentage of a core that the prober took.
async fn measure(kind: &str, count: usize, seconds: u64) -> f64 {
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program).args(["serve", kind]).stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Server(child);
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();

    let sink = Sink::default();
    let options = ProberOptions { any_address: true, ..ProberOptions::default() };
    let prober =
        Prober::<_, _, _, NoLease>::new(options, Client::new().unwrap(), sink.clone(), sink.clone(), None);
    let metrics = prober.metrics();
    let (inputs, received) = mpsc::channel(4);
    let task = tokio::spawn(prober.run(received, std::future::pending()));
    inputs.send(Input::EndpointSlices(Vec::new())).await.unwrap();
    inputs.send(Input::Services(vec![serde_json::from_value(service(kind)).unwrap()])).await.unwrap();
    let port: u16 = port.trim().parse().unwrap();
    for begin in (0..count).step_by(IN_SLICE) {
        let slice = slice(begin..count.min(begin + IN_SLICE), port);
        inputs.send(Input::EndpointSlice(Box::new(serde_json::from_value(slice).unwrap()))).await.unwrap();
    }
    sleep(Duration::from_secs(10)).await;
    let (user, system, passed) = (time(13), time(14), metrics.passed.get());
    sleep(Duration::from_secs(seconds)).await;
    let (user, system, passed) = (time(13) - user, time(14) - system, metrics.passed.get() - passed);
    let core = 100.0 * (user + system) / Duration::from_secs(seconds).as_secs_f64();
    println!(
        "{kind}: {} of {count} endpoints healthy, {} failures, {} late, {} writes; {:.0} probes a second; \
         {user:.2} s user and {system:.2} s system in {seconds} s: {core:.1} % of a core",
        metrics.passing.get(),
        metrics.failed.iter().map(portolan_prober::metrics::Number::get).sum::<u64>(),
        metrics.late.get(),
        sink.0.load(Ordering::Relaxed),
        Duration::from_secs(passed).as_secs_f64() / Duration::from_secs(seconds).as_secs_f64(),
    );
    task.abort();
    bare(count, port, seconds);
    bare_probes(count, port, seconds);
    core
}

/// Begins and ends the connections of `tcp` probes as the prober does, and prints the processor time.
fn bare_probes(count: usize, port: u16, seconds: u64) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType};
    // The interval is 5 s, which are 200 rounds of 25 ms.
    let (rounds, in_round) = (usize::try_from(seconds).unwrap() * 40, (count / 200).max(1));
    let addresses: Vec<SocketAddr> =
        (0..count).map(|number| SocketAddr::new(address(number).parse().unwrap(), port)).collect();
    let socket = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
    };
    let sockets: Vec<_> = (0..in_round).map(|_| socket()).collect();
    let mut next = addresses.iter().cycle();
    let (user, system) = (time(13), time(14));
    for _ in 0..rounds {
        for socket in &sockets {
            rustix::net::sockopt::set_tcp_quickack(socket, false).unwrap();
            let _ = rustix::net::connect(socket, next.next().unwrap());
        }
        let mut polled: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        for socket in &sockets {
            rustix::net::getsockname(socket).unwrap();
            rustix::net::connect_unspec(socket).unwrap();
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let (user, system) = (time(13) - user, time(14) - system);
    let core = 100.0 * (user + system) / Duration::from_secs(seconds).as_secs_f64();
    println!("bare tcp probes: {user:.2} s user and {system:.2} s system: {core:.1} % of a core");
}

/// Opens and resets as many connections as the prober in the same time, and prints the processor time.
fn bare(count: usize, port: u16, seconds: u64) {
    // The interval is 5 s, which are 1,000 rounds of 5 ms.
    let rounds = seconds * 200;
    let in_round = (count / 1000).max(1);
    let (user, system) = (time(13), time(14));
    for number in 0..usize::try_from(rounds).unwrap() * in_round {
        let stream = TcpStream::connect((address(number % count), port)).unwrap();
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        if number % in_round == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let (user, system) = (time(13) - user, time(14) - system);
    let core = 100.0 * (user + system) / Duration::from_secs(seconds).as_secs_f64();
    println!("bare connections: {user:.2} s user and {system:.2} s system: {core:.1} % of a core");
}

fn address(number: usize) -> String {
    format!("127.1.{}.{}", number / 250, number % 250 + 1)
}

/// Returns seconds of processor time: a field of `/proc/self/stat`, counted from 0 (proc(5)).
fn time(field: usize) -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(field - 2).unwrap().parse::<f64>().unwrap() / TICKS
}

fn service(kind: &str) -> Value {
    let check = if kind == "tcp" { "tcp".to_owned() } else { format!("{kind} /healthz") };
    json!({"metadata": {"name": "web", "namespace": "shop", "uid": "s", "annotations": {
        "portolan.dev/health-check": check, "portolan.dev/health-check-interval": "5s"}}})
}

fn slice(endpoints: std::ops::Range<usize>, port: u16) -> Value {
    let name = format!("web-{}", endpoints.start);
    let endpoint = |number: usize| json!({"addresses": [address(number)]});
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1",
            "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": endpoints.map(endpoint).collect::<Vec<_>>(),
    })
}
