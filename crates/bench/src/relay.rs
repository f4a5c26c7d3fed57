//! Compares the relay of the userspace mode with `HAProxy` (in TCP mode), nginx (its stream module, which does UDP, too) and
//! a direct connection, all in one run.
//!
//! Each way has a client pod, a node and a backend pod, each in a network namespace. The node runs nothing, the relay with
//! its capture rules, `HAProxy` with splice, or nginx with one worker. The process on the node is pinned to one core; clients and backends have
//! another one. The ways take turns, one at a time.
//!
//! The nodes resemble those of Kubernetes: their kernels track connections, because they masquerade packets that leave
//! the pods' network. `HAProxy` is also measured on a node without connection tracking.

mod datagrams;
mod load;
mod roles;

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portolan_testkit::{Family, Namespace, World, eventually};

use crate::bars::Bar;
use load::Figures;
pub(crate) use roles::{Role, play};

/// The ports of three services: one sends without end, one answers and closes, and one echoes.
const PORTS: [u16; 3] = [8001, 8002, 8003];
const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const PATIENCE: Duration = Duration::from_secs(30);
/// Idle connections to open; fewer if the limit of descriptors is too low.
const IDLE: usize = 10_000;

/// Number of rounds, in which each way has one turn. Other load on the machine, and changes of its speed, then affect all
/// ways alike.
const ROUNDS: usize = 11;

/// The figures of one way.
#[derive(Debug)]
pub(crate) struct Way {
    name: &'static str,
    rounds: Vec<Figures>,
    /// Number of idle connections, and the resident memory with them in KiB.
    idle: Option<(usize, u32)>,
    /// Number of threads with 1,000 Services.
    threads: Option<usize>,
}

impl Way {
    fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(figure))
    }
}

/// A client pod, a node and a backend pod with its process. Each way has its own, so that the rules of one do not slow
/// down the others.
struct Stage {
    world: World,
    _backend: Process,
}

/// The masquerade rule of a network plug-in on a node.
const MASQUERADE: &str = "table ip plugin { chain postrouting { type nat hook postrouting priority 100; \
    ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade; }; }";

/// Timeout of closed connections. It is short because the benchmark makes so many connections that they would fill the
/// table, which does not happen on a real node.
const FORGET: &str = "net.netfilter.nf_conntrack_tcp_timeout_time_wait=1";

/// Whether the kernel of a node tracks connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tracking {
    On,
    Off,
}

impl Stage {
    fn new(tracking: Tracking) -> anyhow::Result<Self> {
        let world = World::builder().pods(2).remote_pods(1).build()?;
        if tracking == Tracking::On {
            world.node().namespace().output("nft", &[MASQUERADE])?;
            world.node().namespace().output("sysctl", &["--quiet", "--write", FORGET])?;
        }
        let [client, backend] = world.pods() else { anyhow::bail!("two pods") };
        let process = start(backend.namespace(), Role::Backend, &[])?;
        wait_for(client.namespace(), backend.address(Family::Ipv4))?;
        Ok(Self { world, _backend: process })
    }

    fn client(&self) -> anyhow::Result<&Namespace> {
        Ok(self.world.pods().first().context("a client")?.namespace())
    }

    fn backend(&self) -> anyhow::Result<IpAddr> {
        Ok(self.world.pods().last().context("a backend")?.address(Family::Ipv4))
    }
}

/// One way that is running.
struct Lane {
    name: &'static str,
    stage: Stage,
    /// The address to which clients connect.
    address: IpAddr,
    process: Option<Process>,
}

/// Measures all ways.
pub(crate) fn measure(haproxy: Option<&Path>, nginx: Option<&Path>) -> anyhow::Result<Vec<Way>> {
    let mut lanes = vec![direct()?];
    if let Some(program) = haproxy {
        lanes.push(through_haproxy("HAProxy", program, Tracking::On)?);
        lanes.push(through_haproxy("HAProxy, nothing tracked", program, Tracking::Off)?);
    }
    if let Some(program) = nginx {
        lanes.push(through_nginx(program)?);
    }
    lanes.push(through_relay()?);
    let mut rounds: Vec<Vec<Figures>> = lanes.iter().map(|_| Vec::new()).collect();
    for round in 1..=ROUNDS {
        eprintln!("measuring all ways, {round} of {ROUNDS}");
        for (lane, rounds) in lanes.iter().zip(&mut rounds) {
            let process = lane.process.as_ref().map(|process| process.0.id());
            rounds.push(load::measure(lane.stage.client()?, lane.address, process)?);
        }
    }
    lanes.iter().zip(rounds).map(|(lane, rounds)| lane.finish(rounds)).collect()
}

impl Lane {
    /// Takes the measurements that are made only once.
    fn finish(&self, rounds: Vec<Figures>) -> anyhow::Result<Way> {
        let Self { name, process, .. } = self;
        let Some(process) = process else { return Ok(Way { name, rounds, idle: None, threads: None }) };
        let idle = load::idle(self.stage.client()?, self.address, IDLE, || process.resident())?;
        let threads = fs::read_dir(format!("/proc/{}/task", process.0.id()))?.count();
        Ok(Way { name, rounds, idle: Some(idle), threads: Some(threads) })
    }
}

fn direct() -> anyhow::Result<Lane> {
    let stage = Stage::new(Tracking::On)?;
    Ok(Lane { name: "direct", address: stage.backend()?, stage, process: None })
}

fn through_haproxy(name: &'static str, program: &Path, tracking: Tracking) -> anyhow::Result<Lane> {
    let stage = Stage::new(tracking)?;
    let node = stage.world.node();
    let address = node.address(Family::Ipv4);
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("haproxy.cfg");
    fs::write(&config, haproxy_config(address, stage.backend()?))?;
    let [program_name, config] = [program, &config].map(Path::to_string_lossy);
    let mut command = node.namespace().command("taskset");
    command.args(["--cpu-list", roles::PROXY_CORE, &program_name, "-f", &config]);
    if let Some(libraries) = program.parent() {
        command.env("LD_LIBRARY_PATH", libraries.to_string_lossy().as_ref());
    }
    let process = Process(command.spawn()?);
    wait_for(stage.client()?, address)?;
    Ok(Lane { name, stage, address, process: Some(process) })
}

/// `program` has its stream module beside it.
fn through_nginx(program: &Path) -> anyhow::Result<Lane> {
    let stage = Stage::new(Tracking::On)?;
    let node = stage.world.node();
    let address = node.address(Family::Ipv4);
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("nginx.conf");
    // nginx looks for a module with a relative path in its own folder.
    let program = fs::canonicalize(program).with_context(|| format!("{} is not there", program.display()))?;
    let module = program.with_file_name("ngx_stream_module.so");
    fs::write(&config, nginx_config(&module, folder.path(), address, stage.backend()?))?;
    let [program, config] = [&program, &config].map(|path| path.to_string_lossy());
    let mut command = node.namespace().command("taskset");
    command.args(["--cpu-list", roles::PROXY_CORE, &program, "-e", "stderr", "-c", &config]);
    let process = Process(command.spawn()?);
    wait_for(stage.client()?, address)?;
    wait_for_datagrams(stage.client()?, address)?;
    Ok(Lane { name: "nginx", stage, address, process: Some(process) })
}

fn through_relay() -> anyhow::Result<Lane> {
    let stage = Stage::new(Tracking::On)?;
    let backend = stage.backend()?.to_string();
    let process = start(stage.world.node().namespace(), Role::Relay, &[&backend])?;
    wait_for(stage.client()?, VIP.into())?;
    wait_for_datagrams(stage.client()?, VIP.into())?;
    Ok(Lane { name: "relay", stage, address: VIP.into(), process: Some(process) })
}

/// Returns the median.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Converts a count to a float. It is small enough to be exact.
pub(super) fn float(count: impl TryInto<u32>) -> f64 {
    count.try_into().map_or(f64::INFINITY, f64::from)
}

/// Returns the table. Writing to a String cannot fail.
pub(crate) fn render(ways: &[Way]) -> String {
    let mut text = String::from(
        "| way | one stream, GB/s | short connections/s | of them for a second of its CPU | \
         latency p50 / p99, us | datagrams/s | of them for a second of its CPU | idle connections | with them, MiB | \
         threads |\n|-|-:|-:|-:|-:|-:|-:|-:|-:|-:|\n",
    );
    for way in ways {
        let used = way.rounds.iter().filter_map(|it| it.connections_a_cpu_second);
        let used = way.idle.map(|_| format!("{:.0}", median(used)));
        let micros = |percent| way.median(|it| it.latency.percentile(percent).as_secs_f64() * 1e6);
        let cell = |value: Option<String>| value.unwrap_or_default();
        let datagrams = |figure: f64| if figure > 0.0 { format!("{figure:.0}") } else { String::new() };
        let _ = writeln!(
            text,
            "| {} | {:.2} | {:.0} | {} | {:.1} / {:.1} | {} | {} | {} | {} | {} |",
            way.name,
            way.median(|it| it.bytes_a_second / 1e9),
            way.median(|it| it.connections_a_second),
            cell(used),
            micros(50),
            micros(99),
            datagrams(way.median(|it| it.datagrams_a_second)),
            datagrams(median(way.rounds.iter().filter_map(|it| it.datagrams_a_cpu_second))),
            cell(way.idle.map(|(count, _)| count.to_string())),
            cell(way.idle.map(|(_, memory)| format!("{:.1}", f64::from(memory) / 1024.0))),
            cell(way.threads.map(|threads| threads.to_string())),
        );
    }
    text
}

/// Returns the bars of the relay.
pub(crate) fn bars(ways: &[Way]) -> Vec<Bar> {
    let find = |name: &str| ways.iter().find(|way| way.name == name);
    let (direct, haproxy, relay) = (find("direct"), find("HAProxy"), find("relay"));
    let against = |figure: fn(&Figures) -> f64| {
        let (relay, haproxy) = relay.zip(haproxy)?;
        let pairs = relay.rounds.iter().zip(&haproxy.rounds);
        Some(median(pairs.map(|(relay, haproxy)| figure(relay) / figure(haproxy))))
    };
    let p99 = |way: &Way| way.median(|it| it.latency.percentile(99).as_secs_f64());
    let latency = relay
        .zip(haproxy)
        .zip(direct)
        .map(|((relay, haproxy), direct)| (p99(relay) - p99(direct)) / (p99(haproxy) - p99(direct)));
    let datagrams = relay.zip(find("nginx")).map(|(relay, nginx)| {
        let pairs = relay.rounds.iter().zip(&nginx.rounds);
        let rate = |figures: &Figures| figures.datagrams_a_cpu_second.unwrap_or(f64::NAN);
        median(pairs.map(|(relay, nginx)| rate(relay) / rate(nginx)))
    });
    let idle = relay.and_then(|relay| relay.idle);
    let memory =
        idle.map(|(count, memory)| f64::from(memory) / 1024.0 * (float(IDLE) / float(count)).max(1.0));
    vec![
        Bar::at_least(
            "relay: one bulk stream, against HAProxy",
            " times",
            0.8,
            against(|it| it.bytes_a_second),
        ),
        Bar::at_least(
            "relay: short connections a second, against HAProxy",
            " times",
            1.0,
            against(|it| it.connections_a_second),
        ),
        Bar::new("relay: p99 of added latency, against HAProxy", " times", 1.5, latency),
        Bar::at_least(
            "relay: datagrams for a second of processor time, against nginx",
            " times",
            2.0,
            datagrams,
        ),
        Bar::new("relay: resident with 10,000 idle connections", " MiB", 60.0, memory),
        Bar::new("relay: threads with 1,000 Services", "", 8.0, relay.and_then(|it| it.threads).map(float)),
    ]
}

/// Without a master process and daemon, the process is its only worker.
fn nginx_config(module: &Path, folder: &Path, address: IpAddr, pod: IpAddr) -> String {
    let mut text = format!(
        "load_module {};\npid {}/pid;\ndaemon off;\nmaster_process off;\nerror_log stderr crit;\n\
         worker_rlimit_nofile 65536;\nevents {{ worker_connections 32768; }}\nstream {{\n  proxy_timeout 10m;\n",
        module.display(),
        folder.display()
    );
    let servers = PORTS.map(|port| (port, "")).into_iter().chain([(datagrams::PORT, " udp")]);
    for (port, protocol) in servers {
        let _ = writeln!(text, "  server {{ listen {address}:{port}{protocol}; proxy_pass {pod}:{port}; }}");
    }
    text.push_str("}\n");
    text
}

fn haproxy_config(address: IpAddr, pod: IpAddr) -> String {
    let mut text = String::from(
        "global\n  nbthread 1\n  maxconn 6500\ndefaults\n  mode tcp\n  option splice-auto\n  timeout connect 5s\n  \
         timeout client 10m\n  timeout server 10m\n",
    );
    for port in PORTS {
        let _ = writeln!(text, "listen p{port}\n  bind {address}:{port}\n  server s {pod}:{port}");
    }
    text
}

/// A child process that is killed when the value is dropped.
#[derive(Debug)]
struct Process(Child);

impl Process {
    /// Returns the resident memory in KiB.
    fn resident(&self) -> anyhow::Result<u32> {
        let bytes = portolan_testkit::resident(self.0.id()).context("the memory of the process")?;
        Ok(u32::try_from(bytes / 1024)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(namespace: &Namespace, role: Role, arguments: &[&str]) -> anyhow::Result<Process> {
    let mut command = namespace.command(std::env::current_exe()?);
    command
        .args(["--role", role.name()])
        .args(arguments.iter().flat_map(|argument| ["--backend", *argument]));
    Ok(Process(command.stdin(Stdio::null()).spawn()?))
}

fn wait_for(client: &Namespace, address: IpAddr) -> anyhow::Result<()> {
    for port in PORTS {
        let to = SocketAddr::new(address, port);
        let up = || client.run(|| load::answers(to)).is_ok_and(|answers| answers);
        let waited = eventually(PATIENCE, "the proxy under test", up);
        ensure!(waited.is_ok(), "{to} does not answer");
    }
    Ok(())
}

fn wait_for_datagrams(client: &Namespace, address: IpAddr) -> anyhow::Result<()> {
    let to = SocketAddr::new(address, datagrams::PORT);
    let up = || client.run(|| datagrams::answers(to)).is_ok_and(|answers| answers);
    ensure!(eventually(PATIENCE, "the proxy under test", up).is_ok(), "{to} does not answer datagrams");
    Ok(())
}
