//! The task that joins plan, schedule, probes, writes and the Lease. All state is in this task; probes and writes are
//! tasks of their own that return their results to it.

mod budget;
mod paces;
#[cfg(test)]
mod tests;
mod writes;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use self::budget::Budget;
use self::paces::Paces;
use self::writes::Writes;
use crate::client::{Events, LeaseClient, Writer};
use crate::error::WriteError;
use crate::lease::{Claim, Election, Held, Step};
use crate::metrics::{EndpointMetrics, Metrics};
use crate::object::Input;
use crate::plan::{Plan, Report, SliceWrite};
use crate::probe::{Begun, ProbeOutcome, Probes, Wanted};

/// Inputs that are applied before anything else is done.
const BATCH: usize = 256;
/// Probes begin at multiples of this time, several together, which saves wake-ups.
const TOGETHER: Duration = Duration::from_millis(25);
/// Most probes that begin before the first of them can end: their answers wait meanwhile.
const BEGIN: usize = 64;
/// A probe that begins later than this counts as late.
const LATE: Duration = Duration::from_secs(1);
/// Longest time for a request about the Lease: less than [`crate::lease::DEADLINE`], so that a request that hangs is
/// followed by another one.
const LEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest time for the write of a slice.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for which the end of the task waits for the Lease to be released.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Settings of the prober.
#[derive(Debug, Clone)]
pub struct ProberOptions {
    /// Most probes under way at once. Each needs a file descriptor. If there are more, probes are late.
    pub most_probes: usize,
    /// True if endpoints at loopback and link-local addresses are probed. Only for tests.
    pub any_address: bool,
}

impl Default for ProberOptions {
    /// 4,096 probes: with 10,000 endpoints, an interval of 5 s and a timeout of 1 s, 2,000 are under way if no endpoint
    /// answers.
    fn default() -> Self {
        Self { most_probes: 4096, any_address: false }
    }
}

/// The prober.
#[derive(Debug)]
pub struct Prober<P, W, E, L> {
    options: ProberOptions,
    probes: P,
    writer: Arc<W>,
    events: E,
    lease: Option<(Arc<L>, Election)>,
    plan: Plan,
    is_active: bool,
    has_services: bool,
    has_slices: bool,
    schedule: crate::schedule::Schedule,
    writes: Writes,
    paces: Paces,
    budget: Budget,
    metrics: Arc<Metrics>,
    endpoints: HashMap<u64, Arc<EndpointMetrics>>,
    /// The moment since which all times are counted.
    begin: Instant,
    probing: JoinSet<Probed>,
    writing: JoinSet<(SliceWrite, Result<String, WriteError>)>,
    leasing: JoinSet<Leased>,
}

#[derive(Debug)]
struct Probed {
    endpoint: u64,
    outcome: ProbeOutcome,
    took: Duration,
}

#[derive(Debug)]
enum Leased {
    Read(Result<Option<Held>, WriteError>),
    Wrote { claim: Claim, begun: Duration, result: Result<String, WriteError> },
}

impl<P: Probes, W: Writer, E: Events, L: LeaseClient> Prober<P, W, E, L> {
    /// Creates a prober. With a Lease and an identity, which must be unique to this run of the process, it probes only
    /// while it holds the Lease. Without, it always probes.
    pub fn new(options: ProberOptions, probes: P, writer: W, events: E, lease: Option<(L, String)>) -> Self {
        let lease = lease.map(|(lease, identity)| (Arc::new(lease), Election::new(identity, Duration::ZERO)));
        Self {
            plan: Plan::new(options.any_address),
            options,
            probes,
            writer: Arc::new(writer),
            events,
            lease,
            is_active: false,
            has_services: false,
            has_slices: false,
            schedule: crate::schedule::Schedule::default(),
            writes: Writes::default(),
            paces: Paces::default(),
            budget: Budget::default(),
            metrics: Arc::default(),
            endpoints: HashMap::new(),
            begin: Instant::now(),
            probing: JoinSet::new(),
            writing: JoinSet::new(),
            leasing: JoinSet::new(),
        }
    }

    /// Returns the numbers, which another task may read.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Probes until `stop` completes or the channel closes. Then releases the Lease.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<Input>, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let sleep = sleep_until(self.begin);
        tokio::pin!(sleep);
        loop {
            let wake = self.advance();
            set_deadline(sleep.as_mut(), self.begin, wake);
            tokio::select! {
                () = &mut stop => break,
                input = inputs.recv() => {
                    let Some(input) = input else { break };
                    self.observe(input, &mut inputs);
                }
                Some(leased) = self.leasing.join_next() => self.leased(leased),
                Some(wrote) = self.writing.join_next() => self.wrote(wrote),
                Some(probed) = self.probing.join_next() => {
                    self.joined(probed);
                    while let Some(probed) = self.probing.try_join_next() {
                        self.joined(probed);
                    }
                }
                () = &mut sleep => {}
            }
        }
        self.end().await;
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Does everything that is due. Returns the time of the next thing to do.
    fn advance(&mut self) -> Duration {
        let now = self.now();
        let election = self.elect(now);
        if self.is_active {
            // First, because some of them end at once and change the plan.
            self.start_probes(now);
            self.plan.settle();
            self.apply_changes(now);
            self.start_writes(now);
        }
        let can_probe = self.probing.len() < self.options.most_probes;
        let probe = self.schedule.next_due().filter(|_| can_probe).map(|at| rounded(at.max(now)));
        [election, probe, self.writes.next()].into_iter().flatten().min().unwrap_or(Duration::MAX)
    }

    /// Starts the next request about the Lease, and begins or ends probing. Returns when to ask again.
    fn elect(&mut self, now: Duration) -> Option<Duration> {
        let mut next = None;
        let mut leads = true;
        if let Some((client, election)) = &mut self.lease {
            let client = Arc::clone(client);
            match election.next(now) {
                Step::Wait(at) => next = Some(at),
                Step::Read => {
                    self.leasing
                        .spawn(async move { Leased::Read(within(LEASE_TIMEOUT, client.read()).await) });
                }
                Step::Write(claim) => {
                    self.leasing.spawn(async move {
                        let result = within(LEASE_TIMEOUT, client.write(&claim)).await;
                        Leased::Wrote { claim, begun: now, result }
                    });
                }
            }
            leads = election.leads(now);
            if next.is_none() {
                // The request has been started; what remains is the end of the term.
                next = match election.next(now) {
                    Step::Wait(at) => Some(at),
                    Step::Read | Step::Write(_) => None,
                };
            }
        }
        let is_active = leads && self.has_services && self.has_slices;
        if is_active != self.is_active {
            self.set_active(is_active, now);
        }
        next
    }

    fn set_active(&mut self, is_active: bool, now: Duration) {
        self.is_active = is_active;
        self.metrics.is_active.set(usize::from(is_active));
        if is_active {
            tracing::info!("health checks: this server probes");
            self.plan.activate(now);
            return;
        }
        tracing::warn!("health checks: this server does not hold the Lease any more");
        self.plan.deactivate();
        self.apply_changes(now);
        self.schedule.clear();
        self.writes.clear();
        self.paces.clear();
        self.probing.abort_all();
    }

    fn observe(&mut self, first: Input, inputs: &mut mpsc::Receiver<Input>) {
        let now = self.now();
        let mut input = first;
        for _ in 0..BATCH {
            self.apply(input, now);
            let Ok(next) = inputs.try_recv() else { return };
            input = next;
        }
        self.apply(input, now);
    }

    fn apply(&mut self, input: Input, now: Duration) {
        self.has_services |= matches!(input, Input::Services(_));
        self.has_slices |= matches!(input, Input::EndpointSlices(_));
        self.plan.apply(input, now);
    }

    fn apply_changes(&mut self, now: Duration) {
        let changes = self.plan.take_changes();
        for started in changes.started {
            self.schedule.add(started.endpoint, started.interval, now, started.soon);
            let metrics = &self.metrics;
            let endpoint = started.endpoint;
            self.endpoints
                .entry(endpoint)
                .or_insert_with(|| metrics.start(endpoint, started.service, started.address));
        }
        for endpoint in changes.stopped {
            self.schedule.remove(endpoint);
            self.endpoints.remove(&endpoint);
            self.metrics.stop(endpoint);
        }
        for key in changes.slices {
            self.writes.add(key, now);
        }
        for report in changes.reports {
            self.report(report, now);
        }
        self.metrics.set_counts(self.plan.counts());
        self.metrics.open_groups.set(self.plan.open_groups());
    }

    fn report(&mut self, report: Report, now: Duration) {
        let (object, reason, note) = (&*report.regarding.key, report.reason, &report.note);
        if report.is_warning {
            tracing::warn!(object, reason, note, "health check");
        } else {
            tracing::info!(object, reason, note, "health check");
        }
        if self.budget.allows(&report.regarding.key, now) {
            self.events.event(report);
        } else {
            self.metrics.events_dropped.increment();
        }
    }

    fn start_probes(&mut self, now: Duration) {
        // Wake-ups for other reasons begin no probes, because few at once cost more than many.
        let due = now.saturating_sub(since_step(now));
        loop {
            let room = self.options.most_probes.saturating_sub(self.probing.len());
            let wanted = self.take_due(due, room.min(BEGIN));
            if wanted.is_empty() {
                return;
            }
            let begun = Instant::now();
            let probes = self.probes.begin(&wanted, room);
            let took = begun.elapsed();
            let now = self.now();
            for (Wanted { endpoint, .. }, probe) in wanted.into_iter().zip(probes) {
                match probe {
                    Begun::Ended(outcome) => self.probed(Probed { endpoint, outcome, took }, now),
                    Begun::Waits(probe) => {
                        self.probing.spawn(async move {
                            let outcome = probe.await;
                            Probed { endpoint, outcome, took: begun.elapsed() }
                        });
                    }
                }
            }
        }
    }

    /// Takes the endpoints whose time has come.
    fn take_due(&mut self, now: Duration, most: usize) -> Vec<Wanted> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some((endpoint, at)) = self.schedule.take(now)
        {
            let Some((address, check)) = self.plan.probe(endpoint) else { continue };
            if now.saturating_sub(at) > LATE {
                self.metrics.late.increment();
            }
            due.push(Wanted { endpoint, address, check: Arc::clone(check) });
        }
        due
    }

    fn joined(&mut self, probed: Result<Probed, JoinError>) {
        match probed {
            Ok(probed) => self.probed(probed, self.now()),
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "a probe panicked"),
        }
    }

    fn probed(&mut self, probed: Probed, now: Duration) {
        let Probed { endpoint, outcome, took } = probed;
        self.metrics.count(&outcome);
        if let ProbeOutcome::Unable(error) = &outcome {
            tracing::debug!(error, "this node could not probe an endpoint");
        }
        let numbers = self.endpoints.get(&endpoint);
        if let Some(numbers) = numbers {
            numbers.probed(&outcome, took);
        }
        if let Some(effect) = self.plan.result(endpoint, &outcome, now).filter(|effect| effect.changed) {
            let was_healthy = numbers.is_some_and(|numbers| numbers.is_healthy());
            if let Some(numbers) = numbers {
                numbers.set_healthy(effect.is_healthy);
            }
            match (was_healthy, effect.is_healthy) {
                (false, true) => self.metrics.became_healthy.increment(),
                (true, false) => self.metrics.became_unhealthy.increment(),
                _ => {}
            }
        }
        self.schedule.finished(endpoint, now);
    }

    fn start_writes(&mut self, now: Duration) {
        while let Some(key) = self.writes.take(now) {
            let Some(write) = self.plan.write(&key) else {
                self.writes.finished(&key, now, &Ok(()));
                continue;
            };
            if !write.is_repeat {
                self.paces.changes(&key);
            } else if let Some(at) = self.paces.held_until(&key, now) {
                self.writes.postpone(&key, at);
                continue;
            } else if self.paces.repeats(&key, now)
                && let Some(report) = self.plan.overwritten(&key, paces::LONGEST)
            {
                self.report(report, now);
            }
            let writer = Arc::clone(&self.writer);
            self.writing.spawn(async move {
                let result = within(WRITE_TIMEOUT, writer.write(&write)).await;
                (write, result)
            });
        }
    }

    fn wrote(&mut self, ended: Result<(SliceWrite, Result<String, WriteError>), JoinError>) {
        let (write, result) = match ended {
            Ok(done) => done,
            Err(error) => return tracing::error!(%error, "a write panicked"),
        };
        match &result {
            Ok(version) => {
                self.metrics.written.increment();
                self.plan.written(&write, version);
            }
            Err(WriteError::Conflict) => self.metrics.conflicts.increment(),
            Err(WriteError::Gone) => {}
            Err(WriteError::Failed(error)) => {
                self.metrics.write_failures.increment();
                tracing::warn!(slice = &*write.key, error, "conditions not written; will try again");
            }
        }
        self.writes.finished(&write.key, self.now(), &result.map(drop));
    }

    fn leased(&mut self, leased: Result<Leased, JoinError>) {
        let now = self.now();
        let Some((_, election)) = &mut self.lease else { return };
        match leased {
            Ok(Leased::Read(answer)) => election.read(now, answer),
            Ok(Leased::Wrote { claim, begun, result }) => {
                if let Err(WriteError::Failed(error)) = &result {
                    tracing::warn!(error, "the Lease of the health checks was not written");
                }
                election.wrote(&claim, begun, now, result);
            }
            Err(error) => {
                tracing::error!(%error, "a request about the Lease panicked");
                election.read(now, Err(WriteError::Failed(error.to_string())));
            }
        }
    }

    async fn end(mut self) {
        self.probing.abort_all();
        let release = async {
            // A renewal that is under way decides about the version that is released.
            while let Some(leased) = self.leasing.join_next().await {
                self.leased(leased);
            }
            let Some((client, election)) = &mut self.lease else { return };
            if let Some(claim) = election.release()
                && let Err(error) = client.write(&claim).await
            {
                tracing::warn!(%error, "the Lease of the health checks was not released");
            }
        };
        // If this takes too long, another server takes over when the Lease has expired.
        let _ = timeout(RELEASE_TIMEOUT, release).await;
    }
}

async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, WriteError>>,
) -> Result<T, WriteError> {
    timeout(limit, request)
        .await
        .unwrap_or_else(|_| Err(WriteError::Failed(format!("no answer within {limit:?}"))))
}

/// Returns the time since the last multiple of [`TOGETHER`].
fn since_step(at: Duration) -> Duration {
    let step = TOGETHER.as_nanos().max(1);
    Duration::from_nanos(u64::try_from(at.as_nanos() % step).unwrap_or_default())
}

/// Returns the next multiple of [`TOGETHER`], or `at` if it is one.
fn rounded(at: Duration) -> Duration {
    let since = since_step(at);
    if since.is_zero() { at } else { at.saturating_add(TOGETHER.saturating_sub(since)) }
}

/// Sets when the sleep ends, unless it is set already.
fn set_deadline(sleep: std::pin::Pin<&mut Sleep>, begin: Instant, wake: Duration) {
    /// Longest sleep, if there is nothing to do.
    const LONGEST: Duration = Duration::from_secs(3600);
    let at = begin.checked_add(wake).unwrap_or_else(|| Instant::now() + LONGEST);
    if sleep.deadline() != at {
        sleep.reset(at);
    }
}
