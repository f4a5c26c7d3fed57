//! The process under test: starts, observes and stops it.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use portolan_testkit::{Namespace, eventually_some};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

use crate::stage::Stage;
use crate::workload::NODE;

/// The proxy's log message for each family when the kernel is in sync.
const IN_SYNC: &str = "compared with the kernel and in sync";
/// The families that the proxy programs in this benchmark.
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
/// Maximum time of a start.
const START_WITHIN: Duration = Duration::from_secs(120);
/// Maximum time of a stop.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running proxy. It is killed when dropped, and by the kernel if this process dies first.
#[derive(Debug)]
pub(crate) struct Proxy {
    child: Child,
    _configuration: NamedTempFile,
}

/// The figures of a start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Start {
    /// Time from the spawn until the last family is in sync.
    pub(crate) duration: Duration,
    /// Element operations that were written.
    pub(crate) elements: u64,
    /// Other objects that were written.
    pub(crate) objects: u64,
    /// Maximum resident memory until then, in KiB.
    pub(crate) high_water: u32,
}

impl Proxy {
    /// Starts `binary` on the node of a stage and waits until the kernel is in sync.
    pub(crate) fn start(
        binary: &Path,
        stage: &Stage,
        min_sync_period: &str,
    ) -> anyhow::Result<(Self, Start)> {
        Self::start_on(binary, stage.node(), &stage.url(), min_sync_period)
    }

    /// Does the same with counters of Services.
    pub(crate) fn start_counting(binary: &Path, stage: &Stage) -> anyhow::Result<(Self, Start)> {
        let configuration = configuration("nftables", "0s", "portolan: {serviceCounters: true}\n")?;
        Self::start_with(binary, stage.node(), &stage.url(), configuration)
    }

    /// Does the same in iptables mode.
    pub(crate) fn start_in_iptables_mode(binary: &Path, stage: &Stage) -> anyhow::Result<Self> {
        let configuration = configuration("iptables", "0s", "")?;
        Self::start_with(binary, stage.node(), &stage.url(), configuration).map(|(proxy, _)| proxy)
    }

    /// Starts `binary` on any node, with the API server at `url`.
    pub(crate) fn start_on(
        binary: &Path,
        node: &Namespace,
        url: &str,
        min_sync_period: &str,
    ) -> anyhow::Result<(Self, Start)> {
        Self::start_with(binary, node, url, configuration("nftables", min_sync_period, "")?)
    }

    fn start_with(
        binary: &Path,
        node: &Namespace,
        url: &str,
        configuration: NamedTempFile,
    ) -> anyhow::Result<(Self, Start)> {
        let path = configuration.path().to_string_lossy().into_owned();
        // The default path of the control socket is that of the host's own proxy.
        let arguments = ["--master", url, "--config", &path, "--control-socket="].map(str::to_owned);
        let mut command = node.command(binary);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let spawned = Instant::now();
        let mut child = command.spawn()?;
        let stderr = child.stderr.take().context("the proxy's log")?;
        let proxy = Self { child, _configuration: configuration };
        let start = proxy.wait_until_in_sync(spawned, &read(stderr))?;
        Ok((proxy, start))
    }

    /// Returns the maximum resident memory, in KiB (`VmHWM`).
    pub(crate) fn high_water(&self) -> anyhow::Result<u32> {
        self.memory("VmHWM:")
    }

    /// Returns the current resident memory, in KiB (`VmRSS`).
    pub(crate) fn resident(&self) -> anyhow::Result<u32> {
        self.memory("VmRSS:")
    }

    /// Returns the processor time of all threads, user and system. The scheduler's value in nanoseconds is used if the
    /// kernel provides it (no thread of the proxy ends while it is measured), otherwise hundredths of a second.
    pub(crate) fn processor_time(&self) -> anyhow::Result<Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()))?;
        let mut total = Duration::ZERO;
        for task in tasks {
            let text = fs::read_to_string(task?.path().join("schedstat"));
            let Some(time) = text.ok().and_then(|text| text.split_whitespace().next()?.parse().ok()) else {
                return self.processor_time_in_ticks();
            };
            total = total.saturating_add(Duration::from_nanos(time));
        }
        Ok(total)
    }

    /// Stops the proxy until [`Proxy::go_on`].
    pub(crate) fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a stopped proxy go on.
    pub(crate) fn go_on(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Asks the proxy to end and waits for its end.
    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status =
            eventually_some(STOP_WITHIN, "the end of the proxy", || self.child.try_wait().ok().flatten())?;
        ensure!(status.success(), "the proxy ended with {status}");
        Ok(())
    }

    fn memory(&self, name: &'static str) -> anyhow::Result<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.split_whitespace().next()).context(name)?;
        Ok(kib.parse()?)
    }

    fn wait_until_in_sync(
        &self,
        spawned: Instant,
        lines: &Receiver<(Instant, String)>,
    ) -> anyhow::Result<Start> {
        let deadline = spawned + START_WITHIN;
        let mut start = Start::default();
        let mut waiting = FAMILIES.to_vec();
        let mut log = String::new();
        while !waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((at, line)) = lines.recv_timeout(left) else {
                bail!("the proxy is not in sync with the kernel; its log:\n{log}");
            };
            log.push_str(&line);
            log.push('\n');
            if !line.contains(IN_SYNC) {
                continue;
            }
            let fields = fields(&line);
            waiting.retain(|family| fields.get("family") != Some(family));
            start.duration = at.saturating_duration_since(spawned);
            let number =
                |name| fields.get(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
            start.elements = start.elements.saturating_add(number("elements"));
            start.objects = start.objects.saturating_add(number("objects"));
        }
        start.high_water = self.high_water()?;
        Ok(start)
    }

    fn processor_time_in_ticks(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The second field, a name in parentheses, may contain spaces.
        let (_, rest) = stat.rsplit_once(')').context("stat")?;
        let ticks =
            rest.split_whitespace().skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
        Ok(Duration::from_millis(ticks.saturating_mul(10)))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Both fail only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(mode: &str, min_sync_period: &str, further: &str) -> anyhow::Result<NamedTempFile> {
    let file = NamedTempFile::with_prefix("portolan-bench-")?;
    let text = format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
         hostnameOverride: {NODE}\nclusterCIDR: 10.128.0.0/9\n{mode}:\n  minSyncPeriod: {min_sync_period}\n{further}"
    );
    fs::write(file.path(), text)?;
    Ok(file)
}

/// Reads the lines of the log, each with the time at which it arrived.
fn read(stderr: ChildStderr) -> Receiver<(Instant, String)> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            // The receiver may be gone. The pipe must be read all the same.
            let _ = sender.send((Instant::now(), line));
        }
    });
    receiver
}

/// Returns the `name=value` fields of a log line.
fn fields(line: &str) -> HashMap<&str, &str> {
    let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.map(|(name, value)| (name, value.trim_matches('"'))).collect()
}
