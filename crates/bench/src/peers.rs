//! Measures kube-proxy and Portolan side by side: in turns, in one run, on the same stage, with the same configuration.
//!
//! A binary of kube-proxy and one of `portolan-proxy` go in. A table for each mode comes out, with the ratio of every two
//! figures, and a plot of the time of a change over the number of Services. It must not know which rules either writes: every
//! time ends with a connection that succeeds or is refused.
//!
//! - [`agent`]: one of the two as a process
//! - [`turn`]: the measurements of one start of an agent
//! - [`report`], [`plot`]: the output

mod agent;
mod plot;
mod report;
mod turn;

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portolan_testkit::{ControlPlane, KubeProxy};

use crate::stage::Stage;
use crate::workload::Size;

use self::turn::Turn;

pub(crate) use self::plot::draw;
pub(crate) use self::report::render;

/// Pause in which the kernel removes what a namespace or an agent has left. It does so in the background.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// A mode that both agents have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Nftables,
    Iptables,
}

impl Mode {
    pub(crate) const ALL: [Self; 2] = [Self::Nftables, Self::Iptables];

    const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One of the two agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    KubeProxy,
    Portolan,
}

impl Peer {
    pub(crate) const BOTH: [Self; 2] = [Self::KubeProxy, Self::Portolan];
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KubeProxy => "kube-proxy",
            Self::Portolan => "Portolan",
        })
    }
}

/// The number of repetitions of each measurement, and its limits.
#[derive(Debug, Clone)]
pub(crate) struct Effort {
    /// Numbers of Services.
    sizes: Vec<Size>,
    /// Starts of each agent at each size and in each mode.
    turns: usize,
    /// Single changes in a turn.
    changes: usize,
    /// Changes in a burst.
    burst: usize,
    /// Connections, and requests on an open connection, each way in a turn.
    connections: usize,
    /// Maximum time of a first sync.
    first_sync: Duration,
}

impl Effort {
    /// Returns the effort of the table, or that of a quick check that everything works.
    pub(crate) fn new(quick: bool, turns: usize, first_sync: Duration) -> Self {
        let (sizes, turns, changes, connections) =
            if quick { (&[0, 1_000][..], 1, 5, 500) } else { (&[0, 1_000, 10_000][..], turns, 20, 2_000) };
        let sizes = sizes.iter().map(|&services| Size::new(services, 10)).collect();
        Self { sizes, turns, changes, burst: 1_000, connections, first_sync }
    }
}

/// The binaries.
#[derive(Debug)]
pub(crate) struct Programs {
    kube_proxy: KubeProxy,
    portolan: PathBuf,
}

impl Programs {
    /// Takes the paths of the two binaries.
    pub(crate) fn new(kube_proxy: &Path, portolan: PathBuf) -> anyhow::Result<Self> {
        Ok(Self { kube_proxy: KubeProxy::new(kube_proxy)?, portolan })
    }

    /// Returns the version of an agent.
    pub(crate) fn version(&self, peer: Peer) -> &str {
        match peer {
            Peer::KubeProxy => self.kube_proxy.version(),
            Peer::Portolan => env!("CARGO_PKG_VERSION"),
        }
    }

    fn modes(&self) -> Vec<Mode> {
        Mode::ALL.into_iter().filter(|mode| self.kube_proxy.has_mode(mode.name())).collect()
    }
}

/// The figures of one agent in one mode at one size.
#[derive(Debug)]
pub(crate) struct Figures {
    size: Size,
    mode: Mode,
    peer: Peer,
    turns: Vec<Turn>,
    /// The maximum time of a first sync, if it was exceeded. Nothing else is measured then.
    exceeded: Option<Duration>,
}

/// Measures everything, on a kube-apiserver if its binaries are given. The agents take turns, so that other load of the machine
/// affects both alike.
pub(crate) fn measure(
    programs: &Programs,
    effort: &Effort,
    control_plane: Option<&ControlPlane>,
) -> anyhow::Result<Vec<Figures>> {
    let mut all = Vec::new();
    for &size in &effort.sizes {
        eprintln!("building the stage of {size}");
        let stage =
            Stage::build_on(control_plane, size).context("build the namespaces and load the objects")?;
        check_iptables(&stage)?;
        let mut burst_from = 0;
        for mode in programs.modes() {
            let mut both =
                Peer::BOTH.map(|peer| Figures { size, mode, peer, turns: Vec::new(), exceeded: None });
            for number in 1..=effort.turns {
                for figures in &mut both {
                    if figures.exceeded.is_some() {
                        continue;
                    }
                    eprintln!("measuring {} in mode {mode} at {size}, turn {number}", figures.peer);
                    one_turn(programs, effort, &stage, figures, burst_from)
                        .with_context(|| format!("{} in mode {mode} at {size}", figures.peer))?;
                    burst_from += effort.burst;
                }
            }
            all.extend(both);
        }
        drop(stage);
        thread::sleep(CLEAN_UP);
    }
    Ok(all)
}

/// Starts an agent on a node without rules, measures it, stops it, and removes its rules.
fn one_turn(
    programs: &Programs,
    effort: &Effort,
    stage: &Stage,
    figures: &mut Figures,
    burst_from: usize,
) -> anyhow::Result<()> {
    match turn::measure(programs, effort, stage, figures, burst_from)? {
        Some(turn) => figures.turns.push(turn),
        None => figures.exceeded = Some(effort.first_sync),
    }
    stage.node().output("nft", &["flush", "ruleset"])?;
    thread::sleep(CLEAN_UP);
    Ok(())
}

/// Checks that all rules are removed with the ruleset of nftables.
fn check_iptables(stage: &Stage) -> anyhow::Result<()> {
    let version = stage.node().output("iptables", &["--version"])?;
    ensure!(
        version.contains("nf_tables"),
        "iptables is {}: choose the variant with nf_tables (`update-alternatives --set iptables /usr/sbin/iptables-nft`)",
        version.trim()
    );
    Ok(())
}
