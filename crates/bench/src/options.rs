//! The command line.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Parser;
use portolan_testkit::ControlPlane;

use crate::relay::Role;
use crate::run::Rounds;
use crate::workload::Size;

/// Measures the shipped builds of `portolan-proxy` and `portolan serve` and prints one table.
#[derive(Debug, Parser)]
#[command(name = "portolan-bench", version)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub(crate) struct BenchOptions {
    /// Sizes to measure: Services x endpoints of each.
    #[arg(long, value_name = "NxM,...", value_delimiter = ',')]
    sizes: Vec<Size>,
    /// Two small sizes and fewer rounds: to see that everything works.
    #[arg(long)]
    pub(crate) quick: bool,
    /// The node agent to measure; by default the one beside this program.
    #[arg(long, value_name = "FILE")]
    portolan_proxy: Option<PathBuf>,
    /// The API server to measure; by default the `portolan` beside this program.
    #[arg(long, value_name = "FILE")]
    portolan: Option<PathBuf>,
    /// The static node agent, as `make static` makes it.
    #[arg(long, value_name = "FILE")]
    pub(crate) static_agent: Option<PathBuf>,
    /// Only what is measured without Services: start to ready, resident memory, length of the static binary.
    #[arg(long)]
    pub(crate) idle: bool,
    /// Only the API server under load.
    #[arg(long, conflicts_with = "idle")]
    pub(crate) api: bool,
    /// Only changes that arrive during the comparison of a restart.
    #[arg(long, conflicts_with_all = ["idle", "api", "iptables", "relay"])]
    pub(crate) restarts: bool,
    /// Only the iptables mode.
    #[arg(long, conflicts_with_all = ["idle", "api"])]
    pub(crate) iptables: bool,
    /// How long, in seconds, an iptables-restore of everything at once may take before it is ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) restore_limit: u64,
    /// etcd, for an API server on it.
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd: Option<PathBuf>,
    /// Only the relay of the userspace mode.
    #[arg(long, conflicts_with_all = ["idle", "api"])]
    pub(crate) relay: bool,
    /// Program of `HAProxy`, to compare the relay with; its libraries may be beside it.
    #[arg(long, value_name = "FILE")]
    pub(crate) haproxy: Option<PathBuf>,
    /// Program of nginx, to compare the relay with; its stream module is beside it.
    #[arg(long, value_name = "FILE")]
    pub(crate) nginx: Option<PathBuf>,
    /// Only the comparison with kube-proxy: the path of its binary.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["idle", "api", "iptables", "relay"])]
    pub(crate) peers: Option<PathBuf>,
    /// Only what this number of nodes costs an API server, with the first of the sizes, by default 10000x10. Four
    /// connections of each to a kube-apiserver come from one address, so there is a limit.
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["idle", "api", "iptables", "relay", "peers"],
        value_parser = clap::value_parser!(u32).range(1..=13_000))]
    pub(crate) nodes: Option<u32>,
    /// For `--peers` and `--nodes`: measure with this kube-apiserver, too. It runs on the etcd that `--etcd` names.
    #[arg(long, value_name = "FILE", requires = "etcd")]
    pub(crate) kube_apiserver: Option<PathBuf>,
    /// The plot that the comparison writes.
    #[arg(long, value_name = "FILE", default_value = "target/peers.svg")]
    pub(crate) plot: PathBuf,
    /// How long, in seconds, a first sync may take in the comparison.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) first_sync_limit: u64,
    /// How often each agent is started at each size in the comparison.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) turns: u8,
    /// What this process does for another one of this program.
    #[arg(long, hide = true)]
    pub(crate) role: Option<Role>,
    /// For a role.
    #[arg(long, hide = true)]
    pub(crate) backend: Option<IpAddr>,
    /// Only build the stage of the first size, print how to start a proxy on it, and wait for the end of the
    /// standard input: for profilers.
    #[arg(long)]
    pub(crate) hold: bool,
    /// Exit with 1 where a bar is missed.
    #[arg(long)]
    pub(crate) strict: bool,
}

impl BenchOptions {
    /// Returns the sizes to measure.
    pub(crate) fn sizes(&self) -> Vec<Size> {
        if self.idle {
            return Vec::new();
        }
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        if self.quick { Size::QUICK.to_vec() } else { Size::ALL.to_vec() }
    }

    /// Returns the sizes to measure in the iptables mode.
    pub(crate) fn iptables_sizes(&self) -> Vec<Size> {
        match &*self.sizes {
            [] if self.quick => Size::QUICK.to_vec(),
            [] => vec![Size::new(1_000, 10), Size::new(10_000, 10)],
            sizes => sizes.to_vec(),
        }
    }

    /// Returns the sizes at which `connect()` is measured in the iptables mode.
    pub(crate) fn connection_sizes(&self) -> Vec<Size> {
        let services: &[usize] = if self.quick { &[10, 100] } else { &[10, 100, 1_000, 10_000] };
        services.iter().map(|&services| Size::new(services, 10)).collect()
    }

    /// Returns the size to measure with many nodes.
    pub(crate) fn size_of_nodes(&self) -> Size {
        let usual = if self.quick { 100 } else { 10_000 };
        self.sizes.first().copied().unwrap_or(Size::new(usual, 10))
    }

    /// Returns the number of repetitions.
    pub(crate) fn rounds(&self) -> Rounds {
        if self.quick {
            Rounds {
                changes: 20,
                paused_changes: 3,
                restarts: 1,
                burst: 1_000,
                at_once: 10_000,
                connections: 2_000,
                requests: 4_000,
            }
        } else {
            Rounds {
                changes: 50,
                paused_changes: 10,
                restarts: 3,
                burst: 1_000,
                at_once: 10_000,
                connections: 5_000,
                requests: 20_000,
            }
        }
    }

    /// Returns the binaries of the kube-apiserver to compare on.
    pub(crate) fn control_plane(&self) -> Option<ControlPlane> {
        let (kube_apiserver, etcd) = (self.kube_apiserver.clone()?, self.etcd.clone()?);
        Some(ControlPlane { kube_apiserver, etcd })
    }

    /// Returns the node agent to measure.
    pub(crate) fn agent(&self) -> anyhow::Result<PathBuf> {
        binary(self.portolan_proxy.as_deref(), "portolan-proxy")
    }

    /// Returns the binary of the API server to measure.
    pub(crate) fn server(&self) -> anyhow::Result<PathBuf> {
        binary(self.portolan.as_deref(), "portolan")
    }
}

/// Returns `given`, or else the binary of a package that is beside this program.
fn binary(given: Option<&Path>, package: &str) -> anyhow::Result<PathBuf> {
    let binary = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe().context("where this program is")?.with_file_name(package),
    };
    ensure!(
        binary.is_file(),
        "{} is not there: build it with `cargo build --profile dist -p {package}`, or name another with --{package}",
        binary.display()
    );
    Ok(binary)
}
