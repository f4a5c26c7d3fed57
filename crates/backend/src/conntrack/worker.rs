//! The thread that cleans up as requests come.
//!
//! Requests wait by family and Service port, the latest of each. One family is cleaned up at a time; requests that
//! come meanwhile are asked before anything is deleted, so that a flow to an endpoint that was added a moment ago
//! is not taken for a stale one. A failed clean-up is put back and tried again.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_model::catalog::{PerFamily, UdpService};
use portolan_model::{Family, NodePortAddresses};
use portolan_sock::SocketError;
use portolan_wire::conntrack::Flow;

use super::pending::Pending;
use super::{Check, Cleaner, Error, Report, Verdict};
use crate::addresses::Addresses;

/// Wait after a first failure; it doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// Longest wait after a failure.
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// A clean-up is followed by a rest of this many times its own length: under steady change it takes a tenth of one
/// processor.
const REST: u32 = 9;

/// What a clean-up, or an attempt at one, did.
#[derive(Debug)]
pub struct Cleaned {
    /// Family of the flows.
    pub family: Family,
    /// How long it took.
    pub duration: Duration,
    /// What happened. After a failure or a refusal it is tried again.
    pub outcome: Result<Report, Error>,
}

/// The running thread. Dropping it ends the thread, after the clean-up that it is in, and forgets what waits.
#[derive(Debug)]
pub struct CleanerThread {
    requests: Requests,
    thread: Option<JoinHandle<()>>,
}

/// The way to ask the thread for clean-ups.
#[derive(Debug, Clone)]
pub struct Requests {
    sender: Sender<Message>,
}

#[derive(Debug)]
enum Message {
    Request(Family, Vec<UdpService>),
    Configure(Family, NodePortAddresses),
    Stop,
}

impl CleanerThread {
    /// Starts the thread in the network namespace of the calling one. `node_ports` says which addresses accept
    /// node ports; `report` is called after each clean-up.
    pub fn spawn(
        node_ports: PerFamily<NodePortAddresses>,
        report: impl FnMut(Cleaned) + Send + 'static,
    ) -> std::io::Result<Self> {
        Self::spawn_with(Netlink, node_ports, report)
    }

    fn spawn_with(
        kernel: impl Kernel + Send + 'static,
        node_ports: PerFamily<NodePortAddresses>,
        report: impl FnMut(Cleaned) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let inbox = Inbox { receiver, lanes: lanes(node_ports), stopped: false };
        let worker = Worker { kernel, inbox, report };
        let thread = std::thread::Builder::new().name("conntrack".into()).spawn(move || worker.run())?;
        Ok(Self { requests: Requests { sender }, thread: Some(thread) })
    }

    /// The way to ask for clean-ups.
    pub fn requests(&self) -> Requests {
        self.requests.clone()
    }
}

impl Drop for CleanerThread {
    fn drop(&mut self) {
        self.requests.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Requests {
    /// Asks for the stale flows of these Service ports to be deleted, once what they now mean is programmed: a
    /// flow that begins before that may be stale again.
    pub fn request(&self, family: Family, services: Vec<UdpService>) {
        if !services.is_empty() {
            self.send(Message::Request(family, services));
        }
    }

    /// Says which addresses accept node ports from now on.
    pub fn configure(&self, family: Family, node_ports: NodePortAddresses) {
        self.send(Message::Configure(family, node_ports));
    }

    /// A thread that has ended has no use for messages.
    fn send(&self, message: Message) {
        let _ = self.sender.send(message);
    }
}

/// What the thread needs of the kernel.
trait Kernel {
    /// Every address of this node.
    fn addresses(&mut self) -> Result<Vec<IpAddr>, SocketError>;
    /// See [`Cleaner::clean_unless`].
    fn clean(&mut self, check: &Check, spare: &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error>;
}

/// Sockets are opened for each clean-up: that costs little, keeps no memory, and mends every fault of a socket.
struct Netlink;

impl Kernel for Netlink {
    fn addresses(&mut self) -> Result<Vec<IpAddr>, SocketError> {
        Addresses::open()?.list()
    }

    fn clean(&mut self, check: &Check, spare: &mut dyn FnMut(&Flow) -> bool) -> Result<Report, Error> {
        Cleaner::open(check.family())?.clean_unless(check, spare)
    }
}

struct Worker<K, R> {
    kernel: K,
    inbox: Inbox,
    report: R,
}

/// The queue, and where its messages go.
struct Inbox {
    receiver: Receiver<Message>,
    lanes: PerFamily<Lane>,
    stopped: bool,
}

/// What waits for one family.
struct Lane {
    family: Family,
    node_ports: NodePortAddresses,
    pending: Pending,
    not_before: Instant,
    failures: u32,
    /// While a clean-up runs: what came meanwhile, and the addresses to check it with.
    newer: Option<Check>,
    addresses: Vec<IpAddr>,
}

impl<K: Kernel, R: FnMut(Cleaned)> Worker<K, R> {
    fn run(mut self) {
        while self.inbox.wait() {
            for family in Family::BOTH {
                let due = self.inbox.lanes.get(family).due();
                if !self.inbox.stopped && due.is_some_and(|due| due <= Instant::now()) {
                    self.clean(family);
                }
            }
        }
    }

    fn clean(&mut self, family: Family) {
        let start = Instant::now();
        let services = self.inbox.lanes.get_mut(family).pending.take();
        let outcome = self.attempt(family, &services);
        let duration = start.elapsed();
        let again = !matches!(&outcome, Ok(report) if report.refused == 0);
        let lane = self.inbox.lanes.get_mut(family);
        lane.finish();
        if again {
            let wait = lane.fail(services);
            warn(family, wait, &outcome);
        } else {
            lane.succeed(duration);
        }
        (self.report)(Cleaned { family, duration, outcome });
    }

    fn attempt(&mut self, family: Family, services: &[UdpService]) -> Result<Report, Error> {
        let lane = self.inbox.lanes.get_mut(family);
        lane.addresses = match &lane.node_ports {
            NodePortAddresses::Addresses(addresses) => addresses.clone(),
            NodePortAddresses::MatchAll => self.kernel.addresses().map_err(Error::Addresses)?,
        };
        lane.addresses.retain(|address| !address.is_loopback());
        let check = Check::new(family, services, lane.addresses.clone());
        let inbox = &mut self.inbox;
        self.kernel.clean(&check, &mut |flow| inbox.spares(family, flow))
    }
}

impl Inbox {
    /// Waits until there is something to do; says whether to go on.
    fn wait(&mut self) -> bool {
        let due = Family::BOTH.into_iter().filter_map(|family| self.lanes.get(family).due()).min();
        let first = match due {
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => self.receiver.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match first {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.stopped = true,
        }
        self.poll();
        !self.stopped
    }

    /// Takes in what is queued; says whether there was something.
    fn poll(&mut self) -> bool {
        let mut some = false;
        while let Ok(message) = self.receiver.try_recv() {
            self.take(message);
            some = true;
        }
        some
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Request(family, services) => self.lanes.get_mut(family).pending.add(services),
            Message::Configure(family, node_ports) => self.lanes.get_mut(family).node_ports = node_ports,
            Message::Stop => self.stopped = true,
        }
    }

    /// Whether a stale flow is to be left alone because newer requests say that it is valid, or because there is
    /// no time left.
    fn spares(&mut self, family: Family, flow: &Flow) -> bool {
        if self.poll() {
            self.lanes.get_mut(family).renew();
        }
        let newer = self.lanes.get(family).newer.as_ref();
        self.stopped || newer.is_some_and(|newer| newer.judge(flow) == Verdict::Valid)
    }
}

impl Lane {
    /// When to clean up, if there is anything to.
    fn due(&self) -> Option<Instant> {
        (!self.pending.is_empty()).then_some(self.not_before)
    }

    fn renew(&mut self) {
        let addresses = self.addresses.clone();
        self.newer =
            (!self.pending.is_empty()).then(|| Check::new(self.family, self.pending.services(), addresses));
    }

    /// Forgets what only a running clean-up needs.
    fn finish(&mut self) {
        (self.newer, self.addresses) = (None, Vec::new());
    }

    fn succeed(&mut self, duration: Duration) {
        self.failures = 0;
        self.not_before = Instant::now() + duration.saturating_mul(REST).min(LONGEST_RETRY);
    }

    /// Queues the requests again and answers how long they wait.
    fn fail(&mut self, services: Vec<UdpService>) -> Duration {
        let wait = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Instant::now() + wait;
        self.pending.put_back(services);
        wait
    }
}

fn lanes(node_ports: PerFamily<NodePortAddresses>) -> PerFamily<Lane> {
    let lane = |family, node_ports| Lane {
        family,
        node_ports,
        pending: Pending::default(),
        not_before: Instant::now(),
        failures: 0,
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

#[cfg(test)]
mod tests;
