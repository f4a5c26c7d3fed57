//! Long-lived TCP streams: numbered lines that must all be echoed in order.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use portolan_model::Family;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, recv, send, sockopt};

use super::{
    GRACE, RENEWED_AFTER, Ready, Shared, TrafficPlan, TrafficReport, failed, not_ready, paced, until,
};
use crate::TestkitError;
use crate::pauses::Pauses;
use crate::ports;
use crate::probe::patience;
use crate::socket::{self, Poller, parse_answer};

/// Timeout of a line. A stream is broken if its oldest line is not echoed by then; see [`patience`]. TCP itself repairs
/// the loss of a packet within about a second.
const LINE_TIMEOUT: Duration = Duration::from_secs(5);

struct Stream {
    fd: OwnedFd,
    greeted: bool,
    read: Vec<u8>,
    sent: u64,
    /// The time at which the oldest line without an echo was sent, or at which a renewed stream was opened.
    waiting_since: Option<Instant>,
    echoed: u64,
    opened: Instant,
    next: Instant,
}

pub(super) fn run(
    shared: &Shared,
    destination: SocketAddr,
    plan: TrafficPlan,
    ready: Ready,
) -> Result<TrafficReport, TestkitError> {
    let count = plan.streams + plan.renewed_streams;
    let mut report = TrafficReport { streams: count as u64, ..TrafficReport::default() };
    let poller = Poller::new().map_err(failed)?;
    let open = |token: usize| {
        let stream = Stream::open(destination, &plan).map_err(failed)?;
        poller.watch_changes(&stream.fd, token as u64).map_err(failed)?;
        Ok::<_, TestkitError>(stream)
    };
    let mut streams = (0..count).map(|token| open(token).map(Some)).collect::<Result<Vec<_>, _>>()?;
    let mut ready = Some(ready);
    let mut pauses = Pauses::new();
    let mut grace: Option<Instant> = None;
    loop {
        let stopping = shared.stopping();
        // All streams are checked after every event: there are only a few.
        let due =
            streams.iter().flatten().filter(|stream| stream.greeted && !stopping).map(|stream| stream.next);
        let wait = until(due);
        poller.wait(Some(wait)).map_err(failed)?;
        let pause = pauses.passed(wait);
        grace = grace.map(|end| end + pause);
        for (number, slot) in streams.iter_mut().enumerate() {
            let Some(stream) = slot else { continue };
            stream.waiting_since = stream.waiting_since.map(|since| since + pause);
            if let Err(reason) = stream.turn(plan.stream_interval, stopping) {
                report.streams_broken += 1;
                report.stream_lines += stream.echoed;
                report.describe(
                    shared,
                    format_args!("stream {number} after {} lines: {reason}", stream.echoed),
                );
                *slot = None;
            } else if number >= plan.streams && !stopping && stream.is_over() {
                report.streams += 1;
                report.stream_lines += stream.echoed;
                let opened = open(number)?;
                *slot = Some(Stream { waiting_since: Some(opened.opened), ..opened });
            }
        }
        let answered = streams.iter().flatten().filter(|stream| stream.greeted).count();
        if answered == count {
            ready.take().map(|ready| ready.send(()));
        } else if ready.is_some() && shared.started.elapsed() > plan.ready_within {
            return Err(not_ready("streams", answered, count, plan));
        }
        // Everything that had come when the stop was seen has been read.
        if stopping {
            let end = *grace.get_or_insert_with(|| Instant::now() + patience(GRACE));
            if idle(&streams) || end < Instant::now() {
                break;
            }
        }
    }
    for stream in streams.iter().flatten() {
        report.stream_lines += stream.echoed;
        if !stream.greeted {
            report.streams_broken += 1;
            report.describe(shared, format_args!("a stream was never answered"));
        } else if stream.echoed != stream.sent {
            report.streams_broken += 1;
            report.describe(
                shared,
                format_args!("{} of {} lines never came back", stream.sent - stream.echoed, stream.sent),
            );
        }
    }
    Ok(report)
}

fn idle(streams: &[Option<Stream>]) -> bool {
    streams.iter().flatten().all(|stream| stream.greeted && stream.echoed == stream.sent)
}

impl Stream {
    fn open(destination: SocketAddr, plan: &TrafficPlan) -> Result<Self, Errno> {
        let fd = socket::stream(Family::of(destination.ip()))?;
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO))?;
        sockopt::set_tcp_nodelay(&fd, true)?;
        ports::bind_next(&fd, plan.source, destination)?;
        match connect(&fd, &destination) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        let now = Instant::now();
        Ok(Self {
            fd,
            greeted: false,
            read: Vec::new(),
            sent: 0,
            waiting_since: None,
            echoed: 0,
            opened: now,
            next: now,
        })
    }

    /// Returns true if a stream that is to be renewed can end: nothing is on its way.
    fn is_over(&self) -> bool {
        self.greeted && self.echoed == self.sent && self.opened.elapsed() > RENEWED_AFTER
    }

    /// Reads received data, then writes the next line if it is due.
    fn turn(&mut self, interval: Duration, stopping: bool) -> Result<(), String> {
        self.read().map_err(|errno| format!("{errno}"))?;
        self.take_lines()?;
        if self.waiting_since.is_some_and(|since| since.elapsed() > patience(LINE_TIMEOUT)) {
            return Err(format!("no echo for {:?}", patience(LINE_TIMEOUT)));
        }
        let now = Instant::now();
        if self.greeted && !stopping && self.next <= now {
            self.next = now + paced(interval, self.sent - self.echoed);
            self.sent += 1;
            let line = format!("{}\n", self.sent);
            send(&self.fd, line.as_bytes(), SendFlags::NOSIGNAL).map_err(|errno| format!("{errno}"))?;
            self.waiting_since.get_or_insert(now);
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Errno> {
        let mut buffer = [0; 4096];
        loop {
            match recv(&self.fd, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Errno::CONNRESET),
                Ok((_, length)) => self.read.extend(buffer.iter().take(length)),
                // NOTCONN: not connected yet.
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn take_lines(&mut self) -> Result<(), String> {
        while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.read.drain(..=end).collect();
            if !self.greeted {
                parse_answer(&line).ok_or("not a responder of this kit")?;
                self.greeted = true;
                self.waiting_since = None;
                continue;
            }
            self.echoed += 1;
            self.waiting_since = (self.echoed < self.sent).then(Instant::now);
            if line != format!("{}\n", self.echoed).as_bytes() {
                return Err(format!("line {} came back garbled", self.echoed));
            }
        }
        Ok(())
    }
}
