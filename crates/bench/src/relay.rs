//! The relay of the userspace mode against `HAProxy` (in TCP mode) and a direct connection, all in one run.
//!
//! A client pod, a node and a backend pod, each in a network namespace. On the node, one at a time: the relay with what
//! captures for it, or `HAProxy` with splice; pinned to one core, while clients and backends have another one.

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
use crate::statistics::ratio;
use load::Figures;
pub(crate) use roles::{Role, play};

/// A service that sends without end, one that answers and closes, and one that sends everything back.
const PORTS: [u16; 3] = [8001, 8002, 8003];
const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const PATIENCE: Duration = Duration::from_secs(30);
/// Idle connections to hold; fewer where descriptors do not allow it.
const IDLE: usize = 10_000;

/// The figures of one way.
#[derive(Debug)]
pub(crate) struct Way {
    name: &'static str,
    figures: Figures,
    /// Idle connections, and resident memory with them in KiB.
    idle: Option<(usize, u32)>,
    /// With 1,000 Services.
    threads: Option<usize>,
}

/// Measures all ways.
pub(crate) fn measure(haproxy: Option<&Path>) -> anyhow::Result<Vec<Way>> {
    let world = World::builder().pods(2).remote_pods(1).build()?;
    let [client, backend] = world.pods() else { anyhow::bail!("two pods") };
    let _backend = start(backend.namespace(), Role::Backend, &[])?;
    let pod = backend.address(Family::Ipv4);
    wait_for(client.namespace(), pod)?;
    let client = client.namespace();
    let mut ways =
        vec![Way { name: "direct", figures: load::measure(client, pod, None)?, idle: None, threads: None }];
    if let Some(program) = haproxy {
        let folder = tempfile::tempdir()?;
        let config = folder.path().join("haproxy.cfg");
        let address = world.node().address(Family::Ipv4);
        fs::write(&config, haproxy_config(address, pod))?;
        let mut command = world.node().namespace().command("taskset");
        command.args([
            "--cpu-list",
            roles::PROXY_CORE,
            &program.to_string_lossy(),
            "-f",
            &config.to_string_lossy(),
        ]);
        if let Some(libraries) = program.parent() {
            command.env("LD_LIBRARY_PATH", libraries.to_string_lossy().as_ref());
        }
        let process = Process(command.spawn()?);
        ways.push(measure_proxy("HAProxy", client, address, &process)?);
    }
    let relay = start(world.node().namespace(), Role::Relay, &[&pod.to_string()])?;
    ways.push(measure_proxy("relay", client, VIP.into(), &relay)?);
    Ok(ways)
}

fn measure_proxy(
    name: &'static str,
    client: &Namespace,
    address: IpAddr,
    process: &Process,
) -> anyhow::Result<Way> {
    eprintln!("measuring {name}");
    wait_for(client, address)?;
    let figures = load::measure(client, address, Some(process.0.id()))?;
    let idle = load::idle(client, address, IDLE, || process.resident())?;
    let threads = fs::read_dir(format!("/proc/{}/task", process.0.id()))?.count();
    Ok(Way { name, figures, idle: Some(idle), threads: Some(threads) })
}

/// A number of things: few enough to be exact.
pub(super) fn float(count: impl TryInto<u32>) -> f64 {
    count.try_into().map_or(f64::INFINITY, f64::from)
}

/// The table. Writing to a String cannot fail.
pub(crate) fn render(ways: &[Way]) -> String {
    let mut text = String::from(
        "| way | one stream, GB/s | short connections/s | of them for a second of its CPU | \
         latency p50 / p99, us | idle connections | with them, MiB | threads |\n|-|-:|-:|-:|-:|-:|-:|-:|\n",
    );
    for way in ways {
        let Figures { bytes_a_second, connections_a_second, connections_a_cpu_second, latency } =
            &way.figures;
        let micros = |percent| latency.percentile(percent).as_secs_f64() * 1e6;
        let cell = |value: Option<String>| value.unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {:.2} | {connections_a_second:.0} | {} | {:.1} / {:.1} | {} | {} | {} |",
            way.name,
            bytes_a_second / 1e9,
            cell(connections_a_cpu_second.map(|rate| format!("{rate:.0}"))),
            micros(50),
            micros(99),
            cell(way.idle.map(|(count, _)| count.to_string())),
            cell(way.idle.map(|(_, memory)| format!("{:.1}", f64::from(memory) / 1024.0))),
            cell(way.threads.map(|threads| threads.to_string())),
        );
    }
    text
}

/// What the relay has to meet.
pub(crate) fn bars(ways: &[Way]) -> Vec<Bar> {
    let find = |name: &str| ways.iter().find(|way| way.name == name);
    let (direct, haproxy, relay) = (find("direct"), find("HAProxy"), find("relay"));
    let against = |figure: fn(&Figures) -> f64| {
        relay.zip(haproxy).map(|(relay, haproxy)| figure(&relay.figures) / figure(&haproxy.figures))
    };
    let added = |way: Option<&Way>| {
        way.zip(direct).map(|(way, direct)| {
            way.figures.latency.percentile(99).saturating_sub(direct.figures.latency.percentile(99))
        })
    };
    let latency = added(relay).zip(added(haproxy)).map(|(relay, haproxy)| ratio(relay, haproxy));
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
        Bar::new("relay: resident with 10,000 idle connections", " MiB", 60.0, memory),
        Bar::new("relay: threads with 1,000 Services", "", 8.0, relay.and_then(|it| it.threads).map(float)),
    ]
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

/// Ends with the value.
#[derive(Debug)]
struct Process(Child);

impl Process {
    /// Resident memory in KiB.
    fn resident(&self) -> anyhow::Result<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
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
        let waited = eventually(PATIENCE, "whoever is measured", up);
        ensure!(waited.is_ok(), "{to} does not answer");
    }
    Ok(())
}
