//! Sends probes from namespaces: one, or many at the same time.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::thread;
use std::time::Duration;

use portolan_model::Protocol;
use rustix::io::Errno;

use crate::engine::Engine;
use crate::probe::patience;
use crate::{Namespace, Probe, ProbeResult, TestkitError, socket};

/// Time to wait for a blocking `connect()` that is refused. The kernel repeats a SYN after one second
/// (`TCP_TIMEOUT_INIT`), so a refusal that misses the first SYN has arrived by then as well.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum probes that run at the same time, well below usual limits of open files.
const AT_ONCE: usize = 500;

impl Namespace {
    /// Sends one probe from this namespace.
    pub fn probe(&self, probe: Probe) -> Result<ProbeResult, TestkitError> {
        self.run(|| probe_here(probe))?
    }

    /// Sends many probes from this namespace, up to 500 at the same time. Results have the order of `probes`.
    pub fn probe_many(&self, probes: &[Probe]) -> Result<Vec<ProbeResult>, TestkitError> {
        self.run(|| probe_many_here(probes))?
    }
}

/// Sends each probe from its namespace, all namespaces at the same time and up to 500 probes at once in each.
/// Results have the order of `probes`.
pub fn probe_many(probes: &[(&Namespace, Probe)]) -> Result<Vec<ProbeResult>, TestkitError> {
    let mut groups: HashMap<u64, (&Namespace, Vec<usize>, Vec<Probe>)> = HashMap::new();
    for (index, (namespace, probe)) in probes.iter().enumerate() {
        let group = groups.entry(namespace.id()).or_insert_with(|| (namespace, vec![], vec![]));
        group.1.push(index);
        group.2.push(*probe);
    }
    let mut results = vec![ProbeResult::TimedOut; probes.len()];
    thread::scope(|scope| {
        let running: Vec<_> = groups
            .into_values()
            .map(|(namespace, indexes, batch)| (indexes, scope.spawn(move || namespace.probe_many(&batch))))
            .collect();
        for (indexes, handle) in running {
            let batch = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            for (index, result) in indexes.into_iter().zip(batch) {
                if let Some(slot) = results.get_mut(index) {
                    *slot = result;
                }
            }
        }
        Ok(results)
    })
}

fn probe_here(probe: Probe) -> Result<ProbeResult, TestkitError> {
    let results = probe_many_here(&[probe])?;
    Ok(results.first().copied().unwrap_or(ProbeResult::TimedOut))
}

/// Sends the probes. A refused TCP probe is repeated with a blocking `connect()`, to tell [`ProbeResult::RefusedLate`].
fn probe_many_here(probes: &[Probe]) -> Result<Vec<ProbeResult>, TestkitError> {
    let mut results = send_many(probes)?;
    for (probe, result) in probes.iter().zip(&mut results) {
        if probe.protocol == Protocol::Tcp && *result == ProbeResult::Refused && is_refused_late(probe)? {
            *result = ProbeResult::RefusedLate;
        }
    }
    Ok(results)
}

/// Returns true if the kernel ignores the refusal of the first SYN of a blocking `connect()`. It counts these refusals,
/// so the result does not depend on the speed of the machine.
fn is_refused_late(probe: &Probe) -> Result<bool, TestkitError> {
    let before = ignored_icmp_errors()?;
    let result = socket::connect_until(probe.destination, probe.source, patience(REFUSAL_PATIENCE));
    Ok(result == Err(Errno::INPROGRESS) || ignored_icmp_errors()? != before)
}

/// Returns how many ICMP errors the kernel has ignored in this thread's namespace because a system call held the
/// socket: `LockDroppedIcmps`, of both families (`tcp_v4_err` in `net/ipv4/tcp_ipv4.c`).
fn ignored_icmp_errors() -> Result<u64, TestkitError> {
    const FILE: &str = "/proc/thread-self/net/netstat";
    let fail = |source| TestkitError::System { action: "count ignored ICMP errors", source };
    let text = fs::read_to_string(FILE).map_err(fail)?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:")).map(str::split_whitespace);
    let (names, values) = (lines.next().into_iter().flatten(), lines.next().into_iter().flatten());
    let value = names.zip(values).find(|(name, _)| *name == "LockDroppedIcmps").map(|(_, value)| value);
    value.and_then(|value| value.parse().ok()).ok_or_else(|| fail(io::ErrorKind::NotFound.into()))
}

fn send_many(probes: &[Probe]) -> Result<Vec<ProbeResult>, TestkitError> {
    let mut engine = Engine::new()?;
    let mut results = vec![ProbeResult::TimedOut; probes.len()];
    let mut waiting = probes.iter().enumerate();
    loop {
        for (index, probe) in waiting.by_ref().take(AT_ONCE.saturating_sub(engine.in_flight())) {
            engine.start(index as u64, probe);
        }
        for (token, result) in engine.step(None)? {
            if let Some(slot) = usize::try_from(token).ok().and_then(|index| results.get_mut(index)) {
                *slot = result;
            }
        }
        if engine.in_flight() == 0 && waiting.len() == 0 {
            return Ok(results);
        }
    }
}
