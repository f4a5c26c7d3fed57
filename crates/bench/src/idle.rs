//! Measures a node without Services: the time until the agent is ready, its idle memory, and the size of its binary.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use portolan_serve::{Api, Config, ControllersConfig, RunningServer, Server};
use portolan_testkit::{Family, Namespace, World};

use crate::bars::Bar;
use crate::proxy::Proxy;
use crate::statistics::Sample;
use crate::workload;

/// Number of starts of the agent.
const STARTS: usize = 11;
/// The default address of the agent's health server.
const HEALTH_SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 10_256);
/// Maximum time until /readyz succeeds after the kernel is in sync.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// Memory counts as idle after it has not changed for this long.
const SAME_FOR: Duration = Duration::from_secs(5);
/// Maximum time to wait for idle memory.
const IDLE_WITHIN: Duration = Duration::from_secs(60);
/// Interval of the memory checks.
const POLL: Duration = Duration::from_millis(250);

/// The figures of one binary.
#[derive(Debug)]
pub(crate) struct Idle {
    /// The binary's linkage, `dynamic` or `static`.
    kind: &'static str,
    /// Time from the spawn until both families are in sync and /readyz returns 200. The kernel is empty before.
    ready: Sample,
    /// `VmRSS` at rest, in KiB.
    resident: u32,
    /// Size of the file in bytes; `None` if no bar limits it.
    length: Option<u64>,
}

/// Measures the binary and, if there is one, the static binary, of the node agent.
pub(crate) fn measure(binary: &Path, static_binary: Option<&Path>) -> anyhow::Result<Vec<Idle>> {
    let mut idles = vec![measure_one("dynamic", binary)?];
    if let Some(path) = static_binary {
        let length = fs::metadata(path)?.len();
        idles.push(Idle { length: Some(length), ..measure_one("static", path)? });
    }
    Ok(idles)
}

/// Returns the bars of a node without Services, and whether the figures meet them.
pub(crate) fn bars(idles: &[Idle]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for Idle { kind, ready, resident, .. } in idles {
        let milliseconds = ready.median().as_secs_f64() * 1e3;
        bars.push(Bar::new(
            format!("start to ready without Services, {kind} binary, median"),
            " ms",
            150.0,
            Some(milliseconds),
        ));
        let mebibytes = f64::from(*resident) / 1024.0;
        bars.push(Bar::new(
            format!("resident without Services, {kind} binary"),
            " MiB",
            // The libraries of a dynamic binary count, too.
            if *kind == "static" { 8.0 } else { 12.0 },
            Some(mebibytes),
        ));
    }
    let length = idles.iter().find_map(|idle| idle.length);
    // The size of a file is far below 2^52.
    let mebibytes = length.map(|bytes| u32::try_from(bytes >> 10).map_or(f64::MAX, f64::from) / 1024.0);
    bars.push(Bar::new("length of the static binary", " MiB", 8.0, mebibytes));
    bars
}

fn measure_one(kind: &'static str, binary: &Path) -> anyhow::Result<Idle> {
    let node = EmptyNode::build()?;
    let mut ready = Vec::new();
    for _ in 1..STARTS {
        let (proxy, after) = node.start(binary)?;
        ready.push(after);
        proxy.stop()?;
    }
    let (proxy, after) = node.start(binary)?;
    ready.push(after);
    let resident = at_rest(&proxy)?;
    proxy.stop()?;
    Ok(Idle { kind, ready: ready.into_iter().collect(), resident, length: None })
}

/// A node in a namespace of its own, with an API server that holds only its Node object.
struct EmptyNode {
    world: World,
    server: RunningServer,
}

impl EmptyNode {
    fn build() -> anyhow::Result<Self> {
        let world = World::builder().pods(1).build()?;
        let listener = world.node().namespace().run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))??;
        let config = Config {
            controllers: ControllersConfig { housekeeping: false, ..ControllersConfig::default() },
            ..Config::default()
        };
        let api = std::sync::Arc::new(Api::new(&config.api));
        api.blocking().apply(workload::node(world.node().address(Family::Ipv4))).context("write the Node")?;
        let server = Server::start_with(api, config, listener)?;
        Ok(Self { world, server })
    }

    /// Starts the agent with an empty kernel and returns the time until it was ready.
    fn start(&self, binary: &Path) -> anyhow::Result<(Proxy, Duration)> {
        let namespace = self.world.node().namespace();
        namespace.output("nft", &["flush", "ruleset"])?;
        let spawned = Instant::now();
        let (proxy, _) = Proxy::start_on(binary, namespace, &self.server.url(), "1s")?;
        wait_until_ready(namespace)?;
        Ok((proxy, spawned.elapsed()))
    }
}

/// Waits until the agent is ready. The interval is short, because the measured time is a few dozen milliseconds.
fn wait_until_ready(node: &Namespace) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    node.run(|| {
        while Instant::now() < deadline {
            if is_ready().unwrap_or(false) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("/readyz does not say 200 within {READY_WITHIN:?}")
    })?
}

fn is_ready() -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&HEALTH_SERVER, READY_WITHIN)?;
    stream.set_read_timeout(Some(READY_WITHIN))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.1 200 "))
}

/// Waits until the resident memory no longer changes and returns it, in KiB.
fn at_rest(proxy: &Proxy) -> anyhow::Result<u32> {
    let deadline = Instant::now() + IDLE_WITHIN;
    let (mut resident, mut since) = (proxy.resident()?, Instant::now());
    while since.elapsed() < SAME_FOR && Instant::now() < deadline {
        thread::sleep(POLL);
        let now = proxy.resident()?;
        if now != resident {
            (resident, since) = (now, Instant::now());
        }
    }
    Ok(resident)
}
