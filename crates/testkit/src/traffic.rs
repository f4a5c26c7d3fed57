//! Steady background load that notices every lost connection, stream and datagram.
//!
//! Each kind has its own thread in the client's namespace: long-lived TCP streams, of which every line must be echoed;
//! new TCP connections at a steady rate; UDP flows with a fixed source port each, of which every datagram must be
//! answered, by the same backend; new SCTP associations at a steady rate; and long-lived ones, of which every heartbeat
//! must be acknowledged, by the same backend. The rates are lower while many answers are missing.

mod association;
mod flows;
mod streams;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_model::Protocol;
use rustix::io::Errno;

use crate::backlog;
use crate::engine::Engine;
use crate::probe::patience;
use crate::{Namespace, Probe, ProbeResult, TestkitError};

/// Maximum time to wait for missing answers at the end; see [`patience`].
const GRACE: Duration = Duration::from_secs(10);
/// Timeout of a connection that is not answered; see [`patience`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A sender with this many unanswered lines, datagrams, heartbeats or connections waits [`SLOWER`] times as long before the
/// next one. Otherwise a machine that is too busy for the load would fall further and further behind.
const UNANSWERED: u64 = 32;
const SLOWER: u32 = 10;
/// Maximum time after which the loops notice that they must stop, when there is nothing to send or read.
const TICK: Duration = Duration::from_millis(20);
/// Age at which a renewed stream ends, once all its lines are echoed: such streams begin, and are used, at every moment of a
/// change.
pub(crate) const RENEWED_AFTER: Duration = Duration::from_secs(1);
/// Number of answers after which a renewed flow ends, once all its datagrams are answered.
pub(crate) const RENEWED_AFTER_ANSWERS: u64 = 3;

/// The traffic to send. The destinations are virtual addresses, or a responder's own.
#[derive(Clone, Copy, Debug)]
pub struct TrafficPlan {
    /// Destination of TCP streams and connections; `None` for no TCP.
    pub tcp: Option<SocketAddr>,
    /// Destination of UDP flows; `None` for no UDP.
    pub udp: Option<SocketAddr>,
    /// Destination of SCTP associations; `None` for no SCTP.
    pub sctp: Option<SocketAddr>,
    /// Source address of all traffic; `None` leaves the choice to the routing.
    pub source: Option<IpAddr>,
    /// Number of long-lived TCP streams.
    pub streams: usize,
    /// Number of further TCP streams that each end after a second and are followed by another one.
    pub renewed_streams: usize,
    /// Time between two lines of a stream.
    pub stream_interval: Duration,
    /// New TCP connections per second, and as many new SCTP associations: INIT, sent once, and its INIT ACK.
    pub connections_per_second: u32,
    /// Number of UDP flows.
    pub udp_flows: usize,
    /// Number of further UDP flows that each end after three answers and are followed by another one, from
    /// another port.
    pub renewed_flows: usize,
    /// Time between two datagrams of a flow.
    pub udp_interval: Duration,
    /// Number of long-lived SCTP associations.
    pub associations: usize,
    /// Time between two heartbeats of an association.
    pub heartbeat_interval: Duration,
    /// Maximum time until the first answers.
    pub ready_within: Duration,
}

impl Default for TrafficPlan {
    /// Returns a plan without destinations: 10 streams with 50 lines a second each, 100 connections a second, 10
    /// flows with 100 datagrams a second each, 10 associations with 50 heartbeats a second each, and one minute for
    /// the first answers.
    fn default() -> Self {
        Self {
            tcp: None,
            udp: None,
            sctp: None,
            source: None,
            streams: 10,
            renewed_streams: 0,
            stream_interval: Duration::from_millis(20),
            connections_per_second: 100,
            udp_flows: 10,
            renewed_flows: 0,
            udp_interval: Duration::from_millis(10),
            associations: 10,
            heartbeat_interval: Duration::from_millis(20),
            ready_within: Duration::from_secs(60),
        }
    }
}

/// The results of the traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficReport {
    /// New connections that were answered.
    pub connections_ok: u64,
    /// New connections that were refused, reset or not answered within three seconds (longer where everything is emulated). A
    /// connection that is reset after its answer has not failed: only streams last longer.
    pub connections_failed: u64,
    /// Those of them that were neither answered nor refused nor reset.
    pub connections_timed_out: u64,
    /// Streams that were opened.
    pub streams: u64,
    /// Streams that ended, failed, or lost or changed a line.
    pub streams_broken: u64,
    /// Lines that streams have echoed.
    pub stream_lines: u64,
    /// Datagrams sent.
    pub udp_sent: u64,
    /// Datagrams never answered.
    pub udp_lost: u64,
    /// Answers that came from another backend than the flow's previous answer.
    pub udp_moved: u64,
    /// New SCTP associations that were answered.
    pub associations_ok: u64,
    /// New SCTP associations that were refused or not answered within the time of a connection.
    pub associations_failed: u64,
    /// Heartbeats sent.
    pub sctp_sent: u64,
    /// Heartbeats never acknowledged.
    pub sctp_lost: u64,
    /// Acknowledgements that came from another backend than the association's previous one.
    pub sctp_moved: u64,
    /// Packets that this machine lost on its own meanwhile, because an input queue was full: of this traffic or of any
    /// other. They count as lost, and this number may be the reason.
    pub dropped_by_machine: u64,
    /// Descriptions of the first losses, each with its time since the start.
    pub losses: Vec<String>,
}

/// Running background traffic; stops when dropped.
#[derive(Debug)]
pub struct Traffic {
    shared: Arc<Shared>,
    threads: Vec<Running>,
}

type Running = JoinHandle<Result<Result<TrafficReport, TestkitError>, TestkitError>>;
type Ready = mpsc::Sender<()>;

#[derive(Debug)]
struct Shared {
    started: Instant,
    /// Packets that this machine had lost on its own at the start.
    drops: u64,
    /// See [`Traffic::connections_timed_out`].
    timed_out: AtomicU64,
    stop: AtomicBool,
}

impl Traffic {
    /// Starts the traffic from a namespace. Returns when every stream, flow and long-lived association has had its
    /// first answer, and the first new connection and association have been answered.
    pub fn start(namespace: &Namespace, plan: TrafficPlan) -> Result<Self, TestkitError> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            drops: backlog::drops(),
            timed_out: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let mut traffic = Self { shared, threads: Vec::new() };
        let (ready, answered) = mpsc::channel();
        if let Some(destination) = plan.tcp {
            traffic.add(namespace, "streams", &ready, move |shared, ready| {
                streams::run(shared, destination, plan, ready)
            })?;
            traffic.add(namespace, "connections", &ready, move |shared, ready| {
                connections(shared, Protocol::Tcp, destination, plan, ready)
            })?;
        }
        if let Some(destination) = plan.udp {
            traffic.add(namespace, "flows", &ready, move |shared, ready| {
                flows::run(shared, flows::Kind::Udp, destination, plan, ready)
            })?;
        }
        if let Some(destination) = plan.sctp {
            traffic.add(namespace, "new SCTP", &ready, move |shared, ready| {
                connections(shared, Protocol::Sctp, destination, plan, ready)
            })?;
            traffic.add(namespace, "SCTP", &ready, move |shared, ready| {
                flows::run(shared, flows::Kind::Sctp, destination, plan, ready)
            })?;
        }
        drop(ready);
        // A thread that fails only drops its sender. `finish` returns its error.
        let expected = traffic.threads.len();
        if answered.iter().take(expected).count() < expected {
            let waited = traffic.shared.started.elapsed();
            traffic.finish()?;
            return Err(TestkitError::TrafficNotReady {
                kind: "threads",
                ready: 0,
                wanted: expected,
                waited,
            });
        }
        Ok(traffic)
    }

    /// Stops sending, waits at most ten seconds (longer where everything is emulated) for missing answers, and returns the report.
    pub fn stop(mut self) -> Result<TrafficReport, TestkitError> {
        self.finish()
    }

    /// Returns how many new connections have had no answer in time so far.
    pub fn connections_timed_out(&self) -> u64 {
        self.shared.timed_out.load(Ordering::Relaxed)
    }

    /// Starts no new work, and does not wait. Of several loads whose answers will never come, all then wait at once.
    pub fn wind_down(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    fn add(
        &mut self,
        namespace: &Namespace,
        name: &str,
        ready: &Ready,
        work: impl FnOnce(&Shared, Ready) -> Result<TrafficReport, TestkitError> + Send + 'static,
    ) -> Result<(), TestkitError> {
        let (shared, ready) = (self.shared.clone(), ready.clone());
        self.threads.push(namespace.spawn_thread(name, move || work(&shared, ready))?);
        Ok(())
    }

    fn finish(&mut self) -> Result<TrafficReport, TestkitError> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut total = TrafficReport::default();
        for thread in self.threads.drain(..) {
            total.add(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))??);
        }
        total.connections_timed_out = self.connections_timed_out();
        total.dropped_by_machine = backlog::drops().saturating_sub(self.shared.drops);
        Ok(total)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        // Each thread checks this once per tick and then ends.
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl TrafficReport {
    /// Maximum losses that a report describes.
    const DESCRIBED: usize = 20;

    /// Returns true if nothing failed, broke, was lost or moved.
    pub const fn is_lossless(&self) -> bool {
        self.connections_failed == 0
            && self.streams_broken == 0
            && self.udp_lost == 0
            && self.udp_moved == 0
            && self.associations_failed == 0
            && self.sctp_lost == 0
            && self.sctp_moved == 0
    }

    fn add(&mut self, other: Self) {
        self.connections_ok += other.connections_ok;
        self.connections_failed += other.connections_failed;
        self.streams += other.streams;
        self.streams_broken += other.streams_broken;
        self.stream_lines += other.stream_lines;
        self.udp_sent += other.udp_sent;
        self.udp_lost += other.udp_lost;
        self.udp_moved += other.udp_moved;
        self.associations_ok += other.associations_ok;
        self.associations_failed += other.associations_failed;
        self.sctp_sent += other.sctp_sent;
        self.sctp_lost += other.sctp_lost;
        self.sctp_moved += other.sctp_moved;
        self.losses.extend(other.losses);
    }

    fn describe(&mut self, shared: &Shared, loss: fmt::Arguments<'_>) {
        if self.losses.len() < Self::DESCRIBED {
            let at = shared.started.elapsed().as_millis();
            self.losses.push(format!("{at} ms: {loss}"));
        }
    }
}

impl fmt::Display for TrafficReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "connections: {} answered, {} failed", self.connections_ok, self.connections_failed)?;
        writeln!(
            f,
            "streams: {} with {} lines, {} broken",
            self.streams, self.stream_lines, self.streams_broken
        )?;
        write!(f, "UDP: {} sent, {} lost, {} moved", self.udp_sent, self.udp_lost, self.udp_moved)?;
        if self.sctp_sent > 0 {
            let (ok, failed) = (self.associations_ok, self.associations_failed);
            write!(f, "\nassociations: {ok} answered, {failed} failed")?;
            write!(f, "\nSCTP: {} sent, {} lost, {} moved", self.sctp_sent, self.sctp_lost, self.sctp_moved)?;
        }
        if self.dropped_by_machine > 0 {
            write!(f, "\nfull input queues of the machine: {} packets dropped", self.dropped_by_machine)?;
        }
        self.losses.iter().try_for_each(|loss| write!(f, "\n  {loss}"))
    }
}

impl Shared {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Opens new connections or associations at a steady rate and counts them when they are answered.
fn connections(
    shared: &Shared,
    protocol: Protocol,
    destination: SocketAddr,
    plan: TrafficPlan,
    ready: Ready,
) -> Result<TrafficReport, TestkitError> {
    let mut report = TrafficReport::default();
    let mut ready = Some(ready);
    let Some(interval) = Duration::from_secs(1).checked_div(plan.connections_per_second) else {
        ready.map(|ready| ready.send(()));
        return Ok(report);
    };
    let mut engine = Engine::new()?;
    let probe =
        Probe { source: plan.source, ..Probe::new(protocol, destination) }.timeout(patience(CONNECT_TIMEOUT));
    let mut next = Instant::now();
    let mut count = 0;
    while !shared.stopping() || engine.in_flight() > 0 {
        if next <= Instant::now() && !shared.stopping() {
            engine.start(count, &probe);
            count += 1;
            // What was missed while this thread did not run is left out.
            next = Instant::now().max(next + paced(interval, engine.in_flight() as u64));
        }
        let pause = until([next]);
        for (number, result) in engine.step(Some(pause))? {
            let (kind, ok, failed) = match protocol {
                Protocol::Sctp => {
                    ("association", &mut report.associations_ok, &mut report.associations_failed)
                }
                _ => ("connection", &mut report.connections_ok, &mut report.connections_failed),
            };
            if let ProbeResult::Reached(_) = result {
                *ok += 1;
                ready.take().map(|ready| ready.send(()));
            } else {
                *failed += 1;
                let is_silent = protocol != Protocol::Sctp && result == ProbeResult::TimedOut;
                shared.timed_out.fetch_add(is_silent.into(), Ordering::Relaxed);
                report.describe(shared, format_args!("{kind} {number}: {result:?}"));
            }
        }
        if ready.is_some() && shared.started.elapsed() > plan.ready_within {
            return Err(not_ready("connections", 0, 1, plan));
        }
    }
    Ok(report)
}

/// Returns the time between two messages of a sender with this many unanswered ones.
fn paced(interval: Duration, unanswered: u64) -> Duration {
    if unanswered < UNANSWERED { interval } else { interval.saturating_mul(SLOWER) }
}

/// Returns how long to wait for data: until the first of these times, but at most one tick.
fn until(moments: impl IntoIterator<Item = Instant>) -> Duration {
    let now = Instant::now();
    moments.into_iter().map(|moment| moment.saturating_duration_since(now)).fold(TICK, Duration::min)
}

fn not_ready(kind: &'static str, ready: usize, wanted: usize, plan: TrafficPlan) -> TestkitError {
    TestkitError::TrafficNotReady { kind, ready, wanted, waited: plan.ready_within }
}

fn failed(errno: Errno) -> TestkitError {
    TestkitError::System { action: "send background traffic", source: errno.into() }
}
