//! The thread that cleans up stale flows on request.
//!
//! Requests are queued by family and Service port; the latest of each is kept. One family is cleaned up at a time.
//! Requests that arrive meanwhile are read before anything is deleted, so that a flow to an endpoint that was added a
//! moment ago is not deleted as stale. A failed clean-up is queued again and retried. So is one that may not have seen
//! every flow, but only a few times: a flow that cannot be read stays unreadable.

use std::net::IpAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use portolan_model::catalog::{PerFamily, UdpService};
use portolan_model::{Family, NodePortAddresses};
use portolan_sock::SocketError;
use portolan_wire::conntrack::Flow;

use super::pending::Pending;
use super::{Check, Cleaner, Error, Report, Verdict};
use portolan_mailbox::{Received, Receiver, Sender, mailbox};
use portolan_sock::addresses;

/// Wait after a first failure. It doubles with each consecutive failure.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Longest wait after a failure.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How often in a row a clean-up is retried because it may not have seen every flow. The waits add up to at least 25 s.
const PARTIAL_RETRIES: u32 = 8;
/// After a clean-up the thread waits this many times its duration. Under constant change it takes a tenth of one
/// processor.
const REST: u32 = 9;

/// The result of a clean-up or of an attempt at one.
#[derive(Debug)]
pub struct Cleaned {
    /// Family of the flows.
    pub family: Family,
    /// How long it took.
    pub duration: Duration,
    /// The report, or the error. After an error or a refusal the clean-up is retried, and a few times after a partial
    /// report.
    pub outcome: Result<Report, Error>,
}

/// The addresses of this node that accept node ports in one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePorts {
    /// The addresses. Loopback addresses among them do not count.
    pub addresses: NodePortAddresses,
    /// Loopback networks that accept node ports, too.
    pub loopback: Vec<IpNet>,
}

impl Default for NodePorts {
    /// No address accepts node ports.
    fn default() -> Self {
        Self { addresses: NodePortAddresses::Addresses(Vec::new()), loopback: Vec::new() }
    }
}

/// The running thread. Dropping this value drops pending requests and ends the thread after its current clean-up.
#[derive(Debug)]
pub struct CleanerThread {
    requests: Requests,
    thread: Option<JoinHandle<()>>,
}

/// A handle to send requests to the thread.
#[derive(Debug, Clone)]
pub struct Requests {
    sender: Sender<Mail>,
}

/// What was requested since the worker looked last.
#[derive(Debug, Default)]
struct Mail {
    requests: PerFamily<Pending>,
    node_ports: PerFamily<Option<NodePorts>>,
    stop: bool,
}

impl CleanerThread {
    /// Starts the thread in the network namespace of the calling thread. `node_ports` are the addresses that accept
    /// node ports. Those of the device with the name `ignored` do not: the IPVS mode adds the addresses of Services to
    /// one. `report` is called after each clean-up.
    pub fn spawn(
        node_ports: PerFamily<NodePorts>,
        ignored: &'static str,
        report: impl FnMut(Cleaned) + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::spawn_with(Netlink { ignored }, Monotonic, node_ports, report)
    }

    fn spawn_with(
        kernel: impl Kernel + Send + 'static,
        clock: impl Clock + Send + 'static,
        node_ports: PerFamily<NodePorts>,
        report: impl FnMut(Cleaned) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mailbox();
        let lanes = lanes(node_ports, clock.now());
        let inbox = Inbox { receiver, lanes, stopped: false };
        let worker = Worker { kernel, clock, inbox, report };
        let thread = std::thread::Builder::new().name("conntrack".into()).spawn(move || worker.run())?;
        Ok(Self { requests: Requests { sender }, thread: Some(thread) })
    }

    /// Returns true if the thread runs. It ends by itself only if it panics.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Returns a handle to send requests.
    pub fn requests(&self) -> Requests {
        self.requests.clone()
    }
}

impl Drop for CleanerThread {
    fn drop(&mut self) {
        self.requests.sender.put(|mail| mail.stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Requests {
    /// Requests the deletion of stale flows of these Service ports. Call it after their rules are programmed: a flow
    /// that starts before that may be stale again.
    pub fn request(&self, family: Family, services: Vec<UdpService>) {
        if !services.is_empty() {
            self.sender.put(|mail| mail.requests.get_mut(family).add(services));
        }
    }

    /// Sets the addresses that accept node ports.
    pub fn configure(&self, family: Family, node_ports: NodePorts) {
        self.sender.put(|mail| *mail.node_ports.get_mut(family) = Some(node_ports));
    }
}

/// The kernel interface of the thread.
trait Kernel {
    /// Returns this node's own addresses.
    fn addresses(&mut self) -> Result<Vec<IpAddr>, SocketError>;
    /// See [`Cleaner::clean_unless`].
    fn clean(&mut self, check: &Check, spare: &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error>;
}

/// Opens sockets for each clean-up. That costs little, keeps no memory, and recovers from every fault of a socket.
struct Netlink {
    /// The device whose addresses are not the node's own.
    ignored: &'static str,
}

impl Kernel for Netlink {
    fn addresses(&mut self) -> Result<Vec<IpAddr>, SocketError> {
        addresses::list_except(self.ignored)
    }

    fn clean(&mut self, check: &Check, spare: &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error> {
        Cleaner::open(check.family())?.clean_unless(check, spare)
    }
}

/// The time by which the thread keeps its deadlines.
trait Clock {
    /// Returns the current time.
    fn now(&self) -> Instant;
    /// See [`Receiver::take_before`].
    fn take_before(&self, receiver: &Receiver<Mail>, due: Option<Instant>) -> Received<Mail>;
}

/// The time of this machine.
struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn take_before(&self, receiver: &Receiver<Mail>, due: Option<Instant>) -> Received<Mail> {
        receiver.take_before(due)
    }
}

struct Worker<K, C, R> {
    kernel: K,
    clock: C,
    inbox: Inbox,
    report: R,
}

/// The queue, and the lanes that its messages go to.
struct Inbox {
    receiver: Receiver<Mail>,
    lanes: PerFamily<Lane>,
    stopped: bool,
}

/// The pending requests of one family.
struct Lane {
    family: Family,
    node_ports: NodePorts,
    pending: Pending,
    not_before: Instant,
    failures: u32,
    /// How many clean-ups in a row may not have seen every flow.
    partial: u32,
    /// When the rest after the last one of these ends, until an attempt has another result.
    rest_until: Option<Instant>,
    /// The next attempt is made for newer requests, before the wait of the older ones is over.
    is_early: bool,
    /// While a clean-up runs: a check of the requests that arrived meanwhile, and the addresses for it.
    newer: Option<Check>,
    addresses: Vec<IpAddr>,
}

impl<K: Kernel, C: Clock, R: FnMut(Cleaned)> Worker<K, C, R> {
    fn run(mut self) {
        while self.inbox.wait(&self.clock) {
            for family in Family::BOTH {
                let due = self.inbox.lanes.get(family).due();
                if !self.inbox.stopped && due.is_some_and(|due| due <= self.clock.now()) {
                    self.clean(family);
                }
            }
        }
    }

    fn clean(&mut self, family: Family) {
        let start = self.clock.now();
        let services = self.inbox.lanes.get_mut(family).pending.take();
        let outcome = self.attempt(family, &services);
        let end = self.clock.now();
        let duration = end.duration_since(start);
        let lane = self.inbox.lanes.get_mut(family);
        lane.finish();
        match &outcome {
            Ok(report) if report.refused == 0 && report.partial => {
                let retry_in = lane.repeat(services, duration, end);
                warn_of_partial(family, retry_in);
            }
            Ok(report) if report.refused == 0 => lane.succeed(duration, end),
            _ => {
                let wait = lane.fail(services, end);
                warn(family, wait, &outcome);
            }
        }
        (self.report)(Cleaned { family, duration, outcome });
    }

    fn attempt(&mut self, family: Family, services: &[UdpService]) -> Result<Report, Error> {
        let lane = self.inbox.lanes.get_mut(family);
        lane.addresses = match &lane.node_ports.addresses {
            NodePortAddresses::Addresses(addresses) => addresses.clone(),
            NodePortAddresses::MatchAll => self.kernel.addresses().map_err(Error::Addresses)?,
        };
        lane.addresses.retain(|address| !address.is_loopback());
        let check = lane.check(services);
        let inbox = &mut self.inbox;
        self.kernel.clean(&check, &mut |flow| inbox.must_keep(family, flow))
    }
}

impl Inbox {
    /// Waits until there is something to do. Returns false if the thread is to end.
    fn wait(&mut self, clock: &impl Clock) -> bool {
        // A clean-up that just ended may have received the request to end.
        if self.stopped {
            return false;
        }
        let due = Family::BOTH.into_iter().filter_map(|family| self.lanes.get(family).due()).min();
        match clock.take_before(&self.receiver, due) {
            Received::Value(mail) => self.open(mail),
            Received::Late => {}
            Received::Closed => self.stopped = true,
        }
        !self.stopped
    }

    /// Receives what was requested meanwhile. Returns true if there was anything.
    fn poll(&mut self) -> bool {
        let Some(mail) = self.receiver.take() else { return false };
        self.open(mail);
        true
    }

    fn open(&mut self, mail: Mail) {
        let Mail { mut requests, mut node_ports, stop } = mail;
        for family in Family::BOTH {
            let lane = self.lanes.get_mut(family);
            let requests = requests.get_mut(family).take();
            if !requests.is_empty() {
                lane.hurry();
            }
            lane.pending.add(requests);
            if let Some(node_ports) = node_ports.get_mut(family).take() {
                lane.node_ports = node_ports;
            }
        }
        self.stopped |= stop;
    }

    /// Returns true if a stale flow must not be deleted: newer requests make it valid, or the thread is to end.
    fn must_keep(&mut self, family: Family, flow: &Flow) -> bool {
        if self.poll() {
            self.lanes.get_mut(family).renew();
        }
        let newer = self.lanes.get(family).newer.as_ref();
        self.stopped || newer.is_some_and(|newer| newer.judge(flow) == Verdict::Valid)
    }
}

impl Lane {
    /// Returns when to clean up, or `None` if nothing is pending.
    fn due(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then_some(self.not_before)
    }

    fn renew(&mut self) {
        self.newer = (!self.pending.is_empty()).then(|| self.check(self.pending.services()));
    }

    fn check<'a>(&self, services: impl IntoIterator<Item = &'a UdpService>) -> Check {
        let check = Check::new(self.family, services, self.addresses.clone());
        check.with_loopback(self.node_ports.loopback.clone())
    }

    /// Drops what only a running clean-up needs.
    fn finish(&mut self) {
        (self.newer, self.addresses) = (None, Vec::new());
    }

    /// Sets the rest after a clean-up of this duration that ended at `end`.
    fn succeed(&mut self, duration: Duration, end: Instant) {
        (self.failures, self.partial) = (0, 0);
        (self.rest_until, self.is_early) = (None, false);
        self.not_before = end + rest(duration);
    }

    /// Queues the requests of a clean-up again that may not have seen every flow. The rest after it is observed, because
    /// such a clean-up has read the whole table. Returns the wait before the next attempt, or `None` if there have been
    /// enough.
    fn repeat(&mut self, services: Vec<UdpService>, duration: Duration, end: Instant) -> Option<Duration> {
        if self.partial >= PARTIAL_RETRIES {
            self.succeed(duration, end);
            return None;
        }
        let has_newer = !self.pending.is_empty();
        let (failures, is_early) = (self.failures, std::mem::take(&mut self.is_early));
        let wait = self.fail(services, end).max(rest(duration));
        if is_early {
            // Only attempts that have waited count.
            self.failures = failures;
        } else {
            self.partial = self.partial.saturating_add(1);
        }
        self.rest_until = Some(end + rest(duration));
        self.not_before = end + wait;
        if has_newer {
            self.hurry();
        }
        Some(wait)
    }

    /// Lets newer requests wait for no more than the rest, while older ones wait for another attempt.
    fn hurry(&mut self) {
        if let Some(rest_until) = self.rest_until.filter(|rest_until| *rest_until < self.not_before) {
            self.not_before = rest_until;
            self.is_early = true;
        }
    }

    /// Queues the requests of an attempt that ended at `end` again. Returns the wait before the next attempt.
    fn fail(&mut self, services: Vec<UdpService>, end: Instant) -> Duration {
        let wait = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        self.rest_until = None;
        self.not_before = end + wait;
        self.pending.put_back(services);
        wait
    }
}

/// Returns the rest after a clean-up of this duration.
fn rest(duration: Duration) -> Duration {
    duration.saturating_mul(REST).min(LONGEST_RETRY)
}

fn lanes(node_ports: PerFamily<NodePorts>, now: Instant) -> PerFamily<Lane> {
    let lane = |family, node_ports| Lane {
        family,
        node_ports,
        pending: Pending::default(),
        not_before: now,
        failures: 0,
        partial: 0,
        rest_until: None,
        is_early: false,
        newer: None,
        addresses: Vec::new(),
    };
    PerFamily { ipv4: lane(Family::Ipv4, node_ports.ipv4), ipv6: lane(Family::Ipv6, node_ports.ipv6) }
}

fn warn(family: Family, wait: Duration, outcome: &Result<Report, Error>) {
    match outcome {
        Err(error) => {
            tracing::warn!(%family, %error, retry_in = ?wait, "stale UDP flows could not be cleaned up");
        }
        Ok(Report { refused, refusal, .. }) => {
            let refusal = refusal.as_ref().map(tracing::field::display);
            tracing::warn!(%family, refused, refusal, retry_in = ?wait, "the kernel kept stale UDP flows");
        }
    }
}

fn warn_of_partial(family: Family, retry_in: Option<Duration>) {
    if let Some(retry_in) = retry_in {
        tracing::warn!(%family, ?retry_in, "stale UDP flows may be left: not every flow was seen");
    } else {
        tracing::warn!(%family, "stale UDP flows may be left: not every flow was seen in any attempt; not trying again");
    }
}

#[cfg(test)]
mod tests;
