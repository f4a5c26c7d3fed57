//! The engine: one thread that owns the wanted state and the data planes, and decides when they commit.
//!
//! Work, settings and data planes come in over a channel; reports go out through a callback. It must not know the API
//! server or a mode's rules: each mode is a [`Dataplane`] for each family, and everything else is the same for all
//! modes.
//!
//! Each family has a lane. The lane is the only owner of the [`Table`], of the [`State`] (whether the
//! kernel has the table, and if not, why), and of all deadlines. A fault in one family neither undoes nor delays the work
//! of the other. The first change after a pause is committed at once. Later changes wait until `min_interval` has passed
//! since the last commit ended, and are coalesced.
//!
//! ```text
//!  Work ──> Table ──difference since the data plane's last call──> apply     (in sync)
//!             └──────────────────────────────────────────────────> compare   (start, failure, drift, settings, hourly)
//! ```
//!
//! A comparison of a large table takes a second or more. Changes that arrive meanwhile are offered to the data plane, which
//! may write them before the comparison is complete ([`Meanwhile`]).
//!
//! Time comes from a clock that tests replace, and data planes have none: they say how long to wait, and the lane waits.
//!
//! # Replacing a data plane
//!
//! [`Handle::replace`] changes the mode, or the options of a mode, while the engine runs:
//!
//! 1. The new data plane compares the lane's table with the kernel. Until it succeeds, the old data plane stays active and
//!    commits changes, which are also stored for the new one.
//! 2. The new data plane becomes active with its first success. It has written everything, so nothing waits then.
//! 3. The old data plane is retired. It removes its rules in pieces between commits, and retries after a failure.
//!    Chains that both modes use stay ([`Claims`]).
//!
//! ```text
//!  old   active ──────────────────────> retired: translation, checks removed ──300 ms──> the rest removed
//!  new   compare, fails, back-off, compare, succeeds ──> active ──────────────────────────────────────────>
//! ```
//!
//! If both write to the same [`place`](crate::dataplane::About::place) (new options of one mode), the new data plane
//! updates the rules of the old one, and nothing is removed. While a new data plane compares, no removal of a data plane that was
//! retired earlier runs ([`suspend_removal`](crate::dataplane::Dataplane::suspend_removal)): it would remove what the new one
//! finds and keeps.
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
//! Changes by other programs are reported with [`Handle::compare`]. They are not reported until the first load is complete, nor
//! after a replacement until the new rules are subscribed to. The engine then looks at the generation of the ruleset. When
//! [`Handle::watched`] says that the subscription has begun, the engine compares everything if another program has committed
//! before. If the kernel does not notify of such changes
//! ([`is_notified`](crate::dataplane::About::is_notified)), the engine checks periodically that the rules are there.

pub mod dataplane;
pub mod drift;
pub mod table;

mod arrivals;
mod attempt;
mod clock;
mod counts;
mod driven;
mod history;
mod lane;
mod messages;
mod packed;
mod pending;
mod repairs;
mod retry;
mod snapshot;
mod state;
mod successor;
mod verification;
mod work;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use portolan_model::catalog::UdpService;
use portolan_model::{Family, ServicePortName, Settings};

use arrivals::Outside;
pub use attempt::{Attempt, Cause, Written};
use clock::Clock;
pub use counts::{Counts, endpoints};
pub use dataplane::{
    About, Claims, Collection, Commit, Condition, Dataplane, Error, Extent, Meanwhile, Messages, Refusal,
    Removal, Takeover, Undisturbed,
};
use drift::Unwatched;
pub use driven::Driven;
pub use history::{COMMITS_KEPT, EVENTS_KEPT, FAILURES_KEPT, Happening, HistoryEvent, Totals};
use lane::Lane;
use pending::{Pending, Stop};
use portolan_mailbox::{Received, Receiver, Sender, mailbox};
pub use snapshot::{Drift, FamilySnapshot};
pub use state::{Reason, State};
pub use table::{Changes, HealthCheckChange, HealthCheckPort, Table};
pub use work::{ObjectChanges, Work};

/// How many requests for a snapshot wait at most during a commit. A further one replaces the oldest.
const SNAPSHOTS_MAX: usize = 16;

/// A data plane of any mode.
pub type Boxed = Box<dyn Dataplane + Send>;

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

/// What a [`Report`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A commit of the active data plane.
    Commit,
    /// A commit of changes that arrived during a comparison, before the comparison was complete.
    DuringComparison,
    /// The commit of a data plane that replaces another. After a success it is active; after a failure the former one stays
    /// active.
    Replacement,
    /// The removal of unused chains and sets, which failed. A success is not reported.
    Collection,
    /// A periodic comparison that other programs have disturbed, and which is made later. Nothing of ours has changed, and changes go
    /// on being written.
    PutOff,
}

impl Step {
    /// Returns its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::DuringComparison => "during-comparison",
            Self::Replacement => "replacement",
            Self::Collection => "collection",
            Self::PutOff => "put-off",
        }
    }
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
    /// Time from taking up the last work to the end of the commit. Less than the duration if work was taken up meanwhile. Later
    /// work waits.
    pub taken_before: Duration,
    /// True if everything was compared with the kernel.
    pub full: bool,
    /// True if a change by another program was the reason for the commit, and something had to be repaired.
    pub repaired: bool,
    /// True if [`Handle::verify`] asked for it and the kernel had everything: a comparison found no difference.
    pub verified: bool,
    /// What was done.
    pub step: Step,
    /// What it was for.
    pub cause: Cause,
    /// What was written, or the error.
    pub outcome: Result<Commit, Error>,
    /// See [`Work::triggers`]. Empty after a failure, which keeps them for the next attempt.
    pub triggers: Vec<i64>,
    /// See [`Work::udp`]. Empty after a failure, which keeps them for the next attempt.
    pub udp: Vec<UdpService>,
    /// See [`Work::objects`]. Zero after a failure, which keeps them for the next attempt.
    pub objects: ObjectChanges,
    /// See [`Work::health_checks`]. Empty after a failure, which keeps them for the next attempt.
    pub health_checks: Vec<HealthCheckPort>,
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

    /// Gives a family its Service ports, in a table that the caller has filled. Its settings and health-check node ports do not
    /// matter. It is the first request about Service ports, and takes less memory than [`Handle::work`] with all of them.
    pub fn begin_with(&self, table: Table) {
        self.sender.put(|pending| pending.families.get_mut(table.family()).begin_with(table));
    }

    /// Marks the work queued so far as the complete state. From then on the engine writes to the kernel.
    pub fn start(&self) {
        self.sender.put(|pending| pending.start = true);
    }

    /// Replaces the data plane of a family, in the same mode or another. The new one receives the complete state and
    /// writes it; until that succeeds, changes go to the old one, too. Then the rules of the old one are removed,
    /// unless both have the same [`About::place`](crate::dataplane::About::place). Of several replacements the last one is used.
    pub fn replace(&self, family: Family, dataplane: Boxed) {
        self.put_replacement(family, dataplane, None);
    }

    /// Does the same as [`Handle::replace`] with settings that belong to the new data plane, such as those of another mode.
    /// They become those of the family when it has written everything; until then the old one keeps its settings.
    pub fn replace_with(&self, settings: Settings, dataplane: Boxed) {
        self.put_replacement(settings.family, dataplane, Some(settings));
    }

    fn put_replacement(&self, family: Family, dataplane: Boxed, settings: Option<Settings>) {
        drop(self.sender.put(|pending| {
            let is_after_start = pending.start;
            pending.families.get_mut(family).replace(dataplane, settings, is_after_start)
        }));
    }

    /// Passes in a data plane of another place whose rules an earlier run may have left. They are removed once
    /// everything is in the kernel.
    pub fn retire(&self, family: Family, dataplane: Boxed) {
        self.sender.put(|pending| pending.families.get_mut(family).retire(dataplane));
    }

    /// Sets new settings for a family.
    pub fn configure(&self, settings: Settings) {
        self.sender.put(|pending| pending.families.get_mut(settings.family).configure(settings));
    }

    /// Sets new settings for a family while a data plane with other settings is to replace the current one: `of_active` are for
    /// the current one, and `of_successor` for the other. If that has taken over meanwhile, only `of_successor` are used.
    pub fn configure_both(&self, of_active: Settings, of_successor: Settings) {
        self.sender.put(|pending| {
            pending.families.get_mut(of_active.family).configure_both(of_active, of_successor);
        });
    }

    /// Sets new intervals. They apply from the next commit on.
    pub fn set_timing(&self, timing: Timing) {
        self.sender.put(|pending| pending.timing = Some(timing));
    }

    /// Reports that another program may have changed the table of a family.
    pub fn compare(&self, family: Family) {
        self.sender.put(|pending| pending.families.get_mut(family).drifted());
    }

    /// Says that changes by other programs are reported from now on, if the kernel notifies of them. Compares everything if
    /// another program has changed rules since the start, or since the last [`Handle::replace`].
    pub fn watched(&self) {
        self.sender.put(|pending| pending.watched = true);
    }

    /// Compares everything of a family until a comparison finds that the kernel has it all ([`Report::verified`]). Changes
    /// that wait are committed before a comparison, and a due comparison follows a commit before new changes are taken. So
    /// it ends in a cluster with many changes, too. After a comparison that wrote, the next one waits at least a second.
    pub fn verify(&self, family: Family) {
        self.sender.put(|pending| pending.families.get_mut(family).verify(true));
    }

    /// Ends what [`Handle::verify`] began.
    pub fn stop_verifying(&self, family: Family) {
        self.sender.put(|pending| pending.families.get_mut(family).verify(false));
    }

    /// Asks for a snapshot of every family. `reply` gets it on the engine's thread, after its current commit, with the
    /// requests before this one applied. It must be short, and it should not keep the tables: the engine's next change
    /// would copy them. If the engine ends before that, or many others ask
    /// during a long commit, `reply` is dropped.
    pub fn snapshot(&self, reply: impl FnOnce(Vec<FamilySnapshot>) + Send + 'static) {
        drop(self.sender.put(|pending| {
            let is_full = pending.snapshots.len() >= SNAPSHOTS_MAX;
            let oldest = is_full.then(|| pending.snapshots.remove(0));
            pending.snapshots.push(Box::new(reply));
            oldest
        }));
    }

    /// Ends the thread after its current commit.
    pub fn stop(&self) {
        self.sender.put(|pending| pending.stop = Some(Stop::Now));
    }

    /// Does the same as [`Handle::stop`]. Before the end, each data plane that is in sync keeps what its next start can use
    /// ([`Dataplane::leave`]). `generation` is that of the ruleset up to which changes by other programs have been reported.
    pub fn stop_in_sync(&self, generation: u32) {
        self.sender.put(|pending| pending.stop = Some(Stop::InSync { generation }));
    }
}

/// Starts the thread. Each data plane programs the family of its settings. The rules stay in the kernel when the thread
/// ends.
///
/// # Errors
/// The thread cannot be started.
pub fn spawn(
    dataplanes: Vec<(Settings, Boxed)>,
    timing: Timing,
    report: impl FnMut(Report) + Send + 'static,
) -> std::io::Result<(Handle, JoinHandle<()>)> {
    let (handle, engine) = Engine::new(dataplanes, timing, report, &Clock::system());
    let thread = std::thread::Builder::new().name("dataplane".into()).spawn(move || engine.run())?;
    Ok((handle, thread))
}

/// A step of a turn: when it has something to do, and what it does.
type TurnStep = (fn(&Lane) -> Option<Instant>, fn(&mut Lane, &mut Outside<'_>) -> Option<Report>);

const STEPS: [TurnStep; 2] = [(Lane::run_due, Lane::run), (Lane::verification_due, Lane::run_verification)];

struct Engine<R> {
    lanes: Vec<Lane>,
    /// `None` while changes by other programs are reported.
    unwatched: Option<Unwatched>,
    receiver: Receiver<Pending>,
    report: R,
}

impl<R: FnMut(Report)> Engine<R> {
    fn new(dataplanes: Vec<(Settings, Boxed)>, timing: Timing, report: R, clock: &Clock) -> (Handle, Self) {
        let (sender, receiver) = mailbox();
        let lane = |(settings, dataplane)| Lane::new(settings, dataplane, timing, clock.clone());
        let lanes = dataplanes.into_iter().map(lane).collect();
        (Handle { sender }, Self { lanes, unwatched: Some(Unwatched::default()), receiver, report })
    }

    fn run(mut self) {
        while self.receive() {
            self.turn();
        }
    }

    /// Waits until there is something to do. Returns false if the engine is to end. Takes everything that was requested, so
    /// that a burst of changes becomes one commit.
    fn receive(&mut self) -> bool {
        match self.receiver.take_before(self.due()) {
            Received::Value(pending) if pending.stop.is_some() => {
                self.leave(&pending);
                return false;
            }
            Received::Value(pending) => self.take(pending),
            Received::Late => {}
            Received::Closed => return false,
        }
        true
    }

    /// Lets the data planes keep what their next start can use. What was requested together with the end stays undone, so the
    /// kernel does not have what is wanted of that family.
    fn leave(&mut self, pending: &Pending) {
        let Some(Stop::InSync { generation }) = pending.stop else { return };
        let unwatched = self.unwatched.take();
        let has_changed = unwatched.is_some_and(|unwatched| !pending.watched || unwatched.has_changed());
        if has_changed {
            // Changes of other programs may not have been reported.
            return;
        }
        for lane in &mut self.lanes {
            if pending.families.get(lane.family()).is_empty() {
                lane.leave(generation);
            }
        }
    }

    /// Returns when to run next, or `None` if nothing is pending.
    fn due(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(Lane::due).min()
    }

    /// Does one piece of what is due in each family.
    fn turn(&mut self) {
        // Without a mode of which the kernel notifies, it may have no nf_tables, and the question would load the module.
        let mut unwatched = self.unwatched.as_mut().filter(|_| self.lanes.iter().any(Lane::may_be_notified));
        for lane in &mut self.lanes {
            // The verification comes before new changes are taken, because they could come without end.
            for (due, step) in STEPS {
                // A commit of another program, meanwhile, would count as one of a step that has nothing to write.
                if !lane.has_come(due(lane)) {
                    continue;
                }
                if let Some(unwatched) = &mut unwatched {
                    unwatched.turn_begins();
                }
                let arrived = |family| self.receiver.take_part(|pending| pending.take_changes(family))?;
                let mut outside = Outside { arrived: &arrived, report: &mut self.report };
                let report = step(lane, &mut outside);
                // Before the report, because its receiver may change rules, too.
                if let Some(unwatched) = &mut unwatched {
                    unwatched.turn_ended();
                }
                if let Some(report) = report {
                    (self.report)(report);
                }
            }
        }
    }

    fn take(&mut self, pending: Pending) {
        let Pending { families, start, timing, watched, snapshots, stop: _ } = pending;
        if let Some(timing) = timing {
            self.lanes.iter_mut().for_each(|lane| lane.set_timing(timing));
        }
        if watched && self.unwatched.take().is_some_and(Unwatched::has_changed) {
            self.lanes.iter_mut().filter(|lane| lane.is_notified()).for_each(Lane::drifted);
        }
        for (family, requests) in [(Family::Ipv4, families.ipv4), (Family::Ipv6, families.ipv6)] {
            if requests.replaces() {
                self.unwatched.get_or_insert_default();
            }
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.family() == family) {
                requests.pass_to(lane, start);
            }
        }
        for reply in snapshots {
            reply(self.lanes.iter().map(Lane::snapshot).collect());
        }
    }
}

#[cfg(test)]
mod tests;
