//! UDP flows and SCTP associations: numbered datagrams or heartbeats from a fixed source port, which must all be answered by
//! the same backend.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use portolan_model::Family;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, recv, send};

use super::association::Association;
use super::{
    GRACE, RENEWED_AFTER_ANSWERS, Ready, Shared, TrafficPlan, TrafficReport, failed, not_ready, paced, until,
};
use crate::TestkitError;
use crate::pauses::Pauses;
use crate::ports;
use crate::probe::patience;
use crate::socket::{self, Poller, parse_answer};

/// The kind of the flows of one thread.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Udp,
    Sctp,
}

struct Flow {
    transport: Transport,
    sent: u64,
    /// Numbers of the messages that are not yet answered.
    open: HashSet<u64>,
    /// The highest number that was answered.
    last: u64,
    backend: Option<SocketAddr>,
    next: Instant,
}

enum Transport {
    Udp(OwnedFd),
    Sctp(Association),
}

pub(super) fn run(
    shared: &Shared,
    kind: Kind,
    destination: SocketAddr,
    plan: TrafficPlan,
    ready: Ready,
) -> Result<TrafficReport, TestkitError> {
    let mut report = TrafficReport::default();
    let poller = Poller::new().map_err(failed)?;
    let (kept, renewed, name, plural) = match kind {
        Kind::Udp => (plan.udp_flows, plan.renewed_flows, "flow", "flows"),
        Kind::Sctp => (plan.associations, 0, "association", "associations"),
    };
    let count = kept + renewed;
    let open = |token: usize| {
        let flow = Flow::open(kind, destination, &plan).map_err(failed)?;
        poller.watch_reads(flow.transport.fd(), token as u64).map_err(failed)?;
        Ok::<_, TestkitError>(flow)
    };
    let mut flows = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
    let (mut moved, mut sent_before) = (0, 0);
    let mut ready = Some(ready);
    let mut pauses = Pauses::new();
    let mut grace: Option<Instant> = None;
    loop {
        let stopping = shared.stopping();
        let due = flows.iter().map(|flow| flow.next).filter(|_| !stopping);
        let wait = until(due);
        poller.wait(Some(wait)).map_err(failed)?;
        let pause = pauses.passed(wait);
        grace = grace.map(|end| end + pause);
        for (number, flow) in flows.iter_mut().enumerate() {
            flow.receive(|from, to| {
                moved += 1;
                report.describe(shared, format_args!("{name} {number} moved from {from} to {to}"));
            });
            if !stopping && number >= kept && ready.is_none() && flow.is_over() {
                sent_before += flow.sent;
                *flow = open(number)?;
            }
            if !stopping {
                flow.send(plan);
            }
        }
        let answered = flows.iter().filter(|flow| flow.backend.is_some()).count();
        if answered == count {
            ready.take().map(|ready| ready.send(()));
        } else if ready.is_some() && shared.started.elapsed() > plan.ready_within {
            return Err(not_ready(plural, answered, count, plan));
        }
        // Everything that had come when the stop was seen has been read.
        let answered = flows.iter().all(|flow| flow.open.is_empty());
        if stopping {
            let end = *grace.get_or_insert_with(|| Instant::now() + patience(GRACE));
            if answered || end < Instant::now() {
                break;
            }
        }
    }
    for (number, flow) in flows.iter().enumerate() {
        if let Some(first) = flow.open.iter().min() {
            let lost = flow.open.len();
            report.describe(
                shared,
                format_args!("{name} {number}: {lost} of {} lost, first {first}", flow.sent),
            );
        }
    }
    let sent = sent_before + flows.iter().map(|flow| flow.sent).sum::<u64>();
    let lost = flows.iter().map(|flow| flow.open.len() as u64).sum();
    Ok(match kind {
        Kind::Udp => TrafficReport { udp_sent: sent, udp_lost: lost, udp_moved: moved, ..report },
        Kind::Sctp => TrafficReport { sctp_sent: sent, sctp_lost: lost, sctp_moved: moved, ..report },
    })
}

impl Flow {
    fn open(kind: Kind, destination: SocketAddr, plan: &TrafficPlan) -> Result<Self, Errno> {
        let transport = match kind {
            Kind::Udp => Transport::udp(destination, plan)?,
            Kind::Sctp => Transport::Sctp(Association::new(destination, plan)?),
        };
        Ok(Self { transport, sent: 0, open: HashSet::new(), last: 0, backend: None, next: Instant::now() })
    }

    /// Returns true if a flow that is to be renewed can end: nothing is on its way.
    fn is_over(&self) -> bool {
        self.sent >= RENEWED_AFTER_ANSWERS && self.open.is_empty()
    }

    fn send(&mut self, plan: TrafficPlan) {
        let now = Instant::now();
        if self.next > now {
            return;
        }
        let interval = match self.transport {
            Transport::Udp(_) => plan.udp_interval,
            Transport::Sctp(_) => plan.heartbeat_interval,
        };
        // Those before an answered one are lost or late. They do not count.
        self.next = now + paced(interval, self.sent - self.last);
        let number = self.sent + 1;
        if self.transport.send(&number.to_string()) {
            self.sent = number;
            self.open.insert(number);
        }
    }

    fn receive(&mut self, mut moved: impl FnMut(SocketAddr, SocketAddr)) {
        let mut buffer = [0; 512];
        loop {
            let answer = match self.transport.receive(&mut buffer) {
                Ok(answer) => answer,
                Err(Errno::AGAIN) => return,
                // An ICMP message. Reading it has cleared it.
                Err(_) => continue,
            };
            let Some((backend, _, number)) = answer.as_deref().and_then(parse_answer) else { continue };
            let Some(number) = number.parse().ok().filter(|number| self.open.remove(number)) else {
                continue;
            };
            self.last = self.last.max(number);
            if let Some(previous) = self.backend.replace(backend)
                && previous != backend
            {
                moved(previous, backend);
            }
        }
    }
}

impl Transport {
    fn udp(destination: SocketAddr, plan: &TrafficPlan) -> Result<Self, Errno> {
        // After a pause, the answers to everything that was sent meanwhile arrive at once.
        let fd = socket::roomy(socket::datagram(Family::of(destination.ip()))?)?;
        ports::bind_next(&fd, plan.source, destination)?;
        connect(&fd, &destination)?;
        Ok(Self::Udp(fd))
    }

    const fn fd(&self) -> &OwnedFd {
        match self {
            Self::Udp(fd) => fd,
            Self::Sctp(association) => association.fd(),
        }
    }

    /// Sends a message. Returns false if it cannot be sent yet.
    fn send(&mut self, text: &str) -> bool {
        match self {
            Self::Udp(fd) => {
                // An error is an ICMP message about an earlier datagram, or a local drop. The datagram counts as lost, like
                // one that is lost on the way.
                let _ = send(fd, text.as_bytes(), SendFlags::NOSIGNAL);
                true
            }
            Self::Sctp(association) => association.send(text),
        }
    }

    /// Reads into the buffer. Returns the answer to a message, if it is one.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<Vec<u8>>, Errno> {
        match self {
            Self::Udp(fd) => {
                let (_, length) = recv(fd, &mut *buffer, RecvFlags::DONTWAIT)?;
                Ok(buffer.get(..length).map(<[u8]>::to_vec))
            }
            Self::Sctp(association) => association.receive(buffer),
        }
    }
}
