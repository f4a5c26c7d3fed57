//! One of the two agents as a process on the node of a stage.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use portolan_testkit::{PortolanProcess, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Mode, Peer, Programs};
use crate::changes;
use crate::stage::Stage;
use crate::workload::NODE;

/// Maximum time of a stop.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// kube-proxy replaces a period of zero by its default of a second.
const MIN_SYNC_PERIOD: &str = "1ms";

/// A running agent.
#[derive(Debug)]
pub(super) struct Agent {
    process: PortolanProcess,
    spawned: Instant,
    _folder: TempDir,
}

impl Agent {
    /// Starts an agent.
    pub(super) fn start(programs: &Programs, peer: Peer, mode: Mode, stage: &Stage) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("portolan-bench-")?;
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let (config, access) = (path("config.conf"), path("kubeconfig.conf"));
        fs::write(&access, stage.kubeconfig())?;
        fs::write(&config, configuration(programs, mode, &access)?)?;
        let (program, arguments) = match peer {
            Peer::KubeProxy => (programs.kube_proxy.path(), vec!["--config", &config]),
            // The default path of the control socket is that of the host's own proxy.
            Peer::Portolan => (&*programs.portolan, vec!["--config", &config, "--control-socket="]),
        };
        let spawned = Instant::now();
        let process = PortolanProcess::start(stage.node(), program, &arguments)?;
        Ok(Self { process, spawned, _folder: folder })
    }

    /// Waits for the first connection that the moving Service's endpoint accepts. Returns the time since the start. `None`
    /// if there is no such connection within the limit.
    pub(super) fn first_sync(&mut self, stage: &Stage, within: Duration) -> anyhow::Result<Option<Duration>> {
        let spawned = self.spawned;
        while spawned.elapsed() < within {
            if let Some(at) = changes::first_connection(stage)? {
                return Ok(Some(at.saturating_duration_since(spawned)));
            }
            let ended = self.process.ended();
            ensure!(ended.is_none(), "the agent has ended; its log:\n{}", self.process.output());
        }
        Ok(None)
    }

    /// Returns its processor time, with that of the programs that it has run.
    pub(super) fn processor_time(&self) -> anyhow::Result<Duration> {
        self.process.processor_time_with_programs().context("the processor time of the agent")
    }

    /// Returns its maximum resident memory in bytes. Programs that it runs are not included.
    pub(super) fn high_water(&self) -> anyhow::Result<u64> {
        self.process.resident_high_water().context("the memory of the agent")
    }

    /// Returns its log.
    pub(super) fn log(&self) -> String {
        self.process.output()
    }

    /// Ends it and the programs that it runs.
    pub(super) fn stop(mut self) -> anyhow::Result<()> {
        let programs = children(self.process.id());
        self.process.kill()?;
        for program in &programs {
            // It may have ended.
            let _ = kill_process(*program, Signal::KILL);
        }
        let is_gone = |pid: &Pid| !fs::exists(format!("/proc/{}", pid.as_raw_nonzero())).unwrap_or(false);
        eventually(STOP_WITHIN, "the end of the agent's programs", || programs.iter().all(is_gone))?;
        Ok(())
    }
}

/// Returns the configuration that both agents get.
fn configuration(programs: &Programs, mode: Mode, kubeconfig: &str) -> anyhow::Result<String> {
    let mut text =
        String::from("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n");
    writeln!(text, "mode: {mode}\nhostnameOverride: {NODE}\nclusterCIDR: 10.128.0.0/9")?;
    writeln!(text, "clientConnection: {{kubeconfig: {kubeconfig}}}")?;
    writeln!(text, "{mode}: {{minSyncPeriod: {MIN_SYNC_PERIOD}}}")?;
    text.push_str(&programs.kube_proxy.configuration());
    Ok(text)
}

/// Returns the processes that any thread of a process has started, from `children` (`proc_pid_children(5)`).
fn children(process: u32) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<i32>>())
        .filter_map(Pid::from_raw)
        .collect()
}
