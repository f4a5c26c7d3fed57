//! Runs many probes at the same time on one thread, which must be inside the namespace that they start from.
//!
//! Each TCP and UDP probe has its own socket. SCTP probes share a raw socket per family and source address.
//! Raw ICMP sockets report refusals at once, for all protocols: when a local rule sends an ICMP error for a
//! TCP connection, the kernel itself ignores it until the next retransmission.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portolan_model::{Family, Protocol};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, recv, recvfrom, send, sendto, sockopt};

use crate::TestkitError;
use crate::backlog;
use crate::icmp;
use crate::pauses::Pauses;
use crate::ports;
use crate::probe::{Probe, ProbeResult, Reached};
use crate::sctp::{self, Chunk, Packet, strip_ipv4_header};
use crate::socket::{self, Flow, Poller, parse_answer};

/// The first token of shared sockets. Lower tokens belong to probes.
const SHARED: u64 = 1 << 63;
/// Time for which an SCTP refusal waits for an acceptance. A kernel with its own SCTP stack refuses what the
/// responder is about to accept.
const SCTP_REFUSAL_GRACE: Duration = Duration::from_millis(50);
const PACKET_BYTES: usize = 2048;

pub(crate) struct Engine {
    poller: Poller,
    shared: Vec<Shared>,
    flights: HashMap<u64, Flight>,
    flows: HashMap<Flow, u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    done: Vec<(u64, ProbeResult)>,
    pauses: Pauses,
    /// Packets that this machine had lost on its own when they were last counted.
    drops: u64,
}

struct Shared {
    fd: OwnedFd,
    family: Family,
    kind: SharedKind,
}

#[derive(PartialEq, Eq)]
enum SharedKind {
    Icmp,
    Sctp { source: Option<IpAddr> },
}

struct Flight {
    flow: Flow,
    deadline: Instant,
    /// The result if nothing more arrives before the deadline.
    verdict: ProbeResult,
    transport: Transport,
    /// The source address of the probe.
    source: Option<IpAddr>,
    /// Time between two attempts, and how often the packet is sent again.
    pause: Duration,
    attempts_left: u32,
    /// The engine's `drops` when the packet was last sent; `None` if it must not be sent again because of them.
    drops: Option<u64>,
}

enum Transport {
    /// The socket, and the part of the answer that has been read.
    Tcp(OwnedFd, Vec<u8>),
    Udp(OwnedFd),
    Sctp {
        initiate_tag: u32,
    },
}

impl Engine {
    pub(crate) fn new() -> Result<Self, TestkitError> {
        let fail = || TestkitError::system("prepare to probe");
        let mut engine = Self {
            poller: Poller::new().map_err(fail())?,
            shared: Vec::new(),
            flights: HashMap::new(),
            flows: HashMap::new(),
            deadlines: BTreeSet::new(),
            done: Vec::new(),
            pauses: Pauses::new(),
            drops: backlog::drops(),
        };
        for family in Family::BOTH {
            let fd = socket::raw_icmp(family).map_err(fail())?;
            engine.share(fd, family, SharedKind::Icmp).map_err(fail())?;
        }
        Ok(engine)
    }

    /// Returns the number of unfinished probes.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Starts a probe. A later [`Engine::step`] returns its result with `token`.
    pub(crate) fn start(&mut self, token: u64, probe: &Probe) {
        let opened = match probe.protocol {
            Protocol::Tcp => self.start_tcp(token, probe),
            Protocol::Udp => self.start_udp(token, probe),
            Protocol::Sctp => self.start_sctp(probe),
        };
        match opened {
            Ok((source_port, transport)) => {
                let flow = (probe.protocol, source_port, probe.destination);
                let pause = probe.patience() / probe.attempts();
                let deadline = Instant::now() + pause;
                self.flows.insert(flow, token);
                self.deadlines.insert((deadline, token));
                let (verdict, source) = (ProbeResult::TimedOut, probe.source);
                let attempts_left = probe.attempts() - 1;
                let drops = probe.may_be_repeated().then_some(self.drops);
                let flight =
                    Flight { flow, deadline, verdict, transport, source, pause, attempts_left, drops };
                self.flights.insert(token, flight);
            }
            Err(errno) => self.done.push((token, classify(errno))),
        }
    }

    /// Waits for an event until `timeout` or the next deadline, and returns the finished probes.
    pub(crate) fn step(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Vec<(u64, ProbeResult)>, TestkitError> {
        let now = Instant::now();
        let next = self.deadlines.first().map(|(deadline, _)| deadline.saturating_duration_since(now));
        let wait = match (timeout, next) {
            _ if !self.done.is_empty() => Some(Duration::ZERO),
            (Some(timeout), Some(next)) => Some(timeout.min(next)),
            // Without an unfinished probe there is nothing to wait for.
            (timeout, None) => timeout.or(Some(Duration::ZERO)),
            (None, next) => next,
        };
        let mut tokens = self.poller.wait(wait).map_err(TestkitError::system("wait for answers"))?;
        let pause = self.pauses.passed(wait.unwrap_or(Duration::MAX));
        if !pause.is_zero() {
            self.postpone(pause);
        }
        // Everything that has come is read before anything is late.
        let mut looked = Instant::now();
        while !tokens.is_empty() {
            for token in tokens {
                if token >= SHARED { self.read_shared(token) } else { self.read_own(token) }
            }
            looked = Instant::now();
            tokens = self.poller.wait(Some(Duration::ZERO)).map_err(TestkitError::system("read answers"))?;
        }
        self.expire(looked);
        self.pauses.runs();
        Ok(std::mem::take(&mut self.done))
    }

    /// Gives all probes as much more time.
    fn postpone(&mut self, pause: Duration) {
        for flight in self.flights.values_mut() {
            flight.deadline += pause;
        }
        self.deadlines = self.deadlines.iter().map(|(deadline, token)| (*deadline + pause, *token)).collect();
    }

    fn start_tcp(&mut self, token: u64, probe: &Probe) -> Result<(u16, Transport), Errno> {
        let fd = socket::stream(Family::of(probe.destination.ip()))?;
        // Closing resets the connection, so that no TIME_WAIT entries use up the ports.
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
        bind_source(&fd, probe)?;
        match connect(&fd, &probe.destination) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        self.poller.watch_changes(&fd, token)?;
        Ok((socket::local_address(&fd)?.port(), Transport::Tcp(fd, Vec::new())))
    }

    fn start_udp(&mut self, token: u64, probe: &Probe) -> Result<(u16, Transport), Errno> {
        let fd = socket::datagram(Family::of(probe.destination.ip()))?;
        bind_source(&fd, probe)?;
        connect(&fd, &probe.destination)?;
        self.poller.watch_changes(&fd, token)?;
        ignore_local_drop(send(&fd, b"probe", SendFlags::NOSIGNAL))?;
        Ok((socket::local_address(&fd)?.port(), Transport::Udp(fd)))
    }

    fn start_sctp(&mut self, probe: &Probe) -> Result<(u16, Transport), Errno> {
        let (turn, port) = ports::next();
        let source_port = probe.source_port.unwrap_or(port);
        let initiate_tag = sctp::initiate_tag(turn);
        self.send_init(probe.source, source_port, probe.destination, initiate_tag)?;
        Ok((source_port, Transport::Sctp { initiate_tag }))
    }

    fn send_init(
        &mut self,
        source: Option<IpAddr>,
        source_port: u16,
        destination: SocketAddr,
        initiate_tag: u32,
    ) -> Result<(), Errno> {
        let packet = Packet {
            source_port,
            destination_port: destination.port(),
            verification_tag: 0,
            chunk: Chunk::Init { initiate_tag },
        };
        // A raw socket has its protocol already: the port of the address must be zero.
        let destination = SocketAddr::new(destination.ip(), 0);
        let fd = self.sctp_socket(Family::of(destination.ip()), source)?;
        ignore_local_drop(sendto(fd, &packet.encode(), SendFlags::NOSIGNAL, &destination))
    }

    fn sctp_socket(&mut self, family: Family, source: Option<IpAddr>) -> Result<&OwnedFd, Errno> {
        let kind = SharedKind::Sctp { source };
        if !self.shared.iter().any(|shared| shared.family == family && shared.kind == kind) {
            let fd = socket::raw_sctp(family)?;
            if let Some(source) = source {
                socket::bind_to(&fd, source, 0)?;
            }
            self.share(fd, family, SharedKind::Sctp { source })?;
        }
        let found = self.shared.iter().find(|shared| shared.family == family && shared.kind == kind);
        found.map(|shared| &shared.fd).ok_or(Errno::BADF)
    }

    fn share(&mut self, fd: OwnedFd, family: Family, kind: SharedKind) -> Result<(), Errno> {
        self.poller.watch_reads(&fd, SHARED | self.shared.len() as u64)?;
        self.shared.push(Shared { fd, family, kind });
        Ok(())
    }

    fn read_own(&mut self, token: u64) {
        let Some(flight) = self.flights.get_mut(&token) else { return };
        let result = match &mut flight.transport {
            Transport::Tcp(fd, read) => read_tcp(fd, read),
            Transport::Udp(fd) => read_udp(fd),
            Transport::Sctp { .. } => None,
        };
        if let Some(result) = result {
            self.finish(token, result);
        }
    }

    fn read_shared(&mut self, token: u64) {
        let mut buffer = [0; PACKET_BYTES];
        let index = usize::try_from(token & !SHARED).unwrap_or(usize::MAX);
        loop {
            let Some(shared) = self.shared.get(index) else { return };
            let Ok((_, length, from)) = recvfrom(&shared.fd, &mut buffer, RecvFlags::DONTWAIT) else {
                return;
            };
            let Some(packet) = buffer.get(..length) else { continue };
            let family = shared.family;
            if shared.kind == SharedKind::Icmp {
                self.take_icmp(family, packet);
            } else if let Some(Ok(from)) = from.map(SocketAddr::try_from) {
                self.take_sctp(family, from.ip(), packet);
            }
        }
    }

    fn take_icmp(&mut self, family: Family, packet: &[u8]) {
        let Some((flow, result)) = icmp::decode(family, packet) else { return };
        let result = match (flow.0, result) {
            (Protocol::Tcp, ProbeResult::Refused) => ProbeResult::RefusedLate,
            (_, result) => result,
        };
        if let Some(token) = self.flows.get(&flow).copied() {
            self.finish(token, result);
        }
    }

    fn take_sctp(&mut self, family: Family, from: IpAddr, packet: &[u8]) {
        let payload = if family == Family::Ipv4 { strip_ipv4_header(packet) } else { Some(packet) };
        let Some(packet) = payload.and_then(Packet::decode) else { return };
        let flow = (Protocol::Sctp, packet.destination_port, SocketAddr::new(from, packet.source_port));
        let Some(token) = self.flows.get(&flow).copied() else { return };
        let expected = self.flights.get(&token).is_some_and(|flight| {
            matches!(flight.transport, Transport::Sctp { initiate_tag } if initiate_tag == packet.verification_tag)
        });
        match packet.chunk {
            Chunk::InitAck { cookie, .. } if expected => self.finish(token, reached(&cookie)),
            Chunk::Abort if expected => self.expect_refusal(token),
            _ => {}
        }
    }

    /// Makes the probe a refusal after a grace period, unless an acceptance arrives before that.
    fn expect_refusal(&mut self, token: u64) {
        let Some(flight) = self.flights.get_mut(&token) else { return };
        self.deadlines.remove(&(flight.deadline, token));
        flight.deadline = Instant::now() + SCTP_REFUSAL_GRACE;
        flight.verdict = ProbeResult::Refused;
        self.deadlines.insert((flight.deadline, token));
    }

    /// Finishes the probes whose deadline is over, and repeats those that may be repeated. `now` is when the sockets were
    /// looked at: what has come since then is read first.
    fn expire(&mut self, now: Instant) {
        if self.deadlines.first().is_some_and(|(deadline, _)| *deadline <= now) {
            self.drops = backlog::drops();
        }
        while let Some((_, token)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now)
        {
            if !self.repeat(token) {
                let verdict = self.flights.get(&token).map_or(ProbeResult::TimedOut, |flight| flight.verdict);
                self.finish(token, verdict);
            }
        }
    }

    /// Sends the packet of an unanswered probe again. Returns false if no attempt is left, and this machine has lost no packet
    /// on its own since the last one.
    fn repeat(&mut self, token: u64) -> bool {
        let Some(flight) = self.flights.get_mut(&token) else { return false };
        let may_be_dropped = flight.drops.is_some_and(|drops| drops != self.drops);
        if flight.verdict != ProbeResult::TimedOut || (flight.attempts_left == 0 && !may_be_dropped) {
            return false;
        }
        flight.attempts_left = flight.attempts_left.saturating_sub(1);
        flight.drops = flight.drops.map(|_| self.drops);
        self.deadlines.remove(&(flight.deadline, token));
        flight.deadline = Instant::now() + flight.pause;
        self.deadlines.insert((flight.deadline, token));
        let ((_, source_port, destination), source) = (flight.flow, flight.source);
        // If it cannot be sent, the next attempt may succeed.
        let _ = match &flight.transport {
            Transport::Tcp(..) => Ok(()),
            Transport::Udp(fd) => ignore_local_drop(send(fd, b"probe", SendFlags::NOSIGNAL)),
            &Transport::Sctp { initiate_tag } => {
                self.send_init(source, source_port, destination, initiate_tag)
            }
        };
        true
    }

    fn finish(&mut self, token: u64, result: ProbeResult) {
        let Some(flight) = self.flights.remove(&token) else { return };
        self.flows.remove(&flight.flow);
        self.deadlines.remove(&(flight.deadline, token));
        self.done.push((token, result));
    }
}

/// Binds the socket to the probe's source port, or else to the next one.
fn bind_source(fd: &OwnedFd, probe: &Probe) -> Result<(), Errno> {
    let Some(port) = probe.source_port else {
        return ports::bind_next(fd, probe.source, probe.destination);
    };
    sockopt::set_socket_reuseaddr(fd, true)?;
    socket::bind_to(fd, probe.source.unwrap_or_else(|| ports::unspecified(probe.destination)), port)
}

/// Ignores the error of a send whose packet a local rule drops: for a probe, this is a lost packet.
fn ignore_local_drop(sent: Result<usize, Errno>) -> Result<(), Errno> {
    match sent {
        Ok(_) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Reads the answer. An answer that came before an error counts: `recv` returns the error after the data.
fn read_tcp(fd: &OwnedFd, read: &mut Vec<u8>) -> Option<ProbeResult> {
    let mut buffer = [0; 256];
    loop {
        match recv(fd, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Some(ProbeResult::Unrecognised),
            Ok((_, length)) => read.extend(buffer.iter().take(length)),
            // Still connecting, or no data yet.
            Err(Errno::AGAIN | Errno::NOTCONN) => {
                let (Ok(Err(errno)) | Err(errno)) = sockopt::socket_error(fd) else { return None };
                return Some(classify(errno));
            }
            Err(errno) => return Some(classify(errno)),
        }
        if read.contains(&b'\n') || read.len() > PACKET_BYTES {
            return Some(reached(read));
        }
    }
}

fn read_udp(fd: &OwnedFd) -> Option<ProbeResult> {
    let mut buffer = [0; PACKET_BYTES];
    match recv(fd, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((_, length)) => Some(reached(buffer.get(..length).unwrap_or_default())),
        Err(Errno::AGAIN) => None,
        Err(errno) => Some(classify(errno)),
    }
}

fn reached(answer: &[u8]) -> ProbeResult {
    match parse_answer(answer) {
        Some((backend, seen_source, _)) => ProbeResult::Reached(Reached { backend, seen_source }),
        None => ProbeResult::Unrecognised,
    }
}

fn classify(errno: Errno) -> ProbeResult {
    match errno {
        Errno::CONNREFUSED => ProbeResult::Refused,
        // A `prohibit` route and an administrative ICMP error give ACCESS.
        Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NOPROTOOPT | Errno::ACCESS => {
            ProbeResult::Unreachable
        }
        Errno::TIMEDOUT | Errno::PERM => ProbeResult::TimedOut,
        errno => ProbeResult::Failed(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn an_answer_that_a_reset_follows_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = OwnedFd::from(TcpStream::connect(at).unwrap());
        let (mut server, seen_source) = listener.accept().unwrap();
        server.write_all(format!("{}\n", socket::answer(at, seen_source)).as_bytes()).unwrap();
        // Closing then resets.
        sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        drop(server);
        let reached = ProbeResult::Reached(Reached { backend: at, seen_source });
        assert_eq!(read_tcp(&client, &mut Vec::new()), Some(reached));
        assert_eq!(read_tcp(&client, &mut Vec::new()), Some(ProbeResult::Failed(Errno::CONNRESET)));
    }

    #[test]
    fn the_time_of_a_pause_does_not_count() {
        if !crate::can_create_namespaces() {
            return;
        }
        // The listener does not accept the connection, so no answer comes.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut engine = Engine::new().unwrap();
        let probe = Probe::new(Protocol::Tcp, listener.local_addr().unwrap());
        engine.start(1, &probe.timeout(Duration::from_secs(3600)));
        let [(before, 1)] = engine.deadlines.iter().copied().collect::<Vec<_>>()[..] else { panic!() };
        let pause = Duration::from_secs(5);
        engine.postpone(pause);
        assert_eq!(engine.deadlines, BTreeSet::from([(before + pause, 1)]));
        engine.finish(1, ProbeResult::TimedOut);
        assert_eq!((engine.deadlines.len(), engine.in_flight()), (0, 0));
    }
}
