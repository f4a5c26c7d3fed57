//! The cluster of `portolan-testcluster`, whose node agent is `portolan proxy`, and faults of its API server.
#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

pub(crate) mod client;
pub(crate) mod cutter;
pub(crate) mod faulty;
pub(crate) mod gate;
pub(crate) mod ipvs;
pub(crate) mod kernel;
pub(crate) mod load;
pub(crate) mod migrate;
pub(crate) mod programs;
pub(crate) mod server;
pub(crate) mod watches;

use std::path::Path;
use std::process::{Command, Output};

use portolan_testkit::{Namespace, PortolanProcess, World};

pub(crate) use portolan_testcluster::{
    BACKEND_PORT, COMPLETE, IN_SYNC, NODE, PATIENCE, Proxy, all_work, at, backend, backends, configuration,
    ends_as, http, in_sync, listen, logged, objects, page, reaches, world,
};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_portolan");
/// The cluster of these tests.
pub(crate) type Cluster = portolan_testcluster::Cluster<Portolan>;

/// The binary `portolan`, whose subcommand `proxy` is the node agent.
pub(crate) struct Portolan;

impl portolan_testcluster::Agent for Portolan {
    const BINARY: &'static str = BINARY;
    const SUBCOMMAND: &'static [&'static str] = &["proxy"];
}

/// Copies the program. Another process writes the copy: a child that another test starts meanwhile would have this process's
/// open file until it runs its own program, and the kernel starts no program from a file that is open for writing.
pub(crate) fn copy_binary(to: &Path) {
    let status = Command::new("cp").args(["--preserve=mode", BINARY]).arg(to).status().unwrap();
    assert!(status.success(), "{}: {status}", to.display());
}

/// Starts the proxy on the node, without a minimum interval between commits unless the configuration says otherwise.
pub(crate) fn start_proxy(world: &World, folder: &Path, proxy: &Proxy<'_>) -> PortolanProcess {
    portolan_testcluster::start_proxy::<Portolan>(world, folder, proxy)
}

/// Starts the proxy as root with these capabilities only, and waits until both families are in sync.
pub(crate) fn proxy_with_capabilities(
    cluster: &Cluster,
    capabilities: &str,
    yaml: &str,
    arguments: &[&str],
) -> PortolanProcess {
    cluster.configure(yaml);
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let bounding = format!("--bounding-set=-all,{capabilities}");
    let program = [&bounding, "--inh-caps=-all", "--no-new-privs", "--", BINARY, "proxy"];
    let own = ["--config", file.to_str().unwrap(), "--master", &master];
    let all = [&program[..], &own, arguments].concat();
    let mut proxy =
        PortolanProcess::start(cluster.world.node().namespace(), "setpriv".as_ref(), &all).unwrap();
    in_sync(&mut proxy);
    proxy
}

/// Starts the proxy where `/proc/sys` is read-only, as in the agent's container of the manifests.
pub(crate) fn proxy_with_read_only_settings(cluster: &Cluster, yaml: &str) -> PortolanProcess {
    cluster.configure(yaml);
    let script = format!(
        "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec {BINARY} proxy --config {} --master {}",
        cluster.configuration_file().display(),
        cluster.master()
    );
    let arguments = ["--mount", "--propagation", "private", "sh", "-c", &script];
    let node = cluster.world.node().namespace();
    let mut proxy = PortolanProcess::start(node, "unshare".as_ref(), &arguments).unwrap();
    in_sync(&mut proxy);
    proxy
}

/// Runs `portolan plan` on the node. Its exit code is 0 if the kernel has what the objects ask for.
pub(crate) fn differences(cluster: &Cluster) -> Output {
    let (file, master) = (cluster.configuration_file(), cluster.master());
    let arguments = ["plan", "--config", file.to_str().unwrap(), "--master", &master];
    let node = cluster.world.node().namespace();
    node.run(|| Command::new(BINARY).args(arguments).output().unwrap()).unwrap()
}

/// Returns how often the proxy's watches have been interrupted or could not be opened.
pub(crate) fn watch_restarts(node: &Namespace) -> usize {
    let page = http::get(node, at("127.0.0.1:10249"), "/metrics").unwrap().body;
    let restarts = page.lines().filter_map(|line| line.strip_prefix("portolan_watch_restarts_total"));
    restarts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}
