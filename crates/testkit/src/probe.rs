//! One packet, or a batch of them, sent to see where it ends up.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use portolan_model::Protocol;
use rustix::io::Errno;

use crate::engine::Engine;
use crate::{Namespace, TestkitError, socket};

/// How long an answer may take by default. Answers come within a millisecond or so; this is for a machine
/// that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many times as long it may take where every instruction is emulated: that is thirty times slower, pauses now and
/// then, and shares the processors with whatever else the machine does.
const EMULATED_TIMES: u32 = 10;
/// How long to wait where none is expected: long against an answer's time, short against a test's.
const DROP_PATIENCE: Duration = Duration::from_millis(200);
/// The kernel repeats a SYN after a second (`TCP_TIMEOUT_INIT`).
const BEFORE_THE_SECOND_SYN: Duration = Duration::from_millis(900);
/// So many probes are under way at the same time, well below usual limits of open files.
const AT_ONCE: usize = 500;

/// Whether every instruction of this machine is emulated (`PORTOLAN_TEST_EMULATED`, which tests/vm/run sets).
pub fn is_emulated() -> bool {
    static EMULATED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PORTOLAN_TEST_EMULATED").is_some());
    *EMULATED
}

/// How long this machine may take for what another one does within `usual`.
pub(crate) fn patience(usual: Duration) -> Duration {
    if is_emulated() { usual.saturating_mul(EMULATED_TIMES) } else { usual }
}

/// One attempt to reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// How.
    pub protocol: Protocol,
    /// Where to.
    pub destination: SocketAddr,
    /// From which address of the namespace; `None` leaves the choice to its routing.
    pub source: Option<IpAddr>,
    /// From which port; `None` takes a free one (UDP and SCTP: one that no probe has had for a long time).
    pub source_port: Option<u16>,
    /// When to give up.
    pub timeout: Duration,
}

impl Probe {
    /// A probe that waits up to two seconds for its answer, longer where everything is emulated.
    pub const fn new(protocol: Protocol, destination: SocketAddr) -> Self {
        Self { protocol, destination, source: None, source_port: None, timeout: PATIENCE }
    }

    /// From this address.
    #[must_use]
    pub const fn from(mut self, source: IpAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// From this port.
    #[must_use]
    pub const fn from_port(mut self, port: u16) -> Self {
        self.source_port = Some(port);
        self
    }

    /// With this much patience.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long it may really take on this machine.
    pub(crate) fn patience(&self) -> Duration {
        if self.timeout == PATIENCE { patience(self.timeout) } else { self.timeout }
    }

    /// With the short patience (200 ms) of a probe that should get no answer.
    #[must_use]
    pub const fn expecting_silence(self) -> Self {
        self.timeout(DROP_PATIENCE)
    }
}

/// Where a probe ended up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// A responder answered.
    Reached(Reached),
    /// TCP: a blocking `connect()` was refused by the answer to its first SYN. Others: an SCTP abort or an ICMP port
    /// unreachable.
    Refused,
    /// TCP was refused, but a blocking `connect()` may learn of it only from the answer to its second SYN, a second later: by
    /// an ICMP port unreachable, which the kernel passes over while `connect()` holds the socket.
    RefusedLate,
    /// Another ICMP error, or no route.
    Unreachable,
    /// No answer in time. A packet that a rule drops on its way out of the namespace counts as well.
    TimedOut,
    /// Somebody answered who is no responder of this kit.
    Unrecognised,
    /// The socket failed in another way.
    Failed(Errno),
}

/// The answer of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The responder's own address and port.
    pub backend: SocketAddr,
    /// Where the responder saw the packet come from.
    pub seen_source: SocketAddr,
}

impl ProbeResult {
    /// The responder that was reached, if one was.
    pub const fn backend(&self) -> Option<SocketAddr> {
        match self {
            Self::Reached(reached) => Some(reached.backend),
            _ => None,
        }
    }

    /// The address that the responder saw, if one was reached.
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

    /// Sends many probes from this namespace, up to 500 at the same time; results in the same order.
    pub fn probe_many(&self, probes: &[Probe]) -> Result<Vec<ProbeResult>, TestkitError> {
        self.run(|| probe_many_here(probes))?
    }
}

/// Sends one probe from each of the given namespaces' points of view, all namespaces at the same time and
/// up to 500 probes at once in each; results in the order of `probes`.
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

/// Sends the probes; those over TCP that are refused have to be so for a blocking `connect()`, too.
fn probe_many_here(probes: &[Probe]) -> Result<Vec<ProbeResult>, TestkitError> {
    let mut results = send_many(probes)?;
    for (probe, result) in probes.iter().zip(&mut results) {
        if probe.protocol == Protocol::Tcp
            && *result == ProbeResult::Refused
            && socket::connect_until(probe.destination, probe.source, BEFORE_THE_SECOND_SYN)
                == Err(Errno::INPROGRESS)
        {
            *result = ProbeResult::RefusedLate;
        }
    }
    Ok(results)
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
