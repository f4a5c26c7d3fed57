//! Probes, which find out which responder a packet reaches, and their results.

use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use portolan_model::Protocol;
use rustix::io::Errno;

/// Default time to wait for an answer. Answers take about a millisecond; the rest is reserve for a machine that is
/// busy with other work. No other timeout of a probe has this value.
const PATIENCE: Duration = Duration::from_secs(6);
/// The same if every instruction is emulated.
const EMULATED_PATIENCE: Duration = Duration::from_secs(20);
/// Factor for other waiting times if every instruction is emulated. An emulated machine is thirty times slower, pauses now and
/// then, and shares the processors with other work of the host.
const EMULATED_TIMES: u32 = 10;
/// How often an emulated machine sends a datagram that is not answered.
const EMULATED_ATTEMPTS: u32 = 4;
/// Time to wait if no answer is expected: long compared to an answer's time, short compared to a test's. It is longer where every
/// instruction is emulated, as answers take longer there. No other timeout of a probe has this value.
const DROP_PATIENCE: Duration = Duration::from_millis(200);

/// Returns true if every instruction of this machine is emulated (`PORTOLAN_TEST_EMULATED`, which tests/vm/run sets).
pub fn is_emulated() -> bool {
    static EMULATED: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PORTOLAN_TEST_EMULATED").is_some());
    *EMULATED
}

/// Returns the time to wait for something that usually takes less than `usual`; longer on an emulated machine.
pub(crate) fn patience(usual: Duration) -> Duration {
    if is_emulated() { usual.saturating_mul(EMULATED_TIMES) } else { usual }
}

/// Returns the time for which a probe with this timeout waits if every instruction is emulated. A timeout that a test has chosen
/// itself stays.
fn emulated(timeout: Duration) -> Duration {
    match timeout {
        PATIENCE => EMULATED_PATIENCE,
        DROP_PATIENCE => DROP_PATIENCE.saturating_mul(EMULATED_TIMES),
        other => other,
    }
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
    /// The source port; `None` chooses a free one that no probe has used for a long time.
    pub source_port: Option<u16>,
    /// The maximum time to wait for an answer.
    pub timeout: Duration,
}

impl Probe {
    /// Creates a probe that waits up to six seconds for its answer, and longer on an emulated machine.
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

    /// Returns the time to wait on this machine. Only the default, and the time for a silence, are longer on an emulated machine.
    pub(crate) fn patience(&self) -> Duration {
        if is_emulated() { emulated(self.timeout) } else { self.timeout }
    }

    /// Returns how often the packet is sent until an answer arrives. The kernel repeats SYNs itself. An emulated machine
    /// loses packets while it pauses, so datagrams are repeated there.
    pub(crate) fn attempts(&self) -> u32 {
        if is_emulated() && self.may_be_repeated() { EMULATED_ATTEMPTS } else { 1 }
    }

    /// Returns true if the packet may be sent again when the machine has lost it on its own. Probes with a timeout of their
    /// own look for lost packets, or for silence.
    pub(crate) fn may_be_repeated(&self) -> bool {
        self.protocol != Protocol::Tcp && self.timeout == PATIENCE
    }

    /// Sets the short timeout (200 ms, and longer on an emulated machine) of a probe that should get no answer.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_everything_is_emulated_the_usual_times_are_longer_and_chosen_ones_stay() {
        let usual = Probe::new(Protocol::Tcp, SocketAddr::from(([192, 0, 2, 1], 80)));
        for probe in [usual, usual.expecting_silence()] {
            assert!(emulated(probe.timeout) >= 3 * probe.timeout, "{probe:?}");
        }
        let chosen = Duration::from_millis(250);
        assert_eq!(emulated(usual.timeout(chosen).timeout), chosen);
    }
}
