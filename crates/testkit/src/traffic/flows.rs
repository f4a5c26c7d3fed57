//! UDP flows: numbered datagrams from a fixed source port, which must all be answered by the same backend.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use portolan_model::Family;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, recv, send};

use super::{GRACE, Ready, Shared, TrafficPlan, TrafficReport, failed, not_ready, until};
use crate::TestkitError;
use crate::ports;
use crate::socket::{self, Poller, parse_answer};

struct Flow {
    fd: OwnedFd,
    sent: u64,
    /// Numbers of the datagrams that are not yet answered.
    open: HashSet<u64>,
    backend: Option<SocketAddr>,
    next: Instant,
}

pub(super) fn run(
    shared: &Shared,
    destination: SocketAddr,
    plan: TrafficPlan,
    ready: Ready,
) -> Result<TrafficReport, TestkitError> {
    let mut report = TrafficReport::default();
    let poller = Poller::new().map_err(failed)?;
    let mut flows = Vec::with_capacity(plan.udp_flows);
    for token in 0..plan.udp_flows {
        let flow = Flow::open(destination, &plan).map_err(failed)?;
        poller.watch_reads(&flow.fd, token as u64).map_err(failed)?;
        flows.push(flow);
    }
    let mut ready = Some(ready);
    let mut last_sent = None;
    loop {
        let stopping = shared.stopping();
        let answered = flows.iter().all(|flow| flow.open.is_empty());
        if stopping && (answered || last_sent.get_or_insert_with(Instant::now).elapsed() > GRACE) {
            break;
        }
        let due = flows.iter().map(|flow| flow.next).filter(|_| !stopping);
        poller.wait(Some(until(due))).map_err(failed)?;
        for (number, flow) in flows.iter_mut().enumerate() {
            flow.receive(|from, to| {
                report.udp_moved += 1;
                report.describe(shared, format_args!("flow {number} moved from {from} to {to}"));
            });
            if !stopping {
                flow.send(plan);
            }
        }
        let answered = flows.iter().filter(|flow| flow.backend.is_some()).count();
        if answered == plan.udp_flows {
            ready.take().map(|ready| ready.send(()));
        } else if ready.is_some() && shared.started.elapsed() > plan.ready_within {
            return Err(not_ready("flows", answered, plan.udp_flows, plan));
        }
    }
    for (number, flow) in flows.iter().enumerate() {
        report.udp_sent += flow.sent;
        report.udp_lost += flow.open.len() as u64;
        if let Some(first) = flow.open.iter().min() {
            let lost = flow.open.len();
            report
                .describe(shared, format_args!("flow {number}: {lost} of {} lost, first {first}", flow.sent));
        }
    }
    Ok(report)
}

impl Flow {
    fn open(destination: SocketAddr, plan: &TrafficPlan) -> Result<Self, Errno> {
        let fd = socket::datagram(Family::of(destination.ip()))?;
        ports::bind_next(&fd, plan.source, destination)?;
        connect(&fd, &destination)?;
        Ok(Self { fd, sent: 0, open: HashSet::new(), backend: None, next: Instant::now() })
    }

    fn send(&mut self, plan: TrafficPlan) {
        let now = Instant::now();
        if self.next > now {
            return;
        }
        self.next = now + plan.udp_interval;
        self.sent += 1;
        self.open.insert(self.sent);
        // An error is an ICMP message about an earlier datagram, or a local drop. The datagram counts as lost, like one
        // that is lost on the way.
        let _ = send(&self.fd, self.sent.to_string().as_bytes(), SendFlags::NOSIGNAL);
    }

    fn receive(&mut self, mut moved: impl FnMut(SocketAddr, SocketAddr)) {
        let mut buffer = [0; 512];
        loop {
            let length = match recv(&self.fd, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, length)) => length,
                Err(Errno::AGAIN) => return,
                // An ICMP message. Reading it has cleared it.
                Err(_) => continue,
            };
            let Some((backend, _, number)) = parse_answer(buffer.get(..length).unwrap_or_default()) else {
                continue;
            };
            if number.parse().is_ok_and(|number: u64| self.open.remove(&number))
                && let Some(previous) = self.backend.replace(backend)
                && previous != backend
            {
                moved(previous, backend);
            }
        }
    }
}
