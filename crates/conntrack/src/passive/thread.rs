//! The thread that reads conntrack's notifications, and asks for flows that should have been answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_sock::{Errno, Protocol, Socket, SocketError};
use portolan_wire::Frame;
use portolan_wire::conntrack::{ConntrackEvent, answered_by, status};
use portolan_wire::nfnetlink::{GROUP_CONNTRACK_DESTROY, GROUP_CONNTRACK_NEW};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Followed, Judge, RECORDS_MAX, Seen, SetAside};

/// How often flows and pauses are looked at while there are some.
const TICK: Duration = Duration::from_millis(500);

/// How many datagrams are read before the thread looks whether it is to end.
const READ_AT_ONCE: usize = 64;

/// Why the connections of endpoints cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum PassiveError {
    /// A netlink socket could not be opened. ENOENT or EPROTONOSUPPORT means that the kernel has no `nf_conntrack_netlink`.
    #[error(
        "opening a netlink socket for conntrack events: {0}; needs the kernel module nf_conntrack_netlink"
    )]
    Open(SocketError),
    /// The thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
}

/// The running thread. Dropping this value ends the thread.
#[derive(Debug)]
pub struct PassiveThread {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl PassiveThread {
    /// Starts the thread in the network namespace of the calling thread. `report` is called with the endpoints that are set aside,
    /// each time they change.
    ///
    /// # Errors
    /// The kernel has no notifications of conntrack, or no thread can be started.
    pub fn spawn(
        report: impl FnMut(BTreeMap<SocketAddr, SetAside>) + Send + 'static,
    ) -> Result<Self, PassiveError> {
        let events = Socket::open(Protocol::Netfilter).map_err(PassiveError::Open)?;
        events.subscribe(&[GROUP_CONNTRACK_NEW, GROUP_CONNTRACK_DESTROY]).map_err(PassiveError::Open)?;
        let questions = Socket::open(Protocol::Netfilter).map_err(PassiveError::Open)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| PassiveError::Thread(errno.into()))?;
        let stop = Arc::new(stop);
        let watcher = Watcher {
            questions,
            stop: Arc::clone(&stop),
            judge: Judge::default(),
            next_tick: Instant::now(),
            is_full: false,
            report,
        };
        let run = move || watcher.run(events);
        let thread = std::thread::Builder::new().name("passive".into()).spawn(run);
        Ok(Self { stop, thread: Some(thread.map_err(PassiveError::Thread)?) })
    }

    /// Returns true if the thread runs. It ends by itself if it cannot read notifications any more.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for PassiveThread {
    fn drop(&mut self) {
        // The counter of an eventfd takes any number but the largest one.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic in the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

struct Watcher<R> {
    questions: Socket,
    stop: Arc<OwnedFd>,
    judge: Judge,
    next_tick: Instant,
    /// Whether it was logged that there are too many endpoints.
    is_full: bool,
    report: R,
}

impl<R: FnMut(BTreeMap<SocketAddr, SetAside>)> Watcher<R> {
    fn run(mut self, mut events: Socket) {
        while self.wait(&events) {
            match events.receive_at_most(READ_AT_ONCE, |frame| {
                self.take(frame);
                Ok(())
            }) {
                Ok(_) => {}
                // The next notifications are as good as the lost ones.
                Err(error) if is_of_some(&error) => {
                    tracing::debug!(%error, "notifications of conntrack were lost");
                }
                Err(error) => {
                    tracing::warn!(%error, "connections to endpoints are not observed any more");
                    (self.report)(BTreeMap::new());
                    return;
                }
            }
            self.tick();
        }
    }

    /// Waits for notifications, or for the next tick. Returns false if the thread is to end.
    fn wait(&self, events: &Socket) -> bool {
        let left = self.next_tick.saturating_duration_since(Instant::now());
        let timeout = self.judge.is_waiting().then(|| Timespec::try_from(left).ok()).flatten();
        let mut polled = [
            PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
        ];
        // An error is a signal for this thread.
        let _ = poll(&mut polled, timeout.as_ref());
        polled.last().is_none_or(|stop| !stop.revents().contains(PollFlags::IN))
    }

    /// Handles a notification. While they keep coming, this is also where time passes.
    fn take(&mut self, frame: &Frame<'_>) {
        let now = Instant::now();
        match ConntrackEvent::decode(frame) {
            Ok(ConntrackEvent::New(flow)) => self.judge.begun(&flow, now),
            Ok(ConntrackEvent::Delete(flow)) => {
                let questions = &mut self.questions;
                if self.judge.ended(&flow, now, |later| ask(questions, later)) {
                    self.show();
                }
            }
            Ok(ConntrackEvent::Other { .. }) => {}
            Err(error) => tracing::debug!(%error, "a notification of conntrack cannot be read"),
        }
        self.tick();
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        if self.judge.is_full() && !self.is_full {
            self.is_full = true;
            tracing::warn!(RECORDS_MAX, "too many endpoints at a time: further ones are not observed");
        }
        let mut is_changed = self.judge.pass(now);
        while let Some(followed) = self.judge.next_due(now) {
            let questions = &mut self.questions;
            let seen = ask(questions, &followed);
            is_changed |= self.judge.judged(&followed, seen, now, |later| ask(questions, later));
        }
        if is_changed {
            self.show();
        }
    }

    fn show(&mut self) {
        (self.report)(self.judge.aside());
    }
}

/// Returns true if an error concerns some notifications only.
const fn is_of_some(error: &SocketError) -> bool {
    matches!(error, SocketError::Overrun | SocketError::Truncated { .. } | SocketError::Decode(_))
}

/// Asks the kernel whether a flow was answered.
fn ask(questions: &mut Socket, followed: &Followed) -> Seen {
    let mut seen = Seen::Nothing;
    let outcome = questions.query(&mut answered_by(&followed.reply), |frame| {
        if let ConntrackEvent::New(flow) = ConntrackEvent::decode(frame)?
            && flow.reply == followed.reply
            && flow.id == followed.id
        {
            let is_answered = flow.status & status::SEEN_REPLY != 0;
            seen = if is_answered { Seen::Answer } else { Seen::NoAnswer };
        }
        Ok(())
    });
    match outcome {
        Err(error) if error.errno() != Some(Errno::ENOENT) => {
            tracing::debug!(%error, endpoint = %followed.endpoint, "the kernel does not say whether an endpoint answered");
            Seen::Nothing
        }
        _ => seen,
    }
}

#[cfg(test)]
mod tests {
    use portolan_wire::Frames;

    use super::*;

    #[test]
    fn a_notification_that_cannot_be_read_does_not_end_the_thread() {
        let questions = Socket::open(Protocol::Netfilter).unwrap();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (judge, next_tick) = (Judge::default(), Instant::now());
        let mut watcher = Watcher { questions, stop, judge, next_tick, is_full: false, report: |_| {} };
        // A new flow (IPCTNL_MSG_CT_NEW) without tuples.
        let mut datagram = Vec::new();
        datagram.extend_from_slice(&20_u32.to_ne_bytes());
        datagram.extend_from_slice(&0x100_u16.to_ne_bytes());
        datagram.extend_from_slice(&[0; 14]);
        let frame = Frames::new(&datagram).next().unwrap().unwrap();
        let error = ConntrackEvent::decode(&frame).unwrap_err();
        watcher.take(&frame);
        assert!(!watcher.judge.is_waiting());
        assert!(is_of_some(&error.into()) && is_of_some(&SocketError::Overrun));
        assert!(!is_of_some(&SocketError::Timeout));
    }
}
