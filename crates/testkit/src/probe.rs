//! Probes: one packet, or a batch of packets, sent to find out which responder they reach.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use portolan_model::Protocol;
use rustix::io::Errno;

use crate::engine::Engine;
use crate::{Namespace, TestkitError, socket};

/// Default time to wait for an answer. Answers take about a millisecond; the rest is reserve for a machine that is
/// busy with other work.
const PATIENCE: Duration = Duration::from_secs(2);
/// Factor for waiting times if every instruction is emulated. An emulated machine is thirty times slower, pauses now and
/// then, and shares the processors with other work of the host.
const EMULATED_TIMES: u32 = 10;
/// How often an emulated machine sends a datagram that is not answered.
const EMULATED_ATTEMPTS: u32 = 4;
/// Time to wait if no answer is expected: long compared to an answer's time, short compared to a test's.
const DROP_PATIENCE: Duration = Duration::from_millis(200);
/// Time to wait for a blocking `connect()` that is refused. The kernel repeats a SYN after one second
/// (`TCP_TIMEOUT_INIT`), so a refusal that misses the first SYN has arrived by then as well.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum probes that run at the same time, well below usual limits of open files.
const AT_ONCE: usize = 500;

/// Returns true if every instruction of this machine is emulated (`PORTOLAN_TEST_EMULATED`, which tests/vm/run sets).
pub fn is_emulated() -> bool {
    static EMULATED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PORTOLAN_TEST_EMULATED").is_some());
    *EMULATED
}

/// Returns the time to wait for something that usually takes less than `usual`; longer on an emulated machine.
pub(crate) fn patience(usual: Duration) -> Duration {
    if is_emulated() { usual.saturating_mul(EMULATED_TIMES) } else { usual }
}

/// One attempt to reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The protocol.
    pub protocol: Protocol,
    /// The destination.
    pub destination: SocketAddr,
    /// The source address; `None` leaves the choice to the namespace's routing.
    pub source: Option<IpAddr>,
    /// The source port; `None` chooses a free one (UDP and SCTP: one that no probe has used for a long time).
    pub source_port: Option<u16>,
    /// The maximum time to wait for an answer.
    pub timeout: Duration,
}

impl Probe {
    /// Creates a probe that waits up to two seconds for its answer, and longer on an emulated machine.
    pub const fn new(protocol: Protocol, destination: SocketAddr) -> Self {
        Self { protocol, destination, source: None, source_port: None, timeout: PATIENCE }
    }

    /// Sets the source address.
    #[must_use]
    pub const fn from(mut self, source: IpAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the source port.
    #[must_use]
    pub const fn from_port(mut self, port: u16) -> Self {
        self.source_port = Some(port);
        self
    }

    /// Sets the maximum time to wait for an answer.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the time to wait on this machine. Only the default is longer on an emulated machine.
    pub(crate) fn patience(&self) -> Duration {
        if self.timeout == PATIENCE { patience(self.timeout) } else { self.timeout }
    }

    /// Returns how often the packet is sent until an answer arrives. The kernel repeats SYNs itself. An emulated machine
    /// loses packets while it pauses, so datagrams are repeated there.
    pub(crate) fn attempts(&self) -> u32 {
        let repeats = is_emulated() && self.protocol != Protocol::Tcp && self.timeout == PATIENCE;
        if repeats { EMULATED_ATTEMPTS } else { 1 }
    }

    /// Sets the short timeout (200 ms) of a probe that should get no answer.
    #[must_use]
    pub const fn expecting_silence(self) -> Self {
        self.timeout(DROP_PATIENCE)
    }
}

/// The result of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// A responder answered.
    Reached(Reached),
    /// TCP: the answer to the first SYN of a blocking `connect()` refuses it. Other protocols: an SCTP ABORT or an ICMP
    /// port unreachable.
    Refused,
    /// TCP: the connection is refused, but a blocking `connect()` may fail only after the answer to its second SYN, a second
    /// later. The refusal is an ICMP port unreachable, which the kernel ignores while `connect()` holds the socket.
    RefusedLate,
    /// Another ICMP error, or no route.
    Unreachable,
    /// No answer within the timeout. A packet that a rule drops before it leaves the namespace counts as well.
    TimedOut,
    /// An answer that does not come from a responder of this testkit.
    Unrecognised,
    /// Another socket error.
    Failed(Errno),
}

/// The answer of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The responder's own address and port.
    pub backend: SocketAddr,
    /// The source that the responder has seen.
    pub seen_source: SocketAddr,
}

impl ProbeResult {
    /// Returns the responder that was reached, if any.
    pub const fn backend(&self) -> Option<SocketAddr> {
        match self {
            Self::Reached(reached) => Some(reached.backend),
            _ => None,
        }
    }

    /// Returns the source address that the responder has seen, if one was reached.
    pub const fn seen_source(&self) -> Option<IpAddr> {
        match self {
            Self::Reached(reached) => Some(reached.seen_source.ip()),
            _ => None,
        }
    }
}

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
