//! The engine: one thread that owns the data planes and decides when they commit.
//!
//! Work and settings flow in over a channel, reports flow out through a callback. Each family has a queue, retries
//! and deadlines of its own: a fault of one does not undo or hold back what the other has to do. The first change after a pause is committed at once; later ones wait
//! until `min_interval` has passed since the last commit ended.

pub(crate) mod coalesced;
mod lane;
mod retry;
mod successor;

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_model::catalog::UdpService;
use portolan_model::{Change, Family, ServicePortName, Settings};

use crate::{Commit, Dataplane, Error, HealthCheckPort};
use lane::Lane;

/// When to commit, to retry and to compare.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// From the end of one commit to the start of the next at least (`minSyncPeriod`).
    pub min_interval: Duration,
    /// Longest wait before a failed commit is tried again (`syncPeriod`); the first is a tenth of a second.
    pub max_retry: Duration,
    /// Everything is compared with the kernel this often even if nothing happens.
    pub full_interval: Duration,
    /// A data plane that nobody tells of changes by others is asked this often whether its rules are there
    /// (`syncPeriod`).
    pub check_interval: Duration,
    /// How long what nothing needs any more is kept.
    pub collect_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            min_interval: Duration::from_secs(1),
            max_retry: Duration::from_secs(30),
            full_interval: Duration::from_secs(3600),
            check_interval: Duration::from_secs(30),
            collect_after: Duration::from_secs(10),
        }
    }
}

/// Changes of one family, and what is to be done once they are in the kernel.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Changes of Service ports, in order.
    pub changes: Vec<Change>,
    /// When the EndpointSlice changes behind them were triggered, in nanoseconds since the Unix epoch.
    pub triggers: Vec<i64>,
    /// UDP Service ports whose stale flows are to be removed after the commit.
    pub udp: Vec<UdpService>,
    /// Health check ports that changed.
    pub health_checks: Vec<HealthCheckPort>,
    /// How many changes of objects this stands for.
    pub objects: ObjectChanges,
}

/// Numbers of changes of objects, whatever became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectChanges {
    /// Changes of Services.
    pub services: usize,
    /// Changes of EndpointSlices.
    pub endpoint_slices: usize,
}

impl AddAssign for ObjectChanges {
    fn add_assign(&mut self, others: Self) {
        self.services = self.services.saturating_add(others.services);
        self.endpoint_slices = self.endpoint_slices.saturating_add(others.endpoint_slices);
    }
}

/// What the engine is told.
enum Message {
    Work(Family, Work),
    Replace(Family, Box<dyn Dataplane + Send>),
    Retire(Family, Box<dyn Dataplane + Send>),
    Start,
    Configure(Settings),
    Timing(Timing),
    Compare(Family),
    Stop,
}

/// What a commit, or an attempt at one, did.
#[derive(Debug)]
pub struct Report {
    /// Family of the data plane.
    pub family: Family,
    /// Its mode.
    pub mode: &'static str,
    /// From taking up the work to the end of the commit.
    pub duration: Duration,
    /// Whether everything was compared with the kernel.
    pub full: bool,
    /// Whether this was to mend what somebody else changed, and there was something to mend.
    pub repaired: bool,
    /// Whether this is the work of a data plane that is to take the place of another. From a success on it has it;
    /// after a failure the other one goes on.
    pub replacing: bool,
    /// What happened.
    pub outcome: Result<Commit, Error>,
    /// See [`Work::triggers`]; empty after a failure, which keeps them for the next attempt.
    pub triggers: Vec<i64>,
    /// See [`Work::udp`]; empty after a failure, which keeps them for the next attempt.
    pub udp: Vec<UdpService>,
    /// See [`Work::objects`]; none after a failure, which keeps them for the next attempt.
    pub objects: ObjectChanges,
    /// The Service ports that this work was about, where it was about single ones: not after a comparison of everything.
    pub changed: Vec<Arc<ServicePortName>>,
}

/// The way to talk to a running engine.
#[derive(Debug, Clone)]
pub struct Handle {
    sender: Sender<Message>,
}

impl Handle {
    /// Hands over changes of a family.
    pub fn work(&self, family: Family, work: Work) {
        self.send(Message::Work(family, work));
    }

    /// Says that the work handed over so far is the complete state: from now on the kernel is written to.
    pub fn start(&self) {
        self.send(Message::Start);
    }

    /// Lets another data plane take the place of a family's, of the same mode or not. It is told everything that the
    /// one before it was told, and writes all of it; until it can, changes go to the one before it. Then the rules of
    /// that one are removed, unless both have the same [`Dataplane::place`]. Of several, the last one counts.
    pub fn replace(&self, family: Family, dataplane: Box<dyn Dataplane + Send>) {
        self.send(Message::Replace(family, dataplane));
    }

    /// Hands over a data plane, of another place, whose rules an earlier run may have left: they are removed once
    /// everything is in the kernel.
    pub fn retire(&self, family: Family, dataplane: Box<dyn Dataplane + Send>) {
        self.send(Message::Retire(family, dataplane));
    }

    /// Hands over new settings for a family.
    pub fn configure(&self, settings: Settings) {
        self.send(Message::Configure(settings));
    }

    /// Hands over other intervals. They hold from the next commit on.
    pub fn set_timing(&self, timing: Timing) {
        self.send(Message::Timing(timing));
    }

    /// Says that somebody else may have changed the table of a family.
    pub fn compare(&self, family: Family) {
        self.send(Message::Compare(family));
    }

    /// Lets the thread end after the commit that it is in.
    pub fn stop(&self) {
        self.send(Message::Stop);
    }

    /// An engine that has ended has no use for messages.
    fn send(&self, message: Message) {
        let _ = self.sender.send(message);
    }
}

/// Starts the thread. What is programmed stays when it ends.
pub fn spawn(
    dataplanes: Vec<(Family, Box<dyn Dataplane + Send>)>,
    timing: Timing,
    report: impl FnMut(Report) + Send + 'static,
) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let (sender, receiver) = channel();
    let lanes =
        dataplanes.into_iter().map(|(family, dataplane)| Lane::new(family, dataplane, timing)).collect();
    let engine = Engine { lanes, receiver, report };
    let thread = std::thread::Builder::new().name("dataplane".into()).spawn(move || engine.run())?;
    Ok((Handle { sender }, thread))
}

struct Engine<R> {
    lanes: Vec<Lane>,
    receiver: Receiver<Message>,
    report: R,
}

impl<R: FnMut(Report)> Engine<R> {
    fn run(mut self) {
        while self.receive() {
            let now = Instant::now();
            for lane in &mut self.lanes {
                if let Some(report) = lane.run(now) {
                    (self.report)(report);
                }
            }
        }
    }

    /// Waits until there is something to do; says whether to go on. Everything that is queued is taken in
    /// first, so that a burst becomes one commit.
    fn receive(&mut self) -> bool {
        let due = self.lanes.iter().filter_map(Lane::due).min();
        let first = match due {
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => self.receiver.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        let mut next = match first {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        while let Some(message) = next {
            if matches!(message, Message::Stop) {
                return false;
            }
            self.take(message);
            next = self.receiver.try_recv().ok();
        }
        true
    }

    fn take(&mut self, message: Message) {
        let now = Instant::now();
        match message {
            Message::Work(family, work) => {
                if let Some(lane) = self.lane(family) {
                    lane.queue(work);
                }
            }
            Message::Replace(family, dataplane) => {
                if let Some(lane) = self.lane(family) {
                    lane.replace(dataplane, now);
                }
            }
            Message::Retire(family, dataplane) => {
                if let Some(lane) = self.lane(family) {
                    lane.retire(dataplane, now);
                }
            }
            Message::Start => self.lanes.iter_mut().for_each(|lane| lane.start(now)),
            Message::Configure(settings) => {
                if let Some(lane) = self.lane(settings.family) {
                    lane.configure(settings);
                }
            }
            Message::Timing(timing) => self.lanes.iter_mut().for_each(|lane| lane.set_timing(timing, now)),
            Message::Compare(family) => {
                if let Some(lane) = self.lane(family) {
                    lane.suspect(now);
                }
            }
            Message::Stop => {}
        }
    }

    fn lane(&mut self, family: Family) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.family() == family)
    }
}

#[cfg(test)]
mod tests;
