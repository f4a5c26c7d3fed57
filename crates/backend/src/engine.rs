//! The engine: one thread that owns the data planes and decides when they commit.
//!
//! Work, settings and data planes come in over a channel; reports go out through a callback. It must not know the API
//! server or a mode's rules: each mode is a [`Dataplane`] for each family, and everything else is the same for all
//! modes.
//!
//! Each family has its own queue, retries and deadlines. A fault in one family neither undoes nor delays the work of
//! the other. The first change after a pause is committed at once. Later changes wait until `min_interval` has passed
//! since the last commit ended, and are coalesced.
//!
//! # Replacing a data plane
//!
//! [`Handle::replace`] changes the mode, or the options of a mode, while the engine runs:
//!
//! 1. The new data plane receives every forwarding, every health-check node port and all pending changes, and
//!    compares them with the kernel. Until it succeeds, the old data plane stays active and commits changes, which
//!    are also queued for the new one.
//! 2. The new data plane becomes active with its first success.
//! 3. The old data plane is retired. It removes its rules in pieces between commits, and retries after a failure.
//!    iptables chains that both modes use stay.
//!
//! ```text
//!  old   active ──────────────────────> retired: translation, checks removed ──300 ms──> the rest removed
//!  new   compare, fails, back-off, compare, succeeds ──> active ──────────────────────────────────────────>
//! ```
//!
//! If both write to the same [`Dataplane::place`] (new options of one mode), the new data plane updates the rules of
//! the old one, and nothing is removed.
//!
//! In the nftables mode rules that translate, capture or check packets are removed first, in one transaction. Rules
//! that packets need on their way out (masquerading) are removed 300 ms later, when the packets already translated have
//! left. The table is deleted at that time, too. If it were deleted at once, its checks would be active a little longer
//! than its translation, and would reject packets that the new data plane translates. The IPVS mode waits 300 ms before
//! it removes anything.
//!
//! A second replacement replaces one that is pending. [`Handle::retire`] passes in a data plane of another mode whose
//! rules an earlier run left.
//!
//! # Drift
//!
//! Changes by other programs are reported with [`Handle::compare`]. If the kernel does not notify a data plane of
//! such changes ([`Dataplane::needs_checks`]), the engine checks periodically that its rules are there.

mod lane;
mod pending;
mod retry;
mod successor;

use std::ops::AddAssign;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_model::catalog::UdpService;
use portolan_model::{Change, Family, ServicePortName, Settings};

use crate::mailbox::{Received, Receiver, Sender, mailbox};
use crate::{Commit, Dataplane, Error, HealthCheckPort};
use lane::Lane;
use pending::Pending;

/// Trigger times kept while commits fail or take long. Each is one observation of a histogram.
const TRIGGERS_MAX: usize = 65_536;

/// When to commit, to retry and to compare.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Minimum time from the end of one commit to the start of the next (`minSyncPeriod`).
    pub min_interval: Duration,
    /// Longest wait before a failed commit is retried (`syncPeriod`). The first wait is 100 ms.
    pub max_retry: Duration,
    /// Interval at which everything is compared with the kernel even if nothing happens.
    pub full_interval: Duration,
    /// Interval at which the rules of a data plane that the kernel does not notify of changes are checked
    /// (`syncPeriod`).
    pub check_interval: Duration,
    /// How long unused chains and sets are kept.
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

/// Changes of one family, and what to do after they are committed.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Changes of Service ports, in order.
    pub changes: Vec<Change>,
    /// Trigger times of the EndpointSlice changes behind them, in nanoseconds since the Unix epoch.
    pub triggers: Vec<i64>,
    /// UDP Service ports whose stale flows are to be deleted after the commit.
    pub udp: Vec<UdpService>,
    /// Changed health-check node ports.
    pub health_checks: Vec<HealthCheckPort>,
    /// Number of object changes that this work stands for.
    pub objects: ObjectChanges,
}

/// Numbers of object changes, whether or not they change a forwarding.
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

/// What a [`Report`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A commit of the active data plane.
    Commit,
    /// The commit of a data plane that replaces another. After a success it is active; after a failure the former one stays
    /// active.
    Replacement,
    /// The removal of unused chains and sets, which failed. A success is not reported.
    Collection,
}

/// The result of a commit or of an attempt at one.
#[derive(Debug)]
pub struct Report {
    /// Family of the data plane.
    pub family: Family,
    /// Mode of the data plane.
    pub mode: &'static str,
    /// Time from taking up the work to the end of the commit.
    pub duration: Duration,
    /// True if everything was compared with the kernel.
    pub full: bool,
    /// True if a change by another program was the reason for the commit, and something had to be repaired.
    pub repaired: bool,
    /// What was done.
    pub step: Step,
    /// What was written, or the error.
    pub outcome: Result<Commit, Error>,
    /// See [`Work::triggers`]. Empty after a failure, which keeps them for the next attempt.
    pub triggers: Vec<i64>,
    /// See [`Work::udp`]. Empty after a failure, which keeps them for the next attempt.
    pub udp: Vec<UdpService>,
    /// See [`Work::objects`]. Zero after a failure, which keeps them for the next attempt.
    pub objects: ObjectChanges,
    /// The Service ports committed. Empty if everything was compared.
    pub changed: Vec<Arc<ServicePortName>>,
}

/// A handle to send requests to a running engine.
#[derive(Clone)]
pub struct Handle {
    sender: Sender<Pending>,
}

impl Handle {
    /// Queues changes of a family.
    pub fn work(&self, family: Family, work: Work) {
        self.sender.put(|pending| pending.families.get_mut(family).work(work));
    }

    /// Marks the work queued so far as the complete state. From then on the engine writes to the kernel.
    pub fn start(&self) {
        self.sender.put(|pending| pending.start = true);
    }

    /// Replaces the data plane of a family, in the same mode or another. The new one receives the complete state and
    /// writes it; until that succeeds, changes go to the old one, too. Then the rules of the old one are removed,
    /// unless both have the same [`Dataplane::place`]. Of several replacements the last one is used.
    pub fn replace(&self, family: Family, dataplane: Box<dyn Dataplane + Send>) {
        drop(self.sender.put(|pending| {
            let is_after_start = pending.start;
            pending.families.get_mut(family).replace(dataplane, is_after_start)
        }));
    }

    /// Passes in a data plane of another place whose rules an earlier run may have left. They are removed once
    /// everything is in the kernel.
    pub fn retire(&self, family: Family, dataplane: Box<dyn Dataplane + Send>) {
        self.sender.put(|pending| pending.families.get_mut(family).retire(dataplane));
    }

    /// Sets new settings for a family.
    pub fn configure(&self, settings: Settings) {
        self.sender.put(|pending| pending.families.get_mut(settings.family).configure(settings));
    }

    /// Sets new intervals. They apply from the next commit on.
    pub fn set_timing(&self, timing: Timing) {
        self.sender.put(|pending| pending.timing = Some(timing));
    }

    /// Reports that another program may have changed the table of a family.
    pub fn compare(&self, family: Family) {
        self.sender.put(|pending| pending.families.get_mut(family).drifted());
    }

    /// Ends the thread after its current commit.
    pub fn stop(&self) {
        self.sender.put(|pending| pending.stop = true);
    }
}

/// Starts the thread. The rules stay in the kernel when it ends.
pub fn spawn(
    dataplanes: Vec<(Family, Box<dyn Dataplane + Send>)>,
    timing: Timing,
    report: impl FnMut(Report) + Send + 'static,
) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let (sender, receiver) = mailbox();
    let lanes =
        dataplanes.into_iter().map(|(family, dataplane)| Lane::new(family, dataplane, timing)).collect();
    let engine = Engine { lanes, receiver, report };
    let thread = std::thread::Builder::new().name("dataplane".into()).spawn(move || engine.run())?;
    Ok((Handle { sender }, thread))
}

struct Engine<R> {
    lanes: Vec<Lane>,
    receiver: Receiver<Pending>,
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

    /// Waits until there is something to do. Returns false if the engine is to end. Takes everything that was requested, so
    /// that a burst of changes becomes one commit.
    fn receive(&mut self) -> bool {
        let due = self.lanes.iter().filter_map(Lane::due).min();
        match self.receiver.take_before(due) {
            Received::Value(pending) if pending.stop => return false,
            Received::Value(pending) => self.take(pending),
            Received::Late => {}
            Received::Closed => return false,
        }
        true
    }

    fn take(&mut self, pending: Pending) {
        let Pending { families, start, timing, stop: _ } = pending;
        let now = Instant::now();
        if let Some(timing) = timing {
            self.lanes.iter_mut().for_each(|lane| lane.set_timing(timing, now));
        }
        for (family, requests) in [(Family::Ipv4, families.ipv4), (Family::Ipv6, families.ipv6)] {
            if let Some(lane) = self.lane(family) {
                requests.pass_to(lane, start, now);
            }
        }
    }

    fn lane(&mut self, family: Family) -> Option<&mut Lane> {
        self.lanes.iter_mut().find(|lane| lane.family() == family)
    }
}

#[cfg(test)]
mod tests;
