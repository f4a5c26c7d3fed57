//! Connections to the Service of the host, and requests for its name.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use portolan_testkit::{Namespace, Probe, ProbeResult, Protocol};

/// Connections that are counted. The probability that one of three backends gets none of them is below 10^-10.
pub(super) const CONNECTIONS: usize = 60;
/// Connections that are made at the same time while something changes.
const AT_ONCE: usize = 8;
/// Pause between them. Without it, they would use up the ports of the client.
const PAUSE: Duration = Duration::from_millis(10);
/// Shortest timeout of a connection while the Service may not be programmed. Nothing answers then.
const SHORT: Duration = Duration::from_millis(20);
/// Source ports of the connections to a Service that may not be programmed yet. The kernel chooses ports from 32768.
const FIRST_PORTS: Range<u16> = 1024..32_768;
/// Deadline of a change.
const CHANGED_WITHIN: Duration = Duration::from_secs(120);
/// Deadline of an answer of the DNS server.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
const ID: u16 = 4711;

/// The results of connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) made: usize,
    pub(super) answered: usize,
    /// Connections that were answered since the last failure.
    pub(super) answered_in_a_row: usize,
    /// Connections that were refused.
    pub(super) refused: usize,
    /// Other failures. Of those with the same words, one.
    pub(super) faults: BTreeSet<String>,
    /// The backends that answered.
    pub(super) backends: BTreeSet<IpAddr>,
    /// When the last failure was seen.
    pub(super) last_failure: Option<Instant>,
}

impl Connections {
    /// Makes connections from a namespace.
    fn make(&mut self, from: &Namespace, probe: Probe, count: usize) -> anyhow::Result<()> {
        let to = probe.destination;
        for result in from.probe_many(&vec![probe; count])? {
            self.made += 1;
            match result {
                ProbeResult::Reached(reached) => {
                    self.answered += 1;
                    self.answered_in_a_row += 1;
                    self.backends.insert(reached.backend.ip());
                }
                ProbeResult::Refused | ProbeResult::RefusedLate => {
                    self.refused += 1;
                    self.failed();
                }
                other => {
                    self.faults.insert(format!("a connection to {to} failed: {other:?}"));
                    self.failed();
                }
            }
        }
        Ok(())
    }

    fn failed(&mut self) {
        self.answered_in_a_row = 0;
        self.last_failure = Some(Instant::now());
    }
}

/// Makes connections to each address. Adds a fault for each refused connection, and for each backend that got none.
pub(super) fn send(from: &Namespace, to: &[SocketAddr], backends: &[IpAddr]) -> anyhow::Result<Connections> {
    let mut all = Connections::default();
    for to in to {
        all.make(from, Probe::new(Protocol::Tcp, *to), CONNECTIONS)?;
    }
    if all.refused > 0 {
        all.faults.insert(format!("{} connections were refused", all.refused));
    }
    let expected: BTreeSet<IpAddr> = backends.iter().copied().collect();
    if all.backends != expected {
        all.faults.insert(format!("{:?} answered, not {expected:?}", all.backends));
    }
    Ok(all)
}

/// Makes connections continuously until `enough` returns true.
pub(super) fn until(
    from: &Namespace,
    to: SocketAddr,
    what: &str,
    enough: impl Fn(&Connections) -> bool,
) -> anyhow::Result<Connections> {
    let (mut all, started) = (Connections::default(), Instant::now());
    while !enough(&all) {
        if started.elapsed() > CHANGED_WITHIN {
            bail!("{what}: not within {CHANGED_WITHIN:?}: {all:?}");
        }
        all.make(from, Probe::new(Protocol::Tcp, to), AT_ONCE)?;
        thread::sleep(PAUSE);
    }
    Ok(all)
}

/// Makes connections until one is answered. The timeout grows with the time that has passed, because a busy machine needs
/// more.
///
/// Conntrack remembers a connection that was made before the Service was programmed, for two minutes and without an
/// address translation. A later connection from the same port would have the same fate. So these use ports that the
/// kernel does not choose by itself.
pub(super) fn until_reached(from: &Namespace, to: SocketAddr) -> anyhow::Result<()> {
    let (mut all, started) = (Connections::default(), Instant::now());
    for port in FIRST_PORTS {
        let passed = started.elapsed();
        if passed > CHANGED_WITHIN {
            break;
        }
        let probe = Probe::new(Protocol::Tcp, to).from_port(port).timeout(SHORT.max(passed / 4));
        all.make(from, probe, 1)?;
        if all.answered > 0 {
            return Ok(());
        }
    }
    bail!("an answer: not within {CHANGED_WITHIN:?}: {all:?}")
}

/// Returns the IPv4 address of a name.
pub(super) fn resolve(from: &Namespace, server: SocketAddr, name: &str) -> anyhow::Result<Ipv4Addr> {
    let answer = from.run(|| ask(server, name))??;
    let mut addresses = answer.answers.iter().filter_map(|record| match &record.data {
        RData::A(address) => Some(address.0),
        _ => None,
    });
    addresses.next().with_context(|| format!("{name} has no address: {}", answer.metadata.response_code))
}

/// Sends one request for the IPv4 addresses of a name.
fn ask(server: SocketAddr, name: &str) -> anyhow::Result<Message> {
    let mut request = Message::new(ID, MessageType::Query, OpCode::Query);
    request.add_query(Query::query(Name::from_ascii(name)?, RecordType::A));
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(ANSWERED_WITHIN))?;
    socket.send(&request.to_vec()?)?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer).with_context(|| format!("no answer from {server}"))?;
    let answer = Message::from_vec(buffer.get(..length).unwrap_or_default())?;
    anyhow::ensure!(answer.metadata.id == ID, "{server} answered another request");
    Ok(answer)
}
