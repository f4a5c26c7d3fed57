//! The table that `make bench` prints: how fast, and with how much memory and processor time, the shipped build of
//! `portolan-proxy` follows an API server, for several numbers of Services and endpoints.
//!
//! The sizes to measure and the binaries `portolan-proxy` and `portolan` go in. One table and the bars that it meets or misses come out.
//! Everything runs in network namespaces that end with this process. It must not know how the proxy works inside, except
//! for [`kernel`] and [`iptables`], which measure the kernel's part of a change alone.
//!
//! - [`workload`]: the objects, as a cluster's controllers write them
//! - [`stage`], [`steady`]: namespaces, pods, an API server with the objects, Services that answer
//! - [`proxy`]: the process under test
//! - [`changes`], [`connect`], [`round_trips`], [`kernel`], [`idle`]: the measurements
//! - [`restart`]: changes that arrive during the comparison of a restart
//! - [`iptables`]: the iptables mode
//! - [`api`]: the API server under load
//! - [`peers`]: kube-proxy and Portolan in turns
//! - [`scale`]: what thousands of nodes cost an API server
//! - [`relay`]: the relay of the userspace mode compared with `HAProxy`
//! - [`table`], [`bars`], [`machine`]: the output

mod api;
mod bars;
mod changes;
mod connect;
mod idle;
mod iptables;
mod kernel;
mod machine;
mod options;
mod peers;
mod proxy;
mod relay;
mod restart;
mod round_trips;
mod run;
mod scale;
mod stage;
mod statistics;
mod steady;
mod table;
mod workload;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use clap::Parser;

use options::BenchOptions;
use peers::{Effort, Peer, Programs};
use portolan_testkit::ControlPlane;
use stage::Stage;

fn main() -> ExitCode {
    let options = BenchOptions::parse();
    match measure(&options) {
        Ok(met) if met || !options.strict => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("portolan-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures every size and prints the figures. Returns true if all bars that apply are met.
fn measure(options: &BenchOptions) -> anyhow::Result<bool> {
    if let Some(role) = options.role {
        return relay::play(role, options.backend).map(|()| true);
    }
    if options.relay {
        println!("{}\n", machine::describe());
        return measure_relay(options);
    }
    if options.hold {
        return hold(options).map(|()| true);
    }
    let machine = machine::describe();
    if options.iptables {
        println!("{machine}");
        return measure_iptables(options, &options.agent()?);
    }
    if options.restarts {
        println!("{machine}\n");
        return measure_restarts(options).map(|()| true);
    }
    // A copy: a build that ends in the meantime must not change the measured binary.
    let folder = tempfile::tempdir()?;
    let copy = |from: PathBuf, name: &str| -> io::Result<PathBuf> {
        let to = folder.path().join(name);
        fs::copy(from, &to).map(|_| to)
    };
    println!("{machine}\n");
    if let Some(kube_proxy) = &options.peers {
        let agent = copy(options.agent()?, "portolan-proxy")?;
        return measure_peers(options, kube_proxy, agent).map(|()| true);
    }
    let server = copy(options.server()?, "portolan")?;
    if let Some(nodes) = options.nodes {
        return measure_scale(options, &server, nodes);
    }
    if options.api {
        return measure_api(&server, options.etcd.as_deref());
    }
    let agent = copy(options.agent()?, "portolan-proxy")?;
    let static_agent =
        options.static_agent.clone().map(|from| copy(from, "portolan-proxy-static")).transpose()?;
    eprintln!("measuring without Services");
    let idles = idle::measure(&agent, static_agent.as_deref())?;
    let mut figures = Vec::new();
    for &size in &options.sizes() {
        eprintln!("measuring {size}");
        figures.push(run::measure(&agent, size, options.rounds())?);
    }
    let mut bars = idle::bars(&idles);
    if !options.idle {
        println!("{}", table::render(&figures));
        bars.extend(bars::judge(&figures));
    }
    let met = print(&bars);
    if options.idle {
        return Ok(met);
    }
    let met = measure_iptables(options, &agent)? && met;
    let met = measure_api(&server, options.etcd.as_deref())? && met;
    Ok(measure_relay(options)? && met)
}

/// Compares kube-proxy with Portolan. There are no bars: the ratios are the result.
fn measure_peers(options: &BenchOptions, kube_proxy: &Path, agent: PathBuf) -> anyhow::Result<()> {
    let programs = Programs::new(kube_proxy, agent)?;
    let control_plane = options.control_plane();
    let version = control_plane.as_ref().map(ControlPlane::version).transpose()?.unwrap_or_default();
    let effort =
        Effort::new(options.quick, options.turns.into(), Duration::from_secs(options.first_sync_limit));
    let versions = Peer::BOTH.map(|peer| format!("{peer} {}", programs.version(peer)));
    println!("{}, {}", versions.join(", "), machine::programs());
    println!("\nAPI server: portolan serve {}\n", env!("CARGO_PKG_VERSION"));
    let figures = peers::measure(&programs, &effort, None)?;
    println!("{}", peers::render(&figures));
    if let Some(folder) = options.plot.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    fs::write(&options.plot, peers::draw(&figures))
        .with_context(|| format!("write {}", options.plot.display()))?;
    println!("plot: {}", options.plot.display());
    if let Some(control_plane) = &control_plane {
        println!("\nAPI server: kube-apiserver {version}\n");
        let figures = peers::measure(&programs, &effort, Some(control_plane))?;
        println!("{}", peers::render(&figures));
    }
    Ok(())
}

/// Measures what many nodes cost `portolan serve`, and the kube-apiserver that is named.
fn measure_scale(options: &BenchOptions, server: &Path, nodes: u32) -> anyhow::Result<bool> {
    let size = options.size_of_nodes();
    let mut bars = Vec::new();
    for control_plane in std::iter::once(None).chain(options.control_plane().map(Some)) {
        let figures = scale::measure(server, control_plane.as_ref(), usize::try_from(nodes)?, size)?;
        println!("{}", scale::render(&figures));
        if control_plane.is_none() {
            bars = scale::bars(&figures);
        }
    }
    Ok(print(&bars))
}

fn measure_relay(options: &BenchOptions) -> anyhow::Result<bool> {
    let ways = relay::measure(options.haproxy.as_deref(), options.nginx.as_deref())?;
    println!("\n{}", relay::render(&ways));
    Ok(print(&relay::bars(&ways)))
}

/// Prints how long changes wait that arrive during the comparison of a restart.
fn measure_restarts(options: &BenchOptions) -> anyhow::Result<()> {
    for size in options.sizes() {
        println!("{size}: {}", restart::measure(size, options.rounds().restarts)?);
    }
    Ok(())
}

fn measure_iptables(options: &BenchOptions, agent: &Path) -> anyhow::Result<bool> {
    let limit = Duration::from_secs(options.restore_limit);
    let figures = iptables::measure(&options.iptables_sizes(), options.rounds().changes, limit)?;
    println!("\n{}", iptables::render(&figures));
    let met = print(&iptables::bars(&figures));
    let count = options.rounds().connections;
    let figures = iptables::connections::measure(agent, &options.connection_sizes(), count)?;
    println!("\n{}", iptables::connections::render(&figures));
    Ok(met)
}

fn measure_api(binary: &Path, etcd: Option<&Path>) -> anyhow::Result<bool> {
    let figures = api::measure(binary, etcd)?;
    println!("\n{}", api::render(&figures));
    Ok(print(&api::bars(&figures)))
}

/// Prints the bars. Returns true if all that apply are met.
fn print(bars: &[bars::Bar]) -> bool {
    for bar in bars {
        println!("{bar}");
    }
    bars.iter().all(|bar| bar.met != Some(false))
}

/// Keeps a stage running for other tools.
fn hold(options: &BenchOptions) -> anyhow::Result<()> {
    let size = options.sizes().first().copied().context("a size")?;
    let stage = Stage::build(size)?;
    let (namespace, url) = (stage.node().path(), stage.url());
    println!(
        "nsenter --net={namespace} portolan-proxy --master {url} --hostname-override {}",
        workload::NODE
    );
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}
